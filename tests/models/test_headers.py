"""What a header states: nothing is believed that its file cannot hold, and a look at it takes little time."""

from __future__ import annotations

import ctypes
import os
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import damages
import llama_cpp.llama_cpp as bindings
import pytest

from specllama.models.gguf_values import UnusableFileError, read_whole_header, read_without_texts, stored
from specllama.models.tensor_types import TYPES, bytes_of

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


def test_types_are_ggmls() -> None:
    library = ctypes.CDLL(bindings._lib._name)
    try:
        sizes, blocks, names = library.ggml_type_size, library.ggml_blck_size, library.ggml_type_name
    except AttributeError:
        pytest.skip("this libllama does not show ggml's functions")
    sizes.restype, blocks.restype, names.restype = ctypes.c_size_t, ctypes.c_int64, ctypes.c_char_p
    known = [kind for kind in TYPES if names(kind) not in (None, b"NONE")]
    assert len(known) > 25
    for kind in known:
        name, block, size = TYPES[kind]
        assert (blocks(kind), sizes(kind)) == (block, size), name
        assert names(kind).decode().upper() == name


@pytest.mark.parametrize(
    ("shape", "kind", "offset", "why"),
    [
        ((64, 2**50), 0, 0, "needs more than that: its tensor lie ends at byte"),
        ((64, 4), 0, 2**63, "needs more than that: its tensor lie ends at byte"),
        ((2**63, 64), 1, 0, "needs more than that"),
        ((0, 2**36), 0, 0, r"the tensor lie of the shape \[0, 68719476736\], which holds nothing"),
        ((64, 0), 0, 0, "which holds nothing"),
        ((64, 4), 2**31, 0, "the tensor lie of the type 2147483648, which specllama does not know"),
        ((64, 4), 4, 0, "of the type 4, which specllama does not know"),
        ((48, 4), 2, 0, "of the type Q4_0, which has 32 numbers in a block, and rows of 48"),
        ((1, 1, 1, 1, 1), 0, 0, "a tensor of 5 dimensions"),
    ],
)
def test_a_tensor_that_cannot_be(
    tiny_files: TinyFiles, tmp_path: Path, shape: tuple[int, ...], kind: int, offset: int, why: str
) -> None:
    parts = damages.taken_apart(tiny_files.target.read_bytes())
    path = tmp_path / "lie.gguf"
    path.write_bytes(damages.put_together(parts.values, [(b"lie", shape, kind, offset)], parts.data))
    with pytest.raises(UnusableFileError, match=why):
        read_whole_header(path)


def test_a_tensor_without_dimensions_is_one_number(tmp_path: Path) -> None:
    path = tmp_path / "scalar.gguf"
    path.write_bytes(damages.put_together([], [(b"one", (), 0, 0)], struct.pack("<f", 2.5)))
    tensor = read_whole_header(path)[1]["one"]
    assert (tensor.shape, tensor.num_bytes, stored(path, tensor)) == ((1,), 4, struct.pack("<f", 2.5))


def _seconds(look: Callable[[], object]) -> float:
    """Of computing. Of three looks the shortest counts: a busy machine makes no look shorter."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        look()
        taken.append(time.process_time() - begun)
    return min(taken)


def _huge(path: Path, *arrays: tuple[bytes, int]) -> Path:
    """A head with arrays of so many empty texts. The file is sparse."""
    architecture = struct.pack("<Q", 20) + b"general.architecture" + struct.pack("<IQ", 8, 6) + b"eagle3"
    with path.open("wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1 + len(arrays)) + architecture)
        for name, count in arrays:
            file.write(struct.pack("<Q", len(name)) + name + struct.pack("<IIQ", 9, 8, count))
            file.truncate(file.tell() + 8 * count)
            file.seek(0, os.SEEK_END)
    return path


@pytest.mark.parametrize("count", [500_000, 10**6, 3 * 10**7, 10**8])
def test_a_look_takes_little_time(tmp_path: Path, count: int) -> None:
    """No vocabulary is larger than half a million, and nothing is walked until it is known that this one is not."""
    path = _huge(tmp_path / "huge.gguf", (b"tokenizer.ggml.tokens", count))

    def look() -> None:
        if count > 500_000:
            with pytest.raises(UnusableFileError, match="its header has arrays of more than 524288 texts"):
                read_without_texts(path, until_tokens=True)
            return
        tokens = read_without_texts(path, until_tokens=True)[1]
        assert tokens is not None
        assert tokens.count == count

    assert _seconds(look) < 0.02


def test_texts_before_the_tokens(tmp_path: Path) -> None:
    """They are what a look walks through."""
    path = _huge(tmp_path / "huge.gguf", (b"tokenizer.ggml.merges", 500_000), (b"tokenizer.ggml.tokens", 20_000))
    assert _seconds(lambda: read_without_texts(path, until_tokens=True)) < 0.2
    _huge(path, (b"tokenizer.ggml.merges", 510_000), (b"tokenizer.ggml.tokens", 20_000))
    with pytest.raises(UnusableFileError, match="its header has arrays of more than 524288 texts"):
        read_without_texts(path, until_tokens=True)
    assert read_without_texts(path)[1] is not None  # of a model that is to be opened


def test_a_type_of_a_later_llama_cpp(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, make_llama: MakeLlama
) -> None:
    """A model with a tensor of a type that only llama.cpp knows opens, and so does its draft."""
    with make_llama(draft=tiny_files.good) as llm:
        expected = llm.create_completion("the cat", max_tokens=8, temperature=0.0)["choices"][0]["text"]
    monkeypatch.delitem(TYPES, 0)
    for draft in (tiny_files.good, "lookup", "auto", None):
        with make_llama(draft=draft) as llm:
            assert llm.create_completion("the cat", max_tokens=8, temperature=0.0)["choices"][0]["text"] == expected


@pytest.mark.parametrize("number", [1, 2])
def test_numbers_of_pairs_and_tensors(tmp_path: Path, number: int) -> None:
    path = tmp_path / "many.gguf"
    numbers = [0, 0]
    numbers[number - 1] = 10**6
    most = (32768, 4096)[number - 1]
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *numbers) + bytes(1 << 20))
    with pytest.raises(UnusableFileError, match=f"its header has 1000000 (tensors|values), and may have {most}"):
        read_whole_header(path)


def test_nothing_else_is_raised(tiny_files: TinyFiles, tmp_path: Path) -> None:
    random_, whole, path = random.Random(7), tiny_files.deep_head.read_bytes(), tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(300):
        label, content = damages.damaged(whole, random_)
        path.write_bytes(content)
        try:
            for tensor in read_whole_header(path)[1].values():
                assert len(stored(path, tensor)) == tensor.num_bytes == bytes_of(tensor.kind, tensor.shape), label
        except UnusableFileError:
            refused += 1
    assert 0 < refused < 300
