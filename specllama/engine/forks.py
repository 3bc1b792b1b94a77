"""Forked child processes, which have the memory of their parent but none of its threads."""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import NoReturn, Protocol

import llama_cpp

from .model import Model


class Inherited(Protocol):
    """An object that waits for other threads, and must not do so in a forked child, where these do not exist."""

    def leave_parent(self) -> None:
        """Called in a forked child before anything else runs there. The child lacks the parent's other threads."""


class _Team(threading.local):
    """Whether OpenMP has started a team of threads for this thread, and whether a fork has lost the team."""

    begun = False
    lost = False


_inherited: weakref.WeakSet[Inherited] = weakref.WeakSet()
_team = _Team()


def told_of_forks(inherited: Inherited) -> None:
    """Have ``inherited.leave_parent`` called in forked children."""
    _inherited.add(inherited)


def raise_forked() -> NoReturn:
    """Raise a RuntimeError whose message says how to fork."""
    raise RuntimeError(
        "this process is a fork, and would wait for threads that only its parent has: fork before the first "
        "generation, and open the Llama in the child, or start the child by multiprocessing.get_context('spawn')"
    )


@functools.lru_cache(maxsize=1)
def _has_openmp() -> bool:
    return b"OPENMP = 1" in llama_cpp.llama_print_system_info()


def require_threads(model: Model) -> None:
    """Check that decoding will not wait for OpenMP threads that a fork lacks. Called before anything is decoded.

    Raises:
        RuntimeError: decoding would wait for the parent's threads.
    """
    if max(model.settings.n_threads, model.settings.n_threads_batch) > 1 and _has_openmp():
        if _team.lost:
            raise_forked()
        _team.begun = True


def _leave_parent() -> None:
    _team.lost = _team.begun
    for inherited in list(_inherited):
        inherited.leave_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_parent)
