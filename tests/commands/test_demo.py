"""The demonstration: which models it takes, what it measures, and that it says so when it is slower."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from specllama import cli
from specllama.commands import demo
from specllama.models import catalog, download, quantize

if TYPE_CHECKING:
    from conftest import TinyFiles


def test_choose_pair() -> None:
    models = catalog.catalog()
    target, draft = models.find(models.default_target), models.find(models.default_draft)
    choose: Callable[..., demo.Pair] = lambda **known: demo.choose_pair(target, draft, **known)  # noqa: E731
    without: Callable[..., demo.Pair] = lambda memory: choose(gpu=False, kernels=False, memory=int(memory))  # noqa: E731
    assert without(64e9).target_type == "F16"
    assert without(8e9).target_type == "F16"
    assert without(4.5e9).target_type == "Q8_0"
    small = without(2e9)
    assert small.target_type == target.type
    assert "F16 needs" in small.reason
    assert choose(gpu=False, kernels=True, memory=int(64e9))[:2] == (target.type, "Q4_0")
    assert choose(gpu=True, kernels=False, memory=int(2e9))[:2] == (target.type, draft.type)


def test_demo_end_to_end(
    tiny_files: TinyFiles, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = cache / "models"
    folder.mkdir(parents=True)
    models = {}
    for name, source in (("t", tiny_files.target), ("d", tiny_files.good)):
        file = f"{name}-f32.gguf"
        (folder / file).write_bytes(source.read_bytes())
        models[name] = catalog.Model(name, name.upper(), file, "F32", source.stat().st_size, "0" * 64, "MIT", "a/b")
    known = catalog.Catalog(models, "t", "d")
    for module in (catalog, download, quantize):
        monkeypatch.setattr(module, "catalog", lambda: known)
    monkeypatch.setattr(demo, "known_models", lambda: known)
    pair = demo.Pair("F16", "F32", "tiny")
    monkeypatch.setattr(demo, "choose_pair", lambda *args, **known: pair)
    assert cli.main(["demo", "-n", "12", "-t", "1", "--temp", "0.8", "-p", "the cat"]) == 0
    out, err = capsys.readouterr()
    assert "making t:F16" in err
    assert (folder / "t-f16.gguf").is_file()
    assert "Both texts are the same, token for token." in out
    assert "plain decoding" in out
    assert "speculative decoding" in out
    assert "T F16, draft D F32" in out
    assert re.search(
        r"llama_cpp\.Llama [\d.]+ t/s, specllama\.Llama [\d.]+ t/s, [\d.]+x: [\d.]+x without the draft", out
    )
