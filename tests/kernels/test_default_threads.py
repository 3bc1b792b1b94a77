"""How many threads there are where nobody says: of the cores that the process may use, not of the machine's."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

import specllama
from specllama.backend import cpu
from specllama.backend.memory import free_memory

if TYPE_CHECKING:
    from conftest import TinyFiles

only_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity and cgroups are Linux's")


def process(
    folder: Path, kind: str, path: str, root: str, files: dict[str, str], controller: str = "cpu,cpuacct"
) -> Path:
    """What /proc says of a process in a cgroup, whose files (by their path under the mount) are written."""
    mount = folder / "mount"
    for name, text in files.items():
        (mount / name).parent.mkdir(parents=True, exist_ok=True)
        (mount / name).write_text(text, encoding="utf-8")
    mount.mkdir(exist_ok=True)
    names = {"v1": f"4:{controller}:", "v2": "0::"}[kind]
    (folder / "cgroup").write_text(f"9:pids:/else\n{names}{path}\n", encoding="utf-8")
    about = {"v1": f"cgroup cgroup rw,{controller}", "v2": "cgroup2 cgroup2 rw"}[kind]
    lines = f"21 20 0:19 / /proc rw - proc proc rw\n31 23 0:28 {root} {mount} rw,relatime shared:9 - {about}\n"
    (folder / "mountinfo").write_text(lines, encoding="utf-8")
    return folder


@only_linux
@pytest.mark.parametrize(
    ("kind", "path", "root", "files", "cores"),
    [
        ("v2", "/", "/", {"cpu.max": "150000 100000\n"}, 1.5),
        ("v2", "/a/b", "/", {"a/cpu.max": "200000 100000", "a/b/cpu.max": "max 100000"}, 2.0),
        ("v2", "/a/b", "/", {"a/cpu.max": "800000 100000", "a/b/cpu.max": "50000 100000"}, 0.5),
        ("v2", "/a", "/", {"a/cpu.max": "max 100000"}, None),
        ("v2", "/docker/x", "/docker/x", {"cpu.max": "300000 100000"}, 3.0),
        ("v2", "/../other", "/", {"cpu.max": "max 100000"}, None),
        ("v1", "/", "/", {"cpu.cfs_quota_us": "400000", "cpu.cfs_period_us": "100000"}, 4.0),
        ("v1", "/a", "/", {"a/cpu.cfs_quota_us": "-1", "a/cpu.cfs_period_us": "100000"}, None),
        ("v1", "/docker/x", "/docker/x", {"cpu.cfs_quota_us": "25000", "cpu.cfs_period_us": "50000"}, 0.5),
        ("v1", "/a", "/", {}, None),
        ("v2", "/", "/", {"cpu.max": "damaged"}, None),
    ],
)
def test_quotas_of_cgroups(
    tmp_path: Path, kind: str, path: str, root: str, files: dict[str, str], cores: float | None
) -> None:
    assert cpu.cgroup_quota(process(tmp_path, kind, path, root, files)) == cores


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert cpu.cgroup_quota(tmp_path) is None
    assert 0 < free_memory(tmp_path) <= psutil.virtual_memory().total


@only_linux
@pytest.mark.parametrize(
    ("kind", "path", "files", "free"),
    [
        (
            "v2",
            "/a/b",
            {"a/memory.max": "9000", "a/memory.current": "5000", "a/memory.stat": "anon 5\ninactive_file 1000"},
            5000,
        ),
        ("v2", "/a", {"a/memory.max": "9000", "a/memory.current": "9500", "a/memory.stat": ""}, 0),
        ("v2", "/a", {"a/memory.max": "max", "a/memory.current": "1", "a/memory.stat": ""}, None),
        (
            "v1",
            "/a",
            {
                "a/memory.limit_in_bytes": "700",
                "a/memory.usage_in_bytes": "600",
                "a/memory.stat": "total_inactive_file 50",
            },
            150,
        ),
        (
            "v1",
            "/a",
            {"a/memory.limit_in_bytes": "9223372036854771712", "a/memory.usage_in_bytes": "6", "a/memory.stat": ""},
            None,
        ),
    ],
)
def test_memory_that_cgroups_leave(
    tmp_path: Path, kind: str, path: str, files: dict[str, str], free: int | None
) -> None:
    """None: all that the machine has."""
    found = free_memory(process(tmp_path, kind, path, "/", files, controller="memory"))
    assert found == free if free is not None else found > 10_000


@pytest.mark.parametrize(("quota", "cores"), [(None, 6), (0.5, 1), (2.0, 2), (3.9, 3), (64.0, 6)])
def test_usable_cores(monkeypatch: pytest.MonkeyPatch, quota: float | None, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    monkeypatch.delattr(os, "process_cpu_count", raising=False)
    monkeypatch.setattr(cpu, "cgroup_quota", lambda: quota)
    assert cpu.usable_cores() == cores


@pytest.mark.parametrize(("cores", "one", "several"), [(1, 1, 1), (2, 1, 2), (5, 2, 5)])
def test_threads_of_models(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, cores: int, one: int, several: int
) -> None:
    """Before, they were half of the machine's and all of it: 8 and 16 on one core."""
    monkeypatch.setattr("multiprocessing.cpu_count", lambda: 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(cpu, "usable_cores", lambda: cores)
    options: dict[str, Any] = {"n_ctx": 32, "verbose": False}
    with specllama.Llama(str(tiny_files.target), draft_model=str(tiny_files.good), **options) as llm:
        assert (llm.n_threads, llm.n_threads_batch) == (one, several)
        assert (llm.draft_model.n_threads, llm.draft_model.n_threads_batch) == (one, several)
        assert (llm.context_params.n_threads, llm.context_params.n_threads_batch) == (one, several)
    with specllama.Llama(str(tiny_files.target), n_threads=0, n_threads_batch=3, **options) as llm:
        assert (llm.n_threads, llm.n_threads_batch) == (one, 3)
    with specllama.Engine.open(tiny_files.target, draft=str(tiny_files.good), n_ctx=32) as engine:
        assert engine.model.settings.n_threads == one
    assert cpu.default_threads() == (cores if cores <= 4 else 4)
