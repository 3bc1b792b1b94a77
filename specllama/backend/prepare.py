"""Prepares llama.cpp before this process loads its first model."""

from __future__ import annotations

import dataclasses
import os
import threading

import llama_cpp

from specllama.warn import warn

from . import kernels
from .amx import NO_AMX, why_amx_is_off
from .kernels import Kernels
from .libllama import has_gpu


@dataclasses.dataclass(frozen=True)
class Backend:
    """The decisions about llama.cpp's CPU backend, for all models of this process."""

    kernels: Kernels = dataclasses.field(default_factory=Kernels)
    """Our kernels, as models can use them. Each model has a ``KernelUse`` that says whether the model uses them."""
    amx_off: str | None = None
    """Why llama.cpp's AMX code was turned off; None if llama.cpp does not use AMX here, or if AMX works."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on differences from a plain llama.cpp, which are kept with measurements."""
        return () if self.amx_off is None else (f"AMX off: {self.amx_off}",)


_LOCK = threading.Lock()
_decided: Backend | None = None
_is_child = False  # whether this process is a fork of a process that had called `prepare_backend`


def _leave_parent() -> None:
    global _is_child
    _is_child = _decided is not None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parent)


def require_own_gpu() -> None:
    """Check that this process does not use its parent's GPU. Called before anything is loaded or decoded.

    A GPU's driver does not survive a fork, and llama.cpp would abort.

    Raises:
        RuntimeError: this is a fork of a process that had begun to use llama.cpp, which is built for a GPU.
    """
    if _is_child and has_gpu():
        raise RuntimeError(
            "this process is a fork, and a GPU works for its parent only: start the child by "
            "multiprocessing.get_context('spawn'), or fork before the first model is loaded"
        )


def prepare_backend() -> Backend:
    """Make the decisions, unless they are made already, and warn of faults that a user can fix.

    This is called before each model is loaded. After the first call it costs nothing.

    Raises:
        RuntimeError: this process is a fork, and would use a GPU.
    """
    require_own_gpu()
    global _decided
    with _LOCK:
        if _decided is not None:
            return _decided
        # AMX comes first: a broken one gets no weights, whether the kernels are used or not.
        amx_off = why_amx_is_off()
        _decided = Backend(kernels=kernels.decide(), amx_off=amx_off)
    # Each warning is given once, after the decisions are stored: if warnings are errors, the next model can be loaded.
    if _decided.kernels.suspicious:
        warn(
            f"specllama's kernels are off: {_decided.kernels.why_not}. Texts stay right, and batches of several tokens "
            f"take longer. {kernels.ENVIRONMENT}=off ends this warning"
        )
    if _decided.amx_off is not None:
        _warn_of_amx(_decided.amx_off)
    return _decided


def _warn_of_amx(reason: str) -> None:
    warn(
        f"AMX is off: the AMX code of this llama-cpp-python failed in a small product, tried in a process of its own "
        f"({reason}). GCC 12 and others of its age compile it so that it ends the process. Texts stay right, prompts "
        f'take longer. Build it without AMX: CFLAGS="{NO_AMX}" CXXFLAGS="{NO_AMX}" pip install --force-reinstall '
        f"--no-deps --no-cache-dir llama-cpp-python=={llama_cpp.__version__}"
    )
