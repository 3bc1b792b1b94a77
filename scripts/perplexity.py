"""Prints a model's perplexity with llama.cpp's kernels and with ours, over the same tokens.

Run it where specllama is installed: ``python scripts/perplexity.py MODEL`` (a path or a name). It needs no quiet
machine. The text is that of Python's own help topics (``pydoc_data.topics``), which every Python brings along.
"""

from __future__ import annotations

import hashlib
import math
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import recorded

import specllama
from specllama.engine import Direct
from specllama.evidence.machine import describe_machine

WINDOW = 500  # tokens that are decoded together; the first one of each is not judged


def surprise(direct: Direct, tokens: list[int]) -> list[float]:
    """Minus the logarithm of each token's probability, given the tokens before it in its window."""
    found: list[float] = []
    for start in range(0, len(tokens), WINDOW):
        window = tokens[start : start + WINDOW]
        direct.clear()
        for row, token in zip(direct.decode(window), window[1:], strict=False):
            exact = row.astype(np.float64)
            largest = exact.max()
            found.append(float(np.log(np.exp(exact - largest).sum()) + largest - exact[token]))
    return found


def measured(model: str, kernels: str, text: str, count: int, threads: int | None) -> dict[str, Any]:
    """The perplexity with one choice of kernels."""
    options = {"n_threads": threads, "n_threads_batch": threads, "verbose": False}
    llm = specllama.Llama(model, n_ctx=WINDOW + 12, kernels=kernels, **options)
    tokens = llm.tokenize(text.encode(), add_bos=False)[:count]
    with llm.engine.direct() as direct:
        logs = surprise(direct, tokens)
    found = {"kernels": str(llm.kernels), "perplexity": math.exp(sum(logs) / len(logs)), "logs": logs}
    found["machine"] = describe_machine(llm)
    llm.close()
    return found


def main() -> None:
    """Print both, and how much they differ."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=16000)
    parser.add_argument("-t", "--threads", type=int)
    given = parser.parse_args()
    text = "\n\n".join(topics[name] for name in sorted(topics))
    theirs, ours = (measured(given.model, one, text, given.tokens, given.threads) for one in ("off", "auto"))
    ratio = ours["perplexity"] / theirs["perplexity"] - 1
    apart = np.subtract(ours.pop("logs"), theirs.pop("logs"))
    error = float(apart.std() / math.sqrt(len(apart)))
    print(f"llama.cpp's kernels {theirs['perplexity']:.4f}, ours ({ours['kernels']}) {ours['perplexity']:.4f}")
    print(f"ours differs by {ratio:+.3%}; the standard error of that is {error:.3%}")
    if given.record:
        digest = hashlib.sha256(text.encode()).hexdigest()
        source = {"name": "pydoc_data.topics", "sha256": digest, "tokens": given.tokens, "window": WINDOW}
        found = {"machine": ours.pop("machine"), "text": source, "theirs": theirs["perplexity"]}
        recorded.keep(given.record, {**found, "ours": ours["perplexity"], "ratio": ratio, "standard_error": error})


if __name__ == "__main__":
    main()
