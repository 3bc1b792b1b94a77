"""Ctrl-C in the middle of a call."""

from __future__ import annotations

import collections
import gc
import signal
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType

import pytest

SOON = 0.2
"""Seconds from the beginning of a call to the Ctrl-C."""
_MOST_TIMES = 3


def seconds_until_interrupted(call: Callable[[], object]) -> float:
    """From a Ctrl-C in the middle of a call to its end."""

    def handle(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    # Python drops what is raised in a __del__ of what other tests have left, or in a callback of the collector's.
    gc.collect()
    gc.disable()
    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, SOON)
        start = time.perf_counter()
        with pytest.raises(KeyboardInterrupt):
            call()
        return time.perf_counter() - start - SOON
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
        gc.enable()


class Interruption:
    """Ctrl-C at the n-th place where Python could hear of it: where a function begins, or one of C has returned.

    It needs no clock, so it always comes there. (Between other steps Python runs no signal handler, but a hook that
    counts lines would: between the end of a ``with`` block and ``__exit__``, for example.) Of a place that is met again
    and again, as in a loop over tokens, only the first three times count.

    Attributes:
        where: the file and the line; None if the call ran through with fewer places.
        num_places: how many places the call has met.
    """

    def __init__(self, number: int, within: str = "") -> None:
        self._number, self._within = number, within
        self._met = collections.Counter[tuple[CodeType, int]]()
        self.where: str | None = None
        self.num_places = 0

    def of(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted. What else it raises is raised.

        Python drops what is raised in a ``__del__`` or a dropped generator, so the interruption comes behind it.
        """
        gc.collect()
        gc.disable()
        streams = sys.stdout, sys.stderr
        before, handler = sys.unraisablehook, signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.unraisablehook = self._come_again
        sys.setprofile(self._meet)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.setprofile(None)
            sys.stdout, sys.stderr = streams  # the call may have been about to put them back
            sys.unraisablehook = before
            signal.signal(signal.SIGINT, handler)
            gc.enable()
        assert self.where is None, f"the KeyboardInterrupt of {self.where} was dropped"
        return False

    def _come_again(self, dropped: object) -> None:
        self.where = None
        sys.setprofile(self._meet)

    def _meet(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if event not in ("call", "c_return") or self.where is not None or code is Interruption.of.__code__:
            return
        if not code.co_filename.startswith(self._within):
            return
        self._met[place := (code, frame.f_lasti)] += 1
        self.num_places += self._met[place] <= _MOST_TIMES
        if self.num_places >= self._number and not _is_dropping(frame) and not _is_made_by_llama_cpp(frame):
            self.where = f"{code.co_filename}:{frame.f_lineno} ({code.co_name})"
            signal.raise_signal(signal.SIGINT)  # and whoever has a handler of its own, as servers do, is asked


def _is_made_by_llama_cpp(frame: FrameType | None) -> bool:
    """Whether one of llama_cpp's own constructors runs. It may lose what it has just made; what calls it may not."""
    while frame is not None:
        code = frame.f_code
        if code.co_name == "__init__" and Path(code.co_filename).parts[-2:] == ("llama_cpp", "_internals.py"):
            return True
        frame = frame.f_back
    return False


def _is_dropping(frame: FrameType | None) -> bool:
    """Whether Python drops what is raised here, because C has called it."""
    while frame is not None:
        code = frame.f_code
        if code.co_name in ("__del__", "_hear", "_remove") or code is weakref.finalize.__call__.__code__:
            return True
        frame = frame.f_back
    return False
