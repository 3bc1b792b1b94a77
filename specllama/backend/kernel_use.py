"""Which models have our kernels, and why others have none."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from specllama import _core

from .prepare import prepare_backend

CHOICES = ("auto", "off")
"""What a Llama can be told about its kernels."""


@dataclasses.dataclass
class KernelUse:
    """What became of one model."""

    instruction_set: str = ""
    """Of the kernels that multiply its weights; empty where none of them is ours."""
    num_bytes: int = 0
    """Of its weights that are packed for them."""
    why_not: str = ""
    """Why none is, in one line; empty if some are."""
    choice: str | None = None
    """What the user has chosen: other models that belong to it are opened likewise."""

    def __str__(self) -> str:
        if not self.num_bytes:
            return f"off: {self.why_not}"
        return f"{self.instruction_set}, {self.num_bytes / 2**20:.0f} MiB of weights"


def checked_kernels(value: Any) -> str | None:
    """A choice, or None for that of the environment.

    Raises:
        ValueError: none of these.
    """
    if value is None or (isinstance(value, str) and value in CHOICES):
        return value
    raise ValueError(f"kernels={value!r} is unknown: choose {' or '.join(map(repr, CHOICES))}")


@contextlib.contextmanager
def loading(choice: str | None) -> Iterator[KernelUse]:
    """Have the models that this thread loads in the block use our kernels, if they are offered and wanted.

    Args:
        choice: see `checked_kernels`.

    Yields:
        What becomes of the model, which is known after the block.
    """
    kernels = prepare_backend().kernels
    why_not = kernels.why_not or "none of its weights are of a type that they multiply"
    use = KernelUse(kernels.instruction_set, why_not=why_not, choice=choice)
    if choice == "off":
        use = KernelUse(why_not="the model was opened with kernels='off'", choice=choice)
    before = _core.KernelBufferType.bytes_loaded()
    _core.KernelBufferType.take_weights(choice != "off" and bool(kernels.instruction_set))
    try:
        yield use
    finally:
        _core.KernelBufferType.take_weights(False)
        use.num_bytes = _core.KernelBufferType.bytes_loaded() - before
        if use.num_bytes:
            use.why_not = ""
        else:
            use.instruction_set = ""
