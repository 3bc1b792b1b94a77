"""Looks whether a request can begin, before the head of its stream is sent: an error then has a status of its own."""

from __future__ import annotations

import contextlib

from specllama import Llama
from specllama.drop_in import call_on
from specllama.engine import TextBegins, UnusedSlot

from .chats import ChatRequest
from .completions import CompletionRequest


def require_can_begin(llm: Llama, request: CompletionRequest | ChatRequest) -> None:
    """Check all of a request that can be checked without decoding. The request keeps what is prepared meanwhile.

    Any number of threads may call this, also while texts are generated.

    Raises:
        Exception: what the request would raise when it begins.
    """
    call = call_on(llm, slot=UnusedSlot(llm.engine))
    for text in request.texts()[:: request.num_candidates]:  # one for each prompt
        if text.decodes_by_itself(llm):  # its handler would read images now, which only one request at a time may do
            continue
        copy = text.model_copy(update={"stream": True, "seed": 0})
        with contextlib.suppress(TextBegins), contextlib.closing(copy.begin(llm, call)) as chunks:
            next(chunks, None)
