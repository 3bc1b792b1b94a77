"""Stores the target's states in files of limited size (shards), from which the head learns later."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama.backend.folders import files_in
from specllama.backend.replacing import replacing

if TYPE_CHECKING:
    from specllama.engine import Engine

    from .text import Text

LIKELY = 64
"""How many tokens of the target's distribution are kept at each place: the likeliest that the head can draft."""
_SHARD = 16_384  # a file is written as soon as it has this many tokens
_HUGE = 6.0e4  # the largest magnitude that is kept; float16 holds up to 65,504
_COLUMNS = ("tokens", "states", "likely", "shares", "best")


@dataclasses.dataclass(frozen=True)
class Example:
    """A text with everything that a head learns from it.

    Attributes:
        tokens: the text [n].
        start: the index of the first token that is learned.
        states: the inputs of the layers that the head reads, in float16 [n, num_read, n_embd].
        likely: the head's rows of the most likely next tokens after each token, the most likely one first [n, k].
        shares: the target's probabilities of these [n, k]. The other tokens have some, too, so the sum is below 1.
        best: the head's row of the target's most likely next token [n], or -1 if the head cannot draft it.
    """

    tokens: npt.NDArray[np.int32]
    start: int
    states: npt.NDArray[np.float16]
    likely: npt.NDArray[np.int32]
    shares: npt.NDArray[np.float16]
    best: npt.NDArray[np.int32]


def bytes_of_a_token(width: int, n_rows: int) -> int:
    """The bytes that a token takes on the disk. `width` is how many numbers all its states have."""
    return width * 2 + min(LIKELY, n_rows) * 6 + 8


def read_example(engine: Engine, text: Text, rows: npt.NDArray[np.int64], num_read: int) -> Example:
    """Let the target read a text. `Engine.states` computes the states.

    Args:
        engine: the target.
        text: the text.
        rows: the tokens that the head can draft.
        num_read: how many of the states that the engine shows are kept for each token.
    """
    count, k = len(text.tokens), min(LIKELY, len(rows))
    first = max(0, text.start - 1)
    likely, shares = np.zeros((count, k), np.int32), np.zeros((count, k), np.float16)
    best = np.full(count, -1, np.int32)
    parts = []
    for part in engine.states(text.tokens, rows=rows, first_logits=first):
        parts.append(np.clip(part.hidden[:, :num_read], -_HUGE, _HUGE).astype(np.float16))
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
    num_read: int,
    folder: Path,
    enough: Callable[[int], bool],
    on_text: Callable[[int, int], None],
) -> None:
    """Let the target read texts, and write shards of them. Texts that are in a shard already are skipped.

    Args:
        engine: the target, which must show its states.
        texts: the texts.
        rows: the tokens that the head can draft.
        num_read: as for `read_example`.
        folder: the folder of the shards.
        enough: is given how many tokens were read, and returns whether to stop.
        on_text: is told how many tokens were read, and how many texts are done.

    Raises:
        OSError: the disk is full.
    """
    have = _have(folder)

    def found() -> Iterator[tuple[int, Example]]:
        read, done = 0, len(have)
        for text in texts:
            if text.index in have or len(text.tokens) < 3:
                continue
            if enough(read):
                return
            example = read_example(engine, text, rows, num_read)
            read += len(text.tokens)
            done += 1
            on_text(read, done)
            yield text.index, example

    _write_all(folder, found())


def write_examples(found: Iterable[tuple[int, Example]], folder: Path) -> None:
    """Write shards of texts whose states are known.

    Args:
        found: the texts with their indices. Indices that are in a shard already are skipped.
        folder: the folder of the shards.

    Raises:
        OSError: the disk is full.
    """
    have = _have(folder)
    _write_all(folder, (one for one in found if one[0] not in have))


def shard_paths(folder: Path) -> list[Path]:
    """The shards in a folder, always in the same order."""
    return [Path(path) for path in files_in(folder, ".npz")]


def examples(path: Path) -> Iterator[tuple[int, Example]]:
    """The texts in a shard, each with its index."""
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


def _have(folder: Path) -> set[int]:
    """The indices of the texts in the shards of a folder."""
    return {index for path in shard_paths(folder) for index in _indices(path)}


def _write_all(folder: Path, found: Iterable[tuple[int, Example]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    held: list[tuple[int, Example]] = []
    for one in found:
        held.append(one)
        if sum(len(example.tokens) for _, example in held) >= _SHARD:
            _write(folder, held)
            held = []
    if held:
        _write(folder, held)


def _write(folder: Path, held: Sequence[tuple[int, Example]]) -> None:
    path = folder / f"{held[0][0]:08}.npz"
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(example, name) for _, example in held]) for name in _COLUMNS
    }
    with replacing(path, durable=True) as temporary, open(temporary, "wb") as file:
        np.savez(
            file,
            indices=np.array([index for index, _ in held]),
            starts=np.array([example.start for _, example in held]),
            sizes=np.array([len(example.tokens) for _, example in held]),
            **columns,
        )
