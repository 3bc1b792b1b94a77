"""Prints what a token, a batch of eight and a part of a prompt cost behind long texts, by turns with both kernels.

Run it where specllama is installed: ``python scripts/long_contexts.py MODEL`` (a path or a name). Nothing else should
use the machine. Both contexts read the same text, and stop at some places: there the next tokens are decoded and
dropped again. The part of a prompt is what is read on the way to such a place.
"""

from __future__ import annotations

import contextlib
import statistics
from typing import Any

import numpy as np
import recorded
from batch_costs import WAYS

import specllama
from specllama.backend.cpu import default_threads
from specllama.engine.direct import Direct
from specllama.evidence.machine import describe_machine

PLACES = (128, 2_000, 4_000, 8_000, 16_000)
SIZES = (1, 8)
PART = 512  # tokens of a prompt before each place


def measured(directs: dict[str, Direct], tokens: np.ndarray, place: int, repeats: int) -> dict[str, Any]:
    """What the decodes at one place cost, in seconds."""
    part = tokens[max(0, place - PART) : place]
    parts = {}
    for way, direct in directs.items():
        direct.prefill(tokens[: place - len(part)])
        parts[way] = [len(part), direct.seconds(part, last_only=True)]
    batches = {way: {size: [] for size in SIZES} for way in directs}
    for repeat in range(repeats + 1):
        for way, direct in directs.items():
            for size in SIZES:
                direct.prefill(tokens[:place])
                seconds = direct.seconds(tokens[place : place + size])
                if repeat:  # the first turn only warms up
                    batches[way][size].append(seconds)
    return {"behind": place, "batches": batches, "part": parts}


def told(row: dict[str, Any]) -> str:
    """A line about one place."""
    shown = []
    for way, (count, seconds) in row["part"].items():
        costs = (f"T({n}) {statistics.median(one) * 1e3:.1f}" for n, one in row["batches"][way].items())
        shown.append(f"{way}: {', '.join(costs)} ms, prompt {count / seconds:.0f} tokens/s")
    return f"behind {row['behind']}: {'; '.join(shown)}"


def main() -> None:
    """Print a row for each place."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    n = default_threads()
    options = {"n_ctx": max(PLACES) + max(SIZES), "n_batch": PART, "n_threads": n, "n_threads_batch": n}
    tokens = np.random.default_rng(1).integers(1000, 10_000, options["n_ctx"]).astype(np.int32)
    with contextlib.ExitStack() as stack:
        models = {}
        for way, kernels in WAYS.items():
            llm = specllama.Llama(given.model, kernels=kernels, verbose=False, **options)
            models[way] = stack.enter_context(contextlib.closing(llm))
        directs = {way: stack.enter_context(llm.engine.direct()) for way, llm in models.items()}
        rows = []
        for place in PLACES:
            rows.append(measured(directs, tokens, place, given.repeats))
            print(told(rows[-1]), flush=True)
        if given.record:
            recorded.keep(given.record, {"machine": describe_machine(models["ours"]), "rows": rows})


if __name__ == "__main__":
    main()
