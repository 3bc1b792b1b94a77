"""Drives several `specllama._core.Speculator` at once: a scheduler and its texts, without `specllama.Llama` around."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from engine import begin, drafters_of, opened
from llama_cpp import _internals

from specllama import _core
from specllama.backend.libllama import API

MEMORIES = {  # the target, a draft of its kind, and how many snapshots a text has
    "recurrent": ("recurrent", "recurrent_good", 0),
    "hybrid": ("hybrid", "hybrid_good", 0),
    "hybrid with snapshots": ("hybrid", "hybrid_good", 4),
    "delta net with snapshots": ("mtp_hybrid", "mtp_hybrid", 4),
    "sliding": ("sliding", "sliding_draft", 0),
}
"""Kinds of memory besides the plain one, by files of `conftest.TinyFiles`."""


class ManyTexts:
    """Places for several texts over one target and perhaps one draft."""

    def __init__(
        self,
        target: Path,
        draft: Path | None,
        places: int,
        *,
        n_ctx: int = 512,
        n_batch: int = 512,
        n_threads: int = 1,
        cache_tokens: int | None = None,
        num_snapshots: int = 0,
    ) -> None:
        """Opens both models, and for each a context that has `places` sequences of `n_ctx` tokens.

        Their cache has room for all of that, or for `cache_tokens`. Of a recurrent state, `num_snapshots` are kept.
        """
        self.num_snapshots = num_snapshots
        self.llamas: list[llama_cpp.Llama] = []
        self.contexts: list[_internals.LlamaContext] = []
        self.decoders = [
            self._decoder(path, name, places, n_ctx, n_batch, n_threads, cache_tokens)
            for path, name in ((target, "target"), (draft, "draft"))
            if path is not None
        ]
        self.scheduler = _core.Scheduler(self.decoders[0], self.decoders[1:])
        self.targets = [_core.Sequence(self.decoders[0], i) for i in range(places)]
        self.drafts = [_core.Sequence(self.decoders[1], i) if draft else None for i in range(places)]
        self.engines = [
            _core.Speculator(target, [] if draft is None else drafters_of(draft), self.scheduler)
            for target, draft in zip(self.targets, self.drafts, strict=True)
        ]

    def _decoder(
        self,
        path: Path,
        name: str,
        places: int,
        n_ctx: int,
        n_batch: int,
        n_threads: int,
        cache_tokens: int | None,
    ) -> _core.Decoder:
        llama = opened(path, n_ctx=64, n_batch=n_batch, n_threads=n_threads)
        self.llamas.append(llama)
        params = type(llama.context_params).from_buffer_copy(llama.context_params)
        params.n_ctx, params.n_seq_max, params.kv_unified = cache_tokens or n_ctx * places, places, True
        params.n_batch = params.n_ubatch = n_batch  # as of `Contexts`
        if self.num_snapshots:
            params.n_rs_seq = self.num_snapshots
        self.contexts.append(_internals.LlamaContext(model=llama._model, params=params, verbose=False))
        address = ctypes.cast(self.contexts[-1].ctx, ctypes.c_void_p).value
        assert address is not None
        return _core.Decoder(API, address, name, n_ctx, keeps_window=bool(getattr(params, "swa_full", False)))

    def begin(self, place: int, prompt: list[int], **settings: Any) -> _core.Speculator:
        """Starts a text at a place, and decodes its prompt."""
        begin(self.engines[place], prompt, **settings)
        return self.engines[place]

    def generate(self, place: int, prompt: list[int], count: int, **settings: Any) -> list[int]:
        """Prompt in, tokens out."""
        engine = self.begin(place, prompt, **settings)
        tokens: list[int] = []
        try:
            while len(tokens) < count:
                engine.step(count - len(tokens))
                tokens = list(np.asarray(engine.history())[len(prompt) :])
        finally:
            engine.finish(len(prompt) + len(tokens))
        return [int(token) for token in tokens]

    def generate_all(
        self, prompts: list[list[int]], count: int, settings_of: Callable[[int], dict[str, Any]]
    ) -> list[list[int]]:
        """The tokens of all prompts, at as many places as there are. Number i has the settings that it is given."""
        return self.run(
            [
                lambda place, i=i, prompt=prompt: self.generate(place, prompt, count, **settings_of(i))
                for i, prompt in enumerate(prompts)
            ]
        )

    def run(self, jobs: list[Callable[[int], Any]]) -> list[Any]:
        """Runs each job at a free slot, in as many threads as there are slots; their results, or errors, in order."""
        results: list[Any] = [None] * len(jobs)
        waiting = iter(range(len(jobs)))
        lock = threading.Lock()

        def work(place: int) -> None:
            while True:
                with lock:
                    number = next(waiting, None)
                if number is None:
                    return
                try:
                    results[number] = jobs[number](place)
                except Exception as error:
                    results[number] = error

        threads = [threading.Thread(target=work, args=(place,)) for place in range(len(self.engines))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results

    def finish(self) -> None:
        """Ends all texts."""
        for engine in self.engines:
            engine.finish(len(engine.history()))

    def close(self) -> None:
        """Frees everything."""
        self.scheduler.close()
        for decoder in self.decoders:
            decoder.close()
        for context in self.contexts:
            context.close()
        for llama in self.llamas:
            llama.close()
