"""A model file that is gone or damaged since the last run: what is said, and what is still there."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import faults
import llama_cpp
import pytest
from fresh import text_of
from needed import imported

from specllama import cli
from specllama.evidence.machine import describe_machine
from specllama.models import catalog

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="Windows does not let go of a file that is open")
AGAIN = "get it again from where it came"
SHORT = "bytes, and needs more than that: its tensor "


def _keep(path: Path, count: int) -> None:
    path.write_bytes(path.read_bytes()[:count])


def _replace(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "deleted": (Path.unlink, "does not exist: check the path, or see `specllama pull --list`"),
    "emptied": (lambda path: path.write_bytes(b""), f"is not a GGUF file: it is empty; {AGAIN}"),
    "cut in the magic": (lambda path: _keep(path, 3), f"it begins with b'GGU' instead of b'GGUF'; {AGAIN}"),
    "cut behind the magic": (lambda path: _keep(path, 4), f"its header ends early (byte 4); {AGAIN}"),
    "cut in the header": (lambda path: _keep(path, 2000), f"its header ends early (byte 2000); {AGAIN}"),
    "cut in the weights": (lambda path: _keep(path, 60_000), SHORT),
    "cut at the end": (lambda path: _keep(path, path.stat().st_size - 1), SHORT),
    "garbage": (lambda path: path.write_bytes(b"nothing" * 9000), f"b'noth' instead of b'GGUF'; {AGAIN}"),
    "zeros": (lambda path: path.write_bytes(b"GGUF" + bytes(50_000)), "GGUF version 0 is not supported"),
    "a folder": (lambda path: _replace(path, Path.mkdir), "is a directory: give the path of a .gguf file in it"),
}  # fmt: skip


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    return Path(shutil.copy(tiny_files.target, tmp_path / "model.gguf"))


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_named_and_a_whole_one_works_again(
    tiny_files: TinyFiles, model: Path, capsys: pytest.CaptureFixture[str], damage: str, role: str
) -> None:
    target, draft = (model, tiny_files.good) if role == "target" else (tiny_files.target, model)
    line = ["generate", "-m", str(target), "-md", str(draft), "-p", "the cat", "-n", "12", "-t", "1", "-c", "128"]
    line += ["--temp", "0", "--num-draft-tokens", "4"]
    assert cli.main(line) == 0
    expected = capsys.readouterr().out
    do, message = DAMAGES[damage]
    do(model)
    assert cli.main(line) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("specllama: error: ")
    assert err.count("\n") == 1
    assert "model.gguf" in err
    assert message in err
    assert message != SHORT or AGAIN in err
    if model.is_dir():
        model.rmdir()
    shutil.copy(tiny_files.target, model)
    assert cli.main(line) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("damage", ["deleted", "cut in the weights", "garbage"])
@pytest.mark.parametrize("command", ["chat", "serve", "compare", "tune", "bench", "verify", "quantize"])
def test_every_command_says_so(model: Path, tmp_path: Path, command: str, damage: str) -> None:
    if command == "serve":
        imported("fastapi")
    DAMAGES[damage][0](model)
    options = {
        "chat": [],
        "serve": ["--port", "0"],
        "compare": ["-md", "lookup", "-p", "the cat"],
        "tune": [],
        "bench": ["-md", "lookup"],
        "verify": ["-md", "lookup"],
    }
    line = ["quantize", str(model), "Q8_0"] if command == "quantize" else [command, "-m", str(model), *options[command]]
    done = faults.run(*line, stdin=faults.subprocess.DEVNULL)
    faults.assert_one_line_error(done, "model.gguf", code=2 if command == "verify" else 1)
    assert [path for path in tmp_path.iterdir() if path != model] == []


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="takes root's rights away in Linux's way")
def test_an_unreadable_file(model: Path, tmp_path: Path) -> None:
    model.chmod(0)
    line = ["generate", "-m", str(model), "-p", "the cat", "-n", "4", "-t", "1", "-c", "64"]
    done = faults.run(*line, under=faults.PERMISSIONS)
    faults.assert_one_line_error(done, "Permission denied", str(model))
    model.chmod(0o644)
    tmp_path.chmod(0)
    try:  # nobody knows whether it exists
        done = faults.run(*line, under=faults.PERMISSIONS)
    finally:
        tmp_path.chmod(0o700)
    faults.assert_one_line_error(done, "Permission denied", str(model))
    assert faults.run(*line, under=faults.PERMISSIONS).returncode == 0


@POSIX
def test_a_pipe_is_not_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "pipe.gguf"
    os.mkfifo(path)
    assert cli.main(["generate", "-m", str(path), "-p", "x"]) == 1
    assert "pipe.gguf is not a file" in capsys.readouterr().err


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such names")
def test_a_name_that_llama_cpp_cannot_take(model: Path, tmp_path: Path) -> None:
    renamed = model.rename(os.fsdecode(os.fsencode(tmp_path) + b"/m\xff.gguf"))
    done = faults.run("generate", "-m", str(renamed), "-p", "x")
    faults.assert_one_line_error(done, "is not UTF-8, and llama_cpp takes no other: rename the file")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("", "llama.cpp gave no reason; a smaller n_ctx (-c) needs less memory"),
        ("f: failed to allocate buffer of size 9", "of size 9; a smaller n_ctx (-c) needs less memory"),
        ("f: model does not support different K and V cache types", "different K and V cache types"),
    ],
)
def test_a_context_that_cannot_be_made(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, said: str, advice: str
) -> None:
    """Only what has memory for its reason has it for its remedy. Contexts of several texts, too."""
    hearing: list[Callable[[int, bytes, None], None]] = []
    set_log = llama_cpp.llama_log_set
    monkeypatch.setattr("llama_cpp.llama_log_set", lambda hear, data: (hearing.append(hear), set_log(hear, data)))

    def fail(*args: object, **kwargs: object) -> None:
        if said:
            hearing[-1](4, said.encode(), None)

    def fail_in_python(*args: object, **kwargs: object) -> None:
        fail()
        raise ValueError("Failed to create llama_context")

    llm = make_llama()
    monkeypatch.setattr("llama_cpp._internals.LlamaContext", fail_in_python)
    with pytest.raises(ValueError, match=rf"no context for .*target\.gguf: .*{re.escape(advice)}$"):
        make_llama()
    monkeypatch.setattr("llama_cpp.llama_init_from_model", fail)
    with pytest.raises(RuntimeError if "cache" in said else MemoryError) as error:
        llm.create_completions(["the cat", "a dog"], max_tokens=1)
    assert said in str(error.value)
    assert ("smaller max_parallel" in str(error.value)) is ("cache" not in said)


@pytest.mark.parametrize("name", ["x/model.gguf", "m" * 5000, "model\0.gguf"])
def test_a_name_that_no_file_can_have(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.chdir(model.parent)
    model.rename("x")
    assert cli.main(["generate", "-m", name, "-p", "x"]) == 1
    assert "does not exist: check the path" in capsys.readouterr().err


# --- models of the catalog -------------------------------------------------------------------------------------------


@pytest.fixture
def entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> catalog.Model:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    catalog.models_dir().mkdir(parents=True)
    return catalog.catalog().models["smollm2-135m"]


def test_a_downloaded_model_of_the_right_size(entry: catalog.Model, capsys: pytest.CaptureFixture[str]) -> None:
    with entry.path.open("wb") as file:
        file.truncate(entry.size)
    for name in (entry.name, str(entry.path)):
        assert cli.main(["generate", "-m", name, "-p", "x"]) == 1
        assert f"remove it, and get it again with `specllama pull {entry.name}`" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["half", "none"])
def test_a_model_that_was_made(
    tiny_files: TinyFiles, entry: catalog.Model, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    path = entry.variant_path("Q8_0")
    path.write_bytes(tiny_files.target.read_bytes()[:60_000] if content == "half" else b"")
    assert cli.main(["generate", "-m", f"{entry.name}:q8_0", "-p", "x"]) == 1
    err = capsys.readouterr().err
    assert path.name in err
    assert f"make it again with `specllama quantize --force {entry.name} Q8_0`" in err


# --- while a Llama is open -------------------------------------------------------------------------------------------


@POSIX
@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_an_open_llama_keeps_its_files(
    make_llama: MakeLlama, tiny_files: TinyFiles, model: Path, tmp_path: Path, change: str
) -> None:
    draft = Path(shutil.copy(tiny_files.good, tmp_path / "draft.gguf"))
    llm = make_llama(model, draft, draft_kwargs={"use_mmap": True})
    expected = text_of(make_llama(draft=tiny_files.good))
    for path in (model, draft):
        path.unlink()
        if change == "replaced":
            path.write_bytes(b"another file")
    assert text_of(llm) == expected
    assert text_of(llm, num_draft_tokens="auto") == expected  # which looks for the costs of these files
    state = llm.save_state()
    llm.load_state(state)
    assert text_of(llm) == expected
    assert describe_machine(llm)["target"]["file"] == "model.gguf"
    with pytest.raises(ValueError, match=r"draft\.gguf (does not exist|is not a GGUF file)"):
        llm.draft_model = str(draft)
    assert text_of(llm) == expected
    assert llm.stats.num_draft_tokens > 0  # by the draft that it had
