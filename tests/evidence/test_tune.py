"""specllama tune: what is measured and kept, and the plan that follows, on known curves by hand."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import specllama
from specllama import cli, tune
from specllama.cost_curve import CostCurve
from specllama.drop_in.lending import lent
from specllama.engine import costs as cost_cache
from specllama.engine.costs import cost_key
from specllama.evidence.tune import tuning
from specllama.evidence.tune.report import to_text

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"


def curve(name: str, costs: dict[int, float]) -> CostCurve:
    return CostCurve(name, 128, {n: (seconds,) for n, seconds in costs.items()})


FLAT = curve("target", dict.fromkeys(range(1, 18), 0.2))
LINEAR = curve("target", {n: 0.2 * n for n in range(1, 18)})
DRAFT = curve("draft", {1: 0.02})


# --- the plan --------------------------------------------------------------------------------------------------------


def test_where_batches_are_free_the_longest_lookup_is_best() -> None:
    plan = tune.Plan.of(FLAT, None, rates=(0.5, 0.9))
    assert [choice.num_draft_tokens for choice in plan.choices] == [16, 16]
    assert [choice.speedup for choice in plan.choices] == pytest.approx([2 - 0.5**16, (1 - 0.9**17) / 0.1])
    assert plan.break_even == pytest.approx(0.0, abs=1e-4)


def test_where_batches_save_nothing_plain_decoding_is_best() -> None:
    for draft in (None, DRAFT):
        plan = tune.Plan.of(LINEAR, draft, rates=(0.5, 0.95))
        assert [(choice.num_draft_tokens, choice.speedup) for choice in plan.choices] == [(0, 1.0), (0, 1.0)]
        assert plan.break_even is None


def test_a_draft_that_costs_a_tenth() -> None:
    # gamma = 1: (1 + a) / (0.1 + 1) pays above a = 0.1, as does gamma = 2: (1 + a + a^2) / 1.2 above 0.17.
    plan = tune.Plan.of(FLAT, DRAFT, rates=(0.05, 0.5))
    assert plan.break_even == pytest.approx(0.1, abs=1e-3)
    assert plan.choices[0] == tune.Choice(0.05, 0, 1.0)
    # 1.5 / 1.1 = 1.36, 1.75 / 1.2 = 1.458, 1.875 / 1.3 = 1.442
    assert plan.choices[1].num_draft_tokens == 2
    assert plan.choices[1].speedup == pytest.approx(1.75 / 1.2)


def test_a_step_in_the_costs() -> None:
    """As repacked 4-bit kernels have it: four tokens cost less than three."""
    target = curve("target", {1: 0.1, 2: 0.163, 3: 0.217, 4: 0.169, 5: 0.265})
    choice = tune.Plan.of(target, None, rates=(0.8,)).choices[0]
    assert choice.num_draft_tokens == 3
    assert choice.speedup == pytest.approx((1 + 0.8 + 0.64 + 0.512) / 1.69)


def test_only_sizes_that_were_measured_are_planned() -> None:
    target = curve("target", {1: 0.1, 2: 0.11, 9: 0.12})
    assert {choice.num_draft_tokens for choice in tune.Plan.of(target, None).choices} <= {0, 1, 8}


costs = st.dictionaries(st.integers(2, 20), st.floats(0.01, 1.0), max_size=20)


@given(costs, st.floats(0.001, 0.5), st.booleans())
def test_above_the_break_even_rate_drafting_pays_and_below_it_does_not(
    target_costs: dict[int, float], draft_cost: float, lookup: bool
) -> None:
    target = curve("target", {1: 0.1, **target_costs})
    draft = None if lookup else curve("draft", {1: draft_cost})
    rates = [i / 50 for i in range(51)]
    plan = tune.Plan.of(target, draft, rates=rates)
    speedups = [choice.speedup for choice in plan.choices]
    assert speedups == sorted(speedups)
    assert speedups[0] >= 1.0
    for choice in plan.choices:
        assert (choice.num_draft_tokens > 0) == (choice.speedup > 1.0)
        if plan.break_even is None:
            assert choice.num_draft_tokens == 0
        elif abs(choice.acceptance_rate - plan.break_even) > 1e-3:
            assert (choice.num_draft_tokens > 0) == (choice.acceptance_rate > plan.break_even)


# --- measuring -------------------------------------------------------------------------------------------------------


def kept(llm: Any, role: str) -> dict[int, float]:
    return cost_cache.read(cost_key(lent(llm), role))


@pytest.fixture
def _believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costs of tiny models are noise: whatever was measured is believed."""
    monkeypatch.setattr(cost_cache, "_STEEPEST", 1e9)
    monkeypatch.setattr(cost_cache, "_CHEAPEST", 0.0)


@pytest.mark.usefixtures("_believed")
def test_a_pair(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens="auto")
    draft = llm.draft_model
    text = llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"]
    steps: list[tuple[str, int, int]] = []
    result = tune.run(llm, repeats=3, n_past=20, on_progress=lambda *step: steps.append(step))
    assert not any("kept" in note for note in result.notes)
    assert list(result.curves) == ["target", "draft"]
    assert result.curves["target"].sizes == (*range(1, 33), 38, 45, 53, 64, 65)
    assert result.curves["draft"].sizes == (*range(1, 18), 32, 64, 128, 256)  # 20 + 512 would not fit
    assert {len(samples) for samples in result.curves["target"].samples.values()} == {3}
    assert list(result.plans) == ["draft model", "lookup"]
    assert list(dict.fromkeys(name for name, _, _ in steps)) == [
        "batches of the target",
        "larger batches of the target",
        "batches of the draft",
        "prompt chunks of the draft",
    ]
    assert [step for step in steps if step[1] == step[2]] == [
        ("batches of the target", 68, 68),
        ("larger batches of the target", 80, 80),
        ("batches of the draft", 68, 68),
        ("prompt chunks of the draft", 12, 12),
    ]
    for role, model in (("target", llm), ("draft", draft)):
        wanted = {n: result.curves[role].spread(n)[0] for n in result.curves[role].sizes}
        assert kept(model, role) == wanted
    restored = llm.engine.slot.loop.costs  # the engine that was there believes it from here on
    assert restored[0] == pytest.approx(kept(llm, "target"))
    assert restored[1] == pytest.approx(kept(draft, "draft"))
    assert llm.n_tokens == draft.n_tokens == 0
    assert llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"] == text
    other = make_llama(draft=tiny_files.good)
    assert other.engine.slot.loop.costs[0] == pytest.approx(kept(llm, "target"))
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False))["curves"]["draft"]["points"][-1]["n"] == 256


@pytest.mark.usefixtures("_believed")
@pytest.mark.parametrize("draft", [None, "lookup"])
def test_a_target_alone(make_llama: MakeLlama, draft: str | None) -> None:
    llm = make_llama(draft=draft, max_draft_tokens=4)
    result = tune.run(llm, repeats=1)
    assert list(result.curves) == ["target"]
    assert result.curves["target"].sizes == (1, 2, 3, 4, 5)
    assert list(result.plans) == ["lookup"]
    assert list(kept(llm, "target")) == [1, 2, 3, 4, 5]
    llm.draft_model = "lookup"
    assert list(llm.engine.slot.loop.costs[0]) == [1, 2, 3, 4, 5]


def test_no_more_sizes_than_are_kept_or_fit(make_llama: MakeLlama) -> None:
    many = tune.run(make_llama(draft="lookup", max_draft_tokens=100), repeats=1, n_past=8)
    assert many.curves["target"].sizes == (*range(1, 33), 38, 45, 53, 64, 76, 90, 101)
    small = tune.run(make_llama(draft="lookup", n_batch=6), repeats=1, n_past=8)
    assert small.curves["target"].sizes == (1, 2, 3, 4, 5, 6)


def test_an_interrupted_tuning_keeps_what_is_done(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)

    def interrupt(step: str, done: int, total: int) -> None:
        if step == "batches of the draft":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune.run(llm, repeats=1, on_progress=interrupt)
    assert len(list(cost_cache.costs_dir().iterdir())) == 1
    assert llm.create_completion(PROMPT, max_tokens=4)["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("draft", ["deep_head", "deep_medusa", ["deep_head", "target"]])
def test_a_head_that_is_not_measured_is_named(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str | list[str]
) -> None:
    names = [draft] if isinstance(draft, str) else draft
    paths = [str(getattr(tiny_files, name)) for name in names]
    llm = make_llama(tiny_files.deep, paths if len(paths) > 1 else paths[0], max_draft_tokens=2)
    result = tune.run(llm, repeats=1, n_past=8)
    assert len(result.curves) == len(names)
    (note,) = [note for note in result.notes if "head's cost" in note]
    assert note.startswith(" and ".join(f"{name}.gguf" for name in names) + ": a head's cost is learned while")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("repeats", 1.5, TypeError),
        ("repeats", "2", TypeError),
        ("repeats", 0, ValueError),
        ("n_past", 1.5, TypeError),
        ("n_past", -1, ValueError),
    ],
)
def test_bad_numbers_are_named(make_llama: MakeLlama, name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"^{name}="):
        tune.run(make_llama(), **{name: value})


def test_what_cannot_be_measured_is_refused(make_llama: MakeLlama) -> None:
    with pytest.raises(ValueError, match="n_ctx"):
        tune.run(make_llama(n_ctx=256), n_past=250)
    llm = make_llama()
    llm.close()
    with pytest.raises(specllama.ClosedError):
        tune.run(llm)
    assert not cost_cache.costs_dir().exists()


# --- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def line(tiny_files: TinyFiles) -> list[str]:
    return ["tune", "-m", str(tiny_files.target), "-t", "1", "-c", "512"]


def test_markdown(line: list[str], tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*line, "-md", str(tiny_files.good)]) == 0
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in out.splitlines() if row.startswith("|")]
    assert next(row[:6] for row in rows if row[0] == "n") == [
        "n",
        "target ms",
        "target quartiles",
        "target T(n)/T(1)",
        "draft ms",
        "draft quartiles",
    ]
    sizes = (*range(1, 33), 38, 45, 53, 64, 65, 128, 256)
    assert [row[0] for row in rows if row[0].isdigit()] == [str(n) for n in sizes]
    assert [row[0] for row in rows if row[0].endswith("%")] == ["50%", "60%", "70%", "80%", "90%", "95%"]
    assert ["accepted", "draft model", "speedup", "lookup", "speedup"] in rows
    assert "\nDrafting pays: draft model, " in out
    notes = [text for text in err.splitlines() if "left" not in text]
    assert notes == [
        "loading",
        "measuring batches of the target",
        "measuring larger batches of the target",
        "measuring batches of the draft",
        "measuring prompt chunks of the draft",
    ]
    assert "136/136 batches of the draft; about 0 s left" in err
    assert len(list(cost_cache.costs_dir().iterdir())) == 2


@pytest.mark.usefixtures("_believed")
@pytest.mark.parametrize("draft", [[], ["-md", "lookup"]])
def test_json(line: list[str], capsys: pytest.CaptureFixture[str], draft: list[str]) -> None:
    assert cli.main([*line, *draft, "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert set(found) == {"curves", "plans", "machine", "notes", "settings"}
    assert list(found["plans"]) == ["lookup"]
    assert [choice["acceptance_rate"] for choice in found["plans"]["lookup"]["choices"]] == [
        0.5,
        0.6,
        0.7,
        0.8,
        0.9,
        0.95,
    ]
    assert found["machine"]["target"]["file"] == "target.gguf"
    (path,) = cost_cache.costs_dir().iterdir()
    seconds = json.loads(path.read_text(encoding="ascii"))["seconds"]
    assert {point["n"]: point["q25"] for point in found["curves"]["target"]["points"]} == {
        int(n): value for n, value in seconds.items()
    }


def test_a_target_alone_has_the_memory_that_a_draft_gets(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The curve is for rounds with a draft, in which a hybrid model writes its snapshots."""
    kinds = []

    def measure(llm: specllama.Llama, name: str, **options: Any) -> CostCurve:
        kinds.append(lent(llm).sequence.decoder.rollback)
        return CostCurve(name, 128, dict.fromkeys(options["sizes"], (0.1,)))

    monkeypatch.setattr(tuning, "measure_cost_curve", measure)
    monkeypatch.setattr("specllama.cost_curve.measure_cost_curve", measure)
    assert cli.main(["tune", "-m", str(tiny_files.hybrid), "-t", "1", "-c", "512"]) == 0
    assert set(kinds) == {"snapshot"}


def test_generate_finds_it(line: list[str], tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    """With the same threads; the context may be another one."""
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1"]
    assert cli.main([*line, "-md", str(tiny_files.good)]) == 0
    assert cli.main(["generate", *models, "-c", "1024", "-p", PROMPT, "-n", "24"]) == 0
    assert len(list(cost_cache.costs_dir().iterdir())) == 2


def test_costs_that_cannot_be_kept_are_shown_all_the_same(
    line: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(key: Any, costs: Any) -> None:
        raise PermissionError(13, "Permission denied", "costs")

    monkeypatch.setattr(cost_cache, "write", fail)
    assert cli.main(line) == 0
    assert "\nNotes:\n" in (out := capsys.readouterr().out)
    assert "\n- the costs of the target cannot be kept: [Errno 13] Permission denied" in out


def test_what_disturbed_the_measurement_is_left_out_and_said() -> None:
    steady = CostCurve("target", 0, {n: (0.1 * n, 0.11 * n, 0.12 * n) for n in (1, 2, 3)})
    assert tuning.on_noise(steady) is None
    assert tuning.undisturbed(steady).seconds(2) == pytest.approx(0.21)
    once = CostCurve("target", 0, {**steady.samples, 3: (0.3, 0.3, 9.0)})
    assert tuning.on_noise(once) is None
    busy = CostCurve("target", 0, {n: (0.1 * n, 0.1 * n, 0.2 * n) for n in (1, 2, 3)})
    assert str(tuning.on_noise(busy)).startswith("the upper quartiles of the target lie 50% above the lower ones")
    assert tuning.undisturbed(busy).seconds(3) == pytest.approx(0.3)


def test_text_of_a_known_result(make_llama: MakeLlama) -> None:
    result = tune.run(make_llama(), repeats=1)
    plans = {"draft model": tune.Plan.of(LINEAR, DRAFT), "lookup": tune.Plan.of(FLAT, None)}
    text = to_text(dataclasses.replace(result, curves={"target": FLAT, "draft": DRAFT}, plans=plans))
    assert "|      50% |       plain |   1.00x |     16 |   2.00x |" in text
    assert text.splitlines()[-1] == "Drafting pays: draft model, never; lookup, where more than 0% are accepted."
