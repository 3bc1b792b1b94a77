"""Walks through folders, with all that a file system may hold."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import tiny_models as tiny

from specllama.backend import folders
from specllama.backend.folders import beginning_of, files_in, folders_in
from specllama.models.found_drafts import survey
from specllama.models.hub import all_on_disk

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="links, pipes and names of POSIX")


def names(folder: Path | str, ending: str = "", depth: int = 0) -> list[str]:
    return [os.path.relpath(path, folder) for path in files_in(folder, ending, depth=depth)]


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder with two models, and with everything else."""
    folder = tmp_path / "odd"
    (folder / "below" / "deeper").mkdir(parents=True)
    for name in ("a.gguf", "B.GGUF", "below/deeper/c.gguf", "d.txt"):
        (folder / name).write_text(name)
    os.symlink("loop", folder / "loop")  # ELOOP
    os.symlink("loop", folder / "loop.gguf")
    os.symlink("nowhere", folder / "broken.gguf")
    for number in range(6):
        os.symlink(".", folder / f"itself{number}")
        os.symlink("..", folder / "below" / f"up{number}")
    os.mkfifo(folder / "pipe.gguf")
    (folder / "folder.gguf").mkdir()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.path.relpath(folder / "socket.gguf"))
    os.symlink("/dev/zero", folder / "device.gguf")
    (folder / os.fsdecode(b"e\xff.gguf")).write_text("e")
    return folder


def test_what_is_no_file_is_left_out(odd: Path) -> None:
    begun = time.process_time()
    assert names(odd, ".gguf") == ["B.GGUF", "a.gguf", os.fsdecode(b"e\xff.gguf")]
    assert "below/deeper/c.gguf" in names(odd, ".gguf", depth=6)
    assert len(names(odd, depth=6)) == 5, "a folder that is reached twice is searched once"
    assert time.process_time() - begun < 1.0, "and not n^6 times"
    assert [os.path.basename(path) for path in folders_in(odd)] == [
        "below",
        "folder.gguf",
        *(f"itself{i}" for i in range(6)),
    ]


@pytest.mark.parametrize("folder", ["/nowhere", "/a\0b", "/a\ud800b", "x" * 5000, ""])
def test_a_folder_that_cannot_be(folder: str) -> None:
    assert list(files_in(folder, depth=2)) == []
    assert folders_in(folder) == []


def test_a_folder_without_end(odd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "_MOST_ENTRIES", 100)
    many = odd / "many"
    many.mkdir()
    for number in range(300):
        (many / f"{number}.gguf").touch()
    assert 0 < len(names(odd, depth=3)) <= 100


def test_a_pipe_is_not_waited_for(odd: Path) -> None:
    with pytest.raises(OSError, match=r"pipe\.gguf is not a file"):
        beginning_of(odd / "pipe.gguf", 10)
    with pytest.raises(OSError, match=r"device\.gguf is not a file"):
        beginning_of(odd / "device.gguf", 10)
    assert beginning_of(odd / "a.gguf", 3) == b"a.g"


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "settings", ['{"downloadsFolder":"/a\\u0000b"}', '{"downloadsFolder":"/a\\ud800b"}', "[1]", "[" * 60_000]
)
def test_a_search_survives_it(
    odd: Path, home: Path, target: Path, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, settings: str
) -> None:
    """In another program's folder, and in its settings; and the hub's cache lacks what it names."""
    words = tiny.word_vocabulary()
    small = tiny.write_llama(odd / "small.gguf", words, tiny.llama_weights(words, seed=3, n_layer=1))
    for name in ("LLAMA_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(odd))
    os.symlink(".", odd / "manifests")
    (home / ".lmstudio").mkdir(parents=True)
    (home / ".lmstudio/settings.json").write_text(settings)
    (home / ".lmstudio-home-pointer").write_bytes(b"/x\0y")
    snapshot = home / "hf/hub/models--a--b/snapshots/1"
    snapshot.mkdir(parents=True)
    os.symlink("../../blobs/gone", snapshot / "model.gguf")
    os.symlink("loop", home / "hf/hub/loop")
    begun = time.process_time()
    assert [one.draft_model for one in survey(str(target)).usable] == [str(small)]
    assert time.process_time() - begun < 1.0
    assert list(all_on_disk()) == []
    (home / ".lmstudio/settings.json").unlink()
    os.mkfifo(home / ".lmstudio/settings.json")
    assert json.dumps([one.draft_model for one in survey(str(target)).usable]) == json.dumps([str(small)])
