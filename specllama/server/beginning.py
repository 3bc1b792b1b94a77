"""Checks whether a request can begin, before its stream's HTTP head is sent, so that an error gets its own status."""

from __future__ import annotations

import contextlib

from specllama import Llama
from specllama.drop_in import call_on
from specllama.engine import TextBegins, UnusedSlot

from .chats import ChatRequest
from .completions import CompletionRequest


def require_can_begin(llm: Llama, request: CompletionRequest | ChatRequest) -> None:
    """Check all of a request that can be checked without decoding. The request keeps the chats and tokens made here.

    Any number of threads may call this, also while texts are generated.

    Raises:
        Exception: the exception that the request would raise when it begins.
    """
    call = call_on(llm, slot=UnusedSlot(llm.engine))
    for text in request.texts()[:: request.num_candidates]:  # one for each prompt
        if text.decodes_by_itself(llm):  # the chat handler would decode images, which only a running request may do
            continue
        copy = text.model_copy(update={"stream": True, "seed": 0})
        with contextlib.suppress(TextBegins), contextlib.closing(copy.begin(llm, call)) as chunks:
            next(chunks, None)
