"""Compares short calls with a folder that keeps their texts (``cache_dir``, or ``learn``), and without, by turns.

``python scripts/keeping_cost.py MODEL [--learn]``. Each call has a prompt of its own, so that each is kept as a whole.
The time of a call lasts until its text is written. Its processor time, that of all threads, says the same on a machine
that does other things besides; ``-t 1`` has no thread wait for another one.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import numpy as np
import recorded

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine
from specllama.models import resolve

LENGTHS = (64, 256)  # tokens of an answer
PROMPT = 64  # tokens


class Sample(NamedTuple):
    """What a call took, with writing."""

    seconds: float
    processor_seconds: float


def called(llm: specllama.Llama, prompt: Sequence[int], length: int) -> Sample:
    """Answer a prompt with so many tokens."""
    start, processor = time.perf_counter(), time.process_time()
    for _ in llm.engine.generate(prompt, max_tokens=length, temperature=0.0):
        pass
    llm.engine.store.flush()
    if llm.engine.account.examples is not None:
        llm.engine.account.examples.flush()
    found = Sample(time.perf_counter() - start, time.process_time() - processor)
    if llm.stats.num_tokens != length:
        raise RuntimeError(f"{llm.stats.num_tokens} tokens instead of {length}")
    return found


def compared(
    ways: Mapping[str, specllama.Llama], prompts: Sequence[Sequence[int]], length: int
) -> dict[str, list[Sample]]:
    """Call both ways with each prompt. The first prompt only warms up."""
    samples: dict[str, list[Sample]] = {way: [] for way in ways}
    for number, prompt in enumerate(prompts):
        for way in ways if number % 2 else reversed(ways):
            samples[way].append(called(ways[way], prompt, length))
    return {way: several[1:] for way, several in samples.items()}


def ratios(samples: Mapping[str, Sequence[Sample]], place: int) -> list[float]:
    """The time with a folder over that without, of each prompt. place: which time of a `Sample`."""
    return [one[place] / other[place] for one, other in zip(samples["with"], samples["without"], strict=True)]


def told(length: int, samples: Mapping[str, Sequence[Sample]]) -> str:
    """A line about calls of one length."""
    shown = []
    for place, name in enumerate(Sample._fields):
        found = ratios(samples, place)
        shown.append(f"{name.replace('_', ' ')} {statistics.median(found):.3f} ({min(found):.3f} - {max(found):.3f})")
    return f"{length} tokens, with a folder over without: {', '.join(shown)}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, tell and write."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, help="tokens of an answer")
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--learn", action="store_true", help="keep what a draft can learn, and no KV cache")
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    given = parser.parse_args(arguments)
    n = given.threads
    options = {"n_ctx": 1024, "n_threads": n, "n_threads_batch": n, "verbose": False}
    model = resolve(given.model)
    with tempfile.TemporaryDirectory() as folder, specllama.Llama(model, **options) as without, ExitStack() as stack:
        kept: dict[str, object] = {"cache_dir": Path(folder)}
        if given.learn:
            kept, os.environ["SPECLLAMA_CACHE"] = {"learn": True}, folder
        keeping = stack.enter_context(specllama.Llama(model, **kept, **options))
        random, n_vocab, rows = np.random.default_rng(1), without.n_vocab(), []
        for length in given.lengths:
            prompts = random.integers(n_vocab // 10, n_vocab // 2, (given.repeats + 1, PROMPT)).tolist()
            samples = compared({"without": without, "with": keeping}, prompts, length)
            rows.append({"tokens": length, **{way: [*map(list, several)] for way, several in samples.items()}})
            print(told(length, samples), flush=True)
        if given.record:
            recorded.keep(given.record, {"machine": describe_machine(keeping), "rows": rows})


if __name__ == "__main__":
    main()
