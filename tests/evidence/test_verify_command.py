"""`specllama verify`, end to end on tiny models."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specllama import cli
from specllama.evidence.verify import texts, verification

if TYPE_CHECKING:
    from conftest import TinyFiles

Verify = Callable[..., int]


@pytest.fixture
def verify(tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Verify:
    """Runs the command on the tiny target with few samples of short texts; returns the exit code."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    prompts = tmp_path / "prompts.jsonl"
    lines = [{"id": "cat", "prompt": "the cat sat on"}, {"id": "fox", "prompt": "a fox is in the"}]
    prompts.write_text("\n".join([*map(json.dumps, lines), "{not json"]), encoding="utf-8")

    def run(*arguments: str, draft: str = "good", target: str = "target") -> int:
        models = ["-m", str(getattr(tiny_files, target)), "-md", str(getattr(tiny_files, draft, draft))]
        quick = ["--samples", "120", "-n", "24", "--num-contexts", "1", "-t", "1", "-c", "512"]
        return cli.main(["verify", *models, *quick, "--prompts", str(prompts), *arguments])

    return run


@pytest.mark.sampled(1)
@pytest.mark.parametrize("draft", ["good", "bad", "adversarial"])
def test_passes(verify: Verify, capsys: pytest.CaptureFixture[str], draft: str) -> None:
    assert verify(draft=draft) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[-1] == (
        "PASSED: 6 texts with the draft equal those without it, 2 sets of samples and the tokens of 2 texts a rule "
        "agree with the target's probabilities"
    )
    assert "target target.gguf (1/1 threads)" in lines[0]
    assert f"draft {draft}.gguf" in lines[0]
    assert sum(line.startswith(("| cat", "| fox")) for line in lines) == 6 + 2
    assert "FAILED" not in out
    assert "errors that move less than about 0." in out
    assert "texts of prompt 1/2; about" in err
    assert "texts sampled under block; about 0 s left" in err
    assert "skipped" in err
    assert "about 0 s left" not in out


def test_json(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", "--verify", "block", "--temp", "1.1", "--top-k", "6", "--seed", "9") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is True
    assert result["problems"] == []
    assert {(text["prompt_id"], text["mode"], text["seed"]) for text in result["texts"]} == {
        (prompt, mode, seed)
        for prompt in ("cat", "fox")
        for mode, seed in (("greedy", None), ("coupled", 9), ("coupled", 10))
    }
    (test,) = result["sampling"]
    assert test["rule"] == "block"
    assert test["num_samples"] == 120
    assert test["stats"]["num_accepted_tokens"] > 0
    assert result["settings"]["sampling"]["top_k"] == 6
    assert result["settings"]["sampling"]["temperature"] == 1.1
    assert result["settings"]["num_draft_tokens"] == "auto"
    (tokens,) = result["tokens"]
    assert tokens["passed"] is True
    assert tokens["num_tokens"] > 24
    assert result["machine"]["target"]["file"] == "target.gguf"


@pytest.mark.long
def test_a_failure_is_named_and_exits_with_1(
    verify: Verify, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both texts of a comparison have another seed."""
    answer = texts.answer

    def with_another_seed(*arguments: Any, seed: int, num_draft_tokens: Any, **options: Any) -> Any:
        return answer(*arguments, seed=seed + (num_draft_tokens != 0), num_draft_tokens=num_draft_tokens, **options)

    monkeypatch.setattr(texts, "answer", with_another_seed)
    fixed = ("--num-draft-tokens", "4")  # auto may know by now that a tiny draft does not pay
    assert verify(*fixed) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "FAILED: 4 problems, see above"
    assert "- FAILED: coupled text of fox with seed 2: token 0 is another one, and rounding does not explain it" in out
    assert out.count("NOT a near-tie") == 4
    assert verify("--json", *fixed) == 1
    result = json.loads(capsys.readouterr().out)
    assert result["passed"] is False
    assert len(result["problems"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--temp", "0"], "temperature=0 leaves nothing to sample"),
        (["--num-draft-tokens", "0"], "--num-draft-tokens 0 is plain decoding"),
        (["--seed", "-1"], "seed=-1 means a random one"),
        (["-n", "500"], "some prompts do not fit into n_ctx=512: cat ("),
        (["--prompts", "no such file.txt"], "cannot read prompts from no such file.txt"),
    ],
)
def test_what_cannot_be_told_exits_with_2(
    verify: Verify, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert verify(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err


def test_a_part_that_could_not_be_told_exits_with_2(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--samples", "1", "--verify", "block") == 2
    out = capsys.readouterr().out
    assert "FAILED" not in out
    assert "| NOT TOLD |" in out
    assert "under block: no outcome is likely enough to be counted apart" in out
    assert out.splitlines()[-1] == "NOT TOLD: 1 part, see above; all others hold"
    assert verify("--json", "--samples", "1", "--verify", "block") == 2
    result = json.loads(capsys.readouterr().out)
    assert (result["passed"], result["problems"], len(result["untested"])) == (False, [], 1)
    (test,) = result["sampling"]
    assert (test["passed"], test["untested"]) == (False, result["untested"])


def test_samples_are_drawn_where_lookup_drafts(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    """At most places it drafts nothing, and the most open place is seldom one at which it does."""
    assert verify("--json", draft="lookup") == 0
    result = json.loads(capsys.readouterr().out)
    assert all(test["stats"]["num_drafts"] > 0 for test in result["sampling"])


@pytest.mark.parametrize(("seed", "second"), [(-3, -2), (-2, 0), (2**32 - 2, 2**32)])
def test_the_second_seed_is_none_that_means_a_random_one(
    verify: Verify, capsys: pytest.CaptureFixture[str], seed: int, second: int
) -> None:
    assert verify("--json", "--seed", str(seed), "--samples", "20", "--verify", "coupled") in (0, 2)
    assert json.loads(capsys.readouterr().out)["settings"]["seeds"] == [seed, second]


@pytest.mark.usefixtures("early_release")
@pytest.mark.filterwarnings("default::specllama.FallbackWarning")
def test_a_draft_that_cannot_be_used_is_an_error(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(target="recurrent", draft="recurrent_draft") == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "error: there is nothing to verify: the target's memory is recurrent" in err


def test_ctrl_c_before_anything_is_found(
    verify: Verify, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verification, "compare", interrupt)
    assert verify() == 130
    out, err = capsys.readouterr()
    assert out == ""
    assert "interrupted" in err


@pytest.mark.long
@pytest.mark.parametrize(
    ("place", "found"),
    [
        (("compare", 5), (4, 0, 0)),
        (("check_pairs", 2), (6, 1, 0)),
        (("check_tokens", 2), (6, 2, 1)),
    ],
)
def test_ctrl_c_prints_what_holds_so_far(
    verify: Verify,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[str, int],
    found: tuple[int, int, int],
) -> None:
    name, number = place
    function, calls = getattr(verification, name), []

    def interrupt(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    monkeypatch.setattr(verification, name, interrupt)
    assert verify("--json") == 130
    result = json.loads(capsys.readouterr().out)
    assert tuple(len(result[part]) for part in ("texts", "sampling", "tokens")) == found
    assert (result["passed"], result["settings"]["interrupted"], result["problems"]) == (False, True, [])
    calls.clear()
    assert verify() == 130
    out, err = capsys.readouterr()
    assert out.splitlines()[-1] == (
        "INTERRUPTED: texts so far {}, sets of samples {}, rules with whole texts {}; all of these hold, and the rest "
        "was not looked at".format(*found)
    )
    assert sum(line.startswith(("| cat", "| fox")) for line in out.splitlines()) == found[0] + found[1]
    assert err.splitlines()[-1] == "specllama: interrupted"


def test_prompts_of_the_command_line(verify: Verify, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify("--json", "-p", "the dog", "-p", "a fox on the", "--num-prompts", "9") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["settings"]["prompts"] == ["prompt-1", "prompt-2", "cat", "fox"]


@pytest.mark.long
def test_the_prompts_that_come_with_the_package(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """In a process of its own, whose output is a pipe."""
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good)]
    quick = ["--samples", "100", "-n", "12", "-t", "1", "-c", "2048", "--num-prompts", "3"]
    command = [sys.executable, "-m", "specllama.cli", "verify", *models, *quick]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-1].startswith("PASSED: 9 texts")
    assert max(map(len, lines)) < 160
