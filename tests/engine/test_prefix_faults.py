"""A store on disk that is damaged, full, gone, or used by several programs: the text stays the one without a store."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import filelock
import numpy as np
import pytest
import stores
import uses
from exact import EXACT_CACHE
from interrupts import Interruption

from specllama.engine import prefixes
from specllama.engine.prefixes.disk import Disk
from specllama.engine.prefixes.entry import Entry, Name, Room, digest_of
from specllama.engine.prefixes.file import name_of
from specllama.engine.prefixes.folder import PATIENCE, WRITER, contents, empty
from specllama.engine.prefixes.ram import Ram

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs os.fork")

CASES = int(os.environ.get("SPECLLAMA_CASES", "20"))  # more on demand
HELPERS = str(Path(stores.__file__).parent)
FAULTS_TO_TELL = {
    "a file in its place",
    "it cannot be written to",
    "it cannot be read",
    "full",
    "full in the middle of a file",
}
KINDS_OF_WARNINGS = ("is damaged", "cannot be read", "cannot be written to", "is full")


OPEN = """
import os, signal, sys, threading, warnings
sys.path.insert(0, {helpers!r})
import stores
from specllama.engine.prefixes import disk
warnings.simplefilter("ignore", DeprecationWarning)
case = {case!r}
"""
FORK = (
    OPEN
    + """
begun, go_on = threading.Event(), threading.Event()
original = disk.write_entry
def write_entry(file, entry):
    file.write(b"x")
    begun.set()
    go_on.wait(20)
    file.seek(0)
    original(file, entry)
disk.write_entry = write_entry
llm = stores.opened(case)
answer = lambda: stores.answer(llm, case["texts"][0])
expected = answer()
assert begun.wait(20)
child = os.fork()
if child == 0:
    signal.alarm(40)
    go_on.set()
    if {what!r} == "text":
        stores.answer(llm, case["texts"][1])
        assert answer() == expected
        llm.engine.store.flush()
        os._exit(0)
    sys.exit()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
go_on.set()
print(answer() == expected)
llm.close()
print(len(stores.sizes(case["options"]["cache_dir"])) > 3)
"""
)
END = (
    OPEN
    + """
llm = stores.opened(case)
stores.answer(llm, case["texts"][0])
{how}
"""
)


def run(script: str, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a script in a process of its own."""
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=timeout, check=False)


@dataclasses.dataclass(frozen=True)
class Written:
    """A store that a kind of model has written.

    Attributes:
        case: what `stores.said` takes, without a store.
        folder: the store, to be copied. It has entries of another kind, too.
        answers: those without a store.
    """

    case: dict[str, Any]
    folder: Path
    answers: list[list[int]]


class Stores:
    """Stores, and a process that uses copies of them in children."""

    def __init__(self, process: uses.Uses, files: TinyFiles, folder: Path) -> None:
        self._process, self._files, self._folder = process, files, folder
        self._written: dict[str, Written] = {}

    def of(self, kind: str) -> Written:
        """The store of a kind of model."""
        if kind not in self._written:
            target, draft = (str(getattr(self._files, name)) for name in stores.KINDS[kind])
            first: dict[str, Any] = {"target": target, "draft": draft, "texts": stores.TEXTS}
            folder = self._folder / kind
            said = self.use(first, folder)
            self.use({**first, "target": str(self._files.larger), "draft": None}, folder)
            turns = [[*text, *answer, 5, 7, 9] for text, answer in zip(stores.TEXTS, said["answers"], strict=True)]
            case = {**first, "texts": turns}
            self._written[kind] = Written(case, folder, self.use(case)["answers"])
        return self._written[kind]

    def use(
        self, case: dict[str, Any], folder: Path | None = None, do: str = "store", **options: Any
    ) -> dict[str, Any]:
        """What is said in a child, with a store in a folder."""
        if folder is not None:
            options["cache_dir"] = str(folder)
        said = self._process.outcome(do, {**case, "options": options})
        assert said.startswith("{"), said
        return dict(json.loads(said))


@pytest.fixture(scope="module")
def process(tiny_files: TinyFiles) -> Iterator[uses.Uses]:
    with uses.started(tiny_files.target, tiny_files.good) as started:
        yield started


@pytest.fixture(scope="module")
def written(process: uses.Uses, tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(process, tiny_files, tmp_path_factory.mktemp("stores"))


def assert_harmless(stores_: Stores, kind: str, ways: list[str], number: int, folder: Path) -> None:
    """Damage a copy of a store, and use it twice."""
    whole = stores_.of(kind)
    shutil.copytree(whole.folder, folder)
    for way in ways:
        stores.damage(folder, way, number)
    for _ in range(2):
        said = stores_.use(whole.case, folder)
        assert said["answers"] == whole.answers
        found = [one for warning in said["warnings"] for one in KINDS_OF_WARNINGS if one in warning]
        assert len(found) == len(said["warnings"]) == len(set(found))
        assert len(found) <= len(ways)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", stores.KINDS)
def test_what_a_whole_store_saves(written: Stores, tmp_path: Path, kind: str) -> None:
    """What the other tests damage."""
    whole = written.of(kind)
    shutil.copytree(whole.folder, tmp_path / "store")
    said = written.use(whole.case, tmp_path / "store")
    assert (said["answers"], said["warnings"]) == (whole.answers, [])
    assert min(said["from_disk"]) > 350


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", stores.WAYS)
def test_each_damage(written: Stores, tmp_path: Path, way: str) -> None:
    kind = random.Random(way).choice(list(stores.KINDS))
    assert_harmless(written, kind, [way], 0, tmp_path / "store")


@pytest.mark.long
def test_damages_together(written: Stores, tmp_path: Path) -> None:
    for number in range(CASES):
        chance = random.Random(number)
        ways = chance.choices(list(stores.WAYS), k=chance.randint(1, 4))
        folder = tmp_path / str(number)
        assert_harmless(written, chance.choice(list(stores.KINDS)), ways, number, folder)
        shutil.rmtree(folder)


def more_texts(chance: random.Random) -> list[list[int]]:
    """Texts that begin as those in the stores, and go on otherwise."""
    return [text[: chance.randrange(200, 600)] + [chance.randrange(260, 320)] * 70 for text in stores.TEXTS]


def moment(chance: random.Random) -> dict[str, float]:
    """When a process is killed."""
    return chance.choice(
        [{"seconds": chance.uniform(0, 1.5)}, {"use": chance.randrange(150)}, {"bytes": chance.randrange(400_000)}]
    )


@pytest.mark.long
def test_kills(written: Stores, tmp_path: Path) -> None:
    """In a folder that all of them have written into, with a limit at which they delete each other's files."""
    whole, limit, num_killed = written.of("model"), 3 << 19, 0
    shutil.copytree(whole.folder, folder := tmp_path / "store")
    for number in range(CASES // 2):
        chance = random.Random(number)
        case = {**whole.case, "texts": more_texts(chance)}
        ended = written.use({**case, **moment(chance)}, folder, "kill", cache_disk=limit / 2**30)
        num_killed += ended["signal"] == signal.SIGKILL
        assert number == 0 or sum(stores.sizes(folder).values()) <= limit
        expected, said = written.use(case), written.use(case, folder, cache_disk=limit / 2**30)
        assert (said["answers"], said["warnings"]) == (expected["answers"], [])
        assert list(folder.rglob("*.partial")) == []
        assert 0 < sum(stores.sizes(folder).values()) <= limit
    assert num_killed >= CASES // 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("fault", stores.FAULTS)
def test_the_folder_fails(written: Stores, tmp_path: Path, fault: str) -> None:
    whole = written.of("model")
    shutil.copytree(whole.folder, folder := tmp_path / "store")
    said = written.use({**whole.case, "fault": fault}, folder)
    assert said["answers"] == whole.answers
    assert len(said["warnings"]) <= 1
    assert bool(said["warnings"]) == (fault in FAULTS_TO_TELL), said["warnings"]


def watched(folder: Path, is_over: Callable[[], bool]) -> int:
    """The most bytes that entries in a folder had together at any moment, as far as it can be seen."""
    most, before = 0, dict[str, int]()
    while not is_over():
        now = stores.sizes(folder)
        most = max(most, sum(min(size, before.get(path, 0)) for path, size in now.items()))  # were there in between
        before = now
    return most


@pytest.mark.long
@pytest.mark.parametrize("count", [2, 4])
def test_programs_at_once(written: Stores, tiny_files: TinyFiles, tmp_path: Path, count: int) -> None:
    """With a limit at which they delete each other's files, some while they are read."""
    case, limit, folder = written.of("model").case, 1 << 20, tmp_path / "store"
    cases = [{**case, "texts": more_texts(random.Random(i)) + 3 * more_texts(random.Random(7))} for i in range(count)]
    expected = [written.use(one)["answers"] for one in cases]
    options = {"cache_dir": str(folder), "cache_disk": limit / 2**30}
    with contextlib.ExitStack() as stack:
        programs = [stack.enter_context(uses.started(tiny_files.target, tiny_files.good)) for _ in cases]
        pool = stack.enter_context(ThreadPoolExecutor(count))
        said = [
            pool.submit(program.outcome, "store", {**one, "options": options})
            for program, one in zip(programs, cases, strict=True)
        ]
        most = watched(folder, lambda: all(each.done() for each in said))
    found = [json.loads(each.result()) for each in said]
    assert [one["answers"] for one in found] == expected
    assert [one["warnings"] for one in found] == [[]] * count
    assert 0.5 * limit < most <= limit


def test_memory_has_a_limit_at_any_moment() -> None:
    """With several threads."""
    ram, root, chance = Ram(1), bytes(16), np.random.default_rng(1)
    over: list[int] = []

    def put(number: int) -> None:
        parent, chain = root, list[Name]()
        for count in chance.integers(1, 257, 300):
            tokens = np.full(count, number, np.int32)
            chain.append(name := Name(root, parent, digest_of(parent, tokens), "range"))
            if not ram.put(Entry(name, tokens, np.zeros(100 * count, np.uint8)), chain):
                parent, chain = root, []
            ram.use(reversed(chain))
            held = ram.num_bytes
            over.extend([held] * (held > 1 << 20))
            parent = name.own

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(put, range(8)))
    assert over == []
    assert ram.num_bytes == sum(entry.num_bytes for entry in ram._entries.values()) > 900_000
    assert {name for names in ram._children.values() for name in names} == set(ram._entries)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["text", "end"])
def test_a_fork_while_entries_are_written(written: Stores, tmp_path: Path, what: str) -> None:
    whole = written.of("model")
    script = FORK.format(
        helpers=HELPERS, case={**whole.case, "options": {"cache_dir": str(tmp_path / "store")}}, what=what
    )
    done = run(script, timeout=60)
    assert done.stdout.split() == ["0", "True", "True"], done.stderr


@pytest.mark.sampled(2)
@pytest.mark.parametrize("how", ["", "llm.close()", "sys.exit(3)", "raise KeyboardInterrupt"])
def test_the_interpreter_ends_while_entries_are_written(written: Stores, tmp_path: Path, how: str) -> None:
    """They are written or lost."""
    whole = written.of("model")
    begun = time.monotonic()
    run(
        END.format(helpers=HELPERS, case={**whole.case, "options": {"cache_dir": str(tmp_path / "store")}}, how=how),
        timeout=60,
    )
    assert time.monotonic() - begun < 30
    assert list(tmp_path.rglob("*.partial")) == []
    said = written.use(whole.case, tmp_path / "store")
    assert (said["answers"], said["warnings"]) == (whole.answers, [])
    assert said["from_disk"][0] > 350


@pytest.mark.long
def test_another_program_has_the_lock_for_ever(written: Stores, tmp_path: Path) -> None:
    """It was stopped, say: texts do not wait for it, and the end waits once."""
    whole, folder = written.of("model"), tmp_path / "store"
    folder.mkdir()
    with filelock.FileLock(folder / ".lock"):
        begun = time.monotonic()
        said = written.use(whole.case, folder)
        assert time.monotonic() - begun < 2 * PATIENCE
    assert (said["answers"], said["warnings"]) == (whole.answers, [])
    assert stores.sizes(folder) == {}


@pytest.mark.long
def test_ctrl_c(make_llama: MakeLlama, tiny_files: TinyFiles, written: Stores, tmp_path: Path) -> None:
    """At each place of the store where Python could hear of it, in the caller's thread."""
    whole = written.of("model")
    text, answer, number = whole.case["texts"][0], whole.answers[0], 0
    options = {"n_ctx": 2048, "verify": "coupled", "cache_ram": 1, **EXACT_CACHE}
    while True:
        shutil.copytree(whole.folder, folder := tmp_path / str(number))
        llm = make_llama(tiny_files.target, tiny_files.good, cache_dir=str(folder), **options)
        list(llm.engine.generate(whole.case["texts"][1], max_tokens=1))
        interruption = Interruption(number, str(Path(prefixes.__file__).parent))
        was_interrupted = interruption.of(lambda: stores.answer(llm, text))  # noqa: B023
        assert stores.answer(llm, text) == answer, interruption.where
        llm.close()
        assert list(folder.rglob("*.partial")) == []
        shutil.rmtree(folder)
        if not was_interrupted:
            break
        number += int(os.environ.get("SPECLLAMA_STEP", "23"))
    assert number > 300


# The folder alone, without a model

ROOT = bytes(16)


def entry_of(number: int, size: int = 1000) -> Entry:
    """One for a text of its own."""
    tokens = np.full(20, number, np.int32)
    return Entry(Name(ROOT, ROOT, digest_of(ROOT, tokens), "range"), tokens, np.full(size, number % 256, np.uint8))


def put(disk: Disk, *numbers: int) -> int:
    """Write entries, each as a text of its own. Gives how many are there."""
    return sum(disk.put([entry_of(number)], [entry_of(number).name], {}) for number in numbers)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def disk(tmp_path: Path, told: list[str]) -> Disk:
    """With room for nine entries."""
    return Disk(tmp_path / "store", 11_000, told.append)


def size_of(disk: Disk) -> int:
    return sum(stores.sizes(disk.folder).values())


def test_a_fork_writes_too(disk: Disk) -> None:
    """And each of both counts what the other one has written."""
    put(disk, *range(5))
    if (child := os.fork()) == 0:
        put(disk, *range(5, 9))
        os._exit(0)
    os.waitpid(child, 0)
    assert size_of(disk) > 9_000
    put(disk, 9, 10, 11)
    assert 9_000 < size_of(disk) <= 11_000


def test_files_that_others_delete_leave_room(disk: Disk, told: list[str]) -> None:
    put(disk, *range(9))
    for number in range(100):
        path = stores.entries(disk.folder)[0]
        path.write_bytes(b"damaged")
        name = name_of(ROOT, path.name)
        assert name is not None
        assert disk.load(name, Room()) is None
        put(disk, 1000 + number)
        assert 9_000 < size_of(disk) <= 11_000
    assert len(set(told)) == 1


def test_what_was_used_last_stays(disk: Disk) -> None:
    """Also if another program has used it. A clock that was wrong keeps no file for ever."""
    put(disk, *range(9))
    other = Disk(disk.folder, 11_000, print)
    for number in range(9, 30):
        other.use([entry_of(3).name])
        put(disk if number % 2 else other, number)
        assert disk.has(entry_of(3).name)
        assert size_of(disk) <= 11_000
    os.utime(disk._path(entry_of(29).name), (9e9, 9e9))
    os.utime(disk._path(entry_of(3).name), (-9, -9))
    put(disk, *range(30, 60))
    assert [number for number in range(60) if disk.has(entry_of(number).name)] == list(range(51, 60))


def test_a_text_that_does_not_fit(disk: Disk) -> None:
    """Its beginning stays. What is larger than all room takes none of it."""
    put(disk, *range(9))
    assert disk.put([entry_of(100, 20_000)], [], {}) == 0
    assert len(stores.entries(disk.folder)) == 9
    chain = [entry_of(number) for number in range(20, 40)]
    assert disk.put(chain, [entry.name for entry in chain], {}) == 9
    assert [disk.has(entry.name) for entry in chain] == [True] * 9 + [False] * 11


def test_many_files_are_asked_for_their_sizes_once(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """When programs write by turns."""
    one, other = Disk(disk.folder, 1 << 30, print), Disk(disk.folder, 1 << 30, print)
    put(one, *range(300))
    put(other, 300)
    asked, lstat = [], os.lstat
    monkeypatch.setattr(os, "lstat", lambda path, **more: asked.append(path) or lstat(path, **more))
    put(one, 301)
    put(other, 302)
    assert 0 < len([path for path in asked if str(path).endswith(".range")]) < 10


def test_memory_looks_at_few_entries() -> None:
    """Of a text's entries, and of those that it must drop."""

    class Chain(set[Name]):
        num_asked = 0

        def __contains__(self, name: object) -> bool:
            self.num_asked += 1
            return super().__contains__(name)

    ram, chain = Ram(1), Chain()
    for number in range(3000):
        assert ram.put(entry_of(number), chain)
    assert 800 < ram.num_entries < 1048
    assert chain.num_asked <= 3000


@pytest.mark.sampled(4)
@pytest.mark.parametrize("number", range(0, 200, 7))
def test_ctrl_c_while_entries_are_written(disk: Disk, number: int) -> None:
    """What is there is whole, and is counted."""
    put(disk, *range(9))
    interruption = Interruption(number, str(Path(prefixes.__file__).parent))
    interruption.of(lambda: put(disk, 9))
    assert list(disk.folder.rglob("*.partial")) == []
    assert disk._room._used >= size_of(disk), interruption.where
    put(disk, *range(10, 40))
    assert 9_000 < size_of(disk) <= 11_000
    assert disk.load(entry_of(39).name, Room()) is not None


def test_a_real_disk_that_is_full(tmp_path: Path, told: list[str]) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "none", tmp_path], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("needs to mount a small disk")
    try:
        disk = Disk(tmp_path / "store", 1 << 30, told.append)
        assert 5 < put(disk, *range(60)) < 50
        assert put(disk, 0) == 1
        assert list(tmp_path.rglob("*.partial")) == []
        assert [("is full" in one) for one in set(told)] == [True]
        for path in stores.entries(tmp_path):
            path.unlink()
        assert put(disk, 60) == 1
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_only_the_user_can_read(disk: Disk) -> None:
    before = os.umask(0)
    try:
        put(disk, 1)
    finally:
        os.umask(before)
    paths = [disk.folder, *disk.folder.rglob("*")]
    assert len(paths) == 7
    assert {oct(path.stat().st_mode & 0o777) for path in paths} == {"0o700", "0o600"}


def test_links_lead_nowhere_else(disk: Disk, tmp_path: Path) -> None:
    """What somebody has linked to is not written to."""
    mine = tmp_path / "mine"
    mine.write_text("mine")
    put(disk, 1)
    for path in [*stores.entries(disk.folder), *disk.folder.rglob("about.json"), disk.folder / WRITER]:
        path.unlink()
        path.symlink_to(mine)
        put(disk, 1, 2)
        assert mine.read_text() == "mine"


def test_a_whole_file_under_another_roots_name(disk: Disk, told: list[str]) -> None:
    """Another version writes under another root: its files are never used."""
    put(disk, 1)
    name = entry_of(1).name
    others = name._replace(root=bytes(range(16)))
    assert disk.load(others, Room()) is None
    assert told == []
    shutil.copytree(disk.folder / name.root.hex(), disk.folder / others.root.hex())
    assert disk.load(others, Room()) is None
    assert len(told) == 1
    assert disk.load(name, Room()) is not None


def test_no_damaged_byte_is_given(tmp_path: Path) -> None:
    """What comes out of a damaged store is nothing, or what went in."""
    whole = Disk(tmp_path / "whole", 1 << 20, print)
    entries = [entry_of(number, 300 + number) for number in range(3)]
    entries += [entry._replace(name=entry.name._replace(root=bytes(range(16)))) for entry in entries]
    whole.put(entries, [], {})
    ways = [way for way in stores.WAYS if way.startswith("file")]
    for number in range(8 * CASES):
        way, folder = ways[number % len(ways)], tmp_path / str(number)
        shutil.copytree(whole.folder, folder)
        stores.damage(folder, way, number)
        disk = Disk(folder, 1 << 20, lambda _: None)
        for entry in entries:
            data = disk.load(entry.name, Room())
            assert data is None or bytes(data) == bytes(entry.data), way
            assert data is not None or not disk.has(entry.name) or way.endswith("directory"), way
            for name, tokens in disk.children(entry.name.root, ROOT, "range"):
                assert digest_of(ROOT, tokens) == name.own
        shutil.rmtree(folder)


def test_a_damaged_folder_can_be_listed_and_emptied(tmp_path: Path) -> None:
    """And what is not the store's stays, wherever links lead."""
    whole = Disk(tmp_path / "whole", 1 << 20, print)
    entries = [entry_of(number) for number in range(3)]
    entries += [entry._replace(name=entry.name._replace(root=bytes(range(16)))) for entry in entries]
    whole.put(entries, [], {})
    mine = tmp_path / "mine"
    (mine / "empty").mkdir(parents=True)
    (mine / ".a.partial").touch()
    for number, way in enumerate(stores.WAYS):
        shutil.copytree(whole.folder, folder := tmp_path / str(number))
        stores.damage(folder, way, number)
        (folder / ("e" * 32)).symlink_to(mine)
        contents(folder)
        if way not in (".lock: directory", ".lock: link", ".lock: pipe"):
            Disk(folder, 1 << 20, lambda _: None).put([entry_of(9)], [], {})
            empty(folder)
            assert stores.entries(folder) == [], way
    assert sorted(path.name for path in mine.iterdir()) == [".a.partial", "empty"]
