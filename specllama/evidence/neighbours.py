"""Notices whether other programs used the machine during a measurement."""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

import psutil

_NOTICED = 0.25  # cores that other programs use; less than this is usual on every machine


class _Reading(NamedTuple):
    at: float
    busy: float  # seconds of all cores since the machine was started
    ours: float  # seconds of this process and its children


class Neighbours:
    """Watches other programs, from the moment at which the object is made.

    Call `remark` while the children that work for this process still run, because not all systems know the time of
    ended children. On Windows, and on systems that do not report the time of cores, it notices nothing.
    """

    def __init__(self) -> None:
        self._begin = _read()

    def remark(self, threads: int) -> str | None:
        """A note for readers of figures; None if other programs have left enough cores.

        Args:
            threads: how many threads the measurement used.
        """
        end, begin, cores = _read(), self._begin, os.cpu_count() or 1
        if end is None or begin is None or end.at <= begin.at:
            return None
        others = (end.busy - begin.busy - end.ours + begin.ours) / (end.at - begin.at)
        if others < _NOTICED or others + threads <= cores:
            return None
        return (
            f"other programs used {others:.1f} of {cores} cores meanwhile, so these figures say little: threads that "
            "share a core wait for each other. End the others, or use fewer threads (-t)"
        )


def _read() -> _Reading | None:
    if sys.platform == "win32":
        return None
    try:
        times = psutil.cpu_times()
    except (psutil.Error, OSError):
        return None
    # "steal" is the time of other machines on the same hardware. It counts as idle: the user can end no program there.
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # part of user and nice, too
    this = psutil.Process()
    taken = 0.0
    for process in [this, *this.children(recursive=True)]:
        try:
            found = process.cpu_times()
        except psutil.Error:
            # The process has ended. Its time is part of its parent's children_user and children_system.
            continue
        taken += found.user + found.system + found.children_user + found.children_system
    return _Reading(time.monotonic(), sum(times) - idle - guests, taken)
