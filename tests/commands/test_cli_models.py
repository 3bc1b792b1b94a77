"""The commands that fetch and make model files: what goes to stdout, what to stderr, and the exit codes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specllama import cli
from specllama.models import catalog

if TYPE_CHECKING:
    from conftest import TinyFiles


def test_pull_list(cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    model = catalog.catalog().models["smollm2-135m"]
    model.path.parent.mkdir(parents=True)
    with model.path.open("wb") as file:
        file.truncate(model.size)
    model.variant_path("Q8_0").touch()
    assert cli.main(["pull", "--list"]) == 0
    out, err = capsys.readouterr()
    rows = {line.split()[0]: line for line in out.splitlines()}
    assert set(rows) == {"name", *catalog.catalog().models}
    assert rows["smollm2-135m"].split()[1:] == "SmolLM2-135M-Instruct Q4_1 98 MB Apache-2.0 Q4_1, Q8_0".split()
    assert rows["qwen2.5-coder-0.5b"].split()[-1] == "-"
    assert str(cache / "models") in err


def test_pull_prints_the_path_only(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("specllama.models.download.pull", lambda model: model.path)
    assert cli.main(["pull", "SmolLM2-135M"]) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (f"{catalog.catalog().models['smollm2-135m'].path}\n", "")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smollm", "did you mean smollm2-135m?"),
        ("org/name:", "no model is called 'org/name:'"),
        ("https://huggingface.co/org/name", "give the model's name on the hub, ORG/NAME or ORG/NAME:TYPE"),
        ("smollm2-135m:f16", "then `specllama quantize smollm2-135m F16`"),
    ],
)
def test_pull_errors(cache: Path, capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    assert cli.main(["pull", name]) == 1
    assert message in capsys.readouterr().err


def test_quantize(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "out.gguf"
    line = ["quantize", str(tiny_files.target), "q8_0", "--output", str(output), "--threads", "1"]
    assert cli.main(line) == 0
    assert capsys.readouterr().out == f"{output}\n"
    assert cli.main(line) == 1
    assert "out.gguf exists" in capsys.readouterr().err
    assert cli.main([*line, "--force"]) == 0
    assert cli.main(["quantize", str(tiny_files.not_gguf), "Q8_0"]) == 1
    assert "is not a GGUF file" in capsys.readouterr().err


@pytest.mark.long
def test_quantize_says_that_more_bits_bring_nothing_back(
    tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eight, sixteen = tmp_path / "eight.gguf", tmp_path / "sixteen.gguf"
    says = "does not bring back what that has lost"
    assert cli.main(["quantize", str(tiny_files.target), "Q8_0", "-o", str(eight), "-t", "1"]) == 0
    assert says not in capsys.readouterr().err
    assert cli.main(["quantize", str(eight), "F16", "-o", str(sixteen), "-t", "1"]) == 0
    out, err = capsys.readouterr()
    assert out == f"{sixteen}\n"
    assert f"note: {eight} was made with " in err
    assert f"bits a weight, and F16 {says}" in err
    assert cli.main(["quantize", str(eight), "Q4_0", "-o", str(tmp_path / "four.gguf"), "-t", "1"]) == 0
    assert cli.main(["quantize", str(sixteen), "F32", "-o", str(tmp_path / "whole.gguf"), "-t", "1"]) == 0
    assert says not in capsys.readouterr().err


def test_quantize_uses_what_is_in_the_cache(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = catalog.catalog().models["smollm2-135m"].variant_path("F16")
    path.parent.mkdir(parents=True)
    path.touch()
    assert cli.main(["quantize", "smollm2-135m", "f16"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
