"""bench: modes by turns, what each run is compared with, and what stays when it is interrupted."""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from specllama.evidence.bench import Bench, BenchResult, Mode, Plan, Run, benchmark, run
from specllama.prompts import Prompt, RenderedPrompt
from specllama.stats import Stats

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPTS = [Prompt(name, category, "the cat") for name, category in (("p", "a"), ("q", "a"), ("r", "b"))]


@dataclasses.dataclass(frozen=True)
class FakePrompt(Prompt):
    """Of as many tokens as its text has letters."""

    def rendered(self, llm: Any) -> RenderedPrompt:
        return RenderedPrompt([ord(letter) for letter in self.text], ["STOP"])


class FakeLlama:
    """Answers with fixed tokens in fixed times, and writes down what it was asked."""

    num_draft_tokens = 5
    verify = "auto"
    draft_model = object()
    engine = types.SimpleNamespace(draft=types.SimpleNamespace(label="a draft", is_paced=True))
    models = types.MappingProxyType({"target": None})

    def __init__(self, before: Callable[[int], None] = lambda count: None) -> None:
        self.calls: list[dict[str, Any]] = []
        self.events: list[str] = []
        self.before = before
        self.changes: dict[str, Any] = {}

    def n_ctx(self) -> int:
        return 256

    def reset(self) -> None:
        self.events.append("reset")

    def create_completion(self, prompt: list[int], **options: Any) -> dict[str, Any]:
        self.before(len(self.calls))
        gamma = options.get("num_draft_tokens")
        seconds = self.seconds_of(gamma)
        self.calls.append({"prompt": prompt, **options})
        self.events.append("plain" if gamma == 0 else "auto" if gamma is None else f"{options['verify']}:{gamma}")
        rule = options.get("verify", "auto")
        rule = ("block" if options["seed"] is None else "coupled") if rule == "auto" else rule
        tokens = self.tokens_of(options)
        known = {"num_prompt_tokens": len(prompt), "num_tokens": len(tokens), "verify": rule, "prompt_seconds": 2.0}
        rates = {"total_seconds": seconds + 2.0, "tokens_per_second": len(tokens) / seconds}
        self.stats = Stats(**{**known, **rates, **({} if gamma == 0 else self.changes)})
        self.input_ids = [*prompt, *tokens, 99, 99]
        return {"choices": [{"text": "x", "finish_reason": "length"}]}

    def seconds_of(self, gamma: int | None) -> float:
        """Of decoding, without the prompt's 2 s."""
        return {0: 4.0, None: 2.0, 4: 1.0}[gamma]

    def tokens_of(self, options: dict[str, Any]) -> list[int]:
        return [7, 8, 9, 10]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the fake Llama runs on."""
    model = {"n_threads": 2, "n_threads_batch": 2}
    found: dict[str, Any] = {"target": dict(model), "draft": dict(model)}
    monkeypatch.setattr(benchmark, "describe_machine", lambda llm: found)
    return found


@pytest.fixture
def llm(machine: dict[str, Any]) -> Any:
    return FakeLlama()


def prompts(*names: str, category: str = "a") -> list[Prompt]:
    return [FakePrompt(name, category, "four") for name in names]


def answered(llm: Any, event: str) -> list[dict[str, Any]]:
    """The calls of one mode, without the warm-up."""
    events = [event for event in llm.events if event != "reset"]
    return [call for call, name in list(zip(llm.calls, events, strict=True)) if name == event][1:]


# --- modes and plans -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("plain", {"num_draft_tokens": 0}),
        ("auto", {}),
        ("block", {"verify": "block"}),
        (" coupled:12 ", {"num_draft_tokens": 12, "verify": "coupled"}),
        ("auto:3", {"num_draft_tokens": 3, "verify": "auto"}),
    ],
)
def test_modes(text: str, options: dict[str, Any]) -> None:
    mode = Mode.parse(text)
    assert (mode.name, mode.options(), mode.is_plain) == (text.strip(), options, text == "plain")


def test_plain_is_always_among_the_modes() -> None:
    assert [mode.name for mode in Plan.checked().modes] == ["plain", "auto"]
    assert [mode.name for mode in Plan.checked(["block", "coupled:4"]).modes] == ["plain", "block", "coupled:4"]
    assert [mode.name for mode in Plan.checked([Mode.parse("auto"), "plain"]).modes] == ["auto", "plain"]


# --- the runs --------------------------------------------------------------------------------------------------------


def test_modes_take_turns(llm: Any) -> None:
    run(llm, prompts("p", "q", "r"), modes=["plain", "auto", "block:4"], repeat=2)
    there, back = ["plain", "auto", "block:4"], ["block:4", "auto", "plain"]
    warm_up = there
    first, second = there + back + there, back + there + back  # a prompt's order alternates over its repeats, too
    names = [event for event in llm.events if event != "reset"]
    assert names == warm_up + first + second
    assert llm.events == [event for name in names for event in ("reset", name)]


def test_the_warm_up_is_short_and_not_counted(llm: Any) -> None:
    result = run(llm, prompts("p"), max_tokens=50)
    assert [call["max_tokens"] for call in llm.calls] == [8, 8, 50, 50]
    assert len(result.runs) == 2
    llm.calls.clear()
    run(llm, prompts("p"), max_tokens=3)
    assert [call["max_tokens"] for call in llm.calls] == [3] * 4


def test_options_reach_the_completion(llm: Any) -> None:
    run(llm, prompts("p"), modes=["plain", "block:4"], temperature=0.7, top_p=0.9, seed=11, repeat=3)
    for mode, chosen in (("plain", {"num_draft_tokens": 0}), ("block:4", {"num_draft_tokens": 4, "verify": "block"})):
        for repeat, call in enumerate(answered(llm, mode)):
            rest = {"temperature": 0.7, "top_p": 0.9, "seed": 11 + repeat, "max_tokens": 128, "stop": ["STOP"]}
            assert call == {"prompt": [ord(letter) for letter in "four"], **rest, **chosen}


def test_ratios_are_to_plain_on_the_same_prompt_and_repeat(llm: Any) -> None:
    llm.seconds_of = lambda gamma: {3: 8.0, 4: 40.0}.get(len(llm.calls), 2.0)  # the warm-up has calls 0 and 1
    runs = run(llm, prompts("p"), modes=["auto", "plain"], repeat=2).runs
    assert [(one.mode, one.repeat) for one in runs] == [("auto", 0), ("plain", 0), ("plain", 1), ("auto", 1)]
    assert [one.stats.tokens_per_second for one in runs] == [2.0, 0.5, 0.1, 2.0]
    assert [one.speedup for one in runs] == pytest.approx([4.0, 1.0, 1.0, 20.0])
    assert [one.end_to_end_speedup for one in runs] == pytest.approx([10 / 4, 1.0, 1.0, 42 / 4])
    assert (runs[0].stats.total_seconds, runs[0].stats.num_tokens) == (4.0, 4)


def test_prompts_of_one_name_stay_apart(llm: Any) -> None:
    result = run(llm, prompts("p", "p", "p#2", "p"))
    assert [one.prompt_id for one in result.runs[::2]] == ["p", "p#2", "p#2#2", "p#3"]
    assert result.summary[0].num_prompts == 4


def test_prompts_that_do_not_fit_are_named(llm: Any) -> None:
    long = FakePrompt("long", "a", "x" * 129)
    result = run(llm, [long, *prompts("p")])  # n_ctx is 256, and the answer has 128 tokens
    assert [one.prompt_id for one in result.runs] == ["p", "p"]
    assert any("long (257)" in note and "n_ctx=256" in note for note in result.notes)
    assert run(llm, [dataclasses.replace(long, text="x" * 128)]).runs
    with pytest.raises(ValueError, match=r"no prompt to measure: with answers of .*long \(257\)"):
        run(llm, [long])


def test_what_cannot_be_measured_is_refused(llm: Any) -> None:
    with pytest.raises(ValueError, match="there are no prompts"):
        run(llm, [])
    with pytest.raises(ValueError, match="the category 'all' means every prompt"):
        run(llm, prompts("p", category="all"))
    llm.draft_model = None
    with pytest.raises(ValueError, match="no draft_model"):
        run(llm, prompts("p"))
    assert run(llm, prompts("p"), modes=["plain"]).summary[0].speedup_mean == 1.0


@pytest.mark.parametrize(
    ("options", "verdicts"),
    [
        ({}, {"plain": True, "auto": False, "block:4": False}),
        ({"temperature": 0.8}, {"plain": True, "auto": None, "block:4": None}),
        ({"temperature": 0.8, "seed": 3}, {"plain": True, "auto": False, "block:4": None}),
        ({"temperature": 0.8, "seed": -1}, {"plain": True, "auto": None, "block:4": None}),
    ],
)
def test_texts_are_compared_where_they_must_be_equal(
    llm: Any, options: dict[str, Any], verdicts: dict[str, bool | None]
) -> None:
    llm.tokens_of = lambda options: [7, 8, 9, 10] if options.get("num_draft_tokens") == 0 else [7, 8, 0, 10]
    result = run(llm, prompts("p"), modes=["plain", "auto", "block:4"], **options)
    assert {one.mode: one.text_equal_to_plain for one in result.runs} == verdicts
    noted = {note.split(":")[0] for note in result.notes if "part from plain decoding's" in note}
    assert noted == {mode.split(":")[0] for mode, verdict in verdicts.items() if verdict is False}
    if noted:
        assert "auto: 1 of 1 texts part" in result.notes[0]
        assert "p, at token 2" in result.notes[0]


def test_equal_texts_need_no_note(llm: Any) -> None:
    result = run(llm, prompts("p", "q"))
    assert [one.text_equal_to_plain for one in result.runs] == [True] * 4
    assert (result.summary[1].num_texts_equal, result.summary[1].num_texts_compared) == (2, 2)
    assert result.notes == []


def test_fallbacks_and_unequal_threads_are_noted(llm: Any, machine: dict[str, Any]) -> None:
    llm.changes = {"fallback_reason": "the draft is closed"}
    machine["target"]["n_threads_batch"] = 4
    notes = run(llm, prompts("p", "q")).notes
    assert len(notes) == 2
    assert "the target has n_threads=2 but n_threads_batch=4" in notes[0]
    assert "auto decoded plainly in 2 of 2 runs (the first: p): the draft is closed" in notes[1]


@pytest.mark.parametrize(("slowest", "noted"), [(5.9, False), (6.1, True)])
def test_a_busy_machine_is_noted(llm: Any, slowest: float, noted: bool) -> None:
    llm.seconds_of = lambda gamma: slowest if len(llm.calls) == 2 else 4.0  # of the first counted run, plain's
    notes = run(llm, prompts("p", "q", "r")).notes
    assert [note.startswith("plain decoding ran at 0.66 to 1.00 t/s") for note in notes] == [True] * noted


def test_listeners(llm: Any) -> None:
    heard: list[tuple[Run, int, int]] = []
    notes: list[str] = []
    run(llm, prompts("p", "q"), on_run=lambda *event: heard.append(event), on_note=notes.append)
    assert [(one.prompt_id, one.mode, done, total) for one, done, total in heard] == [
        ("p", "plain", 1, 4),
        ("p", "auto", 2, 4),
        ("q", "auto", 3, 4),
        ("q", "plain", 4, 4),
    ]
    assert [one.speedup for one, _, _ in heard] == [1.0, 2.0, None, 1.0]  # plain's turn comes after q's auto
    assert notes == ["warming up", "4 runs"]


def test_runs_survive_an_interrupt_of_the_curves(llm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(model: Any, name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("specllama.cost_curve.measure_cost_curve", interrupt)
    bench = Bench(llm, prompts("p"), Plan.checked(curve=True))
    with pytest.raises(KeyboardInterrupt):
        bench.run()
    result = bench.result()
    assert (result.interrupted, len(result.runs), len(result.summary)) == (True, 2, 2)
    assert result.notes == ["interrupted: the costs of batches are missing (2 of 2 runs are done)"]


# --- on models -------------------------------------------------------------------------------------------------------


def finite(value: Any) -> bool:
    """Whether every number within is finite."""
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}])
def test_a_pair(tiny_files: TinyFiles, make_llama: MakeLlama, options: dict[str, Any]) -> None:
    llm = make_llama(draft=tiny_files.good)
    result = run(llm, PROMPTS, modes=["auto", "coupled:2"], max_tokens=24, repeat=2, **options)
    assert len(result.runs) == 3 * 3 * 2
    assert finite(result.to_dict())
    assert all(one.text_equal_to_plain for one in result.runs)
    for one in result.runs:
        stats = one.stats
        assert stats.num_prompt_tokens_reused == 0  # each run decodes its own prompt
        assert (stats.num_drafts == 0) == (one.mode == "plain")
    assert [(row.mode, row.category) for row in result.summary][-3:] == [
        ("plain", "all"),
        ("auto", "all"),
        ("coupled:2", "all"),
    ]
    row = result.summary[-1]
    assert (row.num_prompts, row.num_tokens) == (3, 3 * 2 * 24)
    assert 0 < row.acceptance_rate <= 1
    assert 1 < row.mean_acceptance_length <= 3
    assert 0.5 < row.draft_share + row.verify_share + row.sample_share <= 1


@pytest.mark.usefixtures("early_release")
def test_a_pair_that_cannot_speculate_is_noted(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    from specllama import FallbackWarning

    with pytest.warns(FallbackWarning):
        llm = make_llama(tiny_files.recurrent, tiny_files.recurrent_draft)
    result = run(llm, PROMPTS[:1], max_tokens=8, curve=True)
    notes = result.notes
    assert any("auto decoded plainly in 1 of 1 runs" in note and "recurrent" in note for note in notes)
    assert result.curves == {}
    assert sum("no costs of batches" in note for note in notes) == 2
    assert not result.interrupted


def test_curves(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(draft=tiny_files.good)
    result: BenchResult = run(llm, PROMPTS[:1], max_tokens=8, curve=True)
    assert list(result.curves) == ["target", "draft"]
    for curve in result.curves.values():
        assert list(curve.sizes) == list(range(1, 17))
        assert curve.seconds(16) > 0
    assert finite(result.to_dict()["curves"])
    assert run(llm, PROMPTS[:1], max_tokens=8).runs[0].stats.num_prompt_tokens_reused == 0


# --- synthetic drafts ------------------------------------------------------------------------------------------------

RATES = (0.9, 0.5, 0.7)
"""The last one goes on."""


@pytest.mark.parametrize("options", [{}, {"temperature": 0.9, "seed": 5}])
def test_a_synthetic_draft_is_right_as_often_as_it_is_told(make_llama: MakeLlama, options: dict[str, Any]) -> None:
    """At each place: within four standard errors of the product of what was asked. Texts are plain decoding's."""
    llm = make_llama()
    result = run(llm, PROMPTS, modes=["auto:5"], acceptance=RATES, max_tokens=200, repeat=4, **options)
    drafted = [one for one in result.runs if one.mode == "auto:5 synthetic"]
    assert len(drafted) == len(result.runs) / 2 == 12
    assert all(one.text_equal_to_plain for one in result.runs)
    expected = 1.0
    for place in range(5):
        n = sum(sum(one.stats.num_rounds_per_gamma[place + 1 :]) for one in drafted)
        found = sum(sum(one.stats.num_accepted_tokens_per_pos[place : place + 1]) for one in drafted)
        expected *= RATES[min(place, 2)]
        assert n > 300
        assert abs(found / n - expected) < 4 * math.sqrt(expected * (1 - expected) / n)
    assert llm.draft_model is None  # it leaves no trace in the Llama


def test_what_is_synthetic_says_so(make_llama: MakeLlama) -> None:
    from specllama.evidence.bench.report import FORMATS

    result = run(make_llama(), PROMPTS[:1], acceptance=[0.8, 0.6], draft_cost=0.5, max_tokens=24)
    assert [mode for mode in result.settings["modes"] if mode != "plain"] == [
        f"auto:{gamma} synthetic" for gamma in (1, 2, 4, 8)
    ]
    shown = "a synthetic draft (accepted 0.8, 0.6; 0.5 T(1) a token)"
    assert result.settings["drafter"] == shown
    assert result.to_dict()["settings"]["synthetic"] == {"acceptance": [0.8, 0.6], "cost": 0.5}
    assert any(note.startswith(f"synthetic: there was no draft, but {shown}") for note in result.notes)
    for name, write in FORMATS.items():
        assert "auto:4 synthetic" in write(result), name


def test_a_synthetic_draft_takes_the_time_that_it_is_to_cost(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So many tokens, each as long as it was told of one of plain decoding."""
    from specllama.evidence.bench import synthetic

    waited: list[float] = []
    monkeypatch.setattr(synthetic, "time", types.SimpleNamespace(perf_counter=lambda: 100.0, sleep=waited.append))
    told: list[float] = []
    begin = synthetic.SyntheticDraft.begin

    def listen(self: Any, prompt: Any, plain: Any, *rest: Any, **more: Any) -> None:
        told.append(plain.stats.tokens_per_second)
        begin(self, prompt, plain, *rest, **more)

    monkeypatch.setattr(synthetic.SyntheticDraft, "begin", listen)
    result = run(make_llama(), PROMPTS[:1], modes=["auto:3"], acceptance=[1.0], draft_cost=0.25, max_tokens=25)
    drafted = result.runs[1].stats
    assert (drafted.num_draft_tokens, drafted.num_accepted_tokens) == (18, 18)  # of 24 tokens, in rounds of four
    assert len(set(told)) == 1
    in_all = sum(waited[-drafted.num_drafts :])
    assert in_all == pytest.approx(18 * 0.25 / told[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"modes": [text]}, r"unknown mode .*plain, auto, RULE or RULE:GAMMA")
            for text in ("", "fast", "plain:4", "block:", "block:-1", "block:x", "block:4:4", "block:²", ":4")
        ),
        ({"modes": ["block:0"]}, "drafts nothing"),
        ({"modes": ["block:513"]}, "513 is out of range"),
        ({"modes": ["auto", "auto"]}, "'auto' is given 2 times"),
        ({"repeat": 0}, "repeat=0"),
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"acceptance": []}, "acceptance is empty"),
        ({"acceptance": [0.5, 1.5]}, "acceptance=1.5 is no probability"),
        ({"acceptance": [math.nan]}, "acceptance=nan is no probability"),
        ({"acceptance": [0.5], "draft_cost": -1.0}, "draft_cost=-1 is out of range"),
        ({"draft_cost": 0.1}, "give acceptance"),
        ({"acceptance": [0.5], "modes": ["auto"]}, "give RULE:GAMMA, as in auto:4"),
        ({"acceptance": [0.5], "modes": ["block"]}, "give RULE:GAMMA, as in auto:4"),
        ({"acceptance": [0.5], "temperature": 0.8}, "mode 'auto:1' .*give temperature 0"),
        (
            {"acceptance": [0.5], "modes": ["block:4"], "temperature": 0.8, "seed": 1},
            "mode 'block:4' .*rule coupled",
        ),
    ],
)
def test_bad_plans(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Plan.checked(**options)


def test_a_synthetic_draft_takes_no_drafts_place(llm: Any) -> None:
    with pytest.raises(ValueError, match=r"synthetic draft, and the Llama has a draft_model: open it .*'lookup'"):
        Bench(llm, prompts("four"), Plan.checked(acceptance=[0.5]))


def test_a_hybrid_is_opened_with_a_draft_for_it(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Without, it has no snapshots, and a note says so."""
    asked: dict[str, Any] = {"modes": ["auto:2"], "acceptance": [0.5], "max_tokens": 16}
    for draft, rollback in ((None, "checkpoint"), ("lookup", "snapshot")):
        llm = make_llama(tiny_files.hybrid, draft)
        result = run(llm, PROMPTS[:1], **asked)
        assert result.runs[1].stats.rollback == rollback
        assert any("open it with draft_model='lookup'" in note for note in result.notes) == (draft is None)
        assert llm.draft_model == draft
