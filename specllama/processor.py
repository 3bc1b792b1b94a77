"""What processor this machine has."""

from __future__ import annotations

import contextlib
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
            found = _cpu_name_linux(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    return " ".join(found.split()) or platform.processor() or platform.machine()


def _cpu_name_linux(cpuinfo: str) -> str:
    fields: dict[str, str] = {}
    for line in cpuinfo.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    # x86 has "model name"; Arm boards, POWER and others have what follows, or nothing.
    return next((fields[key] for key in ("model name", "model", "hardware", "cpu") if fields.get(key)), "")


def _cpu_name_windows() -> str:
    import winreg

    where = r"HARDWARE\DESCRIPTION\System\CentralProcessor\0"
    with winreg.OpenKey(winreg.HKEY_LOCAL_MACHINE, where) as key:  # type: ignore[attr-defined,unused-ignore]
        return str(winreg.QueryValueEx(key, "ProcessorNameString")[0])  # type: ignore[attr-defined,unused-ignore]
