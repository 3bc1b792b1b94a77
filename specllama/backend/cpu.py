"""What processor this machine has, and how many threads suit it."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import sys
from pathlib import Path


def cpu_name() -> str:
    """The processor's model name, as far as this platform tells it."""
    found = ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        if sys.platform == "win32":
            found = _cpu_name_windows()
        elif sys.platform == "darwin":
            command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout
        else:
            # x86 has "model name"; Arm boards, POWER and others have what follows, or nothing.
            fields = _cpuinfo()
            found = next((fields[key] for key in ("model name", "model", "hardware", "cpu") if fields.get(key)), "")
    return " ".join(found.split()) or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """What Linux says that the processor can do, such as ``avx2``; empty on other platforms."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    with contextlib.suppress(OSError):
        fields = _cpuinfo()
        return frozenset(fields.get("flags", fields.get("features", "")).split())  # x86, and Arm
    return frozenset()


def default_threads() -> int:
    """A number of threads for a target and its draft, and for batches of every size.

    llama_cpp takes half the cores for one token and all of them for several, which would credit speculation with the
    other half.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    # Two logical cores are often one physical core, and half of them compute as fast as all.
    return cores if cores <= 4 else max(4, cores // 2)


def _cpuinfo() -> dict[str, str]:
    """What Linux says of the first core, by its names in lower case."""
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    return fields


def _cpu_name_windows() -> str:
    import winreg

    where = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:  # type: ignore[attr-defined,unused-ignore]
        return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])  # type: ignore[attr-defined,unused-ignore]
