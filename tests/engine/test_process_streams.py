"""stdout and stderr belong to the whole process: loading leaves them alone, and each may be missing."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import specllama
from specllama import cli
from specllama.warn import warn

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

SETTINGS: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


class Bare:
    """A stream of somebody's that can only be written to."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        """Keeps it."""
        self.text += text
        return len(text)

    def flush(self) -> None:
        """Does nothing."""


def closed() -> io.StringIO:
    """A stream that was closed."""
    stream = io.StringIO()
    stream.close()
    return stream


STREAMS = {"none": lambda: None, "closed": closed, "bare": Bare}
OPENINGS = {
    "model": lambda target, draft: specllama.Llama(target, **SETTINGS),
    "draft": lambda target, draft: specllama.Llama(target, draft_model=draft, **SETTINGS),
    "engine": lambda target, draft: specllama.Engine.open(target, draft=draft, n_ctx=64, n_threads=1),
}


@pytest.mark.parametrize("opening", OPENINGS)
def test_what_others_write_while_a_model_is_loaded_arrives(
    tiny_files: TinyFiles, capfd: pytest.CaptureFixture[str], opening: str
) -> None:
    """Before, most of it was lost: llama_cpp exchanged the file descriptors and sys.stdout of the whole process."""
    ended = threading.Event()
    counts = {"stdout": 0, "descriptor": 0}

    def write() -> None:
        while not ended.is_set():
            sys.stdout.write("x")
            sys.stdout.flush()
            os.write(2, b"y")
            counts["stdout"] += 1
            counts["descriptor"] += 1

    before = sys.stdout, sys.stderr
    thread = threading.Thread(target=write)
    thread.start()
    try:
        for _ in range(5):
            OPENINGS[opening](str(tiny_files.target), str(tiny_files.good)).close()
    finally:
        ended.set()
        thread.join()
    found = capfd.readouterr()
    assert (found.out.count("x"), found.err.count("y")) == (counts["stdout"], counts["descriptor"])
    assert found.err.strip("y") == "" and (sys.stdout, sys.stderr) == before


def test_an_engine_writes_nothing(tiny_files: TinyFiles, capfd: pytest.CaptureFixture[str]) -> None:
    with specllama.Engine.open(tiny_files.target, tiny_files.draft, n_ctx=256) as engine:
        assert engine.tokenize("the cat")
    assert capfd.readouterr() == ("", "")


def test_verbose_says_what_llama_cpp_says(tiny_files: TinyFiles, capfd: pytest.CaptureFixture[str]) -> None:
    specllama.Llama(str(tiny_files.target), **{**SETTINGS, "verbose": True}).close()
    assert "llama_model_loader" in capfd.readouterr().err


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("verbose", [False, True])
def test_a_llama_without_streams(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, kind: str, verbose: bool
) -> None:
    monkeypatch.setattr(sys, "stdout", STREAMS[kind]())
    monkeypatch.setattr(sys, "stderr", STREAMS[kind]())
    with specllama.Llama(str(tiny_files.target), **{**SETTINGS, "verbose": verbose}) as llm:
        options: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0}
        text = llm.create_completion("a", **options)["choices"][0]["text"]
        for progress in (None, True):
            outcomes = llm.create_completions(["a", "a"], progress=progress, **options)
            assert [outcome.text for outcome in outcomes] == [text, text]
        llm.load_state(llm.save_state())


@pytest.mark.parametrize("kind", ["none", "closed"])
def test_a_warning_without_stderr(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setattr(sys, "stderr", STREAMS[kind]())
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", vars(warnings)["_showwarning_orig"])  # not pytest's
        warn("nobody reads this")
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="somebody"):
            warn("somebody does")


@pytest.mark.parametrize("kind", STREAMS)
@pytest.mark.parametrize("command", ["generate", "batch", "quantize", "chat"])
def test_a_command_without_streams(
    tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, command: str
) -> None:
    prompts, out = tmp_path / "prompts.jsonl", str(tmp_path / "out")
    prompts.write_text('{"prompt": "a"}\n', encoding="utf-8")
    model = ["-m", str(tiny_files.target), "-t", "1", "-c", "64"]
    line = {
        "generate": [*model, "-p", "a", "-n", "2"],
        "batch": ["--input", str(prompts), "--output", out, *model, "-n", "2"],
        "quantize": [str(tiny_files.target), "Q8_0", "-o", out],
        "chat": [*model, "-n", "2"],
    }[command]
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, io.StringIO("") if (name, kind) == ("stdin", "bare") else STREAMS[kind]())
    assert cli.main([command, *line]) == 0
    for name in ("stdin", "stdout", "stderr") if kind != "bare" else ():
        getattr(sys, name).close()  # what the command had instead


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_what_stderr_raises_while_llama_cpp_speaks(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, ending: type[BaseException]
) -> None:
    """A signal's handler runs in whatever Python comes next: where llama.cpp's messages are heard."""

    class Interrupted(Bare):
        def write(self, text: str) -> int:
            if "llama_model_loader" in text:
                raise ending
            return super().write(text)

    monkeypatch.setattr(sys, "stderr", Interrupted())
    with pytest.raises(ending):
        specllama.Llama(str(tiny_files.target), **{**SETTINGS, "verbose": True})
    monkeypatch.undo()
    assert make_llama(tiny_files.target).create_completion("a", max_tokens=2)["choices"][0]["text"]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_another_error_of_stderr_is_shown_as_those_of_callbacks_are(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Bare):
        def write(self, text: str) -> int:
            return 1 // 0 if "llama_model_loader" in text else super().write(text)

    shown: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: shown.append(unraisable.exc_type))
    monkeypatch.setattr(sys, "stderr", Failing())
    specllama.Llama(str(tiny_files.target), **{**SETTINGS, "verbose": True}).close()
    assert set(shown) == {ZeroDivisionError}


def test_a_child_process_of_another_thread_is_heard(tiny_files: TinyFiles) -> None:
    script = f"""
import subprocess, sys, threading, specllama
def loads():
    for _ in range(20):
        specllama.Llama({str(tiny_files.target)!r}, n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False).close()
thread = threading.Thread(target=loads)
thread.start()
for _ in range(5):
    subprocess.run([sys.executable, "-S", "-c", "print('heard')"], check=True)
thread.join()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "heard\n" * 5, "")
