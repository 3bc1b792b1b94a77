"""Child processes that run modules of this process's: the very ones that it has found, wherever they were."""

from __future__ import annotations

import sys

NO_PYTHON = "there is no Python program"
"""Why there can be no child."""
_FRAME = "import sys; sys.path[:] = {path!r}; {code}"


def can_start() -> bool:
    """Whether there is a program that runs Python.

    A frozen program is its own ``sys.executable``: it would be started once more, and so on.
    """
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def require_python() -> None:
    """Raises RuntimeError unless there is such a program."""
    if not can_start():
        raise RuntimeError(
            f"{NO_PYTHON} to start a process with: sys.executable is {sys.executable!r}, of a program that is frozen "
            "or has Python within; run this by an installed Python"
        )


def python_command(code: str, *arguments: str) -> list[str]:
    """What starts a child that runs some statements.

    With ``python -m`` or ``python FILE`` it would look for modules in its working directory, or beside the file, before
    anywhere else, and not know what was put on ``sys.path`` here.

    Args:
        code: the statements. They see ``sys``, and find what this process finds.
        arguments: its ``sys.argv[1:]``.

    Raises:
        RuntimeError: there is no program that runs Python.
    """
    require_python()
    return [sys.executable, "-c", _FRAME.format(path=list(map(str, sys.path)), code=code), *arguments]
