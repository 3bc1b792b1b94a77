"""Curves that outlive a process: restored into an engine, corrected by it, and written when they have changed."""

from __future__ import annotations

import json
import logging
import os
import pickle
import shutil
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from structs import costs_of

import specllama
from specllama import _core_test as _test
from specllama.drop_in.lending import lent
from specllama.engine import costs as cost_cache
from specllama.engine import costs as cost_memory
from specllama.engine.costs import CostMemory, changed, cost_key

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and the cat sat on the"
CURVE = {n: 0.001 * (10 + n) for n in range(1, 18)}
FLAT = dict.fromkeys(range(1, 18), 0.002)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every generation may write."""
    monkeypatch.setattr(cost_memory, "_PAUSE", 0.0)


def generate(llm: specllama.Llama, **settings: Any) -> str:
    settings = {"max_tokens": 48, "temperature": 0.0, **settings}
    return str(llm.create_completion(PROMPT, **settings)["choices"][0]["text"])


def auto(make_llama: MakeLlama, draft: Path | str | None, **kwargs: Any) -> specllama.Llama:
    return make_llama(draft=draft, num_draft_tokens="auto", **kwargs)


def draft_of(llm: specllama.Llama) -> llama_cpp.Llama:
    draft: llama_cpp.Llama = llm.draft_model
    return draft


def files() -> list[dict[str, Any]]:
    folder = cost_cache.costs_dir()
    paths = sorted(folder.glob("*.json")) if folder.is_dir() else []
    return [json.loads(path.read_text(encoding="ascii")) for path in paths]


# --- when a curve is worth writing -----------------------------------------------------------------------------------


def test_new_sizes_are_a_change() -> None:
    assert not changed({}, {})
    assert changed({}, {1: 0.1})
    assert changed({1: 0.1}, {1: 0.1, 2: 0.1})
    assert not changed(CURVE, CURVE)
    assert not changed(CURVE, {})  # nothing was restored yet


def test_a_size_that_was_unlearned_is_a_change() -> None:
    assert changed(CURVE, {n: seconds for n, seconds in CURVE.items() if n != 5})
    assert not changed({1: 0.010, 33: 0.2, 38: 0.23}, {1: 0.010, 33: 0.2}), "the larger one stood for both"


@pytest.mark.parametrize("n", [1, 5, 17])
def test_one_size_that_departs_from_the_others_is_a_change(n: int) -> None:
    assert not changed(CURVE, {**CURVE, n: CURVE[n] * 1.09})
    assert changed(CURVE, {**CURVE, n: CURVE[n] * 1.11})
    assert changed(CURVE, {**CURVE, n: CURVE[n] / 1.11})


curves = st.dictionaries(st.integers(1, 600), st.floats(1.0, 2.0), min_size=1, max_size=80)


@given(curves, st.floats(0.2, 5.0))
def test_a_common_factor_is_none(curve: dict[int, float], factor: float) -> None:
    assert not changed(curve, {n: factor * seconds for n, seconds in curve.items()})


@given(curves, curves)
def test_what_was_kept_has_not_changed(before: dict[int, float], now: dict[int, float]) -> None:
    assert not changed(cost_cache.thinned(now), now)
    if not changed(before, now):
        classes = [{cost_cache.size_class(n) for n in cost_cache.thinned(curve)} for curve in (now, before)]
        assert classes[0] == classes[1]


@given(curves)
def test_what_was_restored_has_not_changed(curve: dict[int, float]) -> None:
    """So that only a size that was unlearned can be missing."""
    kept, model = cost_cache.thinned(curve), _test.CostModel()
    model.restore(kept)
    assert not changed(kept, model.known())


def test_prompts_of_another_length_are_none() -> None:
    """Chunks of 100 and of 105 tokens cost the same a token."""
    before = {1: 0.010, 2: 0.011, 100: 0.200}
    assert not changed(before, {**before, 105: 0.210})
    assert changed(before, {**before, 105: 0.300})
    assert changed(before, {**before, 200: 0.400})


# --- what it belongs to ----------------------------------------------------------------------------------------------


def test_a_key_names_all_that_matters(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    keys = [
        cost_key(lent(llm), "target"),
        cost_key(lent(llm), "draft"),
        cost_key(lent(draft_of(llm)), "draft"),
        cost_key(lent(make_llama(n_threads=2)), "target"),
        cost_key(lent(make_llama(n_threads_batch=2)), "target"),
        cost_key(lent(make_llama(n_batch=64)), "target"),
        cost_key(lent(make_llama(n_ubatch=64)), "target"),
        cost_key(lent(make_llama(n_gpu_layers=1)), "target"),
        cost_key(lent(make_llama(split_mode=llama_cpp.LLAMA_SPLIT_MODE_ROW)), "target"),
        cost_key(lent(make_llama(main_gpu=1)), "target"),
        cost_key(lent(make_llama(tensor_split=[3, 1])), "target"),
        cost_key(lent(make_llama(lora_path=str(tiny_files.lora))), "target"),
        cost_key(lent(make_llama(flash_attn=True)), "target"),
        cost_key(lent(make_llama(type_k=0)), "target"),  # F32
        cost_key(lent(make_llama(type_v=0)), "target"),
        cost_key(lent(make_llama(kv_overrides={"llama.expert_used_count": 0})), "target"),
    ]
    assert all(keys.count(key) == 1 for key in keys)
    assert json.loads(json.dumps(keys)) == keys
    assert keys[0] == cost_key(lent(make_llama(n_ctx=1024)), "target")
    assert (keys[0]["file"], keys[0]["size"]) == ("target.gguf", tiny_files.target.stat().st_size)
    assert str(tiny_files.target.parent) not in json.dumps(keys)


def test_another_file_of_the_same_name(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    other = tmp_path / "target.gguf"
    other.write_bytes(tiny_files.larger.read_bytes())
    llm = make_llama(other)
    assert cost_key(lent(llm), "target") != cost_key(lent(make_llama()), "target")
    if os.name != "nt":  # where a file in use cannot be removed
        other.unlink()
        assert cost_key(lent(llm), "target")["size"] is None


# --- from one Llama to the next --------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["good", "lookup"])
def test_what_was_learned_is_kept(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = auto(make_llama, "lookup" if draft == "lookup" else tiny_files.good)
    assert costs_of(llm.engine.slot.loop) == ({}, {})
    generate(llm)
    learned = dict(zip(("target", "draft"), costs_of(llm.engine.slot.loop), strict=True))
    found = {file["key"]["role"]: file for file in files()}
    assert found.keys() == ({"target"} if draft == "lookup" else {"target", "draft"})
    for role, file in found.items():
        assert learned[role]
        assert {int(n): seconds for n, seconds in file["seconds"].items()} == cost_cache.thinned(learned[role])


def test_a_known_curve_is_restored(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    first = auto(make_llama, tiny_files.good)
    cost_cache.write(cost_key(lent(first), "target"), CURVE)
    cost_cache.write(cost_key(lent(draft_of(first)), "draft"), FLAT)
    target, draft = costs_of(auto(make_llama, tiny_files.good).engine.slot.loop)
    assert target == pytest.approx(CURVE)
    assert draft == pytest.approx(FLAT)
    target, draft = costs_of(auto(make_llama, "lookup").engine.slot.loop)  # the target is the same
    assert target == pytest.approx(CURVE)
    assert draft == {}


def test_another_draft_has_its_own(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files.good)
    cost_cache.write(cost_key(lent(llm), "target"), CURVE)
    cost_cache.write(cost_key(lent(draft_of(llm)), "draft"), FLAT)
    llm.draft_model = str(tiny_files.bad)
    target, draft = costs_of(llm.engine.slot.loop)
    assert target == pytest.approx(CURVE)
    assert draft == {}
    llm.draft_model = None
    assert costs_of(llm.engine.slot.loop) == ({}, {})
    generate(llm)
    llm.draft_model = "lookup"
    assert llm.engine.slot.loop.costs[0] == pytest.approx(CURVE)


def test_plain_decoding_and_functions_keep_nothing(make_llama: MakeLlama) -> None:
    generate(make_llama())
    llm = make_llama(num_draft_tokens=4)
    llm.draft_model = lambda input_ids, **options: input_ids[:2]
    generate(llm)
    assert llm.stats.num_drafts > 0
    assert files() == []


WRONG = {
    "cheap": {1: 0.001, **dict.fromkeys(range(2, 18), 0.0006)},
    "dear": {1: 0.001, **{n: 0.0019 * n for n in range(2, 18)}},
    "slow": {n: 30.0 * n for n in range(1, 18)},
    "fast": dict.fromkeys(range(1, 18), 1e-08),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_curve_does_not_change_the_text(make_llama: MakeLlama, tiny_files: TinyFiles, name: str) -> None:
    plain = generate(make_llama())
    first = auto(make_llama, tiny_files.identical)
    cost_cache.write(cost_key(lent(first), "target"), WRONG[name])
    cost_cache.write(cost_key(lent(draft_of(first)), "draft"), WRONG[name])
    llm = auto(make_llama, tiny_files.identical)
    assert llm.engine.slot.loop.costs[0] == pytest.approx(WRONG[name])
    assert [generate(llm) for _ in range(3)] == [plain] * 3


class Rounds:
    """An engine whose batches take what the test says."""

    def __init__(self) -> None:
        self.target = _test.CostModel()

    @property
    def costs(self) -> list[dict[int, float]]:
        return [self.target.known()]

    def restore_costs(self, seconds: list[dict[int, float]]) -> None:
        self.target.restore(seconds[0])


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_curve_is_recovered_from(make_llama: MakeLlama, name: str) -> None:
    """By the sizes that are decoded, and in the cache, too."""
    llm = make_llama()
    cost_cache.write(cost_key(lent(llm), "target"), WRONG[name])
    engine = Rounds()
    memory = CostMemory(engine, llm.engine.model, {})  # type: ignore[arg-type]
    assert engine.costs[0] == pytest.approx(WRONG[name])
    for _ in range(60):
        for n in (1, 2, 4):
            engine.target.observe(n, CURVE[n])
    memory.keep()
    other = Rounds()
    CostMemory(other, llm.engine.model, {})  # type: ignore[arg-type]
    for curve in (engine.costs[0], other.costs[0]):
        assert {n: curve[n] for n in (1, 2, 4)} == pytest.approx({n: CURVE[n] for n in (1, 2, 4)}, rel=0.1)


def test_what_one_process_unlearns_is_not_told_to_the_next(make_llama: MakeLlama) -> None:
    """A size that was held up when it was measured, and is never tried again."""
    llm = make_llama()
    key = cost_key(lent(llm), "target")
    cost_cache.write(key, {**CURVE, 5: 4 * CURVE[5]})
    engine = Rounds()
    memory = CostMemory(engine, llm.engine.model, {})  # type: ignore[arg-type]
    for _ in range(300):
        engine.target.observe(1, CURVE[1])
    assert 5 not in engine.target.known()
    memory.keep()
    assert cost_cache.read(key).keys() == CURVE.keys() - {5}


def test_a_lie_that_forbids_drafting_is_not_kept(make_llama: MakeLlama) -> None:
    llm = auto(make_llama, "lookup")
    cost_cache.write(cost_key(lent(llm), "target"), {1: 0.001, **{n: 0.01 * n for n in range(2, 18)}})
    assert llm.engine.slot.loop.costs[0] == pytest.approx({1: 0.001})


# --- writing ---------------------------------------------------------------------------------------------------------


def test_only_a_change_is_written(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = auto(make_llama, "lookup")
    generate(llm)
    writes: list[Any] = []
    monkeypatch.setattr(cost_cache, "write", lambda key, costs: writes.append(costs))
    monkeypatch.setattr(cost_memory, "changed", lambda before, now: False)
    generate(llm)
    assert writes == []
    monkeypatch.setattr(cost_memory, "changed", lambda before, now: True)
    generate(llm)
    assert len(writes) == 1


def test_no_two_writes_within_a_second(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost_memory, "_PAUSE", 1.0)
    times = iter((100.0, 100.9, 101.1, 101.2, 102.2))  # one for each generation; other threads have their own clock
    monkeypatch.setattr(cost_memory, "time", types.SimpleNamespace(monotonic=lambda: next(times)))
    writes: list[Any] = []
    monkeypatch.setattr(cost_cache, "write", lambda key, costs: writes.append(costs))
    monkeypatch.setattr(cost_memory, "changed", lambda before, now: True)
    llm = auto(make_llama, "lookup")
    assert [generate(llm, max_tokens=4) and len(writes) for _ in range(5)] == [1, 1, 2, 2, 3]


@pytest.mark.parametrize("error", [OSError(30, "Read-only file system"), RuntimeError("no home folder")])
def test_what_cannot_be_written_disturbs_nothing(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    def fail(key: Any, costs: Any) -> None:
        raise error

    caplog.set_level(logging.DEBUG, "specllama")
    plain = generate(make_llama())
    monkeypatch.setattr(cost_cache, "write", fail)
    llm = auto(make_llama, "lookup")
    assert generate(llm) == generate(llm) == plain
    assert str(error) in caplog.text
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    monkeypatch.undo()
    generate(llm)  # what was not written is written later
    assert len(files()) == 1


def test_the_folder_may_be_deleted_at_any_time(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = auto(make_llama, "lookup")
    generate(llm)
    shutil.rmtree(cost_cache.costs_dir())
    assert costs_of(auto(make_llama, "lookup").engine.slot.loop) == ({}, {})
    monkeypatch.setattr(cost_memory, "changed", lambda before, now: True)  # whatever this machine's noise was
    generate(llm)
    assert len(files()) == 1


@pytest.mark.parametrize("ending", ["closed", "superseded"])
def test_the_end_of_a_generation_keeps_what_was_learned(make_llama: MakeLlama, ending: str) -> None:
    llm = auto(make_llama, "lookup")
    tokens = llm.generate(llm.tokenize(PROMPT.encode()))
    for _ in range(12):
        next(tokens)
    assert files() == []
    if ending == "closed":
        tokens.close()
    else:
        next(llm.generate(llm.tokenize(PROMPT.encode())))
    assert len(files()) == 1


def test_a_copy_knows_it_too(make_llama: MakeLlama) -> None:
    llm = auto(make_llama, "lookup")
    cost_cache.write(cost_key(lent(llm), "target"), CURVE)
    copy = pickle.loads(pickle.dumps(llm))
    try:
        assert copy.engine.slot.loop.costs[0] == pytest.approx(CURVE)
    finally:
        copy.close()
