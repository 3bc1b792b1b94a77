"""Trials: code that could crash the process is tried in a child process first, and the answer is kept.

A trial is a module of this package. It ends normally if the tried code works, and by ``sys.exit("why not")`` if not. It
may also crash or hang, which is why it runs in a child process. `_trial_worker` is the child's side of this module.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from .cache import is_number, keyed_path, read_json, write_json
from .child import NO_PYTHON, can_start, python_command

_LOGGER = logging.getLogger("specllama")
_FOLDER = "trials"  # in the cache directory
_FORMAT = 1
_CHILD = "from specllama.backend._trial_worker import main; main(sys.argv[1:])"
_DAY = 86_400.0  # seconds
_LONG = 30 * _DAY  # how long a clear answer is believed; a wrong answer must not be believed for ever
_SHORT = _DAY  # how long an answer is believed if a busy machine or a full disk may have caused it
_CRASHES = ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT", "SIGTRAP", "SIGSYS")
_MOST_WORDS = 300  # the most characters of a reason
WITHIN = "SPECLLAMA_WITHIN_TRIAL"
"""The environment variable that holds, in a trial's process, the name of the trial."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """The answer of a trial."""

    ok: bool
    """Whether the trial ended normally: the tried code works."""
    reason: str
    """Why the tried code does not work, in one line; empty if it works."""


@dataclasses.dataclass(frozen=True)
class _End:
    """How a child process ended, and for how many seconds this is believed. 0: it says nothing about the tried code."""

    reason: str
    believed: float


_KNOWN: dict[str, Trial] = {}
_LOCK = threading.Lock()


def tried(name: str, arguments: Sequence[str], *, key: Mapping[str, str], seconds: float = 60) -> Trial:
    """Run a module of this package in a child process, unless its answer is known.

    A trial runs at most once for a process. Its answer is kept in the cache directory for later processes. If the
    directory cannot be read or written, each process runs the trial again.

    Args:
        name: the module, which ``python -m specllama.<name>`` runs.
        arguments: the module's command line.
        key: everything else that the answer depends on, such as the result of ``trial_key``.
        seconds: a trial that takes longer counts as hanging.

    Raises:
        RuntimeError: a trial asks for its own answer, which would have no end.
    """
    if os.environ.get(WITHIN) == name:
        raise RuntimeError(f"the trial {name} asks for itself: it must not use what it is a trial of")
    question = {"name": name, "arguments": list(arguments), "key": dict(key)}
    asked = json.dumps(question, sort_keys=True)
    with _LOCK:
        if asked not in _KNOWN:
            _KNOWN[asked] = _read(question) or _run_and_keep(question, seconds)
        return _KNOWN[asked]


def _run_and_keep(question: Mapping[str, Any], seconds: float) -> Trial:
    end = _run(question["name"], question["arguments"], seconds)
    trial = Trial(not end.reason, end.reason)
    _LOGGER.debug("the trial %s: %s", question["name"], trial)
    if end.believed:
        now = time.time()
        answer = {"ok": trial.ok, "reason": trial.reason, "tried": now, "until": now + end.believed}
        try:
            write_json(keyed_path(_FOLDER, question), {"format": _FORMAT, **question, **answer})
        except (OSError, RuntimeError) as error:  # RuntimeError: there is no home folder
            _LOGGER.debug("the answer of the trial %s is not kept: %s", question["name"], error)
    return trial


def _read(question: Mapping[str, Any]) -> Trial | None:
    """The kept answer; None if there is none, or if its file is invalid or too old."""
    try:
        return _checked(read_json(keyed_path(_FOLDER, question)), question)
    except (OSError, ValueError, RuntimeError) as error:  # RuntimeError: brackets nested too deeply, or no home folder
        _LOGGER.debug("no answer of the trial %s is known: %s", question["name"], error)
        return None


def _checked(found: Any, question: Mapping[str, Any]) -> Trial:
    """The answer in the content of a file.

    Raises:
        ValueError: the file has another format, answers another question, or is too old.
    """
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise ValueError("the file has another format")
    if {name: found.get(name) for name in question} != question:
        raise ValueError("the file is of another trial")
    ok, reason = found.get("ok"), found.get("reason")
    if type(ok) is not bool or not isinstance(reason, str) or ok != (not reason) or reason != _in_one_line(reason):
        raise ValueError("the file holds no answer")
    begun, until = found.get("tried"), found.get("until")
    if not is_number(begun) or not is_number(until) or not begun <= time.time() <= until <= begun + _LONG:
        raise ValueError(f"tried at {begun!r}, to be believed until {until!r}")
    return Trial(ok, reason)


def _run(name: str, arguments: Sequence[str], seconds: float) -> _End:
    """Run a trial's child process to its end. If the child takes too long, it is killed."""
    if not can_start():
        return _End(f"{NO_PYTHON} to try it with", 0)
    try:
        process = subprocess.Popen(
            python_command(_CHILD, str(seconds), name, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, WITHIN: name, "GGML_NO_BACKTRACE": "1"},  # a backtrace would start a debugger
            start_new_session=True,  # in a process group of its own, which the terminal's Ctrl-C does not reach
            creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0),
        )
    except (OSError, ValueError) as error:  # ValueError: for example a null character in the environment
        return _End(_in_one_line(f"no process can be started to try it: {error}"), 0)
    with process:
        try:
            answer, output = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            _end(process)
            return _End(f"it did not end within {seconds:g} seconds", _SHORT)
        except BaseException:
            _end(process)
            raise
    return _judged(process.returncode, answer, output.decode("utf-8", errors="replace"))


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a child and all processes that it has started. It was not waited for yet, so its id is still its own."""
    if sys.platform == "win32":
        process.kill()
    else:
        with contextlib.suppress(ProcessLookupError, PermissionError):  # macOS: the group has ended
            os.killpg(process.pid, signal.SIGKILL)


def _judged(returncode: int, answer: bytes, output: str) -> _End:
    """What the end of a child means. The answer that the child has written counts only if the child exited normally."""
    if returncode == 0:
        try:
            reason = json.loads(answer)["reason"]
        except (ValueError, TypeError, LookupError, RecursionError):
            return _End(_with_last_line("it ended without an answer", output), _SHORT)
        return _End(_in_one_line(str(reason)), _LONG)
    if returncode < 0:
        name = _signal_name(-returncode)
        # Other signals come from outside, for example if the system is out of memory, and say nothing about the code.
        return _End(_with_last_line(f"it was ended by {name}", output), _LONG if name in _CRASHES else 0)
    # On Windows a crash gives the code of an exception, such as 0xC0000005 for an access violation.
    crashed = returncode >= 0xC0000000
    code = f"0x{returncode:X}" if crashed else str(returncode)
    return _End(_with_last_line(f"it ended with exit code {code}", output), _LONG if crashed else _SHORT)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _with_last_line(how: str, output: str) -> str:
    lines = output.split("\n")
    last = next((line for line in reversed(lines) if line.strip()), "")
    return _in_one_line(f"{how}: {last}" if last else how)


def _in_one_line(text: str) -> str:
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:_MOST_WORDS].rstrip()
