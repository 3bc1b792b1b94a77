"""Prints how much memory a text takes among others, its KV cache apart (Linux).

Run it where specllama is installed: ``python scripts/text_memory.py TARGET DRAFT``. The same prompts as in
scripts/many_texts.py are answered with 2 texts at once and with more, each in a process of its own. The memory
of a text is what a process with more texts holds more, divided by how many texts more it has.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from typing import Any

import recorded
from loading import memory
from many_texts import N_CTX, chosen
from pair import add_pair, opened

import specllama
from specllama.evidence.machine import describe_machine

FEWEST = 2  # one text alone is decoded in another way


def cache_bytes(llm: specllama.Llama) -> int:
    """The bytes of one text's KV caches of both models, as F16."""
    return N_CTX * sum(_token_bytes(one.metadata) for one in (llm, llm.draft_model))


def _token_bytes(metadata: dict[str, str]) -> int:
    def number(key: str) -> int:
        return int(metadata[f"{metadata['general.architecture']}.{key}"])

    head = number("embedding_length") // number("attention.head_count")
    return number("block_count") * 2 * number("attention.head_count_kv") * head * 2


def held(given: argparse.Namespace) -> dict[str, Any]:
    """The memory of this process after answering twice as many texts as run at once, with a draft."""
    (parallel,) = given.parallel
    llm = opened(given, n_ctx=N_CTX, max_parallel=parallel)
    given.texts, given.prompts = 2 * parallel, None
    options = {"max_tokens": given.max_tokens, "temperature": 0.0, "num_draft_tokens": 4}
    outcomes = llm.create_completions(chosen(llm, given), max_parallel=parallel, progress=False, **options)
    found = {"parallel": parallel, "anonymous": memory("")["anonymous"], "cache": parallel * cache_bytes(llm)}
    found["errors"] = sum(outcome.error is not None for outcome in outcomes)
    found["machine"] = describe_machine(llm)
    llm.close()
    return found


def main() -> None:
    """Print a row for each number of texts."""
    parser = recorded.parser(__doc__)
    add_pair(parser)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument("--parallel", type=int, nargs="+", default=[4, 8, 16])
    parser.add_argument("--here", action="store_true", help="once in this process, and print the result as JSON")
    given = parser.parse_args()
    if given.here:
        print(json.dumps(held(given)))
        return
    runs = []
    for parallel in (FEWEST, *given.parallel):
        same = [given.target, given.draft, "-t", str(given.threads), "-n", str(given.max_tokens)]
        command = [sys.executable, __file__, *same, "--here", "--parallel", str(parallel)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append(json.loads(re.findall(r"^\{.*\}$", done.stdout, re.M)[-1]))
        base, run = runs[0], runs[-1]
        more = parallel - FEWEST
        rest = {key: run[key] - base[key] for key in ("anonymous", "cache")}
        each = f"{(rest['anonymous'] - rest['cache']) / more / 2**20:.1f}" if more else "-"
        sizes = f"{run['anonymous'] / 2**20:.0f} MiB, of which {run['cache'] / 2**20:.0f} are caches"
        print(f"{parallel:3} at once: {sizes}; a text takes {each} MiB besides; {run['errors']} errors", flush=True)
    if given.record:
        recorded.keep(given.record, {"machine": runs[0]["machine"], "runs": runs})


if __name__ == "__main__":
    main()
