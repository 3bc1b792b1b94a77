"""What glibc does with memory that the server has freed."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_MOST_KEPT = 1 << 20


def give_back_freed_memory() -> None:
    """Let glibc give back to the system what is freed, for the whole process; elsewhere nothing is done.

    By itself glibc raises its thresholds with the largest block that was freed: after a body of 8 MB each thread's heap
    may keep up to twice as much for good, and a server has many threads.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MOST_KEPT)
        mallopt(_M_TRIM_THRESHOLD, _MOST_KEPT)
