"""Starts Python child processes that find the same modules as this process, wherever the modules lie."""

from __future__ import annotations

import sys

NO_PYTHON = "there is no Python program"
"""The beginning of the error message if no child process can be started."""
_FRAME = "import sys; sys.path[:] = {path!r}; {code}"


def can_start() -> bool:
    """Whether there is a program that runs Python.

    In a frozen program ``sys.executable`` is the program itself, which would start itself again and again.
    """
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def require_python() -> None:
    """Raise RuntimeError unless there is a program that runs Python."""
    if not can_start():
        raise RuntimeError(
            f"{NO_PYTHON} to start a process with: sys.executable is {sys.executable!r}, of a program that is frozen "
            "or has Python within; run this by an installed Python"
        )


def python_command(code: str, *arguments: str) -> list[str]:
    """The command that starts a child process which runs some Python statements.

    With ``python -m`` or ``python FILE`` the child would look for modules in its working directory, or beside the file,
    before anywhere else, and would not have this process's ``sys.path``.

    Args:
        code: the statements. They can use ``sys`` without an import, and find the same modules as this process.
        arguments: the child's ``sys.argv[1:]``.

    Raises:
        RuntimeError: there is no program that runs Python.
    """
    require_python()
    return [sys.executable, "-c", _FRAME.format(path=list(map(str, sys.path)), code=code), *arguments]
