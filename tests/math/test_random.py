"""The counter-based generator: uniform, independent across its counters, and a pure function of them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats

from specllama import _core_test as _test

AXES = ("seed", "stream", "position", "token")
# All draws are fixed, so nothing here is flaky; the level says how surprising the fixed draws may be.
LEVEL = 1e-4


def draws(axis: str, n: int, **fixed: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Uniforms along one counter, the others fixed."""
    key = {"seed": 1, "stream": 2, "position": 3, "token": 4, **fixed}
    return np.array([_test.uniform(*[i if name == axis else key[name] for name in AXES]) for i in range(n)])


@pytest.mark.parametrize("axis", ["seed", "position", "token"])
@pytest.mark.parametrize("fixed", [0, 1, 1_000_003])
def test_uniform_along_every_counter(axis: str, fixed: int) -> None:
    key = {name: fixed for name in ("seed", "position", "token") if name != axis}
    u = draws(axis, 20_000, **key)
    assert np.all((u > 0) & (u < 1))
    assert scipy.stats.kstest(u, "uniform").pvalue > LEVEL
    assert scipy.stats.chisquare(np.histogram(u, bins=256, range=(0, 1))[0]).pvalue > LEVEL


@pytest.mark.parametrize("neighbour", AXES)
@pytest.mark.parametrize("axis", ["seed", "position", "token"])
def test_neighbouring_counters_are_independent(axis: str, neighbour: str) -> None:
    if axis == neighbour:
        u = draws(axis, 20_001)
        a, b = u[:-1], u[1:]
    else:
        a = draws(axis, 20_000, **{neighbour: 1})
        b = draws(axis, 20_000, **{neighbour: 2})
    table, _, _ = np.histogram2d(a, b, bins=12, range=[[0, 1], [0, 1]])
    assert scipy.stats.chi2_contingency(table).pvalue > LEVEL
    assert abs(np.corrcoef(a, b)[0, 1]) < 0.03


def test_no_two_keys_share_a_value() -> None:
    """Sums, differences or xors of counters would collide on a small grid."""
    values = [_test.uniform(*key) for key in itertools.product(range(12), range(1, 5), range(12), range(12))]
    assert len(set(values)) == len(values)


def test_pure_function() -> None:
    keys = [(s, 1, p, t) for s in (0, 5) for p in (0, 9) for t in (0, 31)]
    forwards = [_test.uniform(*key) for key in keys]
    backwards = [_test.uniform(*key) for key in reversed(keys)]
    assert forwards == backwards[::-1]
    assert [_test.gumbel(s, p, t) for s, _, p, t in keys] == [_test.gumbel(s, p, t) for s, _, p, t in keys]


@pytest.mark.parametrize("seed", [0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_seeds_of_any_size(seed: int) -> None:
    u = draws("token", 5_000, seed=seed)
    assert scipy.stats.kstest(u, "uniform").pvalue > LEVEL


@pytest.mark.parametrize("axis", ["position", "token"])
def test_gumbel_distribution(axis: str) -> None:
    g = np.array([_test.gumbel(3, *((i, 5) if axis == "position" else (5, i))) for i in range(20_000)])
    assert np.all(np.isfinite(g))
    assert scipy.stats.kstest(g, "gumbel_r").pvalue > LEVEL


def test_gumbels_are_bounded_by_the_generator() -> None:
    """Pruning relies on it: no Gumbel exceeds -log(2^-53), none is below -log(53 log 2)."""
    g = np.array([_test.gumbel(seed, position, 0) for seed in range(300) for position in range(300)])
    assert g.max() <= 53 * np.log(2)
    assert g.min() >= -np.log(53 * np.log(2))
