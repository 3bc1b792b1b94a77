"""Finds near-ties: two tokens between which the choice may be decided by rounding at their position."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from specllama.engine import Direct, Request, Row

SAFETY = 2.0
"""A gap of up to this many times the measured rounding is a near-tie.

Batches in other steps than those of the measurement changed logits by 0.3 times the measured rounding in the median,
and by 1.0 times at most (a 1.5B model as Q4_K_M, Q8_0 and F16, 180 positions)."""
NUM_LEADING = 16
"""The number of tokens among which the largest change is looked for.

The two candidates alone are not enough: they may happen to change alike in all batches that are tried (once, with the
same models, their difference changed by 1/66 of its change in the loop)."""
_LARGEST_GAP = 1000.0
_RESOLUTION = 4 * float(np.finfo(np.float32).eps)


@dataclasses.dataclass(frozen=True)
class Position:
    """A place in a text, and how the token at this place is chosen."""

    request: Request
    """The prompt, the sampler chain and the seed."""
    generated: list[int]
    """The generated tokens before this place, without the prompt."""

    @property
    def history(self) -> list[int]:
        """All tokens before this place."""
        return [*self.request.tokens, *self.generated]

    def choice(self, row: Row, bias: dict[int, float] | None = None) -> int:
        """The token that the coupled rule chooses for these logits; at temperature 0 the greedy one."""
        biased = dict(self.request.logit_bias)
        for token, value in (bias or {}).items():
            biased[token] = biased.get(token, 0.0) + value
        return dataclasses.replace(self.request, logit_bias=biased).coupled_choice(row, self.generated)

    def gap(self, row: Row, token: int) -> float | None:
        """How far `token` is from being chosen; 0.0 if it is chosen.

        The gap is the least distance by which the token's raw logit has to rise, or the chosen token's raw logit has to
        fall. At temperature 0 it is the difference of both logits, with bias and penalties. Under the coupled rule it
        is the difference of logit + temperature * Gumbel noise, or the distance to the top-k, top-p or min-p cut, if
        that decides. None: no distance is enough.
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
    """The logits at a position, computed in batches of different sizes.

    The first row is computed as in plain decoding, token by token after the prompt. The next rows are computed as in
    the loop, in batches of gamma + 1, where the last token of the history is the first or the last one of its batch.
    The last row is computed from all tokens at once, as a prompt.
    """
    history, num_prefilled = position.history, len(position.request.tokens) - 1

    def last_row(size: int, index: int) -> Row:
        """Decode the tokens after the prompt in batches of `size`. The last token is number `index` of its batch."""
        start = num_prefilled - (num_prefilled + index + 1 - len(history)) % size
        direct.prefill(history[: max(0, start)])
        for first in range(start, len(history), size):
            batch = history[max(0, first) : first + size]
            # The last batch is filled up with any tokens, because a row does not depend on later tokens of its batch.
            rows = direct.decode([*batch, *batch[-1:] * (first + size - len(history))])
        return rows[len(batch) - 1]

    size = num_draft_tokens + 1
    direct.clear()
    plain, as_first, as_last = last_row(1, 0), last_row(size, 0), last_row(size, size - 1)
    direct.clear()
    return [plain, as_first, as_last, direct.decode_last(history)]


def rounding(rows: Sequence[Row], candidates: Sequence[int]) -> float:
    """How much the difference between the logits of two leading tokens changes at most, from one row to another.

    Args:
        rows: the logits [n_vocab] of one position, computed in different batches.
        candidates: tokens that are looked at besides the `NUM_LEADING` leading ones of the first row.
    """
    count = min(NUM_LEADING, len(rows[0]))
    leading = np.argpartition(-rows[0], count - 1)[:count]
    tokens = np.union1d(leading, np.asarray(candidates, dtype=np.intp))
    logits = np.array([row[tokens] for row in rows], dtype=np.float64)
    changes = [np.ptp(one - other) for one, other in itertools.combinations(logits, 2)]
    # Batches that use the same kernels give the same bits. But the loop may have read another cache, so 0.0 is too low.
    return max(float(max(changes)), _RESOLUTION * float(np.abs(logits).max()))
