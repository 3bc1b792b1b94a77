"""How much memory this process holds."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

MEGABYTE = 1 << 20


def resident_megabytes() -> float | None:
    """Memory of this process; None if unknown."""
    if "libasan" in Path("/proc/self/maps").read_text():
        return None  # AddressSanitizer holds back what is freed, up to 256 MB
    gc.collect()
    # glibc keeps what is freed, in pieces between what is not. The ends of the threads' heaps are not trimmed here:
    # that is what `give_back_freed_memory` is for.
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / MEGABYTE
