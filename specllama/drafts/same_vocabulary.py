"""Whether a draft model speaks the target's tokens."""

from __future__ import annotations

import llama_cpp
from llama_cpp import _internals

from specllama.backend.libllama import first_vocabulary_difference
from specllama.models.loading import explained


def require_same_vocabulary(target: _internals.LlamaModel, draft: _internals.LlamaModel) -> None:
    """Check that two models agree on token texts and on BOS and EOS.

    Rows beyond the shorter vocabulary are padding and do no harm.

    Raises:
        ValueError: names the first token that differs.
    """
    difference = first_vocabulary_difference(target, draft)
    if difference is not None:
        of_target, of_draft = _show(difference.target_text), _show(difference.draft_text)
        raise _mismatch(f"token {difference.token} is {of_target} in the target and {of_draft} in the draft")
    for name in ("bos", "eos"):
        of_target, of_draft = getattr(target, f"token_{name}")(), getattr(draft, f"token_{name}")()
        if of_target != of_draft:
            raise _mismatch(f"{name.upper()} is token {of_target} in the target and {of_draft} in the draft")


def require_same_vocabulary_file(target: _internals.LlamaModel, draft_path: str) -> None:
    """The same for a draft that is still a file: reads its vocabulary, and none of its weights."""
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    with explained(draft_path):
        draft = _internals.LlamaModel(path_model=draft_path, params=params, verbose=False)
    try:
        require_same_vocabulary(target, draft)
    finally:
        draft.close()  # type: ignore[no-untyped-call]


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", errors="replace"))


def _mismatch(what: str) -> ValueError:
    return ValueError(
        f"the draft has another vocabulary than the target: {what}. "
        "Use a smaller model of the target's own family as draft_model, or draft_model=None"
    )
