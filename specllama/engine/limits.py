"""The largest values of numeric arguments, and checks of a text's length before it is tokenized."""

from __future__ import annotations

from typing import Any

LARGEST_INT = 2**31 - 1  # the largest `int` of C
LARGEST_FLOAT = 3.4028234663852886e38  # the largest `float` of C
MOST_THREADS = 512  # ggml's GGML_MAX_N_THREADS
MOST_DRAFT_TOKENS = 512  # the most tokens in a draft, chosen by us: no longer draft is ever accepted as a whole

BYTES_OF_TOKEN = 64
"""An upper bound of the mean number of bytes of a token in a long text. Texts with more bytes are refused."""


_LARGER = ", or start with a larger context (-c)"


def require_room(num_bytes: int, n_ctx: int, name: str = "text", *, or_else: str = _LARGER) -> None:
    """Check that a text may fit into a context, before it is tokenized.

    Args:
        num_bytes: the size of the text.
        n_ctx: the size of the context in tokens.
        name: a name for the text, for the message.
        or_else: what helps besides shortening the text, for the message.

    Raises:
        ValueError: the text has more than ``n_ctx`` times `BYTES_OF_TOKEN` bytes.
    """
    if num_bytes > n_ctx * BYTES_OF_TOKEN:
        raise ValueError(
            f"{num_bytes} bytes of text exceed context window of {n_ctx} tokens, for which at most {BYTES_OF_TOKEN} "
            f"bytes each are taken: shorten the {name}{or_else}"
        )


def require_room_for_ids(count: int, n_ctx: int, *, or_else: str = _LARGER) -> None:
    """Check that a prompt of token ids fits into a context.

    Raises:
        ValueError: the prompt does not fit.
    """
    if count > n_ctx:
        raise ValueError(f"Requested tokens ({count}) exceed context window of {n_ctx}: shorten the prompt{or_else}")


def size_of(value: Any) -> int:
    """The number of bytes of all texts in a value, also in nested dicts and lists."""
    if isinstance(value, str):
        return len(value.encode("utf-8", errors="replace"))
    if isinstance(value, dict):
        return sum(size_of(key) + size_of(part) for key, part in value.items())
    return sum(map(size_of, value)) if isinstance(value, list) else 0
