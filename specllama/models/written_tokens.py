"""What the tokens of a file write, so that those of different tokenizers can be compared. Nothing is loaded."""

from __future__ import annotations

import re

import numpy as np

from .gguf_values import read_without_texts

_BYTE_LEVEL = b"gpt2"
_OF_TEXT = (1, 4, 6)  # llama.cpp's types: normal, of the user, a byte
_BETWEEN = "\u2028"  # no token has it
_BYTE = re.compile("<0x([0-9A-F]{2})>")


def _character_of_bytes() -> dict[int, int]:
    """What stands for each byte where a tokenizer merges bytes (GPT-2's ``bytes_to_unicode``), the other way around."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = (byte for byte in range(256) if byte not in printed)
    return {**{byte: byte for byte in printed}, **{256 + i: byte for i, byte in enumerate(others)}}


_BYTES = _character_of_bytes()


def written_tokens(path: str) -> frozenset[str]:
    """The texts that tokens of a file write, each byte as the character of its number.

    Special tokens and padding write none. A hundred thousand of them take about a tenth of a second.

    Raises:
        ValueError: a damaged file, or one without tokens.
        OSError: it cannot be read.
    """
    values, tokens = read_without_texts(path)
    if tokens is None:
        raise ValueError(f"{path} has no tokens")
    texts, kinds = tokens.read(), values.get("tokenizer.ggml.token_type")
    if isinstance(kinds, np.ndarray) and len(kinds) == len(texts):
        texts = [text for text, is_text in zip(texts, np.isin(kinds, _OF_TEXT).tolist(), strict=True) if is_text]
    joined = _BETWEEN.join(text.decode("utf-8", "replace") for text in texts)
    if values.get("tokenizer.ggml.model") == _BYTE_LEVEL:
        return frozenset(joined.translate(_BYTES).split(_BETWEEN)) - {""}
    written = joined.replace("▁", " ").encode().decode("latin-1").split(_BETWEEN.encode().decode("latin-1"))
    return frozenset(
        chr(int(found[1], 16)) if text[:3] == "<0x" and (found := _BYTE.fullmatch(text)) else text for text in written
    ) - {""}
