"""How much memory is free."""

from __future__ import annotations

import contextlib
from pathlib import Path

from .cpu import cgroup_folders

_LIMITS = {
    False: ("memory.max", "memory.current", "inactive_file"),
    True: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By whether a cgroup is of v1: the files of its limit and its used memory, and the field of cached files in
``memory.stat``, whose memory can be dropped."""


def free_memory(process: Path = Path("/proc/self")) -> int:
    """How many bytes this process can take without swapping, within the limits of the machine and of its cgroups.

    Args:
        process: the folder of the process in /proc.
    """
    import psutil  # imported here, because the import takes longer than the call

    left = [_left(folder, is_v1) for folder, is_v1 in cgroup_folders("memory", process)]
    return min([int(psutil.virtual_memory().available), *(size for size in left if size is not None)])


def _left(folder: Path, is_v1: bool) -> int | None:
    limit, used, droppable = _LIMITS[is_v1]
    with contextlib.suppress(OSError, ValueError):
        most = int((folder / limit).read_text())  # "max" is no number
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return max(0, most - int((folder / used).read_text()) + int(stat.get(droppable, 0)))
    return None
