"""The command in a process of its own, on a machine that fails it.

As a script it makes the machine fail, and becomes another Python: `faults.py CONDITION ARGUMENTS...`. (Python warns of
functions that run between fork and exec where there are threads.)
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.models.catalog import Model

HEALTHY = "healthy"
PERMISSIONS = "permissions"
"""Root is held back by permissions, like any other user."""
FULL = "full:0"

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def full_after(size: int) -> str:
    """The condition that no file becomes larger than so many bytes."""
    return f"full:{size}"


def line(*arguments: str, under: str = HEALTHY) -> list[str]:
    """The command line. The command obeys SIGINT, which shells have background jobs ignore."""
    return _python(under, "-m", "specllama.cli", *arguments)


def run(*arguments: str, under: str = HEALTHY, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return finished(line(*arguments, under=under), **options)


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command."""
    return subprocess.Popen(line(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def finished(command: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command line to its end."""
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, **options)


def trial_that_ends(name: str, end: str) -> dict[str, str]:
    """Environment variables with which the trial `name` does not run, but ends otherwise.

    Args:
        name: the module, as `specllama.backend.trial.tried` takes it.
        end: a signal's name, ``exit 3``, ``hang``, ``silent`` (without an answer), ``refuse WHY`` or ``well``.
    """
    path = [str(Path(__file__).parent / "simulated_trials"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"SPECLLAMA_SIMULATED_TRIAL": f"{name}:{end}", "PYTHONPATH": os.pathsep.join(path)}


def with_catalog(folder: Path, model: Model, *arguments: str, under: str = HEALTHY) -> list[str]:
    """The command line as if the model were the whole catalog. `folder` is for a script."""
    script = folder / "with_catalog.py"
    script.write_text(
        "from specllama import cli\n"
        "from specllama.models import catalog\n"
        "from specllama.models.catalog import Catalog, Model\n"
        f"model = {model!r}\n"
        "catalog.load_catalog = lambda path: Catalog({model.name: model}, model.name, model.name)\n"
        "raise SystemExit(cli.main())\n"
    )
    return _python(under, str(script), *arguments)


def files_below(folder: Path) -> list[str]:
    """The files of a folder and of those in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def _python(under: str, *arguments: str) -> list[str]:
    # Windows has neither signals nor a real exec.
    return [sys.executable, *([] if sys.platform == "win32" else [__file__, under]), *arguments]


def assert_one_line_error(done: subprocess.CompletedProcess[str], *parts: str, code: int = 1) -> None:
    """It failed, said why in one line, and printed nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    *others, last = done.stderr.splitlines()
    assert last.startswith("specllama: error: "), done.stderr
    assert not any("Traceback" in other or "error" in other for other in others), done.stderr
    for part in parts:
        assert part in last


def _fail(condition: str) -> None:
    """Have this process, and what it becomes, meet the condition."""
    if condition.startswith("full:"):
        import resource

        size = int(condition.removeprefix("full:"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    if condition == PERMISSIONS and os.geteuid() == 0:
        import ctypes

        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


if __name__ == "__main__":
    _fail(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.executable, [sys.executable, *sys.argv[2:]])
