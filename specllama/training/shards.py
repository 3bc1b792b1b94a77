"""The target's states on the disk, in files of bounded size, until the head has learned from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .work import replacing

if TYPE_CHECKING:
    from specllama.engine.engine import Engine

    from .text import Text

LIKELY = 64
"""Of the target's distribution at a place so many of the head's tokens are kept, with what all others have together."""
_SHARD = 16_384  # tokens
_HUGE = 6.0e4  # what float16 holds
_COLUMNS = ("tokens", "states", "likely", "shares", "best")


@dataclasses.dataclass(frozen=True)
class Example:
    """A text as the head is shown it.

    Attributes:
        tokens: it [n].
        start: the place of the first token that is learned.
        states: what enters the layers that the head reads [n, num_read, n_embd], in float16.
        likely: which of the head's rows are likeliest behind each token [n, k]; the first is the likeliest.
        shares: the probabilities of these in the target's distribution over all tokens [n, k].
        best: the target's likeliest token [n] if the head can say it, as a row; -1 where it cannot.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    states: npt.NDArray[np.float16]
    likely: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float16]
    best: npt.NDArray[np.int32]


def bytes_of_a_token(width: int, n_rows: int) -> int:
    """What a token takes on the disk. `width`: numbers of all its states."""
    return width * 2 + min(LIKELY, n_rows) * 6 + 8


def read_example(engine: Engine, text: Text, rows: npt.NDArray[np.int64]) -> Example:
    """Have the target read a text. See `Engine.states`."""
    count, k = len(text.tokens), min(LIKELY, len(rows))
    first = max(0, text.start - 1)
    likely, shares = np.zeros((count, k), np.int32), np.zeros((count, k), np.float16)
    best = np.full(count, -1, np.int32)
    parts = []
    for part in engine.states(text.tokens, rows=rows, first_logits=first):
        parts.append(np.clip(part.hidden, -_HUGE, _HUGE).astype(np.float16))
        place = slice(part.first_logits, part.first_logits + len(part.logits))
        if not len(part.logits):
            continue
        some = np.argpartition(-part.logits, k - 1, axis=1)[:, :k]
        order = np.argsort(-np.take_along_axis(part.logits, some, 1), axis=1, kind="stable")
        some = np.take_along_axis(some, order, 1)
        probabilities = np.exp(np.take_along_axis(part.logits, some, 1) - part.logsumexp[:, None])
        likely[place], shares[place] = some, probabilities
        best[place] = np.where(rows[some[:, 0]] == part.best, some[:, 0], -1)
    return Example(np.asarray(text.tokens, np.int32), text.start, np.concatenate(parts), likely, shares, best)


def write_shards(
    engine: Engine,
    texts: Sequence[Text],
    rows: npt.NDArray[np.int64],
    folder: Path,
    enough: Callable[[int], bool],
    on_text: Callable[[int, int], None],
) -> None:
    """Have the target read all texts, but for those of which the shards are there.

    Args:
        engine: the target, which shows the states.
        texts: what it reads.
        rows: the tokens that the head says.
        folder: where the shards are.
        enough: of how many tokens have been read, whether the time is over.
        on_text: hears how many tokens have been read, and of how many texts.

    Raises:
        OSError: the disk is full.
    """
    folder.mkdir(parents=True, exist_ok=True)
    have = {index for path in shard_paths(folder) for index in _indices(path)}
    held: list[tuple[int, Example]] = []
    read, done = 0, len(have)
    for text in texts:
        if text.index in have or len(text.tokens) < 3:
            continue
        if enough(read):
            break
        held.append((text.index, read_example(engine, text, rows)))
        read += len(text.tokens)
        done += 1
        on_text(read, done)
        if sum(len(example.tokens) for _, example in held) >= _SHARD:
            _write(folder, held)
            held = []
    if held:
        _write(folder, held)


def shard_paths(folder: Path) -> list[Path]:
    """The whole ones, always in the same order."""
    return sorted(folder.glob("*.npz"))


def examples(path: Path) -> Iterator[tuple[int, Example]]:
    """What a shard holds, with the indices of the texts."""
    with np.load(path) as file:
        whole: dict[str, Any] = {name: file[name] for name in file.files}
    at = 0
    for index, start, size in zip(whole["indices"], whole["starts"], whole["sizes"], strict=True):
        part = slice(at, at + int(size))
        named = {name: whole[name][part] for name in _COLUMNS}
        yield int(index), Example(start=int(start), **named)
        at += int(size)


def _indices(path: Path) -> list[int]:
    with np.load(path) as file:
        return [int(index) for index in file["indices"]]


def _write(folder: Path, held: Sequence[tuple[int, Example]]) -> None:
    path = folder / f"{held[0][0]:08}.npz"
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(example, name) for _, example in held]) for name in _COLUMNS
    }
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(
            file,
            indices=np.array([index for index, _ in held]),
            starts=np.array([example.start for _, example in held]),
            sizes=np.array([len(example.tokens) for _, example in held]),
            **columns,
        )
