"""The process in which sandbox.py executes a model's code: `python -I -S _sandbox_worker.py SOCKET`, the job on stdin.

This module imports only the standard library. sandbox.py judges the report that it sends.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import sys
import traceback
import types
from typing import Any

MAX_DETAIL = 300  # characters of an exception


def main() -> None:
    """Execute one program, report the outcome, and end without waiting for threads or processes that are left."""
    connection = socket.socket(fileno=int(sys.argv.pop()))
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limit(job["limits"])
    report = {"outcome": "passed", "detail": "", "token": ""}
    try:
        execute(job["parts"], job["entry_point"])
        # The token is read only now. Before, it is in the kernel, where no name, frame or object leads to it.
        report["token"] = connection.recv(64).decode()
    except BaseException as error:  # also SystemExit, because then the tests were not completed
        report["outcome"] = "failed" if isinstance(error, AssertionError) else "error"
        report["detail"] = traceback.format_exception_only(type(error), error)[-1].strip()[:MAX_DETAIL]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    connection.sendall(json.dumps(report).encode() + b"\n")
    os._exit(0)


def limit(limits: dict[str, int]) -> None:
    """Set the limits that the system has, and never above the present limits."""
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some values
            resource.setrlimit(kind, (value, value))


def execute(parts: list[str], entry_point: str) -> None:
    """Execute the parts in one namespace, and then call `check` with the function named `entry_point`."""
    module = types.ModuleType("answer")  # not __main__, so that code for running it as a script is not executed
    sys.modules["answer"] = module  # dataclasses look the module up there
    namespace: dict[str, Any] = module.__dict__
    for number, source in enumerate(parts, 1):
        exec(compile(source, f"<part {number}>", "exec", dont_inherit=True), namespace)
    namespace["check"](namespace[entry_point])


if __name__ == "__main__":
    main()
