"""specllama bench: from the command line to the result, in each format, interrupted or not."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

from specllama import cli
from specllama.evidence.bench import benchmark

if TYPE_CHECKING:
    from conftest import TinyFiles

LINES = [
    {"question_id": 1, "category": "qa", "turns": ["the cat"]},
    {"question_id": 2, "category": "qa", "turns": ["the dog"]},
    {"question_id": 3, "category": "writing", "turns": ["a fox"]},
]


@pytest.fixture
def line(tiny_files: TinyFiles, tmp_path: Path) -> list[str]:
    """A command line over three prompts, and a line that is none."""
    path = tmp_path / "my prompts.jsonl"
    path.write_text("\n".join([json.dumps(LINES[0]), "{nonsense", *map(json.dumps, LINES[1:])]), encoding="utf-8")
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
    return ["bench", *models, "--prompts", str(path), "-n", "12"]


def test_markdown(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*line, "--modes", "auto,block:2"]) == 0
    out, err = capsys.readouterr()
    rows = [[cell.strip() for cell in row.split("|")[1:3]] for row in out.splitlines() if row.startswith("|")]
    expected = [[mode, category] for category in ("qa", "writing", "all") for mode in ("plain", "auto", "block:2")]
    assert [row for row in rows if row[0] in ("plain", "auto", "block:2")] == expected
    assert "prompts.jsonl:2: not JSON" in out  # so that whoever reads the table knows
    assert "prompts.jsonl:2: not JSON" in err
    lines = err.splitlines()
    assert lines[1:4] == ["loading", "warming up", "9 runs"]
    assert [row.split(":")[0] for row in lines[4:]] == ["3/9 1", "6/9 2", "9/9 3"]
    assert all("t/s" in row and row.endswith(" s left") for row in lines[4:])
    assert [row.count(mode) for row in lines[4:] for mode in ("plain ", "auto ", "block:2 ")] == [1] * 9


def test_json(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert cli.main([*line, "-o", "json", "--repeat", "2", "--limit", "1", "--temp", "0.8", "--seed", "3"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [(one["prompt_id"], one["mode"], one["repeat"]) for one in found["runs"]] == [
        ("1", "plain", 0), ("1", "auto", 0), ("3", "auto", 0), ("3", "plain", 0),
        ("1", "auto", 1), ("1", "plain", 1), ("3", "plain", 1), ("3", "auto", 1),
    ]  # fmt: skip
    assert all(one["text_equal_to_plain"] for one in found["runs"])  # a seed means one text
    assert {one["stats"]["verify"] for one in found["runs"]} == {"coupled"}
    settings = found["settings"]
    assert (settings["temperature"], settings["seed"], settings["repeat"]) == (0.8, 3, 2)
    assert settings["prompts"] == {"qa": 1, "writing": 1}
    assert settings["command"].startswith("specllama bench -m ")
    assert " --prompts ~/'my prompts.jsonl' -n 12 " in settings["command"]  # no name is told
    assert found["machine"]["target"]["n_threads"] == found["machine"]["draft"]["n_threads_batch"] == 1
    assert found["curves"] == {}


def test_csv_and_jsonl(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*line, "-o", "csv"]) == 0
    out, err = capsys.readouterr()
    assert [(row["mode"], row["category"]) for row in csv.DictReader(io.StringIO(out))][-1] == ("auto", "all")
    assert "note: skipped" in err  # the format has no place for it
    assert cli.main([*line, "-o", "jsonl", "--curve"]) == 0
    out, err = capsys.readouterr()
    assert len([json.loads(row) for row in out.splitlines()]) == 6
    assert "What a batch of n tokens costs" in err


def test_the_prompts_that_come_with_it(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "1024"]
    assert cli.main(["bench", *models, "-n", "4", "--limit", "1", "-o", "json", "--curve"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len({one["category"] for one in found["runs"]}) == 8
    assert len(found["runs"]) == 16
    assert [point["n"] for point in found["curves"]["draft"]["points"]] == list(range(1, 17))


def test_several_files(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name / "same.txt" for name in ("one", "two")]
    for path in paths:
        path.parent.mkdir()
        path.write_text("the cat", encoding="utf-8")
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
    files = [argument for path in paths for argument in ("--prompts", str(path))]
    assert cli.main(["bench", *models, *files, "-n", "4", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["mode"], row["category"], row["num_prompts"]) for row in rows] == [
        ("plain", "all", "2"),
        ("auto", "all", "2"),
    ]


def test_many_bad_lines_are_counted(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "my prompts.jsonl"
    path.write_text("\n".join([json.dumps(LINES[0]), *["[]"] * 30]), encoding="utf-8")
    assert cli.main([*line, "-o", "json"]) == 0
    notes = json.loads(capsys.readouterr().out)["notes"]
    assert len(notes) == 11
    assert notes[-1] == "skipped 20 more lines (30 in all)"


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["--modes", "quick"], 2, "unknown mode 'quick'"),
        (["--prompts", "absent.jsonl"], 1, "cannot read prompts from absent.jsonl"),
        (["-n", "1000"], 1, "there is no prompt to measure: with answers of 1000 tokens"),
    ],
)
def test_errors(
    line: list[str], capsys: pytest.CaptureFixture[str], options: list[str], code: int, message: str
) -> None:
    assert cli.main([*line, *options]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err.splitlines()[-1]


def test_a_synthetic_draft(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    alone = [word for i, word in enumerate(line) if "-md" not in line[max(0, i - 1) : i + 1]]
    asked = ["--acceptance", "0.8,0.5", "--draft-cost", "0.1"]
    assert cli.main([*alone, *asked, "--modes", "auto:2", "--limit", "1", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {run["mode"] for run in found["runs"]} == {"plain", "auto:2 synthetic"}
    assert found["settings"]["synthetic"] == {"acceptance": [0.8, 0.5], "cost": 0.1}
    assert any(note.startswith("synthetic: there was no draft") for note in found["notes"])
    for words, message in (
        (
            [*line, *asked],
            "--acceptance is of a synthetic draft: leave --draft-model, --lookup-corpus and --against out",
        ),
        ([*alone, *asked, "--lookup-corpus", "x"], "leave --draft-model, --lookup-corpus and --against out"),
        ([*alone, *asked, "--against", "llama_cpp"], "leave --draft-model, --lookup-corpus and --against out"),
        ([*alone, "--acceptance", "0.8,much"], "argument --acceptance: invalid list of numbers value: '0.8,much'"),
        ([*alone, *asked, "--modes", "auto"], "give RULE:GAMMA, as in auto:4"),
    ):
        assert cli.main(words) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("target", ["hybrid", "recurrent"])
def test_a_synthetic_draft_has_the_memory_that_a_draft_gets(
    tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    """A hybrid model that is opened without a draft keeps no snapshots, and rolls back by copies of its state."""
    models = ["-m", str(getattr(tiny_files, target)), "-t", "1", "-c", "256"]
    line = ["bench", *models, "--limit", "1", "-n", "12", "--modes", "auto:2", "-o", "json"]
    kinds = []
    for draft in (["--acceptance", "0.5"], ["-md", str(getattr(tiny_files, f"{target}_draft"))]):
        assert cli.main([*line, *draft]) == 0
        found = json.loads(capsys.readouterr().out)
        kinds.append({run["stats"]["rollback"] for run in found["runs"] if run["stats"]["num_drafts"]})
        assert not any("opened without a draft" in note for note in found["notes"])
    assert kinds == [{"snapshot" if target == "hybrid" else "checkpoint"}] * 2


@pytest.mark.parametrize(
    ("name", "ending"),
    [*((name, KeyboardInterrupt) for name in ("md", "csv", "json", "jsonl")), ("md", MemoryError)],
)
def test_what_is_there_is_printed(
    line: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    ending: type[BaseException],
) -> None:
    answer, calls = benchmark.answer, []

    def stop(*args: Any, **options: Any) -> Any:
        calls.append(options)
        if len(calls) == 2 + 4:  # behind the warm-up and three runs
            raise ending
        return answer(*args, **options)

    monkeypatch.setattr(benchmark, "answer", stop)
    code = 130 if ending is KeyboardInterrupt else 1
    assert cli.main([*line, "-o", name]) == code
    out, err = capsys.readouterr()
    assert err.splitlines()[-1] == (
        "specllama: interrupted" if ending is KeyboardInterrupt else "specllama: error: MemoryError"
    )
    assert "(3 of 6 runs are done)" in (out if name in ("md", "json") else err)
    if name == "json":
        found = json.loads(out)
        assert [(one["prompt_id"], one["mode"]) for one in found["runs"]] == [
            ("1", "plain"),
            ("1", "auto"),
            ("2", "auto"),
        ]
        assert [one["speedup"] is None for one in found["runs"]] == [False, False, True]
        assert [row["num_prompts"] for row in found["summary"]] == [1, 1]
        assert found["settings"]["interrupted"] is True


def test_an_interrupt_before_the_first_run_prints_nothing(
    line: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*args: Any, **options: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(benchmark, "answer", stop)
    assert cli.main(line) == 130
    assert capsys.readouterr().out == ""


@pytest.mark.long
def test_a_report_is_written(line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    imported("matplotlib")
    imported("jinja2")
    assert cli.main([*line, "-o", "csv", "--report", str(tmp_path / "report")]) == 0
    err = capsys.readouterr().err
    assert "measuring what a batch costs the draft" in err
    path = Path(err.splitlines()[-1].removeprefix("report: "))
    assert "<html" in path.read_text(encoding="utf-8")


def test_a_report_needs_its_packages_before_anything_is_measured(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert cli.main([*line, "--report", str(tmp_path / "report")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "specllama[plot]" in err
    assert "loading" not in err
