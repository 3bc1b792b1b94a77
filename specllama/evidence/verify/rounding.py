"""Whether two tokens were as good as tied: the gap between them, and what rounding amounts to at that very position."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from specllama.engine import Direct, Request, Row

SAFETY = 2.0
"""A gap of up to this many times the measured rounding is a near-tie. Batches in other steps than the measure's changed
0.3 times as much in the median, and 1.0 times as much at most: a 1.5B model as Q4_K_M, Q8_0 and F16, 180 positions."""
NUM_LEADING = 16
"""Tokens among which the measure looks for the largest change. Looking at the two candidates alone is not enough: they
may happen to move alike in all shapes that are tried (in the same measurement by 1/66 of what the loop then did)."""
_LARGEST_GAP = 1000.0
_RESOLUTION = 4 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Position:
    """A place in a text, and how its token is chosen there."""

    request: Request
    """Prompt, chain and seed."""
    generated: list[int]
    """What came behind the prompt, up to this place."""

    @property
    def history(self) -> list[int]:
        """All tokens before this place."""
        return [*self.request.tokens, *self.generated]

    def choice(self, row: Row, bias: dict[int, float] | None = None) -> int:
        """The token that these logits lead to under the coupled rule, which is greedy at temperature 0."""
        biased = dict(self.request.logit_bias)
        for token, value in (bias or {}).items():
            biased[token] = biased.get(token, 0.0) + value
        return dataclasses.replace(self.request, logit_bias=biased).coupled_choice(row, self.generated)

    def gap(self, row: Row, token: int) -> float | None:
        """How far `token` is from being chosen: 0.0 if it is.

        It is the least distance by which its raw logit has to rise, or that of the chosen token to fall. At temperature
        0 that is the difference of both logits, with bias and penalties; under the coupled rule it is that of logit +
        temperature * Gumbel noise, or the way to the top-k, top-p or min-p cut where that decides. None: no distance is
        enough.
        """
        chosen = self.choice(row)
        if token == chosen:
            return 0.0

        def wins(gap: float) -> bool:
            return token in (self.choice(row, {token: gap}), self.choice(row, {chosen: -gap}))

        if not wins(_LARGEST_GAP):
            return None
        low, high = 0.0, _LARGEST_GAP
        while high > _RESOLUTION and high - low > 1e-3 * high:
            middle = (low + high) / 2 if low > 0 else high / 4
            low, high = (low, middle) if wins(middle) else (middle, high)
        return high


def rows_by_shape(direct: Direct, position: Position, num_draft_tokens: int) -> list[Row]:
    """The logits at a position, computed in the ways in which batches of different sizes compute them.

    First as plain decoding does, token by token behind the prompt. Then as the loop does, in batches of gamma + 1, with
    the last token of the history as the first and as the last one of its batch. Then all at once, as a prompt.
    """
    history, num_prefilled = position.history, len(position.request.tokens) - 1

    def last_row(size: int, index: int) -> Row:
        """Decode in batches of `size` where it is no prompt, with the last token as number `index` of its batch."""
        start = num_prefilled - (num_prefilled + index + 1 - len(history)) % size
        direct.prefill(history[: max(0, start)])
        for first in range(start, len(history), size):
            batch = history[max(0, first) : first + size]
            # The last one is filled up with anything: a row does not see what comes behind it in its batch.
            rows = direct.decode([*batch, *batch[-1:] * (first + size - len(history))])
        return rows[len(batch) - 1]

    size = num_draft_tokens + 1
    direct.clear()
    plain, as_first, as_last = last_row(1, 0), last_row(size, 0), last_row(size, size - 1)
    direct.clear()
    return [plain, as_first, as_last, direct.decode_last(history)]


def rounding(rows: Sequence[Row], candidates: Sequence[int]) -> float:
    """The largest change, from one row to another, of the difference between the logits of two leading tokens.

    Args:
        rows: logits [n_vocab] of one position by batch shape.
        candidates: tokens to look at beside the `NUM_LEADING` largest logits of the first row.
    """
    count = min(NUM_LEADING, len(rows[0]))
    leading = np.argpartition(-rows[0], count - 1)[:count]
    tokens = np.union1d(leading, np.asarray(candidates, dtype=np.intp))
    logits = np.array([row[tokens] for row in rows], dtype=np.float64)
    changes = [np.ptp(one - other) for one, other in itertools.combinations(logits, 2)]
    # Shapes that share all their kernels agree to the last bit, but the cache that the loop read need not.
    return max(float(max(changes)), _RESOLUTION * float(np.abs(logits).max()))
