"""Finds the type of a draft's weights that makes its target fastest here: drafts of all types draft in turn."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.evidence.answer import answer
from specllama.evidence.plan import require_at_least, that_fit

if TYPE_CHECKING:
    from specllama import Llama, Stats
    from specllama.prompts import Prompt, RenderedPrompt

CANDIDATES = ("Q4_0", "Q4_0_PURE", "Q4_K_M", "IQ4_XS", "Q3_K_M", "Q2_K")
"""The types that are tried. Smaller types need an importance matrix."""
_WARM_UP_TOKENS = 16

OnAnswer = Callable[[str, int, int], None]
"""Called after each answer with the name of the draft, how many answers are done, and how many there will be."""


@dataclasses.dataclass(frozen=True)
class DraftType:
    """The measurements of one type."""

    name: str
    size: int
    """The size of the file, in bytes."""
    tokens_per_second: float
    """The tokens per second of all answers together, with the time of the prompts."""
    speedup: float
    """The speed divided by that of the first type: the mean of the prompts' ratios."""
    speedup_error: float
    """The standard error of the speedup."""
    acceptance_rate: float


def compare_types(
    llm: Llama,
    drafts: Mapping[str, Path],
    prompts: Sequence[Prompt],
    *,
    max_tokens: int = 64,
    rounds: int = 2,
    on_answer: OnAnswer | None = None,
) -> list[DraftType]:
    """Have each draft answer all prompts, and then once more in the opposite order.

    Decoding is greedy, so that all drafts give the same answers. Only one draft is open at a time.

    Args:
        llm: the target. It has no draft afterwards.
        drafts: the drafts' files by name. All drafts are compared with the first one.
        prompts: the prompts to answer.
        max_tokens: the length at which an answer is cut.
        rounds: how often each draft has its turn.
        on_answer: called after each answer.

    Returns:
        The types, the fastest first.

    Raises:
        ValueError: no prompt fits, a number below 1, or a file that is no draft for this target.
    """
    require_at_least(1, max_tokens=max_tokens, rounds=rounds)
    questions, _ = that_fit(llm, prompts, max_tokens)
    found: dict[str, list[list[Stats]]] = {name: [[] for _ in questions] for name in drafts}
    names, done = list(drafts), 0
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            llm.draft_model = str(drafts[name])
            _stats(llm, questions[0][1], _WARM_UP_TOKENS)
            for index, (_, rendered) in enumerate(questions):
                found[name][index].append(_stats(llm, rendered, max_tokens))
                done += 1
                if on_answer is not None:
                    on_answer(name, done, rounds * len(names) * len(questions))
    llm.draft_model = None
    speeds = {name: [_speed(answers) for answers in of_prompts] for name, of_prompts in found.items()}
    types = [
        _draft_type(name, drafts[name].stat().st_size, found[name], speeds[name], speeds[names[0]]) for name in names
    ]
    return sorted(types, key=lambda one: -one.speedup)


def within_error(types: Sequence[DraftType]) -> list[str]:
    """The names of types that may be as fast as the first: they are less than two standard errors slower."""
    best, *others = types
    return [
        one.name for one in others if best.speedup - one.speedup < 2 * math.hypot(best.speedup_error, one.speedup_error)
    ]


def mean_and_error(ratios: Sequence[float]) -> tuple[float, float]:
    """The mean, and its standard error: 0.0 for one ratio."""
    error = statistics.stdev(ratios) / len(ratios) ** 0.5 if len(ratios) > 1 else 0.0
    return statistics.mean(ratios), error


def _stats(llm: Llama, rendered: RenderedPrompt, max_tokens: int) -> Stats:
    llm.reset()  # each answer decodes its own prompt
    return answer(llm, rendered, temperature=0.0, max_tokens=max_tokens).stats


def _speed(answers: Sequence[Stats]) -> float:
    return sum(one.num_tokens for one in answers) / sum(one.total_seconds for one in answers)


def _draft_type(
    name: str, size: int, found: Sequence[Sequence[Stats]], speeds: Sequence[float], first: Sequence[float]
) -> DraftType:
    ratios = [one / other for one, other in zip(speeds, first, strict=True)]
    ratio, error = mean_and_error(ratios)
    all_stats = [one for of_prompt in found for one in of_prompt]
    drafted = sum(one.num_draft_tokens for one in all_stats)
    accepted = sum(one.num_accepted_tokens for one in all_stats)
    return DraftType(name, size, _speed(all_stats), ratio, error, accepted / drafted if drafted else 0.0)
