"""Tests whole texts from the loop: the place (cumulative probability) of every token in its exact distribution.

Pairs of next tokens test only the beginning of a text. Here every draft position, the tokens after a draft that was
accepted whole, and later rounds are tested, each with less power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from specllama.engine import Direct, Row
from specllama.evidence.data import total
from specllama.evidence.statistics import Floats, goodness_of_fit

from .loop import Loop
from .verdicts import TokenTest

if TYPE_CHECKING:
    from specllama.prompts import RenderedPrompt

_NUM_CELLS = 10


def check_tokens(
    loop: Loop,
    prompts: Sequence[RenderedPrompt],
    rule: str,
    seeds: Sequence[int],
    max_tokens: int,
    level: float,
    advance: Callable[[], None],
) -> TokenTest:
    """Answer every prompt, and test all tokens together.

    For a token t drawn from p, and a uniform U, the place P(T < t) + U p(t) is uniform on [0, 1] (the randomised
    probability integral transform; Czado, Gneiting and Held 2009, section 2), independently of the places before it.

    Args:
        loop: the loop that answers.
        prompts: the prompts to answer.
        rule: rejection, block or coupled.
        seeds: one seed for each prompt.
        max_tokens: the most tokens of an answer.
        level: the test fails below this p-value.
        advance: called after each answer.
    """
    places: list[float] = []
    runs = []
    num_impossible = 0
    uniform = np.random.default_rng(0)  # fixed, so that a rerun gives the same verdict
    for prompt, seed in zip(prompts, seeds, strict=True):
        text, stats = loop.take(prompt.tokens, rule, seed, max_tokens)
        runs.append(stats)
        text = _up_to_its_end(loop, text)
        with loop.llm.engine.direct() as direct:
            for token, p in zip(text, _distributions(loop, direct, prompt.tokens, text), strict=True):
                num_impossible += int(p[token] == 0)
                places.append(float(p[:token].sum() + uniform.random() * p[token]))
        advance()
    counts = np.histogram(np.clip(places, 0, 1), bins=_NUM_CELLS, range=(0.0, 1.0))[0]
    fit = goodness_of_fit(counts, np.full(_NUM_CELLS, 1 / _NUM_CELLS), level)
    return TokenTest(
        rule=rule,
        num_texts=len(prompts),
        num_tokens=len(places),
        chi_square=fit.chi_square,
        p_value=fit.p_value,
        level=level,
        num_impossible=num_impossible,
        stats=total(runs),
    )


def _up_to_its_end(loop: Loop, text: list[int]) -> list[int]:
    """The text up to the token that ends it. Tokens after that one are not tested."""
    ends = [i for i, token in enumerate(text) if loop.llm.engine.model.ends_text(token)]
    return text[: ends[0] + 1] if ends else text


def _distributions(loop: Loop, direct: Direct, prompt: Sequence[int], text: Sequence[int]) -> list[Floats]:
    """The distribution from which each token should have been drawn, computed in batches of the loop's size."""
    direct.prefill(prompt[:-1])
    fed = [prompt[-1], *text[:-1]]
    rows: list[Row] = []
    for start in range(0, len(fed), loop.gamma + 1):
        rows += direct.decode(fed[start : start + loop.gamma + 1])
    found = [loop.sampler.probabilities(row, text[:i]) for i, row in enumerate(rows)]
    for i, token in enumerate(text):
        if found[i][token] == 0:
            # Rounding can move a token over a top-k, top-p or min-p cut, so the row is computed in another batch, too.
            found[i] = loop.sampler.probabilities(direct.decode_last([*prompt, *text[:i]]), text[:i])
    return found
