"""The head that a model has learned from its use (`specllama learn`): its file, and what is said of it beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from specllama.backend.cache import read_json, write_json
from specllama.models import HYDRA

from .examples.file import num_rows_of
from .examples.store import KeptFile, kept_files, learn_dir

FIRST = 20_000
"""The fewest tokens of answers from which a first head is learned."""
NEXT = 2_000
"""The fewest new tokens from which a head goes on learning."""
_ABOUT, _WEIGHTS = "head.json", "head.pt"
_VERSION = 1
_LARGEST_FILE = 1 << 24  # bytes that are read of what a head has learned


@dataclasses.dataclass(frozen=True)
class Learned:
    """The head that a model has learned from its use.

    Attributes:
        path: the head's file, which is a ``draft_model`` of the model.
        greedy: how often each drafted token is right at temperature 0 if those before it are, on conversations that the
            head has not learned from.
        num_tokens: how many tokens of answers it has learned from.
        at: when it learned last, in seconds since 1970.
        texts: the names (`KeptName.text`) of the texts that it has learned from, or was measured on.
    """

    path: Path
    greedy: tuple[float, ...]
    num_tokens: int
    at: float
    texts: frozenset[str] = dataclasses.field(repr=False)

    def write(self) -> None:
        """Keep this beside the head.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        about = {**dataclasses.asdict(self), "path": self.path.name, "texts": sorted(self.texts), "version": _VERSION}
        write_json(self.path.parent / _ABOUT, about)

    def shown(self) -> dict[str, Any]:
        """What others may know of it, ready for JSON."""
        return {"greedy": list(self.greedy), "num_tokens": self.num_tokens, "at": self.at}


def learned_path(weights: str) -> Path:
    """The file of the head that a model learns from its use.

    Args:
        weights: the `Digest` of the model's weights.
    """
    return learn_dir(weights) / f"{HYDRA}-learned.gguf"


def learned_weights(weights: str) -> Path:
    """The file of all numbers of that head, from which it goes on learning.

    Args:
        weights: the `Digest` of the model's weights.
    """
    return learn_dir(weights) / _WEIGHTS


def learned_head(weights: str) -> Learned | None:
    """The head that was learned for a model; None if there is none.

    Args:
        weights: the `Digest` of the model's weights.
    """
    folder = learn_dir(weights)
    try:
        found = read_json(folder / _ABOUT, _LARGEST_FILE)
        known = Learned(
            folder / str(found["path"]),
            tuple(float(one) for one in found["greedy"]),
            int(found["num_tokens"]),
            float(found["at"]),
            frozenset(map(str, found["texts"])),
        )
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return known if found.get("version") == _VERSION and known.path.is_file() else None


def forget_head(weights: str) -> None:
    """Delete the head that was learned for a model.

    Args:
        weights: the `Digest` of the model's weights.

    Raises:
        OSError: a file cannot be deleted.
    """
    for path in (learn_dir(weights) / _ABOUT, learned_weights(weights), learned_path(weights)):
        path.unlink(missing_ok=True)


def num_kept(files: Iterable[KeptFile]) -> int:
    """How many tokens the answers in these files have."""
    return sum(num_rows_of(one.path) for one in files)


@dataclasses.dataclass(frozen=True)
class FreshTexts:
    """What was kept of a model since its head learned last.

    Attributes:
        files: the texts.
        num_tokens: how many tokens of them can be learned: those of conversations that are not held out.
        least: how many are needed.
        has_both: whether some conversations can be learned, and others are held out, of all that is kept.
    """

    files: list[KeptFile]
    num_tokens: int
    least: int
    has_both: bool

    @property
    def are_enough(self) -> bool:
        """Whether a head can learn."""
        return self.num_tokens >= self.least and self.has_both


def fresh_texts(weights: str, before: Learned | None) -> FreshTexts:
    """What was kept of a model since a head learned last.

    Args:
        weights: the `Digest` of the model's weights.
        before: the head that has learned; None if there is none.
    """
    files = kept_files(learn_dir(weights))
    new = [one for one in files if before is None or one.name.text not in before.texts]
    count = num_kept(one for one in new if not one.name.is_held_out)
    has_both = len({one.name.is_held_out for one in files}) > 1
    return FreshTexts(new, count, FIRST if before is None else NEXT, has_both)
