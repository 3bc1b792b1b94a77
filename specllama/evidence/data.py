"""The base of all results, which are data ready for JSON, and sums of statistics."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from specllama.stats import Stats, ratio


class Data:
    """The base of dataclasses that are written as JSON."""

    computed: ClassVar[tuple[str, ...]] = ()
    """The names of properties that are written, too."""

    def to_dict(self) -> dict[str, Any]:
        """The fields and the computed properties, ready for JSON."""
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
    """The result of a run."""

    settings: dict[str, Any]
    """The settings of the run."""
    machine: dict[str, Any]
    """Models, threads, processor, backends and versions."""
    interrupted: bool = False
    """Whether the run was ended early. Then the result has what was measured until then."""

    def to_dict(self) -> dict[str, Any]:
        """The whole result, ready for JSON."""
        found = super().to_dict()
        found["settings"]["interrupted"] = found.pop("interrupted")
        return found


def total(generations: Iterable[Stats]) -> Stats:
    """The statistics of several generations together: sums, and the ratios of sums."""
    runs = list(generations)
    sums: dict[str, Any] = {}
    for name in _SUMMED:
        values = [getattr(run, name) for run in runs]
        is_list = isinstance(getattr(Stats, name), tuple)
        sums[name] = tuple(map(sum, itertools.zip_longest(*values, fillvalue=0))) if is_list else sum(values)
    return Stats(
        **sums,
        acceptance_rate=ratio(sums["num_accepted_tokens"], sums["num_draft_tokens"]),
        mean_acceptance_length=1.0 + ratio(sums["num_accepted_tokens"], sums["num_drafts"]),
        fallback_reason=next((run.fallback_reason for run in runs if run.fallback_reason), None),
    ).with_speed()


_NO_SUMS = ("plain_seconds", "num_idle_rounds")
_SUMMED = [
    field.name
    for field in dataclasses.fields(Stats)
    if field.name.startswith("num_") or field.name.endswith("_seconds")
    if field.name not in _NO_SUMS
]
