"""The read-only structs of `specllama._core`."""

from __future__ import annotations

from typing import Any


def values(struct: object) -> tuple[Any, ...]:
    """What all fields hold, in order."""
    return tuple(getattr(struct, name) for name, member in vars(type(struct)).items() if isinstance(member, property))
