"""Decides whether llama.cpp can use our kernels (products of quantized weights), and offers them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterable, Iterator

from llama_cpp import llama_cpp as _bindings

from specllama import _core

from .ggml import CpuBackend
from .libllama import has_gpu
from .trial import tried
from .trial_key import trial_key, with_neighbours

ENVIRONMENT = "SPECLLAMA_KERNELS"
"""The environment variable for models without a choice of their own: ``auto``, ``off``, or an instruction set."""

_TRIAL = "backend._kernel_trial"
_STATE_TRIAL = "backend._state_trial"
_SPEED_TRIAL = "backend._speed_trial"
_SECONDS = 120.0  # the time limit of the trial, which usually takes one or two seconds
_PLAIN = "plain"  # kernels in plain C++, for tests: slower than llama.cpp's own code


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The decision about our kernels, for this process."""

    instruction_set: str = ""
    """The name of the instruction set, such as ``AVX2``; empty if our kernels are not offered to llama.cpp."""
    updates_states: bool = False
    """Whether they update recurrent states, too: not where this llama.cpp describes these operations otherwise."""
    why_not: str = ""
    """Why our kernels are not offered, in one line; empty if they are."""
    suspicious: bool = False
    """Whether the reason is unexpected (a failure), so that the user is warned."""


def decide() -> Kernels:
    """Offer our kernels to llama.cpp, if they are for this machine and pass a trial in a child process.

    This must be called once, before a model is loaded. Models use the kernels only if they are loaded in a block of
    `kernel_use.loading`.
    """
    wanted = _from_environment()
    if wanted == "off":
        return Kernels(why_not=f"{ENVIRONMENT} says so")
    why_not = _unsuitable()
    if why_not:
        return Kernels(why_not=why_not)
    name = _instruction_set(wanted)
    try:
        updates_states = _offer(name)
    except (LookupError, RuntimeError, ValueError) as error:
        return Kernels(why_not=str(error), suspicious=True)
    return Kernels(instruction_set=name, updates_states=updates_states)


def has_instructions() -> bool:
    """Whether this processor has one of the instruction sets of our kernels. Else our products run in plain C++."""
    return bool(_core.instruction_sets() != [_PLAIN])


def _from_environment() -> str:
    return os.environ.get(ENVIRONMENT, "").strip() or "auto"


def _unsuitable() -> str:
    """Why this machine or this build of llama.cpp is not one that our kernels are for; empty if it is."""
    if not has_instructions():
        return "this processor has neither AVX2 nor NEON's dot products, or this build has no code for them"
    if has_gpu():
        return "this llama.cpp is built for a GPU"
    return ""


def _instruction_set(wanted: str) -> str:
    """The name of the wanted instruction set; for ``"auto"`` that of the fastest one.

    Raises:
        ValueError: this processor has no instruction set of this name.
    """
    names = _core.instruction_sets()
    if wanted == "auto":
        return names[0]
    for name in names:
        if name.casefold() == wanted.casefold():
            return name
    raise ValueError(f"{ENVIRONMENT}={wanted!r} is unknown: choose auto, off, {', '.join(names)}, or unset it")


_OFFERED: list[_core.KernelBufferType] = []  # what was offered to ggml: at most one in a process


def _offer(name: str) -> bool:
    """Try our kernels in a child process, and offer them. Returns whether they update recurrent states.

    Raises:
        LookupError, RuntimeError: the kernels cannot be offered to this llama.cpp; the message says why.
    """
    library = _bindings._lib._name
    key = trial_key(with_neighbours(library))
    trial = tried(_TRIAL, [library, name], key=key, seconds=_SECONDS)
    if not trial.ok:
        raise RuntimeError(f"their products were tried in a process of their own, and failed: {trial.reason}")
    updates_states = tried(_STATE_TRIAL, [library, name], key=key, seconds=_SECONDS).ok
    cpu = CpuBackend(_bindings._lib)
    if not _OFFERED:
        _OFFERED.append(offer_to(cpu, name, updates_states=updates_states))
    return updates_states


def offer_to(cpu: CpuBackend, name: str, *, updates_states: bool = False) -> _core.KernelBufferType:
    """Take the place of ggml's CPU_REPACK. This may be called once in a process, also after models were loaded.

    Args:
        cpu: ggml's CPU backend.
        name: the instruction set.
        updates_states: whether the kernels update recurrent states, too.

    Raises:
        LookupError: ggml lacks a function that is needed.
        RuntimeError: the layout of ggml's structs is not the one that our code expects, or it has no CPU_REPACK.
    """
    made = _core.KernelBufferType(
        addresses_of_functions(cpu), cpu.registry, cpu.extra_buffer_types(), name, updates_states
    )
    made.take_place()
    return made


@contextlib.contextmanager
def packing(kinds: Iterable[str]) -> Iterator[None]:
    """A block in which weights that this thread loads are packed for our kernels, if these were offered to llama.cpp.

    Args:
        kinds: the types of these weights, by name, such as ``Q4_K``.
    """
    _core.KernelBufferType.take_weights(list(kinds))
    try:
        yield
    finally:
        _core.KernelBufferType.take_weights([])


def slower(kernels: Kernels, kinds: Iterable[str]) -> dict[str, str]:
    """The types of weights whose products llama.cpp computes faster than our kernels on this machine, and by how much.

    Each type is measured once, in a child process, in less than a second; the answer is kept in the cache directory.
    Nothing is measured where ``SPECLLAMA_KERNELS`` names an instruction set.

    Args:
        kernels: the decision about our kernels.
        kinds: types of weights, by name. Those that our kernels do not multiply are left out.
    """
    if not kernels.instruction_set or _from_environment() != "auto":
        return {}
    library = _bindings._lib._name
    key = trial_key(with_neighbours(library))
    trials = {
        kind: tried(_SPEED_TRIAL, [library, kernels.instruction_set, kind], key=key, seconds=_SECONDS)
        for kind in sorted(set(kinds) & _core.quantized_types().keys())
    }
    return {kind: trial.reason for kind, trial in trials.items() if not trial.ok}


def addresses_of_functions(cpu: CpuBackend) -> dict[str, int]:
    """The addresses of the functions of ggml that the extension calls, by name.

    Args:
        cpu: ggml's CPU backend.

    Raises:
        LookupError: ggml lacks one of them.
    """
    optional = [function for function in _core.optional_ggml_functions() if cpu.has(function)]
    return {function: cpu.address(function) for function in [*_core.ggml_functions(), *optional]}
