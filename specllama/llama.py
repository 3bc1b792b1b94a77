"""Llama: llama_cpp.Llama with a draft."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import inspect
import os
import random
import secrets
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, TypeVar

import llama_cpp
import numpy as np
import numpy.typing as npt

from . import _core, catalog
from ._llama import can_roll_back, context_of, is_open
from .closed import close_for_good
from .completion import Completion
from .generation import Generation, Request
from .loading import explained
from .options import FallbackWarning, Options, checked_seed
from .stats import Stats, Tally
from .vocabulary import require_same_vocabulary, require_same_vocabulary_file

_Method = TypeVar("_Method", bound=Callable[..., Any])

# What a draft given by its path takes over from the target, unless draft_kwargs say otherwise.
_INHERITED = ("n_gpu_layers", "split_mode", "main_gpu", "use_mmap", "use_mlock", "offload_kqv", "flash_attn", "numa")

# The options of the create_completion call that runs now, or whose stream is being read.
_call_options: contextvars.ContextVar[Options | None] = contextvars.ContextVar("specllama_options", default=None)


def _with_options(base: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Gives an override the base method's signature and documentation, plus the two arguments of ours."""

    def decorate(method: _Method) -> _Method:
        functools.update_wrapper(method, base)
        signature = inspect.signature(base)
        ours = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in ("num_draft_tokens", "verify")
        ]
        parameters = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        rest = [p for p in signature.parameters.values() if p.kind is p.VAR_KEYWORD]
        method.__signature__ = signature.replace(parameters=[*parameters, *ours, *rest])  # type: ignore[attr-defined]
        return method

    return decorate


class Llama(llama_cpp.Llama):
    """A ``llama_cpp.Llama`` that decodes speculatively. The text stays what the target alone would have said.

    Every method of ``llama_cpp.Llama`` works as documented there. ``create_completion``, ``__call__``,
    ``create_chat_completion`` and ``generate`` also take ``num_draft_tokens`` and ``verify`` for one call.

    Args:
        model_path: the target, a path or a name from ``specllama pull --list``.
        draft_model: the draft: a path or name, another ``llama_cpp.Llama``, or None for plain decoding. It must have
            the target's vocabulary.
        draft_kwargs: constructor arguments of a draft given by path. Unless given here it takes the target's context
            size, threads and GPU settings.
        num_draft_tokens: gamma, how many tokens a round drafts; 0 is plain decoding.
        verify: the acceptance rule. ``"rejection"`` (Leviathan et al. 2022; Chen et al. 2023), ``"block"`` (Sun et
            al. 2025), ``"coupled"`` (Daliri et al. 2024: a seed means one text whatever the draft), or ``"auto"``:
            coupled if a seed was given, else block. Each leaves the target's distribution as it is.
        seed: a seed for all generations; None, or llama_cpp's -1, for a random one each time.
        kwargs: everything else that ``llama_cpp.Llama`` takes. ``logits_all`` is not needed for logprobs and is ignored.

    Raises:
        ValueError: not a loadable model, another vocabulary, or an option out of range.
        ModelNotFoundError: no such file (a FileNotFoundError and a ValueError).
    """

    def __init__(
        self,
        model_path: str,
        *,
        draft_model: str | os.PathLike[str] | llama_cpp.Llama | None = None,
        draft_kwargs: dict[str, Any] | None = None,
        num_draft_tokens: int = 4,
        verify: str = "auto",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        self._options = Options.checked(num_draft_tokens, verify)
        checked = checked_seed(seed)
        _require_sizes(kwargs)
        self._lock = threading.RLock()
        self._warned: set[str] = set()
        self._generation: Generation | None = None
        self._total = Tally()
        self._speculator: _core.Speculator | None = None
        self._draft_model: llama_cpp.Llama | None = None
        self._owned_draft: llama_cpp.Llama | None = None
        self._draft_kwargs = draft_kwargs
        self._cannot_draft: str | None = None
        kwargs.pop("logits_all", None)  # it would allocate n_ctx x n_vocab floats
        model_path = catalog.resolve(model_path)
        with explained(model_path):
            super().__init__(model_path, seed=llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked, **kwargs)
        self._seed = llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked  # 0 is a seed like any other
        self.scores = np.empty((0, self._n_vocab), dtype=np.single)  # the base class's n_batch x n_vocab is not used
        self.draft_model = self._opened_draft(draft_model, kwargs)

    # The draft

    @property
    def draft_model(self) -> llama_cpp.Llama | None:
        """The draft, or None. Another Llama (or None) may be assigned between generations."""
        return self._draft_model

    @draft_model.setter
    def draft_model(self, draft: llama_cpp.Llama | None) -> None:
        if draft is self:
            raise ValueError("a Llama cannot be its own draft: load a smaller model of its family")
        if draft is not None:
            require_same_vocabulary(self._model, draft._model)
            context_of(draft, "draft")  # refuses a model that cannot generate
            if draft._model.n_params() > self._model.n_params():
                warnings.warn(
                    f"the draft ({draft._model.n_params():,} parameters) is larger than the target "
                    f"({self._model.n_params():,}): this is slower than no draft; exchange the two paths",
                    UserWarning,
                    stacklevel=3,
                )
        self._draft_model = draft
        self._speculator = None
        self._cannot_draft = None
        if draft is not None:
            self._cannot_draft = self._why_not_draft(draft)
            if self._cannot_draft is not None:
                self._warn_once(f"{self._cannot_draft}: decoding plainly, without the draft")

    def _opened_draft(self, draft: Any, kwargs: dict[str, Any]) -> llama_cpp.Llama | None:
        if draft is None or isinstance(draft, llama_cpp.Llama):
            if self._draft_kwargs:
                raise ValueError("draft_kwargs are for a draft_model given by its path: it is already loaded, or None")
            return draft
        if not isinstance(draft, (str, os.PathLike)):
            raise TypeError(f"draft_model={draft!r} must be a path, a model name, a llama_cpp.Llama or None")
        path = catalog.resolve(draft)
        require_same_vocabulary_file(self._model, path)
        inherited = {name: kwargs[name] for name in _INHERITED if name in kwargs}
        sizes = {"n_ctx": self.n_ctx(), "n_batch": self.n_batch}
        threads = {"n_threads": self.n_threads, "n_threads_batch": self.n_threads_batch}
        arguments = {**inherited, **sizes, **threads, "verbose": self.verbose, **(self._draft_kwargs or {})}
        with explained(path):
            self._owned_draft = llama_cpp.Llama(path, **arguments)
        return self._owned_draft

    def _why_not_draft(self, draft: llama_cpp.Llama) -> str | None:
        for name, llama in (("target", self), ("draft", draft)):
            if not can_roll_back(llama):
                return f"the {name}'s memory is recurrent and cannot be rolled back yet"
        return None

    def _claim_draft(self, num_draft_tokens: int) -> int:
        """How many tokens to draft, now that a generation begins."""
        draft = self._draft_model
        if draft is None or num_draft_tokens == 0 or self._cannot_draft is not None:
            return 0
        if not is_open(draft):
            self._cannot_draft = "the draft Llama is closed"
            self._warn_once(f"{self._cannot_draft}: decoding plainly, without the draft")
            return 0
        self._check_draft()
        return num_draft_tokens

    def _check_draft(self) -> None:
        """Learns what the draft's cache holds if its owner has used it. While it is ours its n_tokens is 0."""
        draft = self._draft_model
        if draft is None:
            return
        context = context_of(draft, "draft")
        if not is_open(draft):
            context.close()
        elif draft.n_tokens:
            context.assume(draft._input_ids)
            draft.n_tokens = 0

    # The engine and who uses it

    @property
    def _target_context(self) -> _core.Context:
        return context_of(self, "target")

    @property
    def _engine(self) -> _core.Speculator:
        if self._speculator is None:
            draft = self._draft_model
            self._speculator = _core.Speculator(
                self._target_context, None if draft is None else context_of(draft, "draft")
            )
        return self._speculator

    @contextlib.contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Refuses a second thread, which would corrupt the caches."""
        if not self._lock.acquire(blocking=False):
            raise _core.BusyError(
                "this Llama is generating in another thread: wait for it, or create one Llama for each thread"
            )
        try:
            yield
        finally:
            self._lock.release()

    def _take_over(self, generation: Generation) -> None:
        if self._generation is not None:
            self._generation.supersede()
            self._end_generation(self._generation)
        self._target_context.assume(self._input_ids)
        self._generation = generation

    def _end_generation(self, generation: Generation) -> None:
        if generation._tally is not None and generation is self._generation:
            self._total = self._total + generation._tally
            self._last = generation._tally
        self._generation = None

    _last = Tally()

    def _warn_once(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, FallbackWarning, stacklevel=2)

    # Options and statistics

    @property
    def num_draft_tokens(self) -> int:
        """Gamma: how many tokens a round drafts; 0 is plain decoding."""
        return self._options.num_draft_tokens

    @num_draft_tokens.setter
    def num_draft_tokens(self, value: int) -> None:
        self._options = self._options.overridden(value, None)

    @property
    def verify(self) -> str:
        """The acceptance rule: auto, rejection, block or coupled."""
        return self._options.verify

    @verify.setter
    def verify(self, value: str) -> None:
        self._options = self._options.overridden(None, value)

    @property
    def stats(self) -> Stats:
        """Statistics of the last generation, or of the one under way."""
        if self._generation is not None and self._generation._begun:
            return self._generation.tally().stats()
        return self._last.stats()

    @property
    def total_stats(self) -> Stats:
        """Statistics of all finished generations of this Llama together."""
        return self._total.stats()

    # Seeds

    def set_seed(self, seed: int) -> None:
        """Set the seed of the generations that follow; -1 for random ones."""
        checked = checked_seed(seed)
        self._seed = llama_cpp.LLAMA_DEFAULT_SEED if checked is None else checked

    def _seed_for_call(self, seed: int | None) -> tuple[int, bool]:
        """A completion's seed, and whether the user chose it. As in the base class each call has another one."""
        seed = checked_seed(seed)
        if seed is not None:
            return seed, True
        if self._seed == llama_cpp.LLAMA_DEFAULT_SEED:
            return secrets.randbits(64), False
        self._seed = random.Random(self._seed).randint(0, 2**32 - 2)
        return self._seed, True

    # Generation

    @_with_options(llama_cpp.Llama.generate)
    def generate(
        self,
        tokens: Sequence[int],
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        typical_p: float = 1.0,
        temp: float = 0.80,
        repeat_penalty: float = 1.0,
        reset: bool = True,
        frequency_penalty: float = 0.0,
        presence_penalty: float = 0.0,
        tfs_z: float = 1.0,
        mirostat_mode: int = 0,
        mirostat_tau: float = 5.0,
        mirostat_eta: float = 0.1,
        penalize_nl: bool = True,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        grammar: Any = None,
        *,
        num_draft_tokens: int | None = None,
        verify: str | None = None,
    ) -> Generator[int, Sequence[int] | None, None]:
        options = self._options.overridden(num_draft_tokens, verify)
        seed_given = self._seed != llama_cpp.LLAMA_DEFAULT_SEED
        request = Request(
            tokens=tokens,
            options=options,
            seed=self._seed if seed_given else secrets.randbits(64),
            seed_given=seed_given,
            sampling={
                "top_k": top_k,
                "top_p": top_p,
                "min_p": min_p,
                "typical_p": typical_p,
                "temp": temp,
                "repeat_penalty": repeat_penalty,
                "frequency_penalty": frequency_penalty,
                "presence_penalty": presence_penalty,
                "tfs_z": tfs_z,
                "mirostat_mode": mirostat_mode,
                "mirostat_tau": mirostat_tau,
                "mirostat_eta": mirostat_eta,
                "penalize_nl": penalize_nl,
            },
            logits_processor=logits_processor,
            grammar=grammar,
            stopping_criteria=stopping_criteria,
            reset=reset,
        )
        return Generation(self, request).run()

    @_with_options(llama_cpp.Llama.create_completion)
    def create_completion(
        self, *args: Any, num_draft_tokens: int | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        return self._with_call_options(super().create_completion, num_draft_tokens, verify, args, kwargs)

    @_with_options(llama_cpp.Llama.__call__)
    def __call__(
        self, *args: Any, num_draft_tokens: int | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        return self._with_call_options(super().__call__, num_draft_tokens, verify, args, kwargs)

    @_with_options(llama_cpp.Llama.create_chat_completion)
    def create_chat_completion(
        self, *args: Any, num_draft_tokens: int | None = None, verify: str | None = None, **kwargs: Any
    ) -> Any:
        return self._with_call_options(super().create_chat_completion, num_draft_tokens, verify, args, kwargs)

    def _with_call_options(
        self,
        method: Callable[..., Any],
        num_draft_tokens: int | None,
        verify: str | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Calls a method of the base class that ends up in _create_completion, which reads the options.

        Chat handlers in between have fixed signatures, and some only call it when their stream is read.
        """
        outer = _call_options.get()
        options = (outer or self._options).overridden(num_draft_tokens, verify)
        context = contextvars.copy_context()
        context.run(_call_options.set, options)
        with self._exclusive():
            result = context.run(method, *args, **kwargs)
        return _read_in(context, result) if isinstance(result, Iterator) else result

    def _score(self, tokens: Sequence[int], chunk: int) -> Iterator[tuple[int, npt.NDArray[np.single]]]:
        """Decode a prompt from its beginning, and yield (position, raw logits [n_vocab]) of all tokens but the last.

        Holds logits for `chunk` positions at a time.
        """
        context = self._target_context
        for start in range(0, len(tokens) - 1, chunk):
            part = tokens[start : min(start + chunk, len(tokens) - 1)]
            with self._exclusive():
                context.assume(np.asarray(tokens[:start], dtype=np.int32))
                context.keep(start)
                context.decode(np.asarray(part, dtype=np.int32), 0)
                self.input_ids[start : start + len(part)] = part
                self.n_tokens = context.num_tokens
                rows = [context.logits(i) for i in range(len(part))]
            yield from enumerate(rows, start)

    def _create_completion(self, *args: Any, **kwargs: Any) -> Iterator[Any]:
        return Completion(self, _call_options.get() or self._options, *args, **kwargs).run()

    # State

    def load_state(self, state: llama_cpp.LlamaState) -> None:
        """Restore a state saved by this class or by ``llama_cpp.Llama`` (whose stored logits are not needed)."""
        with self._exclusive():
            super().load_state(
                llama_cpp.LlamaState(
                    input_ids=state.input_ids,
                    scores=self.scores,
                    n_tokens=state.n_tokens,
                    llama_state=state.llama_state,
                    llama_state_size=state.llama_state_size,
                    seed=state.seed,
                )
            )

    def __getstate__(self) -> dict[str, Any]:
        draft = self._draft_model
        state: dict[str, Any] = super().__getstate__()
        state.pop("logits_all", None)
        return {
            **state,
            "draft_model": draft.model_path if draft is not None and draft is self._owned_draft else draft,
            "draft_kwargs": self._draft_kwargs,
            "num_draft_tokens": self.num_draft_tokens,
            "verify": self.verify,
        }

    def close(self) -> None:
        """Free both models. Whatever is called afterwards raises ClosedError.

        Raises:
            BusyError: another thread is generating.
        """
        if "_stack" not in self.__dict__:
            return  # __init__ failed early
        context = self.__dict__.get("_specllama_context")
        if context is not None:
            context.close()
        super().close()
        close_for_good(self)
        if self._owned_draft is not None:
            draft_context = self._owned_draft.__dict__.get("_specllama_context")
            if draft_context is not None:
                draft_context.close()
            self._owned_draft.close()
            self._owned_draft = None


def _read_in(context: contextvars.Context, chunks: Iterator[Any]) -> Iterator[Any]:
    """Reads a stream in the context it was created in."""
    try:
        while True:
            try:
                chunk = context.run(next, chunks)
            except StopIteration:
                return
            yield chunk
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            context.run(close)


def _require_sizes(kwargs: dict[str, Any]) -> None:
    # These would reach a GGML_ASSERT, which aborts the process.
    for name, least in (("n_ctx", 0), ("n_batch", 1), ("n_ubatch", 1)):
        value = kwargs.get(name, least)
        if not least <= value < 2**31:
            raise ValueError(f"{name}={value} is out of range: it must be at least {least}")
