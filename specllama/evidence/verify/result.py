"""What a verification found."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from specllama.stats import Stats

from .batches import BatchTest


@dataclasses.dataclass(frozen=True)
class Drafting:
    """How much of the loop some generations exercised."""

    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    fallback_reason: str | None
    """Why one of them decoded plainly, at least in part; None if none did."""

    @classmethod
    def of(cls, runs: Iterable[Stats]) -> Drafting:
        """Sum over generations."""
        runs = list(runs)
        return cls(
            num_drafts=sum(run.num_drafts for run in runs),
            num_draft_tokens=sum(run.num_draft_tokens for run in runs),
            num_accepted_tokens=sum(run.num_accepted_tokens for run in runs),
            fallback_reason=next((run.fallback_reason for run in runs if run.fallback_reason), None),
        )

    @property
    def problems(self) -> list[str]:
        """That not all of it was speculation."""
        return [f"decoded plainly: {self.fallback_reason}"] if self.fallback_reason else []


@dataclasses.dataclass(frozen=True)
class Difference:
    """A place where two texts part, looked at by direct decoding of the target."""

    index: int
    """Of the token in the answer."""
    plain: int | None
    """The token without the draft; None where that text has ended."""
    drafted: int | None
    """The token with the draft; None where that text has ended."""
    plain_text: str
    drafted_text: str
    plain_gap: float | None
    """How far, in logits, the token without the draft is from being chosen: 0.0 if it is, None if it cannot be."""
    drafted_gap: float | None
    """The same of the token with the draft."""
    rounding: float
    """What changes from batch shape to batch shape, in logits, among the leading tokens of this place."""
    near_tie: bool
    """Whether rounding explains the difference."""

    @property
    def gap(self) -> float | None:
        """The larger of both gaps: how far the two were from being tied."""
        if self.plain_gap is None or self.drafted_gap is None:
            return None
        return max(self.plain_gap, self.drafted_gap)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "gap": self.gap}


@dataclasses.dataclass(frozen=True)
class TextComparison:
    """One text with the draft against the same without it."""

    prompt_id: str
    mode: str
    """``greedy`` or ``coupled``."""
    rule: str
    seed: int | None
    """None for greedy decoding, which has no use for one."""
    num_tokens: int
    """Of the text without the draft."""
    num_compared: int
    """Up to where both were compared: not behind a difference that rounding does not explain, nor, with penalties,
    behind any."""
    differences: tuple[Difference, ...]
    drafting: Drafting

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the texts are the same but for near-ties."""
        found = [difference for difference in self.differences if not difference.near_tie]
        where = f"{self.mode} text of {self.prompt_id}" + ("" if self.seed is None else f" with seed {self.seed}")
        reasons = [f"token {difference.index} is another one, and rounding does not explain it" for difference in found]
        return [f"{where}: {reason}" for reason in [*self.drafting.problems, *reasons]]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        differences = [difference.to_dict() for difference in self.differences]
        return {**dataclasses.asdict(self), "differences": differences, "passed": not self.problems}


@dataclasses.dataclass(frozen=True)
class SamplingTest:
    """Pairs of next tokens out of the loop against the target's exact probabilities."""

    prompt_id: str
    num_behind: int
    """How many generated tokens belong to the context, behind the prompt."""
    rule: str
    num_samples: int
    num_cells: int
    """Outcomes that are counted apart, all that are rare being one."""
    total_variation: float
    """Between the frequencies of the cells and their probabilities."""
    chance_mean: float
    """What sampling error alone gives in the mean."""
    chance_95: float
    """What sampling error alone exceeds once in 20 times: a difference that is not larger goes unnoticed."""
    chi_square: float
    p_value: float
    """How often sampling error alone gives such a chi-square, or a larger one."""
    level: float
    """The test fails below this p-value."""
    num_impossible: int
    """Samples that the target's chain excludes, in every batch shape that was tried."""
    rounding: float
    """Total variation of the first token's probabilities between the loop's batches and plain decoding."""
    num_prompt_tokens: int
    """Tokens of the context, summed over the samples."""
    num_prompt_tokens_reused: int
    """Of these, tokens that were not decoded again."""
    drafting: Drafting
    is_certain: bool
    """Whether the chain leaves the target no choice here, so that any other token would have been an impossible one."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the samples can be the target's."""
        reasons = self.drafting.problems
        if self.drafting.num_drafts == 0:
            reasons.append("nothing was drafted, so nothing was tested")
        if self.num_cells < 2 and not self.is_certain:
            reasons.append("no outcome is likely enough to be counted apart: draw more samples, or take other prompts")
        if self.p_value < self.level:
            reasons.append(f"this is not the target's distribution, p = {self.p_value:.1g}")
        if self.num_impossible:
            reasons.append(f"{self.num_impossible} samples are none that the target's sampler chain allows")
        return [f"samples of {self.prompt_id} under {self.rule}: {reason}" for reason in reasons]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "passed": not self.problems}


@dataclasses.dataclass(frozen=True)
class TokenTest:
    """All tokens of some sampled texts, each against the distribution it should have been drawn from."""

    rule: str
    num_texts: int
    num_tokens: int
    chi_square: float
    """Of the tokens' places in their distributions, in ten cells of equal probability."""
    p_value: float
    """How often sampling error alone gives such a chi-square, or a larger one."""
    level: float
    """The test fails below this p-value."""
    num_impossible: int
    """Tokens that the target's chain excludes, in every batch shape that was tried."""
    drafting: Drafting

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the texts can be the target's."""
        reasons = self.drafting.problems
        if self.drafting.num_drafts == 0:
            reasons.append("nothing was drafted, so nothing was tested")
        if self.p_value < self.level:
            reasons.append(f"these are not the target's distributions, p = {self.p_value:.1g}")
        if self.num_impossible:
            reasons.append(f"{self.num_impossible} tokens are none that the target's sampler chain allows")
        return [f"texts sampled under {self.rule}: {reason}" for reason in reasons]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {**dataclasses.asdict(self), "passed": not self.problems}


@dataclasses.dataclass(frozen=True)
class VerifyResult:
    """All parts of a verification."""

    texts: list[TextComparison]
    sampling: list[SamplingTest]
    tokens: list[TokenTest]
    batches: list[BatchTest]
    """Empty if the target's logits may depend on the batch; then texts may split at near-ties."""
    settings: dict[str, Any]
    machine: dict[str, Any]
    interrupted: bool = False
    """Whether something ended it early; what was found until then is here."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if all hold."""
        problems = [problem for text in self.texts for problem in text.problems]
        problems += [problem for test in self.sampling for problem in test.problems]
        problems += [problem for test in self.tokens for problem in test.problems]
        problems += [problem for test in self.batches for problem in test.problems]
        if self.batches and self.num_near_ties:
            problems.append(
                f"texts: {self.num_near_ties} split at near-ties, although the logits are the same bits in every batch"
            )
        if not self.interrupted and not any(text.drafting.num_drafts for text in self.texts):
            problems.append("texts: nothing was drafted, so nothing was compared")
        return problems

    @property
    def passed(self) -> bool:
        """Whether all was looked at, and all hold."""
        return not self.interrupted and not self.problems

    @property
    def num_near_ties(self) -> int:
        """Places where a text split at a near-tie."""
        return sum(difference.near_tie for text in self.texts for difference in text.differences)

    @property
    def notes(self) -> list[str]:
        """What a reader should know although it is no failure."""
        notes = []
        sampled = [*(test.drafting for test in self.sampling), *(test.drafting for test in self.tokens)]
        for name, parts in (("texts", [text.drafting for text in self.texts]), ("samples", sampled)):
            if parts and not any(drafting.num_accepted_tokens for drafting in parts):
                notes.append(f"{name}: no drafted token was accepted, so that they say nothing of accepted ones")
        cut = [text for text in self.texts if not text.problems and text.num_compared < text.num_tokens]
        if cut:
            notes.append(f"texts: {len(cut)} compared up to a near-tie only, because penalties look back beyond it")
        return notes

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "passed": self.passed,
            "problems": self.problems,
            "notes": self.notes,
            "settings": {**self.settings, "interrupted": self.interrupted},
            "machine": self.machine,
            "texts": [text.to_dict() for text in self.texts],
            "sampling": [test.to_dict() for test in self.sampling],
            "tokens": [test.to_dict() for test in self.tokens],
            "batches": [test.to_dict() for test in self.batches],
        }
