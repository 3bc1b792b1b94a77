"""Whether a draft model speaks the target's tokens."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import llama_cpp

from specllama import _core
from specllama.backend.libllama import API
from specllama.models.loading import explained, quiet
from specllama.models.opening_checks import override_array

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


def require_same_vocabulary_file(
    target: int, path: str, *, as_head: bool = False, overrides: Mapping[str, Any] | None = None
) -> None:
    """Check a draft's file before its weights are loaded.

    Args:
        target: the address of the target's vocabulary.
        path: the draft's file.
        as_head: it is a head.
        overrides: ``kv_overrides`` with which it will be loaded.

    Raises:
        ValueError: another vocabulary, or no model.
    """
    params = llama_cpp.llama_model_default_params()
    params.vocab_only = True
    array = override_array(overrides or {})
    params.kv_overrides = array
    with explained(path, as_head=as_head, overrides=overrides), contextlib.ExitStack() as stack:
        with quiet():
            model = llama_cpp.llama_model_load_from_file(path.encode("utf-8"), params)
        if not model:
            raise ValueError(f"Failed to load model from file: {path}")
        stack.callback(llama_cpp.llama_model_free, model)
        require_same_vocabulary(target, int(llama_cpp.llama_model_get_vocab(model) or 0))


def _show(text: bytes) -> str:
    return repr(text.decode("utf-8", errors="replace"))


def _mismatch(what: str) -> ValueError:
    return ValueError(
        f"the draft has another vocabulary than the target: {what}. "
        "Use a smaller model of the target's own family as draft_model, or draft_model=None"
    )
