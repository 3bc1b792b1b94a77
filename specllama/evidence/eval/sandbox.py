"""Runs a program that a model has written, in a process of its own, with limits on time and memory.

This is not a security boundary. The limits protect this machine from a program that loops, takes all memory or fills a
file, and it runs in an empty folder that is deleted afterwards. But it runs with the rights of the user: it can read
the user's files and use the network. macOS does not enforce the limit on memory, and root has no limit on processes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import math
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from specllama.backend.child import require_python

_WORKER = Path(__file__).with_name("_sandbox_worker.py")
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # without them some builds of Python do not start
_MAX_OUTPUT = 10_000
_MAX_DETAIL = 300
_MAX_MESSAGE = 10_000


@dataclasses.dataclass(frozen=True)
class Limits:
    """The limits of a program."""

    seconds: float = 10.0
    """Seconds of wall-clock time. Then the program is ended, with all processes that it has started."""
    memory: int = 1 << 30
    """Bytes of address space."""
    file_size: int = 16 << 20
    """Bytes of each file that the program writes. Its output is such a file, too."""
    processes: int | None = 0
    """No process can be started while the user has this many: 0 forbids new ones. None: there is no limit."""

    def __post_init__(self) -> None:
        for name in ("seconds", "memory", "file_size"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: the limit of a program must be above 0")

    def resources(self) -> dict[str, int]:
        """The limits by the names of Python's ``resource`` module."""
        found = {
            "RLIMIT_AS": self.memory,
            # Usually the clock ends the process group first. This limit is for processes that have left the group.
            "RLIMIT_CPU": math.ceil(self.seconds) + 1,
            "RLIMIT_FSIZE": self.file_size,
            "RLIMIT_CORE": 0,
        }
        return found if self.processes is None else {**found, "RLIMIT_NPROC": self.processes}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    outcome: str
    """``passed``; ``failed``: an assertion did not hold; ``error``: it ended otherwise; ``timeout``."""
    detail: str
    """The exception, or how else the program ended."""
    output: str
    """The beginning of what the program printed."""

    @property
    def passed(self) -> bool:
        """Whether all tests passed."""
        return self.outcome == "passed"


def require_sandbox() -> None:
    """Check that this system can limit the time and memory of a program.

    Raises:
        RuntimeError: Python has no ``resource`` module here, as on Windows.
    """
    if importlib.util.find_spec("resource") is None:
        raise RuntimeError(
            f"this system ({sys.platform}) cannot limit the time and memory of a program (Python has no `resource` "
            "module here), so no code is executed: use Linux or macOS"
        )


def run_tests(parts: Sequence[str], entry_point: str, limits: Limits | None = None) -> Outcome:
    """Execute a program, then call ``check(entry_point)`` in its namespace.

    A token proves that ``check`` has returned: until then it stays unread in a socket. So a program that ends early, by
    ``sys.exit(0)`` or ``os._exit(0)``, has not passed.

    Args:
        parts: sources, executed one after the other in one namespace. One of them defines ``check``.
        entry_point: the name of the function to be tested.
        limits: the limits of the program; None: the defaults.

    Raises:
        RuntimeError: this system has no limits on time and memory.
        OSError: no process can be started.
    """
    require_sandbox()
    limits = limits or Limits()
    job = {"parts": list(parts), "entry_point": entry_point, "limits": limits.resources()}
    token = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="specllama-", ignore_cleanup_errors=True))
        output = stack.enter_context(tempfile.TemporaryFile())
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())
        ours.sendall(token.encode())
        process = stack.enter_context(_started(job, folder, output, theirs))
        theirs.close()
        message = _received(ours, time.monotonic() + limits.seconds)
        _end(process)
        output.seek(0)
        text = output.read(_MAX_OUTPUT).decode("utf-8", errors="replace")
    return _judged(message, token, process.returncode, text, limits)


@contextlib.contextmanager
def _started(
    job: dict[str, Any], folder: str, output: IO[bytes], connection: socket.socket
) -> Iterator[subprocess.Popen[bytes]]:
    """Start the process of a program. At the end of the block it is killed, with all processes that it has started."""
    environment = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    environment |= {"HOME": folder, "TMPDIR": folder, "PATH": os.defpath}
    with tempfile.TemporaryFile() as given:
        given.write(json.dumps(job).encode())
        given.seek(0)
        require_python()
        process = subprocess.Popen(
            # Python is isolated and without site-packages, so that results do not depend on installed packages.
            [sys.executable, "-I", "-S", "-X", "utf8", str(_WORKER), str(connection.fileno())],
            cwd=folder,
            env=environment,
            stdin=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[connection.fileno()],
            start_new_session=True,  # in a process group of its own, which the terminal's Ctrl-C does not reach
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its group. Until it is waited for, no other process has its id."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group has ended
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _received(connection: socket.socket, deadline: float) -> bytes | None:
    """The line that the worker sends; if the worker has ended, what it has sent; None if time is up."""
    received = b""
    while not received.endswith(b"\n") and len(received) < _MAX_MESSAGE:
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        connection.settimeout(left)
        try:
            chunk = connection.recv(_MAX_MESSAGE)
        except TimeoutError:
            return None
        except ConnectionError:  # the worker has ended without reading the token
            chunk = b""
        if not chunk:
            break
        received += chunk
    return received


def _judged(message: bytes | None, token: str, returncode: int, output: str, limits: Limits) -> Outcome:
    """The outcome that a message means. A process that ran a model's code has sent it, so every part is checked."""
    if message is None:
        return Outcome("timeout", f"not done after {limits.seconds:g} s", output)
    try:
        found = json.loads(message)
        outcome, detail, given = (str(found[key]) for key in ("outcome", "detail", "token"))
    except (ValueError, TypeError, LookupError, RecursionError):
        return Outcome("error", _ending(returncode, output), output)
    if outcome == "passed" and given == token:
        return Outcome("passed", "", output)
    return Outcome("failed" if outcome == "failed" else "error", detail[:_MAX_DETAIL], output)


def _ending(returncode: int, output: str) -> str:
    if returncode < 0:
        how = f"killed by {signal.Signals(-returncode).name}"
    else:
        how = f"ended with status {returncode} before its tests were done"
    last = output.strip().rpartition("\n")[2]
    return f"{how}: {last}"[:_MAX_DETAIL] if last else how
