"""What a Llama has kept for a head to learn from."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import specllama
from specllama.engine import Kept, KeptName, kept_files, read_kept
from specllama.engine.examples.file import write_kept


def kept_of(llm: specllama.Llama) -> list[Kept]:
    """What a Llama has kept, the oldest first, when all is written."""
    assert llm.learn_dir is not None
    assert llm.engine.account.examples is not None
    llm.engine.account.examples.flush()
    found = [read_kept(one.path) for one in kept_files(Path(llm.learn_dir))]
    return [kept for kept in found if kept is not None]


def write_some(folder: Path, count: int, *, first: int = 0, size: int = 40, width: int = 8) -> None:
    """Write texts that no model has said, each of a conversation of its own. Some are held out.

    Args:
        folder: the folder of a model's kept texts.
        count: how many.
        first: the number of the first one: texts of other numbers are other texts.
        size: how many tokens each has.
        width: how many numbers a state has.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(first, first + count):
        tokens = np.random.default_rng(number).integers(5, 60, size + 1).astype(np.int32)
        states, shares = np.zeros((size, width), np.float16), np.ones((size, 64), np.float16) / 64
        likely = np.tile(np.arange(64, dtype=np.int32), (size, 1))
        name = KeptName(f"{number:016x}", f"{number:016x}", f"{number:016x}", 1)
        write_kept(folder / str(name), Kept(tokens, 0, states, likely, shares))


def forget_oldest(folder: Path, most: int) -> None:
    """Delete the oldest texts until there are `most`, as a folder does that has reached its limit."""
    for one in kept_files(folder)[:-most]:
        Path(one.path).unlink()
