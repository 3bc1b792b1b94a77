"""What README and docs/ say can be done: their Python runs, their commands parse, their lists are complete."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import importlib
import itertools
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pages
import pytest
from conftest import MakeLlama, TinyFiles
from needed import imported

import specllama
from specllama.cli import build_parser
from specllama.commands.parser import Parser
from specllama.engine.samplers import SAMPLERS

RUN_ELSEWHERE = {
    "other-packages.md": "tests/drop_in/test_clients.py runs its blocks, each where its package is installed",
    "past-one-machine.md": "tests/many/test_ray.py runs them on a Ray cluster",
}
"""Pages whose Python is not run here, and why."""
README_BYTES = 10_000
SERVER = "http://127.0.0.1:8000"
FOREIGN = {"cd", "curl", "export", "gunzip", "llm", "open-webui", "source"}
"""Commands in the pages that are not ours to check."""
FOREIGN_OPTIONS = {"--schema"}
"""Options of theirs."""


def _pages_with_python() -> list[Path]:
    return sorted({block.page for block in pages.blocks_in("python") if block.page.name not in RUN_ELSEWHERE})


@pytest.fixture
def reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_files: TinyFiles) -> Iterator[dict[str, Any]]:
    """The names that a reader has made, in a folder with target.gguf (which ends its texts soon) and draft.gguf."""
    shutil.copy(tiny_files.eos_happy, tmp_path / "target.gguf")
    shutil.copy(tiny_files.good, tmp_path / "draft.gguf")
    for name, path in {"model": tiny_files.deep, "head": tiny_files.deep_head, "with-mtp": tiny_files.mtp}.items():
        shutil.copy(path, tmp_path / f"{name}.gguf")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.cpu_count", lambda: 1)  # what more threads do for a tiny model is wait for each other
    names: dict[str, Any] = {}
    yield names
    for value in names.values():
        if isinstance(value, specllama.Llama):
            value.close()


@pytest.mark.parametrize("page", _pages_with_python(), ids=lambda page: page.name)
def test_the_python_of_a_page_runs_from_top_to_bottom(
    page: Path, reader: dict[str, Any], make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    ran = 0
    with contextlib.ExitStack() as stack:
        for block in pages.blocks(page):
            if block.language != "python":
                continue
            code = block.code
            if SERVER in code:
                imported("openai")
                imported("fastapi")
                from served import serving

                served = stack.enter_context(serving(make_llama(tiny_files.eos_happy, tiny_files.good)))
                code = code.replace(SERVER, served.url)
            compiled = compile("\n" * (block.line - 1) + code, str(page), "exec")
            exec(compiled, reader)
            ran += 1
    assert ran > 0


@pytest.mark.parametrize("block", pages.blocks_in("sh"), ids=str)
def test_the_commands_of_a_page_exist(block: pages.Block) -> None:
    lines = block.code.replace("\\\n", " ").splitlines()
    commands = [words for line in lines for words in _commands(shlex.split(line, comments=True))]
    assert commands
    for name, *words in commands:
        if name == "specllama":
            build_parser().parse_args(words)  # ends the test if it cannot
        elif name == "make":
            targets = re.findall(r"^([a-z-]+):", (pages.ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
            assert {word for word in words if "=" not in word} <= set(targets)
        elif name == "pip":
            _check_extras(" ".join(words))
        elif name in ("python", "bash"):
            assert (pages.ROOT / words[0]).is_file(), f"{block}: {words[0]}"
        else:
            assert name in FOREIGN, f"{block}: {name}"


def _commands(words: list[str]) -> Iterator[list[str]]:
    """The commands of a line, without the files they read or write and without variables that are set before them."""
    rest = [*words, "|"]
    while rest:
        end = rest.index("|")
        command = list(itertools.takewhile(lambda word: word not in ("<", ">"), rest[:end]))
        while command and re.fullmatch(r"[A-Z_]+=.*", command[0]):
            command = command[1:]
        if command:
            yield command
        rest = rest[end + 1 :]


def _check_extras(text: str) -> None:
    project = (pages.ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for extra in re.findall(r"(?:specllama|\.)\[(\w[\w,-]*)\]", text):
        for name in extra.split(","):
            assert re.search(rf"^{name} = \[", project, re.M), name


def _options(parser: Parser) -> set[str]:
    found = set(parser.names())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= {option for one in action.choices.values() for option in _options(one)}
    return found


@pytest.mark.parametrize("page", pages.PAGES, ids=lambda page: page.name)
def test_options_and_variables_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {name.replace("_", "-") for name in re.findall(r"`(--[a-z][a-z_-]*)", text)}
    assert named - FOREIGN_OPTIONS - _options(build_parser()) == set()
    sources = "".join(path.read_text(encoding="utf-8") for path in pages.ROOT.glob("specllama/**/*.py"))
    assert all(variable in sources for variable in re.findall(r"\bSPECLLAMA_[A-Z_]+", text))


def test_readme_is_short() -> None:
    assert len(pages.README.read_bytes()) <= README_BYTES, "README.md is for newcomers: put the rest into docs/"


@pytest.mark.parametrize("page", [pages.README, pages.ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_every_statistic_is_explained() -> None:
    text = (pages.ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    names = [*(field.name for field in dataclasses.fields(specllama.Stats)), "acceptance_rate_per_pos"]
    assert [name for name in names if f"`{name}`" not in text] == []


def test_the_reference_has_everything_public() -> None:
    imported("fastapi")
    text = (pages.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    public = {f"specllama.{name}" for name in specllama.__all__} - {"specllama.__version__"}
    for module in (*(f"evidence.{name}" for name in specllama._EVIDENCE), "prompts", "server"):
        names = getattr(importlib.import_module(f"specllama.{module}"), "__all__", ["run"])
        public |= {f"specllama.{module}.{name}" for name in names}
    public |= {"specllama.engine.samplers.Samplers"}  # which Llama's documentation points to
    assert public - set(re.findall(r"^::: (\S+)", text, re.M)) == set()


def test_the_reference_has_every_option_of_a_call() -> None:
    text = (pages.ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in ("num_draft_tokens", "verify", *SAMPLERS) if f"`{name}`" not in text] == []
