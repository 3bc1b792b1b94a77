"""Prints what `create_completion` costs outside the native loop, in microseconds a token, on a tiny model.

Run it from a clone where specllama is installed: ``python scripts/overhead.py``. Nothing else should use the machine.

Each figure is the least of many runs: the time of the whole call, less that of decoding, sampling and rolling back.
What a call costs once (a few hundred microseconds) is in it, so that short texts cost more a token.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import recorded

import specllama
from specllama.evidence.machine import describe_machine

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import tiny_models as tiny

LENGTHS = (16, 50, 400, 2000)  # tokens
RUNS = 12_000  # tokens for one figure, about
PROMPT = "the cat sat on the dog and"
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "three stop strings": {"stop": ["\n\nUser:", "</s>", "zzzz"]},
    "logprobs=3": {"logprobs": 3},
}


def outside(llm: specllama.Llama, length: int, options: dict[str, Any]) -> float:
    """The microseconds that one call takes outside the loop, for each token."""
    start = time.perf_counter()
    # The token that would end the text is forbidden.
    bias = {llm.token_eos(): -100.0}
    answer = llm.create_completion(PROMPT, max_tokens=length, temperature=0.9, seed=3, logit_bias=bias, **options)
    if options["stream"]:
        for _ in answer:
            pass
    whole = time.perf_counter() - start
    stats = llm.stats
    if stats.num_tokens != length:
        raise RuntimeError(f"{stats.num_tokens} tokens instead of {length}")
    decoding = stats.prompt_seconds + stats.draft_seconds + stats.verify_seconds
    return (whole - decoding - stats.sample_seconds - stats.rollback_seconds) / length * 1e6


def main() -> None:
    """Print the table."""
    parser = recorded.parser(__doc__)
    given = parser.parse_args()
    rows = []
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        words = tiny.word_vocabulary()
        path = str(tiny.write_llama(Path(folder) / "tiny.gguf", words, tiny.llama_weights(words, seed=1)))
        llm = specllama.Llama(path, draft_model=path, n_ctx=4096, n_threads=1, n_threads_batch=1, verbose=False)
        print("| draft tokens | stream | with | " + " | ".join(f"{length} tokens" for length in LENGTHS) + " |")
        print("|---|---|---|" + "---:|" * len(LENGTHS))
        for gamma, stream, (name, way) in itertools.product((0, 4), (False, True), WAYS.items()):
            options = {"num_draft_tokens": gamma, "stream": stream, **way}
            least = [min(outside(llm, n, options) for _ in range(1 + RUNS // n)) for n in LENGTHS]
            rows.append(
                {"drafted": gamma, "stream": stream, "with": name, "us": dict(zip(LENGTHS, least, strict=True))}
            )
            print(
                f"| {gamma} | {stream} | {name} | " + " | ".join(f"{value:.0f}" for value in least) + " |", flush=True
            )
        if given.record:
            recorded.keep(given.record, {"machine": describe_machine(llm), "rows": rows})
        llm.close()


if __name__ == "__main__":
    main()
