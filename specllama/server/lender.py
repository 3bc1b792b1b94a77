"""Lends a Llama or one of its slots to requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from specllama import Llama
from specllama.drop_in import Call, Watch, call_on, seed_for_completion
from specllama.many.outcomes import takes_the_model_alone
from specllama.warn import warn

from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Work
from .several import answering


class Lender:
    """Lends a Llama to one request at a time, or its slots to several at once.

    Args:
        llm: answers the requests.
        max_parallel: how many requests to answer at once.

    Attributes:
        llm: answers the requests.
        num_slots: how many requests are answered at once. If the memory cannot be shared, it is 1, with a warning.

    Raises:
        MemoryError: the memory is too small for `max_parallel` requests at once.
    """

    def __init__(self, llm: Llama, max_parallel: int) -> None:
        self.llm = llm
        self.num_slots = 1 if max_parallel == 1 else llm.engine.texts.open(max_parallel)
        if self.num_slots < max_parallel:
            warn(
                f"one request after the other instead of {max_parallel} at once: the memory of this model, or of its "
                "draft, is recurrent or a sliding window and cannot be shared"
            )

    def work(self, request: CompletionRequest | ChatRequest) -> Work:
        """Returns the work that answers a request. Call it in the order in which requests arrive."""
        texts = request.texts()
        if self.num_slots == 1:
            return answering(self.llm, request, texts, lambda text, watch: contextlib.nullcontext(call_on(self.llm)))
        for text in texts:
            if text.seed is None:  # slots do not share a seed, so seeds are drawn here
                seed, is_given = seed_for_completion(self.llm, None)
                text.seed = seed if is_given else None
        # A text that decodes by itself must do so in the worker's thread, which has OpenMP threads of its own.
        at_once = 1 if any(map(self._is_alone, texts)) else self.num_slots
        return answering(self.llm, request, texts, self.lent, at_once)

    @contextlib.contextmanager
    def lent(self, request: CompletionRequest | ChatRequest, watch: Watch) -> Iterator[Call]:
        """Lends a slot for the length of the block. A request that needs the model alone gets the Llama's own text.

        Raises:
            Stopped: the client left before its turn.
        """
        texts = self.llm.engine.texts
        if self._is_alone(request):
            lent = texts.beside(watch.poll)
        else:
            lent = texts.taken(self.num_slots, watch.poll, request.text())
        with lent as slot:
            yield call_on(self.llm, slot=slot)

    def _is_alone(self, request: CompletionRequest | ChatRequest) -> bool:
        return request.decodes_by_itself(self.llm) or takes_the_model_alone(dict(request))
