"""llama.cpp's own samplers, which are used for mirostat: our sampler chain does not have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.options import Options
from specllama.engine.request import Constraint

from .base_class import BaseLlama
from .lending import lent

_Scores = npt.NDArray[np.single]
"""An array [n_vocab]."""
_SOFTMAX = _core.SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)


def chooser_of(
    llama: BaseLlama,
    sampling: Mapping[str, Any],
    *,
    seed: int,
    penalty_last_n: int,
    options: Options,
    logit_bias: Mapping[int, float],
    constraint: Constraint | None,
) -> LlamaCppSampler | None:
    """The sampler to use in place of our own chain; None if our chain can do what the call asks for.

    Args:
        llama: the Llama whose context has the logits.
        sampling: the numeric arguments of ``llama_cpp.Llama._init_sampler``.
        seed: the seed.
        penalty_last_n: how many of the last tokens the penalties see.
        options: the options of the call.
        logit_bias: for each token id, the number that is added to its logit.
        constraint: the grammar of the text, or None.

    Raises:
        ValueError: the call asks for a sampler that mirostat would ignore.
    """
    if sampling["mirostat_mode"] == 0 or sampling["temperature"] <= 0:
        return None
    active = options.samplers.active()
    if active:
        raise ValueError(
            f"mirostat_mode={sampling['mirostat_mode']} and {active[0]} together: mirostat is a sampler of its "
            "own, and would ignore it; switch one of them off"
        )
    seeded = _Seeded(llama, seed & 0xFFFFFFFF, penalty_last_n)
    return LlamaCppSampler(llama, sampling, seeded=seeded, logit_bias=logit_bias, constraint=constraint)


class _Seeded:
    """A stand-in for a Llama with another seed and ``last_n_tokens_size``. Other threads use the Llama itself."""

    def __init__(self, llama: BaseLlama, seed: int, penalty_last_n: int) -> None:
        self._llama = llama
        self._seed = seed
        self.last_n_tokens_size = penalty_last_n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)


class LlamaCppSampler:
    """llama.cpp's own sampler chain, as ``llama_cpp.Llama`` makes it, for one generation.

    The chain does not get the grammar, whose mask is applied to the scores before. If no token is allowed, the chain
    takes a forbidden one, and llama.cpp's grammar would then end the process.

    Args:
        llama: the Llama whose context has the logits.
        sampling: the numeric arguments of ``llama_cpp.Llama._init_sampler``.
        seeded: the Llama, or a stand-in that has the seed and the number of last tokens that the penalties see.
        logit_bias: for each token id, the number that is added to its logit.
        constraint: the grammar of the text, or None.

    Attributes:
        reason: why texts with this sampler are decoded plainly.
    """

    reason = "mirostat is applied by llama.cpp's sampler"

    def __init__(
        self,
        llama: BaseLlama,
        sampling: Mapping[str, Any],
        *,
        seeded: _Seeded | BaseLlama,
        logit_bias: Mapping[int, float],
        constraint: Constraint | None,
    ) -> None:
        self._llama = llama
        self._numbers = {("temp" if name == "temperature" else name): value for name, value in sampling.items()}
        self._seeded = seeded
        self._biased = list(logit_bias)
        self._biases = np.array(list(logit_bias.values()), dtype=np.single)
        self._constraint = constraint
        self._allows: _core.Constraint | None = None
        self._prompt_size = -1
        self._processors: list[Callable[..., Any]] = []
        self._raised: BaseException | None = None
        self._sampler: Any = None

    def begin(self, processors: list[Callable[..., Any]]) -> None:
        """See ``engine.request.Chooser``.

        Args:
            processors: the logits processors of the call.
        """
        self._processors = processors
        self._allows = None if self._constraint is None else self._constraint.over(lent(self._llama))
        self._sampler = BaseLlama._init_sampler(
            cast(BaseLlama, self._seeded),
            **self._numbers,
            logits_processor=llama_cpp.LogitsProcessorList([self._heard]),
        )

    def sample(self, row: int = -1) -> int:
        """See ``engine.request.Chooser``. An exception of a logits processor is raised here.

        Args:
            row: the row of the logits, counted from the end: -1 is the last.

        Raises:
            ValueError: a logits processor returned no scores, or the grammar takes too long.
            RuntimeError: no token is allowed.
        """
        token: int = self._sampler.sample(self._llama._ctx, row)
        if self._raised is None:
            return token
        try:
            raise self._raised
        finally:
            self._raised = None

    def _heard(self, input_ids: npt.NDArray[np.intc], scores: _Scores) -> _Scores:
        """The scores to sample from. llama.cpp's sampler calls this by ctypes, which would only print an exception.

        So an exception is kept for `sample` to raise.
        """
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
        if self._prompt_size < 0:
            self._prompt_size = len(input_ids)
        recent = input_ids[self._prompt_size :].tolist()
        allowed = _core.distribution(scores, _SOFTMAX, recent, self._allows).probs > 0
        return np.where(allowed, scores, np.single(-np.inf))
