"""Lends a Llama's slots to requests."""

from __future__ import annotations

import contextlib

from specllama import Llama
from specllama.drop_in import seed_for_completion
from specllama.engine import Slot
from specllama.many import Job, takes_the_model_alone
from specllama.warn import warn

from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Work
from .several import answering


class Lender:
    """Lends a Llama to one request at a time, or its slots to several at once.

    Args:
        llm: the Llama that answers the requests.
        max_parallel: how many requests to answer at once.

    Attributes:
        llm: the Llama that answers the requests.
        num_slots: how many requests are answered at once; 1, with a warning, if states cannot be copied.

    Raises:
        MemoryError: the memory is too small for `max_parallel` requests at once.
    """

    def __init__(self, llm: Llama, max_parallel: int) -> None:
        self.llm = llm
        self.num_slots = 1 if max_parallel == 1 else llm.engine.texts.open(max_parallel)
        if self.num_slots < max_parallel:
            warn(
                f"one request after the other instead of {max_parallel} at once: the memory of this model, or of its "
                "draft, is recurrent, and this llama-cpp-python cannot copy its states"
            )

    def work(self, request: CompletionRequest | ChatRequest) -> Work:
        """Returns the work that answers a request. Call it in the order in which requests arrive."""
        texts = request.texts()
        for text in texts:
            if text.seed is None:  # drawn here from the Llama's own seed, in the order of requests: slots have no seed
                seed, is_given = seed_for_completion(self.llm, None)
                text.seed = seed if is_given else None
        is_alone = any(map(self._is_alone, texts))
        # A chat handler that decodes by itself must do so in the worker's thread, which has OpenMP threads of its own.
        at_once = 1 if is_alone else self.num_slots
        return answering(self.llm, request, texts, self._lent, at_once, is_alone=is_alone)

    def _lent(self, job: Job) -> contextlib.AbstractContextManager[Slot]:
        return job.take(self.llm.engine, self.num_slots)

    def _is_alone(self, text: CompletionRequest | ChatRequest) -> bool:
        """Whether a text gets the slot of the model's own context."""
        return self.num_slots == 1 or text.decodes_by_itself(self.llm) or takes_the_model_alone(dict(text))
