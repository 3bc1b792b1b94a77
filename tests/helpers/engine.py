"""Drives `specllama._core.Speculator` directly: the loop without `specllama.Llama` around it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np

from specllama import _core
from specllama.grammars.gbnf_matcher import GbnfVocabulary


@functools.cache
def api() -> _core.LlamaApi:
    """The functions of the libllama that llama_cpp has loaded."""
    names = [found.name for found in _core.required_functions()]
    addresses = {name: ctypes.cast(getattr(llama_cpp, name), ctypes.c_void_p).value for name in names}
    return _core.LlamaApi({name: address for name, address in addresses.items() if address})


def vocab_address(llama: llama_cpp.Llama) -> int:
    """Where a model's vocabulary is."""
    address = ctypes.cast(llama._model.vocab, ctypes.c_void_p).value
    assert address is not None
    return address


def grammar(llama: llama_cpp.Llama, gbnf: str) -> _core.MaskConstraint:
    """A grammar over a model's tokens."""
    return GbnfVocabulary(vocab_address(llama)).constraint(gbnf, "root")


def drafters_of(draft: _core.Sequence | None, corpus: np.ndarray[Any, Any] | None = None) -> list[_core.Drafter]:
    """Those that draft together with a draft model, or without one."""
    of_model = [] if draft is None else [_core.Drafter.model(draft)]
    return [_core.Drafter.grammar(), _core.Drafter.lookup(corpus), *of_model]


def begin(
    speculator: _core.Speculator,
    prompt: list[int],
    *,
    rule: str = "block",
    gamma: int = 4,
    seed: int = 1,
    paced: bool = False,
    logits_processor: Callable[..., Any] | None = None,
    constraint: _core.Constraint | None = None,
    keeps_logits: bool = False,
    **sampler: Any,
) -> None:
    """Starts a generation and decodes the prompt."""
    speculator.begin(
        np.array(prompt, dtype=np.int32),
        sampler=_core.SamplerParams(**sampler),
        rule=rule,
        num_draft_tokens=gamma,
        seed=seed,
        paced=paced,
        logits_processor=logits_processor,
        constraint=constraint,
        keeps_logits=keeps_logits,
    )
    while speculator.prefill():
        pass


def opened(path: Path, *, n_threads: int = 1, **options: Any) -> llama_cpp.Llama:
    """A model whose cache is F32: F16 makes a difference in the third digit of one in the seventh.

    llama.cpp rounds otherwise for other batches, on every processor in its own way, and near a tie the text changes.
    """
    return llama_cpp.Llama(
        str(path),
        n_threads=n_threads,
        n_threads_batch=n_threads,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
        verbose=False,
        **options,
    )


class Engine:
    """A target, perhaps a draft, and a loop over both."""

    def __init__(self, target: Path, draft: Path | None = None, *, n_ctx: int = 512, draft_n_ctx: int = 512) -> None:
        """Opens the models with one thread each."""
        self.target_llama = opened(target, n_ctx=n_ctx)
        self.draft_llama = None if draft is None else opened(draft, n_ctx=draft_n_ctx)
        self.target = self._sequence(self.target_llama, "target")
        self.draft = None if self.draft_llama is None else self._sequence(self.draft_llama, "draft")
        self.speculator = _core.Speculator(self.target, [] if draft is None else drafters_of(self.draft))
        self.rounds: list[_core.Round] = []

    @staticmethod
    def _sequence(llama: llama_cpp.Llama, name: str) -> _core.Sequence:
        address = ctypes.cast(llama.ctx, ctypes.c_void_p).value
        assert address is not None
        return _core.Sequence(_core.Decoder(api(), address, name), 0)

    def grammar(self, gbnf: str) -> _core.MaskConstraint:
        """A grammar over the target's tokens."""
        return grammar(self.target_llama, gbnf)

    def begin(self, prompt: list[int], **settings: Any) -> None:
        """As `begin`."""
        self.rounds = []
        begin(self.speculator, prompt, **settings)

    def step(self, max_tokens: int = 100) -> list[int]:
        """One round."""
        done = self.speculator.step(max_tokens)
        self.rounds.append(done)
        return done.tokens

    def take(self, count: int) -> list[int]:
        """The next `count` tokens."""
        tokens: list[int] = []
        while len(tokens) < count:
            tokens += self.step(count - len(tokens))
        return tokens

    def generate(self, prompt: list[int], count: int, **settings: Any) -> list[int]:
        """Prompt in, tokens out."""
        self.begin(prompt, **settings)
        return self.take(count)

    def history(self) -> list[int]:
        """All committed tokens."""
        return np.asarray(self.speculator.history()).tolist()

    def greedy_rounds(
        self, n_vocab: int, gamma: int, count: int, *, first_alone: bool = False
    ) -> list[tuple[int, list[int]]]:
        """What is accepted, and emitted, in `count` rounds behind each of forty prompts, of which many begin alike.

        `first_alone`: a token comes with the last batch of each prompt before.
        """
        chance = np.random.default_rng(3)
        found = []
        for _ in range(40):
            self.begin([1, *chance.integers(3, n_vocab, chance.integers(1, 12)).tolist()], gamma=gamma, temperature=0.0)
            if first_alone:
                self.step(1)
            for _ in range(count):
                self.step()
                found.append((self.rounds[-1].num_accepted, self.rounds[-1].tokens))
        return found

    def draft_by(self, draft: Callable[[list[int], int], list[int]]) -> None:
        """From now on a function drafts: (history, how many) -> tokens, which depend on nothing else."""

        def function(history: Any, count: int) -> tuple[list[int], list[_core.Distribution]]:
            tokens = draft([int(token) for token in history], count)
            return tokens, [_core.Distribution([token], [1.0]) for token in tokens]

        self.speculator = _core.Speculator(self.target, [_core.Drafter.function(function)])

    def close(self) -> None:
        """Frees both models."""
        self.target.decoder.close()
        self.target_llama.close()
        if self.draft is not None and self.draft_llama is not None:
            self.draft.decoder.close()
            self.draft_llama.close()


def assert_one_round_is_plain(engine: Engine, target: Path, gamma: int) -> None:
    """Behind what the memory of a loop with a head holds, of which there are no states; then the head reads on."""
    plain = Engine(target)
    text = plain.generate([1, 3, 4, 5], 30, gamma=0, temperature=0.0)
    engine.generate([1, 3, 4, 5, *text], 1, gamma=0, temperature=0.0)
    engine.begin([1, 3, 4, 5, *text], gamma=gamma, temperature=0.0)
    assert engine.take(30) == plain.generate([1, 3, 4, 5, *text], 30, gamma=0, temperature=0.0)
    assert [done.num_drafted for done in engine.rounds[:3]] == [0, gamma, gamma]
    plain.close()
