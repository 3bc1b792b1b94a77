"""Stores of prefixes on disk: written with tiny models, damaged, and used again.

`said` uses one in this process, which may end: `uses.py` gives each use a child.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import json
import os
import random
import resource
import shutil
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from damages import EXTREME

from specllama.engine.prefixes.folder import empty

KINDS = {
    "model": ("target", "good"),
    "head": ("deep", "deep_head"),
    "sliding": ("sliding", "sliding_draft"),
    "hybrid": ("hybrid", "hybrid_good"),
}
"""A target, and its draft."""
_CHANCE = random.Random(3)
_SYSTEM = [_CHANCE.randrange(260, 320) for _ in range(300)]
TEXTS = [_SYSTEM + [_CHANCE.randrange(260, 320) for _ in range(350 + 40 * i)] for i in range(3)]
"""Texts of three blocks, with the first one in common."""
_HEADER = 110
"""More bytes than what precedes the tokens in a file."""
_NUMBERS = ((56, 4), (60, 4), (64, 8))
"""The places and sizes of the numbers in it."""


def opened(case: dict[str, Any]) -> Any:
    """A fresh Llama; see `said`."""
    from exact import EXACT_CACHE

    import specllama

    sizes = {"n_ctx": 2048, "n_threads": 1, "n_threads_batch": 1, "num_draft_tokens": 4, "verbose": False}
    options = {**sizes, "verify": "coupled", **EXACT_CACHE, **case.get("options", {})}
    return specllama.Llama(case["target"], draft_model=case["draft"], **options)


def answer(llm: Any, text: list[int]) -> list[int]:
    """What is answered to a text. It depends on each token of it: with less temperature some models say the same."""
    return list(llm.engine.generate(text, max_tokens=24, temperature=3.0, seed=len(text)))


def said(case: dict[str, Any]) -> str:
    """What a fresh Llama answers to the texts of a case, and which warnings it gives, as JSON.

    Args:
        case: "target" and "draft" are paths, "texts" are lists of tokens, "options" are more arguments. "fault" is one
            of `FAULTS`, which comes behind the first text.
    """
    with warnings.catch_warnings(record=True) as given:
        warnings.simplefilter("always")
        llm = opened(case)
        answers, from_disk = [], []
        for text in case["texts"]:
            answers.append(answer(llm, text))
            from_disk.append(llm.stats.num_prompt_tokens_from_disk)
            if "fault" in case:
                llm.engine.store.flush()
            if "fault" in case and len(answers) == 1:
                _fail(case["fault"], case["options"]["cache_dir"], llm.engine.store)
        llm.close()
        noted = {*(str(one.message) for one in given), *llm.engine.store.notes()}
    return json.dumps({"answers": answers, "from_disk": from_disk, "warnings": [one[-150:] for one in noted][:5]})


def entries(folder: Path) -> list[Path]:
    """The files of entries, in an order that the names alone decide."""
    found = [*folder.rglob("*.range"), *folder.rglob("*.point")]
    return sorted(
        path for path in found if path.is_file() and not path.is_symlink() and 0 < path.stat().st_size < 1 << 30
    )


def sizes(folder: str | Path) -> dict[str, int]:
    """The sizes of all entries, and of those that are being written, by path."""
    found = {}
    for where, _, names in os.walk(folder):
        for path in [os.path.join(where, name) for name in names if name.endswith((".range", ".point", ".partial"))]:
            with contextlib.suppress(FileNotFoundError):  # it has gone since
                found[path] = os.lstat(path).st_size
    return found


def _gone(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _place(chance: random.Random, size: int) -> int:
    """A byte of a file: in half of all cases of its header."""
    return chance.randrange(min(size, chance.choice((_HEADER, size))))


def _edited(change: Callable[[random.Random, bytearray], object]) -> Callable[[random.Random, Path, Path], None]:
    def damage(chance: random.Random, file: Path, _store: Path) -> None:
        data = bytearray(file.read_bytes())
        change(chance, data)
        file.write_bytes(data)

    return damage


def _cut(chance: random.Random, data: bytearray) -> None:
    del data[_place(chance, len(data)) :]


def _bits(chance: random.Random, data: bytearray) -> None:
    for _ in range(chance.choice((1, 1, 1, 8))):
        data[_place(chance, len(data))] ^= 1 << chance.randrange(8)


def _number(chance: random.Random, data: bytearray) -> None:
    (place, size), value = chance.choice(_NUMBERS), chance.choice(EXTREME)
    data[place : place + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")


def _zeros(chance: random.Random, data: bytearray) -> None:
    place = chance.choice((0, _place(chance, len(data))))
    end = chance.choice((len(data), min(len(data), place + 4096)))
    data[place:end] = bytes(end - place)


def _longer(chance: random.Random, data: bytearray) -> None:
    data += chance.randbytes(chance.choice((1, 100, 5000)))


def _inserted(chance: random.Random, data: bytearray) -> None:
    data.insert(_place(chance, len(data)), chance.randrange(256))


def _sparse_and_said_so(chance: random.Random, file: Path, _store: Path) -> None:
    """Its header says the size that it has, which is more than most memories."""
    size = 1 << 35
    data = bytearray(file.read_bytes())
    (tokens,) = struct.unpack("<I", data[60:64])
    data[64:72] = (size - 104 - 4 * tokens).to_bytes(8, "little")
    file.write_bytes(data)
    os.truncate(file, size)


def _other(chance: random.Random, file: Path, store: Path, *, same_root: bool = True) -> Path:
    root = file.parents[1]
    found = [one for one in entries(store) if one != file and (one.parents[1] == root) == same_root]
    return chance.choice(found or [file])


def _swapped(chance: random.Random, file: Path, store: Path) -> None:
    other = _other(chance, file, store)
    one, two = file.read_bytes(), other.read_bytes()
    file.write_bytes(two)
    other.write_bytes(one)


def _of_another_block(chance: random.Random, file: Path, store: Path) -> None:
    file.write_bytes(_other(chance, file, store).read_bytes())


def _of_another_model(chance: random.Random, file: Path, store: Path) -> None:
    file.write_bytes(_other(chance, file, store, same_root=False).read_bytes())


def _mixed(chance: random.Random, file: Path, store: Path) -> None:
    """The beginning of one, and the end of another one."""
    place = _place(chance, file.stat().st_size)
    other = _other(chance, file, store, same_root=chance.random() < 0.5).read_bytes()
    file.write_bytes(file.read_bytes()[:place] + other[place:])


def _renamed(chance: random.Random, file: Path, store: Path) -> None:
    """It gets another one's name, or one that no entry has."""
    other = _other(chance, file, store, same_root=chance.random() < 0.5)
    names = (
        other,
        file.with_name(file.name[:-6] + ".point"),
        file.with_name("x"),
        file.with_name(f".{file.name}.partial"),
    )
    os.replace(file, chance.choice(names))


def _in_another_shard(chance: random.Random, file: Path, _store: Path) -> None:
    shard = file.parents[1] / f"{chance.randrange(256):02x}"
    shard.mkdir(exist_ok=True)
    os.replace(file, shard / file.name)


def _directory(chance: random.Random, path: Path, _store: Path) -> None:
    _gone(path)
    path.mkdir()
    if chance.random() < 0.5:
        (path / "x").write_bytes(b"x")


def _elsewhere(store: Path) -> Path:
    """A folder of the test's own beside a store. Never another one: damages are made behind links, too."""
    found = store.with_name(f"{store.name}-elsewhere")
    (found / "ab").mkdir(parents=True, exist_ok=True)
    (found / "ab" / "x").touch()
    return found


def _link(chance: random.Random, path: Path, store: Path) -> None:
    target = chance.choice(
        ("nowhere", path.name, "/dev/zero", "/dev/null", str(_elsewhere(store)), *map(str, entries(store)[:1]))
    )
    _gone(path)
    path.symlink_to(target)


def _pipe(_chance: random.Random, path: Path, _store: Path) -> None:
    _gone(path)
    os.mkfifo(path)


def _sparse(_chance: random.Random, path: Path, _store: Path) -> None:
    _gone(path)
    path.touch()
    os.truncate(path, 1 << 40)


def _nothing(_chance: random.Random, path: Path, _store: Path) -> None:
    _gone(path)


def _rubbish(chance: random.Random, path: Path, _store: Path) -> None:
    _gone(path)
    path.write_bytes(chance.randbytes(chance.choice((0, 1, 100, 100_000))))


def _another_time(chance: random.Random, path: Path, _store: Path) -> None:
    time = chance.choice((-5, 0, 4_000_000_000))
    os.utime(path, (time, time), follow_symlinks=False)


def _unreadable(_chance: random.Random, path: Path, _store: Path) -> None:
    if not path.is_symlink():
        path.chmod(0)


_ANY = {
    "directory": _directory,
    "link": _link,
    "pipe": _pipe,
    "sparse": _sparse,
    "nothing": _nothing,
    "rubbish": _rubbish,
    "another time": _another_time,
    "unreadable": _unreadable,
}
"""Ways to damage anything."""
_OF_FILES = {
    "cut": _edited(_cut),
    "bits": _edited(_bits),
    "number": _edited(_number),
    "zeros": _edited(_zeros),
    "longer": _edited(_longer),
    "inserted": _edited(_inserted),
    "sparse, and said so": _sparse_and_said_so,
    "swapped": _swapped,
    "of another block": _of_another_block,
    "of another model": _of_another_model,
    "mixed": _mixed,
    "renamed": _renamed,
    "in another shard": _in_another_shard,
    **_ANY,
}


def _swapped_root(chance: random.Random, root: Path, store: Path) -> None:
    for other in _one(chance, [one for one in _roots(store) if one != root]):
        os.replace(root, store / "x")
        os.replace(other, root)
        os.replace(store / "x", other)


def _roots(store: Path) -> list[Path]:
    return sorted(path for path in store.iterdir() if len(path.name) == 32 and path.is_dir() and not path.is_symlink())


def _one(chance: random.Random, paths: list[Path]) -> list[Path]:
    return chance.sample(paths, min(1, len(paths)))


WHERE: dict[str, Callable[[random.Random, Path], list[Path]]] = {
    "file": lambda chance, store: _one(chance, entries(store)),
    "files": lambda chance, store: entries(store),
    "shard": lambda chance, store: _one(
        chance,
        sorted(path for root in _roots(store) for path in root.iterdir() if path.is_dir() and len(path.name) == 2),
    ),
    "root": lambda chance, store: _one(chance, _roots(store)),
    "about": lambda chance, store: [root / "about.json" for root in _roots(store)],
    ".writer": lambda chance, store: [store / ".writer"],
    ".lock": lambda chance, store: [store / ".lock"],
}
WAYS = {
    **{f"{what}: {way}": (what, do) for what in ("file", "files") for way, do in _OF_FILES.items()},
    **{f"{what}: {way}": (what, do) for what in WHERE if what not in ("file", "files") for way, do in _ANY.items()},
    "root: swapped": ("root", _swapped_root),
}
"""What is damaged, and how."""


def damage(store: Path, way: str, number: int) -> None:
    """Damage a store.

    Args:
        store: the folder.
        way: one of `WAYS`.
        number: stands for the damage, among all that are made in this way.
    """
    chance = random.Random(f"{way} {number}")
    what, do = WAYS[way]
    for path in WHERE[what](chance, store):
        assert path.parent.resolve().is_relative_to(store.resolve()), "damages stay in the store"
        if os.path.lexists(path):
            do(chance, path, store)


# Faults of the process and of the machine


def killed(case: dict[str, Any]) -> str:
    """Have a child answer, and kill it.

    Args:
        case: as for `said`; and when: after so many "seconds", or at the use number "use" of a file in the store, or
            when so many "bytes" of an entry are written.
    """
    child = os.fork()
    if child == 0:
        if "use" in case:
            _killed_at(case["use"], case["options"]["cache_dir"])
        if "bytes" in case:
            _killed_behind(case["bytes"])
        said(case)
        os._exit(0)
    if "seconds" in case:
        time.sleep(case["seconds"])
        os.kill(child, signal.SIGKILL)
    return json.dumps({"signal": os.waitpid(child, 0)[1]})


def _killed_at(number: int, folder: str) -> None:
    count = itertools.count()

    def hear(_event: str, given: tuple[Any, ...]) -> None:
        if given and str(given[0]).startswith(folder) and next(count) == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hear)


def _killed_behind(size: int) -> None:
    from specllama.engine.prefixes import disk

    def write_entry(file: Any, entry: Any) -> None:
        whole = io.BytesIO()
        original(whole, entry)
        file.write(whole.getvalue()[:size])
        os.kill(os.getpid(), signal.SIGKILL)

    original, disk.write_entry = disk.write_entry, write_entry


def _without_capabilities() -> None:
    """Root is held back by permissions, like any other user."""
    header, none = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    if ctypes.CDLL(None, use_errno=True).capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def _in_its_place(folder: str) -> None:
    shutil.rmtree(folder)
    Path(folder).write_text("a file")


def _forbidden(folder: str, mode: int) -> None:
    for where, _, names in os.walk(folder, topdown=False):
        for path in (*(os.path.join(where, name) for name in names), where):
            os.chmod(path, mode)


def _other_clock(change: float) -> None:
    now = time.time_ns
    time.time_ns = lambda: int(now() + change)


def _full(size: int) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))


FAULTS: dict[str, Callable[[str], object]] = {
    "it vanishes": shutil.rmtree,
    "a file in its place": _in_its_place,
    "it cannot be written to": lambda folder: _forbidden(folder, 0o500),
    "it cannot be read": lambda folder: _forbidden(folder, 0),
    "full": lambda _folder: _full(0),
    "full in the middle of a file": lambda _folder: _full(50_000),
    "the clock is in the past": lambda _folder: _other_clock(-1e18),
    "the clock is in the future": lambda _folder: _other_clock(1e18),
    "another one empties it": empty,
}
"""What happens to the folder of a store while it is in use."""


def _fail(fault: str, folder: str, store: Any) -> None:
    FAULTS[fault](folder)
    if "cannot" in fault:
        _without_capabilities()
        store._writer.submit(0, _without_capabilities)  # each thread has its own
        store.flush()
