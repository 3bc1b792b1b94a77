"""The processor of this machine, and the number of threads for it."""

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
            # x86 has "model name"; Arm boards, POWER and others have another of these fields, or none.
            fields = _cpuinfo()
            found = next((fields[key] for key in ("model name", "model", "hardware", "cpu") if fields.get(key)), "")
    return " ".join(found.split()) or platform.processor() or platform.machine()


def cpu_flags() -> frozenset[str]:
    """The features of the processor by Linux's names, such as ``avx2``; empty on other platforms."""
    if not sys.platform.startswith("linux"):
        return frozenset()
    with contextlib.suppress(OSError):
        fields = _cpuinfo()
        # x86 has the field "flags", Arm has "features".
        return frozenset(fields.get("flags", fields.get("features", "")).split())
    return frozenset()


def usable_cores() -> int:
    """How many cores this process may use: its CPU affinity, limited by its cgroups' quota; at least 1.

    Threads that compute together wait for each other. With more threads than the quota allows, all threads wait.
    """
    count = _cores_to_run_on()
    quota = cgroup_quota()
    return count if quota is None else max(1, min(count, int(quota)))


def cgroup_quota(process: Path = Path("/proc/self")) -> float | None:
    """The CPU quota of a process's cgroups (v1 or v2), as a number of cores; None: there is no limit.

    Args:
        process: the folder of the process in /proc.
    """
    folders = cgroup_folders("cpu", process)
    quotas = [_quota_v1(folder) if is_v1 else _quota_v2(folder) for folder, is_v1 in folders]
    return min((quota for quota in quotas if quota is not None), default=None)


def cgroup_folders(controller: str, process: Path = Path("/proc/self")) -> list[tuple[Path, bool]]:
    """The folders of a process's cgroups for a controller, with all parent cgroups, and for each whether it is of v1.

    A parent's limits hold for all cgroups in it. The list is empty on other platforms than Linux, and if no cgroup can
    be read.

    Args:
        controller: ``"cpu"`` or ``"memory"``.
        process: the folder of the process in /proc.
    """
    if not sys.platform.startswith("linux"):
        return []
    found = []
    with contextlib.suppress(OSError, ValueError, IndexError):
        paths = _cgroups(process)
        for line in (process / "mountinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            fields, _, kind = line.partition(" - ")
            root, place = fields.split()[3:5]
            version, *_, options = kind.split()
            is_v1 = version == "cgroup" and controller in options.split(",")
            if not is_v1 and version != "cgroup2":
                continue
            path = paths.get(controller if is_v1 else "", "/")
            cgroup = Path(place, path.removeprefix(root.rstrip("/")).lstrip("/") if path.startswith(root) else "")
            found += [(folder, is_v1) for folder in (cgroup, *cgroup.parents) if folder.is_relative_to(place)]
    return found


def llama_threads(n_threads: int | None = None, n_threads_batch: int | None = None) -> tuple[int, int]:
    """The threads for batches of one token and of several, by llama_cpp's defaults: half of the cores, and all cores.

    Only cores that this process may use are counted here; llama_cpp counts all cores of the machine.
    """
    cores = usable_cores()
    return n_threads or max(1, cores // 2), n_threads_batch or cores


def default_threads() -> int:
    """One number of threads for a target and its draft, for batches of every size.

    llama_cpp uses half of the cores for batches of one token and all cores for larger batches. Speculation would then
    seem faster only because its larger batches use the other half.
    """
    cores = usable_cores()
    # Two logical cores are often one physical core. Then half of the logical cores compute as fast as all.
    return cores if cores <= 4 else max(4, cores // 2)


def _cores_to_run_on() -> int:
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        return os.process_cpu_count() or 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _cgroups(process: Path) -> dict[str, str]:
    """The paths of a process's cgroups, by the name of the controller; by an empty name for v2."""
    paths = {}
    for line in (process / "cgroup").read_text(encoding="utf-8", errors="replace").splitlines():
        _, names, path = line.split(":", 2)
        paths.update(dict.fromkeys(names.split(","), path))
    return paths


def _quota_v1(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return quota / int((folder / "cpu.cfs_period_us").read_text()) if quota > 0 else None
    return None


def _quota_v2(folder: Path) -> float | None:
    with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
        quota, period = (folder / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    return None


def _cpuinfo() -> dict[str, str]:
    """The fields of the first core in /proc/cpuinfo, by name in lower case."""
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
