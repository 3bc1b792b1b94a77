"""specllama bench --against llama_cpp: whole calls of both classes, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import pytest
from test_bench_command import LINES

from specllama.evidence.bench.gains import THEIRS, Call, gains

if TYPE_CHECKING:
    from conftest import MakeBase, TinyFiles


@pytest.fixture
def line(tiny_files: TinyFiles, tmp_path: Path) -> list[str]:
    path = tmp_path / "prompts.jsonl"
    path.write_text("\n".join(map(json.dumps, LINES)), encoding="utf-8")
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
    return ["bench", "--against", "llama_cpp", *models, "--prompts", str(path), "-n", "12"]


@pytest.mark.long
def test_calls_by_turns(line: list[str], make_base: MakeBase, tiny_files: TinyFiles) -> None:
    done = faults.run(*line, "-o", "json", "--repeat", "2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    calls = found["calls"]
    forwards = [THEIRS, "plain", "auto"]
    assert [call["mode"] for call in calls[:9]] == [*forwards, *forwards[::-1], *forwards]
    assert len(calls) == 3 * 3 * 2
    base = make_base(tiny_files.target, n_ctx=256)
    for prompt in LINES:
        message: list[Any] = [{"role": "user", "content": prompt["turns"][0]}]
        expected = base.create_chat_completion(message, max_tokens=12, temperature=0.0)
        texts = {call["text"] for call in calls if call["prompt_id"] == str(prompt["question_id"])}
        assert texts == {expected["choices"][0]["message"]["content"]}
        sizes = {call["num_prompt_tokens"] for call in calls if call["prompt_id"] == str(prompt["question_id"])}
        assert sizes == {expected["usage"]["prompt_tokens"]}
    rows = [(row["mode"], row["category"], row["num_prompts"]) for row in found["gains"]]
    assert rows == [
        *(("plain", "qa", 2), ("auto", "qa", 2)),
        *(("plain", "writing", 1), ("auto", "writing", 1)),
        *(("plain", "all", 3), ("auto", "all", 3)),
    ]
    assert all(row["num_texts_equal"] == row["num_texts_compared"] > 0 for row in found["gains"])
    assert found["machine"]["draft"] is not None
    assert [note for note in found["notes"] if "other programs used" not in note] == []  # such as other tests
    assert found["settings"]["command"].startswith("specllama bench --against llama_cpp")


@pytest.mark.long
def test_markdown_and_a_prompt_that_does_not_fit(line: list[str], tmp_path: Path) -> None:
    long = tmp_path / "long.txt"
    long.write_text("the cat " * 400)
    done = faults.run(*line, "--prompts", str(long), "--limit", "1")
    assert done.returncode == 0, done.stderr
    assert "- left out long.txt: llama_cpp says: Requested tokens" in done.stdout
    rows = [[cell.strip() for cell in row.split("|")[1:4]] for row in done.stdout.splitlines() if row.startswith("| ")]
    assert ["auto", "all", "2"] in rows
    only = [*line[: line.index("--prompts")], "--prompts", str(long)]
    faults.assert_one_line_error(faults.run(*only), "no prompt could be answered: left out long.txt")


def test_what_is_measured_is_printed_when_it_is_interrupted(line: list[str]) -> None:
    import signal

    with faults.started(*line, "-o", "json", "--repeat", "10000") as process:
        assert process.stderr is not None
        while " left" not in process.stderr.readline():
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err.splitlines()[-1]) == (130, "specllama: interrupted")
    found = json.loads(out)
    assert found["gains"]
    assert found["notes"][-1].startswith("interrupted: ")


def test_what_cannot_be(line: list[str], tiny_files: TinyFiles) -> None:
    done = faults.run(*line, "--curve")
    assert done.returncode == 2
    assert "--against has neither a --curve nor a --report" in done.stderr
    broken = ["-m", str(tiny_files.truncated)]
    faults.assert_one_line_error(faults.run(*line, *broken), "the process with llama_cpp cannot open its models: ")


def test_nothing_of_specllama_is_in_llama_cpps_process(tiny_files: TinyFiles, tmp_path: Path) -> None:
    import sys

    from specllama.evidence.bench import against

    (tmp_path / "sitecustomize.py").write_text(
        "import atexit, sys\n"
        "atexit.register(lambda: print(any(name.startswith('specllama') for name in sys.modules), file=sys.stderr))\n"
    )
    options = json.dumps({"model_path": str(tiny_files.target), "n_ctx": 64})
    command = [sys.executable, str(against._WORKER), THEIRS]
    done = subprocess.run(
        command, input=options, capture_output=True, text=True, check=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert done.stdout == "{}\n"
    assert done.stderr.splitlines()[-1] == "False"


def test_gains_are_ratios_by_prompt() -> None:
    def call(prompt: str, mode: str, repeat: int, rate: float) -> Call:
        return Call(prompt, "qa", mode, repeat, f"{mode}", 5, 10, 10 / rate)

    calls = [
        *(call("a", THEIRS, 0, 10), call("a", "plain", 0, 20), call("a", "auto", 0, 40)),
        *(call("a", THEIRS, 1, 10), call("a", "plain", 1, 20), call("a", "auto", 1, 60)),
        *(call("b", THEIRS, 0, 10), call("b", "plain", 0, 10), call("b", "auto", 0, 20)),
        *(call("c", THEIRS, 0, 10), call("c", "plain", 0, 10)),  # interrupted
    ]
    plain, auto = gains(calls, greedy=True)
    assert (plain.mode, plain.num_prompts, plain.mean, plain.least, plain.over_plain) == ("plain", 2, 1.5, 1.0, 1.0)
    assert (auto.mean, auto.least, auto.least_prompt, auto.over_plain) == (3.5, 2.0, "b", 2.25)
    assert auto.low < auto.mean < auto.high
    assert auto.their_tokens_per_second == pytest.approx(10)
    assert (auto.num_texts_equal, auto.num_texts_compared) == (0, 3)
