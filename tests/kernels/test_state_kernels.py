"""The kernels of recurrent states: against double precision, against plain C++, and in parts of any size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama import _core
from specllama import _core_test as _test

pytestmark = pytest.mark.every_case

KINDS = ["scan", "delta net", "delta net with decays"]
Floats = npt.NDArray[np.float32]


def made(kind: str, tokens: int, rows: int, length: int, seed: int = 1) -> dict[str, Any]:
    """A state, and tokens whose numbers are of the size that they have in models."""
    rng = np.random.default_rng(seed)
    keys = rng.normal(size=(tokens, length))
    if kind != "scan":
        keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    return {
        "state": rng.normal(size=(rows, length)).astype(np.float32),
        "decays": np.exp(-rng.random((tokens, length if kind == "delta net with decays" else 1))).astype(np.float32),
        "keys": keys.astype(np.float32),
        "queries": rng.normal(size=(tokens, length)).astype(np.float32),
        "values": rng.normal(size=(tokens, rows)).astype(np.float32),
        "rates": rng.random(tokens).astype(np.float32),
        "scale": 0.25,
        "is_delta": kind != "scan",
    }


def updated(name: str, given: dict[str, Any], at_once: int = 16) -> tuple[Floats, Floats, Floats]:
    return _test.update_state(**given, instruction_set=name, at_once=at_once)


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_near_what_double_precision_gives(kind: str, name: str) -> None:
    tokens = made(kind, 21, 38, 64)
    state = tokens["state"].astype(np.float64)
    results, states = [], []
    for decays, key, query, value, rate in zip(
        *(tokens[name].astype(np.float64) for name in ("decays", "keys", "queries", "values", "rates")), strict=True
    ):
        state = state * decays
        value = value - state @ key if tokens["is_delta"] else value
        state = state + np.outer(value * rate, key)
        states.append(state)
        results.append(tokens["scale"] * state @ query)
    found, after, kept = updated(name, tokens)
    np.testing.assert_allclose(found, results, atol=1e-4)
    np.testing.assert_allclose(kept, states, atol=1e-4)
    np.testing.assert_array_equal(after, kept[-1])


@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 20),
    st.integers(1, 19),
    st.sampled_from([16, 48, 128]),
    st.integers(1, 16),
    st.integers(0, 9),
)
def test_every_instruction_set_gives_the_same_bits_in_parts_of_any_size(
    kind: str, tokens: int, rows: int, length: int, at_once: int, seed: int
) -> None:
    given = made(kind, tokens, rows, length, seed)
    expected = updated("plain", given, 1)
    for name in _core.instruction_sets():
        for found, one in zip(updated(name, given, at_once), expected, strict=True):
            np.testing.assert_array_equal(found, one)
