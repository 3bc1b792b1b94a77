"""The child process of a trial, see `trial`: runs one module of this package, and tells how it ended.

The answer goes to what was stdout when the process began. Whatever else is printed, by Python or by a library, goes to
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

_GRACE = 5.0  # seconds; whoever started this process is gone if it still lives then


def main(command: list[str]) -> NoReturn:
    """Run a module to its end, and give the answer.

    Args:
        command: the seconds that it may take, the module's name within this package, and its arguments.
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
    os._exit(0)  # what a library does when Python ends is not what was tried


def _leave_no_core() -> None:
    """A crash is one of the answers, and no reason to fill a disk."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
