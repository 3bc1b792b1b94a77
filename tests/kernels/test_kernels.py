"""The kernels' products: against double precision, against plain C++, and against themselves in other batches."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import structs
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quantized import TYPES
from rows import dequantized, quantized

from specllama import _core
from specllama import _core_test as _test

pytestmark = pytest.mark.every_case

FAST = [name for name in _core.instruction_sets() if name != "plain"]
SHAPES = [(16, 1), (37, 3), (1, 2), (64, 8), (48, 9), (5, 70)]
"""Rows and columns: not divisible by a panel's rows, more than a tile holds."""


def made(kind: str, rows: int, columns: int, blocks: int, seed: int = 1) -> tuple[npt.NDArray, npt.NDArray]:
    """Rows of a type and activations [columns, values] that belong together."""
    values = _core.quantized_types()[kind].num_values
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(rows, values * blocks)).astype(np.float32)
    return quantized(weights, kind), rng.normal(size=(columns, values * blocks)).astype(np.float32)


def error_of(found: npt.NDArray, weights: npt.NDArray[np.float64], x: npt.NDArray) -> float:
    """Mean error, where 1 is the size of a result."""
    exact = x.astype(np.float64) @ weights.T
    return float(np.sqrt(np.mean((found - exact) ** 2)) / np.sqrt(np.mean(exact**2)))


@pytest.mark.parametrize("kind", TYPES)
def test_a_row_is_what_llama_cpp_takes_it_for(kind: str) -> None:
    rows, _ = made(kind, 24, 1, 3)
    expected = dequantized(rows, kind)
    found = _test.dequantize_rows(rows, kind)
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected).max()


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize("kind", TYPES)
def test_products_are_near_those_in_double_precision(kind: str, name: str) -> None:
    """What remains is what activations lose in 8 bits: half a step of 1/127 of a block's largest, 0.6 % in the mean."""
    for rows, columns in SHAPES:
        weights, x = made(kind, rows, columns, 4)
        found = _test.multiply_quantized(weights, kind, x, name)
        assert found.shape == (columns, rows)
        if rows * columns > 100:
            assert error_of(found, _test.dequantize_rows(weights, kind), x) < 0.01


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", TYPES)
@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(1, 70),
    columns=st.integers(1, 70),
    blocks=st.integers(1, 5),
    seed=st.integers(0, 2**32 - 1),
)
@example(rows=27, columns=70, blocks=3, seed=436406)  # IQ4_XS, moved up by 128, has sums beyond 24 bits here
def test_an_instruction_set_gives_the_bits_of_plain_code(
    kind: str, name: str, rows: int, columns: int, blocks: int, seed: int
) -> None:
    weights, x = made(kind, rows, columns, blocks, seed)
    assert np.array_equal(
        _test.multiply_quantized(weights, kind, x, name), _test.multiply_quantized(weights, kind, x, "plain")
    )


@pytest.mark.parametrize("name", FAST)
@pytest.mark.parametrize("kind", TYPES)
def test_a_column_does_not_depend_on_its_batch(kind: str, name: str) -> None:
    weights, x = made(kind, 40, 33, 6)
    together = _test.multiply_quantized(weights, kind, x, name)
    for columns in (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17):
        first = _test.multiply_quantized(weights, kind, x[:columns], name)
        assert np.array_equal(first, together[:columns])
    assert np.array_equal(_test.multiply_quantized(weights, kind, x[20:21], name), together[20:21])


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind not in ("F16", "BF16")])
def test_the_largest_codes_do_not_overflow(kind: str, name: str) -> None:
    """All codes at their largest and all activations at the same sign: the sums in 16 bits are as large as can be."""
    values, size, _ = structs.values(_core.quantized_types()[kind])
    rng = np.random.default_rng(3)
    extreme = quantized(np.abs(rng.normal(size=(16, 2 * values))).astype(np.float32) + 1, kind)
    weights = np.where(rng.random(extreme.shape) < 0.5, extreme, 0xFF).astype(np.uint8)
    halves = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q4_1": (0, 2)}
    halves |= {"Q5_1": (0, 2), "TQ1_0": (52,), "TQ2_0": (64,), "NVFP4": ()}
    for block in range(2):
        for at in halves.get(kind, (0,)):
            weights[:, block * size + at : block * size + at + 2] = (0x00, 0x3C)  # 1.0
    for sign in (1, -1):
        x = np.full((3, 2 * values), sign, dtype=np.float32)
        exact = x.astype(np.float64) @ _test.dequantize_rows(weights, kind).T
        assert np.allclose(_test.multiply_quantized(weights, kind, x, name), exact, rtol=1e-5, atol=1e-2)


@pytest.mark.parametrize("name", _core.instruction_sets())
def test_what_is_no_number_stays_in_its_column(name: str) -> None:
    weights, x = made("Q4_K", 16, 4, 2)
    clean = _test.multiply_quantized(weights, "Q4_K", x, name)
    x[1, 5], x[2, 7] = np.nan, np.inf
    found = _test.multiply_quantized(weights, "Q4_K", x, name)
    assert np.array_equal(found[[0, 3]], clean[[0, 3]])
    assert not np.isfinite(found[2]).any()


def test_activations_of_zero_give_zero() -> None:
    weights, x = made("Q6_K", 20, 3, 2)
    for name in _core.instruction_sets():
        assert not _test.multiply_quantized(weights, "Q6_K", 0 * x, name).any()


def test_bad_shapes_and_names_are_refused() -> None:
    weights, x = made("Q4_K", 16, 1, 2)
    with pytest.raises(ValueError, match="of whole blocks"):
        _test.multiply_quantized(weights, "Q4_K", x[:, :-1], "plain")
    with pytest.raises(ValueError, match="no kernels for the type IQ1_S"):
        _test.multiply_quantized(weights, "IQ1_S", x, "plain")
    with pytest.raises(ValueError, match="no kernels for MMX"):
        _test.multiply_quantized(weights, "Q4_K", x, "MMX")


def test_this_processor_has_more_than_plain_code() -> None:
    """Kernels that are not compiled in would pass every other test."""
    from specllama.backend.cpu import cpu_flags

    if "avx2" not in cpu_flags():
        pytest.skip("this processor has no AVX2")
    assert "AVX2" in FAST
