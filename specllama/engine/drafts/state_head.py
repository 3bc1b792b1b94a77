"""Heads that read only the target's final hidden state: Medusa, Hydra, blockwise. llama.cpp has no graph for them."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.hidden import FINAL, Hidden, shown_layers
from specllama.engine.learned import learned_path
from specllama.engine.model import Model
from specllama.engine.states import require_computed
from specllama.models.gguf_values import StoredTensor, parts_of, read_whole_header
from specllama.models.heads import read_head
from specllama.models.state_head_file import StateHeadFile, mapped

from .draft import DraftKind, DrawingDraft, Loader, Sequences
from .draft_options import TEXT
from .head import HeadInFile

_DIMENSIONS = 2
_EMBEDDINGS = "token_embd.weight"


class StateHeadDraft(DrawingDraft):
    """A Medusa, Hydra or blockwise head. Where its file is replaced, the next generation drafts with the new head.

    Args:
        given: the user's ``draft_model``.
        target: the model that it drafts for.
        path: the head's file. There may be none yet; then only the text is looked up.
        head: the head in this file; None if it is to be read before the first generation.
        corpus: tokens [n] to look up besides the text.
    """

    def __init__(
        self, given: str, target: Model, path: str, head: _core.StateHead | None, corpus: npt.NDArray[np.int32]
    ) -> None:
        super().__init__(given, target.why_no_rollback, corpus)
        self._target = target.settings.path
        self._path = path
        self._lock = threading.Lock()
        self._seen = None if head is None else _identity(path)
        n_embd = int(llama_cpp.llama_model_n_embd(target.address))
        self._head = _core.HeadInUse(n_embd, target.n_vocab, head)  # several texts share it

    @property
    def label(self) -> str:
        """The name of the head's file."""
        return os.path.basename(self._path)

    @property
    def timed(self) -> Mapping[str, Model | None]:
        """See the base class."""
        return {"head": None}

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.state_head(self._head)

    def refresh(self) -> None:
        """See the base class. A new file that cannot be used leaves the old head in its place."""
        found = _identity(self._path)
        if found in (None, self._seen) or not self._lock.acquire(blocking=False):  # another text reads the new file
            return
        try:
            self._seen = found
            file = read_head(self._path)
            if isinstance(file, StateHeadFile):
                file.require_vocabulary(self._target)
                self._head.exchange(native_head(file, self._target))
        except (OSError, ValueError):
            return
        finally:
            self._lock.release()


class StateHeadInFile(HeadInFile[StateHeadFile]):
    """The kind of draft that is a Medusa, Hydra or blockwise head in a file."""

    form = StateHeadFile
    takes = TEXT

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return shown_layers([FINAL])

    def open(self, target: Model, loader: Loader) -> StateHeadDraft:
        """See the base class. The whole file is checked before anything is generated."""
        self.require_fit(target)
        self.file.require_vocabulary(target.settings.path)
        require_computed(target)
        head = native_head(self.file, target.settings.path)
        return StateHeadDraft(self.file.path, target, self.file.path, head, self.corpus(target, loader))


class LearnedHead(DraftKind):
    """The kind of draft that looks up the text, and has the head that learns from use as soon as there is one."""

    takes = TEXT

    def hidden_states(self, target: str) -> Hidden:
        """See the base class."""
        return shown_layers([FINAL])

    def open(self, target: Model, loader: Loader) -> StateHeadDraft:
        """See the base class."""
        require_computed(target)
        weights = target.settings.weights
        assert weights is not None  # `Learning.begin` has refused such a target
        path = learned_path(weights.digest())
        return StateHeadDraft(self.options.draft_model, target, str(path), None, self.corpus(target, loader))


def _identity(path: str) -> tuple[int, ...] | None:
    """What changes when a file is replaced; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def native_head(file: StateHeadFile, target: str) -> _core.StateHead:
    """Read the weights of a head.

    Args:
        file: the head.
        target: the path of the target. A Hydra head without token embeddings uses the target's.

    Raises:
        ValueError: a tensor is missing or has a type that is not supported, or the shapes do not fit together.
    """
    places = range(file.num_places)

    def linear(name: str) -> _core.Linear:
        tensor = file.tensor(f"{name}.weight")
        rows, columns, data = _matrix(file.path, f"{name}.weight", tensor)
        bias = file.floats(f"{name}.bias") if f"{name}.bias" in file.tensors else None
        return _core.Linear(_core.Matrix(tensor.kind, rows, columns, data), bias)

    def layer(name: str) -> tuple[_core.Linear, _core.Linear | None]:
        has_straight = f"{name}.straight.weight" in file.tensors
        return linear(f"{name}.linear"), linear(f"{name}.straight") if has_straight else None

    shared = "output.weight" in file.tensors
    try:
        return _core.StateHead(
            n_embd=file.hidden_size,
            n_vocab=file.n_vocab,
            places=[[layer(f"place.{k}.{i}") for i in range(file.num_layers)] for k in places],  # type: ignore[misc]
            hidden=[linear("hidden.0"), linear("hidden.1")] if file.kind == "blockwise" else [],
            outputs=[linear("output")] if shared else [linear(f"place.{k}.output") for k in places],
            tokens=file.tokens(),
            embeddings=_embeddings(file, target) if file.kind == "hydra" else None,
        )
    except ValueError as error:
        raise ValueError(f"the head {os.path.basename(file.path)} cannot be used: {error}") from None


def _embeddings(file: StateHeadFile, target: str) -> _core.Rows:
    """The head's token embeddings, or the target's if the head has none."""
    if _EMBEDDINGS in file.tensors:
        return _rows(file.path, file.tensors[_EMBEDDINGS])
    for part in parts_of(target):
        tensors = read_whole_header(part)[1]
        if _EMBEDDINGS in tensors:
            return _rows(part, tensors[_EMBEDDINGS])
    raise ValueError("neither it nor the target has token embeddings")


def _rows(path: str, tensor: StoredTensor) -> _core.Rows:
    rows, columns, data = _matrix(path, _EMBEDDINGS, tensor)
    return _core.Rows(tensor.kind, rows, columns, data)


def _matrix(path: str, name: str, tensor: StoredTensor) -> tuple[int, int, npt.NDArray[np.uint8]]:
    """The number of rows, the number of columns, and the data of a matrix."""
    if len(tensor.shape) != _DIMENSIONS:
        raise ValueError(f"{name} must be a matrix, and has {len(tensor.shape)} dimensions")
    columns, rows = tensor.shape
    return rows, columns, mapped(path, tensor)
