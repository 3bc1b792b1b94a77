"""The command in a process of its own, on a machine that fails it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama.catalog import Model

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH = 1, 2


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(line(*arguments), capture_output=True, text=True, check=False, timeout=120, **options)


def started(*arguments: str, **options: Any) -> subprocess.Popen[str]:
    """Start the command. It heeds SIGINT, which shells have background jobs ignore."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(line(*arguments), preexec_fn=heed_interrupts, **pipes)


def line(*arguments: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "specllama.cli", *arguments]


def heed_interrupts() -> None:
    """In the child, before it begins."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def held_back_by_permissions() -> None:
    """In the child, before it begins: root becomes a user like any other, as far as files are concerned."""
    if os.geteuid() == 0:
        import ctypes

        for capability in (_CAP_DAC_OVERRIDE, _CAP_DAC_READ_SEARCH):
            if ctypes.CDLL(None, use_errno=True).prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
                raise OSError(ctypes.get_errno(), "prctl")


def disk_full_after(size: int) -> Callable[[], None]:
    """In the child, before it begins: no file becomes larger than so many bytes."""

    def limit() -> None:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return limit


def assert_one_line_error(done: subprocess.CompletedProcess[str], *parts: str, code: int = 1) -> None:
    """It failed, said why in one line, and printed nothing else."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    *others, last = done.stderr.splitlines()
    assert last.startswith("specllama: error: "), done.stderr
    assert not any("Traceback" in other or "error" in other for other in others), done.stderr
    for part in parts:
        assert part in last


def run_with_catalog(folder: Path, model: Model, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run the command as if the model were the whole catalog."""
    return subprocess.run(
        with_catalog(folder, model, *arguments), capture_output=True, text=True, check=False, timeout=120, **options
    )


def with_catalog(folder: Path, model: Model, *arguments: str) -> list[str]:
    """The command line as if the model were the whole catalog."""
    script = folder / "with_catalog.py"
    script.write_text(
        "from specllama import catalog, cli\n"
        "from specllama.catalog import Catalog, HubSource, Model, PackageSource, Wheel\n"
        f"model = {model!r}\n"
        "catalog.load_catalog = lambda path: Catalog({model.name: model}, model.name, model.name)\n"
        "raise SystemExit(cli.main())\n"
    )
    return [sys.executable, str(script), *arguments]
