"""Files of EAGLE-3 heads (Li et al. 2025, arXiv 2503.01840)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .gguf_values import StoredTensor, UnusableFileError, architecture_of, tokens_in
from .head_file import HeadFile, layers_in, number_in, require_turns, require_types
from .head_kinds import EAGLE3

_LAYERS = range(3, 4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eagle3File(HeadFile):
    """The description of an EAGLE-3 head in a file.

    Attributes:
        embedding_length: how many numbers the head's own state has.
    """

    embedding_length: int

    @classmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """See the base class."""
        return architecture_of(values) == EAGLE3

    @classmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Eagle3File:
        """See the base class."""
        require_turns(path, values, EAGLE3)
        require_types(path, tensors)
        return cls(
            path=path,
            layers=layers_in(path, values, f"{EAGLE3}.target_layers", _LAYERS),
            hidden_size=number_in(path, values, f"{EAGLE3}.target_hidden_size"),
            embedding_length=number_in(path, values, f"{EAGLE3}.embedding_length"),
            n_vocab=len(tokens_in(values)),
            tensors=tensors,
        )

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """See the base class."""
        super().require_fit(n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab)
        if self.embedding_length != n_embd and not {"token_embd.weight", "output.weight"} <= self.tensors.keys():
            raise UnusableFileError(
                f"the head {self.name} is for another target: it uses the target's token embeddings or output matrix, "
                f"which are for states of {n_embd} numbers, and its own states have {self.embedding_length}"
            )
        self.require_tokens(n_vocab, has_matrix="output.weight" in self.tensors)
