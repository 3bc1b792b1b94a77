"""What a verification found."""

from __future__ import annotations

import abc
import dataclasses

from specllama.evidence.data import Data, Result
from specllama.stats import Stats


class Verdict(Data, abc.ABC):
    """A result that is to hold."""

    computed = ("passed",)

    @property
    @abc.abstractmethod
    def problems(self) -> list[str]:
        """Why it failed; empty if it holds."""

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return not self.problems


def _fallbacks(stats: Stats) -> list[str]:
    """That not all of it was speculation."""
    return [f"decoded plainly: {stats.fallback_reason}"] if stats.fallback_reason else []


@dataclasses.dataclass(frozen=True)
class Difference(Data):
    """A place where two texts part, looked at by direct decoding of the target."""

    computed = ("gap",)

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


@dataclasses.dataclass(frozen=True)
class TextComparison(Verdict):
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
    stats: Stats
    """Of all generations of the loop that are looked at here."""

    @property
    def name(self) -> str:
        """What it is called."""
        return f"{self.mode} text of {self.prompt_id}" + ("" if self.seed is None else f" with seed {self.seed}")

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the texts are the same but for near-ties."""
        found = [difference for difference in self.differences if not difference.near_tie]
        reasons = [f"token {difference.index} is another one, and rounding does not explain it" for difference in found]
        return [f"{self.name}: {reason}" for reason in [*_fallbacks(self.stats), *reasons]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LoopTest(Verdict):
    """What the loop drew under one rule against the target's exact probabilities."""

    rule: str
    chi_square: float
    p_value: float
    """How often sampling error alone gives such a chi-square, or a larger one."""
    level: float
    """The test fails below this p-value."""
    num_impossible: int
    """Of the tokens or samples: those that the target's chain excludes, in every batch shape that was tried."""
    stats: Stats
    """Of all generations of the loop that are looked at here."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if all of it can be the target's."""
        reasons = _fallbacks(self.stats)
        if self.stats.num_drafts == 0:
            reasons.append("nothing was drafted, so nothing was tested")
        if self.p_value < self.level:
            reasons.append(f"this is not how the target's distribution looks, p = {self.p_value:.1g}")
        if self.num_impossible:
            reasons.append(f"{self.num_impossible} are none that the target's sampler chain allows")
        return reasons


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingTest(_LoopTest):
    """Pairs of next tokens out of the loop against the target's exact probabilities."""

    prompt_id: str
    num_behind: int
    """How many generated tokens belong to the context, behind the prompt."""
    num_samples: int
    num_cells: int
    """Outcomes that are counted apart, all that are rare being one."""
    total_variation: float
    """Between the frequencies of the cells and their probabilities."""
    chance_mean: float
    """What sampling error alone gives in the mean."""
    chance_95: float
    """What sampling error alone exceeds once in 20 times: a difference that is not larger goes unnoticed."""
    rounding: float
    """Total variation of the first token's probabilities between the loop's batches and plain decoding."""
    is_certain: bool
    """Whether the chain leaves the target no choice here, so that any other token would have been an impossible one."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the samples can be the target's."""
        reasons = super().problems
        if self.num_cells < 2 and not self.is_certain:
            reasons.append("no outcome is likely enough to be counted apart: draw more samples, or take other prompts")
        return [f"samples of {self.prompt_id} under {self.rule}: {reason}" for reason in reasons]


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenTest(_LoopTest):
    """All tokens of some sampled texts, each against the distribution it should have been drawn from.

    Chi-square is of the tokens' places in their distributions, in ten cells of equal probability.
    """

    num_texts: int
    num_tokens: int

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if the texts can be the target's."""
        return [f"tokens of the texts sampled under {self.rule}: {reason}" for reason in super().problems]


@dataclasses.dataclass(frozen=True)
class BatchTest(Verdict):
    """The logits of some tokens behind one length, in batches of 1 to 16 tokens."""

    num_tokens_before: int
    num_rows: int
    differing_sizes: tuple[int, ...]
    """Sizes of batches in which a bit of a row was another one than in a batch of one token."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if all rows are the same."""
        if not self.differing_sizes:
            return []
        sizes = ", ".join(map(str, self.differing_sizes))
        return [
            f"logits behind {self.num_tokens_before} tokens differ from those of single tokens in batches of {sizes}"
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyResult(Result):
    """All parts of a verification."""

    computed = ("passed", "problems", "notes")

    texts: list[TextComparison]
    sampling: list[SamplingTest]
    tokens: list[TokenTest]
    batches: list[BatchTest]
    """Empty if the target's logits may depend on the batch; then texts may split at near-ties."""

    @property
    def problems(self) -> list[str]:
        """Why it failed; empty if all hold."""
        parts: list[Verdict] = [*self.texts, *self.sampling, *self.tokens, *self.batches]
        problems = [problem for part in parts for problem in part.problems]
        if self.batches and self.num_near_ties:
            problems.append(
                f"texts: {self.num_near_ties} split at near-ties, although the logits are the same bits in every batch"
            )
        if not self.interrupted and not any(text.stats.num_drafts for text in self.texts):
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
        for name, parts in (("texts", self.texts), ("samples", [*self.sampling, *self.tokens])):
            if parts and not any(part.stats.num_accepted_tokens for part in parts):
                notes.append(f"{name}: no drafted token was accepted, so that they say nothing of accepted ones")
        cut = [text for text in self.texts if not text.problems and text.num_compared < text.num_tokens]
        if cut:
            notes.append(f"texts: {len(cut)} compared up to a near-tie only, because penalties look back beyond it")
        return notes
