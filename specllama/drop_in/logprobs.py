"""Log-probabilities of a completion's tokens, in the form of OpenAI's completions."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.engine.engine import Engine
from specllama.engine.listener import Listener

from .base_class import BaseLlama


def prompt_logprobs(
    engine: Engine, tokens: list[int], num_top: int | None, listener: Listener
) -> list[_core.TokenLogprob | None]:
    """Entries of all prompt tokens; None for the first, which nothing precedes.

    Decodes the prompt anew, in small chunks, because the KV cache keeps no logits.
    """
    entries: list[_core.TokenLogprob | None] = [None] * bool(tokens)
    for position, logits in engine.score(tokens, listener):
        entries.append(_core.logprobs(logits, tokens[position + 1], num_top or 0))
    return entries


class LogprobLog:
    """Collects entries and renders them."""

    def __init__(self, llama: BaseLlama, num_top: int) -> None:
        if num_top < 0:
            raise ValueError(f"logprobs={num_top} must be 0 or more: how many alternatives to give for each token")
        self._llama = llama
        self._num_top = num_top
        self._known: dict[int, str] = {}  # texts of tokens seen before
        self.bytes_of: dict[str, bytes | None] = {}
        """The bytes of tokens by their text; None where several have this text, as halves of characters do."""
        self._texts: list[str] = []
        self._starts = [0]  # where each text begins, and the last one ends
        self._entries: list[_core.TokenLogprob | None] = []

    def add_prompt(
        self, tokens: list[int], entries: list[_core.TokenLogprob | None], *, has_own_bos: bool = False
    ) -> None:
        """The prompt's own tokens, for ``echo``.

        A leading BOS is left out, unless the user gave it (`has_own_bos`), who counts it then.
        """
        skip = 1 if not has_own_bos and tokens[:1] == [self._llama.token_bos()] else 0
        for token, entry in zip(tokens[skip:], entries[skip:], strict=True):
            self._append(token, entry)
        if self._entries:
            self._entries[0] = None  # as OpenAI's API has it

    def add(self, token: int, logits: npt.NDArray[np.single]) -> None:
        """A generated token and the logits [n_vocab] it was sampled from."""
        self._append(token, _core.logprobs(logits, token, self._num_top))

    @property
    def last(self) -> float | None:
        """The log-probability of the token added last."""
        entry = self._entries[-1]
        return None if entry is None else entry.logprob

    def all(self, text_offset: int) -> dict[str, Any]:
        """Everything; the first token begins at text_offset."""
        return self.entries(0, len(self._texts), text_offset)

    def entries(self, first: int, end: int, text_offset: int) -> dict[str, Any]:
        """Tokens first to end - 1; text_offset is that of token 0."""
        texts, entries = self._texts[first:end], self._entries[first:end]
        return {
            "tokens": texts,
            "text_offset": [text_offset + start for start in self._starts[first:end]],
            "token_logprobs": [None if entry is None else entry.logprob for entry in entries],
            "top_logprobs": [
                None if entry is None else self._top(entry, text) for text, entry in zip(texts, entries, strict=True)
            ],
        }

    def _append(self, token: int, entry: _core.TokenLogprob | None) -> None:
        text = self._text(token)
        self._texts.append(text)
        self._starts.append(self._starts[-1] + len(text))
        self._entries.append(entry)

    def _top(self, entry: _core.TokenLogprob, text: str) -> dict[str, float]:
        top: dict[str, float] = {}
        for token, value in entry.top.items():
            top.setdefault(self._text(token), value)  # tokens may share a text: the most probable one stands for it
        top[text] = entry.logprob
        return top

    def _text(self, token: int) -> str:
        text = self._known.get(token)
        if text is None:
            whole = self._llama.detokenize([token])
            text = self._known[token] = whole.decode("utf-8", errors="ignore")
            self.bytes_of[text] = whole if self.bytes_of.get(text, whole) == whole else None
        return text
