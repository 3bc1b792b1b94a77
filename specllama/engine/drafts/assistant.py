"""Gemma 4's assistant: a head that reads its target's memory, and has none of its own."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

import llama_cpp

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.model import SEQUENCE, Model
from specllama.models.assistant_file import AssistantFile

from .decoding import DecodingDraft
from .draft import Loader, Sequences
from .draft_options import TEXT
from .head import DecodingHead

_STATES = ("h_nextn",)


class AssistantDraft(DecodingDraft):
    """An assistant, whose layers run once for each drafted token."""

    name = "head"

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.assistant(self.sequence_of(sequences))


class AssistantInFile(DecodingHead[AssistantFile]):
    """The kind of draft that is an assistant in a file."""

    form = AssistantFile
    draft = AssistantDraft
    takes = TEXT | {"draft_kwargs"}
    may_differ = frozenset({"n_threads", "n_gpu_layers", "kernels"})

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return Hidden(_STATES, nextn=True)

    def hidden(self, target: Model) -> Hidden:
        """See the base class."""
        width, memory = self.file.hidden_size, target.sequence.decoder
        return Hidden(_STATES, width, target=target.context, memory=memory, nextn=True)

    def open(self, target: Model, loader: Loader) -> DecodingDraft:
        """See the base class."""
        with _held(target):
            return super().open(target, loader)


@contextlib.contextmanager
def _held(target: Model) -> Iterator[None]:
    """A block after which the target's context holds what it held before.

    llama.cpp empties a memory when it makes another context that reads it.
    """
    context: Any = target.context
    is_empty = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(context), SEQUENCE) < 0
    size = 0 if is_empty else llama_cpp.llama_state_seq_get_size(context, SEQUENCE)
    state: Any = (ctypes.c_uint8 * size)()
    if size:
        llama_cpp.llama_state_seq_get_data(context, state, size, SEQUENCE)
    try:
        yield
    finally:
        if size:
            llama_cpp.llama_state_seq_set_data(context, state, size, SEQUENCE)
