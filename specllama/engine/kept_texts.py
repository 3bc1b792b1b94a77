"""Copies of the context's memory: made when another text takes it over, and put back when the old text is continued.

Without copies, two conversations in turn would have their whole prompts decoded again each time. One conversation alone
is never copied. Copying a token takes microseconds, decoding it takes a millisecond or more.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any, NamedTuple

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama.backend.brief import brief
from specllama.models.loading import quiet

from .model import SEQUENCE, Model
from .options import checked_index
from .position import num_common

Tokens = npt.NDArray[np.int32]

_LEAST_GAIN = 16  # the least tokens that a copy must save; fewer are decoded in one batch, nearly as fast
_MIB = 1 << 20


def checked_cache_ram(value: Any) -> int:
    """Check ``cache_ram``: how many MiB the copies of earlier texts may take; -1: no limit.

    Raises:
        TypeError: the value is no int.
        ValueError: the value is below -1.
    """
    number = checked_index("cache_ram", value, "an int: MiB for earlier texts; 0 keeps none, -1 has no limit")
    if number < -1:
        raise ValueError(
            f"cache_ram={brief(number)} is below -1: give MiB for earlier texts; 0 keeps none, -1 has no limit"
        )
    return number


class _Copy(NamedTuple):
    """A copy of one context's memory, and its tokens."""

    tokens: Tokens
    state: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, model: Model, tokens: Tokens) -> _Copy | None:
        """Copy the memory of a model's context; None if llama.cpp gives no copy, or there is no room for one."""
        try:
            state = np.empty(_size(model), dtype=np.uint8)
        except MemoryError:
            return None
        with quiet():
            written = llama_cpp.llama_state_seq_get_data(_context(model), _bytes(state), len(state), SEQUENCE)
        return cls(tokens.copy(), state[:written]) if 0 < written <= len(state) else None

    def put_back(self, model: Model) -> None:
        """Put the copy back into the context. The context is empty afterwards if llama.cpp does not accept it."""
        model.sequence.assume(self.tokens[:0])  # first: if Ctrl-C interrupts this method, the context counts as empty
        with quiet():
            read = llama_cpp.llama_state_seq_set_data(_context(model), _bytes(self.state), len(self.state), SEQUENCE)
        if read:
            model.sequence.assume(self.tokens)


class _Kept(NamedTuple):
    """The two copies for a text: of the target's context, and of the draft's context, if there is one."""

    target: _Copy
    draft: _Copy | None

    @property
    def num_bytes(self) -> int:
        return sum(copy.tokens.nbytes + copy.state.nbytes for copy in self if copy is not None)


class KeptTexts:
    """The copies for the last texts, within a limit. The copy that was unused for longest is dropped first.

    Args:
        cache_ram: how many MiB all copies together may take. 0 keeps none, -1 has no limit.

    Attributes:
        num_resumed: how often a copy was put back.
    """

    def __init__(self, cache_ram: int = 0) -> None:
        self._most_bytes = sys.maxsize if cache_ram < 0 else cache_ram * _MIB
        self._texts: tuple[_Kept, ...] = ()  # replaced as a whole: another thread may read `num_bytes` meanwhile
        self.num_resumed = 0

    @property
    def keeps_some(self) -> bool:
        """Whether any copies are kept."""
        return self._most_bytes > 0

    @property
    def num_texts(self) -> int:
        """The number of texts with copies."""
        return len(self._texts)

    @property
    def num_bytes(self) -> int:
        """The size of all copies in bytes."""
        return sum(kept.num_bytes for kept in self._texts)

    def clear(self) -> None:
        """Drop all copies."""
        self._texts = ()

    def exchange(self, target: Model, draft: Model | None, text: Tokens) -> None:
        """Make the memory ready for a text: copy its content, if the text cannot use that, and put back the best copy.

        Args:
            target: the model whose context the text gets.
            draft: the draft model, which has a context of its own; None if there is none.
            text: the tokens of the text, which the target's memory will hold next.
        """
        held = target.sequence.tokens()
        in_common = num_common(held, text)
        best = max(self._texts, key=lambda kept: _num_usable(target, kept.target.tokens, text), default=None)
        if len(held) - in_common >= _LEAST_GAIN:
            self._keep(target, draft, held)
        if best is None or _num_usable(target, best.target.tokens, text) < in_common + _LEAST_GAIN:
            return
        others = tuple(kept for kept in self._texts if kept is not best)
        goes_on = num_common(best.target.tokens, text) == len(best.target.tokens)
        # If the text branches off within the copy, the copy is kept, because another continuation may come.
        self._texts = others if goes_on else (*others, best)
        self.num_resumed += 1
        if draft is not None and best.draft is not None:
            best.draft.put_back(draft)
        best.target.put_back(target)

    def _keep(self, target: Model, draft: Model | None, held: Tokens) -> None:
        size = _size(target) + (0 if draft is None else _size(draft))
        if size > self._most_bytes:
            return
        # A copy whose text is the beginning of the held text is dropped: the new copy can be used in its place.
        texts = [kept for kept in self._texts if num_common(kept.target.tokens, held) < len(kept.target.tokens)]
        while texts and sum(kept.num_bytes for kept in texts) + size > self._most_bytes:
            del texts[0]
        self._texts = tuple(texts)  # before the new copy is made, so that the copies never exceed the limit
        copy = _Copy.of(target, held)
        if copy is not None:
            of_draft = None if draft is None else _Copy.of(draft, draft.sequence.tokens())
            self._texts = (*texts, _Kept(copy, of_draft))


def _num_usable(target: Model, held: Tokens, text: Tokens) -> int:
    """How many held tokens a text need not decode again. Of a memory that cannot be cut, the text uses all or none."""
    in_common = num_common(held, text)
    return in_common if target.is_shareable or in_common == len(held) else 0


def _size(model: Model) -> int:
    return int(llama_cpp.llama_state_seq_get_size(_context(model), SEQUENCE))


def _context(model: Model) -> Any:
    return model.context


def _bytes(data: npt.NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
