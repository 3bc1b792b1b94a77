"""Makes other sizes of a model with llama.cpp's quantizer."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from specllama.backend.child import python_command
from specllama.backend.cpu import usable_cores
from specllama.backend.replacing import replacing

from .catalog import FILE_TYPES, Model, catalog, parse_file_type, remedy, resolve, retype
from .contents import CHILD, contents_of, planned
from .gguf_header import GgufHeader, read_header
from .gguf_values import UnusableFileError
from .head_kinds import OURS
from .new_file import ELSEWHERE, HEADER_ROOM, make_folder, require_free_place, require_room

Progress = Callable[[str, int, int], None]
"""A function that is told the step, how many tensors are done, and how many there are in all."""
Note = Callable[[str], None]
"""A function that is told, in words, which types the new file's tensors will have, and later which types they have."""
_FEWER = 0.5  # bits per weight: types whose difference is smaller count as equally good
_WHOLE = 16  # bits per weight: a file with this many has lost nothing of the original


class QuantizeError(RuntimeError):
    """llama.cpp could not quantize the file."""


def default_output(model: str | os.PathLike[str], file_type: str) -> Path:
    """The file that `quantize` writes by default: for a catalog name in the cache, otherwise beside the model.

    Raises:
        ValueError: the source is a lossy type of a catalog model. The new file would have the name of a file made from
            the original.
    """
    entry = _catalog_entry(model)
    if entry is not None:
        # The name of a catalog model is for files that were made from the original, or from a type that lost nothing.
        source, wanted = os.fspath(model).partition(":")[2], parse_file_type(file_type)
        is_less = bool(source) and wanted != parse_file_type(source) and FILE_TYPES[parse_file_type(source)] < _WHOLE
        if is_less and Path(resolve(model)) != entry.path:
            raise ValueError(
                f"{os.fspath(model)} is of another type than {entry.name}, and has lost some of it: make "
                f"{wanted} from {entry.name}, or name the file with --output"
            )
        return entry.variant_path(file_type)
    path = Path(model)
    return path.with_name(retype(path.name, parse_file_type(file_type)))


def what_stays_lost(source: str | os.PathLike[str], file_type: str) -> str | None:
    """A warning for a file that gets more bits than its source had; None if the source has lost nothing."""
    bits, wanted, entry = read_header(resolve(source)).bits, parse_file_type(file_type), _catalog_entry(source)
    if entry is not None:  # every type of a catalog model is made from the file that the catalog names
        bits = min(bits, FILE_TYPES[entry.type])
    if bits > _WHOLE - _FEWER or FILE_TYPES[wanted] < bits + _FEWER:
        return None
    return (
        f"{os.fspath(source)} was made with {bits:.1f} bits a weight, and {wanted} does not bring back what that has "
        "lost: the new file takes more memory, and its quality stays that of the fewer bits"
    )


def quantize(
    model: str | os.PathLike[str],
    file_type: str,
    *,
    output: str | os.PathLike[str] | None = None,
    threads: int = 0,
    on_progress: Progress | None = None,
    on_note: Note | None = None,
) -> Path:
    """Write a model with another type.

    The file gets its name only when it is complete. A model that is quantized already is converted, but its lost
    precision does not come back: F16 made from Q4_K_M computes the same function as Q4_K_M.

    If a row of a matrix is no whole number of blocks of the requested type, llama.cpp gives the matrix another type.
    In this case `on_note` is told before the work which types the file will have. After the work it is always told.

    Args:
        model: a GGUF file, or the catalog name of a downloaded model.
        file_type: one of `specllama.models.catalog.FILE_TYPES`, in upper or lower case.
        output: the file to write; None for `default_output`. An existing file is replaced.
        threads: the number of threads; 0 for all cores.
        on_progress: is told the progress.
        on_note: is told the types of the tensors and their size.

    Returns:
        The path of the new file.

    Raises:
        FileNotFoundError: there is no such model.
        ValueError: the model is not complete in one GGUF file, the type is unknown, or the output is the input.
        OSError: the disk is too small, or cannot be written.
        QuantizeError: llama.cpp failed. The message has llama.cpp's reason.
    """
    if threads < 0:
        raise ValueError(f"threads is {threads}: give the number of threads, or 0 for all cores")
    canonical = parse_file_type(file_type)
    source = Path(resolve(model))
    header = check_model(source)
    destination = default_output(model, canonical) if output is None else Path(output)
    require_free_place(destination, [source])
    make_folder(destination.parent)
    plan = planned(source, [canonical])[canonical]
    require_room(destination, plan.size + HEADER_ROOM)
    if on_note is not None and (fallback := plan.fallback(canonical)) is not None:
        on_note(f"{fallback}: {plan}")
    with replacing(destination) as temporary:
        temporary.touch(0o600)
        _run_worker(source, temporary, canonical, threads, on_progress)
        if read_header(temporary).num_tensors != header.num_tensors:
            raise QuantizeError(f"llama.cpp wrote a file with another number of tensors than {source} has")
        made = contents_of(temporary)
        temporary.chmod(source.stat().st_mode & 0o777)
    if on_note is not None:
        on_note(f"{destination.name} has {made}")
    return destination


def _catalog_entry(model: str | os.PathLike[str]) -> Model | None:
    """The catalog model that a name means; None if there is none, or a file has this path, as in `resolve`."""
    text = os.fspath(model)
    return None if os.path.exists(text) else catalog().models.get(text.partition(":")[0].lower())


def check_model(path: Path) -> GgufHeader:
    """Check that llama.cpp's quantizer can read a file. The messages raised here are clearer than the quantizer's.

    Raises:
        FileNotFoundError, ValueError: the quantizer cannot read the file.
    """
    try:
        header = read_header(path)
    except UnusableFileError as error:
        raise ValueError(f"{error}; {remedy(os.fspath(path))}") from None
    if header.num_splits > 1:
        raise ValueError(f"{path} is one of {header.num_splits} parts: merge them first (`llama-gguf-split --merge`)")
    if header.architecture.startswith(OURS):
        raise ValueError(
            f"{path} is a head of specllama's own form ({header.architecture}), which llama.cpp does not quantize: "
            "`train-draft` has chosen its type"
        )
    if header.kind != "model" or not header.architecture or header.num_tensors == 0:
        raise ValueError(f"{path} holds no language model (general.type is {header.kind!r}): give a GGUF model")
    return header


def _run_worker(source: Path, destination: Path, file_type: str, threads: int, on_progress: Progress | None) -> None:
    command = python_command(CHILD, str(source), str(destination), file_type, str(threads or usable_cores()))
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8"
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    word, *numbers = line.split()
                    if word == "progress" and on_progress is not None:
                        on_progress(f"to {file_type}", int(numbers[0]), int(numbers[1]))
            except BaseException:
                process.kill()
                raise
        if process.returncode != 0:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().splitlines() if line.strip(" \t=")]
            reason = lines[-1] if lines else f"its process ended with code {process.returncode}"
            if "iostream error" in reason:  # C++ does not say why a file cannot be written
                reason += f"; make room in {destination.parent}, or {ELSEWHERE}"
            raise QuantizeError(f"llama.cpp could not quantize {source} to {file_type}: {reason}")
