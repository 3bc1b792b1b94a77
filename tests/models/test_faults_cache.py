"""A cache folder that cannot be written, is full, or holds rubbish: work goes on, or says why it cannot."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import pytest
from fake_hub import Hub, hub_model
from faults import files_below

from specllama import cli
from specllama.models import catalog
from specllama.models.catalog import models_dir
from specllama.models.gguf_header import read_header

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="takes root's rights away in Linux's way, and limits files in POSIX's"
)

SPACE = "Set SPECLLAMA_CACHE to a folder that has room and can be written, or mend"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache"


@pytest.fixture
def generate(tiny_files: TinyFiles) -> list[str]:
    models = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
    return ["generate", *models, "-p", "the cat", "-n", "40", "--temp", "0"]


@pytest.fixture(params=["read-only", "full", "a file in its place"])
def unusable(request: pytest.FixtureRequest, cache: Path) -> Iterator[dict[str, Any]]:
    """How to start a command that cannot write to the cache folder."""
    if request.param == "full":
        yield {"under": faults.FULL}
    elif request.param == "read-only":
        cache.chmod(0o555)
        yield {"under": faults.PERMISSIONS}
        cache.chmod(0o755)
    else:
        cache.rmdir()
        cache.write_text("in the way")
        yield {}


@pytest.mark.sampled(1)
def test_a_generation_needs_no_cache(generate: list[str], cache: Path, unusable: dict[str, Any]) -> None:
    done = faults.run(*generate, **unusable)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    assert "error" not in done.stderr
    if cache.is_file():
        cache.unlink()
    cache.mkdir(exist_ok=True)
    cache.chmod(0o755)
    again = faults.run(*generate)
    assert (again.returncode, again.stdout) == (0, done.stdout)
    assert files_below(cache / "costs")


@pytest.mark.sampled(1)
def test_tune_says_that_nothing_is_kept(tiny_files: TinyFiles, cache: Path, unusable: dict[str, Any]) -> None:
    done = faults.run("tune", "-m", str(tiny_files.target), "-t", "1", "-c", "1024", **unusable)
    assert done.returncode == 0, done.stderr
    assert "- the costs of the target cannot be kept: [Errno" in done.stdout
    assert cache.is_file() or files_below(cache) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("content", [b"", b"{", b"\x00\xff" * 500, b"[" * 60_000, b'{"format": 1}'])
def test_rubbish_in_cost_files(generate: list[str], cache: Path, content: bytes) -> None:
    expected = faults.run(*generate)
    files = list((cache / "costs").iterdir())
    assert len(files) == 2
    for file in files:
        file.write_bytes(content)
    done = faults.run(*generate)
    assert (done.returncode, done.stdout) == (0, expected.stdout)
    assert "warning" not in done.stderr
    for file in files:
        assert json.loads(file.read_bytes())["seconds"]  # they are measured anew, and kept


# --- downloads -------------------------------------------------------------------------------------------------------


def test_a_download_says_where_it_cannot_write(hub: type[Hub], tmp_path: Path, unusable: dict[str, Any]) -> None:
    hub.content = b"weights" * 1000
    model = hub_model(hub.content)
    done = faults.finished(faults.with_catalog(tmp_path, model, "pull", model.name, **unusable))
    assert done.returncode == 1
    assert done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("specllama: error: fake-model cannot be written: [Errno ")
    assert SPACE in last
    assert "Traceback" not in done.stderr
    assert not model.path.exists()


def test_a_disk_that_becomes_full(hub: type[Hub], tmp_path: Path) -> None:
    hub.content = bytes(1 << 20)
    model = hub_model(hub.content)
    done = faults.finished(faults.with_catalog(tmp_path, model, "pull", model.name, under=faults.full_after(100_000)))
    assert done.returncode == 1
    assert f"fake-model cannot be written: [Errno 27] File too large. {SPACE}" in done.stderr.splitlines()[-1]
    assert files_below(models_dir()) == []
    assert faults.finished(faults.with_catalog(tmp_path, model, "pull", model.name)).returncode == 0
    assert model.path.read_bytes() == hub.content


# --- quantizing ------------------------------------------------------------------------------------------------------


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [2000, 40_000])
def test_no_room_for_a_quantized_model(tiny_files: TinyFiles, tmp_path: Path, size: int) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    line = ["quantize", str(tiny_files.target), "Q8_0", "-o", str(folder / "small.gguf"), "-t", "1"]
    done = faults.run(*line, under=faults.full_after(size))
    assert (done.returncode, done.stdout) == (1, "")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("specllama: error: llama.cpp could not quantize")
    assert f"make room in {folder}, or name a file on another disk with --output" in last
    assert list(folder.iterdir()) == []
    assert faults.run(*line).returncode == 0
    assert read_header(folder / "small.gguf").num_tensors == read_header(tiny_files.target).num_tensors


def test_a_folder_for_models_that_is_read_only(tiny_files: TinyFiles, tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir(mode=0o555)
    line = ["quantize", str(tiny_files.target), "Q8_0", "-o", str(folder / "small.gguf")]
    done = faults.run(*line, under=faults.PERMISSIONS)
    faults.assert_one_line_error(done, "cannot be written: name a file in another one", str(folder))


# --- chats -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def chat(tiny_files: TinyFiles, cache: Path) -> Callable[..., Any]:
    """Runs a script."""

    def run(*script: str, **options: Any) -> Any:
        line = ["chat", "-m", str(tiny_files.target), "-t", "1", "-c", "256", "-n", "8", "--seed", "3"]
        return faults.run(*line, input="\n".join(script), **options)

    return run


def test_a_conversation_that_cannot_be_saved(chat: Callable[..., Any], tmp_path: Path) -> None:
    folder = tmp_path / "chats"
    folder.mkdir()
    file = folder / "chat.json"
    assert chat("the cat", f"/save {file}").returncode == 0
    saved = file.read_text()
    done = chat(f"/load {file}", "a dog", f"/save {file}", "the fox", under=faults.FULL)
    assert done.returncode == 1
    assert len(done.stdout.splitlines()) == 2  # the chat goes on
    assert f"error: the conversation cannot be written to {file}: [Errno 27] File too large; choose another place" in (
        done.stderr
    )
    assert file.read_text() == saved
    assert list(folder.iterdir()) == [file]


DAMAGES = {
    "empty": b"",
    "cut": b'{"messages": [{"role": "user", "con',
    "binary": bytes(range(256)),
    "brackets": b"[" * 100_000,
    "a number": b"7",
    "no messages": b"{}",
    "a message that is a text": b'{"messages": ["the cat"]}',
    "a role that does not exist": b'{"messages": [{"role": "tool", "content": "x"}]}',
    "half a character": b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_conversation_is_refused(chat: Callable[..., Any], tmp_path: Path, damage: str) -> None:
    file = tmp_path / "chat.json"
    file.write_bytes(DAMAGES[damage])
    done = chat("the cat", f"/load {file}", "/stats")
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {file} holds no conversation: ")
    assert done.stderr.count("\n") == 1
    assert "1 turn, " in done.stdout  # the one that there was
    assert file.read_bytes() == DAMAGES[damage]


# --- what is not UTF-8 -----------------------------------------------------------------------------------------------


def test_bytes_that_are_no_text(tiny_files: TinyFiles, chat: Callable[..., Any]) -> None:
    line = ["generate", "-m", str(tiny_files.target), "-t", "1", "-n", "4", "-p"]
    refused = "the text is not UTF-8: it has the byte 0xFF at character 4; convert it first"
    done = faults.run(*line, os.fsdecode(b"the \xff cat"))
    assert done.returncode == 2
    assert done.stderr.startswith(f"specllama generate: error: argument --prompt/-p: {refused} (help")
    options: dict[str, Any] = {"input": os.fsdecode(b"the \xff cat\nthe cat\n"), "errors": "surrogateescape"}
    done = faults.run(*line, "-", **options)
    faults.assert_one_line_error(done, refused)
    done = chat(os.fsdecode(b"the \xff cat"), "the cat", errors="surrogateescape")
    assert (done.returncode, done.stderr) == (1, f"error: {refused}\n")
    assert len(done.stdout.splitlines()) == 1
    assert faults.run(*line, "the ÿ cat").returncode == 0


@pytest.mark.parametrize("name", ["generate", "pull --list"])
def test_stdout_that_is_full(tiny_files: TinyFiles, name: str) -> None:
    models = ["-m", str(tiny_files.target), "-t", "1", "-p", "the cat", "-n", "4"] if name == "generate" else []
    with open("/dev/full", "w") as full:
        command = [*faults.line(*name.split()), *models]
        done = faults.subprocess.run(command, stdout=full, stderr=faults.subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "specllama: error: [Errno 28] No space left on device"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


# --- the catalog -----------------------------------------------------------------------------------------------------

SHIPPED = catalog.shipped("catalog.toml").read_bytes()
DAMAGED_CATALOGS = {
    "empty": b"",
    "cut": SHIPPED[:1000],
    "binary": b"\xff" + SHIPPED,
    "zeros": bytes(1000),
    "brackets": b"models = " + b"[" * 100_000,
    "a number": b"models = 3",
    "a list": b"models = []",
    "no models": SHIPPED[: SHIPPED.index(b"[models")],
}


@pytest.fixture
def catalog_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Stands for the file that comes with the package, and is read once a process."""
    path = tmp_path / "catalog.toml"
    monkeypatch.setattr(catalog, "shipped", lambda name: path)
    catalog.catalog.cache_clear()
    yield path
    catalog.catalog.cache_clear()


@pytest.mark.parametrize("damage", DAMAGED_CATALOGS)
def test_a_damaged_catalog_is_named_and_a_whole_one_works_again(
    cache: Path, catalog_file: Path, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    catalog_file.write_bytes(DAMAGED_CATALOGS[damage])
    name = "qwen2.5-coder-0.5b"
    for line in ("pull --list", f"pull {name}", "demo", f"quantize {name} Q4_0", f"generate -m {name} -p x"):
        assert cli.main(line.split()) == 1
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith(f"specllama: error: {catalog_file} is not a valid catalog: ")
        assert err.endswith("; install specllama again\n")
        assert err.count("\n") == 1
    assert files_below(cache) == []
    catalog_file.write_bytes(SHIPPED)
    assert cli.main(["pull", "--list"]) == 0
    assert name in capsys.readouterr().out


@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_a_model_given_by_its_path_needs_no_catalog(
    tiny_files: TinyFiles, catalog_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    if how == "damaged":
        catalog_file.write_bytes(DAMAGED_CATALOGS["cut"])
    line = ["generate", "-p", "the cat", "-n", "4", "-t", "1", "-c", "64", "-m"]
    assert cli.main([*line, str(tiny_files.target)]) == 0
    assert capsys.readouterr().err.count("error") == 0
    assert cli.main([*line, str(tiny_files.truncated)]) == 1
    err = capsys.readouterr().err
    assert "truncated.gguf" in err
    assert "get it again from where it came" in err
    assert "catalog" not in err
