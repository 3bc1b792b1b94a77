"""Whether counts can have come from given probabilities: cells, total variation, chi-square. Knows no models."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

import numpy as np
import numpy.typing as npt

Pair = tuple[int, int]
"""Two tokens, one after the other."""
Floats = npt.NDArray[np.float64]

LEAST_EXPECTED = 5.0
"""A cell of its own is expected to be hit at least this often; chi-square's usual rule."""
_CHUNK = 20_000
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

    def counts(self, pairs: Iterable[Pair]) -> npt.NDArray[np.int64]:
        """How many of the pairs fall into each cell."""
        counts = np.zeros(len(self.probs), dtype=np.int64)
        for pair in pairs:
            counts[self._cell(*pair)] += 1
        return counts

    def _cell(self, t1: int, t2: int) -> int:
        keys: tuple[_Key, ...] = ((t1, t2), (t1, None), _REST)
        return next(self.index[key] for key in keys if key in self.index)


@dataclasses.dataclass(frozen=True)
class Fit:
    """Counts against probabilities. What chance gives is simulated, so that small counts need no approximation."""

    total_variation: float
    chance_mean: float
    chance_95: float
    chi_square: float
    p_value: float


def goodness_of_fit(counts: npt.NDArray[np.int64], probs: Floats, level: float) -> Fit:
    """Compare counts with what their probabilities let expect.

    Args:
        counts: [n]
        probs: [n], sums to 1.
        level: the p-value that the caller looks out for: it is resolved to a fifth of itself.
    """
    num_samples = int(counts.sum())
    num_simulated = int(np.ceil(25 / level))
    rng = np.random.default_rng(0)  # a rerun gives the same verdict
    observed_tv, observed_chi = (float(value[0]) for value in _distances(counts[None, :], probs))
    variations, at_least = [], 0
    for start in range(0, num_simulated, _CHUNK):
        drawn = rng.multinomial(num_samples, probs, size=min(_CHUNK, num_simulated - start))
        tv, chi = _distances(drawn, probs)
        variations.append(tv)
        at_least += int(np.count_nonzero(chi >= observed_chi * (1 - 1e-9)))
    chance = np.concatenate(variations)
    return Fit(
        total_variation=observed_tv,
        chance_mean=float(chance.mean()),
        chance_95=float(np.quantile(chance, 0.95)),
        chi_square=observed_chi,
        p_value=(1 + at_least) / (1 + num_simulated),
    )


def _distances(counts: npt.NDArray[np.int64], probs: Floats) -> tuple[Floats, Floats]:
    """Total variation and chi-square of every row of counts [m, n]."""
    expected = counts[0].sum() * probs
    excess = counts - expected
    return np.abs(excess).sum(axis=1) / (2 * counts[0].sum()), (excess**2 / expected).sum(axis=1)
