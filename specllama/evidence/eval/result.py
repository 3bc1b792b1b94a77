"""What an evaluation found, as data."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from specllama.prompts import Prompt
from specllama.stats import Stats

from .accuracy import Comparison, compare_accuracy

WAYS = ("plain", "speculative")
"""The two ways of answering."""


@dataclasses.dataclass(frozen=True)
class Grade:
    """What an answer is worth."""

    correct: bool
    outcome: str
    """In a word: ``right``, ``wrong``, ``no number``; of programs ``passed``, ``failed``, ``error``, ``timeout``."""
    detail: str = ""
    """The number read from the answer, or how its program ended."""


@dataclasses.dataclass(frozen=True)
class GradedAnswer:
    """One answer and its grade."""

    text: str
    finish_reason: str
    """``stop``, or ``length`` if it ended at ``max_tokens``."""
    seed: int
    grade: Grade
    stats: Stats

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "text": self.text,
            "finish_reason": self.finish_reason,
            "seed": self.seed,
            **dataclasses.asdict(self.grade),
            "stats": self.stats.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Record:
    """One question and both its answers."""

    prompt: Prompt
    plain: GradedAnswer
    speculative: GradedAnswer

    @property
    def expected(self) -> int | None:
        """The right number, where it is one."""
        return self.prompt.task.get("expected")

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "id": self.prompt.id,
            "category": self.prompt.category,
            "question": self.prompt.text,
            "expected": self.expected,
            "plain": self.plain.to_dict(),
            "speculative": self.speculative.to_dict(),
        }


@dataclasses.dataclass(frozen=True)
class Speed:
    """All answers of one way together. Prompts are left out; what was still in the cache of a prompt was reused."""

    num_tokens: int
    """Tokens generated."""
    seconds: float
    """In which they were, prompts left out."""
    tokens_per_second: float
    acceptance_rate: float
    """Accepted / drafted."""
    mean_acceptance_length: float
    """Tokens per round that drafted."""

    @classmethod
    def of(cls, answers: Iterable[Stats]) -> Speed:
        """Sums, and their ratios; 0.0 (a mean length of 1.0) where there is nothing to divide by."""
        found = list(answers)
        tokens = sum(stats.num_tokens for stats in found)
        seconds = sum(stats.total_seconds - stats.prompt_seconds for stats in found)
        accepted = sum(stats.num_accepted_tokens for stats in found)
        drafted = sum(stats.num_draft_tokens for stats in found)
        rounds = sum(stats.num_drafts for stats in found)
        return cls(
            num_tokens=tokens,
            seconds=seconds,
            tokens_per_second=tokens / seconds if seconds > 0 else 0.0,
            acceptance_rate=accepted / drafted if drafted else 0.0,
            mean_acceptance_length=1.0 + (accepted / rounds if rounds else 0.0),
        )


@dataclasses.dataclass(frozen=True)
class EvalResult:
    """Questions answered plainly and speculatively, and graded."""

    name: str
    """``multiply`` or ``humaneval``."""
    records: list[Record]
    settings: dict[str, Any]
    machine: dict[str, Any]
    interrupted: bool = False
    """Whether it ended before all questions were answered both ways."""

    @property
    def comparison(self) -> Comparison | None:
        """Both accuracies and whether they differ; None without a single question."""
        if not self.records:
            return None
        plain = [record.plain.grade.correct for record in self.records]
        return compare_accuracy(plain, [record.speculative.grade.correct for record in self.records])

    def answers(self, way: str) -> list[GradedAnswer]:
        """The answers of one way, ``plain`` or ``speculative``, in the order of the questions."""
        return [getattr(record, way) for record in self.records]

    def speed(self, way: str) -> Speed:
        """How fast one way was."""
        return Speed.of(answer.stats for answer in self.answers(way))

    def outcomes(self, way: str) -> dict[str, int]:
        """How many answers of one way had which outcome, the most frequent first."""
        return dict(collections.Counter(answer.grade.outcome for answer in self.answers(way)).most_common())

    def notes(self) -> list[str]:
        """What a reader of the figures must know."""
        found = []
        if self.settings.get("temperature") == 0:
            found.append(
                "At temperature 0 both ways give the same text, but for near-ties that batches of other sizes round "
                "differently: a temperature above 0 tests more."
            )
        cut = [sum(answer.finish_reason == "length" for answer in self.answers(way)) for way in WAYS]
        if any(cut):
            limit = self.settings.get("max_tokens")
            found.append(f"Cut off after {limit} tokens: {cut[0]} plain and {cut[1]} speculative answers.")
        reasons = {answer.stats.fallback_reason for answer in self.answers("speculative")} - {None}
        found += [f"Speculative answers were decoded plainly: {reason}." for reason in sorted(map(str, reasons))]
        return found

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        comparison = self.comparison
        return {
            "name": self.name,
            "comparison": None if comparison is None else comparison.to_dict(),
            "speed": {way: dataclasses.asdict(self.speed(way)) for way in WAYS},
            "outcomes": {way: self.outcomes(way) for way in WAYS},
            "notes": self.notes(),
            "machine": self.machine,
            "settings": {**self.settings, "interrupted": self.interrupted},
            "questions": [record.to_dict() for record in self.records],
        }
