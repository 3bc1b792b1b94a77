"""Finds texts that a vocabulary has no tokens for. llama.cpp aborts the process when it tokenizes such a text.

A SentencePiece vocabulary writes unknown characters as tokens of single bytes. Some such vocabularies lack these
tokens, and can only write texts of known characters. Vocabularies of other kinds have a token for unknown characters,
or leave such characters out.
"""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import llama_cpp

from .model import Model

_SPACE = "\u2581"  # stands for a space in SentencePiece vocabularies


@dataclasses.dataclass(frozen=True)
class _Known:
    """The characters and bytes that a vocabulary can write. Only for a vocabulary that lacks tokens for some bytes."""

    characters: frozenset[str]
    num_bytes: frozenset[int]
    parsed: tuple[str, ...]
    """The texts of user-defined tokens, the longest first. llama.cpp replaces them by tokens before anything else."""
    control: tuple[str, ...]
    """The texts of control tokens, the longest first. llama.cpp treats them alike, if special tokens are wanted."""
    begins_with_space: bool


def _known(model: Model) -> list[_Known]:
    """A list with the characters and bytes that the vocabulary can write; an empty list if it can write every text."""
    vocab = cast(Any, model.vocab)
    if llama_cpp.llama_vocab_type(vocab) != llama_cpp.LLAMA_VOCAB_TYPE_SPM:
        return []
    wanted = {b"<0x%02X>" % byte: byte for byte in range(256)}
    characters: set[str] = set()
    parsed: list[str] = []
    control: list[str] = []
    for token in range(model.n_vocab):
        raw = llama_cpp.llama_vocab_get_text(vocab, token) or b""
        wanted.pop(raw, None)
        if not wanted:
            return []
        text = raw.decode("utf-8", "replace")
        if len(text) == 1:
            characters.add(text)
        kind = llama_cpp.llama_vocab_get_attr(vocab, token)
        if text and kind & llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED:
            parsed.append(text)
        elif text and kind & llama_cpp.LLAMA_TOKEN_ATTR_CONTROL:
            control.append(text)
    begins = model.settings.metadata.get("tokenizer.ggml.add_space_prefix", "true") != "false"
    known = frozenset(range(256)).difference(wanted.values())
    return [_Known(frozenset(characters), known, _longest_first(parsed), _longest_first(control), begins)]


def _longest_first(texts: list[str]) -> tuple[str, ...]:
    return tuple(sorted(texts, key=len, reverse=True))


def unwritable(model: Model, text: bytes, special: bool) -> str:
    """A character of a text for which a model's vocabulary has no token; empty if there is none."""
    for known in model.once(_known):
        left = text.decode("utf-8", "surrogateescape")
        for parsed in (*(known.control if special else ()), *known.parsed):
            left = left.replace(parsed, "")
        if left and known.begins_with_space:
            left = f" {left}"
        for character in left:
            written = _SPACE if character == " " else character
            if written not in known.characters and not known.num_bytes.issuperset(_bytes(written)):
                return character
    return ""


def require_writable(model: Model, text: bytes, special: bool) -> None:
    """Raise ValueError if a model's vocabulary has no token for a character of the text."""
    character = unwritable(model, text, special)
    if character:
        raise ValueError(
            f"this model's vocabulary has no token for {character!r}, nor for its bytes: give a text of characters "
            "that it knows, or token ids"
        )


def _bytes(character: str) -> bytes:
    return character.encode("utf-8", "surrogateescape")
