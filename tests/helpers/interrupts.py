"""Ctrl-C in the middle of a call."""

from __future__ import annotations

import gc
import signal
import time
from collections.abc import Callable

import pytest

SOON = 0.2
"""Seconds from the beginning of a call to the Ctrl-C."""


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
