"""The output: a file of answers that grows line by line, and may have been left in the middle of one."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import filelock

REQUEST_ID = "batch_req_"
"""What the ``id`` of an answer in OpenAI's format begins with. The line's key follows."""
_STARTS = (b'{"index": ', b'{"id": ', b'{"custom_id": ')
_SECONDS_UNTIL_SYNC = 5.0  # while answers come; a power loss costs those behind the last sync


class Answers:
    """Opened for appending, for this process alone: a lock file lies beside it. Use it as a context manager.

    Attributes:
        keys: the keys of the lines that are answered in it, and the lines of this file that do.

    Raises:
        ValueError: the file holds something else.
        BlockingIOError: another process has it.
        OSError: it cannot be read or written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stack = contextlib.ExitStack()
        try:
            self._stack.enter_context(self._lock())
            self._file = self._stack.enter_context(path.open("ab", buffering=0))
            self.keys, self._size = self._read()
            self._file.truncate(self._size)
        except BaseException:
            self._stack.close()
            raise
        self._synced = time.monotonic()

    def add(self, answer: dict[str, Any]) -> None:
        """Append an answer. All of it is in the file then; every few seconds the disk is made to have it.

        Raises:
            OSError: there is no room for it. The file ends with the answer before.
        """
        line = memoryview(_json(answer) + b"\n")
        size = self._size + len(line)
        try:
            while line:
                line = line[self._file.write(line) or 0 :]
        except OSError as error:
            with contextlib.suppress(OSError):
                self._file.truncate(self._size)
            raise OSError(f"cannot write to {self._path}: {error.strerror or error}") from error
        self._size = size
        if time.monotonic() - self._synced > _SECONDS_UNTIL_SYNC:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()

    def __enter__(self) -> Answers:
        """See ``__exit__``."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Have all of it on the disk, and let others have it."""
        with self._stack:
            os.fsync(self._file.fileno())

    def num_whole(self) -> int:
        """How many answers are in the file, counted there."""
        with self._path.open("rb") as file:
            return sum(line.endswith(b"\n") for line in file)

    def _read(self) -> tuple[dict[bytes, int], int]:
        """The answers that are there, and where the last one ends. Behind it may be half a line, or a hole."""
        keys: dict[bytes, int] = {}
        end = 0
        with self._path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if b"\0" in line or not line.endswith(b"\n"):
                    if not keys and not _begins_an_answer(line.partition(b"\0")[0]):
                        raise self._foreign(number)
                    break
                try:
                    keys[bytes.fromhex(_key_of(json.loads(line)))] = number
                except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
                    raise self._foreign(number) from None
                end += len(line)
        return keys, end

    def _foreign(self, number: int) -> ValueError:
        return ValueError(f"line {number} of {self._path} is no answer of a batch: give another file as --output")

    def _lock(self) -> contextlib.AbstractContextManager[object]:
        """Held by this process until it ends, also if it is killed."""
        try:
            return filelock.FileLock(f"{self._path}.lock").acquire(blocking=False)
        except filelock.Timeout:
            raise BlockingIOError(
                f"another batch is writing to {self._path}: wait for it, or give another --output"
            ) from None


def _begins_an_answer(text: bytes) -> bool:
    return any(start.startswith(text[: len(start)]) for start in _STARTS)


def _key_of(answer: dict[str, Any]) -> str:
    key: str = answer["key"] if "key" in answer else answer["id"].removeprefix(REQUEST_ID)
    return key


def _json(answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(answer, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:  # half of a surrogate pair, which a name may have
        return json.dumps(answer).encode("ascii")
