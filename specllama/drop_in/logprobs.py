"""Log-probabilities of a completion's tokens, in the form of OpenAI's API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.brief import brief
from specllama.engine.engine import Engine
from specllama.engine.listener import Listener

from .text import Pieces

_HALF = "bytes:"  # OpenAI's prefix for the name of a token that is part of a character; the token's bytes follow


def prompt_logprobs(
    engine: Engine, tokens: list[int], num_top: int | None, listener: Listener
) -> list[_core.TokenLogprob | None]:
    """The log-probabilities of all prompt tokens. The prompt is decoded again, since the KV cache keeps no logits.

    Args:
        engine: the engine, whose ``slot`` must be free.
        tokens: the prompt.
        num_top: how many alternatives to give for each token; None for no alternatives.
        listener: is notified between chunks of the prompt.

    Returns:
        One entry for each token; None for the first, which no token precedes.
    """
    entries: list[_core.TokenLogprob | None] = [None] * bool(tokens)
    for position, logits in engine.score(tokens, listener):
        entries.append(_core.logprobs(logits, tokens[position + 1], num_top or 0))
    return entries


class LogprobLog:
    """Collects log-probabilities, and renders them in OpenAI's form.

    As in OpenAI's API, the label of a token is its text, that of a special token its name, and that of a part of a
    character its bytes.

    Args:
        pieces: gives the bytes of tokens.
        num_top: how many alternatives to give for each token.
        token_bytes: a dict to fill: for each label, the bytes that the token adds to a text.

    Raises:
        ValueError: `num_top` is negative.
    """

    def __init__(self, pieces: Pieces, num_top: int, token_bytes: dict[str, bytes] | None = None) -> None:
        if num_top < 0:
            raise ValueError(
                f"logprobs={brief(num_top)} must be 0 or more: how many alternatives to give for each token"
            )
        self._pieces = pieces
        self._num_top = num_top
        self._token_bytes = token_bytes
        self._known: dict[int, str] = {}  # the labels of tokens seen before
        self._texts: list[str] = []
        self._entries: list[_core.TokenLogprob | None] = []

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._texts)

    def add_prompt(self, tokens: Sequence[int], entries: Sequence[_core.TokenLogprob | None]) -> None:
        """Add the prompt's tokens, for ``echo``. The first of them has no log-probability, as in OpenAI's API."""
        for token, entry in zip(tokens, entries, strict=True):
            self._append(token, entry if self._entries else None)

    def add(self, token: int, logits: npt.NDArray[np.single]) -> None:
        """Add a generated token, with the logits [n_vocab] that it was sampled from."""
        self._append(token, _core.logprobs(logits, token, self._num_top))

    def logprob(self, index: int) -> float | None:
        """The log-probability of the token at an index; None if it has none."""
        entry = self._entries[index]
        return None if entry is None else entry.logprob

    def entries(self, first: int, end: int, offsets: list[int]) -> dict[str, Any]:
        """Tokens `first` to `end` - 1 in OpenAI's form. `offsets` are the tokens' places in the text, in characters."""
        texts, entries = self._texts[first:end], self._entries[first:end]
        return {
            "tokens": texts,
            "text_offset": offsets,
            "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
            "top_logprobs": [
                None if entry is None else self._top(entry, text) for text, entry in zip(texts, entries, strict=True)
            ],
        }

    def _append(self, token: int, entry: _core.TokenLogprob | None) -> None:
        self._texts.append(self._text(token))
        self._entries.append(entry)

    def _top(self, entry: _core.TokenLogprob, text: str) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, value in entry.top.items():
            top.setdefault(self._text(token), value)  # of tokens with the same label, the most probable comes first
        top[text] = entry.logprob
        return top

    def _text(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            data = self._pieces.piece(token)
            text = self._known[token] = _named(data or self._pieces.piece(token, special=True))
            if self._token_bytes is not None:
                self._token_bytes[text] = data
        return text


def _is_whole(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _named(data: bytes) -> str:
    if _is_whole(data):
        return data.decode("utf-8")
    return _HALF + "".join(f"\\x{byte:02x}" for byte in data)


def bytes_named(text: str) -> bytes:
    """The bytes of a token, from its label in log-probabilities (see `LogprobLog`)."""
    if not text.startswith(_HALF):
        return text.encode("utf-8", "replace")
    parts = text.removeprefix(_HALF).split("\\x")[1:]
    return bytes(int(part, 16) for part in parts)


def add_bytes(answer: Any, token_bytes: dict[str, bytes]) -> None:
    """Add the bytes of tokens to the log-probabilities of a chat's answer. llama_cpp leaves them out.

    Args:
        answer: the response of a chat, or a chunk of one. A user's own chat handler may return anything.
        token_bytes: the dict that a `LogprobLog` has filled for this answer.
    """
    for choice in answer.get("choices", ()) if isinstance(answer, dict) else ():
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            for each in (entry, *entry["top_logprobs"]):
                data = token_bytes.get(each["token"])
                if data is None:
                    continue
                each["bytes"] = list(data)
                if not _is_whole(data):
                    each["token"] = each["token"].removeprefix(_HALF)  # OpenAI's chats have no such prefix
