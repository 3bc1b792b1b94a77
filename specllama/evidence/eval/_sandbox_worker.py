"""The process in which sandbox.py executes a model's code: `python -I -S _sandbox_worker.py SOCKET`, the job on stdin.

It imports nothing but the standard library, and what it reports is for sandbox.py to judge.
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

MAX_DETAIL = 300  # characters


def main() -> None:
    """Execute one program, report how it went, and end without waiting for what it left behind."""
    connection = socket.socket(fileno=int(sys.argv.pop()))
    job = json.loads(sys.stdin.buffer.read())
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    limit(job["limits"])
    report = {"outcome": "passed", "detail": "", "token": ""}
    try:
        execute(job["parts"], job["entry_point"])
        # Only now: until here the token is in the kernel, where no name, frame or object of this process leads to it.
        report["token"] = connection.recv(64).decode()
    except BaseException as error:  # SystemExit too: the tests were not done
        report["outcome"] = "failed" if isinstance(error, AssertionError) else "error"
        report["detail"] = traceback.format_exception_only(type(error), error)[-1].strip()[:MAX_DETAIL]
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    connection.sendall(json.dumps(report).encode() + b"\n")
    os._exit(0)


def limit(limits: dict[str, int]) -> None:
    """Set the limits, where the system has them, and never above those that hold already."""
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        with contextlib.suppress(ValueError, OSError):  # macOS refuses some values
            resource.setrlimit(kind, (value, value))


def execute(parts: list[str], entry_point: str) -> None:
    """Execute the parts in one namespace, and then `check` on the function of that name."""
    module = types.ModuleType("answer")  # not __main__: what an answer does if it is run as a script is not wanted
    sys.modules["answer"] = module  # dataclasses look there
    namespace: dict[str, Any] = module.__dict__
    for number, source in enumerate(parts, 1):
        exec(compile(source, f"<part {number}>", "exec", dont_inherit=True), namespace)
    namespace["check"](namespace[entry_point])


if __name__ == "__main__":
    main()
