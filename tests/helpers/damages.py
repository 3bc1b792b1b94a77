"""Damages GGUF files: cut off, flipped bits, other numbers in their headers, values of other types."""

from __future__ import annotations

import dataclasses
import random
import struct

EXTREME = (0, 1, 3, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**36, 2**50, 2**62, 2**63, 2**64 - 1)
"""What a damaged file may state in place of any number."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # the bytes of numbers, by their types
_STRING, _ARRAY = 8, 9


def _text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


def _array(kind: int, count: int, items: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + items


VALUES = (
    *((7, b"\1"), (0, b"\xff"), (5, struct.pack("<i", -1)), (4, struct.pack("<I", 2**32 - 1))),
    *((10, struct.pack("<Q", 2**64 - 1)), (11, struct.pack("<q", -(2**63))), (4, bytes(4))),
    *((6, struct.pack("<f", float("nan"))), (12, struct.pack("<d", float("inf"))), (12, struct.pack("<d", 1e308))),
    *(
        (_STRING, _text(b"")),
        (_STRING, _text(b"many")),
        (_STRING, _text(b"\xff\0\xed\xa0\x80")),
        (_STRING, _text(b"a" * 99_999)),
    ),
    *((_ARRAY, _array(4, 0, b"")), (_ARRAY, _array(4, 3, struct.pack("<3I", 1, 2, 3)))),
    *((_ARRAY, _array(6, 2, struct.pack("<2f", float("nan"), 2.0))), (_ARRAY, _array(_STRING, 1, _text(b"x")))),
    *((_ARRAY, _array(7, 2, b"\0\1")), (_ARRAY, _array(10, 1, b"\xff" * 8)), (_ARRAY, _array(_STRING, 0, b""))),
)
"""Values of every type, as a file stores them."""


@dataclasses.dataclass(frozen=True)
class Parts:
    """A whole file, taken apart: (name, type, stored value) and (name, sizes, type, offset)."""

    values: list[tuple[bytes, int, bytes]]
    tensors: list[tuple[bytes, tuple[int, ...], int, int]]
    data: bytes
    numbers: list[tuple[int, int]]
    """The place of each number in the header, and its bytes."""
    header: int
    """The bytes of the header."""


def taken_apart(whole: bytes) -> Parts:
    at, numbers = 8, list[tuple[int, int]]()

    def number(size: int) -> int:
        nonlocal at
        numbers.append((at, size))
        at += size
        return int.from_bytes(whole[at - size : at], "little")

    def text() -> bytes:
        nonlocal at
        size = number(8)
        at += size
        return whole[at - size : at]

    def value(kind: int, *, listed: bool = True) -> None:
        nonlocal at
        if kind == _STRING:
            text()
        elif kind == _ARRAY:
            item, count = number(4), number(8)
            before = len(numbers)
            for _ in range(count):
                value(item)
            del numbers[before + 3 :]  # of a vocabulary some are enough
        else:
            number(_SIZES[kind])

    num_tensors, num_values = number(8), number(8)
    values = []
    for _ in range(num_values):
        name, kind = text(), number(4)
        begin = at
        value(kind)
        values.append((name, kind, whole[begin:at]))
    tensors = []
    for _ in range(num_tensors):
        name = text()
        shape = tuple(number(8) for _ in range(number(4)))
        tensors.append((name, shape, number(4), number(8)))
    return Parts(values, tensors, whole[-(-at // 32) * 32 :], numbers, at)


def put_together(
    values: list[tuple[bytes, int, bytes]], tensors: list[tuple[bytes, tuple[int, ...], int, int]], data: bytes
) -> bytes:
    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    out += b"".join(_text(name) + struct.pack("<I", kind) + stored for name, kind, stored in values)
    for name, shape, kind, offset in tensors:
        out += _text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)
    return out + bytes(-len(out) % 32) + data


def damaged(whole: bytes, random_: random.Random) -> tuple[str, bytes]:
    """The file with one thing that is wrong, and what that is."""
    parts, data = taken_apart(whole), bytearray(whole)
    way = random_.choice(("cut", "bit", "number", "number", "value", "value", "tensor", "without", "rubbish"))
    if way == "cut":
        size = random_.choice((random_.randrange(parts.header), random_.randrange(len(whole))))
        return f"cut at {size}", whole[:size]
    if way == "bit":
        place, bit = random_.randrange(parts.header), random_.randrange(8)
        data[place] ^= 1 << bit
        return f"bit {bit} of byte {place}", bytes(data)
    if way == "number":
        (place, size), new = random_.choice(parts.numbers), random_.choice(EXTREME)
        data[place : place + size] = (new % 2 ** (8 * size)).to_bytes(size, "little")
        return f"{new} in {size} bytes at {place}", bytes(data)
    if way == "rubbish":
        place = random_.randrange(parts.header)
        data[place : place + 40] = random_.randbytes(min(40, len(data) - place))
        return f"rubbish at {place}", bytes(data)
    values, tensors = list(parts.values), list(parts.tensors)
    if way == "value":
        index, (kind, stored) = random_.randrange(len(values)), random_.choice(VALUES)
        name = values[index][0]
        values[index] = (name, kind, stored)
        return f"{name!r} of the type {kind}: {stored[:20]!r}", put_together(values, tensors, parts.data)
    if way == "without":
        gone = random_.choice((values, tensors))
        name = gone.pop(random_.randrange(len(gone)))[0]
        return f"without {name!r}", put_together(values, tensors, parts.data)
    index = random_.randrange(len(tensors))
    name, shape, kind, offset = tensors[index]
    shape = tuple(random_.choice((one, one, random_.choice(EXTREME))) for one in shape)[
        : random_.choice((0, 1, 4, 4, 4))
    ]
    kind, offset = (
        random_.choice((kind, kind, random_.randrange(50), 2**31)),
        random_.choice((offset, offset, random_.choice(EXTREME))),
    )
    tensors[index] = (name, shape, kind, offset)
    return f"{name!r}: {shape}, type {kind}, at {offset}", put_together(values, tensors, parts.data)
