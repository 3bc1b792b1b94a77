"""Weights that are packed for our kernels are in memory once: the file's pages that they came from are let go."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny_models
from quantized import needs_kernels

import specllama
from specllama import _core_test as _test
from specllama.drop_in.lending import lent
from specllama.models.quantize import quantize

needs_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the pages of a process are Linux's")
needs_large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").is_dir(), reason="this system has no large pages to ask for"
)
PROMPT = "the cat sat on the dog and the fox sat on the cat and the dog"
MIB = 2**20


@pytest.fixture(scope="module")
def several_mib(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with norms between its weights, so that llama.cpp keeps the file mapped from the first to the last."""
    folder = tmp_path_factory.mktemp("several-mib")
    vocabulary = tiny_models.word_vocabulary()
    weights = tiny_models.llama_weights(vocabulary, 5, n_embd=512, n_ff=2048)
    tiny_models.write_llama(folder / "floats.gguf", vocabulary, weights)
    return quantize(folder / "floats.gguf", "Q8_0", output=folder / "several-mib.gguf")


def opened(path: Path, **options: Any) -> specllama.Llama:
    return specllama.Llama(str(path), n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False, **options)


def text_of(llm: specllama.Llama) -> str:
    return str(llm.create_completion(PROMPT, max_tokens=12, temperature=0.0)["choices"][0]["text"])


def mappings_of(path: Path) -> Iterator[dict[str, int]]:
    """What /proc/self/smaps says of each mapping of a file: bytes by their names."""
    found: dict[str, int] | None = None
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            if found is not None:
                yield found
            found = {} if line.endswith(str(path)) else None
        elif found is not None and words[-1:] == ["kB"]:
            found[name[:-1]] = 1024 * int(words[0])


def mapped(path: Path, what: str) -> int:
    return sum(mapping[what] for mapping in mappings_of(path))


@needs_kernels
@pytest.mark.parametrize("options", [{}, {"draft_model": "lookup"}])
def test_what_was_packed_is_let_go(several_mib: Path, options: dict[str, Any]) -> None:
    llm = opened(several_mib, use_mmap=True, **options)
    packed = lent(llm).settings.kernels.num_bytes
    assert packed > 7 * MIB
    assert mapped(several_mib, "Size") > packed / 2  # the rest llama.cpp has unmapped
    assert mapped(several_mib, "Rss") < several_mib.stat().st_size - 0.9 * packed
    text_of(llm)
    assert mapped(several_mib, "Rss") < several_mib.stat().st_size - 0.9 * packed


@needs_kernels
def test_a_file_that_is_not_mapped_is_read(several_mib: Path) -> None:
    """Its weights come in a buffer of the process's own, which is left as it is."""
    expected = text_of(opened(several_mib, use_mmap=True))
    llm = opened(several_mib, use_mmap=False)
    assert lent(llm).settings.kernels.num_bytes > 7 * MIB
    assert mapped(several_mib, "Size") == 0
    assert text_of(llm) == expected
    assert len(set(expected.split())) > 2


@needs_kernels
def test_a_model_without_kernels_stays_mapped(several_mib: Path) -> None:
    """llama.cpp reads its weights there for every token."""
    llm = opened(several_mib, use_mmap=True, kernels="off")
    text_of(llm)
    assert mapped(several_mib, "Rss") > 7 * MIB


def address_of(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


@needs_linux
@pytest.mark.parametrize("shared", [True, False])
def test_only_a_files_pages_are_let_go(tmp_path: Path, shared: bool) -> None:
    """What the process has changed for itself is kept, and so is what shares a page with other data."""
    path = tmp_path / "pages"
    path.write_bytes(bytes(range(256)) * 16 * 256)
    size = path.stat().st_size
    with path.open("r+b") as file:
        flags = mmap.MAP_SHARED if shared else mmap.MAP_PRIVATE
        memory = mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ | mmap.PROT_WRITE)
    memory[:] = memory[:].translate(bytes(reversed(range(256))))
    written = memory[:]
    assert mapped(path, "Rss") == size
    _test.let_go_of_file(address_of(memory) + 1, mmap.PAGESIZE)
    assert mapped(path, "Rss") == size
    _test.let_go_of_file(address_of(memory) + 1, size - 2)
    assert mapped(path, "Rss") == (2 * mmap.PAGESIZE if shared else size)
    assert memory[:] == written


@needs_linux
def test_memory_without_a_file_is_kept() -> None:
    memory = mmap.mmap(-1, MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = written = bytes(range(256)) * 16 * 256
    _test.let_go_of_file(address_of(memory), MIB)
    assert memory[:] == written


def large_pages_wanted() -> list[tuple[int, int]]:
    """Where large pages were asked for, in this process: addresses."""
    found, begin, end = [], 0, 0
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if name == "VmFlags:" and "hg" in words:
            found.append((begin, end))
        elif not name.endswith(":"):
            begin, end = (int(part, 16) for part in name.split("-"))
    return found


@needs_large_pages
def test_large_pages_are_asked_for_where_weights_will_be() -> None:
    memory = mmap.mmap(-1, 8 * MIB, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    first, size = address_of(memory), 8 * MIB
    assert not any(begin < first + size and first < end for begin, end in large_pages_wanted())
    _test.prefer_large_pages(first + 1, size - 2)
    assert (first + mmap.PAGESIZE, first + size - mmap.PAGESIZE) in large_pages_wanted()


@needs_kernels
@needs_large_pages
def test_packed_weights_ask_for_large_pages(several_mib: Path) -> None:
    llm = opened(several_mib)
    packed = lent(llm).settings.kernels.num_bytes
    wanted = sum(end - begin for begin, end in large_pages_wanted())  # the system may list one mapping in parts
    assert wanted >= packed - 2 * mmap.PAGESIZE
