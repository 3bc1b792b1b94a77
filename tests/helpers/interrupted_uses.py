"""Ctrl-C at many places of one use of a Llama or an engine: after each, nothing is lost, and nothing is wrong.

As a program it runs in a child, because a wrong order of freeing ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import json
import os
import random
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interrupts import Interruption

PROMPT = "the cat"
_KEPT = 100_000  # bytes that Python and llama.cpp may keep after a use; a context of these models takes more
_HANGS = 300.0  # seconds of a use
_PATIENCE = 5.0  # seconds
_OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1}


def interrupted(use: str, target: Path, rounds: int, **options: Any) -> int:
    """Interrupt a use of a Llama in a child process, at so many places. Returns how often; fails if the child does.

    Args:
        use: one of the ``runs`` in `_main`.
        target: the target.
        rounds: the most interruptions. If the use has more, they are drawn, always the same.
        options: arguments of ``Llama``.
    """
    given = json.dumps([use, str(target), rounds, options])
    done = subprocess.run([sys.executable, __file__, given], capture_output=True, text=True, check=False, timeout=3000)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    return int(done.stdout.split()[-1])


def _main(use: str, target: str, rounds: int, options: dict[str, Any]) -> int:
    import specllama

    def opened(**more: Any) -> specllama.Llama:
        return specllama.Llama(target, verbose=False, use_mmap=False, **_OPTIONS, **{**options, **more})

    def text(llm: specllama.Llama) -> str:
        return str(llm.create_completion(PROMPT, max_tokens=8, temperature=0.0)["choices"][0]["text"])

    with opened() as llm:
        expected = text(llm)
        ids = llm.tokenize(PROMPT.encode())

    def closing(end: Callable[[specllama.Llama], object]) -> Callable[[Interruption], bool]:
        def run(interruption: Interruption) -> bool:
            llm = opened()
            assert text(llm) == expected
            was = interruption.of(llm.close)
            with contextlib.suppress(specllama.ClosedError):
                assert text(llm) == expected
            end(llm)
            return was

        return run

    def exchanging(before: Any, after: Any) -> Callable[[Interruption], bool]:
        def run(interruption: Interruption) -> bool:
            with opened(**before) as llm:
                assert text(llm) == expected
                was = interruption.of(lambda: setattr(llm, "draft_model", after))
                assert text(llm) == expected
            return was

        return run

    def opening(interruption: Interruption) -> bool:
        made: list[specllama.Llama] = []
        was = interruption.of(lambda: made.append(opened()))
        for llm in made:
            assert text(llm) == expected
            llm.close()
        return was

    def texts(**more: Any) -> Callable[[Interruption], bool]:
        def run(interruption: Interruption) -> bool:
            with opened(**more) as llm:

                def read() -> None:
                    for outcome in llm.create_completions([PROMPT] * 4, max_tokens=8, temperature=0.0, stream=True):
                        assert outcome.text == expected

                was = interruption.of(read)
                assert text(llm) == expected
            return was

        return run

    def of_an_engine(interruption: Interruption) -> bool:
        def use_it() -> None:
            with specllama.Engine.open(target, options.get("draft_model"), n_ctx=256, n_threads=1) as engine:
                assert len(list(engine.generate(ids, max_tokens=8))) == 8

        return interruption.of(use_it)

    draft = options.get("draft_model")
    runs: dict[str, Callable[[Interruption], bool]] = {
        "close": closing(lambda llm: llm.close()),
        "close and drop": closing(lambda llm: None),
        "exchange": exchanging({}, None if draft == "mtp" else "lookup"),
        "put": exchanging({"draft_model": None, "draft_kwargs": None}, draft),
        "open": opening,
        "texts": texts(max_parallel=2),
        "texts in a row": texts(max_parallel=1),
        "engine": of_an_engine,
    }
    return interrupt_each(runs[use], rounds)


def interrupt_each(run: Callable[[Interruption], bool], rounds: int, *, within: str = "", kept: int = _KEPT) -> int:
    """Interrupt a use again and again, each time at another place. Fails if one hangs, or keeps memory or a thread.

    Args:
        run: the use. It says whether it was interrupted, and checks what came of it.
        rounds: the most interruptions. If the use has more, they are drawn. SPECLLAMA_SEED draws others.
        within: a folder: only places in its files count.
        kept: the most bytes that a use may keep.

    Returns:
        The number of interruptions.
    """
    for _ in range(3):
        faulthandler.dump_traceback_later(_HANGS, exit=True)
        longest = Interruption(sys.maxsize, within)
        assert not run(longest)
    gc.collect()
    gc.freeze()  # what is there now needs no collecting: that would take most of the time
    drawn = random.Random(f"{os.environ.get('SPECLLAMA_SEED', '')} {longest.num_places}")
    count, lost, places = 0, 0, range(1, longest.num_places + 1)
    before, threads = _bytes_in_use(), _num_threads(sys.maxsize)  # that of faulthandler included
    for number in places if len(places) <= rounds else sorted(drawn.sample(places, rounds)):
        interruption = Interruption(number, within)
        faulthandler.dump_traceback_later(_HANGS, exit=True)
        try:
            count += run(interruption)
        except BaseException:
            sys.stderr.write(f"interrupted at {interruption.where}\n")
            raise
        now_threads, now = _num_threads(threads), _bytes_in_use()
        if now > before + kept or now_threads > threads:
            lost += 1
            sys.stderr.write(f"{now - before:,} bytes and {now_threads - threads} threads: {interruption.where}\n")
        before, threads = max(before, now), max(threads, now_threads)
    faulthandler.cancel_dump_traceback_later()
    assert not lost
    return count


def _num_threads(most: int = 0) -> int:
    """Of this process, those of C included; 0 where the system does not say.

    While there are more than `most`, it waits for a while: threads that were told to end may need to finish a step.
    """
    tasks = Path("/proc/self/task")
    found, last = 0, time.monotonic() + _PATIENCE
    while tasks.is_dir() and (found := len(list(tasks.iterdir()))) > most and time.monotonic() < last:
        time.sleep(0.002)
    return found


def _bytes_in_use() -> int:
    """The bytes that malloc has given and not got back; 0 where it does not say."""
    gc.collect()
    gc.collect()  # what the first one has ended may hold more
    read = getattr(ctypes.CDLL(None), "mallinfo2", None) if os.name == "posix" else None
    if read is None:
        return 0
    read.restype = _Mallinfo
    found = read()
    return int(found.hblkhd + found.uordblks)


class _Mallinfo(ctypes.Structure):
    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost").split()
    ]


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.stdout.write(f"{_main(*json.loads(sys.argv[1]))}\n")
