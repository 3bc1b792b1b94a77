"""The text that each token of a file writes, for comparing different tokenizers. Only the header is read."""

from __future__ import annotations

import re

import numpy as np

from .gguf_values import read_without_texts, text_in

_BYTE_LEVEL = "gpt2"
_OF_TEXT = (1, 4, 6)  # llama.cpp's types of tokens: normal, defined by the user, byte
_BETWEEN = "\u2028"  # a separator: a character that is in no token
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _character_of_bytes() -> dict[int, int]:
    """The byte that each character in a byte-level token stands for: GPT-2's ``bytes_to_unicode``, inverted."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printed)
    return {**{byte: byte for byte in printed}, **{256 + i: byte for i, byte in enumerate(others)}}


_BYTES = _character_of_bytes()


def written_tokens(path: str, texts: list[bytes]) -> frozenset[str]:
    """The texts that the tokens of a file write. Each byte stands as the character with its number (Latin-1).

    Special tokens and padding write nothing and are left out. A vocabulary of 100,000 tokens takes about 0.1 seconds.

    Args:
        path: the file, whose metadata name the kind of tokenizer and the type of each token.
        texts: its tokens, as they are stored.

    Raises:
        UnusableFileError: the file is damaged.
        OSError: the file cannot be read.
    """
    values, _ = read_without_texts(path)
    kinds = values.get("tokenizer.ggml.token_type")
    if isinstance(kinds, np.ndarray) and len(kinds) == len(texts):
        texts = [text for text, is_text in zip(texts, np.isin(kinds, _OF_TEXT).tolist(), strict=True) if is_text]
    joined = _BETWEEN.encode().join(texts).decode("utf-8", "replace")
    if text_in(values, "tokenizer.ggml.model") == _BYTE_LEVEL:
        return frozenset(joined.translate(_BYTES).split(_BETWEEN)) - {""}
    written = joined.replace("▁", " ").encode().decode("latin-1").split(_BETWEEN.encode().decode("latin-1"))
    return frozenset(
        chr(int(found[1], 16)) if text[:3] == "<0x" and (found := _BYTE.fullmatch(text)) else text for text in written
    ) - {""}
