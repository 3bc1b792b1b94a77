"""Records what scripts/replay.py needs to know of a pair of models: what would be accepted along its greedy texts.

Run it where specllama is installed: ``python scripts/record_traces.py TARGET DRAFT OUT.json --prompts FILE ...`` (the
models as paths or names). It needs no quiet machine, because it records no time. It records no prompts or texts, but
for each place of a text how sure the draft is, whether it is right, and how long the longest match continues rightly.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

import specllama
from specllama import _core_test as _test
from specllama.evidence.answer import answer
from specllama.models.catalog import resolve
from specllama.prompts import Prompt, builtin_prompts, limited, read_prompts

LONGEST = 64  # tokens of a match, and of what is looked up
SHORTEST = 16  # tokens: shorter texts are left out, because they show too little
DRAFTED = 512  # tokens in a batch of the draft


def confidence(logits: npt.NDArray[np.float32], token: int) -> float:
    """The probability of a token."""
    exponents = np.exp(logits.astype(np.float64) - float(np.max(logits)))
    return float(exponents[token] / exponents.sum())


def guesses(draft: llama_cpp.Llama, tokens: list[int], text: list[int]) -> Iterator[tuple[int, float]]:
    """The draft's most probable token at each place of the text, and its probability."""
    draft.reset()
    draft.eval([*tokens, *text])
    for place in range(len(text)):
        row = draft.scores[len(tokens) - 1 + place]
        token = int(np.argmax(row))
        yield token, confidence(row, token)


def looked_up(known: list[int], match: _test.Match, most: int) -> list[int]:
    """The tokens that followed the match. Past the end of the text it continues in these tokens."""
    found: list[int] = []
    while match.length and len(found) < most:
        found.append((known + found)[match.next + len(found)])
    return found


def trace(prompt: Prompt, tokens: list[int], text: list[int], drafted: list[tuple[int, float]]) -> dict[str, Any]:
    """What is known of each place of a text, as lists of numbers, or as texts of 0 and 1.

    Returns:
        id, category, prompt (tokens); model: 1 if the draft's token is right; sure: its probability in ten
        thousandths; match: the length of the match, 0 if there is none; disputed: 1 if other matches of this length
        continue in another way; right: how many looked-up tokens are right; agrees: 1 if the draft's token is the
        first wrong one that was looked up.
    """
    index = _test.SuffixIndex()
    index.append(np.array(tokens, np.int32))
    columns: dict[str, list[int]] = {key: [] for key in ("model", "sure", "match", "disputed", "right", "agrees")}
    for place, (guess, probability) in enumerate(drafted):
        match = index.longest()
        rest = text[place : place + LONGEST]
        found = looked_up(tokens + text[:place], match, len(rest))
        wrong = next((i for i, token in enumerate(found) if token != rest[i]), None)
        columns["model"].append(int(guess == text[place]))
        columns["sure"].append(round(1e4 * probability))
        columns["match"].append(match.length)
        columns["disputed"].append(int(match.num_other > 0))
        columns["right"].append(len(found) if wrong is None else wrong)
        columns["agrees"].append(int(wrong is not None and drafted[place + wrong][0] == found[wrong]))
        index.append(np.array(text[place : place + 1], np.int32))
    flags = {key: "".join(map(str, columns.pop(key))) for key in ("model", "disputed", "agrees")}
    return {"id": prompt.id, "category": prompt.category, "prompt": len(tokens), **flags, **columns}


def main() -> None:
    """Record, and write the file anew after each text."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("out", type=Path)
    parser.add_argument("--prompts", type=Path, action="append", default=[], help="as for specllama bench")
    parser.add_argument("--limit", type=int, action="append", default=[], help="prompts of each category, by file")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--longest-prompt", type=int, default=1000, help="leave out prompts of more tokens")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no text after so long")
    given = parser.parse_args()
    files = [read_prompts(path)[0] for path in given.prompts] or [builtin_prompts()]
    limits = given.limit + [1] * len(files)
    prompts = [prompt for some, limit in zip(files, limits, strict=False) for prompt in limited(some, limit)]
    options = {"n_ctx": given.longest_prompt + given.max_tokens + 1, "n_threads": given.threads, "verbose": False}
    options["n_threads_batch"] = given.threads
    llm = specllama.Llama(given.target, draft_model=given.draft, **options)
    draft = llama_cpp.Llama(resolve(given.draft), logits_all=True, n_batch=DRAFTED, **options)
    traces: list[dict[str, Any]] = []
    end = time.monotonic() + 60.0 * given.minutes
    for prompt in prompts:
        rendered = prompt.rendered(llm)
        if len(rendered.tokens) > given.longest_prompt or time.monotonic() > end:
            continue
        tokens = list(map(int, rendered.tokens))
        text = answer(llm, rendered, max_tokens=given.max_tokens, temperature=0.0).tokens
        if len(text) < SHORTEST:
            continue
        traces.append(trace(prompt, tokens, text, list(guesses(draft, tokens, text))))
        print(prompt.category, prompt.id, len(tokens), len(text), llm.stats.mean_acceptance_length)
        pair = {"target": Path(given.target).name, "draft": Path(given.draft).name}
        given.out.write_text(json.dumps({**pair, "texts": traces}, separators=(",", ":")) + "\n")
    draft.close()
    llm.close()


if __name__ == "__main__":
    main()
