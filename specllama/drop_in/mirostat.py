"""Samplers that llama.cpp alone has: mirostat."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama.engine.options import Options
from specllama.engine.schema_constraint import schema_vocabulary
from specllama.grammars.begun_calls import BegunCalls, BegunMatcher
from specllama.grammars.schema import SchemaGrammar
from specllama.grammars.schema_matcher import Matcher, SchemaProcessor

from .base_class import BaseLlama
from .lending import lent

_Scores = npt.NDArray[np.single]
"""[n_vocab]"""


def chooser_of(
    llama: BaseLlama,
    sampling: Mapping[str, Any],
    *,
    seed: int,
    penalty_last_n: int,
    options: Options,
    logit_bias: Mapping[int, float],
    grammar: Any,
) -> LlamaCppSampler | None:
    """What chooses tokens where our own chain cannot; None where it can.

    Args:
        llama: whose context they are chosen from.
        sampling: the numbers of ``llama_cpp.Llama._init_sampler``.
        seed: the same.
        penalty_last_n: how many last tokens the penalties see.
        options: of the call.
        logit_bias: what is added to the logits of tokens.
        grammar: what the text must be.

    Raises:
        ValueError: it would ignore another sampler of the call.
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
    return LlamaCppSampler(llama, sampling, seeded=seeded, logit_bias=logit_bias, grammar=grammar)


def fallback_reason() -> str:
    """Why text with mirostat is decoded plainly."""
    return "mirostat is applied by llama.cpp's sampler"


class _Seeded:
    """Stands for a Llama with another seed and window: other threads read the Llama's own meanwhile."""

    def __init__(self, llama: BaseLlama, seed: int, penalty_last_n: int) -> None:
        self._llama = llama
        self._seed = seed
        self.last_n_tokens_size = penalty_last_n

    def __getattr__(self, name: str) -> Any:
        return getattr(self._llama, name)


class LlamaCppSampler:
    """llama.cpp's own chain of samplers, as ``llama_cpp.Llama`` makes it, for one generation."""

    reason = fallback_reason()

    def __init__(
        self,
        llama: BaseLlama,
        sampling: Mapping[str, Any],
        *,
        seeded: _Seeded | BaseLlama,
        logit_bias: Mapping[int, float],
        grammar: Any,
    ) -> None:
        self._llama = llama
        self._numbers = {("temp" if name == "temperature" else name): value for name, value in sampling.items()}
        self._seeded = seeded
        self._biased = list(logit_bias)
        self._biases = np.array(list(logit_bias.values()), dtype=np.single)
        self._grammar = grammar
        self._processors: list[Callable[..., Any]] = []
        self._raised: BaseException | None = None
        self._sampler: Any = None

    def begin(self, processors: list[Callable[..., Any]]) -> None:
        """See ``engine.request.Chooser``."""
        llama, grammar = self._llama, self._grammar
        if isinstance(grammar, (SchemaGrammar, BegunCalls)):
            vocabulary = lent(llama).once(schema_vocabulary)
            matcher: Matcher
            if isinstance(grammar, BegunCalls):
                matcher = BegunMatcher(vocabulary, grammar)
            else:
                matcher = vocabulary.matcher(grammar.matched)
            processors, grammar = [*processors, SchemaProcessor(matcher, vocabulary.ends)], None
        self._processors = processors
        self._sampler = BaseLlama._init_sampler(
            cast(BaseLlama, self._seeded),
            **self._numbers,
            logits_processor=llama_cpp.LogitsProcessorList([self._heard]) if processors or self._biased else None,
            grammar=grammar,
        )

    def sample(self, row: int = -1) -> int:
        """See ``engine.request.Chooser``. Raises what a logits processor raises.

        Args:
            row: whose logits, counted from behind.

        Raises:
            ValueError: a logits processor returned no scores.
        """
        token: int = self._sampler.sample(self._llama._ctx, row)
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
