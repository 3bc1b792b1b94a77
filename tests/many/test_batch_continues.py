"""`specllama batch` ends in the middle: each line is answered once all the same."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from typing import Any

import faults
import pytest
from batches import MANY, Files

import specllama
from specllama import cli
from specllama.batch.answers import Answers

has_signals = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")


def test_it_goes_on_where_it_stopped(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["-n", "4", "--seed", "1"]
    files.write(*MANY[:9])
    assert cli.main([*files.line, *options]) == 0
    whole = files.target.read_bytes()
    lines = whole.splitlines(keepends=True)
    files.target.write_bytes(b"".join(lines[:4]) + lines[4][:17])
    files.write(*MANY[:9], "", {"prompt": "one more"})
    capsys.readouterr()
    assert cli.main([*files.line, *options]) == 0
    assert f"all 10 answers are in {files.target}\n" in capsys.readouterr().err
    assert files.target.read_bytes().startswith(b"".join(lines[:4]))
    found = files.by_index()
    assert sorted(found) == [*range(1, 10), 11]
    before = {(answer := json.loads(line))["index"]: answer for line in lines}
    assert all(found[number] == before[number] for number in before)

    assert cli.main([*files.line[:2], "no-such-model", *files.line[3:]]) == 0  # none is loaded
    assert capsys.readouterr().err == f"all 10 lines have their answers in {files.target}\n"


@pytest.mark.long
@has_signals
def test_killed_in_the_middle_again_and_again(files: Files, batch_llm: specllama.Llama) -> None:
    """Every line is answered once, and each answer is that of a run that nobody ended."""
    files.write(*MANY)
    options = ["-n", "48", "--temp", "0.8", "--seed", "2", "--quiet"]
    for share in (1, 2):
        before = files.num_whole()
        with faults.started(*files.line, *options) as process:
            while files.num_whole() < before + 10 * share:
                assert process.poll() is None, process.communicate()
                time.sleep(0.002)
            process.kill()
        assert process.returncode == -signal.SIGKILL
        assert before < files.num_whole() < len(MANY)
    done = faults.run(*files.line, *options)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    found = files.by_index()
    assert sorted(found) == list(range(1, len(MANY) + 1))
    for number in range(1, len(MANY) + 1, 11):
        alone = batch_llm.create_completion(**MANY[number - 1], max_tokens=48, temperature=0.8, seed=2)
        assert found[number]["text"] == alone["choices"][0]["text"]


def test_a_signal_between_an_answer_and_its_count(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the tokens of what is not answered yet are among those that it took the time for."""
    files.write(*MANY)
    add = Answers.add

    def interrupted(answers: Answers, answer: dict[str, Any]) -> None:
        add(answers, answer)
        if files.num_whole() == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Answers, "add", interrupted)
    assert cli.main([*files.line, "-n", "64", "--temp", "1"]) == 130
    said = capsys.readouterr().err
    assert f"3 of {len(MANY)} answers are in {files.target}: the same command goes on with the others" in said
    num_tokens = int(said.partition(" tokens in ")[0].split()[-1])
    assert num_tokens > 3 * 64


@pytest.mark.sampled(1)
@has_signals
@pytest.mark.parametrize(
    ("sent", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ended_by_a_signal(files: Files, sent: int, code: int, word: str) -> None:
    files.write(*MANY)
    with faults.started(*files.line, "-n", "64", "--temp", "1") as process:
        while files.num_whole() < 5:
            assert process.poll() is None, process.communicate()
            time.sleep(0.002)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    num_done = files.num_whole()
    assert (process.returncode, out) == (code, "")
    assert num_done < len(MANY)
    assert len(files.answers()) == num_done
    *others, before, last = err.splitlines()
    assert last == f"specllama: {word}"
    assert before == f"{num_done} of 120 answers are in {files.target}: the same command goes on with the others"
    assert any("tokens/s" in other for other in others)
    assert "Traceback" not in err
    assert faults.run(*files.line, "-n", "1", "--quiet").returncode == 0
    assert sorted(files.by_index()) == list(range(1, 121))


def test_two_at_once_are_refused(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(*MANY)
    with Answers(files.target):
        assert cli.main([*files.line]) == 1
    assert "another batch is writing to" in capsys.readouterr().err
    assert files.num_whole() == 0


def test_answers_to_another_input(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    files.write(*MANY[:3])
    assert cli.main([*files.line, "-n", "1"]) == 0
    files.write(*MANY[3:6])
    capsys.readouterr()
    assert cli.main([*files.line, "-n", "1"]) == 1
    assert "3 of 3 answers in the output, the first in its line 1, are to lines that" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.long
def test_a_full_disk(files: Files) -> None:
    files.write(*MANY)
    done = faults.run(
        *files.line, "-n", "2", under=faults.full_after(1 << 20), env={**os.environ, "SPECLLAMA_KERNELS": "off"}
    )
    assert done.returncode == 0, done.stderr
    size = files.target.stat().st_size
    files.target.unlink()
    done = faults.run(
        *files.line, "-n", "2", under=faults.full_after(size // 2), env={**os.environ, "SPECLLAMA_KERNELS": "off"}
    )
    faults.assert_one_line_error(done, "cannot write to", "answers.jsonl")
    assert 0 < files.num_whole() < len(MANY)
    assert len(files.answers()) == files.num_whole()
    assert faults.run(*files.line, "-n", "2").returncode == 0
    assert sorted(files.by_index()) == list(range(1, 121))
