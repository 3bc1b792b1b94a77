"""Files of a release's source archive, which has what no wheel has: headers, and chat templates of many models."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path

from conftest import REAL_CACHE
from needed import MODELS, missing

_TEMPLATE = re.compile(r"[^/]+/vendor/llama\.cpp/models/templates/([^/]+\.jinja)")


def released_templates() -> Path:
    """A folder with the chat templates that llama.cpp's own tests use, as ``NAME.jinja``."""
    return unpacked(metadata.version("llama-cpp-python"), "-templates", _TEMPLATE, "Qwen3.5-4B.jinja")


def unpacked(version: str, name: str, wanted: re.Pattern[str], proof: str) -> Path:
    """A folder with files of that release of llama-cpp-python; downloaded once, then kept in the cache.

    Args:
        version: the release.
        name: of the folder, after the version.
        wanted: matches the paths of the files in the archive; group 1 is the path in the folder.
        proof: one of the files, which must be there.
    """
    folder = REAL_CACHE / "abi" / f"{version}{name}"
    if folder.is_dir():
        return folder
    with tempfile.TemporaryDirectory() as download:
        archive = _downloaded(version, Path(download))
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
            complete = Path(temporary) / "files"
            _extract(archive, wanted, complete)
            assert (complete / proof).is_file(), f"{archive.name} has no {proof} where it is expected"
            try:
                complete.rename(folder)
            except OSError:
                if not folder.is_dir():  # else another process was faster
                    raise
    return folder


def _downloaded(version: str, folder: Path) -> Path:
    # No wheels of llama-cpp-python itself, since only the source has headers; its build tools may be wheels.
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-binary", "llama-cpp-python"]
    result = subprocess.run(
        [*command, "--dest", str(folder), f"llama-cpp-python=={version}"], capture_output=True, text=True, timeout=600
    )
    archives = list(folder.glob("*.tar.gz"))
    if result.returncode or len(archives) != 1:
        said = (result.stderr.strip() or "nothing").splitlines()[-1]
        missing(f"the source of llama-cpp-python {version} cannot be downloaded; pip says: {said}", MODELS)
    return archives[0]


def _extract(source: Path, wanted: re.Pattern[str], folder: Path) -> None:
    with tarfile.open(source) as archive:
        for member in archive:
            match = wanted.fullmatch(member.name)
            content = archive.extractfile(member) if match else None
            if match and content:
                path = folder / match[1]
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content.read())
