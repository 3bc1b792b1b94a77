"""Drafts with another tokenizer than the target's. Their tokens are compared with the target's by their texts alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import llama_cpp
import numpy as np

from specllama import _core
from specllama.backend.libllama import API
from specllama.models.shared_tokens import LEAST_COMMON


@dataclasses.dataclass(frozen=True)
class Foreign:
    """The relation of a target to a draft with another tokenizer.

    Attributes:
        translation: how the draft reads the target's text, and which tokens it drafts.
    """

    translation: _core.Translation

    @property
    def share(self) -> str:
        """How many of the target's text tokens the draft has, in percent."""
        return shown_share(self.translation.num_common, self.translation.num_of_text)


def translated(target: int, draft: int, roles: Sequence[tuple[int, int]]) -> Foreign:
    """Make the translation between two vocabularies of different tokenizers.

    Args:
        target: the address of the target's vocabulary.
        draft: the address of the draft's vocabulary.
        roles: pairs (target's token, draft's token) of special tokens with the same role, such as EOS; below 0: none.

    Raises:
        ValueError: too few of the target's tokens are in the draft's vocabulary.
    """
    of_draft: Any = draft
    adds = llama_cpp.llama_vocab_get_add_bos(of_draft)
    opening = int(llama_cpp.llama_vocab_bos(of_draft)) if adds else -1
    # The draft reads its BOS only at the beginning (`opening`): after a BOS in the middle, it ignores the text before.
    paired = [(ours, theirs) for ours, theirs in roles if ours >= 0 and theirs >= 0]
    found = _core.Translation(API, target, draft, paired, opening)
    if found.num_common < LEAST_COMMON * found.num_of_text or found.num_common == 0:
        raise ValueError(
            f"the draft has another vocabulary than the target: by their texts, {found.num_common:,} of the target's "
            f"{found.num_of_text:,} tokens are among the draft's {found.num_of_draft:,}, and {LEAST_COMMON:.0%} are "
            "needed. Use a smaller model of the target's own family as draft_model, or draft_model=None"
        )
    return Foreign(found)


def shown_share(part: int, whole: int) -> str:
    """A share in percent, rounded down, so that it is never 100 % if a token is missing."""
    return f"{np.floor(part / max(1, whole) * 10_000) / 100:g} %"
