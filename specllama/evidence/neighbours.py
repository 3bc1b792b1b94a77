"""Whether other programs used the machine while something was measured."""

from __future__ import annotations

import os
import sys
import time
from typing import NamedTuple

import psutil

_NOTICED = 0.25  # cores; less is what every machine does beside


class _Reading(NamedTuple):
    at: float
    busy: float  # seconds of all cores since the machine was started
    ours: float  # of this process and its children


class Neighbours:
    """Watches from when it is made.

    It is asked while the children that work for this process live: not all systems know what ended ones took. On
    Windows, and where a system does not say what its cores do, it sees nothing.
    """

    def __init__(self) -> None:
        self._begin = _read()

    def remark(self, threads: int) -> str | None:
        """What a reader of figures must know; None where others have left enough cores.

        Args:
            threads: how many what was measured used.
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
    # What another machine on the same hardware takes is no program that could be ended.
    idle = times.idle + getattr(times, "iowait", 0.0) + getattr(times, "steal", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # which are in user and nice, too
    own = psutil.Process()
    taken = 0.0
    for process in [own, *own.children(recursive=True)]:
        try:
            found = process.cpu_times()
        except psutil.Error:  # it has ended, and is in its parent's children's
            continue
        taken += found.user + found.system + found.children_user + found.children_system
    return _Reading(time.monotonic(), sum(times) - idle - guests, taken)
