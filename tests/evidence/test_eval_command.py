"""`specllama eval`: what it prints and refuses, and what is left when it is interrupted."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specllama import _core, cli
from specllama.evidence.answer import answer

if TYPE_CHECKING:
    from conftest import TinyFiles

TASK = {
    "task_id": "Test/0",
    "prompt": "def one():\n",
    "entry_point": "one",
    "test": "def check(candidate):\n    assert candidate() == 1\n",
}


@pytest.fixture
def models(tiny_files: TinyFiles) -> list[str]:
    return ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "512"]


@pytest.fixture
def tasks(tmp_path: Path) -> str:
    path = tmp_path / "tasks.jsonl"
    lines = [json.dumps({**TASK, "task_id": f"Test/{n}"}) for n in range(3)]
    path.write_text("\n".join([*lines, "{broken"]))
    return str(path)


def stop_at(number: int, error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the answer of that number, counted from 1 with the two of the warm-up, raise an error."""
    calls: list[None] = []

    def stopped(*args: Any, **options: Any) -> Any:
        calls.append(None)
        if len(calls) == number:
            raise error
        return answer(*args, **options)

    monkeypatch.setattr("specllama.evidence.eval.evaluation.answer", stopped)


def test_multiply(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", "multiply", *models, "--count", "10", "-n", "12", "--top-k", "5"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(
        "multiply: 10 questions, temperature 1.0, top_k 5, seed 0, up to 12 tokens; drafted a round: auto, rule"
    )
    rows = {line.split()[1]: line for line in out.splitlines() if line.startswith("| ")}
    assert set(rows) == {"|", "plain", "speculative", "-----------"}
    assert "0.0% [0.0, 27.8]" in rows["plain"]
    assert "%" in rows["speculative"].split("|")[-3]
    assert "Speculative minus plain: +0.0 points, 95% interval [-27.8, +27.8]." in out
    assert "do not differ at the 5% level: of 10 questions" in out
    assert "10/10 right: 0 plain, 0 speculative; about 0 s left" in err
    assert len(err.splitlines()) == 10


def test_multiply_json(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", "multiply", *models, "--count", "4", "-n", "6", "--json", "--digits", "3x1", "--seed", "9"]
    assert cli.main([*line, "--verify", "rejection", "--temp", "0.7", "--num-draft-tokens", "2"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found) == {"name", "comparison", "stats", "outcomes", "notes", "machine", "settings", "records"}
    assert found["settings"] == {
        "num_questions": 4,
        "seed": 9,
        "max_tokens": 6,
        "temperature": 0.7,
        "num_draft_tokens": 2,
        "verify": "rejection",
        "interrupted": False,
    }
    assert [question["category"] for question in found["records"]] == ["3x1"] * 4
    first = found["records"][0]
    a, b = map(int, first["id"].split("*"))
    assert first["expected"] == a * b
    assert first["question"] == f"What is {a} * {b}? Answer with the number only."
    assert first["speculative"]["stats"]["verify"] == "rejection"
    assert first["plain"]["stats"]["num_drafts"] == 0
    assert {"text", "finish_reason", "seed", "grade", "stats"} == set(first["plain"])
    assert found["comparison"]["num_questions"] == 4
    assert found["machine"]["target"]["n_threads"] == found["machine"]["target"]["n_threads_batch"] == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of POSIX")
def test_humaneval(models: list[str], tasks: str, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["eval", "humaneval", *models, "--prompts", tasks, "--limit", "2", "-n", "8"]
    assert cli.main([*line, "--allow-code-execution", "--time-limit", "5", "--memory-limit", "512"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("humaneval: 2 questions, temperature 0.2, seed 0, up to 8 tokens")
    assert "pass@1 [95%]" in out
    assert "2 error" in out
    assert "2 are too few to show any difference" in out
    assert f"skipped {tasks}:4: not JSON" in err


def test_humaneval_is_refused_unless_allowed(tasks: str, capsys: pytest.CaptureFixture[str]) -> None:
    # Before anything else: the models do not even exist.
    assert cli.main(["eval", "humaneval", "-m", "absent.gguf", "-md", "absent.gguf", "--prompts", tasks]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "executes code that a model wrote" in err
    assert "your rights" in err
    assert "network" in err
    assert "--allow-code-execution" in err


def test_humaneval_is_refused_without_limits(
    tasks: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    line = ["eval", "humaneval", "-m", "absent.gguf", "-md", "absent.gguf", "--prompts", tasks]
    assert cli.main([*line, "--allow-code-execution"]) == 1
    assert "no code is executed: use Linux or macOS" in capsys.readouterr().err


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(
    ("answers", "error", "code", "done"),
    [
        (6, KeyboardInterrupt(), cli.INTERRUPTED, 2),  # the sixth answer belongs to the third question
        (3, _core.DecodeError("llama_decode returned -3"), 1, 1),
        (-1, KeyboardInterrupt(), cli.INTERRUPTED, 0),
    ],
)
def test_what_is_there_is_printed(
    models: list[str],
    as_json: bool,
    answers: int,
    error: BaseException,
    code: int,
    done: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    stop_at(2 + answers, error, monkeypatch)
    options = ["--count", "9", "-n", "4", *(["--json"] if as_json else [])]
    assert cli.main(["eval", "multiply", *models, *options]) == code
    out, err = capsys.readouterr()
    assert err.endswith("specllama: interrupted\n" if code != 1 else f"specllama: error: {error}\n")
    if done == 0:
        assert out == ""
    elif as_json:
        found = json.loads(out)
        assert found["settings"]["interrupted"] is True
        assert len(found["records"]) == done
    else:
        assert f"multiply: {done} questions" in out
        assert f"Interrupted: {done} of 9 questions are done." in out


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        (["multiply", "-m", "a", "-md", "b", "--count", "5000"], 2, "there are 4815"),
        (["multiply", "-m", "a", "-md", "b", "--digits", "2by1"], 2, "not a list of digits such as 2x1,2x2"),
        (["multiply", "-md", "b"], 2, "--model"),
        (["divide"], 2, "multiply"),
        ([], 2, "EXPERIMENT"),
    ],
)
def test_wrong_usage(options: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", *options]) == code
    assert message in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of POSIX")
def test_humaneval_errors_before_loading(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"prompt": "a message"}\n')
    line = ["eval", "humaneval", "-m", "a", "-md", "b", "--allow-code-execution", "--prompts", str(path)]
    assert cli.main(line) == 1
    assert "1 is no task of HumanEval" in capsys.readouterr().err
    assert cli.main([*line, "--time-limit", "0"]) == 1
    assert "seconds=0.0" in capsys.readouterr().err
    assert cli.main([*line[:-1], str(tmp_path / "absent.jsonl")]) == 1
    assert "absent.jsonl" in capsys.readouterr().err


def test_without_scipy_two_commands_say_what_to_install_before_they_load_anything() -> None:
    script = """
import sys
sys.modules["scipy"] = None
import specllama
from specllama.cli import main
assert specllama.bench.run and specllama.compare.run and specllama.tune.run
models = ["-m", "absent.gguf", "-md", "absent.gguf"]
assert main(["eval", "multiply", *models]) == 1
assert main(["verify", *models]) == 2
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    message = 'specllama: error: verify and eval need scipy: pip install "specllama[evidence]"\n'
    assert done.stderr == message * 2
