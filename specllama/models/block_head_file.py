"""Files of heads that draft several tokens in one decode: DFlash, DFlash2, DSpark.

In DFlash2 and DSpark each drafted token depends on the one before.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .gguf_values import StoredTensor, UnusableFileError, architecture_of, tokens_in
from .head_file import HeadFile, layers_in, number_in, require_turns, require_types

_ARCHITECTURE = "dflash"
_USUAL_SIZE = 16
_SIZES = range(2, 513)
_LAYERS = range(1, 513)  # LLAMA_MAX_LAYERS


@dataclasses.dataclass(frozen=True)
class Block:
    """The tokens that a block head decodes at once: the last token of the text, and then masks.

    Attributes:
        size: the most tokens in a block.
        mask: the token that stands for a token that is not known yet.
        first: the index in the block of the first place that predicts a token of the draft.
        is_causal: whether a place sees only the places before it.
        is_whole: whether llama.cpp's graph makes each token depend on the one before. The graph then requires that all
            blocks of a batch have the same size.
        num_candidates: how many tokens each place chooses among, given the token before; 0 for all tokens.
    """

    size: int
    mask: int
    first: int
    is_causal: bool
    is_whole: bool
    num_candidates: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class BlockHeadFile(HeadFile):
    """The description of a block head in a file.

    Attributes:
        block: the tokens that the head decodes at once.
    """

    block: Block

    @classmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """See the base class."""
        return architecture_of(values) == _ARCHITECTURE

    @classmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> BlockHeadFile:
        """See the base class."""
        if np.any(values.get(f"{_ARCHITECTURE}.hyper_connection.count", 0)):
            raise UnusableFileError(
                f"{path} is a head of DeepSeek-V4's own kind of DSpark, which specllama cannot use: give a smaller "
                "model, or draft_model='lookup'"
            )
        require_turns(path, values, _ARCHITECTURE, same_values=True)
        require_types(path, tensors)
        _require_axes(path, values)
        return cls(
            path=path,
            layers=layers_in(path, values, f"{_ARCHITECTURE}.target_layers", _LAYERS),
            hidden_size=number_in(path, values, f"{_ARCHITECTURE}.embedding_length"),
            n_vocab=len(tokens_in(values)),
            block=_block_in(path, values, tensors),
            tensors=tensors,
        )

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """See the base class."""
        super().require_fit(n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab)
        own_matrix = {"output.weight", "token_embd.weight"} & self.tensors.keys()
        self.require_tokens(n_vocab, has_matrix=bool(own_matrix))
        most = self.n_vocab if "token_embd.weight" in self.tensors else min(self.n_vocab, n_vocab)
        if not 0 <= self.block.mask < most:
            raise UnusableFileError(
                f"the head {self.name} has the mask token {self.block.mask} "
                f"(tokenizer.ggml.mask_token_id), and there are embeddings of the tokens 0 to {most - 1} only"
            )


def _require_axes(path: str, values: Mapping[str, Any]) -> None:
    """Check the axes of rotary positions: llama.cpp asserts that the first one, which is time, has some dimensions.

    Raises:
        UnusableFileError: the check fails.
    """
    sections = np.atleast_1d(values.get(f"{_ARCHITECTURE}.rope.dimension_sections", 0))
    if sections.dtype.kind not in "iu" or sections.min(initial=0) < 0 or (sections.any() and not sections[0]):
        raise UnusableFileError(
            f"{path} is a head whose rope.dimension_sections are {sections.tolist()!r:.60}: the first one, which "
            "is for time, must not be 0, as a text has no other axis"
        )


def _block_in(path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> Block:
    is_chained, chooses = "markov_w1.weight" in tensors, "selector_hidden.weight" in tensors
    if is_chained and chooses:
        raise UnusableFileError(f"{path} is a head that is damaged: it has the chains of both DSpark and DFlash2")
    sizes = values if is_chained or chooses else {f"{_ARCHITECTURE}.block_size": _USUAL_SIZE, **values}
    size = number_in(path, sizes, f"{_ARCHITECTURE}.block_size")
    if size not in _SIZES:
        raise UnusableFileError(
            f"{path} is a head whose {_ARCHITECTURE}.block_size is {size}: it must be from {_SIZES[0]} to {_SIZES[-1]}"
        )
    candidates = number_in(path, values, f"{_ARCHITECTURE}.selector_top_k") if chooses else 0
    num_tokens = len(tokens_in(values))
    if chooses and not 0 < candidates <= num_tokens:
        raise UnusableFileError(
            f"{path} is a head whose {_ARCHITECTURE}.selector_top_k is {candidates}: it must be from 1 to "
            f"{num_tokens}, the tokens that there are"
        )
    begins_at_once = is_chained and _said(path, values, "sample_from_anchor", default=True)
    return Block(
        size=size,
        mask=number_in(path, values, "tokenizer.ggml.mask_token_id"),
        first=0 if begins_at_once else 1,
        is_causal=_said(path, values, "attention.causal", default=False),
        is_whole=is_chained or chooses,
        num_candidates=candidates,
    )


def _said(path: str, values: Mapping[str, Any], name: str, *, default: bool) -> bool:
    found = values.get(f"{_ARCHITECTURE}.{name}", default)
    if not isinstance(found, bool):
        raise UnusableFileError(
            f"{path} is a head whose {_ARCHITECTURE}.{name} must be true or false, and is {found!r:.60}"
        )
    return found
