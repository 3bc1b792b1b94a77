"""Which models use our kernels for products of quantized weights, and why others do not."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Collection, Iterator
from typing import Any

from specllama import _core

from .kernels import packing, slower
from .prepare import prepare_backend

CHOICES = ("auto", "off")
"""The values of a Llama's argument ``kernels``."""


@dataclasses.dataclass
class KernelUse:
    """Whether one model uses our kernels."""

    instruction_set: str = ""
    """The instruction set of the kernels that multiply the model's weights; empty if they are not ours."""
    num_bytes: int = 0
    """How many bytes of weights are packed for our kernels."""
    why_not: str = ""
    """Why no weights are packed, in one line; empty if some are."""
    choice: str | None = None
    """The user's choice. Drafts of this model are opened with the same choice, unless the user gives another."""

    def __str__(self) -> str:
        if not self.num_bytes:
            return f"off: {self.why_not}"
        return f"{self.instruction_set}, {self.num_bytes / 2**20:.0f} MiB of weights"


def checked_kernels(value: Any) -> str | None:
    """Check ``kernels``: one of ``CHOICES``, or None for the choice of the environment.

    Raises:
        ValueError: any other value.
    """
    if value is None or (isinstance(value, str) and value in CHOICES):
        return value
    raise ValueError(f"kernels={value!r} is unknown: choose {' or '.join(map(repr, CHOICES))}")


@contextlib.contextmanager
def loading(choice: str | None, kinds: Collection[str]) -> Iterator[KernelUse]:
    """A block in which a model that this thread loads uses our kernels, if these are offered to llama.cpp and wanted.

    Args:
        choice: ``"auto"`` or ``"off"``; None for the choice of the environment.
        kinds: the types of the model's weights, by name. Those that llama.cpp multiplies faster here are left to it.

    Yields:
        A description of the kernels' use, which is complete at the end of the block.
    """
    kernels = prepare_backend().kernels
    left = slower(kernels, kinds) if choice != "off" else {}
    why_not = kernels.why_not or "; ".join(left.values()) or "none of its weights are of a type that they multiply"
    use = KernelUse(kernels.instruction_set, why_not=why_not, choice=choice)
    if choice == "off":
        use = KernelUse(why_not="the model was opened with kernels='off'", choice=choice)
    before = _core.KernelBufferType.bytes_loaded()
    try:
        with packing(kind for kind in kinds if use.instruction_set and kind not in left):
            yield use
    finally:
        use.num_bytes = _core.KernelBufferType.bytes_loaded() - before
        if use.num_bytes:
            use.why_not = ""
        else:
            use.instruction_set = ""
