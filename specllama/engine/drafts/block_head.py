"""A head in its own file that drafts several tokens in one decode: DFlash, DFlash2, DSpark."""

from __future__ import annotations

from typing import Any

from specllama import _core
from specllama.engine.hidden import Hidden
from specllama.engine.model import Model
from specllama.models.block_head_file import BlockHeadFile

from .decoding import DecodingDraft
from .draft import Sequences
from .head import DecodingHead

_CANDIDATES = ("dflash2_lattice",)
_MOST_AT_ONCE = 512
"""The most tokens in a batch of the head. llama.cpp reserves memory for the results of each token, logits included."""


class BlockHeadDraft(DecodingDraft):
    """A head that reads the text's last token followed by masks, and predicts a token for each mask."""

    name = "head"

    def drawer(self, sequences: Sequences | None) -> _core.Drafter:
        """See the base class."""
        return _core.Drafter.block_head(self.sequence_of(sequences), self.window)


class BlockHeadInFile(DecodingHead[BlockHeadFile]):
    """The kind of draft that is a block head in a file."""

    form = BlockHeadFile
    draft = BlockHeadDraft

    def hidden(self, target: Model) -> Hidden:
        """See the base class."""
        block = self.file.block
        return Hidden(
            _CANDIDATES if block.num_candidates else (),
            len(self.file.layers) * self.file.hidden_size,
            target=target.context,
            noise_block=_core.NoiseBlock(block.size, block.mask, block.first, block.is_whole, block.num_candidates),
            is_causal=block.is_causal,
        )

    def settings(self, target: Model) -> dict[str, Any]:
        """See the base class. The batch must have room for a block, and the context for a block and one token."""
        size = self.file.block.size
        least = {"n_ctx": size + 1, "n_batch": size}
        for name, count in least.items():
            given = self._draft_kwargs.get(name, count)
            if given < count:
                raise ValueError(
                    f"{name}={given} in draft_kwargs is too small: the head {self.file.path} reads blocks of {size} "
                    f"tokens, and needs at least {count}"
                )
        settings = super().settings(target)
        usual = {"n_ctx": settings["n_ctx"], "n_batch": min(settings["n_batch"], _MOST_AT_ONCE)}
        return {**settings, **{name: max(usual[name], count) for name, count in least.items()}, **self._draft_kwargs}
