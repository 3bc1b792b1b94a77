"""Wrong usage of the command line: exit code 2, before anything is loaded."""

from __future__ import annotations

import re

import pytest

from specllama import cli


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["generate"], ["pull"], ["pull", "x", "--list"], ["generate", "-n", "many"]):
        assert cli.main(arguments) == 2
    assert capsys.readouterr().out == ""


def test_an_option_that_a_command_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    """Its own usage is shown, and not that of all commands."""
    assert cli.main(["eval", "multiply", "-m", "x", "-md", "y", "--limit", "2"]) == 2
    said = capsys.readouterr().err
    assert "usage: specllama eval" in said
    assert "unrecognized arguments: --limit 2" in said


def test_a_draft_of_no_draft(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "-m", "x", "-p", "y", "-mdd", "lookup"]) == 2
    assert "--draft-of-draft (-mdd) is for a draft model: give one with --draft-model (-md)" in capsys.readouterr().err


NUMBERS = {
    "generate -m x -p y": "-n=0 -n=2147483648 -c=-1 -t=-3 -t=0 -t=5000000000 -ngl=-2 --top-k=-2 --num-draft-tokens=-1 "
    "-tb=0 --max-draft-tokens=0 --max-draft-tokens=513",
    "chat -m x": "-n=0 -t=0",
    "serve -m x": "--port=-1 --port=65536 --max-waiting=-1",
    "demo": "-n=0 -t=0 --num-draft-tokens=513",
    "compare -m x -md y -p z": "-n=0 -t=0 -tb=0",
    "tune -m x": "-t=0 -c=-4",
    "bench -m x -md y": "-n=0 --limit=0 --repeat=0",
    "eval multiply -m x -md y": "-n=0 --count=0",
    "eval humaneval -m x -md y --prompts z": "--limit=0 --memory-limit=0",
    "verify -m x -md y": "-n=1 --samples=0 --num-prompts=0 --num-contexts=0",
    "quantize x F16": "-t=-1 -t=513",
}


@pytest.mark.parametrize("line", NUMBERS)
def test_numbers_out_of_range_are_wrong_usage(capsys: pytest.CaptureFixture[str], line: str) -> None:
    """The message names the option, the value and the limit. Nothing is loaded before."""
    for option in NUMBERS[line].split():
        name, _, value = option.partition("=")
        assert cli.main([*line.split(), name, value]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        limit = r"is too (small: give at least|large: give at most) -?\d+"
        assert re.fullmatch(
            rf"specllama {line.split()[0]}.*: error: argument .*{name}\b.*: {value} {limit}", err.splitlines()[-1]
        )


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(f"    {name} " in shown.err for name in ("pull", "generate", "serve", "verify"))
