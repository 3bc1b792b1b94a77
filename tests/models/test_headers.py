"""What a header states: nothing is believed that its file cannot hold, and a look at it takes little time."""

from __future__ import annotations

import ctypes
import random
import struct
import time
from pathlib import Path
from typing import TYPE_CHECKING

import damages
import llama_cpp.llama_cpp as bindings
import pytest

from specllama.models.gguf_values import UnusableFileError, read_whole_header, read_without_texts, stored
from specllama.models.tensor_types import TYPES, bytes_of

if TYPE_CHECKING:
    from conftest import TinyFiles


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
        ((64, 4), 2**31, 0, "the tensor lie of the type 2147483648, which does not exist"),
        ((64, 4), 4, 0, "of the type 4, which does not exist"),
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


@pytest.mark.parametrize("architecture", [b"llama", b"eagle3"])
@pytest.mark.parametrize("count", [10**6, 3 * 10**7, 10**8])
def test_a_look_takes_little_time(tmp_path: Path, architecture: bytes, count: int) -> None:
    """As many tokens as the file may hold: it is sparse."""
    path = tmp_path / "huge.gguf"
    name = damages.put_together(
        [(b"general.architecture", 8, struct.pack("<Q", len(architecture)) + architecture)], [], b""
    )
    head = bytearray(name.rstrip(b"\0"))
    head[16:24] = struct.pack("<Q", 2)
    head += struct.pack("<Q", 21) + b"tokenizer.ggml.tokens" + struct.pack("<IIQ", 9, 8, count)
    path.write_bytes(head)
    with path.open("ab") as file:
        file.truncate(len(head) + 8 * count)
    begun = time.process_time()
    try:
        tokens = read_without_texts(path, until_tokens=True)[1]
        assert tokens is not None
        assert tokens.count == count
        read_whole_header(path, texts=False)
        assert count < 10**7
    except UnusableFileError:
        assert count > 10**7
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("number", [1, 2])
def test_numbers_of_pairs_and_tensors(tmp_path: Path, number: int) -> None:
    path = tmp_path / "many.gguf"
    numbers = [0, 0]
    numbers[number - 1] = 10**6
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, *numbers) + bytes(1 << 20))
    with pytest.raises(UnusableFileError, match=r"its header has 1000000 (tensors|values), and may have 32768"):
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
