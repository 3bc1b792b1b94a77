"""Which type of a draft is the best: every draft has its turns, and what was made and is not wanted goes."""

from __future__ import annotations

import dataclasses
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import specllama
from specllama import cli
from specllama.evidence import draft_types
from specllama.models import quantize
from specllama.models.gguf_header import read_header
from specllama.prompts import Prompt

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPTS = [Prompt(name, "words", name) for name in ("the cat", "a dog sat", "no fox")]


def test_each_has_its_turns(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    drafts = {"bad": tiny_files.bad, "identical": tiny_files.identical}
    heard: list[tuple[str, int, int]] = []
    found = draft_types.compare_types(llm, drafts, PROMPTS, max_tokens=24, on_answer=lambda *one: heard.append(one))
    assert [name for name, _, _ in heard] == ["bad"] * 3 + ["identical"] * 6 + ["bad"] * 3
    assert [(done, total) for _, done, total in heard] == [(i, 12) for i in range(1, 13)]
    by_name = {one.name: one for one in found}
    assert (by_name["bad"].speedup, by_name["bad"].speedup_error) == (1.0, 0.0)
    assert by_name["identical"].acceptance_rate > by_name["bad"].acceptance_rate
    assert found == sorted(found, key=lambda one: -one.speedup)
    assert [by_name[name].size for name in drafts] == [path.stat().st_size for path in drafts.values()]
    assert llm.draft_model is None


def test_what_cannot_be_compared(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    for prompts, numbers, why in (
        ([], {}, "there are no prompts"),
        (PROMPTS, {"rounds": 0}, "rounds=0 is too small"),
        ([Prompt("long", "words", "the cat " * 500)], {}, "there is no prompt to measure"),
    ):
        with pytest.raises(ValueError, match=why):
            draft_types.compare_types(llm, {"good": tiny_files.good}, prompts, **numbers)
    with pytest.raises(ValueError, match="vocabular"):
        draft_types.compare_types(llm, {"other": tiny_files.letters}, PROMPTS)


def test_what_may_be_as_fast() -> None:
    types = [
        draft_types.DraftType("a", 1, 1.0, speedup, error, 0.5)
        for speedup, error in ((1.3, 0.03), (1.25, 0.04), (1.1, 0.01), (1.0, 0.0))
    ]
    types = [dataclasses.replace(one, name=name) for one, name in zip(types, "abcd", strict=True)]
    assert draft_types.within_error(types) == ["b"]
    assert draft_types.within_error(types[2:]) == []
    assert draft_types.within_error(types[:1]) == []


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.evidence.draft_types.CANDIDATES", ("Q8_0", "Q4_0"))


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("best", ["as it is", "Q4_0"])
@pytest.mark.parametrize("error", [0.0, 0.6])
def test_the_command_keeps_the_best(
    tiny_files: TinyFiles,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    best: str,
    error: float,
) -> None:
    def compared(
        llm: specllama.Llama, drafts: dict[str, Path], *_: object, **__: object
    ) -> list[draft_types.DraftType]:
        assert list(drafts) == ["as it is", "Q8_0", "Q4_0"]
        assert all(
            read_header(path).num_tensors == read_header(drafts["as it is"]).num_tensors for path in drafts.values()
        )
        types = [draft_types.DraftType(name, 1, 1.0, float(name == best), error, 0.5) for name in drafts]
        return sorted(types, key=lambda one: -one.speedup)

    monkeypatch.setattr(draft_types, "compare_types", compared)
    model = Path(shutil.copy(tiny_files.good, tmp_path / "draft.gguf"))
    line = ["quantize", str(model), "--as-draft", str(tiny_files.target), "-t", "1"]
    assert cli.main(line) == 0
    out, err = capsys.readouterr()
    kept = model if best == "as it is" else tmp_path / "draft-q4_0.gguf"
    assert out == f"{kept}\n"
    assert "against the file as it is" in err
    assert (f"{best} was the fastest, but " in err) == (error > 0)
    assert sorted(tmp_path.iterdir()) == sorted({model, kept})
    if kept != model:
        assert cli.main(line) == 1
        assert f"{kept} exists" in capsys.readouterr().err


@pytest.mark.usefixtures("few")
def test_the_file_itself_is_never_replaced(
    tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the catalog lies where its own type would be written."""
    model = Path(shutil.copy(tiny_files.good, tmp_path / "draft.gguf"))
    tried: list[str] = []

    def compared(
        llm: specllama.Llama, drafts: dict[str, Path], *_: object, **__: object
    ) -> list[draft_types.DraftType]:
        tried.extend(drafts)
        return [draft_types.DraftType(name, 1, 1.0, 1.0, 0.0, 0.5) for name in reversed(drafts)]

    monkeypatch.setattr(draft_types, "compare_types", compared)
    monkeypatch.setattr(
        quantize, "default_output", lambda model, name: Path(model) if name == "Q4_0" else tmp_path / f"{name}.gguf"
    )
    before = model.read_bytes()
    assert cli.main(["quantize", str(model), "--as-draft", str(tiny_files.target), "-t", "1"]) == 0
    assert tried == ["as it is", "Q8_0"]
    assert model.read_bytes() == before


def test_the_command_looks_before_the_work(
    tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantize, "quantize", lambda *_, **__: pytest.fail("a type was made"))
    model = Path(shutil.copy(tiny_files.good, tmp_path / "draft.gguf"))
    target = Path(shutil.copy(tiny_files.target, tmp_path / "target.gguf"))
    before = model.read_bytes(), target.read_bytes()
    for as_draft, output, why in (
        (target, model, "is the input: name another one"),
        (target, target, "is the input: name another one"),
        (target, tmp_path, "is a folder: name a file in it"),
        (tmp_path / "nosuch", tmp_path / "new.gguf", "nosuch does not exist"),
        (tiny_files.truncated, tmp_path / "new.gguf", "cannot load"),
        (target, model / "new.gguf", "cannot be made: "),
    ):
        assert cli.main(["quantize", str(model), "--as-draft", str(as_draft), "-o", str(output), "-f"]) == 1
        assert why in capsys.readouterr().err
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cli.main(["quantize", str(model), "--as-draft", str(target)]) == 1
    assert "cannot be written: name a file in another one with --output" in capsys.readouterr().err
    assert (model.read_bytes(), target.read_bytes()) == before


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_the_command_measures(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = Path(shutil.copy(tiny_files.good, tmp_path / "draft.gguf"))
    assert cli.main(["quantize", str(model), "--as-draft", str(tiny_files.target), "-t", "1"]) == 0
    out, err = capsys.readouterr()
    assert Path(out.strip()) in set(tmp_path.iterdir())
    for name in ("as it is", "Q8_0", "Q4_0"):
        assert f"\n{name} " in err


@pytest.mark.filterwarnings("ignore:the draft .* is larger than the target")
@pytest.mark.long
def test_a_hybrid_target_has_the_memory_that_a_draft_gets(
    tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a target that is opened with a draft keeps snapshots of its state."""
    model = Path(shutil.copy(tiny_files.target, tmp_path))
    kinds, compare = [], draft_types.compare_types

    def heard(llm: specllama.Llama, *arguments: Any, **options: Any) -> list[draft_types.DraftType]:
        kinds.append(llm.engine.model.sequence.decoder.rollback)
        return compare(llm, *arguments, **{**options, "rounds": 1, "max_tokens": 2})

    monkeypatch.setattr(draft_types, "compare_types", heard)
    assert cli.main(["quantize", str(model), "--as-draft", str(tiny_files.hybrid), "-t", "1"]) == 0
    assert kinds == ["snapshot"]


def test_one_of_both_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    for more in ([], ["Q4_0", "--as-draft", "x"]):
        assert cli.main(["quantize", "x", *more]) == 2
        assert "give a TYPE, or --as-draft TARGET" in capsys.readouterr().err
