"""Prints what batches and prompts cost with llama.cpp's kernels and with ours, by turns in one process.

Run it where specllama is installed: ``python scripts/batch_costs.py MODEL`` (a path or a name). Nothing else should use
the machine. A batch of n tokens is decoded behind 128 others (``--behind``), with logits for all of them, as
verification needs it; a prompt is decoded from its first token, with logits for the last one.
"""

from __future__ import annotations

import argparse
import statistics

import llama_cpp
import numpy as np
import recorded

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
PROMPTS = (128, 512)
CACHES = {"F16": llama_cpp.GGML_TYPE_F16, "F32": llama_cpp.GGML_TYPE_F32, "Q8_0": llama_cpp.GGML_TYPE_Q8_0}
WAYS = {"llama.cpp": "off", "ours": "auto"}

Samples = dict[int, list[float]]


def turn(llm: specllama.Llama, tokens: np.ndarray, behind: int, batches: Samples, prompts: Samples) -> None:
    """Decode each size once, and add the seconds to the samples."""
    with llm.engine.direct() as direct:
        for n in prompts:
            direct.clear()
            prompts[n].append(direct.seconds(tokens[:n], last_only=True))
        for n in batches:
            direct.prefill(tokens[:behind])
            batches[n].append(direct.seconds(tokens[behind : behind + n]))


def main() -> None:
    """Print a row for each size."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--behind", type=int, default=128, help="tokens before a batch")
    parser.add_argument("--flash-attn", action=argparse.BooleanOptionalAction, help="as a Llama has it by itself")
    parser.add_argument("--cache", choices=CACHES, default="F16", help="type of the KV cache, default F16")
    given = parser.parse_args()
    n = default_threads()
    size = max(*PROMPTS, given.behind + max(SIZES))
    options = {"n_ctx": size, "n_threads": n, "n_threads_batch": n, "flash_attn": given.flash_attn, "verbose": False}
    options |= dict.fromkeys(("type_k", "type_v"), CACHES[given.cache])
    models = {way: specllama.Llama(given.model, kernels=kernels, **options) for way, kernels in WAYS.items()}
    n_vocab = models["ours"].n_vocab()
    tokens = np.random.default_rng(1).integers(n_vocab // 100, n_vocab // 10, size).astype(np.int32)
    batches: dict[str, Samples] = {way: {n: [] for n in SIZES} for way in WAYS}
    prompts: dict[str, Samples] = {way: {n: [] for n in PROMPTS} for way in WAYS}
    for repeat in range(given.repeats + 1):
        for way, llm in models.items():
            turn(llm, tokens, given.behind, batches[way], prompts[way])
            if repeat == 0:  # the first turn only warms up
                for samples in (*batches[way].values(), *prompts[way].values()):
                    samples.clear()
    for way, samples in batches.items():
        cells = (f"T({n}) {statistics.median(one) * 1e3:.1f}" for n, one in samples.items())
        rates = (f"{n / statistics.median(one):.0f}" for n, one in prompts[way].items())
        print(f"{way}: {', '.join(cells)} ms; prompts {', '.join(rates)} tokens/s ({models[way].kernels})")
    if given.record:
        settings = {"behind": given.behind, "flash_attn": given.flash_attn, "cache": given.cache}
        found = {"machine": describe_machine(models["ours"]), **settings, "batches": batches, "prompts": prompts}
        recorded.keep(given.record, found)
    for llm in models.values():
        llm.close()


if __name__ == "__main__":
    main()
