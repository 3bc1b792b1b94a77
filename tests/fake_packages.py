"""Fake models for the download tests: wheels that pip accepts, an index that is a folder, and a listener."""

from __future__ import annotations

import hashlib
import os
import zipfile
from pathlib import Path

import pytest

from specllama.models.catalog import HubSource, Model, PackageSource, Wheel

NAME = "fake-model"


class Recorder:
    """A listener that remembers, and can interrupt."""

    def __init__(self, interrupt_at: str | None = None) -> None:
        self.notes: list[str] = []
        self.steps: list[tuple[str, int, int]] = []
        self._interrupt_at = interrupt_at

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, step: str, done: int, total: int) -> None:
        self.steps.append((step, done, total))
        if self._interrupt_at is not None and step.startswith(self._interrupt_at):
            raise KeyboardInterrupt


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> Wheel:
    """Write a wheel that pip accepts, and return its pin."""
    distribution = name.replace("-", "_")
    path = folder / f"{distribution}-1.0-py3-none-any.whl"
    info = f"{distribution}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        # If it were ever imported or installed, the tests would know.
        archive.writestr(f"{distribution}/__init__.py", "raise SystemExit('executed')")
        for member, data in members.items():
            archive.writestr(member, data)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    data = path.read_bytes()
    return Wheel(name, "1.0", len(data), hashlib.sha256(data).hexdigest())


def make_model(parts: list[bytes], *sources: HubSource | PackageSource) -> Model:
    whole = b"".join(parts)
    return Model(NAME, "Fake", "fake-q4_0.gguf", "Q4_0", len(whole), hashlib.sha256(whole).hexdigest(), "MIT", sources)


def parts_of(count: int) -> list[bytes]:
    return [bytes([65 + i]) * (100 + i) for i in range(count)]


def use_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an empty folder pip's only index, and an empty one the cache; return the index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return folder


def model_in_parts(index: Path, count: int) -> Model:
    """Write a model of that many wheels, one part in each, numbered from 1 as in the real ones."""
    parts = parts_of(count)
    wheels = [
        write_wheel(index, f"fake-part{i}", {f"fake_part{i}/data/part{i:02}.bin": part})
        for i, part in enumerate(parts, start=1)
    ]
    return make_model(parts, PackageSource("*/data/part*.bin", tuple(wheels)))


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
