"""Counts how many of 40 texts differ from plain decoding's, with llama.cpp's kernels or with ours.

Run it where specllama is installed: ``python scripts/splits.py TARGET DRAFT`` (paths or names). It needs no quiet
machine. 20 of the prompts that come with specllama, the shortest of each kind first, are each answered greedily and
with a seed under the coupled rule, plainly and with 4 drafted tokens a round. A text that differs is right all the
same: it splits where two tokens nearly tie (``specllama verify`` shows that).
"""

from __future__ import annotations

from typing import Any

import recorded
from pair import add_pair, opened

import specllama
from specllama.evidence.answer import answer, first_difference
from specllama.evidence.machine import describe_machine
from specllama.prompts import Prompt, builtin_prompts

PROMPTS = 20
DRAFTED = 4
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0, "verify": "block"},
    "coupled": {"temperature": 0.8, "seed": 1, "verify": "coupled"},
}


def shortest(prompts: list[Prompt], count: int) -> list[Prompt]:
    """The shortest prompt of each category, then the second ones, and so on."""
    ranks: dict[str, int] = {}
    ordered = []
    for prompt in sorted(prompts, key=lambda one: len(one.text)):
        ranks[prompt.category] = ranks.get(prompt.category, 0) + 1
        ordered.append((ranks[prompt.category], len(ordered), prompt))
    return [prompt for *_, prompt in sorted(ordered, key=lambda one: one[:2])[:count]]


def compared(llm: specllama.Llama, prompt: Prompt, way: str, max_tokens: int) -> dict[str, Any]:
    """Compare the texts with a draft and without. ``split`` is where they part; None if they are equal."""
    rendered = prompt.rendered(llm)
    options = {"max_tokens": max_tokens, **WAYS[way]}
    plain, drafted = (answer(llm, rendered, num_draft_tokens=n, **options) for n in (0, DRAFTED))
    split = first_difference(plain.tokens, drafted.tokens)
    return {"prompt": prompt.id, "way": way, "tokens": len(plain.tokens), "split": split}


def main() -> None:
    """Print how many of them split, and where."""
    parser = recorded.parser(__doc__)
    add_pair(parser)
    parser.add_argument("-n", "--max-tokens", type=int, default=48)
    parser.add_argument("--kernels", default="auto")
    given = parser.parse_args()
    llm = opened(given, n_ctx=1024, kernels=given.kernels)
    prompts = shortest(builtin_prompts(), PROMPTS)
    texts = [compared(llm, prompt, way, given.max_tokens) for prompt in prompts for way in WAYS]
    for way in WAYS:
        splits = [text["split"] for text in texts if text["way"] == way]
        places = sorted(place for place in splits if place is not None)
        print(f"{way}: {len(places)} of {len(splits)} texts split, at tokens {places} ({llm.kernels})")
    if given.record:
        settings = {"max_tokens": given.max_tokens, "num_draft_tokens": DRAFTED, "flash_attn": given.flash_attn}
        recorded.keep(given.record, {"machine": describe_machine(llm), "settings": settings, "texts": texts})
    llm.close()


if __name__ == "__main__":
    main()
