"""Prints how many texts with a draft differ from those without, and what batches cost, with the kernels and without.

Run it where specllama is installed, on a quiet machine: ``python scripts/same_bits.py -m TARGET -md DRAFT``. Names of
the catalog are understood. Both parts are done with flash attention and without, with the kernels and without them.

- Texts: greedy, the prompts that come with specllama (or those of ``--prompts FILE``), spread over the list.
- Costs: milliseconds of a batch of 1 and of 8 tokens behind 128 and behind 2000, the median of several.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import specllama
from specllama.engine.memory import sequence_of
from specllama.models.catalog import resolve
from specllama.prompts import builtin_prompts, read_prompts

SIZES = (1, 8)
LENGTHS = (128, 2000)
REPEATS = 9


@contextlib.contextmanager
def opened(arguments: argparse.Namespace, kernels: str, flash: bool, draft: str | None) -> Iterator[specllama.Llama]:
    """A Llama, with a draft or without."""
    threads = {"n_threads": arguments.threads, "n_threads_batch": arguments.threads}
    model, draft = (name and resolve(name) for name in (arguments.model, draft))
    with contextlib.closing(
        specllama.Llama(
            str(model), draft_model=draft, n_ctx=2100, flash_attn=flash, kernels=kernels, verbose=False, **threads
        )
    ) as llm:
        yield llm


def count_texts(llm: specllama.Llama, arguments: argparse.Namespace) -> str:
    """How many texts part."""
    prompts = read_prompts(arguments.prompts)[0] if arguments.prompts else builtin_prompts()
    count = min(arguments.texts, len(prompts))
    differ = 0
    for i in range(count):
        rendered = prompts[i * len(prompts) // count].rendered(llm)
        texts = []
        for gamma in (0, arguments.num_draft_tokens):
            llm.reset()
            answer = llm.create_completion(
                list(rendered.tokens), max_tokens=arguments.max_tokens, temperature=0, num_draft_tokens=gamma
            )
            texts.append(answer["choices"][0]["text"])
        differ += texts[0] != texts[1]
    return f"{differ} of {count} texts differ; batch_invariant={llm.stats.batch_invariant}"


def costs(llm: specllama.Llama) -> str:
    """What batches cost behind a short and a long text."""
    sequence = sequence_of(llm, "target")
    tokens = np.random.default_rng(1).integers(100, 5000, max(LENGTHS) + max(SIZES)).astype(np.int32)
    found = []
    for length in LENGTHS:
        start = time.perf_counter()
        for first in range(sequence.num_tokens, length, llm.n_batch):
            part = tokens[first : min(length, first + llm.n_batch)]
            sequence.decode(part, len(part))
        prompt = time.perf_counter() - start
        seconds: dict[int, list[float]] = {size: [] for size in SIZES}
        for _, size in itertools.product(range(REPEATS), SIZES):
            start = time.perf_counter()
            sequence.decode(tokens[length : length + size], 0)
            seconds[size].append(time.perf_counter() - start)
            sequence.keep(length)
        medians = ", ".join(f"T({size}) {1000 * statistics.median(seconds[size]):.1f}" for size in SIZES)
        found.append(f"behind {length}: {medians} (prompt {prompt:.1f} s)")
    return "; ".join(found)


def main() -> None:
    """Print both parts for each combination."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--draft-model", "-md")
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--texts", type=int, default=40)
    parser.add_argument("--max-tokens", "-n", type=int, default=64)
    parser.add_argument("--num-draft-tokens", type=int, default=4)
    parser.add_argument("--prompts", type=Path)
    arguments = parser.parse_args()
    for kernels, flash in itertools.product(("auto", "off"), (False, True)):
        name = f"kernels {kernels}, flash attention {'on' if flash else 'off'}"
        with opened(arguments, kernels, flash, None) as llm:
            print(f"{name}: {costs(llm)}", flush=True)
        if arguments.draft_model and arguments.texts:
            with opened(arguments, kernels, flash, arguments.draft_model) as llm:
                print(f"{name}: {count_texts(llm, arguments)}", flush=True)


if __name__ == "__main__":
    main()
