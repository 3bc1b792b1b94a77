"""What the native side makes of a model's vocabulary: grammars over its tokens, and texts in its tokens."""

from __future__ import annotations

import dataclasses
import re
import threading

import llama_cpp

from specllama import _core
from specllama.backend import libllama
from specllama.grammars.gbnf import check_gbnf

from .model import Model
from .writable import unwritable

# Whether llama.cpp survives loops without text (its pull request 18604) and great repetitions. This release does for
# sure, some before it may.
_RECENT = tuple(map(int, re.findall(r"\d+", llama_cpp.__version__)[:3])) >= (0, 3, 26)


def end_tokens(model: Model) -> list[int]:
    """The tokens with which a text ends. Takes a while: ``model.once(end_tokens)``."""
    return [token for token in range(model.n_vocab) if model.ends_text(token)]


class _LastBreakers:
    """The texts of the last call, in tokens."""

    def __init__(self, model: Model) -> None:
        self._vocab = model.vocab
        self._words: _core.TokenTexts | None = None
        self._last: tuple[tuple[str, ...], _core.SequenceBreakers] | None = None
        self._lock = threading.Lock()

    def __call__(self, texts: tuple[str, ...]) -> _core.SequenceBreakers:
        with self._lock:
            if self._last is None or self._last[0] != texts:
                if self._words is None:  # which takes a while
                    self._words = _core.TokenTexts(libllama.API, self._vocab)
                self._last = texts, _core.breakers_of_texts(libllama.API, self._vocab, list(texts), self._words)
            return self._last[1]


def _first_bytes(model: Model) -> _core.FirstBytes:
    return _core.FirstBytes(libllama.API, model.vocab)


@dataclasses.dataclass(frozen=True)
class Gbnf:
    """A grammar in llama.cpp's language."""

    text: str
    root: str = "root"

    def __post_init__(self) -> None:
        """Raises TypeError unless both are texts."""
        for name, text in (("grammar", self.text), ("root", self.root)):
            if not isinstance(text, str):
                raise TypeError(f"{name}={text!r:.100} must be a text in GBNF, llama.cpp's language of grammars")

    def over(self, model: Model) -> _core.Grammar:
        """The grammar over the tokens of a model, at its beginning.

        Raises:
            ValueError: llama.cpp cannot parse it, or would not survive it.
        """
        if "\0" in self.text:  # where C would take it to end
            raise ValueError("the grammar has a null character in it: take it out")
        check_gbnf(self.text, _RECENT)
        return _core.Grammar(libllama.API, model.vocab, model.once(_first_bytes), self.text, self.root)


def sequence_breakers_of(model: Model, texts: tuple[str, ...]) -> _core.SequenceBreakers:
    """The texts in the tokens of a model, which remembers those of the last call.

    Raises:
        ValueError: an empty text, one that is too long, or too many.
    """
    # Of longer texts the rest behind a token is tokenized.
    known = (text for text in texts if len(text) == 1 or not unwritable(model, text.encode(), special=False))
    return model.once(_LastBreakers)(tuple(known))
