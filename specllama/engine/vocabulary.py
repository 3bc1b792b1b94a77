"""Objects that are made from a model's vocabulary: constraints of grammars, and DRY's sequence breakers."""

from __future__ import annotations

import dataclasses
import re
import threading

from specllama import _core
from specllama.backend import libllama
from specllama.grammars.gbnf_matcher import GbnfVocabulary

from .model import Model
from .writable import unwritable

_HALF = re.compile("[\ud800-\udfff]")  # half of a surrogate pair


def end_tokens(model: Model) -> list[int]:
    """The tokens that end a text. The search takes a while, so call it by ``model.once(end_tokens)``."""
    return [token for token in range(model.n_vocab) if model.ends_text(token)]


class _LastBreakers:
    """Makes sequence breakers of texts, and keeps the last result for a call with the same texts."""

    def __init__(self, model: Model) -> None:
        self._vocab = model.vocab
        self._words: _core.TokenTexts | None = None
        self._last: tuple[tuple[str, ...], _core.SequenceBreakers] | None = None
        self._lock = threading.Lock()

    def __call__(self, texts: tuple[str, ...]) -> _core.SequenceBreakers:
        with self._lock:
            if self._last is None or self._last[0] != texts:
                if self._words is None:  # made once, because it takes a while
                    self._words = _core.TokenTexts(libllama.API, self._vocab)
                self._last = texts, _core.breakers_of_texts(libllama.API, self._vocab, list(texts), self._words)
            return self._last[1]


def _gbnf_vocabulary(model: Model) -> GbnfVocabulary:
    return GbnfVocabulary(model.vocab)


@dataclasses.dataclass(frozen=True)
class Gbnf:
    """A grammar in llama.cpp's language."""

    text: str
    root: str = "root"

    def __post_init__(self) -> None:
        """Raise TypeError unless ``text`` and ``root`` are texts."""
        for name, text in (("grammar", self.text), ("root", self.root)):
            if not isinstance(text, str):
                raise TypeError(f"{name}={text!r:.100} must be a text in GBNF, llama.cpp's language of grammars")

    def over(self, model: Model) -> _core.MaskConstraint:
        """The constraint over a model's tokens, at the beginning of a text. An empty grammar allows all.

        Raises:
            ClosedError: the model is closed.
            ValueError: the text is no GBNF, or llguidance cannot follow the grammar.
        """
        if not self.text:
            return _core.MaskConstraint([], lambda recent: None)
        if "\0" in self.text:
            raise ValueError("the grammar has a null character in it: take it out")
        if _HALF.search(self.text + self.root):
            raise ValueError("the grammar has half of a surrogate pair in it, which is no character: take it out")
        with model.kept():
            return model.once(_gbnf_vocabulary).constraint(self.text, self.root)


def sequence_breakers_of(model: Model, texts: tuple[str, ...]) -> _core.SequenceBreakers:
    """DRY's sequence breakers for these texts, in a model's tokens. The result is kept for a call with the same texts.

    Raises:
        ValueError: a text is empty or too long, or there are too many texts.
    """
    "".join(texts).encode()  # raises an error that names half of a surrogate pair, which C++ cannot read
    # A text of several characters must be writable, because llama.cpp tokenizes a part of it.
    known = (text for text in texts if len(text) == 1 or not unwritable(model, text.encode(), special=False))
    return model.once(_LastBreakers)(tuple(known))
