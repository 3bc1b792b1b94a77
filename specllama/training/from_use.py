"""What was kept while the model was used (``learn=True``), as text to learn from."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from specllama.backend.replacing import replacing
from specllama.engine import Kept, KeptFile, KeptName, read_kept

from .shards import LIKELY, Example
from .text import HELD_OUT, Text

_FIRST = HELD_OUT << 20  # the index of the first of these texts: those that the target writes come before


class Used:
    """The kept texts that a training learns from: copies, because the model may be used while it learns.

    Args:
        folder: the folder of the copies.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def copy(self, files: Iterable[KeptFile]) -> None:
        """Copy kept texts. A call that was interrupted may be repeated.

        Raises:
            OSError: the disk is full.
        """
        self._folder.mkdir(exist_ok=True)
        for one in files:
            # The time is part of the name, so that a repeated call finds what is there: texts come and go meanwhile.
            there = self._folder / f"{one.written:020}-{one.name}"
            if there.exists():
                continue
            with contextlib.suppress(FileNotFoundError):  # it was deleted meanwhile
                try:
                    os.link(one.path, there)
                except OSError:  # another disk, or one without links
                    with replacing(there) as temporary:
                        shutil.copyfile(one.path, temporary)

    def names(self) -> frozenset[str]:
        """The names of the texts (`KeptName.text`)."""
        return frozenset(name.text for name, _ in self._files())

    def texts(self) -> list[Text]:
        """The texts. All texts of a conversation are learned, or all are held out."""
        return [Text(index, kept.tokens.tolist(), kept.first + 1) for index, kept in self._kept()]

    def examples(self, rows: npt.NDArray[np.int64], n_vocab: int) -> Iterator[tuple[int, Example]]:
        """The texts with the final states of their answers, each with its index.

        Args:
            rows: the tokens that the head can draft.
            n_vocab: the number of tokens in the target's vocabulary.
        """
        row_of = np.full(n_vocab, -1, np.int32)
        row_of[rows] = np.arange(len(rows))
        for index, kept in self._kept():
            yield index, _example(kept, row_of)

    def _kept(self) -> Iterator[tuple[int, Kept]]:
        for number, (name, path) in enumerate(self._files()):
            kept = read_kept(path)
            if kept is not None and len(kept.states) > 2:
                yield _FIRST + HELD_OUT * number + (0 if name.is_held_out else 1 + number % (HELD_OUT - 1)), kept

    def _files(self) -> Iterator[tuple[KeptName, Path]]:
        """The texts, the oldest first."""
        for path in sorted(self._folder.glob("*-*")):
            if (name := KeptName.read(path.name.partition("-")[2])) is not None:
                yield name, path


def _example(kept: Kept, row_of: npt.NDArray[np.int32]) -> Example:
    count = len(kept.states)
    rows = row_of[kept.likely]
    return Example(
        tokens=kept.tokens[kept.first : kept.first + count],
        start=1,
        states=kept.states[:, None],
        likely=np.maximum(rows, 0)[:, :LIKELY],
        shares=np.where(rows < 0, 0, kept.shares)[:, :LIKELY],
        best=rows[:, 0],
    )
