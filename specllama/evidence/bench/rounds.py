"""What the rounds of some generations were: how much they drafted, and where their time went."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import pairwise, zip_longest
from typing import Any

PARTS = ("draft", "verify", "sample", "rollback", "other")
"""What a round spends its time on; "other" is Python, stop strings and whoever reads the stream."""


@dataclasses.dataclass(frozen=True)
class Rounds:
    """Rounds of one or several generations together.

    Attributes:
        num_tokens: tokens that they generated.
        by_gamma: how many rounds drafted gamma tokens, by gamma; 0 is a round of plain decoding.
        seconds: what they took, by ``PARTS``, prompts left out.
        num_draft_tokens_per_pos: tokens drafted, by position in the draft.
        num_accepted_tokens_per_pos: the same, accepted.
    """

    num_tokens: int
    by_gamma: Mapping[int, int]
    seconds: Mapping[str, float]
    num_draft_tokens_per_pos: tuple[int, ...]
    num_accepted_tokens_per_pos: tuple[int, ...]

    @classmethod
    def of(cls, generations: Iterable[Mapping[str, Any]]) -> Rounds:
        """Sum over generations, each given by its ``Stats.to_dict()``."""
        num_tokens = 0
        by_gamma: Counter[int] = Counter()
        seconds = dict.fromkeys(PARTS, 0.0)
        drafted: tuple[int, ...] = ()
        accepted: tuple[int, ...] = ()
        for stats in generations:
            num_tokens += stats["num_tokens"]
            by_gamma.update(_by_gamma(stats))
            for part, value in _seconds(stats).items():
                seconds[part] += value
            drafted = _added(drafted, stats["num_draft_tokens_per_pos"])
            accepted = _added(accepted, stats["num_accepted_tokens_per_pos"])
        return cls(num_tokens, dict(sorted(by_gamma.items())), seconds, drafted, accepted)

    @property
    def num_rounds(self) -> int:
        """Decodes by the target."""
        return sum(self.by_gamma.values())

    @property
    def tokens_per_round(self) -> float:
        """E: tokens per decode by the target. 0.0 without rounds."""
        return self.num_tokens / self.num_rounds if self.num_rounds else 0.0

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """Accepted / drafted by position: how often a draft is accepted at least that far."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_draft_tokens_per_pos, strict=True)
        return tuple(accepted / drafted if drafted else 0.0 for accepted, drafted in pairs)


def _by_gamma(stats: Mapping[str, Any]) -> dict[int, int]:
    # Rounds that drafted at least gamma tokens; the difference to the next is those that drafted exactly gamma.
    at_least = [*stats["num_draft_tokens_per_pos"], 0]
    counts = {gamma: now - more for gamma, (now, more) in enumerate(pairwise(at_least), start=1) if now > more}
    # A round that drafts gives its accepted tokens and one more. All other tokens are of a round of their own. The
    # last round may have been cut by a stop string: then none is left.
    plain = stats["num_tokens"] - stats["num_drafts"] - stats["num_accepted_tokens"]
    return {0: plain, **counts} if plain > 0 else counts


def _seconds(stats: Mapping[str, Any]) -> dict[str, float]:
    seconds = {part: float(stats[f"{part}_seconds"]) for part in PARTS if part != "other"}
    generating = stats["total_seconds"] - stats["prompt_seconds"]
    return {**seconds, "other": max(0.0, generating - sum(seconds.values()))}


def _added(one: Iterable[int], other: Iterable[int]) -> tuple[int, ...]:
    return tuple(a + b for a, b in zip_longest(one, other, fillvalue=0))
