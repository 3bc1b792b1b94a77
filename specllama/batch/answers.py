"""The output of a batch: a file with an answer on each line. An earlier run may have ended within a line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Any

import filelock

REQUEST_ID = "batch_req_"
"""The beginning of the ``id`` of an answer in OpenAI's format. The line's key follows."""
_STARTS = (b'{"index": ', b'{"id": ', b'{"custom_id": ')
_SECONDS_UNTIL_SYNC = 5.0  # between two syncs; a power loss costs the answers after the last sync


class Answers:
    """The output, opened for appending. A lock file beside it keeps other processes out. Use it as a context manager.

    Attributes:
        keys: by the key of each answered line of the input, the number of the answer's line in this file.

    Raises:
        ValueError: the file holds other lines than answers.
        BlockingIOError: another process has opened it.
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
        """Append a whole answer. Every few seconds the file is synced to the disk.

        Raises:
            OSError: the answer cannot be written. The file then ends with the previous answer.
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
        """Return the object itself."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Sync the file to the disk, and release its lock."""
        with self._stack:
            os.fsync(self._file.fileno())

    def num_whole(self) -> int:
        """The number of answers, counted in the file."""
        with self._path.open("rb") as file:
            return sum(line.endswith(b"\n") for line in file)

    def _read(self) -> tuple[dict[bytes, int], int]:
        """The `keys`, and the offset at which the last answer ends. Half a line or zero bytes may follow it."""
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
        """Lock the file for this process. If the process is killed, the system releases the lock."""
        lock = f"{self._path}.lock"
        try:
            with contextlib.suppress(filelock.Timeout):
                return filelock.FileLock(lock).acquire(blocking=False)
            with open(lock, "ab"):  # filelock raises Timeout also where no file can be made
                pass
        except OSError as error:
            raise OSError(f"cannot write to {self._path}: {error.strerror or error}; give another --output") from error
        raise BlockingIOError(f"another batch is writing to {self._path}: wait for it, or give another --output")


def _begins_an_answer(text: bytes) -> bool:
    return any(start.startswith(text[: len(start)]) for start in _STARTS)


def _key_of(answer: dict[str, Any]) -> str:
    key: str = answer["key"] if "key" in answer else answer["id"].removeprefix(REQUEST_ID)
    return key


def _json(answer: dict[str, Any]) -> bytes:
    try:
        return json.dumps(answer, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:  # UTF-8 has no half surrogate pair, which a name may have; ASCII JSON escapes it
        return json.dumps(answer).encode("ascii")
