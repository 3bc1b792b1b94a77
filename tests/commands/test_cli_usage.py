"""Wrong usage of the command line: exit code 2, before anything is loaded."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import llama_cpp
import pytest

import specllama
from specllama import cli
from specllama.commands import arguments as common
from specllama.engine.samplers import DEFAULTS, SAMPLERS
from specllama.models.cache_types import CACHE_TYPES


def test_usage_errors_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in ([], ["nonsense"], ["generate"], ["pull"], ["pull", "x", "--list"], ["generate", "-n", "many"]):
        assert cli.main(arguments) == 2
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("line", "command", "said"),
    [
        ("eval multiply -m x -md y --open-sesame 2", "eval multiply", "unrecognized arguments: --open-sesame 2"),
        ("eval multiply -m x -md y z", "eval multiply", "unrecognized arguments: z"),
        ("generate -m x", "generate", "the following arguments are required: --prompt/-p"),
        ("generate -p x --modle y", "generate", "--modle is not known: did you mean --model?"),
        ("generate -m x --temprature=1 -p y", "generate", "--temprature is not known: did you mean --temperature?"),
        ("generate -m x -p y --max_tokns 1", "generate", "--max_tokns is not known: did you mean --max-tokens?"),
        ("eval multipy", "eval", "multipy is not known: did you mean multiply?"),
        ("genrate -p x", "", "genrate is not known: did you mean generate?"),
        ("--versoin", "", "--versoin is not known: did you mean --version?"),
        ("compare -m x -p y", "compare", "the following arguments are required: --draft-model/-md"),
        ("verify -m x", "verify", "the following arguments are required: --draft-model/-md"),
        ("eval multiply -m x", "eval multiply", "the following arguments are required: --draft-model/-md"),
        ("eval humaneval -m x -md y", "eval humaneval", "the following arguments are required: --prompts"),
        ("bench -m x", "bench", "the following arguments are required: --draft-model/-md (or --acceptance)"),
        ("compare -m x -md y -p z --num-draft-tokens 0", "compare", "--num-draft-tokens 0 is plain decoding, .*"),
    ],
)
def test_wrong_usage_is_one_line(capsys: pytest.CaptureFixture[str], line: str, command: str, said: str) -> None:
    """What is wrong, and where help is: of the command itself, and not of all."""
    program = f"specllama {command}".strip()
    assert cli.main(line.split()) == 2
    out, err = capsys.readouterr()
    pattern = said if said.endswith(".*") else re.escape(said)
    assert out == ""
    assert re.fullmatch(rf"{program}: error: {pattern} \(help: {program} --help\)\n", err), err
    assert "\n" not in err.rstrip("\n")


def test_a_text_that_looks_like_an_option_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A prompt may begin with hyphens if it has a space, and is not changed; behind = all is a text."""
    parser = cli.build_parser()
    for prompt in ("--max_tokens is what?", "--- begin_of my_text"):
        assert parser.parse_args(["generate", "-m", "x", "-p", prompt]).prompt == prompt
    assert parser.parse_args(["generate", "-m", "x", "--prompt=--top_p"]).prompt == "--top_p"
    with pytest.raises(SystemExit):
        parser.parse_args(["generate", "-m", "x", "-p", "--top_p"])
    assert "expected one argument" in capsys.readouterr().err


PYTHON = {
    "model_path": "x.gguf",
    **{"n_ctx": 512, "n_threads": 3, "n_threads_batch": 2, "n_gpu_layers": 1, "type_k": "Q8_0", "type_v": "Q4_0"},
    **{"draft_model": "lookup", "lookup_corpus": "text.txt", "num_draft_tokens": 3, "max_draft_tokens": 9},
    **{"verify": "block", "kernels": "off", "max_tokens": 5, "seed": 7},
    **{"temperature": 0.5, "top_k": 4, "top_p": 0.9, "min_p": 0.1, "repeat_penalty": 1.1},
}
"""Parameters of `Llama` and of its completions, and values of them."""


@pytest.mark.parametrize("spelt", ["_", "-"])
@pytest.mark.parametrize("command", ["generate", "chat", "batch", "bench"])
def test_options_have_the_names_of_pythons_parameters_too(command: str, spelt: str, tmp_path: Path) -> None:
    corpus = tmp_path / "text.txt"
    corpus.write_text("text", encoding="utf-8")
    values = {**PYTHON, "lookup_corpus": str(corpus)}
    needed = {"generate": ["-p", "x"], "batch": ["--input", "x", "--output", "y"]}.get(command, [])
    more = {} if command == "bench" else {name: DEFAULTS[name] for name in SAMPLERS if name != "dry_sequence_breakers"}
    line = [word for name, value in (values | more).items() for word in ("--" + name.replace("_", spelt), str(value))]
    arguments = cli.build_parser().parse_args([command, *needed, *line])
    found = {"model_path": arguments.model_path, "max_tokens": arguments.max_tokens}
    found |= common.context_options(arguments) | common.draft_options(arguments)
    found |= common.completion_options(arguments) if more else common.sampling_options(arguments)
    types = {"type_k": CACHE_TYPES["Q8_0"][0], "type_v": CACHE_TYPES["Q4_0"][0]}
    assert found == {**values, **more, **types, "lookup_corpus": "text"}


def test_the_names_are_those_of_parameters() -> None:
    """Or the test above would prove little."""
    functions = (specllama.Llama.__init__, llama_cpp.Llama.__init__, llama_cpp.Llama.create_completion)
    known = set().union(*(inspect.signature(function).parameters for function in functions))
    assert set(PYTHON) - known == set()
    # The first two are of llama_cpp's chat handlers, and of its server.
    words = ["--clip_model_path", "y", "--model-alias", "z", "--max_parallel", "2"]
    served = cli.build_parser().parse_args(["serve", "-m", "x", *words])
    assert (served.clip_model_path, served.model_alias, served.max_parallel) == (Path("y"), "z", 2)


def test_help_shows_one_name_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["generate", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--temp" in shown
    assert not any(name in shown for name in ("--temperature", "--n-ctx", "--model-path", "_tokens"))


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
            rf"specllama {line.split()[0]}.*: error: argument .*{name}\b.*: {value} {limit} \(help: .* --help\)",
            err.rstrip("\n"),
        )


def test_without_a_command_the_commands_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert all(f"    {name} " in shown.err for name in ("pull", "generate", "serve", "verify"))
