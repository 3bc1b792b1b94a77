"""ggml's list of buffer types, read and changed in place: over functions of the tests' own, and the real one."""

from __future__ import annotations

import ctypes
import itertools
import platform
import subprocess
import sys
from collections.abc import Iterator

import pytest

from specllama import _core
from specllama.backend import amx

DEVICE = 4711


class FakeGgml:
    """Offers buffer types of these names. Their addresses are those of the names."""

    def __init__(self, names: list[str] | None) -> None:
        self._texts = [ctypes.create_string_buffer(name.encode()) for name in names or ()]
        self.array = (ctypes.c_void_p * (len(self._texts) + 1))(*map(ctypes.addressof, self._texts), None)
        self.devices: list[int | None] = []

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        def offered(device: int | None) -> int | None:
            self.devices.append(device)
            return None if names is None else ctypes.addressof(self.array)

        @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)
        def name(kind: int) -> int:
            return kind

        self.functions = {"offered": offered, "name": name}

    def types(self, **changes: int) -> _core.ExtraBufferTypes:
        found = {key: ctypes.cast(function, ctypes.c_void_p).value or 0 for key, function in self.functions.items()}
        return _core.ExtraBufferTypes(**{"list": 0, "device": DEVICE, **found, **changes})


NAMES = ["AMX", "CPU_REPACK", "OTHER"]


@pytest.mark.parametrize("names", [[], ["AMX"], NAMES])
def test_names_are_read_in_order(names: list[str]) -> None:
    ggml = FakeGgml(names)
    types = ggml.types()
    assert not types.has_list
    assert types.names() == types.offered() == names
    assert set(ggml.devices) == {DEVICE}


@pytest.mark.parametrize("order", list(itertools.permutations(NAMES)))
def test_each_can_be_removed(order: tuple[str, ...]) -> None:
    ggml, left = FakeGgml(NAMES), list(NAMES)  # whose functions live as long as it does
    types = ggml.types()
    for name in order:
        assert types.remove(name)
        left.remove(name)
        assert types.offered() == left
        assert not types.remove(name)
        assert types.offered() == left


def test_another_name_changes_nothing() -> None:
    ggml = FakeGgml(NAMES)
    types = ggml.types()
    for name in ("", "AM", "AMX2", "amx"):
        assert not types.remove(name)
    assert types.offered() == NAMES


def test_a_name_twice_is_removed_twice() -> None:
    ggml = FakeGgml(["AMX", "OTHER", "AMX"])
    types = ggml.types()
    assert types.remove("AMX")
    assert types.offered() == ["OTHER"]


def test_nothing_may_be_offered() -> None:
    ggml = FakeGgml(None)
    types = ggml.types()
    assert types.offered() == []
    assert not types.remove("AMX")


@pytest.mark.parametrize("missing", ["offered", "name", "device"])
def test_what_is_missing_is_refused(missing: str) -> None:
    with pytest.raises(ValueError, match="the address 0"):
        FakeGgml(NAMES).types(**{missing: 0})


@pytest.fixture
def real() -> Iterator[_core.ExtraBufferTypes]:
    types = amx.extra_buffer_types()
    assert types is not None  # every supported release has the functions
    yield types
    assert types.names() == amx.extra_buffer_types().names()  # type: ignore[union-attr]


def test_the_real_ones(real: _core.ExtraBufferTypes) -> None:
    assert set(real.offered()) <= set(real.names())
    assert not real.remove("none of this name")
    if sys.platform.startswith("linux") and platform.machine() == "x86_64":
        assert real.has_list


def test_the_real_list_stays_as_it_is_behind_a_removal() -> None:
    """What has weights already must be multiplied by the same kernels as before."""
    script = (
        "from specllama.backend.amx import extra_buffer_types\n"
        "types = extra_buffer_types()\n"
        "names = types.names()\n"
        "assert types.offered() == names, names\n"
        "for name in names:\n"
        "    assert types.remove(name)\n"
        "assert types.offered() == [], types.offered()\n"
        "assert types.names() == (names if types.has_list else []), types.names()\n"
        "print(len(names))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().isdigit()
