"""The files in which T(n) is kept: whatever is in them, and whatever the folder is like, nothing breaks."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specllama.engine import costs as cost_cache

KEY = {"role": "target", "file": "x.gguf", "size": 12, "n_threads": 2, "offload_kqv": True, "file_type": None}
COSTS = {1: 0.1, 2: 0.107, 4: 0.13, 17: 0.24}


def the_file() -> Path:
    (path,) = cost_cache.costs_dir().iterdir()
    return path


def test_what_is_written_is_read() -> None:
    assert cost_cache.read(KEY) == {}
    cost_cache.write(KEY, COSTS)
    assert cost_cache.read(KEY) == COSTS
    assert cost_cache.read(dict(reversed(KEY.items()))) == COSTS
    cost_cache.write(KEY, {1: 0.2})
    assert cost_cache.read(KEY) == {1: 0.2}
    document = json.loads(the_file().read_text(encoding="ascii"))
    assert set(document) == {"format", "key", "measured", "seconds"}
    assert document["key"] == KEY
    assert document["seconds"] == {"1": 0.2}
    assert abs(time.time() - document["measured"]) < 60


def test_it_lies_in_the_cache_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "elsewhere"))
    cost_cache.write(KEY, COSTS)
    assert the_file().parent == tmp_path / "elsewhere" / "costs"


@pytest.mark.parametrize("name", KEY)
def test_whatever_differs_in_the_key_has_a_file_of_its_own(name: str) -> None:
    other = {**KEY, name: "another"}
    cost_cache.write(KEY, COSTS)
    assert cost_cache.read(other) == {}
    cost_cache.write(other, {1: 3.0})
    assert cost_cache.read(KEY) == COSTS
    assert cost_cache.read(other) == {1: 3.0}


def test_names_that_are_no_text_are_keys_too() -> None:
    key = {**KEY, "file": os.fsdecode(b"\xff\xfe.gguf")}
    cost_cache.write(key, COSTS)
    assert cost_cache.read(key) == COSTS


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another key": lambda found: {**found, "key": {**KEY, "n_threads": 4}},
    "another format": lambda found: {**found, "format": 1},
    "no format": lambda found: {name: value for name, value in found.items() if name != "format"},
    "a list": lambda found: [found],
    "a text": lambda found: json.dumps(found)[:-9],
    "no curve": lambda found: {**found, "seconds": None},
    "a list of costs": lambda found: {**found, "seconds": [0.1, 0.2]},
    "never measured": lambda found: {**found, "measured": None},
    "measured in words": lambda found: {**found, "measured": "yesterday"},
    "measured in the future": lambda found: {**found, "measured": time.time() + 1000},
    "measured long ago": lambda found: {**found, "measured": time.time() - 31 * 86_400},
    "measured at infinity": lambda found: {**found, "measured": float("inf")},
    "measured at a number too large": lambda found: {**found, "measured": 10**400},
    "NaN": lambda found: {**found, "seconds": {"1": float("nan")}},
    "infinite": lambda found: {**found, "seconds": {"1": float("inf")}},
    "negative": lambda found: {**found, "seconds": {"1": 0.1, "2": -0.1}},
    "zero": lambda found: {**found, "seconds": {"1": 0}},
    "hours": lambda found: {**found, "seconds": {"1": 5000}},
    "too large": lambda found: {**found, "seconds": {"1": 10**400}},
    "a bool": lambda found: {**found, "seconds": {"1": True}},
    "words": lambda found: {**found, "seconds": {"1": "0.1"}},
    "a size of zero": lambda found: {**found, "seconds": {"0": 0.1}},
    "a negative size": lambda found: {**found, "seconds": {"-1": 0.1}},
    "a size in words": lambda found: {**found, "seconds": {"one": 0.1}},
    "no size": lambda found: {**found, "seconds": {"": 0.1}},
    "a size in other digits": lambda found: {**found, "seconds": {"²": 0.1}},
    "a size twice": lambda found: {**found, "seconds": {"1": 0.1, "01": 0.2}},
    "too many sizes": lambda found: {**found, "seconds": {str(n): 0.1 for n in range(1, 70)}},
    "batches dearer than their tokens": lambda found: {**found, "seconds": {"1": 0.1, "2": 0.5}},
    "batches far cheaper than one token": lambda found: {**found, "seconds": {"1": 0.1, "7": 0.01}},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_true_is_not_believed(damage: str) -> None:
    cost_cache.write(KEY, COSTS)
    path = the_file()
    path.write_text(json.dumps(DAMAGES[damage](json.loads(path.read_text(encoding="ascii")))), encoding="ascii")
    assert cost_cache.read(KEY) == {}
    cost_cache.write(KEY, COSTS)  # it is replaced
    assert cost_cache.read(KEY) == COSTS


@given(st.binary(max_size=200) | st.just(b"[" * 60_000))
def test_anything_may_be_in_a_file(content: bytes) -> None:
    cost_cache.write(KEY, COSTS)
    the_file().write_bytes(content)
    assert cost_cache.read(KEY) == {}


def test_a_folder_in_the_place_of_the_file() -> None:
    cost_cache.write(KEY, COSTS)
    path = the_file()
    path.unlink()
    path.mkdir()
    assert cost_cache.read(KEY) == {}
    with pytest.raises(OSError, match=path.name):
        cost_cache.write(KEY, COSTS)
    assert list(path.parent.iterdir()) == [path]  # nothing temporary is left


def test_a_file_in_the_place_of_the_folder(own_cache: Path) -> None:
    blocked = own_cache / "costs"
    blocked.write_text("in the way", encoding="ascii")
    assert cost_cache.read(KEY) == {}
    with pytest.raises(OSError, match="costs"):
        cost_cache.write(KEY, COSTS)
    blocked.unlink()


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="needs a user whom permissions hold back")
def test_a_folder_without_permissions(own_cache: Path) -> None:
    cost_cache.write(KEY, COSTS)
    folder = own_cache / "costs"
    folder.chmod(0)
    try:
        assert cost_cache.read(KEY) == {}
        with pytest.raises(PermissionError):
            cost_cache.write(KEY, COSTS)
    finally:
        folder.chmod(0o700)


def test_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", "~nobody-of-that-name/x")
    assert cost_cache.read(KEY) == {}
    with pytest.raises(RuntimeError, match="home"):
        cost_cache.write(KEY, COSTS)


def test_a_full_disk_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cost_cache.write(KEY, COSTS)

    def fail(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="No space"):
        cost_cache.write(KEY, {1: 0.5})
    assert the_file().suffix == ".json"
    assert cost_cache.read(KEY) == COSTS


def _write_often(level: float) -> None:
    for _ in range(80):
        cost_cache.write(KEY, {n: level * (10 + n) for n in range(1, 33)})


def test_writers_at_the_same_time() -> None:
    """Every reading is one of the curves, whole."""
    cost_cache.write(KEY, {n: 10.0 + n for n in range(1, 33)})
    context = multiprocessing.get_context("spawn")
    levels = (1.0, 2.0)
    writers = [context.Process(target=_write_often, args=(level,)) for level in levels]
    for writer in writers:
        writer.start()
    curves = [{n: level * (10 + n) for n in range(1, 33)} for level in levels]
    while any(writer.is_alive() for writer in writers):
        assert cost_cache.read(KEY) in curves
    for writer in writers:
        writer.join()
        assert writer.exitcode == 0
    assert the_file().suffix == ".json"  # alone: nothing temporary is left


@given(st.dictionaries(st.integers(1, 10_000), st.floats(1.0, 2.0), max_size=300))
def test_files_are_small(costs: dict[int, float]) -> None:
    kept = cost_cache.thinned(costs)
    assert len(kept) <= 64
    assert kept.items() <= costs.items()
    assert {n for n in costs if n <= 32} <= kept.keys()
    assert cost_cache.thinned(kept) == kept
    for n in costs:
        if n <= 8192:  # some size that is about as large stands for it
            assert any(n <= other <= 1.2 * n for other in kept)


def test_sizes_up_to_8192_have_a_class() -> None:
    classes = [cost_cache.size_class(n) for n in range(1, 8193)]
    assert classes == sorted(classes)
    assert set(classes) == set(range(1, 65))
    assert list(cost_cache.thinned(dict.fromkeys(range(1, 20_000), 1.0)))[-1] == 8192


@pytest.mark.parametrize(
    ("costs", "left_out"),
    [
        ({1: 0.1, 2: float("nan"), 3: 0.0, 4: float("inf"), 5: -1.0, 6: 0.2}, {2, 3, 4, 5}),
        ({1: 0.008, 2: 0.014, 4: 3.4459, 5: 0.024, 38: 0.097}, {4}),  # another process held it up, as observed
    ],
)
def test_what_cannot_be_true_is_not_written(costs: dict[int, float], left_out: set[int]) -> None:
    cost_cache.write(KEY, costs)
    assert cost_cache.read(KEY) == {n: seconds for n, seconds in costs.items() if n not in left_out}
