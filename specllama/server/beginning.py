"""Looks whether a request can begin, before the head of its stream is sent: an error then has a status of its own."""

from __future__ import annotations

import contextlib
from typing import NoReturn

from specllama import Llama
from specllama.drop_in import call_on
from specllama.engine.position import Position
from specllama.engine.slot import Slot, UnderWay

from .chats import ChatRequest
from .completions import CompletionRequest


class _Begins(Exception):  # noqa: N818  # it is no error: all is well until here
    """What was asked can begin: its next step would decode."""


class _Unused(Slot):
    """A slot in which no text begins."""

    is_alone = False

    def require_alone(self, what: str) -> NoReturn:
        """Called by what decodes by itself.

        Raises:
            _Begins: always.
        """
        raise _Begins

    def begin(self, generation: UnderWay) -> NoReturn:
        """Called by a text before it decodes.

        Raises:
            _Begins: always.
        """
        raise _Begins


def require_can_begin(llm: Llama, request: CompletionRequest | ChatRequest) -> None:
    """Check all of a request that can be checked without decoding: it is rendered, tokenized, and given to a slot.

    Any number of threads may call this, also while texts are generated.

    Raises:
        Exception: what the request would raise when it begins.
    """
    slot = _Unused(llm.engine.account, llm.engine.model, Position())
    for text in request.texts()[:: request.num_candidates]:  # one for each prompt
        if text.decodes_by_itself(llm):  # such a handler reads images first, and for one request at a time
            continue
        copy = text.model_copy(update={"stream": True, "seed": 0})
        with contextlib.suppress(_Begins), contextlib.closing(copy.begin(llm, call_on(llm, slot=slot))) as chunks:
            next(chunks, None)
