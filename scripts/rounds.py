"""Prints what whole rounds take with a draft that is right as often as given, against what their batches take alone.

Run it where specllama is installed: ``python scripts/rounds.py MODEL`` (a path or a name). Nothing else should use the
machine. The draft is a function that knows the text. It says each further token rightly with a given probability, and
takes a given part of the time of one of the model's tokens for each. The text is written greedily with 0, 2, 4 and 7
drafted tokens in each round, by turns. ``allowed`` is the time of the draft, and of each round's batch in a Llama of
its own without drafts, which has nothing to roll back: what rollbacks, snapshots and the loop cost is the rest.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
import statistics
import time
from typing import Any

import numpy as np
import numpy.typing as npt
import recorded
from llama_cpp.llama_speculative import LlamaDraftModel

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine

PROMPT = b"Write a short story about a lighthouse keeper who finds a letter."
SIZES = (0, 2, 4, 7)
WRONG = 500  # a token


class Draft(LlamaDraftModel):
    """Drafts from a known text.

    Attributes:
        text: the tokens of prompt and answer.
        size: how many tokens it drafts.
        wait: how many seconds each takes.
        spent: how many seconds all have taken.
    """

    def __init__(self, right: list[float]) -> None:
        self.text: list[int] = []
        self.size, self.wait, self.spent = 0, 0.0, 0.0
        self._right = right
        self._chance = random.Random(1)

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **kwargs: Any) -> npt.NDArray[np.intc]:
        """The next `size` tokens, or what is left of the text."""
        until = time.perf_counter() + self.size * self.wait
        self.spent += self.size * self.wait
        drafted = self.text[len(input_ids) :][: self.size]
        for place, token in enumerate(drafted):
            if self._chance.random() >= self._right[min(place, len(self._right) - 1)]:
                drafted[place:] = [WRONG + (token == WRONG)] * (len(drafted) - place)
                break
        while time.perf_counter() < until:
            pass
        return np.array(drafted, np.intc)


@dataclasses.dataclass
class Run:
    """One text.

    Attributes:
        seconds: of its rounds, without the prompt and the first token.
        draft_seconds: of the draft within them.
        rounds: how many rounds drafted 0, 1, 2, ... tokens.
        tokens: how many tokens they made.
        allowed: the seconds of the draft, and of the rounds' batches alone.
    """

    seconds: float
    draft_seconds: float
    rounds: tuple[int, ...]
    tokens: int
    allowed: float = 0.0


def generate(llm: specllama.Llama, prompt: list[int], count: int, size: int) -> tuple[Run, list[int]]:
    """Write the text with drafts of `size` tokens."""
    llm.reset()
    found = []
    start = 0.0
    for token in itertools.islice(llm.generate(prompt, temp=0.0, num_draft_tokens=size), count):
        start = start or time.perf_counter()
        found.append(int(token))
    seconds, stats = time.perf_counter() - start, llm.stats
    return Run(seconds, stats.draft_seconds, stats.num_rounds_per_gamma, len(found) - 1), found


def batches(llm: specllama.Llama, text: list[int], behind: int, sizes: list[int]) -> dict[int, float]:
    """The seconds of a batch of each size behind `behind` tokens."""
    found = {}
    with llm.engine.direct() as direct:
        for size in sizes:
            direct.prefill(text[:behind])
            found[size] = direct.seconds(text[behind : behind + size])
    return found


def main() -> None:
    """Print a row for each size of a draft."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("-n", "--max-tokens", type=int, default=64)
    parser.add_argument(
        "--right", type=float, nargs="+", default=[0.8, 0.75, 0.7], help="of the first tokens, the last"
    )
    parser.add_argument(
        "--cost", type=float, default=0.05, help="of a drafted token, in the time of one of the model's"
    )
    given = parser.parse_args()
    n = default_threads()
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": n, "n_threads_batch": n, "verbose": False}
    draft = Draft(given.right)
    alone = specllama.Llama(given.model, **options)
    llm = specllama.Llama(given.model, draft_model=draft, **options)
    prompt = llm.tokenize(PROMPT)
    _, text = generate(llm, prompt, given.max_tokens, 0)
    draft.text = prompt + text
    behind, sizes = len(prompt) + given.max_tokens // 2, list(range(1, max(SIZES) + 2))
    costs: dict[int, list[float]] = {size: [] for size in sizes}
    runs: dict[int, list[Run]] = {size: [] for size in SIZES}
    for repeat, size in itertools.product(range(given.repeats + 1), SIZES):
        found = batches(alone, draft.text, behind, sizes)
        draft.size, draft.wait = size, given.cost * found[1]
        draft.spent = 0.0
        run, tokens = generate(llm, prompt, given.max_tokens, size)
        run.draft_seconds = draft.spent
        if tokens != text:
            raise RuntimeError(f"with {size} drafted tokens the text differs: report this as a bug")
        if repeat:  # the first turn only warms up
            runs[size].append(run)
            for one, seconds in found.items():
                costs[one].append(seconds)
    typical = {size: statistics.median(one) for size, one in costs.items()}
    print(", ".join(f"T({size}) {seconds * 1e3:.1f}" for size, seconds in typical.items()), f"ms ({llm.kernels})")
    for size, some in runs.items():
        for run in some:
            alone_seconds = sum(count * typical[n + 1] for n, count in enumerate(run.rounds) if count)
            run.allowed = run.draft_seconds + alone_seconds  # stats count a function's time as sampling
        print(row(size, some, statistics.median(run.seconds for run in runs[0])))
    if given.record:
        settings = {"right": given.right, "cost": given.cost, "costs": costs}
        rows = {size: [dataclasses.asdict(run) for run in some] for size, some in runs.items()}
        recorded.keep(given.record, {"machine": describe_machine(llm), **settings, "rounds": rows})
    llm.close()
    alone.close()


def row(size: int, runs: list[Run], plain: float) -> str:
    """What a draft of `size` tokens gives, and which part of what its batches allow that is."""
    shares = sorted(run.allowed / run.seconds for run in runs)
    gain = plain / statistics.median(run.seconds for run in runs)
    per_round = statistics.mean(run.tokens / sum(run.rounds) for run in runs)
    spread = f"{statistics.median(shares):.3f} ({shares[0]:.3f} to {shares[-1]:.3f})"
    return f"{size} drafted: {per_round:.2f} tokens a round, {gain:.2f} times plain, {spread} of what is allowed"


if __name__ == "__main__":
    main()
