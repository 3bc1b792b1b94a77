"""The target's exact probabilities of the next two tokens, computed in batches like those of the loop."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from specllama.engine import Direct, Request, Row
from specllama.evidence.statistics import Floats

Pair = tuple[int, int]
"""Two tokens, one after the other."""

LEAST_EXPECTED = 5.0
"""An outcome has a cell of its own if it is expected at least this often; this is chi-square's usual rule."""
_MOST_SUSPECTS = 16  # pairs that are computed again; a badly broken loop gives hundreds of suspects


@dataclasses.dataclass(frozen=True)
class ExactPairs:
    """The exact probabilities of pairs (t1, t2) after a context."""

    first: Floats
    """p(t1), computed in a batch of the loop's size."""
    first_plain: Floats
    """p(t1), computed by plain decoding in a batch of one token."""
    second: dict[int, Floats]
    """p(t2 | t1), for every t1 that is expected often enough to count the tokens after it."""

    @property
    def is_certain(self) -> bool:
        """Whether one pair has all the probability, so that there is no choice."""
        most = int(self.first.argmax())
        return bool(self.first[most] == 1.0 and most in self.second and self.second[most].max() == 1.0)

    @property
    def rounding(self) -> float:
        """The total variation between both ways to compute p(t1)."""
        return float(np.abs(self.first - self.first_plain).sum() / 2)


class PairScorer:
    """Computes the probabilities of pairs after one context.

    The loop decodes gamma + 1 tokens, from the last one of the context on: p(t1) is in row 0, and p(t2 | t1) in row 1
    if t1 was drafted and accepted. Kernels for other batch sizes round differently, so batches of this size are
    used. Any tokens may fill them, because a row does not depend on later tokens.
    """

    def __init__(self, direct: Direct, tokens: Sequence[int], request: Request, num_draft_tokens: int) -> None:
        self._direct = direct
        self._tokens = list(tokens)
        self._request = request
        self._gamma = num_draft_tokens

    def exact(self, num_samples: int) -> ExactPairs:
        """The probabilities with which `num_samples` samples can be compared."""
        self._direct.prefill(self._tokens[:-1])
        plain = self._request.probabilities(self._direct.decode(self._tokens[-1:])[0])
        first = self._request.probabilities(self._rows(self._tokens[-1])[0])
        likely = np.flatnonzero(first * num_samples >= LEAST_EXPECTED)
        second = {int(t1): self._request.probabilities(self._rows(int(t1))[1], [int(t1)]) for t1 in likely}
        return ExactPairs(first, plain, second)

    def num_impossible(self, exact: ExactPairs, pairs: Iterable[Pair]) -> int:
        """How many of the drawn pairs the sampler chain excludes, in whatever batches they are computed.

        Rounding can move a token over a top-k, top-p or min-p cut, so other batches are tried before the loop is
        blamed.
        """
        pairs = list(pairs)
        impossible = sum(1 for t1, _ in pairs if exact.first[t1] == exact.first_plain[t1] == 0)
        suspects = [(t1, t2) for t1, t2 in pairs if t1 in exact.second and exact.second[t1][t2] == 0]
        for pair in sorted(set(suspects))[:_MOST_SUSPECTS]:
            if not self._possible(*pair):
                impossible += suspects.count(pair)
        return impossible

    def _rows(self, t1: int) -> list[Row]:
        """The logits of a round's batch: after the context, and after t1."""
        self._direct.prefill(self._tokens[:-1])
        return self._direct.decode([self._tokens[-1], *[t1] * self._gamma])

    def _possible(self, t1: int, t2: int) -> bool:
        """Whether t2 can follow t1 in plain decoding, or in the second of two rounds."""
        self._rows(t1)
        self._direct.prefill(self._tokens)
        second_round = self._direct.decode([t1] * (self._gamma + 1))[0]
        self._direct.prefill(self._tokens[:-1])
        self._direct.decode(self._tokens[-1:])
        plain = self._direct.decode([t1])[0]
        return any(self._request.probabilities(row, [t1])[t2] > 0 for row in (second_round, plain))
