"""The kernels of attention: against double precision, against plain C++, and against themselves in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import dequantized, quantized

from specllama import _core
from specllama import _core_test as _test

pytestmark = pytest.mark.every_case

FAST = [name for name in _core.instruction_sets() if name != "plain"]
BLOCKS: dict[type, str] = {np.uint8: "Q8_0", np.int8: "Q4_0", np.int16: "IQ4_NL"}
"""How the bytes of a cache of blocks are seen, so that the extension knows of which type they are."""
TYPES = [np.float16, np.float32, *BLOCKS]
"""Of the numbers of a cache."""
Floats = npt.NDArray[np.float32]
Cache = npt.NDArray[Any]


def raw(rows: Cache) -> Cache:
    """As the extension takes them: it knows no float16."""
    return rows.view(np.uint16) if rows.dtype == np.float16 else rows


def stored(rows: npt.NDArray[np.float64], kind: type) -> Cache:
    """Rows as a cache holds them."""
    return quantized(rows.astype(np.float32), BLOCKS[kind]).view(kind) if kind in BLOCKS else rows.astype(kind)


def exact(rows: Cache) -> npt.NDArray[np.float64]:
    """The numbers of rows that a cache holds."""
    kind = BLOCKS.get(rows.dtype.type)
    return (dequantized(rows.view(np.uint8), kind) if kind else rows).astype(np.float64)


def made(
    kind: type, queries: int, cells: int, key_length: int, value_length: int, seed: int = 1
) -> tuple[Floats, Cache, Cache, npt.NDArray[np.float16]]:
    """Queries, keys, values and masks; the queries see more and more, the first one little."""
    rng = np.random.default_rng(seed)
    asked = rng.normal(size=(queries, key_length)).astype(np.float32)
    keys, values = (stored(rng.normal(size=(cells, length)), kind) for length in (key_length, value_length))
    seen = 1 + rng.integers(0, cells, size=queries)
    masks = np.where(np.arange(cells) < seen[:, None], 0.0, -np.inf).astype(np.float16)
    return asked, keys, values, masks


def attended(
    name: str, asked: Floats, keys: Cache, values: Cache, masks: npt.NDArray[np.float16], **special: float
) -> Floats:
    return _test.attend(asked, raw(keys), raw(values), masks.view(np.uint16), 0.3, name, **special)


SPECIAL: list[dict[str, float]] = [{"cap": 2.5}, {"slope": 0.25}, {"sink": 1.5}, {"sink": 200.0}, {"sink": -200.0}]
"""A cap of scores, ALiBi, and sinks."""


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize(
    ("kind", "special"), [*((kind, {}) for kind in TYPES), *((np.float16, special) for special in SPECIAL)]
)
def test_it_is_near_what_double_precision_gives(kind: type, special: dict[str, float], name: str) -> None:
    asked, keys, values, masks = made(kind, 21, 1040, 64, 96)
    masks += -(np.arange(1040) % 9).astype(np.float16)  # distances
    scores = 0.3 * asked.astype(np.float64) @ exact(keys).T
    if "cap" in special:
        scores = special["cap"] * np.tanh(scores / special["cap"])
    scores += special.get("slope", 1.0) * masks.astype(np.float64)
    sinks = np.full((21, 1), special.get("sink", -np.inf))
    most = np.maximum(scores.max(axis=1, keepdims=True), sinks)
    weights = np.exp(scores - most)
    expected = weights @ exact(values) / (weights.sum(axis=1, keepdims=True) + np.exp(sinks - most))
    assert np.abs(attended(name, asked, keys, values, masks, **special) - expected).max() < 2e-6


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize("kind", TYPES)
def test_products_are_near_those_in_double_precision(kind: type, name: str) -> None:
    asked, keys, _, _ = made(kind, 19, 77, 160, 32)
    expected = asked.astype(np.float64) @ exact(keys).T
    assert np.abs(_test.multiply_rows(raw(keys), asked, name) - expected).max() < 2e-5


@pytest.mark.parametrize("name", FAST)
@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(TYPES),
    queries=st.integers(1, 35),
    cells=st.integers(1, 16),
    key_length=st.integers(1, 9),
    value_length=st.integers(1, 9),
    special=st.sampled_from([{}, {"cap": 3.0, "slope": 0.3, "sink": 0.7}]),
    seed=st.integers(0, 2**32 - 1),
)
def test_an_instruction_set_gives_the_bits_of_plain_code(
    name: str,
    kind: type,
    queries: int,
    cells: int,
    key_length: int,
    value_length: int,
    special: dict[str, float],
    seed: int,
) -> None:
    lanes = 32 if kind in BLOCKS else 16
    given = made(kind, queries, 16 * cells, lanes * key_length, lanes * value_length, seed)
    assert np.array_equal(attended(name, *given, **special), attended("plain", *given, **special))
    rows = raw(given[1][: 16 * cells - seed % 16])
    assert np.array_equal(_test.multiply_rows(rows, given[0], name), _test.multiply_rows(rows, given[0], "plain"))


@pytest.mark.parametrize("name", FAST)
def test_sums_of_several_chunks_have_the_bits_of_plain_code(name: str) -> None:
    """Chunks of 256 cells are added up."""
    for seed in range(20):
        given = made(np.float16, 20, 1040, 64, 64, seed)
        assert np.array_equal(attended(name, *given), attended("plain", *given))


@pytest.mark.parametrize("name", _core.instruction_sets())
@pytest.mark.parametrize("kind", TYPES)
def test_a_query_does_not_depend_on_the_others(kind: type, name: str) -> None:
    asked, keys, values, masks = made(kind, 40, 800, 64, 160)
    together = attended(name, asked, keys, values, masks)
    for count in (1, 2, 3, 4, 5, 16, 17, 33):
        assert np.array_equal(attended(name, asked[:count], keys, values, masks[:count]), together[:count])
    assert np.array_equal(attended(name, asked[20:21], keys, values, masks[20:21]), together[20:21])
    products = _test.multiply_rows(raw(keys), asked, name)
    for count in (1, 2, 3, 5, 17):
        assert np.array_equal(_test.multiply_rows(raw(keys), asked[:count], name), products[:count])
    assert np.array_equal(_test.multiply_rows(raw(keys[5:6]), asked, name)[:, 0], products[:, 5])


@pytest.mark.parametrize("name", _core.instruction_sets())
def test_room_that_is_masked_changes_nothing(name: str) -> None:
    asked, keys, values, masks = made(np.float16, 5, 1024, 64, 64)
    masks[:, 300:] = -np.inf
    short = attended(name, asked, keys[:304], values[:304], np.ascontiguousarray(masks[:, :304]))
    assert np.array_equal(attended(name, asked, keys, values, masks), short)


@pytest.mark.parametrize("name", _core.instruction_sets())
def test_a_query_that_sees_nothing_gets_nothing(name: str) -> None:
    asked, keys, values, masks = made(np.float16, 2, 512, 32, 32)
    masks[0] = -np.inf
    found = attended(name, asked, keys, values, masks)
    assert not found[0].any()
    assert found[1].any()


@pytest.mark.parametrize("name", _core.instruction_sets())
def test_large_scores_do_not_overflow(name: str) -> None:
    asked, keys, values, masks = made(np.float16, 4, 256, 32, 32)
    found = attended(name, 1e4 * asked, keys, values, np.zeros_like(masks))
    best = np.argmax(asked.astype(np.float64) @ keys.astype(np.float64).T, axis=1)
    assert np.allclose(found, values[best].astype(np.float32))


@pytest.mark.parametrize("name", _core.instruction_sets())
@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(TYPES),
    queries=st.integers(1, 20),
    seen=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 300)), min_size=1, max_size=6),
    seed=st.integers(0, 2**32 - 1),
)
def test_some_cells_count_as_if_there_were_no_others(
    name: str, kind: type, queries: int, seen: list[tuple[int, int]], seed: int
) -> None:
    """Gaps and runs of cells, of which each query sees a part."""
    cells: list[int] = []
    end = 0
    for gap, run in seen:
        cells += range(end + gap, end + gap + run)
        end += gap + run
    room, count = -(-end // 16) * 16, -(-len(cells) // 16) * 16
    asked, keys, values, _ = made(kind, queries, room, 32, 64, seed)
    own = np.full((queries, count), -np.inf, dtype=np.float16)
    chosen = np.random.default_rng(seed).random((queries, len(cells))) < 0.9
    own[:, : len(cells)][chosen] = 0.0
    masks = np.full((queries, room), -np.inf, dtype=np.float16)
    masks[:, cells] = own[:, : len(cells)]
    alone_keys, alone_values = (np.zeros((count, rows.shape[1]), rows.dtype) for rows in (keys, values))
    alone_keys[: len(cells)], alone_values[: len(cells)] = keys[cells], values[cells]
    among = _test.attend(asked, raw(keys), raw(values), masks.view(np.uint16), 0.3, name, cells)
    assert np.array_equal(among, attended(name, asked, alone_keys, alone_values, own))


def test_what_does_not_fit_is_refused() -> None:
    asked, keys, values, masks = made(np.float16, 3, 32, 32, 32)
    with pytest.raises(ValueError, match="multiples of 16"):
        attended("plain", asked, keys[:30], values[:30], np.ascontiguousarray(masks[:, :30]))
    with pytest.raises(ValueError, match="do not belong together"):
        attended("plain", asked[:2], keys, values, masks)
    with pytest.raises(ValueError, match="no such cells"):
        _test.attend(asked, raw(keys), raw(values), masks.view(np.uint16), 0.3, "plain", [3, 32])
    with pytest.raises(ValueError, match="of one length"):
        _test.multiply_rows(raw(keys), asked[:, :16], "plain")
    for rows, why in (
        (keys.astype(np.float64), "of this type are in no cache"),
        (np.zeros((32, 33), np.uint8), "whole"),
    ):
        with pytest.raises(ValueError, match=why):
            _test.multiply_rows(rows, asked, "plain")  # type: ignore[arg-type]
