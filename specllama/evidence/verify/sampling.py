"""Compares pairs of next tokens from the loop with the target's exact probabilities."""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specllama.evidence.data import total
from specllama.evidence.statistics import Counts, Floats, goodness_of_fit

from .exact import LEAST_EXPECTED, ExactPairs, Pair, PairScorer
from .loop import Loop
from .verdicts import SamplingTest

if TYPE_CHECKING:
    from specllama.prompts import RenderedPrompt


@dataclasses.dataclass(frozen=True)
class Context:
    """A prompt, perhaps with the beginning of an answer, after which samples are drawn."""

    prompt_id: str
    prompt: list[int]
    behind: list[int]
    spread: float
    """How open the next two tokens are: the sum of their entropies in nats. All tokens that are too rare to be counted
    are one outcome."""
    drafts: bool
    """Whether something is drafted after this context."""

    @property
    def tokens(self) -> list[int]:
        """The prompt, and the beginning of the answer."""
        return [*self.prompt, *self.behind]


def most_open_context(
    loop: Loop, prompt_id: str, prompt: RenderedPrompt, text: Sequence[int], rule: str, num_samples: int
) -> Context:
    """Of the places in a text at which something is drafted, the place where the next two tokens are most open.

    All tokens that are too rare for `num_samples` samples count as one outcome. An answer often begins with tokens
    that are nearly certain, and where the target is certain, the loop can hardly be wrong. The place is chosen by the
    target and by whether there is a draft (lookup has none at most places), never by samples, so that the choice
    favours no outcome of the test.
    """
    with loop.llm.engine.direct() as direct:
        direct.prefill(prompt.tokens[:-1])
        rows = direct.decode([prompt.tokens[-1], *text[: loop.llm.n_batch - 1]])
    spreads = [_spread(loop.sampler.probabilities(row), num_samples) for row in rows]
    # The last token may have ended the text, so the place after it is left out.
    pairs = [one + other for one, other in itertools.pairwise(spreads[:-1])] or [spreads[0]]
    order = [int(place) for place in np.argsort(-np.array(pairs), kind="stable")]
    history = [*prompt.tokens, *text]
    drafting = (at for at in order if loop.take(history[: len(prompt.tokens) + at], rule, 0, 1)[1].num_drafts)
    found = next(drafting, None)
    best = order[0] if found is None else found
    return Context(prompt_id, list(prompt.tokens), list(text[:best]), pairs[best], found is not None)


def _spread(probs: Floats, num_samples: int) -> float:
    countable = probs[probs >= LEAST_EXPECTED / num_samples]
    masses = np.append(countable, 1.0 - countable.sum())
    masses = masses[masses > 0]
    return float(-(masses * np.log(masses)).sum())


def exact_pairs(loop: Loop, context: Context, num_samples: int) -> ExactPairs:
    """The exact probabilities with which `num_samples` pairs after a context can be compared."""
    with loop.llm.engine.direct() as direct:
        return PairScorer(direct, context.tokens, loop.sampler, loop.gamma).exact(num_samples)


def check_pairs(
    loop: Loop,
    context: Context,
    exact: ExactPairs,
    rule: str,
    seeds: Sequence[int],
    level: float,
    advance: Callable[[], None],
) -> SamplingTest:
    """Draw a pair with each seed, and test the pairs.

    Args:
        loop: the loop that draws the pairs.
        context: the context of the pairs.
        exact: the exact probabilities of the pairs.
        rule: rejection, block or coupled.
        seeds: the seeds; all are different.
        level: the test fails below this p-value.
        advance: called after each sample.
    """
    pairs: list[Pair] = []
    runs = []
    for seed in seeds:
        (first, second), stats = loop.take(context.tokens, rule, seed, 2)
        pairs.append((first, second))
        runs.append(stats)
        advance()
    with loop.llm.engine.direct() as direct:
        pair_scorer = PairScorer(direct, context.tokens, loop.sampler, loop.gamma)
        num_impossible = pair_scorer.num_impossible(exact, pairs)
    probs, counts = in_cells(exact.first, exact.second, pairs)
    fit = goodness_of_fit(counts, probs, level)
    return SamplingTest(
        prompt_id=context.prompt_id,
        num_behind=len(context.behind),
        rule=rule,
        num_samples=len(pairs),
        num_cells=len(probs),
        **dataclasses.asdict(fit),
        level=level,
        num_impossible=num_impossible,
        rounding=exact.rounding,
        stats=total(runs),
        is_certain=len(probs) == 1 and exact.is_certain,
    )


def in_cells(first: Floats, second: Mapping[int, Floats], pairs: Sequence[Pair]) -> tuple[Floats, Counts]:
    """Group outcomes into cells, so that each cell is expected often enough.

    A pair (t1, t2) that is expected often enough is a cell of its own. All other pairs with the same t1 are one cell;
    if they are too rare, they belong to a last cell, the rest. If the rest is too rare, it joins the smallest cell.

    Args:
        first: p(t1), [n_vocab].
        second: p(t2 | t1), [n_vocab], for every t1 that is expected often enough.
        pairs: the pairs that were drawn.

    Returns:
        The cells' probabilities, [n], which sum to 1, and how many pairs fell into each, [n].
    """
    least = LEAST_EXPECTED / len(pairs)
    masses: dict[tuple[int | None, int | None], float] = {}
    for t1, conditional in second.items():
        joint = first[t1] * conditional
        often = np.flatnonzero(joint >= least)
        masses.update({(t1, int(t2)): float(joint[t2]) for t2 in often})
        left = float(first[t1] - joint[often].sum())
        if left >= least:
            masses[t1, None] = left
    rest = 1.0 - sum(masses.values())
    name_of_rest: tuple[int | None, int | None] = (None, None)
    if masses and rest < least:
        name_of_rest = min(masses, key=masses.__getitem__)
    masses[name_of_rest] = masses.get(name_of_rest, 0.0) + rest
    drawn = collections.Counter(
        next((key for key in ((t1, t2), (t1, None)) if key in masses), name_of_rest) for t1, t2 in pairs
    )
    probs = np.array(list(masses.values()))
    return probs / probs.sum(), np.array([drawn[key] for key in masses])
