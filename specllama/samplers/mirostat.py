"""Samplers that llama.cpp alone has: mirostat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama.backend.base_class import BaseLlama
from specllama.engine.schema_constraint import schema_vocabulary
from specllama.grammars.schema import SchemaGrammar

if TYPE_CHECKING:
    from specllama.engine.request import Request

_Scores = npt.NDArray[np.single]
"""[n_vocab]"""


class LlamaCppSampler:
    """llama.cpp's own chain of samplers, as ``llama_cpp.Llama`` makes it, for one generation."""

    def __init__(self, llama: BaseLlama, request: Request, processors: llama_cpp.LogitsProcessorList) -> None:
        self._context = llama._ctx
        grammar = request.grammar
        if isinstance(grammar, SchemaGrammar):
            processors = llama_cpp.LogitsProcessorList([*processors, schema_vocabulary(llama).processor(grammar)])
            grammar = None
        self._processors = processors
        self._biased = list(request.logit_bias)
        self._biases = np.array(list(request.logit_bias.values()), dtype=np.single)
        self._raised: BaseException | None = None
        seed_before, llama._seed = llama._seed, request.seed & 0xFFFFFFFF
        try:
            self._sampler = llama._init_sampler(
                **request.sampling,
                logits_processor=llama_cpp.LogitsProcessorList([self._heard]) if processors or self._biased else None,
                grammar=grammar,
            )
        finally:
            llama._seed = seed_before

    def sample(self) -> int:
        """A token behind what was decoded last. Raises what a logits processor raises.

        Raises:
            ValueError: a logits processor returned no scores.
        """
        token: int = self._sampler.sample(self._context, -1)
        if self._raised is None:
            return token
        try:
            raise self._raised
        finally:
            self._raised = None

    def _heard(self, input_ids: npt.NDArray[np.intc], scores: _Scores) -> _Scores:
        """The scores to sample from. Keeps an error: ctypes, which calls this, would print it and go on."""
        try:
            return self._processed(input_ids, scores.copy())
        except BaseException as error:
            self._raised = error
            return scores

    def _processed(self, input_ids: npt.NDArray[np.intc], scores: _Scores) -> _Scores:
        for processor in self._processors:
            given = processor(input_ids, scores)
            result = np.array(given, dtype=np.single)
            if result.shape != scores.shape:
                raise ValueError(
                    f"the logits processor returned a {type(given).__name__} that is no array of {len(scores)} "
                    "numbers: it must return the scores of all tokens"
                )
            scores = result
        scores[self._biased] += self._biases
        return scores
