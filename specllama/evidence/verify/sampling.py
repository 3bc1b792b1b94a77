"""Part 2: pairs of next tokens out of the loop against the target's exact probabilities."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from specllama.completions.chat_template import RenderedPrompt
from specllama.engine.request import Request
from specllama.evidence.scorer import Probabilities, probabilities, scorer_of
from specllama.evidence.statistics import goodness_of_fit

from .cells import LEAST_EXPECTED, Cells, Pair
from .exact import ExactPairs, PairScorer
from .loop import request_for, take
from .result import Drafting, SamplingTest

if TYPE_CHECKING:
    from specllama.llama import Llama


@dataclasses.dataclass(frozen=True)
class Context:
    """A prompt, perhaps with the beginning of an answer behind it, that samples are drawn for."""

    prompt_id: str
    prompt: list[int]
    behind: list[int]
    spread: float
    """How much there is to tell of the next two tokens: the sum of their entropies in nats, with all that is too rare
    to be counted as one outcome."""

    @property
    def tokens(self) -> list[int]:
        """All of it."""
        return [*self.prompt, *self.behind]


class SamplingCheck:
    """Draws pairs with the loop, and tests them."""

    def __init__(self, llm: Llama, sampling: dict[str, Any], num_draft_tokens: int, num_samples: int) -> None:
        self._llm = llm
        self._sampling = sampling
        self._gamma = num_draft_tokens
        self._num_samples = num_samples
        request = self._request([0], "block", 0)
        self._params = request.native_sampler(llm.last_n_tokens_size)
        self.chain: dict[str, Any] = {**request.sampling, "logit_bias": request.logit_bias}
        """The sampler chain in full, llama_cpp's defaults among it."""

    def most_open_context(self, prompt_id: str, prompt: RenderedPrompt, text: Sequence[int]) -> Context:
        """The place in a text at which the next two tokens are most open, as far as samples can tell.

        An answer often begins with tokens that are all but certain, and where the target is certain a loop can hardly
        go wrong. The choice looks at the target alone, never at samples, so that it favours no outcome of the test.
        """
        with scorer_of(self._llm) as scorer:
            scorer.prefill(prompt.tokens[:-1])
            rows = scorer.decode([prompt.tokens[-1], *text[: self._llm.n_batch - 1]])
        spreads = [self._spread(probabilities(row, self._params)) for row in rows]
        # The last token may have ended the text: what comes behind it is no place to look at.
        pairs = [one + other for one, other in itertools.pairwise(spreads[:-1])] or [spreads[0]]
        best = int(np.argmax(pairs))
        return Context(prompt_id, list(prompt.tokens), list(text[:best]), pairs[best])

    def exact(self, context: Context) -> ExactPairs:
        """What the pairs behind a context should be."""
        with self._pair_scorer(context) as scorer:
            return scorer.exact(self._num_samples)

    def test(
        self,
        context: Context,
        exact: ExactPairs,
        rule: str,
        seeds: Sequence[int],
        level: float,
        advance: Callable[[], None],
    ) -> SamplingTest:
        """Draw a pair with each seed, and test them.

        Args:
            context: what they follow.
            exact: what they should be.
            rule: rejection, block or coupled.
            seeds: all different.
            level: fail below this p-value.
            advance: called after each sample.
        """
        pairs: list[Pair] = []
        runs = []
        for seed in seeds:
            (first, second), stats = take(self._llm, self._request(context.tokens, rule, seed), 2)
            pairs.append((first, second))
            runs.append(stats)
            advance()
        with self._pair_scorer(context) as scorer:
            num_impossible = scorer.num_impossible(exact, pairs)
        cells = Cells.of_pairs(exact.first, exact.second, len(pairs))
        fit = goodness_of_fit(cells.counts(pairs), cells.probs, level)
        return SamplingTest(
            prompt_id=context.prompt_id,
            num_behind=len(context.behind),
            rule=rule,
            num_samples=len(pairs),
            num_cells=len(cells.probs),
            **dataclasses.asdict(fit),
            level=level,
            num_impossible=num_impossible,
            rounding=exact.rounding,
            num_prompt_tokens=sum(run.num_prompt_tokens for run in runs),
            num_prompt_tokens_reused=sum(run.num_prompt_tokens_reused for run in runs),
            drafting=Drafting.of(runs),
            is_certain=len(cells.probs) == 1 and exact.is_certain,
        )

    def _request(self, tokens: Sequence[int], rule: str, seed: int) -> Request:
        return request_for(tokens, self._sampling, rule=rule, num_draft_tokens=self._gamma, seed=seed)

    @contextmanager
    def _pair_scorer(self, context: Context) -> Iterator[PairScorer]:
        with scorer_of(self._llm) as scorer:
            yield PairScorer(scorer, context.tokens, self._params, self._gamma)

    def _spread(self, probs: Probabilities) -> float:
        countable = probs[probs >= LEAST_EXPECTED / self._num_samples]
        masses = np.append(countable, 1.0 - countable.sum())
        masses = masses[masses > 0]
        return float(-(masses * np.log(masses)).sum())
