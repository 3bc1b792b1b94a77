"""Prints tokens per second of many texts at once, against one text after the other.

Run it where specllama is installed, on a quiet machine: ``python scripts/many_texts.py TARGET [DRAFT]``. The same
prompts, the shortest that come with specllama or the first of a file, are answered greedily in every mode, one mode
after the other: one by one, then several at once, each without drafts and, if there is a draft, with ``"auto"``. The
prompts' own time is part of it.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path
from typing import Any

import recorded
from pair import add_pair, opened

import specllama
from specllama.evidence.machine import describe_machine
from specllama.prompts import builtin_prompts, read_prompts

N_CTX = 512


def chosen(llm: specllama.Llama, given: argparse.Namespace) -> list[list[int]]:
    """The tokens of ``--texts`` prompts that leave room for an answer. Prompts are repeated if there are too few."""
    some = read_prompts(given.prompts)[0] if given.prompts else sorted(builtin_prompts(), key=lambda one: len(one.text))
    rendered = [prompt.rendered(llm).tokens for prompt in some]
    fitting = [tokens for tokens in rendered if len(tokens) + given.max_tokens <= N_CTX]
    return list(itertools.islice(itertools.cycle(fitting), given.texts))


def run(llm: specllama.Llama, prompts: list[Any], max_parallel: int, **options: Any) -> dict[str, Any]:
    """Answer all prompts in one mode, and return what that took."""
    start = time.perf_counter()
    outcomes = llm.create_completions(prompts, max_parallel=max_parallel, progress=False, **options)
    seconds = time.perf_counter() - start
    errors = [outcome.error for outcome in outcomes if outcome.error]
    if errors:
        raise errors[0]
    counters = llm.engine.texts.counters
    return {
        "max_parallel": max_parallel,
        "num_draft_tokens": options["num_draft_tokens"],
        "tokens": sum(outcome.stats.num_tokens for outcome in outcomes),
        "seconds": seconds,
        "decode_seconds": None if counters is None else counters.decode_seconds,
        "texts": [outcome.text for outcome in outcomes],
    }


def add_texts(parser: argparse.ArgumentParser, parallel: list[int]) -> None:
    """Adds the arguments for texts and records. `parallel` is the default of ``--parallel``."""
    parser.add_argument("--prompts", type=Path, help="as for specllama bench")
    parser.add_argument("--texts", type=int, default=16)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--parallel", type=int, nargs="+", default=parallel)
    parser.add_argument("--record", metavar="NAME", help="also write docs/data/NAME.json")


def close(llm: specllama.Llama, given: argparse.Namespace, runs: list[dict[str, Any]]) -> None:
    """Close the Llama, and keep the runs if ``--record`` was given."""
    machine = describe_machine(llm)
    llm.close()
    if given.record:
        recorded.keep(given.record, {"machine": machine, "texts": given.texts, "runs": runs})


def main() -> None:
    """Print tokens per second of each mode."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_pair(parser, needs_draft=False)
    add_texts(parser, [1, 2, 4, 8, 16])
    given = parser.parse_args()
    llm = opened(given, n_ctx=N_CTX)
    prompts = chosen(llm, given)
    runs: list[dict[str, Any]] = []
    plain: list[str] = []
    for max_parallel, drafted in [(n, d) for n in given.parallel for d in ((0, "auto") if given.draft else (0,))]:
        found = run(llm, prompts, max_parallel, max_tokens=given.max_tokens, temperature=0.0, num_draft_tokens=drafted)
        texts = found.pop("texts")
        plain = plain or texts
        found["equal"] = sum(one == other for one, other in zip(plain, texts, strict=True))
        runs.append(found)
        rate = found["tokens"] / found["seconds"]
        print(
            f"{max_parallel:3} at once, {drafted!s:>4}: {rate:6.1f} tokens/s, {found['equal']} texts equal", flush=True
        )
    close(llm, given, runs)


if __name__ == "__main__":
    main()
