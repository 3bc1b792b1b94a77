"""Ctrl-C at many places of one use of a Llama or an engine: after each, nothing is lost, and nothing is wrong.

As a program it runs in a child, because a wrong order of freeing ends the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import random
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from interrupts import Interruption

PROMPT = "the cat"
_KEPT = 100_000  # bytes that Python and llama.cpp may keep after a use; a context of these models takes more
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
    return _interrupt(runs[use], rounds)


def _interrupt(run: Callable[[Interruption], bool], rounds: int) -> int:
    """Returns the number of interruptions."""
    for _ in range(3):
        longest = Interruption(sys.maxsize)
        assert not run(longest)
    count, lost, places = 0, 0, range(1, longest.num_places + 1)
    before = _bytes_in_use()
    for number in places if len(places) <= rounds else sorted(random.Random(len(places)).sample(places, rounds)):
        interruption = Interruption(number)
        try:
            count += run(interruption)
        except BaseException:
            sys.stderr.write(f"interrupted at {interruption.where}\n")
            raise
        now = _bytes_in_use()
        if now > before + _KEPT:
            lost += 1
            sys.stderr.write(f"{now - before:,} bytes were lost at {interruption.where}\n")
        before = max(before, now)
    assert not lost
    return count


def _bytes_in_use() -> int:
    """The bytes that malloc has given and not got back; 0 where it does not say."""
    gc.collect()
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
