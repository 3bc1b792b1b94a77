"""The read-only structs of `specllama._core`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama import _core


def costs_of(loop: _core.Speculator) -> tuple[dict[int, float], dict[int, float]]:
    """What batches of the target and of the draft take, as far as it is known."""
    target, draft = [*loop.costs, {}, {}][:2]
    return target, draft


def values(struct: object) -> tuple[Any, ...]:
    """What all fields hold, in order."""
    return tuple(getattr(struct, name) for name, member in vars(type(struct)).items() if isinstance(member, property))
