"""The child process of a trial (see `trial`). It runs one module of this package, and reports how the module ended.

The answer goes to the stdout with which the process began. Everything else that Python or a library prints goes to
stderr.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import runpy
import sys
from typing import NoReturn

_GRACE = 5.0  # seconds after the time limit; if this process still lives then, its parent is gone, and it ends itself


def main(command: list[str]) -> NoReturn:
    """Run a module to its end, and write the answer.

    Args:
        command: the module's time limit in seconds, its name within this package, and its arguments.
    """
    seconds, name, *arguments = command
    answer = os.dup(1)
    os.dup2(2, 1)
    _leave_no_core()
    faulthandler.dump_traceback_later(float(seconds) + _GRACE, exit=True)
    sys.argv = [name, *arguments]
    try:
        runpy.run_module(f"specllama.{name}", run_name="__main__", alter_sys=True)
        reason = ""
    except SystemExit as ended:
        if isinstance(ended.code, int) and ended.code != 0:
            raise
        reason = str(ended.code or "it gave no reason") if isinstance(ended.code, str) else ""
    os.write(answer, json.dumps({"reason": reason}).encode("ascii"))
    sys.stderr.flush()
    os._exit(0)  # without Python's end, because errors of libraries at the end are no part of the trial


def _leave_no_core() -> None:
    """Switch off core dumps: a crash is an ordinary answer of a trial, and must not fill a disk."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
