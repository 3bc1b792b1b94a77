"""Who answers a request: the Llama, or one of its slots."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from specllama import Llama
from specllama.drop_in.images import reads_images
from specllama.drop_in.seeds import seed_for_completion
from specllama.drop_in.view import Call, call_on
from specllama.drop_in.watch import Watch
from specllama.many.outcomes import takes_the_model_alone
from specllama.warn import warn

from .job import Work
from .requests import ChatRequest, CompletionRequest
from .several import answering


class Lender:
    """Lends a Llama to one request at a time, or its slots to several at once.

    Args:
        llm: what answers.
        max_parallel: how many requests at once.

    Attributes:
        llm: the same.
        num_slots: for how many requests at once: 1 if the memory cannot be shared, which is said.

    Raises:
        MemoryError: there is no room for so many.
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
        """What answers a request. To be called in the order in which requests come."""
        texts = request.texts()
        if self.num_slots == 1:
            return answering(self.llm, request, texts, lambda text, watch: contextlib.nullcontext(call_on(self.llm)))
        for text in texts:
            if text.seed is None:  # slots know nothing of each other: seeds of a Llama with a seed are drawn here
                seed, is_given = seed_for_completion(self.llm, None)
                text.seed = seed if is_given else None
        # Who decodes by itself has OpenMP threads of its own: that is the worker's thread.
        at_once = 1 if any(map(self._is_alone, texts)) else self.num_slots
        return answering(self.llm, request, texts, self.lent, at_once)

    @contextlib.contextmanager
    def lent(self, request: CompletionRequest | ChatRequest, watch: Watch) -> Iterator[Call]:
        """A call at a slot, within the block. What takes the model alone gets the Llama's own, beside the others.

        Raises:
            Stopped: the client has left before it was its turn.
        """
        texts = self.llm.engine.texts
        if self._is_alone(request):
            lent = texts.beside(watch.heed)
        else:
            lent = texts.taken(self.num_slots, watch.heed, request.text())
        with lent as slot:
            yield call_on(self.llm, slot=slot)

    def _is_alone(self, request: CompletionRequest | ChatRequest) -> bool:
        images = isinstance(request, ChatRequest) and reads_images(self.llm)
        return images or takes_the_model_alone(dict(request))
