"""The results of a verification."""

from __future__ import annotations

import abc
import dataclasses

from specllama.evidence.data import Data, Result
from specllama.stats import Stats


class Verdict(Data, abc.ABC):
    """The result of a test: it has passed or failed, or it is undecided."""

    computed = ("passed", "untested")

    @property
    @abc.abstractmethod
    def problems(self) -> list[str]:
        """Why the test failed; empty if it passed."""

    @property
    def untested(self) -> list[str]:
        """Why the test is undecided; empty if it is decided."""
        return []

    @property
    def passed(self) -> bool:
        """Whether the test is decided, and has passed."""
        return not self.problems and not self.untested


def _fallbacks(stats: Stats) -> list[str]:
    """The problem that some text was decoded plainly; empty if there was none."""
    return [f"decoded plainly: {stats.fallback_reason}"] if stats.fallback_reason else []


@dataclasses.dataclass(frozen=True)
class Difference(Data):
    """A place where two texts differ, examined by direct decoding of the target."""

    computed = ("gap",)

    index: int
    """The index of the token in the answer."""
    plain: int | None
    """The token without the draft; None if that text has ended."""
    drafted: int | None
    """The token with the draft; None if that text has ended."""
    plain_text: str
    drafted_text: str
    plain_gap: float | None
    """How far, in logits, the token without the draft is from being chosen: 0.0 if chosen, None if it cannot be."""
    drafted_gap: float | None
    """How far, in logits, the token with the draft is from being chosen: 0.0 if chosen, None if it cannot be."""
    rounding: float
    """How much the leading tokens of this place change between batches of different sizes, in logits."""
    near_tie: bool
    """Whether rounding explains the difference."""

    @property
    def gap(self) -> float | None:
        """The larger of both gaps: how far the two tokens were from being tied; None if a gap is None."""
        if self.plain_gap is None or self.drafted_gap is None:
            return None
        return max(self.plain_gap, self.drafted_gap)


@dataclasses.dataclass(frozen=True)
class TextComparison(Verdict):
    """A comparison of one text with the draft and without it."""

    prompt_id: str
    mode: str
    """``greedy`` or ``coupled``."""
    rule: str
    seed: int | None
    """The seed; None for greedy decoding, which needs none."""
    num_tokens: int
    """The number of tokens of the text without the draft."""
    num_compared: int
    """How many tokens were compared. The comparison ends at a difference that rounding does not explain; with penalties
    at any difference."""
    differences: tuple[Difference, ...]
    stats: Stats
    """The statistics of all generations of this comparison."""

    @property
    def name(self) -> str:
        """The name of the text, for messages."""
        return f"{self.mode} text of {self.prompt_id}" + ("" if self.seed is None else f" with seed {self.seed}")

    @property
    def problems(self) -> list[str]:
        """Why the test failed; empty if the texts are the same except for near-ties."""
        found = [difference for difference in self.differences if not difference.near_tie]
        reasons = [f"token {difference.index} is another one, and rounding does not explain it" for difference in found]
        return [f"{self.name}: {reason}" for reason in [*_fallbacks(self.stats), *reasons]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class _LoopTest(Verdict):
    """A test of what the loop drew under one rule against the target's exact probabilities."""

    rule: str
    chi_square: float
    p_value: float
    """The probability with which sampling error alone gives such a chi-square, or a larger one."""
    level: float
    """The test fails below this p-value."""
    num_impossible: int
    """How many drawn tokens or samples the target's sampler chain excludes in every batch size that was tried."""
    stats: Stats
    """The statistics of all generations of this test."""

    @property
    def problems(self) -> list[str]:
        """Why the test failed; empty if the target can have drawn all tokens."""
        reasons = _fallbacks(self.stats)
        if self.p_value < self.level:
            reasons.append(f"this is not how the target's distribution looks, p = {self.p_value:.1g}")
        if self.num_impossible:
            reasons.append(f"{self.num_impossible} are none that the target's sampler chain allows")
        return [f"{self.name}: {reason}" for reason in reasons]

    @property
    def untested(self) -> list[str]:
        """Why the test is undecided; empty if something was drafted."""
        return [] if self.stats.num_drafts else [f"{self.name}: nothing was drafted, so nothing was tested"]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the tested samples or texts, for messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SamplingTest(_LoopTest):
    """A test of pairs of next tokens from the loop against the target's exact probabilities."""

    prompt_id: str
    num_behind: int
    """How many generated tokens the context has after the prompt."""
    num_samples: int
    num_cells: int
    """The number of outcomes that are counted separately. All rare outcomes are one cell."""
    total_variation: float
    """The total variation between the frequencies of the cells and their probabilities."""
    chance_mean: float
    """The mean of the total variation that sampling error alone gives."""
    chance_95: float
    """The total variation that sampling error alone exceeds once in 20 times. A smaller difference is not noticed."""
    rounding: float
    """The total variation between the first token's probabilities in the loop's batches and in plain decoding."""
    is_certain: bool
    """Whether the sampler chain leaves no choice here. Any other token would have counted as impossible."""

    @property
    def untested(self) -> list[str]:
        """Why the test is undecided; empty if something was drafted, and outcomes were counted apart."""
        reasons = super().untested
        if self.num_cells < 2 and not self.is_certain:
            cause = "no outcome is likely enough to be counted apart: draw more samples, or take other prompts"
            reasons.append(f"{self.name}: {cause}")
        return reasons

    @property
    def name(self) -> str:
        """The name of the samples, for messages."""
        return f"samples of {self.prompt_id} under {self.rule}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenTest(_LoopTest):
    """A test of all tokens of sampled texts, each against the distribution from which it should have been drawn.

    Chi-square is computed over the tokens' places in their distributions, in ten cells of equal probability.
    """

    num_texts: int
    num_tokens: int

    @property
    def name(self) -> str:
        """The name of the texts, for messages."""
        return f"tokens of the texts sampled under {self.rule}"


@dataclasses.dataclass(frozen=True)
class BatchTest(Verdict):
    """A comparison of logits after a text of one length, in batches of 1 to 16 tokens."""

    num_tokens_before: int
    num_rows: int
    differing_sizes: tuple[int, ...]
    """The batch sizes in which a bit of a row differed from the row of a batch of one token."""

    @property
    def problems(self) -> list[str]:
        """Why the test failed; empty if all rows are equal."""
        if not self.differing_sizes:
            return []
        sizes = ", ".join(map(str, self.differing_sizes))
        return [
            f"logits behind {self.num_tokens_before} tokens differ from those of single tokens in batches of {sizes}"
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class VerifyResult(Result):
    """The result of a verification, with all its parts."""

    computed = ("passed", "problems", "untested", "notes")

    texts: list[TextComparison]
    sampling: list[SamplingTest]
    tokens: list[TokenTest]
    batches: list[BatchTest]
    """Empty if the target's logits may depend on the batch. Then texts may differ at near-ties."""

    @property
    def problems(self) -> list[str]:
        """Why the verification failed; empty if no part has found a problem."""
        problems = [problem for part in self._parts for problem in part.problems]
        if self.batches and self.num_near_ties:
            problems.append(
                f"texts: {self.num_near_ties} split at near-ties, although the logits are the same bits in every batch"
            )
        return problems

    @property
    def untested(self) -> list[str]:
        """Which parts are undecided, and why; empty if all parts are decided."""
        untested = [reason for part in self._parts for reason in part.untested]
        if not self.interrupted and not any(text.stats.num_drafts for text in self.texts):
            untested.append("texts: nothing was drafted, so nothing was compared")
        return untested

    @property
    def passed(self) -> bool:
        """Whether all parts were done, and all passed: False, too, if something is undecided."""
        return not self.interrupted and not self.problems and not self.untested

    @property
    def _parts(self) -> list[Verdict]:
        return [*self.texts, *self.sampling, *self.tokens, *self.batches]

    @property
    def num_near_ties(self) -> int:
        """The number of places where texts differ by a near-tie."""
        return sum(difference.near_tie for text in self.texts for difference in text.differences)

    @property
    def notes(self) -> list[str]:
        """Notes for the reader that are no failures."""
        notes = []
        for name, parts in (("texts", self.texts), ("samples", [*self.sampling, *self.tokens])):
            if parts and not any(part.stats.num_accepted_tokens for part in parts):
                notes.append(f"{name}: no drafted token was accepted, so that they say nothing of accepted ones")
        cut = [text for text in self.texts if not text.problems and text.num_compared < text.num_tokens]
        if cut:
            notes.append(f"texts: {len(cut)} compared up to a near-tie only, because penalties look back beyond it")
        return notes
