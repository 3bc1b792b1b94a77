"""Outcomes of pairs of tokens that are counted together, so that each is expected often enough. Knows no models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np

from specllama.evidence.statistics import Counts, Floats

Pair = tuple[int, int]
"""Two tokens, one after the other."""

LEAST_EXPECTED = 5.0
"""A cell of its own is expected to be hit at least this often; chi-square's usual rule."""
_Key = tuple[int | None, int | None]
_REST: _Key = (None, None)


@dataclasses.dataclass(frozen=True)
class Cells:
    """Outcomes that are counted together."""

    probs: Floats
    """[n], sums to 1."""
    index: dict[_Key, int]
    """Cells by pair, by first token (any other second one), and of all the rest."""

    @classmethod
    def of_pairs(cls, first: Floats, second: Mapping[int, Floats], num_samples: int) -> Cells:
        """Cells of the pairs (t1, t2).

        Each pair that is expected often enough is a cell. What is left behind a t1 is one more, or belongs to the rest
        if that is too little; if even the rest is, it joins the smallest cell.

        Args:
            first: p(t1), [n_vocab].
            second: p(t2 | t1), [n_vocab], for every t1 that is expected often enough.
            num_samples: how many pairs will be drawn.
        """
        least = LEAST_EXPECTED / num_samples
        masses: dict[_Key, float] = {}
        rest = float(np.delete(first, list(second)).sum())
        for t1, conditional in second.items():
            joint = first[t1] * conditional
            likely = np.flatnonzero(joint >= least)
            masses.update({(t1, int(t2)): float(joint[t2]) for t2 in likely})
            left = float(np.delete(joint, likely).sum())
            if left >= least:
                masses[t1, None] = left
            else:
                rest += left
        index = {key: i for i, key in enumerate(masses)}
        probs = np.array(list(masses.values()))
        if rest >= least or not len(probs):
            index[_REST] = len(probs)
            probs = np.append(probs, rest)
        else:
            index[_REST] = int(probs.argmin())
            probs[index[_REST]] += rest
        return cls(probs / probs.sum(), index)

    def counts(self, pairs: Iterable[Pair]) -> Counts:
        """How many of the pairs fall into each cell."""
        counts = np.zeros(len(self.probs), dtype=np.int64)
        for pair in pairs:
            counts[self._cell(*pair)] += 1
        return counts

    def _cell(self, t1: int, t2: int) -> int:
        keys: tuple[_Key, ...] = ((t1, t2), (t1, None), _REST)
        return next(self.index[key] for key in keys if key in self.index)
