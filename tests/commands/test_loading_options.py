"""What all commands hand to Llama alike: the threads, a text to look up, and how much is drafted at most."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from needed import imported

import specllama
from specllama import cli

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

LINES = {
    "batch": "batch -m x -md y --input prompts.jsonl --output answers.jsonl",
    "generate": "generate -m x -p y",
    "chat": "chat -m x",
    "serve": "serve -m x --port 0",
    "compare": "compare -m x -md y -p z",
    "tune": "tune -m x",
    "bench": "bench -m x -md y",
    "eval": "eval multiply -m x -md y",
    "verify": "verify -m x -md y",
}


class Loaded(Exception):
    """Ends a command in the place of a model."""


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """The arguments of the last Llama, on a machine that 5 threads suit."""
    options: dict[str, Any] = {}

    def llama(path: str, **kwargs: Any) -> None:
        options.clear()
        options.update(kwargs)
        raise Loaded

    (tmp_path / "prompts.jsonl").write_text('{"prompt": "a"}\n', encoding="utf-8")
    monkeypatch.chdir(tmp_path)  # of the files that a batch names
    monkeypatch.setitem(vars(specllama), "Llama", llama)
    monkeypatch.setattr("specllama.backend.cpu.default_threads", lambda: 5)
    return options


def test_every_command_that_loads_a_model_is_looked_at() -> None:
    (commands,) = (
        action.choices for action in cli.build_parser()._actions if isinstance(action, argparse._SubParsersAction)
    )
    loading = [name for name, parser in commands.items() if "--model" in _options(parser)]
    assert set(loading) == set(LINES)


def _options(parser: argparse.ArgumentParser) -> set[str]:
    found = set(parser._option_string_actions)
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found = found.union(*map(_options, action.choices.values()))
    return found


def run(command: str, *options: str) -> int:
    if command == "serve":
        imported("fastapi")
    return cli.main([*LINES[command].split(), *options])


@pytest.mark.parametrize("command", LINES)
def test_threads(given: dict[str, Any], command: str) -> None:
    """The same for one token and for several, and those of `tune`, whose costs are good for no others."""
    for options, threads in (([], (5, 5)), (["-t", "3"], (3, 3)), (["-t", "3", "-tb", "2"], (3, 2))):
        assert run(command, *options) != 0
        assert (given["n_threads"], given["n_threads_batch"]) == threads


@pytest.mark.parametrize("command", LINES)
def test_types_of_the_cache(given: dict[str, Any], command: str) -> None:
    assert run(command, "-ctk", "q8_0", "--cache-type-v", "Q4_0") != 0
    assert (given["type_k"], given["type_v"]) == (llama_cpp.GGML_TYPE_Q8_0, llama_cpp.GGML_TYPE_Q4_0)
    given.clear()
    assert run(command) != 0
    assert "type_k" not in given


@pytest.mark.parametrize("command", ["batch", "generate", "chat", "serve"])
def test_earlier_texts(given: dict[str, Any], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(command) != 0
    assert given.get("cache_ram", 0) == (1024 if command == "serve" else 0)
    assert given.keys().isdisjoint({"cache_dir", "cache_disk"})
    kept = str(tmp_path / "kept")
    assert run(command, "-cram", "-1", "--cache-dir", kept, "--cache_disk", "0.5") != 0
    assert (given["cache_ram"], given["cache_dir"], given["cache_disk"]) == (-1, kept, 0.5)
    capsys.readouterr()
    file = tmp_path / "prompts.jsonl"
    for options, said in (
        (["--cache-ram", "-2"], "-cram: -2 is too small: give at least -1"),
        (["--cache-dir", str(file)], f"--cache-dir: cache_dir='{file}' is no folder: give one for earlier texts"),
        (["--cache-disk", "0"], "--cache-disk: cache_disk=0.0 must be above 0 and at most 1000000"),
        (["--cache-disk", "nan"], "--cache-disk: cache_disk=nan must be above 0"),
        (["--cache-disk", "2"], "--cache-disk is the limit of a folder: give --cache-dir, too, or leave it out"),
        (["--cache-disk", "much"], "--cache-disk: invalid float value: 'much'"),
    ):
        assert run(command, *options) == 2
        assert said in capsys.readouterr().err


def test_threads_of_the_plugin_for_llm(given: dict[str, Any]) -> None:
    imported("llm")
    from specllama.llm_plugin import _opened

    for threads, expected in ((None, 5), (3, 3)):
        with pytest.raises(Loaded):
            _opened("x", n_threads=threads)
        assert (given["n_threads"], given["n_threads_batch"]) == (expected, expected)


@pytest.mark.parametrize("command", [name for name in LINES if name != "tune"])
def test_a_corpus(given: dict[str, Any], command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus"
    options = ["--lookup-corpus", str(corpus)]
    assert run(command, *options) != 0
    assert f"cannot read a lookup corpus from {corpus}: " in capsys.readouterr().err
    corpus.write_bytes(b"a c\xe4t")
    assert run(command, *options) != 0
    assert "byte 3 is not UTF-8; save the file as UTF-8 text" in capsys.readouterr().err
    assert not given
    corpus.write_text("a cät", encoding="utf-8")
    run(command, *options)
    assert given["lookup_corpus"] == "a cät"


@pytest.mark.parametrize("command", LINES)
def test_the_most_draft_tokens(given: dict[str, Any], command: str) -> None:
    run(command, "--max-draft-tokens", "9")
    assert given["max_draft_tokens"] == 9


def test_a_corpus_is_looked_up(
    tiny_files: TinyFiles, make_llama: MakeLlama, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer itself, of which nearly all is accepted then."""
    prompt: dict[str, Any] = {"max_tokens": 60, "temperature": 0.0}
    answer = make_llama().create_completion("the dog", **prompt)["choices"][0]["text"]
    corpus = tmp_path / "corpus"
    corpus.write_text(answer, encoding="utf-8", newline="")
    line = ["generate", "-m", str(tiny_files.target), "-md", "lookup", "-t", "1", "-c", "512", "--json"]
    line += ["-p", "the dog", "-n", "60", "--temp", "0", "--num-draft-tokens", "6"]
    accepted = []
    for options in ([], ["--lookup-corpus", str(corpus)]):
        assert cli.main([*line, *options]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["text"] == answer
        accepted.append(found["stats"]["num_accepted_tokens"])
    assert accepted[0] < accepted[1]


def test_a_corpus_without_a_draft(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus"
    corpus.write_text("a cat", encoding="utf-8")
    line = ["generate", "-m", str(tiny_files.target), "-p", "x", "--lookup-corpus", str(corpus)]
    assert cli.main(line) == 1
    assert "lookup_corpus is for a draft model or draft_model='lookup'" in capsys.readouterr().err
