"""`specllama cache`: what a folder of earlier texts holds, and nothing of anybody else is deleted."""

from __future__ import annotations

import json
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import pytest
from faults import assert_one_line_error, files_below

from specllama import cli
from specllama.engine.prefixes import folder as of_store

if TYPE_CHECKING:
    from conftest import TinyFiles

PROMPT = "the cat sat on the dog and in of a it is " * 30


def generate(tiny_files: TinyFiles, folder: Path) -> dict[str, Any]:
    """What the command prints, with a folder of earlier texts."""
    files = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "1024"]
    files += ["-p", PROMPT, "-n", "4", "--temp", "0", "--num-draft-tokens", "4", "--json", "--cache-dir", str(folder)]
    done = faults.run("generate", *files)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.fixture
def kept(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    """A folder with a text."""
    generate(tiny_files, tmp_path / "kept")
    return tmp_path / "kept"


def contents(folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["cache", str(folder), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_folder_with_texts(
    tiny_files: TinyFiles, kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stats = generate(tiny_files, kept)["stats"]
    assert stats["num_prompt_tokens_from_disk"] == stats["num_prompt_tokens"] - 1 > 300
    found = contents(kept, capsys)
    assert {model["file"] for model in found["models"]} == {tiny_files.target.name, tiny_files.good.name}
    files = [path for path in kept.rglob("*") if path.suffix == ".range"]
    assert found["folder"] == str(kept)
    assert found["num_files"] == len(files) == sum(model["num_files"] for model in found["models"]) > 2
    assert found["num_bytes"] == sum(path.stat().st_size for path in files)
    newest = max(path.stat().st_mtime for path in files)
    assert found["models"][0]["used"] == pytest.approx(newest)
    monkeypatch.chdir(kept.parent)
    monkeypatch.setenv("HOME", str(kept.parent))
    for name in ("kept", "~/kept"):
        assert cli.main(["cache", name]) == 0
        title, *lines, total = capsys.readouterr().out.splitlines()
        assert title.split() == ["file", "model", "kernels", "files", "size", "last", "used"]
        assert [line.split()[0] for line in lines] == [model["file"] for model in found["models"]]
        assert total.split()[:2] == ["all", str(len(files))]


def test_it_is_emptied_of_texts_alone(tiny_files: TinyFiles, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files of others stay, also in folders of the store."""
    foreign = [kept / "notes.txt", kept / ("0" * 32) / "about.json", kept / ("1" * 32) / "ab" / "x.range"]
    foreign.append(next(path for path in kept.iterdir() if path.is_dir()) / "mine")
    for path in foreign:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("mine")
    (kept / ("2" * 32) / "cd").mkdir(parents=True)
    size = contents(kept, capsys)["num_bytes"]
    assert cli.main(["cache", str(kept), "--empty"]) == 0
    assert f"({size:,} bytes) in {kept}" in capsys.readouterr().err
    assert files_below(kept) == sorted([".lock", *(str(path.relative_to(kept)) for path in foreign)])
    assert (kept / ("2" * 32) / "cd").is_dir()
    assert contents(kept, capsys)["models"] == []
    stats = generate(tiny_files, kept)["stats"]
    assert stats["num_prompt_tokens_reused"] == 0
    assert contents(kept, capsys)["num_bytes"] == size


@pytest.mark.parametrize("option", [[], ["--empty"]])
def test_a_folder_without_texts(tmp_path: Path, capsys: pytest.CaptureFixture[str], option: list[str]) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert cli.main(["cache", str(tmp_path), *option]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{tmp_path} holds no earlier texts\n")
    assert files_below(tmp_path) == ["notes.txt"]
    assert contents(tmp_path, capsys) == {"folder": str(tmp_path), "models": [], "num_files": 0, "num_bytes": 0}


def test_what_is_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    for path in (tmp_path / "nowhere", file):
        for option in ([], ["--empty"], ["--json"]):
            assert cli.main(["cache", str(path), *option]) == 1
            assert f"there is no folder {path}: give the one that --cache-dir" in capsys.readouterr().err
    assert files_below(tmp_path) == ["notes.txt"]
    assert cli.main(["cache", str(tmp_path), "--empty", "--json"]) == 2
    assert cli.main(["cache"]) == 2


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes root's rights away in Linux's way")
def test_a_folder_of_another_user(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is closed to all but its owner, and has no file that others can read."""
    for path in kept.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    before = contents(kept, capsys)
    folders = [path for path in kept.iterdir() if path.is_dir()]
    for mode, options in ((0o000, []), (0o000, ["--empty"]), (0o500, ["--empty"])):
        os.chmod(kept, mode)
        done = faults.run("cache", str(kept), *options, under=faults.PERMISSIONS)
        os.chmod(kept, 0o700)
        assert_one_line_error(done, f"no permission for {kept}", "earlier texts are their owner's, so run this as")
    for path in folders:
        os.chmod(path, 0o000)
    done = faults.run("cache", str(kept), under=faults.PERMISSIONS)
    for path in folders:
        os.chmod(path, 0o700)
    assert_one_line_error(done, f"no permission for {kept}")
    assert contents(kept, capsys) == before


def test_another_program_writes(
    kept: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(kept, capsys)
    monkeypatch.setattr(of_store, "PATIENCE", 0.1)
    with of_store.locked(kept):
        codes: list[int] = []
        other = threading.Thread(target=lambda: codes.append(cli.main(["cache", str(kept), "--empty"])))
        other.start()
        other.join(30)
    assert codes == [1]
    assert f"another program is writing into {kept}: try again" in capsys.readouterr().err
    assert contents(kept, capsys) == before


def test_a_model_with_a_name_that_no_terminal_should_get(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number, about in enumerate(kept.rglob("about.json")):
        about.write_text(json.dumps({"file": "[bold]x\x1b[31m", "model": 3}) if number else "rubbish")
    assert cli.main(["cache", str(kept)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert {line.split()[0] for line in lines[1:3]} == {"[bold]x\N{SYMBOL FOR ESCAPE}[31m", "?"}
