"""Prints how much faster this machine could be for a pair of models if it were known what will be accepted.

Run it where specllama is installed: ``python scripts/ceiling.py TARGET DRAFT`` (paths or names). Nothing else should
use the machine: it measures T(n) first. Then it takes the target's greedy texts, and what draft and lookup would have
proposed at each of their places. From these and T(n) alone it computes two speedups over plain decoding:

- The ceiling: no token is drafted that will be rejected, each round has the best length, and what can be looked up
  costs nothing (dynamic programming over the text). No way of choosing can do better with these drafters.
- The best fixed setting of each category, which is known only afterwards: the model with 1 to 8 tokens, or lookup with
  up to 15.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import recorded
from record_traces import looked_up

import specllama
from specllama import _core_test as _test
from specllama.backend.cpu import default_threads
from specllama.evidence.answer import answer
from specllama.evidence.machine import describe_machine
from specllama.models.catalog import resolve
from specllama.prompts import Prompt, builtin_prompts, limited, read_prompts

# What "auto" drafts at most.
MOST: int = inspect.signature(specllama.Llama.__init__).parameters["max_draft_tokens"].default
FIXED = {f"model {n}": ("model", n) for n in range(1, 9)} | {f"lookup {n}": ("lookup", n) for n in (3, 7, 11, 15)}

Cost = Callable[[int], float]


@dataclasses.dataclass
class Trace:
    """A text, and at each of its places what the drafters would have proposed there."""

    category: str
    text: list[int]
    model: list[int]  # the draft's most probable token
    lookup: list[list[int]]  # what followed the longest match, up to MOST tokens

    @classmethod
    def of(cls, prompt: Prompt, tokens: Sequence[int], text: list[int], model: list[int]) -> Trace:
        """Make a trace, which adds the lookups."""
        index = _test.SuffixIndex()
        known = list(tokens)
        index.append(np.array(known, np.int32))
        lookups = []
        for token in text:
            lookups.append(looked_up(known, index.longest(), MOST))
            known.append(token)
            index.append(np.array([token], np.int32))
        return cls(prompt.category, text, model, lookups)


def texts(
    target: str, draft: str, prompts: list[Prompt], max_tokens: int, kernels: str
) -> tuple[list[Trace], Cost, Cost, dict[str, Any]]:
    """Each prompt's greedy text as a trace, what batches cost target and draft, in seconds, and the machine."""
    n = default_threads()
    options = {"n_ctx": 4096, "n_threads": n, "n_threads_batch": n, "kernels": kernels, "verbose": False}
    llm = specllama.Llama(target, draft_model=draft, **options)
    machine = describe_machine(llm)
    curves = specllama.tune.run(llm).curves
    found = []
    for prompt in prompts:
        rendered = prompt.rendered(llm)
        found.append((prompt, rendered.tokens, answer(llm, rendered, max_tokens=max_tokens, temperature=0.0).tokens))
    llm.close()
    n_ctx = max(len(tokens) + len(text) for _, tokens, text in found)
    model = llama_cpp.Llama(resolve(draft), n_ctx=n_ctx, n_threads=n, n_threads_batch=n, logits_all=True, verbose=False)
    traces = []
    for prompt, tokens, text in found:
        model.reset()
        model.eval([*tokens, *text])
        first = len(tokens) - 1
        likely = np.argmax(model.scores[first : first + len(text)], axis=1)
        traces.append(Trace.of(prompt, tokens, text, [int(token) for token in likely]))
    model.close()
    return traces, curves["target"].at, curves["draft"].at, machine


def ceiling(trace: Trace, target: Cost, draft: Cost) -> float:
    """Speedup over plain decoding if only what will be accepted is drafted, and as much of it as is best."""
    count = len(trace.text)
    price = [
        0.0 if behind[:1] == [token] else draft(1) if guess == token else float("inf")
        for token, guess, behind in zip(trace.text, trace.model, trace.lookup, strict=True)
    ]
    best = [0.0] * (count + 1)  # seconds from a place to the end
    for place in reversed(range(count)):
        most = min(MOST, count - place - 1)
        paid = [sum(price[place : place + n]) for n in range(most + 1)]
        best[place] = min(paid[n] + target(n + 1) + best[place + n + 1] for n in range(most + 1))
    return count * target(1) / best[0]


def fixed(trace: Trace, target: Cost, draft: Cost, drafter: str, most: int) -> float:
    """Speedup over plain decoding if each round drafts the same number of tokens."""
    place, seconds, missing = 0, 0.0, 1
    while place < len(trace.text):
        room = min(most, len(trace.text) - place - 1)
        if drafter == "model":  # while the model is right, its next guess is that of the next place
            drafted = trace.model[place : place + room]
            seconds += draft(missing) * (room > 0) + draft(1) * max(0, room - 1)
        else:
            drafted = trace.lookup[place][:room]
        wrong = (n for n, token in enumerate(drafted) if token != trace.text[place + n])
        accepted = next(wrong, len(drafted))
        seconds += target(len(drafted) + 1)
        missing = 2 if accepted == len(drafted) else 1  # the model has not read its last token, if that was accepted
        place += accepted + 1
    return len(trace.text) * target(1) / seconds


def summary(traces: list[Trace], target: Cost, draft: Cost) -> list[dict[str, Any]]:
    """The mean ceiling and the best fixed setting, for each category and for all texts."""
    kinds = collections.defaultdict(list)
    for trace in traces:
        kinds[trace.category].append(trace)
    rows = []
    for kind, members in [*kinds.items(), ("all", traces)]:
        most = statistics.mean(ceiling(trace, target, draft) for trace in members)
        mean = {
            name: statistics.mean(fixed(trace, target, draft, *setting) for trace in members)
            for name, setting in FIXED.items()
        } | {"plain": 1.0}
        name = max(mean, key=lambda one: mean[one])
        rows.append({"category": kind, "texts": len(members), "ceiling": most, "fixed": name, "speedup": mean[name]})
    return rows


def main() -> None:
    """Print T(n) and the table."""
    parser = recorded.parser(__doc__)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path, action="append", default=[], help="as for specllama bench")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each category, default 1")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    parser.add_argument("--kernels", default="auto")
    given = parser.parse_args()
    prompts = [prompt for path in given.prompts for prompt in read_prompts(path)[0]] or builtin_prompts()
    chosen = limited(prompts, given.limit)
    traces, target, draft, machine = texts(given.target, given.draft, chosen, given.max_tokens, given.kernels)
    shown = ", ".join(f"T({n}) {target(n) / target(1):.2f}" for n in (2, 3, 4, 5, 6, 8, 12, 16))
    print(f"T(1) {target(1) * 1e3:.0f} ms; in units of it {shown}; a token of the draft {draft(1) / target(1):.2f}")
    rows = summary(traces, target, draft)
    print("| | texts | ceiling | best fixed | speedup |", "|---|---:|---:|---|---:|", sep="\n")
    for row in rows:
        print("| {category} | {texts} | {ceiling:.2f} | {fixed} | {speedup:.2f} |".format(**row))
    if given.record:
        costs = {"target": {n: target(n) for n in range(1, MOST + 2)}, "draft": {1: draft(1)}}
        recorded.keep(given.record, {"machine": machine, "costs": costs, "rows": rows})


if __name__ == "__main__":
    main()
