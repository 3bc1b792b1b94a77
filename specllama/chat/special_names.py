"""Keeps what people and tools say in a chat from becoming special tokens.

A chat template writes the names of special tokens, such as ``<|im_end|>``, and these names are read as tokens. But in a
user's text, a tool's result or a description such a name must stay text: else it could end the message and begin a new
one. So a mark is put into these names before the template renders them. Text with a mark is tokenized as plain text.
"""

from __future__ import annotations

import dataclasses
import functools
import re
import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import llama_cpp

from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.lending import lent
from specllama.drop_in.prompt_tokens import continuation_tokens
from specllama.engine.model import Model

# The mark in names of special tokens that users write, so that the names stay text. It is random, so that no text has
# it, and filters of templates do not change its characters.
_MARK = "u" + secrets.token_hex(8)
_CUT = "v" + secrets.token_hex(8)
"""The mark in names that tokenizers read as tokens even in plain text: the text is cut there and tokenized in parts."""
_JOINER = "\u2060"  # an invisible character without width, which is put in place of a mark that nobody would remove
_PREFIX = 3  # first characters of a name that are searched for at first, since there may be thousands of names
_DEFINED = llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
_SPACES = " \t\n\v\f\r"


class _Finder:
    """Finds names in texts.

    Args:
        names: the names. Names of one character are left out, because no mark can be put into them.
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(name for name in names if len(name) > 1)
        self._sizes = sorted({len(name) for name in self.names}, reverse=True)
        beginnings = sorted({name[:_PREFIX] for name in self.names}, key=len, reverse=True)
        self._beginnings = re.compile("|".join(map(re.escape, beginnings))) if beginnings else None
        self._unfinished = frozenset(name[:size] for name in self.names for size in range(1, len(name)))

    def found(self, text: str) -> Iterator[tuple[int, str]]:
        """Each place where a name begins, with the longest such name. Names may overlap."""
        match = None if self._beginnings is None else self._beginnings.search(text)
        while match is not None and self._beginnings is not None:
            at = match.start()
            name = next((text[at : at + size] for size in self._sizes if text[at : at + size] in self.names), None)
            if name is not None:
                yield at, name
            match = self._beginnings.search(text, at + 1)

    def is_begun(self, text: str) -> bool:
        """Whether a text ends with the beginning of a name, which the next text could complete."""
        longest = self._sizes[0] if self._sizes else 0
        return any(text[at:] in self._unfinished for at in range(max(0, len(text) - longest + 1), len(text)))


@dataclasses.dataclass(frozen=True)
class _Vocabulary:
    """The names of special tokens in a vocabulary.

    Attributes:
        control: names that are read as tokens only where special tokens are wanted.
        defined: names that are always read as tokens.
        every: finds all these names.
        bare_before, bare_behind: names before and behind which llama.cpp leaves out spaces.
    """

    control: frozenset[str]
    defined: frozenset[str]
    every: _Finder
    bare_before: frozenset[str]
    bare_behind: frozenset[str]


def _vocabulary(model: Model) -> _Vocabulary:
    vocab, attribute = cast(Any, model.vocab), llama_cpp.llama_vocab_get_attr
    read, always = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN, _DEFINED
    kinds = {token: kind for token in range(model.n_vocab) if (kind := attribute(vocab, token)) & (read | always)}
    texts = {token: (llama_cpp.llama_vocab_get_text(vocab, token) or b"").decode("utf-8", "replace") for token in kinds}

    def having(attributes: int) -> frozenset[str]:
        return frozenset(texts[token] for token, kind in kinds.items() if kind & attributes and texts[token])

    control, defined = having(read), having(always)
    bare = having(llama_cpp.LLAMA_TOKEN_ATTR_LSTRIP), having(llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP)
    return _Vocabulary(control, defined, _Finder(control | defined), *bare)


@functools.lru_cache(maxsize=32)
def _finder(names: frozenset[str]) -> _Finder:
    return _Finder(names)


class SpecialNames:
    """The names of special tokens that are text in a chat.

    Args:
        llama: the Llama that answers.
        around: a prompt of the chat template with short messages. Names in it are names that stand around messages.
        spoken: the names that mark thoughts, and calls in the texts of messages. In the assistant's messages they get
            no mark.
        is_removed: whether the marks are removed when the prompt is tokenized. If not, because one of llama_cpp's
            handlers or another tokenizer tokenizes the prompt, an invisible character takes the place of a mark.
    """

    def __init__(self, llama: BaseLlama, around: str, spoken: Collection[str], *, is_removed: bool) -> None:
        self._llama = llama
        self._known = lent(llama).once(_vocabulary)
        turns = frozenset(name for _, name in self._known.every.found(around)).intersection(self._known.defined)
        self._text = _finder(self._known.control | turns)
        self._answer = _finder(self._known.control.difference(spoken))
        self._is_removed = is_removed

    def marked_messages(self, messages: Sequence[Any]) -> list[Any]:
        """The messages with marks in all names."""
        return [
            self._marked(message, self._answer if message.get("role") == "assistant" else self._text)
            for message in messages
        ]

    def marked(self, value: Any) -> Any:
        """Any other value that a template may render, such as tools, with marks in all names."""
        return self._marked(value, self._text)

    def _marked(self, value: Any, finder: _Finder) -> Any:
        if isinstance(value, str):
            return self._marked_text(value, finder)
        if isinstance(value, Mapping):
            return {self._marked(name, finder): self._marked(each, finder) for name, each in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._marked(each, finder) for each in value]
        return value

    def _marked_text(self, text: str, finder: _Finder) -> str:
        pieces, done = [], 0
        for at, name in finder.found(text):
            mark = _MARK if name in self._known.control else _CUT
            pieces += [text[done : at + 1], mark if self._is_removed else _JOINER]
            done = at + 1
        rest = text[done:]
        if finder.is_begun(rest):  # the template may write another text of the user behind it, which completes the name
            pieces += [rest, _MARK if self._is_removed else _JOINER]
            rest = ""
        return "".join([*pieces, rest]) if pieces else text

    def tokens(self, text: str, *, add_bos: bool = False, continues: bool = False) -> list[int]:
        """The tokens of a prompt with marks, or of its end.

        Args:
            text: the prompt, or its end behind a part that was tokenized before.
            add_bos: put BOS before the text, if the model wants one.
            continues: whether a text comes before this one.
        """
        tokens: list[int] = []
        for part, is_special in self._parts(text):
            for number, piece in enumerate(part.split(_CUT)):
                data = piece.replace(_MARK, "")
                if number or (continues and not tokens):
                    tokens += continuation_tokens(self._llama, data, special=is_special)
                elif data:
                    begins = add_bos and not tokens
                    tokens += self._llama.tokenize(data.encode("utf-8"), add_bos=begins, special=is_special)
        return tokens

    def _parts(self, text: str) -> Iterator[tuple[str, bool]]:
        """The parts of a prompt, each with whether names of special tokens are read as tokens in it.

        In a part with marks they are not, because a user or a tool has written the name there. Parts begin and end at
        special tokens, where llama.cpp cuts a text, too. So the parts together have the tokens of the whole text.
        """
        read, at, before = "", 0, ""
        for start, name in [*self._known.every.found(text), (len(text), "")]:
            if start < at:
                continue  # this name begins within the previous name
            between = text[at:start]
            if _MARK in between or _CUT in between:
                if read:
                    yield read, True
                between = between.lstrip(_SPACES) if before in self._known.bare_behind else between
                yield between.rstrip(_SPACES) if name in self._known.bare_before else between, False
                read = name
            else:
                read += between + name
            at, before = start + len(name), name
        if read:
            yield read, True


def is_marked(text: str) -> bool:
    """Whether a prompt has marks."""
    return _MARK in text or _CUT in text


def without_marks(text: str) -> str:
    """The prompt without marks, as the model reads it."""
    return text.replace(_MARK, "").replace(_CUT, "")
