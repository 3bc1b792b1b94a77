"""A folder of kept texts, within a limit. Several programs may write there at once, and any of them may be killed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.folders import files_in
from specllama.backend.replacing import PARTIAL
from specllama.engine.forks import told_of_forks
from specllama.engine.writer import Writer
from specllama.models.model_folders import learned_dir

from .file import Kept, Name, shortened, write_kept

LIKELY = 64
"""How many of the target's likeliest next tokens are kept for each token."""
LONGEST_PROMPT = 512
"""How many tokens of a prompt are kept, from its end on."""
_FEWEST = 8  # tokens of an answer, or of a part of it, that are kept
_TOGETHER = 256  # rows that are taken from the loop at once
_LOOKS = 64  # texts that are written before the folder is looked at anew, because other programs write there, too
_LEFT = 0.95  # of the limit is left when texts are deleted
_USED = "used"  # the file whose time is that of the last use of the model
_PAUSE = 0.5  # the least seconds between two notes of a use


def learn_dir(weights: str) -> Path:
    """The folder of the kept texts of a model.

    Args:
        weights: the `Digest` of the model's weights.
    """
    return learned_dir() / weights


def ask_for_room(folder: Path) -> None:
    """Have what learns meanwhile make way, because the model is used, or something else needs its place.

    Args:
        folder: the folder of the kept texts. Where there is none, nothing learns.
    """
    with contextlib.suppress(OSError):
        (folder / _USED).touch(mode=0o600)


def remove_left(folder: Path, seconds: float = 3600.0) -> None:
    """Delete the files that killed processes have not written to their ends, once they are so old."""
    for path in files_in(folder, PARTIAL):
        with contextlib.suppress(OSError):
            if time.time() - os.stat(path).st_mtime >= seconds:
                os.unlink(path)


def last_use(folder: Path) -> float:
    """When a program that keeps texts in a folder last used the model, in seconds since 1970; 0 if none has.

    Args:
        folder: the folder of the kept texts.
    """
    try:
        return os.stat(folder / _USED).st_mtime
    except OSError:
        return 0.0


class KeptFile(NamedTuple):
    """The file of a kept text."""

    written: int
    """When, in nanoseconds since 1970."""
    path: str
    size: int
    name: Name


class _Rows(NamedTuple):
    """What the loop has kept of some tokens. `places` are their positions in the text."""

    places: npt.NDArray[np.int32]
    states: npt.NDArray[np.float16]
    likely: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float16]


class KeptText:
    """What is kept of one text while it is generated. Where there is no memory for it, it is not kept.

    Args:
        store: gets the text when it has ended.
        prompt_size: how many tokens the prompt has.
    """

    def __init__(self, store: ExampleStore, prompt_size: int) -> None:
        self._store = store
        self._prompt_size = prompt_size
        self._rows: list[_Rows] = []

    def take(self, loop: _core.Speculator, *, all_rows: bool = False) -> None:
        """Take from the loop what it has kept, unless this is little. All tokens of the loop must be the reader's."""
        if loop.num_examples < (1 if all_rows else _TOGETHER):
            return
        with contextlib.suppress(MemoryError):
            places, states, likely, shares = loop.take_examples()
            largest = np.finfo(np.float16).max
            states = np.clip(states, -largest, largest).astype(np.float16)
            self._rows.append(_Rows(places, states, likely, shares.astype(np.float16)))

    def end(self, tokens: npt.NDArray[np.integer[Any]]) -> None:
        """Have the text written. `tokens` is the whole text."""
        if not self._rows:
            return
        with contextlib.suppress(MemoryError):
            rows = _Rows(*map(np.concatenate, zip(*self._rows, strict=True)))
            self._rows = []
            self._store.put(np.array(tokens, np.int32), self._prompt_size, rows)


class ExampleStore:
    """The kept texts of one model. Any thread may use it.

    Args:
        folder: the folder of the texts. It is made when the first text is written; only its owner can read it.
        most_bytes: how many bytes all texts may have. The oldest go first. A text that is there is not kept again.
        on_error: is told what a user should know, such as that the disk is full.
    """

    def __init__(self, folder: Path, most_bytes: int, on_error: Callable[[str], None]) -> None:
        self.folder = folder
        self._most_bytes = most_bytes
        self._on_error = on_error
        self._writer = Writer("examples")
        self._known: dict[str, Name] = {}  # by `Name.text`
        self._used = 0  # bytes
        self._num_written = 0  # since the folder was looked at
        self._has_looked = False
        self._noted = -_PAUSE
        told_of_forks(self)

    def leave_parent(self) -> None:
        """Called in a forked child, which lacks the thread that writes."""
        self._writer = Writer("examples")

    def note_use(self) -> None:
        """Note that the model is used now: what learns in the meantime makes way."""
        now = time.monotonic()
        if now - self._noted < _PAUSE:
            return
        self._noted = now
        ask_for_room(self.folder)

    def put(self, tokens: npt.NDArray[np.int32], prompt_size: int, rows: _Rows) -> None:
        """Have a text written by another thread. If it cannot keep up with that, the text is not kept."""
        size = sum(column.nbytes for column in rows)
        if self._writer.has_room(size, 0.0):
            self._writer.submit(size, self._write, tokens, prompt_size, rows)

    def flush(self) -> None:
        """Wait until all texts are written."""
        self._writer.flush()

    # In the thread that writes

    def _write(self, tokens: npt.NDArray[np.int32], prompt_size: int, rows: _Rows) -> None:
        parts = [*_parts(tokens, rows)]
        if not parts:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            if not self._has_looked or self._num_written >= _LOOKS:
                self._look()
            for part in parts:
                self._write_part(tokens[:prompt_size], part)
        except OSError as error:
            reason = error.strerror or str(error)
            self._on_error(f"{self.folder} cannot be written to ({reason}): what a draft could learn is not kept")

    def _write_part(self, prompt: npt.NDArray[np.int32], kept: Kept) -> None:
        text = shortened(hashlib.sha256(kept.tokens.tobytes()).digest())
        if text in self._known:
            return
        size = sum(column.nbytes for column in (kept.tokens, kept.states, kept.likely, kept.shares)) + 2048
        if not self._has_room(size):
            return
        digest = shortened(hashlib.sha256(prompt.tobytes()).digest())
        name = Name(text, self._conversation(prompt) or digest, digest, len(prompt))
        write_kept(self.folder / str(name), kept)
        self._known[text] = name
        self._used += size
        self._num_written += 1

    def _conversation(self, prompt: npt.NDArray[np.int32]) -> str | None:
        """The conversation that a prompt goes on with: it begins with the prompt of a kept text."""
        by_size: dict[int, dict[str, str]] = {}
        for name in self._known.values():
            by_size.setdefault(name.size, {})[name.prompt] = name.conversation
        digest, at, found = hashlib.sha256(), 0, None
        for size in sorted(by_size):
            if size > len(prompt):
                break
            digest.update(prompt[at:size].tobytes())
            at = size
            found = found or by_size[size].get(shortened(digest.copy().digest()))
        return found

    def _has_room(self, size: int) -> bool:
        """Whether there is room for so many bytes. The oldest texts are deleted where there is none."""
        if self._used + size > self._most_bytes:
            found = self._look()
            while found and self._used + size > _LEFT * self._most_bytes:
                oldest = found.pop(0)
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(oldest.path)
                self._known.pop(oldest.name.text, None)
                self._used -= oldest.size
        return self._used + size <= self._most_bytes

    def _look(self) -> list[KeptFile]:
        """Look which texts are there. Returns them, the oldest first."""
        found = kept_files(self.folder)
        self._known = {one.name.text: one.name for one in found}
        self._used = sum(one.size for one in found)
        self._num_written, self._has_looked = 0, True
        return found


def kept_files(folder: Path) -> list[KeptFile]:
    """The kept texts in a folder, the oldest first."""
    found = list[KeptFile]()
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            name = Name.read(entry.name)
            if name is not None:
                with contextlib.suppress(FileNotFoundError):
                    about = entry.stat(follow_symlinks=False)
                    found.append(KeptFile(about.st_mtime_ns, entry.path, about.st_size, name))
    return sorted(found)


def forget_kept(folder: Path, conversation: str | None = None) -> int:
    """Delete kept texts: those of one conversation, or all. Returns how many.

    Raises:
        OSError: a file cannot be deleted.
    """
    count = 0
    for one in kept_files(folder):
        if conversation in (None, one.name.conversation):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(one.path)
                count += 1
    if conversation is None:
        (folder / _USED).unlink(missing_ok=True)
        remove_left(folder, 0.0)
    return count


def _parts(tokens: npt.NDArray[np.int32], rows: _Rows) -> Iterable[Kept]:
    """The parts of a text in which each token has a row. Tokens that the user has appended have none."""
    breaks = np.flatnonzero(np.diff(rows.places) != 1) + 1
    for begin, end in itertools.pairwise([0, *breaks.tolist(), len(rows.places)]):
        if end - begin < _FEWEST:
            continue
        first, last = int(rows.places[begin]), int(rows.places[end - 1])
        start = max(0, first + 1 - LONGEST_PROMPT)
        yield Kept(
            tokens[start : last + 2],  # with the token that comes after the last row, if there is one
            first - start,
            rows.states[begin:end],
            rows.likely[begin:end],
            rows.shares[begin:end],
        )
