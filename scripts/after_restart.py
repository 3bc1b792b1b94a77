"""Measures the time to the first token after a restart, behind long texts: read again, or put back from files.

``python scripts/after_restart.py MODEL`` has specllama read a text twice: without a store, and with a folder that keeps
it (``cache_dir``). Then new processes with the folder are sent the same text. By turns with them the folder's files are
copied from the system's cache into memory that has been touched before. ``--server FOLDER`` has llama-server do the
same with a slot that is saved (see scripts/llama_server.py): its time is that of restoring and of the first token.
Reading is measured once, since it takes minutes. Nothing else should use the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import recorded
from programs import Program, Reply, ours, theirs, tokens_of
from transcripts import long_text

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine

PLACES = (4_000, 16_000)

Start = Callable[[], contextlib.AbstractContextManager[Program]]


def copied(folder: Path) -> tuple[float, int]:
    """How many seconds it takes to copy all files of a folder from the system's cache into memory; and their bytes."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    sizes = [path.stat().st_size for path in files]
    room = np.ones(sum(sizes), np.uint8)  # its pages are there
    start, done = time.perf_counter(), 0
    for path, size in zip(files, sizes, strict=True):
        with open(path, "rb", buffering=0) as file:
            while size:
                count = file.readinto(memoryview(room)[done : done + size])
                done, size = done + count, size - count
    return time.perf_counter() - start, done


def asked(start: Start, tokens: Sequence[int]) -> dict[str, Any]:
    """What a new process takes for a prompt."""
    with start() as program:
        reply: Reply = program.ask("main", tokens, 1)
    return reply._asdict()


def measured(given: argparse.Namespace, tokens: Sequence[int], folder: Path) -> dict[str, Any]:
    """All times behind one text, by turns."""
    n, n_ctx = given.threads, len(tokens) + 256
    options = {"model_path": given.model, "n_ctx": n_ctx, "n_threads": n, "n_threads_batch": n}
    blocks, slots = folder / "blocks", folder / "slots"
    ways: dict[str, Start] = {"put back": lambda: ours(**options, cache_dir=blocks)}
    found: dict[str, Any] = {"behind": len(tokens), "kept": asked(ways["put back"], tokens)}
    found["read"] = [asked(lambda: ours(**options), tokens)]
    if given.server:
        slots.mkdir()
        ways["llama-server, slot restored"] = lambda: theirs(given.server, given.model, n_ctx, n, slots=slots)
        found["llama-server, read"] = [asked(ways["llama-server, slot restored"], tokens)]
    for _ in range(given.repeats):
        for way, start in ways.items():
            found.setdefault(way, []).append(asked(start, tokens))
        seconds, size = copied(blocks)
        found.setdefault("copied", []).append({"seconds": seconds, "bytes": size})
    return found


def told(found: dict[str, Any]) -> str:
    """A line about one text."""
    samples = {way: [one["seconds"] for one in several] for way, several in found.items() if isinstance(several, list)}
    shown = (f"{way} {statistics.median(one):.3f} s ({min(one):.3f} - {max(one):.3f})" for way, one in samples.items())
    again = {way: {one["num_decoded"] for one in found[way]} for way in samples if way != "copied"}
    return f"behind {found['behind']}: {', '.join(shown)}; decoded {again}"


def prepared(llm: specllama.Llama, count: int) -> tuple[list[int], dict[str, Any]]:
    """A long text as a model's tokens, and the description of the machine. It runs in the process of specllama."""
    return long_text(partial(tokens_of, llm), 1, count), describe_machine(llm)


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, tell and write."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--server", type=Path)
    parser.add_argument("--behind", type=int, nargs="+", default=PLACES, help="tokens")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    given = parser.parse_args(arguments)
    with ours(model_path=given.model, n_ctx=512) as llm:
        text, machine = llm.call(prepared, max(given.behind))
    rows = []
    for behind in given.behind:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(measured(given, text[:behind], Path(folder)))
        print(told(rows[-1]), flush=True)
    if given.record:
        recorded.keep(given.record, {"machine": machine, "rows": rows})


if __name__ == "__main__":
    main()
