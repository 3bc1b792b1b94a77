"""Samplers that llama.cpp alone has: mirostat."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .llama import Llama
    from .request import Request


class LlamaCppSampler:
    """llama.cpp's own chain of samplers, as ``llama_cpp.Llama`` makes it, for one generation."""

    def __init__(self, llama: Llama, request: Request, processors: llama_cpp.LogitsProcessorList) -> None:
        self._context = llama._ctx
        self._processors = processors
        self._logit_bias = request.logit_bias
        self._raised: BaseException | None = None
        processed = processors or self._logit_bias
        seed_before, llama._seed = llama._seed, request.seed & 0xFFFFFFFF
        try:
            self._sampler = llama._init_sampler(
                **request.sampling,
                logits_processor=llama_cpp.LogitsProcessorList([self._process]) if processed else None,
                grammar=request.grammar,
            )
        finally:
            llama._seed = seed_before

    def sample(self) -> int:
        """A token behind what was decoded last. Raises what a logits processor raises."""
        token: int = self._sampler.sample(self._context, -1)
        raised, self._raised = self._raised, None
        if raised is not None:
            raise raised
        return token

    def _process(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        try:
            scores = self._processors(input_ids, scores)
        except BaseException as error:
            self._raised = error  # ctypes, which calls this, would print it and go on
            return scores
        if self._logit_bias:
            scores = np.copy(scores)
            scores[list(self._logit_bias)] += np.fromiter(self._logit_bias.values(), dtype=np.single)
        return scores
