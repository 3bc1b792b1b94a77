"""Whether a draft model speaks the target's tokens."""

from __future__ import annotations

import llama_cpp

from specllama import _core
from specllama.backend.libllama import API

_ROLES = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}


def require_same_vocabulary(target: int, draft: int) -> None:
    """Check that two vocabularies agree on token texts and on BOS and EOS.

    Rows beyond the shorter vocabulary are padding and do no harm.

    Args:
        target: its address.
        draft: the same.

    Raises:
        ValueError: names the first token that differs.
    """
    difference = _core.first_vocabulary_difference(API, target, draft)
    if difference is not None:
        of_target, of_draft = _show(difference.target_text), _show(difference.draft_text)
        raise _mismatch(f"token {difference.token} is {of_target} in the target and {of_draft} in the draft")
    for name, role in _ROLES.items():
        first, second = int(role(target)), int(role(draft))
        if first != second:
            raise _mismatch(f"{name.upper()} is token {first} in the target and {second} in the draft")


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", errors="replace"))


def _mismatch(what: str) -> ValueError:
    return ValueError(
        f"the draft has another vocabulary than the target: {what}. "
        "Use a smaller model of the target's own family as draft_model, or draft_model=None"
    )
