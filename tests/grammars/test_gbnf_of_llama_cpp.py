"""GBNF allows what llama.cpp's own engine allows, token by token; the differences are named."""

from __future__ import annotations

import ctypes
import functools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
import tiny_models as tiny
from engine import opened, vocab_address

from specllama.grammars.gbnf_matcher import GbnfMatcher, GbnfVocabulary

NUM_GRAMMARS = 600
NUM_TOKENS = 12
WORDS = ["ab", "abc", "bc", "aab", "é", "日本", "a日", "é]", "\n\n", "a\n", "--", "]", '"', "12", "😀", "x😀", "ß"]
LETTERS = ["a", "b", "c", "é", "日", " ", r"\n", "-", "0", "😀", r"\x61", r"\u00e9", r"\U0001F600", r"\"", r"\\", r"\]"]
RANGES = ["c-a", "a-c", "a-z", "0-9", "é-ü", "日-本", r"\x61-\x63", r"\u0080-\u07ff", " -~", "a-é", r"\n\t", "ab"]
NEGATED = ["a-c", "0-9", " -~", r"\n\t", '"', r"\\\x7F\x00-\x1F", "ab-"]
"""Of ASCII alone: of others llama.cpp forbids each token that ends in the middle of a character that may be one."""

Mask = npt.NDArray[np.bool_]


class Grammars:
    """Makes grammars from a seed. None has left recursion, some of which llama.cpp follows forever."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.names = [f"r-{number}" for number in range(self.rng.randrange(4))]

    def text(self) -> str:
        rules, names = [], self.names
        for number, name in enumerate(("root", *names)):
            self.names = names[number:]
            body = self.alternatives(self.rng.randrange(3))
            if self.rng.random() < 0.5:  # a rule in itself
                inner = self.rng.choice(["{0} {1} {0}", "{0} {1}", "{0} ({0} {1}?)* {0}", "{0} {1}? {0}?"])
                body += " | " + inner.format(self.literal(), self.rng.choice([name, "root", *names]))
            rules.append(f"{name} ::= {body} # a comment")
        return self.rng.choice(["\n", "\r\n\n"]).join(rules)

    def alternatives(self, depth: int) -> str:
        return self.rng.choice([" | ", "|", " |\n "]).join(self.sequence(depth) for _ in range(self.rng.randint(1, 3)))

    def sequence(self, depth: int) -> str:
        return " ".join(self.item(depth) + self.times() for _ in range(self.rng.randint(1, 3)))

    def item(self, depth: int) -> str:
        kind = self.rng.random()
        if kind < 0.3:
            return self.literal()
        if kind < 0.5:
            return f"[{''.join(self.rng.sample(RANGES, self.rng.randint(1, 2)))}]"
        if kind < 0.6:
            return self.rng.choice([".", f"[^{self.rng.choice(NEGATED)}]"])
        if kind < 0.75 and self.names:
            return self.rng.choice(self.names)
        return f"( {self.alternatives(depth - 1)}\n)" if depth else self.literal()

    def literal(self) -> str:
        return f'"{"".join(self.rng.choices(LETTERS, k=self.rng.randint(1, 4)))}"'

    def times(self) -> str:
        return self.rng.choice(["", "", "", "", "*", "+", "?", "{2}", "{1,}", "{0,3}", "{ 1 , 2 }"])


class Theirs:
    """llama.cpp's engine."""

    def __init__(self, vocab: int, n_vocab: int, text: str) -> None:
        self._vocab: Any = vocab
        self._text = text.encode()
        self._data = np.zeros(n_vocab, dtype=np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))

    def masks(self, tokens: Iterator[int]) -> Iterator[Mask | None]:
        """The allowed tokens at each place of a text; None alone if llama.cpp does not take the grammar."""
        sampler = llama_cpp.llama_sampler_init_grammar(self._vocab, self._text, b"root")
        if not sampler:
            yield None
            return
        pointer = ctypes.cast(self._data.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
        try:
            while True:
                self._data["id"], self._data["logit"] = np.arange(len(self._data)), 0.0
                array = llama_cpp.llama_token_data_array(pointer, len(self._data), -1, False)
                llama_cpp.llama_sampler_apply(sampler, ctypes.byref(array))
                yield self._data["logit"] == 0
                llama_cpp.llama_sampler_accept(sampler, next(tokens))
        finally:
            llama_cpp.llama_sampler_free(sampler)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[llama_cpp.Llama]:
    words = tiny.word_vocabulary()
    tokens = [text.replace(" ", "▁") for text in WORDS]
    some = tiny.Vocabulary(
        [*words.tokens, *tokens], [*words.scores, *[-1000.0] * len(tokens)], [*words.types, *[1] * len(tokens)]
    )
    path: Path = tmp_path_factory.mktemp("gbnf") / "target.gguf"
    made = opened(tiny.write_llama(path, some, tiny.llama_weights(some, seed=1)), n_ctx=64)
    yield made
    made.close()


def is_text(text: bytes) -> bool:
    """Whether this is a beginning of UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data"
    return True


def test_the_same_tokens_are_allowed(llm: llama_cpp.Llama) -> None:
    vocabulary = GbnfVocabulary(vocab_address(llm))
    compared = sum(same_as_theirs(vocabulary, vocab_address(llm), llm.n_vocab(), seed) for seed in range(NUM_GRAMMARS))
    assert compared > NUM_GRAMMARS


def same_as_theirs(vocabulary: GbnfVocabulary, vocab: int, n_vocab: int, seed: int) -> int:
    """Walks a text by chance. Returns how many places were compared."""
    text, rng = Grammars(seed).text(), random.Random(seed)
    if "(" in text and has_many_ways(text):
        return 0
    matcher, recent = GbnfMatcher(vocabulary, vocabulary.first(text, "root")), list[int]()
    for place, theirs in enumerate(Theirs(vocab, n_vocab, text).masks(iter(lambda: recent[-1], None))):
        if theirs is None or place == NUM_TOKENS:  # they take no left recursion
            return place
        ours = allowed(vocabulary, matcher, recent, n_vocab)
        before = b"".join(vocabulary.tokens[token] for token in recent)
        for token in np.flatnonzero(ours != theirs).tolist():  # only they allow what is no UTF-8
            assert theirs[token] and not is_text(before + vocabulary.tokens[token]), (text, before, token)
        next_ones = sorted(set(np.flatnonzero(ours & theirs).tolist()) - set(vocabulary.ends))
        if not next_ones:
            return place + 1
        recent.append(rng.choice(next_ones))
    return 0


def allowed(vocabulary: GbnfVocabulary, matcher: GbnfMatcher, recent: list[int], n_vocab: int) -> Mask:
    """By a mask, and token by token."""
    tokens = np.array(recent, np.intc)
    each = np.frombuffer(matcher.allowed(tokens, range(n_vocab)), bool)
    bits, may_end, _ = matcher(tokens)
    mask = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[:n_vocab].astype(bool)
    mask[vocabulary.ends] = may_end
    assert np.array_equal(mask, each)
    return mask


@functools.cache
def has_many_ways(text: str) -> bool:
    """Whether llama.cpp might follow it for minutes: repetitions in repetitions."""
    return any(f"{one}\n){other}" in text for one in "*+}" for other in "*+{")


NAMED = {
    "bytes that no text has": ("root ::= .", b"\xff", (False, True)),
    "a beginning of a character, some of which are forbidden": ("root ::= [^é]", b"\xc3", (True, False)),
    "half a character in place of any token": ("root ::= !<[5]>", b"\xc3", (True, False)),
}


@pytest.mark.parametrize("name", NAMED)
def test_where_they_differ(llm: llama_cpp.Llama, name: str) -> None:
    text, piece, (ours, theirs) = NAMED[name]
    vocabulary = GbnfVocabulary(vocab_address(llm))
    mask = next(Theirs(vocab_address(llm), llm.n_vocab(), text).masks(iter(())))
    if mask is None:
        pytest.skip("this release of llama.cpp has no rules that name tokens")
    token = vocabulary.tokens.index(piece)
    matcher = GbnfMatcher(vocabulary, vocabulary.first(text, "root"))
    assert allowed(vocabulary, matcher, [], llm.n_vocab())[token] == ours
    assert mask[token] == theirs
