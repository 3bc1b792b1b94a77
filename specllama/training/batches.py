"""Makes batches for training: windows of texts, cut and padded to one length."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from .shards import Example, examples, shard_paths
from .target import Target
from .text import held_out

_WINDOW = 512  # places: most texts fit into one window. The first places of each further window see little of the text
# The places in a batch are a multiple of this. With ever new shapes PyTorch's memory has ever new gaps: a head of
# SmolLM2-135M took 1.9 GB after 60 batches and 4.5 GB after 900. With few shapes it takes 1.6 GB.
_STEP = 32
_MEASURED = 30_000  # held-out places that are measured: enough for shares to half a percent
_BEFORE = 64  # places before the first learned one, which the head's attention can see


@dataclasses.dataclass(frozen=True)
class Batch:
    """Windows of several texts. A place is a position in a window.

    At place p the head reads token p + 1 and the target's states of token p, and predicts token p + 2. The head's rows
    are the rows of its output matrix, one for each token that it can draft.

    Attributes:
        tokens: the tokens that are read [batch, places].
        embedded: the embeddings of the tokens that are read [batch, places, n_embd].
        states: the target's states of each token, joined [batch, places, num_read * n_embd].
        likely: the rows of the most likely next tokens [batch, places, k].
        shares: the target's probabilities of these tokens [batch, places, k].
        best: the row of the target's most likely token, or -1 if no row has this token [batch, places].
        follows: the row of the token that follows in the text, or -1 if no row has this token [batch, places].
        learned: whether the place is learned [batch, places].
    """

    tokens: torch.Tensor
    embedded: torch.Tensor
    states: torch.Tensor
    likely: torch.Tensor
    shares: torch.Tensor
    best: torch.Tensor
    follows: torch.Tensor
    learned: torch.Tensor


class Batches:
    """Makes batches from the shards in a folder.

    Args:
        target: the target, which has the embeddings.
        rows: the tokens that the head can draft, in ascending order.
        folder: the folder of the shards.
        device: PyTorch's device for the batches.
    """

    def __init__(self, target: Target, rows: npt.NDArray[np.int64], folder: Path, device: str) -> None:
        self._paths = shard_paths(folder)
        self._device = device
        self._rows = np.full(target.n_vocab, -1, np.int64)
        self._rows[rows] = np.arange(len(rows))
        used = np.zeros(target.n_vocab, bool)
        for path in self._paths:
            with np.load(path) as file:
                used[file["tokens"]] = True
        tokens = np.flatnonzero(used)
        self._place = np.zeros(target.n_vocab, np.int64)
        self._place[tokens] = np.arange(len(tokens))
        self._embeddings = torch.from_numpy(target.embeddings(tokens).astype(np.float16))

    def sizes(self) -> torch.Tensor:
        """The root mean square of each number of the states, over the first shard [num_read * n_embd]."""
        with np.load(self._paths[0]) as file:
            states = file["states"]
        if not states.size:  # the draft reads no states
            return torch.zeros(0)
        some = states[:: max(1, len(states) // 4096)].astype(np.float32).reshape(-1, states.shape[1] * states.shape[2])
        return torch.from_numpy(np.sqrt((some**2).mean(0)) + 1e-3)

    def size_of_token(self) -> float:
        """The root mean square of all numbers in the tokens' embeddings."""
        return float(self._embeddings.float().square().mean().sqrt()) + 1e-6

    def num_places(self) -> int:
        """The number of places in one pass over the text."""
        return sum(map(sum, self._sizes()))

    def count(self, cells: int) -> int:
        """The number of batches in one pass over the text. A batch has at most `cells` places, or one window."""
        return sum(1 for sizes in self._sizes() for _ in _groups(sizes, cells))

    def learned(self, cells: int, epoch: int) -> Iterator[Batch]:
        """The batches of one pass, in a random order that depends on `epoch` alone."""
        rng = np.random.default_rng(epoch)
        for number in rng.permutation(len(self._paths)):
            windows = [w for i, e in examples(self._paths[number]) if not held_out(i) for w in _windows(e)]
            order = rng.permutation(len(windows))
            groups = list(_groups([_size(windows[i]) for i in order], cells))
            for which in rng.permutation(len(groups)):
                yield self.batch([windows[order[i]] for i in groups[which]])

    def held_out(self, cells: int = 4096) -> Iterator[Batch]:
        """Batches of the texts that are never learned, as many as measuring needs."""
        places = 0
        for path in self._paths:
            if places >= _MEASURED:
                return
            windows = [w for i, e in examples(path) if held_out(i) for w in _windows(e)]
            places += sum(map(_size, windows))
            for part in _groups([_size(window) for window in windows], cells):
                yield self.batch([windows[i] for i in part])

    def batch(self, windows: Sequence[Example]) -> Batch:
        """Put windows side by side into a batch."""
        places = max(_padded(_size(window)) for window in windows)
        width, k = windows[0].states[0].size, windows[0].likely.shape[1]
        tokens = np.zeros((len(windows), places), np.int64)
        states = np.zeros((len(windows), places, width), np.float32)
        likely = np.zeros((len(windows), places, k), np.int64)
        shares = np.zeros((len(windows), places, k), np.float32)
        best = np.full((len(windows), places), -1, np.int64)
        follows = np.full((len(windows), places), -1, np.int64)
        learned = np.zeros((len(windows), places), bool)
        for i, window in enumerate(windows):
            n = _size(window)
            tokens[i, :n] = window.tokens[1:]
            states[i, :n] = window.states[:-1].reshape(n, -1)
            likely[i, :n], shares[i, :n], best[i, :n] = window.likely[1:], window.shares[1:], window.best[1:]
            follows[i, : n - 1] = self._rows[window.tokens[2:]]
            learned[i, max(0, window.start - 2) : n] = True
        embedded = self._embeddings[torch.from_numpy(self._place[tokens])].float()
        read, *found = map(torch.from_numpy, (tokens, states, likely, shares, best, follows, learned))
        found = [read, embedded, *found]
        return Batch(*(tensor.to(self._device) for tensor in found))

    def _sizes(self) -> Iterator[list[int]]:
        """The sizes of the learned windows of each shard."""
        for path in self._paths:
            with np.load(path) as file:
                found = zip(file["indices"], file["starts"], file["sizes"], strict=True)
                yield [s for i, a, n in found if not held_out(int(i)) for s in _cut_sizes(int(a), int(n))]


def _size(window: Example) -> int:
    return len(window.tokens) - 1


def _padded(size: int) -> int:
    return -(-size // _STEP) * _STEP


def _cuts(start: int, count: int) -> Iterable[tuple[int, int]]:
    """The beginnings and ends of a text's windows, as token indices."""
    begin = max(0, start - 2 - _BEFORE)
    return ((at, min(at + _WINDOW + 1, count)) for at in range(begin, count - 2, _WINDOW))


def _cut_sizes(start: int, count: int) -> list[int]:
    return [end - begin - 1 for begin, end in _cuts(start, count)]


def _windows(example: Example) -> list[Example]:
    return [
        Example(
            start=max(0, example.start - begin),
            **{name: getattr(example, name)[begin:end] for name in ("tokens", "states", "likely", "shares", "best")},
        )
        for begin, end in _cuts(example.start, len(example.tokens))
    ]


def _groups(sizes: Sequence[int], cells: int) -> Iterator[list[int]]:
    """Groups of windows of similar sizes, from the smallest. With padding, a group has at most `cells` places."""
    sizes = [_padded(size) for size in sizes]
    group: list[int] = []
    for index in sorted(range(len(sizes)), key=sizes.__getitem__):
        if group and sizes[index] * (len(group) + 1) > cells:
            yield group
            group = []
        group.append(index)
    if group:
        yield group
