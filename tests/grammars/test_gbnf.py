"""GBNF: what is refused, with the rule and the line; what took llama.cpp minutes, or ended the process, is followed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from engine import opened, vocab_address
from hypothesis import given, settings
from hypothesis import strategies as st
from responses import PROMPT
from test_constraint import GRAMMARS

from specllama.grammars.gbnf_in_lark import in_lark
from specllama.grammars.gbnf_matcher import GbnfMatcher, GbnfVocabulary

if TYPE_CHECKING:
    from conftest import MakeLlama

SECONDS = 10.0
"""A generous bound for a busy machine: none takes 1 s on an idle one."""
DEEP = "in each other more than 300 deep"


def chain(length: int, rule: str = "{next}") -> str:
    rules = [f"r{i} ::= " + rule.format(next=f"r{i + 1}") for i in range(length)]
    return "\n".join(["root ::= r0", *rules, f'r{length} ::= "a"'])


def lark_of(text: str) -> str:
    return in_lark(text, "root", lambda _: 0)


REFUSED = {
    "no rule": ("no grammar", r"rule 'no', line 1: expected ::=, at 'grammar'"),
    "no root": ('rot ::= "a"', "no rule 'root'"),
    "a rule that is not defined": ('root ::= "a" |\n  item', "line 2 names a rule 'item', which it does not define"),
    "an open literal": ('root ::= x\nx ::= "a', "rule 'x', line 2: expected a closing \", at"),
    "an open class": ("root ::= [a", "expected a closing ]"),
    "an open parenthesis": ('root ::= ("a"', r"rule 'root', line 1: expected \)"),
    "a parenthesis too many": ('root ::= "a")', "expected a new line"),
    "an escape": (r'root ::= "\d"', "no such escape in GBNF"),
    "half an escape": (r'root ::= "\x4"', "no such escape in GBNF"),
    "nothing to repeat": ("root ::= *", "nothing to repeat"),
    "no number": ('root ::= "a"{x}', "expected a number"),
    "more at least than at most": ('root ::= "a"{5,2}', "at least 5 and at most 2 times"),
    "too great a number": ('root ::= "a"{' + "9" * 5000 + "}", "expected }"),
    "a token that is none": (
        "root ::= <nothing like it>",
        "a token '<nothing like it>', which the model does not have",
    ),
    "parentheses": ("root ::= " + '("a" ("b" ' * 200 + ")?)?" * 200, DEEP),
    "rules in circles": (chain(400, '"(" {next} ")"').replace('"a"', '"a" | "b" r0'), DEEP),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_is_named(make_llama: MakeLlama, name: str) -> None:
    text, message = REFUSED[name]
    llm = make_llama()
    grammar = llama_cpp.LlamaGrammar.from_string(text, verbose=False)
    options: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
    for mirostat_mode in (0, 2):
        with pytest.raises(ValueError, match=message) as caught:
            llm.create_completion(PROMPT, grammar=grammar, mirostat_mode=mirostat_mode, **options)
        assert len(str(caught.value)) < 400
    assert llm.create_completion(PROMPT, **options)["usage"]["completion_tokens"] == 3


FOLLOWED = {
    "parentheses": "root ::= " + "(" * 1000 + '"a"' + ")" * 1000,
    "nested options": "root ::= " + '("a" ' * 900 + ")?" * 900,
    "groups one behind the other": "root ::= " + '("a")' * 5000,
    "quotes and brackets in each other": r'root ::= "\"[\\" ["\]\\(] "]"',
    "a repetition": 'root ::= "a"{0,2000} [a-z]{3} [a-z]{2,}',
    "a high limit": 'root ::= "a"{ 000 , 10000000 }',
    "repetitions of repetitions": 'root ::= "a"{2000}{2000}{2}',
    "a chain of rules": chain(3000),
    "many words": "root ::= " + " | ".join(f'"a{i}"' for i in range(10_000)),
    "no newline before a name": 'root ::= x  y\nx::="a"\ny ::= "b"',
    "left recursion": 'root ::= root "a" | "b"',
    "hidden left recursion": 'root ::= x\nx ::= y x "c" | "d"\ny ::= z\nz ::= "a"?',
    "what may be empty, repeated": 'root ::= (("a"? "b"?){0,500} "c"?){0,500}',
    "what may be empty, without a limit": 'root ::= ("a"* "b"?){2,}',
    "branches": chain(40, '{next} "x" | {next} "y"'),
    "branches to the same": chain(40, "{next} | {next}"),
    "a very long text at least": "\n".join(
        ["root ::= r0", *(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(40)), 'r40 ::= "a"']
    ),
    "no end": 'root ::= "ab" [cd] root',
    "no end by several rules": 'root ::= "ab" x\nx ::= [cd] root | "e" x',
    "no end in itself": 'root ::= "(" root ")"',
    "a way to follow itself": "root ::= root | x\nx ::= x | [a-c]+",
    "blanks, repeated": 'root ::= (" "+)+',
    "a rule of blanks, repeated": 'root ::= blanks+\nblanks ::= " "+',
    "blanks at the ends of rules": "root ::= a ws\na ::= b ws\nb ::= c ws\nc ::= d ws\nd ::= e ws ws\n"
    'e ::= "x" ws\nws ::= " "*',
    "what differs behind": 'root ::= "-" root "b" | "-" root "c" | ""',
    "a repetition of a few": 'root ::= "{" part{2,10}\npart ::= [0-9]* [a-z] | " "+ [^b] | "{"?',
    "repetitions of a repetition": 'root ::= "a"*? root "b" | "c"{2}+',
    "words without an end between": 'root ::= part{50} [a-z]\npart ::= [a-z]* "ab"*',
    "long repetitions, repeated": 'root ::= ("-"{10,400})*',
    "many alternatives to the end": "root ::= " + " | ".join(f'[a-k]* "{number}"' for number in range(300)),
    "right recursion": "root ::= [a-z ] root | x\nx ::= [0-9] y | [.]\ny ::= [a-z] x | [0-9]",
}
"""Most of them took llama.cpp minutes a token, all memory, or the process."""


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> GbnfVocabulary:
    """With runs of one character, as long as real vocabularies have them."""
    words = tiny.word_vocabulary()
    lengths = {**dict.fromkeys(" -=*#/", (4, 8, 16, 32, 48)), **dict.fromkeys("\t_.0eE", (4, 8, 12))}
    runs = [character * length for character, several in lengths.items() for length in several]
    tokens = [(run + tail).replace(" ", "▁") for run in runs for tail in ("", "x", "b", "~", "\n", "9")]
    some = tiny.Vocabulary(
        [*words.tokens, *tokens], [*words.scores, *[-1000.0] * len(tokens)], [*words.types, *[1] * len(tokens)]
    )
    path: Path = tmp_path_factory.mktemp("runs") / "runs.gguf"
    llm = opened(tiny.write_llama(path, some, tiny.llama_weights(some, seed=1)), n_ctx=64)
    made = GbnfVocabulary(vocab_address(llm))
    llm.close()
    return made


@pytest.mark.parametrize("name", FOLLOWED)
def test_it_is_followed_in_time(vocabulary: GbnfVocabulary, name: str) -> None:
    """In a thread, whose stack may be smaller."""
    taken, rng = list[float](), np.random.default_rng(1)

    def follow() -> None:
        start = time.process_time()
        matcher, recent = GbnfMatcher(vocabulary, vocabulary.first(FOLLOWED[name], "root")), list[int]()
        for _ in range(40):
            mask, _, _ = matcher(np.array(recent, np.intc))
            bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little")
            allowed = np.setdiff1d(np.flatnonzero(bits), vocabulary.ends)
            if not len(allowed):
                break
            assert set(matcher.allowed(np.array(recent, np.intc), allowed.tolist())) == {1}
            recent.append(int(rng.choice(allowed)))
        taken.append(time.process_time() - start)

    thread = threading.Thread(target=follow)
    thread.start()
    thread.join()
    assert taken and taken[0] < SECONDS


def test_time_does_not_grow_with_the_text(vocabulary: GbnfVocabulary) -> None:
    for name in ("right recursion", "left recursion", "blanks, repeated"):
        first = vocabulary.first(FOLLOWED[name], "root").deep_copy()
        text = {"right recursion": b"abcde", "left recursion": b"baaaa", "blanks, repeated": b"     "}[name]
        single = {piece: token for token, piece in enumerate(vocabulary.tokens)}
        tokens = [single[bytes([byte])] for byte in text + text[1:2] * 20_000]
        start = time.process_time()
        assert first.try_consume_tokens(tokens) == len(tokens)
        assert time.process_time() - start < SECONDS


THEIRS = [text for name, text in vars(llama_cpp.llama_grammar).items() if name.endswith("_GBNF")]


@pytest.mark.parametrize("text", [*GRAMMARS.values(), *THEIRS])
def test_what_llama_cpp_has_is_taken(vocabulary: GbnfVocabulary, text: str) -> None:
    assert not vocabulary.first(text, "root").is_error()


@settings(deadline=None)
@given(st.text(alphabet='ab-1 \n\t"\\[]^(){}|*+?,.#<>!:='))
def test_any_text_is_read_or_refused(text: str) -> None:
    for prefix in ("", "root ::= "):
        try:
            assert "start: " in lark_of(prefix + text)
        except ValueError as error:
            assert "the grammar" in str(error)  # noqa: PT017  # most texts raise nothing


def test_an_empty_grammar_allows_everything(make_llama: MakeLlama) -> None:
    llm, options = make_llama(), {"max_tokens": 20, "temperature": 1.0, "seed": 3}
    free = llm.create_completion(PROMPT, **options)["choices"][0]["text"]
    empty = llama_cpp.LlamaGrammar(_grammar="")
    assert llm.create_completion(PROMPT, grammar=empty, **options)["choices"][0]["text"] == free
