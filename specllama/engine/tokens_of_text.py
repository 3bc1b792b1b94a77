"""Tokenizes users' texts, after checks that llama.cpp can tokenize them in a reasonable time."""

from __future__ import annotations

import re
from typing import Any

from .model import Model
from .writable import require_writable

_MOST_EQUAL = 8192  # the most characters of one such run (see `_SLOW`); they take some seconds
_SLOW = {
    "deepseek-llm": (re.compile(rf"\s{{{_MOST_EQUAL + 1},}}"), "spaces"),
    "superbpe": (re.compile(rf"[0-9]{{{_MOST_EQUAL + 1},}}"), "digits"),
}
"""By pre-tokenizer: the runs of characters for which llama.cpp's time grows with the square of their length."""


def tokens_of(model: Model, text: Any, add_bos: bool, special: bool) -> list[int]:
    """The tokens of a text, however long its words are.

    Args:
        model: the model with the vocabulary. It must stay open during the call.
        text: the text, in UTF-8.
        add_bos: put BOS before the text, if the model wants it.
        special: read the names of special tokens in the text as these tokens, and not as text.

    Raises:
        TypeError: the text is not bytes.
        ValueError: the vocabulary has no tokens for the text, or llama.cpp would run out of stack or of time.
    """
    if not isinstance(text, bytes):
        raise TypeError(f"the text is {type(text).__name__}, and must be bytes: encode it, as in text.encode()")
    _require_quick(model, text)
    require_writable(model, text, special)
    return model.tokenizer.tokens(text, bool(add_bos), bool(special))


def _require_quick(model: Model, text: bytes) -> None:
    if len(text) <= _MOST_EQUAL:
        return
    slow = _SLOW.get(model.settings.metadata.get("tokenizer.ggml.pre", ""))
    found = slow and slow[0].search(text.decode("utf-8", "replace"))
    if slow and found:
        raise ValueError(
            f"the text has {len(found[0])} {slow[1]} in a row: for this model's tokenizer llama.cpp takes a time that "
            f"grows with the square of that, so at most {_MOST_EQUAL} are taken: shorten the text"
        )
