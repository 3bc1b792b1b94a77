"""Our kernels: whether llama.cpp is offered them, and why not."""

from __future__ import annotations

import dataclasses
import os
import platform
import sys

from llama_cpp import llama_cpp as _bindings

from specllama import _core

from .ggml import LIST, CpuBackend
from .libllama import has_gpu
from .trial import tried
from .trial_key import trial_key, with_neighbours

ENVIRONMENT = "SPECLLAMA_KERNELS"
"""The environment variable that has the choice for models that are told nothing, or an instruction set by its name."""

_TRIAL = "backend._kernel_trial"
_SECONDS = 120.0  # it takes one or two
_PLAIN = "plain"  # for tests: slower than llama.cpp's own


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What was decided for this process."""

    instruction_set: str = ""
    """Its name, such as ``AVX2``; empty where llama.cpp is not offered our kernels."""
    why_not: str = ""
    """The reason, in one line; empty if it is offered them."""
    suspicious: bool = False
    """Whether something is not as it should be, so that the user is told."""


def decide() -> Kernels:
    """Offer llama.cpp our kernels, unless there is any doubt. To be called before a model is loaded, once.

    Nothing uses them yet: see `kernel_use.loading`.
    """
    wanted = _from_environment()
    if wanted == "off":
        return Kernels(why_not=f"{ENVIRONMENT} says so")
    why_not = _unsuitable()
    if why_not:
        return Kernels(why_not=why_not)
    name = _instruction_set(wanted)
    try:
        _offer(name)
    except (LookupError, RuntimeError, ValueError) as error:
        return Kernels(why_not=str(error), suspicious=True)
    return Kernels(instruction_set=name)


def _from_environment() -> str:
    return os.environ.get(ENVIRONMENT, "").strip() or "auto"


def _unsuitable() -> str:
    """Why this machine or this build does without, as it should."""
    if not sys.platform.startswith("linux") or platform.machine().lower() not in ("x86_64", "amd64"):
        return "they are for Linux on x86-64"
    if _core.instruction_sets() == [_PLAIN]:
        return "this processor has no AVX2"
    if has_gpu():
        return "this llama.cpp is built for a GPU"
    return ""


def _instruction_set(wanted: str) -> str:
    """The one that was asked for, or the fastest.

    Raises:
        ValueError: this processor has none of this name.
    """
    names = _core.instruction_sets()
    if wanted == "auto":
        return names[0]
    for name in names:
        if name.casefold() == wanted.casefold():
            return name
    raise ValueError(f"{ENVIRONMENT}={wanted!r} is unknown: choose auto, off, {', '.join(names)}, or unset it")


_OFFERED: list[_core.KernelBufferType] = []  # one in a process, whoever asks again


def _offer(name: str) -> None:
    """Raises: LookupError, RuntimeError: why this llama.cpp cannot be offered them."""
    library = _bindings._lib._name
    trial = tried(_TRIAL, [library, name], key=trial_key(with_neighbours(library)), seconds=_SECONDS)
    if not trial.ok:
        raise RuntimeError(f"their products were tried in a process of their own, and failed: {trial.reason}")
    cpu = CpuBackend(_bindings._lib)
    if not _OFFERED:
        _OFFERED.append(offer_to(cpu, name))


def offer_to(cpu: CpuBackend, name: str) -> _core.KernelBufferType:
    """Put our buffer type before ggml's own, whatever was loaded before. Once in a process.

    Args:
        cpu: ggml's CPU backend.
        name: the instruction set.

    Raises:
        LookupError: ggml lacks a function that is needed.
        RuntimeError: it is laid out otherwise than is known.
    """
    addresses = {function: cpu.address(function) for function in _core.ggml_functions()}
    made = _core.KernelBufferType(addresses, cpu.registry, name)
    made.offer(cpu.address(LIST), cpu.own_address("ggml_backend_dev_get_extra_bufts"))
    return made
