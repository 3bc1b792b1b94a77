"""Measures whether a draft makes its target faster, on prompts of the package, in turn with plain decoding."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.prompts import builtin_prompts, limited

from .answer import answer
from .draft_types import OnAnswer, compare_types, mean_and_error
from .plan import that_fit

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import RenderedPrompt
    from specllama.stats import DrafterStats

_LOOKUP = "lookup"
_WARM_UP = 16  # tokens
_FEW = 4  # the number of prompts by which a type is chosen


@dataclasses.dataclass(frozen=True)
class Gain:
    """The gain by a draft.

    Attributes:
        ratio: the speed of whole calls with the draft divided by that of plain decoding: the mean over prompts.
        error: the standard error of that mean.
        accepted: the share of the draft's tokens that were accepted. Tokens that lookup drafts beside it do not count.
        drafted: the number of the draft's tokens for each token of the text.
    """

    ratio: float
    error: float
    accepted: float
    drafted: float

    @property
    def is_faster(self) -> bool:
        """Whether the draft made its target faster, by more than the standard error."""
        return self.ratio - self.error > 1.0

    def __str__(self) -> str:
        """The gain in words."""
        said = f"whole calls {self.ratio:.2f} times as fast as plain decoding (standard error {self.error:.2f})"
        if self.is_faster:
            return f"faster: {said}; {self.accepted:.0%} of its tokens were accepted"
        if self.drafted < 0.2:
            return f"not faster: {said}. Hardly anything was drafted, because it did not pay"
        return (
            f"not faster: {said}. {self.accepted:.0%} of its tokens were accepted, which does not pay for computing "
            "and checking them here"
        )


def fastest_type(llm: Llama, drafts: Mapping[str, Path], max_tokens: int, on_answer: OnAnswer) -> str:
    """The type of a draft's weights that makes the target fastest here, by `compare_types`."""
    prompts = limited(builtin_prompts(), 1)[:_FEW]
    return compare_types(llm, drafts, prompts, max_tokens=max_tokens, on_answer=on_answer)[0].name


def gain_of(
    llm: Llama, max_tokens: int, on_answer: OnAnswer, questions: Sequence[RenderedPrompt] | None = None
) -> Gain:
    """Answer prompts with the Llama's draft and without, in turn. Decoding is greedy, so both texts are the same.

    Args:
        llm: the target with its draft.
        max_tokens: the most tokens of an answer.
        on_answer: is told the progress.
        questions: the prompts; None for those of the package.

    Raises:
        ValueError: no prompt fits.
    """
    if questions is None:
        fitting, _ = that_fit(llm, limited(builtin_prompts(), 1), max_tokens)
        questions = [rendered for _, rendered in fitting]
    ratios, tokens = list[float](), 0
    per_drafter: list[tuple[str, DrafterStats]] = []
    for gamma in ("auto", 0):
        answer(llm, questions[0], temperature=0.0, max_tokens=_WARM_UP, num_draft_tokens=gamma)
    for number, rendered in enumerate(questions):
        seconds = {}
        for gamma in ("auto", 0) if number % 2 else (0, "auto"):
            llm.reset()  # each answer decodes its own prompt
            stats = answer(llm, rendered, temperature=0.0, max_tokens=max_tokens, num_draft_tokens=gamma).stats
            seconds[gamma] = stats.total_seconds / max(1, stats.num_tokens)
            if gamma == "auto":
                per_drafter += stats.per_drafter.items()
                tokens += stats.num_tokens
        ratios.append(seconds[0] / seconds["auto"])
        on_answer("plain decoding", number + 1, len(questions))
    ratio, error = mean_and_error(ratios)
    of_draft = [one for name, one in per_drafter if name != _LOOKUP or llm.draft_model == _LOOKUP]
    accepted, drafted = sum(one.num_accepted_tokens for one in of_draft), sum(one.num_draft_tokens for one in of_draft)
    return Gain(ratio, error, accepted / max(1, drafted), drafted / max(1, tokens))
