"""What all results have in common: they are data, and ready for JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from specllama.stats import Stats


class Data:
    """The base of dataclasses that are written as JSON."""

    computed: ClassVar[tuple[str, ...]] = ()
    """Properties that are written, too."""

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        names = [field.name for field in dataclasses.fields(self)]  # type: ignore[arg-type]
        return {name: _plain(getattr(self, name)) for name in (*self.computed, *names)}


def _plain(value: Any) -> Any:
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result(Data):
    """Everything that a run found."""

    settings: dict[str, Any]
    """What was asked for."""
    machine: dict[str, Any]
    """Models, threads, processor, backends and versions."""
    interrupted: bool = False
    """Whether something ended it early; what was found until then is here."""

    def to_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        found = super().to_dict()
        found["settings"]["interrupted"] = found.pop("interrupted")
        return found


@dataclasses.dataclass(frozen=True)
class Drafting(Data):
    """How much some generations drafted, all together."""

    computed: ClassVar[tuple[str, ...]] = ("acceptance_rate", "mean_acceptance_length")

    num_tokens: int
    """Tokens generated."""
    num_drafts: int
    """Rounds that drafted."""
    num_draft_tokens: int
    num_accepted_tokens: int
    fallback_reason: str | None
    """Why one of them decoded plainly, at least in part; None if none did."""

    @classmethod
    def of(cls, generations: Iterable[Stats]) -> Drafting:
        """Sum over generations."""
        runs = list(generations)
        counters = ("num_tokens", "num_drafts", "num_draft_tokens", "num_accepted_tokens")
        sums = {name: sum(getattr(run, name) for run in runs) for name in counters}
        return cls(**sums, fallback_reason=next((run.fallback_reason for run in runs if run.fallback_reason), None))

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0.0 if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens of a round that drafted; 1.0 if none did."""
        return 1.0 + (self.num_accepted_tokens / self.num_drafts if self.num_drafts else 0.0)
