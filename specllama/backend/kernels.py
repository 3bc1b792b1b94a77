"""Our kernels: whether llama.cpp is offered them, why not, and which models have them."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as _bindings

from specllama import _core

from .ggml import CpuBackend
from .trial import tried
from .trial_key import trial_key, with_neighbours

CHOICES = ("auto", "off")
"""What a Llama can be told about its kernels."""
ENVIRONMENT = "SPECLLAMA_KERNELS"
"""The environment variable that has the choice for models that are told nothing, or an instruction set by its name."""
BUFFER_TYPE = "SPECLLAMA"

_TRIAL = "backend._kernel_trial"
_SECONDS = 120.0  # it takes one or two
_PLAIN = "plain"  # for tests: slower than llama.cpp's own
_FIRST, _LAST = (0, 3, 16), (0, 3, 36)  # releases of llama-cpp-python whose insides have been looked at
_LIST = "_Z39ggml_backend_cpu_get_extra_buffer_typesv"


@dataclasses.dataclass(frozen=True)
class Kernels:
    """What was decided for this process."""

    instruction_set: str = ""
    """Its name, such as ``AVX2``; empty where llama.cpp is not offered our kernels."""
    why_not: str = ""
    """The reason, in one line; empty if it is offered them."""
    suspicious: bool = False
    """Whether something is not as it should be, so that the user is told."""


@dataclasses.dataclass
class KernelUse:
    """What became of one model."""

    instruction_set: str = ""
    """Of the kernels that multiply its weights; empty where none of them is ours."""
    num_bytes: int = 0
    """Of its weights that are packed for them."""
    why_not: str = ""
    """Why none is, in one line; empty if some are."""

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


def decide() -> Kernels:
    """Offer llama.cpp our kernels, unless there is any doubt. To be called before a model is loaded, once.

    Nothing uses them yet: see `loading`.
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
    if llama_cpp.llama_supports_gpu_offload():
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


def is_known_release() -> bool:
    """Whether the insides of the installed llama-cpp-python have been looked at."""
    return _FIRST <= tuple(map(int, re.findall(r"\d+", llama_cpp.__version__)[:3])) <= _LAST


_OFFERED: list[_core.KernelBufferType] = []  # one in a process, whoever asks again


def _offer(name: str) -> None:
    """Raises: LookupError, RuntimeError: why this llama.cpp cannot be offered them."""
    if not is_known_release():
        raise RuntimeError(
            f"llama-cpp-python {llama_cpp.__version__} is not among the releases they were tried with, "
            f"{'.'.join(map(str, _FIRST))} to {'.'.join(map(str, _LAST))}"
        )
    library = _bindings._lib._name
    trial = tried(_TRIAL, [library, name], key=trial_key(with_neighbours(library)), seconds=_SECONDS)
    if not trial.ok:
        raise RuntimeError(f"their products were tried in a process of their own, and failed: {trial.reason}")
    cpu = CpuBackend(_bindings._lib)
    if not _OFFERED:
        _OFFERED.append(offer_to(cpu, name))
    if BUFFER_TYPE not in cpu.offered_buffer_types():
        raise RuntimeError(
            "a model was loaded by llama_cpp before: open the first specllama.Llama before any llama_cpp.Llama"
        )


def offer_to(cpu: CpuBackend, name: str) -> _core.KernelBufferType:
    """Put our buffer type before ggml's own.

    Args:
        cpu: ggml's CPU backend.
        name: the instruction set.

    Raises:
        LookupError: ggml lacks a function that is needed.
        RuntimeError: it is laid out otherwise than is known.
    """
    addresses = {function: cpu.address(function) for function in _core.ggml_functions()}
    made = _core.KernelBufferType(addresses, name)
    made.offer(cpu.address(_LIST))
    return made


_USES: weakref.WeakKeyDictionary[llama_cpp.Llama, KernelUse] = weakref.WeakKeyDictionary()


@contextlib.contextmanager
def loading(choice: str | None) -> Iterator[KernelUse]:
    """Have the models that this thread loads in the block use our kernels, if they are offered and wanted.

    Args:
        choice: see `checked_kernels`.

    Yields:
        What becomes of the model, which is known after the block.
    """
    from .prepare import prepare_backend

    kernels = prepare_backend().kernels
    use = KernelUse(
        kernels.instruction_set, why_not=kernels.why_not or "none of its weights are of a type that they multiply"
    )
    if choice == "off":
        use = KernelUse(why_not="the model was opened with kernels='off'")
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


def remember(llama: llama_cpp.Llama, use: KernelUse) -> None:
    """Note what became of a model."""
    _USES[llama] = use


def use_of(llama: llama_cpp.Llama) -> KernelUse:
    """What became of a model; one that specllama has not opened has llama.cpp's kernels."""
    return _USES.get(llama) or KernelUse(why_not="it was opened by llama_cpp")
