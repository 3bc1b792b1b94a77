"""`specllama quantize`: writes a model with another type of weights."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specllama.commands.arguments import UsageError, whole
from specllama.engine import MOST_THREADS
from specllama.models import FILE_TYPES, resolve

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.evidence.draft_types import DraftType, OnAnswer

_AS_IT_IS = "as it is"
_CTX_SIZE = 2048


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "quantize",
        help="write a model with another type of weights and print its path",
        description="Write a model with another type of weights by llama.cpp's quantizer, and print the path. "
        "A model of the catalog is then known as NAME:TYPE wherever a model is asked for.",
        epilog="types: " + ", ".join(FILE_TYPES),
    )
    parser.add_argument("model", metavar="MODEL", help="a downloaded model of the catalog, or a GGUF file")
    parser.add_argument("type", metavar="TYPE", nargs="?", help="for example F16, Q8_0, Q4_0 or Q4_K_M")
    parser.add_argument(
        "--as-draft",
        metavar="TARGET",
        help="instead of TYPE: try several types, and keep the one with which TARGET writes fastest here (minutes)",
    )
    parser.add_argument(
        "--output",
        "-o",
        type=Path,
        metavar="FILE",
        help="the file to write; default: in the cache for a name, beside the model for a file",
    )
    parser.add_argument(
        "--threads",
        "-t",
        dest="n_threads",
        type=whole(0, MOST_THREADS),
        default=0,
        metavar="N",
        help="threads, default: all cores",
    )
    parser.add_argument("--force", "-f", action="store_true", help="replace a file that exists")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Quantize a model, and print the path of the new file."""
    if (arguments.type is None) == (arguments.as_draft is None):
        not_both = "" if arguments.type is None else ", and not both"
        raise UsageError(f"give a TYPE, or --as-draft TARGET to find the best one{not_both}")
    if arguments.as_draft is None:
        print(make(arguments.model, arguments.type, arguments.output, arguments.n_threads, arguments.force))
    else:
        print(make_best_draft(arguments))
    return 0


def make_best_draft(arguments: argparse.Namespace) -> str:
    """Write a model with the type of weights with which it drafts fastest for its target.

    Returns:
        The path of the new file, or of the model itself if no other type is faster.
    """
    import specllama
    from specllama.commands.steps import in_tenths, steps
    from specllama.evidence.draft_types import CANDIDATES
    from specllama.models import HEADER_ROOM, check_model, make_folder, planned, require_room, write_quantized

    model = Path(resolve(arguments.model))
    check_model(model)
    specllama.Llama(arguments.as_draft, vocab_only=True, verbose=False).close()  # fails if the target is unusable
    outputs = _outputs(arguments, model, CANDIDATES)
    folder = next(iter(outputs.values())).parent
    make_folder(folder)
    plans = planned(model, outputs)
    require_room(folder / "drafts", sum(one.size + HEADER_ROOM for one in plans.values()))
    with tempfile.TemporaryDirectory(prefix=".as-draft.", dir=folder) as scratch, steps() as progress:
        on_progress = in_tenths(progress)
        drafts = {_AS_IT_IS: model}
        for name in outputs:
            if (fallback := plans[name].fallback(name)) is not None:
                progress.note(f"{fallback}: {plans[name]}")
            path = Path(scratch) / f"{name}.gguf"
            drafts[name] = write_quantized(
                model, name, output=path, threads=arguments.n_threads, on_progress=on_progress
            )
        progress.note(f"answering with {len(drafts)} drafts by turns")
        types = _compared(arguments, drafts, on_progress)
        _show(types)
        best = types[0].name
        if best == _AS_IT_IS:
            return str(model)
        os.replace(drafts[best], outputs[best])
    return str(outputs[best])


def _outputs(arguments: argparse.Namespace, model: Path, types: Iterable[str]) -> dict[str, Path]:
    """The file for each type.

    Raises:
        ValueError, FileExistsError: one of the files may not be written.
    """
    from specllama.models import default_output, require_free_place

    outputs: dict[str, Path] = {name: arguments.output or default_output(arguments.model, name) for name in types}
    if arguments.output is None:
        # No output may replace the model itself.
        outputs = {name: path for name, path in outputs.items() if path.resolve() != model.resolve()}
    is_named_by_cache = arguments.output is None and not os.path.exists(arguments.model)
    for path in outputs.values():
        require_free_place(path, [model, resolve(arguments.as_draft)])
        if path.exists() and not (arguments.force or is_named_by_cache):
            raise _exists(path)
    return outputs


def _compared(arguments: argparse.Namespace, drafts: dict[str, Path], on_progress: OnAnswer) -> list[DraftType]:
    from specllama import Llama
    from specllama.backend.cpu import default_threads
    from specllama.evidence.draft_types import compare_types
    from specllama.prompts import builtin_prompts, limited

    threads = arguments.n_threads or default_threads()
    options: dict[str, Any] = {"n_ctx": _CTX_SIZE, "n_threads": threads, "n_threads_batch": threads}
    first = str(next(iter(drafts.values())))
    with contextlib.closing(Llama(arguments.as_draft, draft_model=first, verbose=False, **options)) as llm:
        return compare_types(llm, drafts, limited(builtin_prompts(), 1), on_answer=on_progress)


def _show(types: list[DraftType]) -> None:
    """Print the comparison on stderr, since stdout is for the path."""
    from specllama.evidence.draft_types import within_error

    print("type            MB  tokens/s  accepted  against the file as it is", file=sys.stderr)
    for one in types:
        print(
            f"{one.name:<12}{one.size / 1e6:>6.0f}  {one.tokens_per_second:>8.1f}  {one.acceptance_rate:>8.0%}  "
            f"{one.speedup:.3f} (standard error {one.speedup_error:.3f})",
            file=sys.stderr,
        )
    if near := within_error(types):
        print(
            f"{types[0].name} was the fastest, but {', '.join(near)} may be as fast: within two standard errors",
            file=sys.stderr,
        )


def make(model: str, file_type: str, output: Path | None = None, threads: int = 0, force: bool = False) -> str:
    """Write a model with another type, with a progress bar on stderr.

    An existing file in the cache, where names say model and type, is used as it is. Any other existing file is replaced
    only with `force`.

    Returns:
        The path of the new file.

    Raises:
        FileExistsError: the file exists, and may not be replaced.
        ValueError: the model cannot be quantized, or the output is no name for a new file.
    """
    from specllama.commands.steps import in_tenths, steps
    from specllama.models import check_model, default_output, require_free_place, what_stays_lost, write_quantized

    is_path = os.path.exists(model)
    if is_path:
        check_model(Path(model))
    destination = output or default_output(model, file_type)
    if destination.exists() and not (force or is_path or output):
        return str(destination)
    require_free_place(destination, [resolve(model)])
    if destination.exists() and not force:
        raise _exists(destination)
    with steps() as progress:
        if (note := what_stays_lost(model, file_type)) is not None:
            progress.note(f"note: {note}")
        on_progress = in_tenths(progress)
        made = write_quantized(
            model, file_type, output=destination, threads=threads, on_progress=on_progress, on_note=progress.note
        )
        return str(made)


def _exists(path: Path) -> FileExistsError:
    return FileExistsError(f"{path} exists: name another file with --output, or replace it with --force")
