"""Has a trial end as `faults.trial_that_ends` was told.

Every Python that finds this folder on PYTHONPATH imports this module first.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time

_TRIAL, _, _END = os.environ.get("SPECLLAMA_SIMULATED_TRIAL", "").partition(":")


def _end_so(*_: object, **__: object) -> None:
    if _END.startswith("SIG"):
        number = signal.Signals[_END]
        signal.signal(number, signal.SIG_DFL)  # a handler of Python's, or of a sanitizer's, makes an exit code of it
        os.kill(os.getpid(), number)
    elif _END.startswith("exit "):
        sys.stderr.write("what it said last\n")
        sys.exit(int(_END.removeprefix("exit ")))
    elif _END == "hang":
        time.sleep(3600)
    elif _END == "silent":
        os._exit(0)
    elif _END.startswith("refuse "):
        sys.exit(_END.removeprefix("refuse "))
    elif _END != "well":
        raise ValueError(f"SPECLLAMA_SIMULATED_TRIAL has the end {_END!r}, which there is not")


if _TRIAL and os.environ.get("SPECLLAMA_WITHIN_TRIAL") == _TRIAL:
    runpy.run_module = _end_so  # type: ignore[assignment]
