"""A head in its own file that drafts several tokens in one decode: DFlash, DFlash2, DSpark."""

from __future__ import annotations

from typing import Any

from specllama.engine.model import Model
from specllama.models.block_head_file import BlockHeadFile, read_block_head

from .decoding import DecodingDraft
from .head import HeadInFile

_MOST_AT_ONCE = 512
"""The most tokens in a batch. llama.cpp reserves memory for the results of each token, all its logits included."""


class BlockHeadDraft(DecodingDraft):
    """A head that reads the text's last token followed by masks, and predicts a token for each mask."""

    drafter = "block_head"
    name = "head"


class BlockHeadInFile(HeadInFile):
    """The kind of draft that is a block head in a file."""

    drafter = BlockHeadDraft.drafter
    draft = BlockHeadDraft

    @staticmethod
    def read(path: str) -> BlockHeadFile | None:
        """See the base class."""
        return read_block_head(path)

    def settings(self, target: Model) -> dict[str, Any]:
        """See the base class. The batch must have room for a block, and the context for a block and one token."""
        assert isinstance(self._file, BlockHeadFile)
        size = self._file.block.size
        least = {"n_ctx": size + 1, "n_batch": size}
        for name, count in least.items():
            given = self._own.get(name, count)
            if given < count:
                raise ValueError(
                    f"{name}={given} in draft_kwargs is too small: the head {self._file.path} reads blocks of {size} "
                    f"tokens, and needs at least {count}"
                )
        settings = super().settings(target)
        usual = {"n_ctx": settings["n_ctx"], "n_batch": min(settings["n_batch"], _MOST_AT_ONCE)}
        return {**settings, **{name: max(usual[name], count) for name, count in least.items()}, **self._own}
