"""Prints what the lookup drafter's index costs for each token: microseconds and bytes, by length and kind of text.

Run it where specllama is installed: ``python scripts/lookup_cost.py``. Nothing else should use the machine.

The columns are:

- a whole text is appended at once, with the time in which the index grows;
- one more token is appended and what followed it before is looked up, again and again;
- a token is appended and looked up in indexes that have left the processor's caches, as after a decode.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import recorded

from specllama import _core_test as _test
from specllama.backend.cpu import cpu_name

Tokens = npt.NDArray[np.int32]

LENGTHS = (1_000, 10_000, 100_000)
STEPS = 500  # how many ends of a text are looked up
REPEATS = 15  # the least of so many times counts: other work on the machine only makes it slower
INDEXES = 200  # so many are looked up once each, after the caches were filled with other data
LARGEST_CACHE = 256 << 20  # bytes


def random_text(count: int, rng: np.random.Generator) -> Tokens:
    """A text in which tokens repeat only by chance."""
    return rng.integers(0, 150_000, count).astype(np.int32)


def natural_text(count: int, rng: np.random.Generator) -> Tokens:
    """A text of few frequent and many rare tokens, as in languages (Zipf's law)."""
    weights = 1.0 / np.arange(1, 50_001)
    return rng.choice(len(weights), count, p=weights / weights.sum()).astype(np.int32)


def repetitive_text(count: int, rng: np.random.Generator) -> Tokens:
    """A sentence that is repeated, so that all its occurrences agree as far as the index compares them."""
    return np.resize(rng.integers(0, 150_000, 40), count).astype(np.int32)


KINDS: dict[str, Callable[[int, np.random.Generator], Tokens]] = {
    "random": random_text,
    "natural": natural_text,
    "repetitive": repetitive_text,
}


def built(text: Tokens) -> _test.SuffixIndex:
    """An index of a text."""
    index = _test.SuffixIndex()
    index.append(text)
    return index


def follow(indexes: list[_test.SuffixIndex], pieces: list[Tokens]) -> None:
    """Append its piece to each index, and look up what followed it before."""
    for index, piece in zip(indexes, pieces, strict=True):
        index.append(piece)
        index.longest()


def seconds(work: Callable[[], object]) -> float:
    """The seconds that a call takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def appending(text: Tokens) -> float:
    """Seconds for each token, if a whole text is appended."""
    return min(seconds(functools.partial(built, text)) for _ in range(REPEATS)) / len(text)


def looking_up(indexes: list[_test.SuffixIndex], pieces: list[Tokens], prepare: Callable[[], object]) -> float:
    """Seconds to append a piece and look it up, less the time of equal calls without tokens."""
    nothing, nowhere = [np.empty(0, dtype=np.int32)] * len(pieces), [_test.SuffixIndex()] * len(pieces)
    lengths = [len(index) for index in indexes]
    least, least_of_nothing = float("inf"), float("inf")
    for _ in range(REPEATS):
        prepare()
        least_of_nothing = min(least_of_nothing, seconds(functools.partial(follow, nowhere, nothing)))
        prepare()
        least = min(least, seconds(functools.partial(follow, indexes, pieces)))
        for index, length in zip(indexes, lengths, strict=True):
            index.truncate(length)
    return (least - least_of_nothing) / len(pieces)


def main() -> None:
    """Print the table."""
    parser = recorded.parser(__doc__)
    given = parser.parse_args()
    rows = []
    other = np.zeros(LARGEST_CACHE, dtype=np.uint8)
    print("| text | tokens | append, µs | append and look up, µs | not in the cache, µs | bytes a token |")
    print("|---|---:|---:|---:|---:|---:|")
    for kind, make in KINDS.items():
        for count in LENGTHS:
            text = make(count + STEPS, np.random.default_rng(0))
            pieces = [text[i : i + 1] for i in range(count, count + STEPS)]
            index = built(text[:count])
            size = index.memory
            warm = looking_up([index] * STEPS, pieces, lambda: None)
            many = [built(text[: count + i]) for i in range(INDEXES)]
            cold = looking_up(many, pieces[:INDEXES], functools.partial(np.add, other, 1, out=other))
            micros = [1e6 * value for value in (appending(text[:count]), warm, cold)]
            times = " | ".join(f"{value:.2f}" for value in micros)
            print(f"| {kind} | {count:,} | {times} | {size / count:.1f} |")
            rows.append({"text": kind, "tokens": count, "us": micros, "bytes": size / count})
    if given.record:
        recorded.keep(given.record, {"machine": {"cpu": cpu_name()}, "rows": rows})


if __name__ == "__main__":
    main()
