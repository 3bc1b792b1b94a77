"""The one place in ggml that the kernels take: what is written there, what is not, and which places are refused.

Each test has a process of its own, because a place is taken once in a process.
"""

from __future__ import annotations

import os
import subprocess
import sys

from quantized import needs_kernels

pytestmark = needs_kernels

BEGIN = """
import ctypes
from llama_cpp import llama_cpp as bindings
from specllama import _core
from specllama.backend.ggml import CpuBackend
from specllama.backend.kernels import addresses_of_functions

WORDS = 16
cpu = CpuBackend(bindings._lib)
functions, types = addresses_of_functions(cpu), cpu.extra_buffer_types()
version = ctypes.c_int.from_address(cpu.registry).value
CONTEXT = 7 if version < 3 else 9

def words(address):
    return (ctypes.c_void_p * WORDS).from_address(address)

def copy_of(address):
    return (ctypes.c_void_p * WORDS)(*words(address))

def kernels(types):
    return _core.KernelBufferType(functions, cpu.registry, types, _core.instruction_sets()[0], False)
"""


def run(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "SPECLLAMA_KERNELS": "off"},
    )
    assert done.returncode == 0, done.stderr


def test_nothing_else_of_ggmls_is_written() -> None:
    """Of all its variables; the list of buffer types lies behind a pointer, and is as it was, too."""
    run("""
def variables():
    found = {}
    for line in open("/proc/self/maps"):
        span, rights, *_, path = line.split(maxsplit=5)
        if "w" in rights and ("libggml" in path or "libllama" in path):
            first, end = (int(one, 16) for one in span.split("-"))
            found[first] = ctypes.string_at(first, end - first)
    return found

made = kernels(types)
before = variables()
assert sum(map(len, before.values())) > 4096
made.take_place()
after = variables()
assert before.keys() == after.keys()
written = {first + i for first, old in before.items() for i in range(len(old)) if old[i] != after[first][i]}
assert written
places = {types["CPU_REPACK"] + i for i in range(8 * (CONTEXT + 1))}
places |= {address + 8 * CONTEXT + i for address in types.values() for i in range(8)}
assert written <= places, sorted(map(hex, written - places))
assert list(cpu.extra_buffer_types().items()) == list(types.items())
""")


def test_a_place_that_differs_is_refused() -> None:
    run("""
def refusal(types):
    try:
        kernels(types)
    except RuntimeError as error:
        return str(error)
    return ""

real = types["CPU_REPACK"]
for place, value in [(1, None), (3 if version >= 3 else 2, None), (CONTEXT - 2, 4096), (CONTEXT, None)]:
    changed = copy_of(real)
    changed[place] = value
    said = refusal({"CPU_REPACK": ctypes.addressof(changed)})
    assert "built otherwise than is known here: CPU_REPACK" in said, (place, said)
    assert changed[place] == value
assert "without CPU_REPACK (GGML_CPU_REPACK)" in refusal({"AMX": real})
same = copy_of(real)
assert refusal({"CPU_REPACK": ctypes.addressof(same)}) == ""
assert list(same) == list(words(real))
""")


def test_a_type_that_is_asked_before_leaves_ours_their_weights() -> None:
    """As AMX is. A copy of CPU_REPACK stands for it: its object takes weights that are to be loaded into CPU_REPACK."""
    run("""
from specllama.backend.ggml_products import Products
real = types["CPU_REPACK"]
before = copy_of(real)
made = kernels({"CPU_REPACK": real, "OTHER": ctypes.addressof(before)})
products = Products(cpu, 256, 16, 1)
allocate = cpu.function("ggml_backend_buft_alloc_buffer", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

def takes(kind):
    arena = products._arena()
    weights = products._new_matrix(arena, kind, 256, 16)
    ctypes.c_void_p.from_address(weights + 8).value = allocate(real, 0)
    op = products._mul_mat(arena, weights, products._new_matrix(arena, 0, 256, 1))
    table = ctypes.cast(ctypes.c_void_p.from_address(before[CONTEXT]).value, ctypes.POINTER(ctypes.c_void_p))
    supports = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(table[2])
    return supports(before[CONTEXT], cpu.device, op)

Q4_0, F32 = 2, 0
usual = takes(Q4_0)
made.take_place()
assert takes(Q4_0) == usual == True
_core.KernelBufferType.take_weights(["Q4_0"])
assert not takes(Q4_0)
_core.KernelBufferType.take_weights([])
assert takes(Q4_0)
assert not takes(F32)
""")
