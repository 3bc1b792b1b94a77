"""Grammars on which llama.cpp crashes, hangs or takes all memory are refused; what it can do is left to it."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp.llama_grammar import json_schema_to_gbnf
from responses import PROMPT
from test_constraint import GRAMMARS

from specllama.engine import vocabulary
from specllama.grammars.gbnf import check_gbnf

if TYPE_CHECKING:
    from conftest import MakeLlama

NESTED = "nests more than 1000 parentheses"
REPEATED = "has more than 5000000 elements"
RECURSIVE = r"may begin with itself and go on behind it \(left recursion\)"
MANY_WAYS = "may begin or go on in more than 100000 ways"
EMPTY = "repeats what may be empty, in more than 420 ways"
DEEP = "and so on more than 3000 times"


def chain(length: int, rule: str = "{next}") -> str:
    rules = [f"r{i} ::= " + rule.format(next=f"r{i + 1}") for i in range(length)]
    return "\n".join(["root ::= r0", *rules, f'r{length} ::= "a"'])


def refusal_of(text: str) -> str:
    """Why an early release is not given a grammar; empty if it is."""
    try:
        check_gbnf(text, recent=False)
    except ValueError as error:
        return str(error)
    return ""


REFUSED = {
    "parentheses": ("root ::= " + "(" * 100_000 + '"a"' + ")" * 100_000, NESTED),
    "open parentheses": ("root ::= " + "(" * 100_000, NESTED),
    "parentheses behind what is none": (r'root ::= "\"(" [(\]] # (' + "\n" + "(" * 1001, NESTED),
    "a repetition": ('root ::= "a"{1000000000,}', REPEATED),
    "a repetition with blanks": ('root ::= "a"{ 0010000000 , # least\n }', REPEATED),
    "a number of many digits": ('root ::= "a"{' + "9" * 5000 + "}", REPEATED),
    "a long repetition": (f'root ::= "{"a" * 10_000}"{{2000}}', REPEATED),
    "repetitions of repetitions": ('root ::= "a"{2000}{2000}{2}', REPEATED),
    "groups of a long name": (f'root ::= "a"\n{"n" * 100_000} ::= ' + '("a")' * 500, REPEATED),
    "more at least than at most": ('root ::= "a"{5,2}', "at least 5 and at most 2 times"),
    "left recursion": ('root ::= root "a" | "b"', RECURSIVE),
    "hidden left recursion": ('root ::= x\nx ::= y x "c" | "d"\ny ::= z\nz ::= "a"?', RECURSIVE),
    "left recursion in a repetition": ('root ::= ("a"? root)* "b"', RECURSIVE),
    "a chain of rules": (chain(100_000), DEEP),
    "branches to the same": (chain(40, "{next} | {next}"), MANY_WAYS),
    "branches": (chain(40, '{next} "x" | {next} "y"'), MANY_WAYS),
    "branches by what may be empty": (chain(40, "({next} {next})?"), MANY_WAYS),
    "repetitions of what may be empty": ('root ::= (("a"? "b"?){0,500} "c"?){0,500}', f"{MANY_WAYS}|{EMPTY}"),
    "a repetition of what may be empty": ('root ::= ("a"?){500}', EMPTY),
    "a repetition of a rule that may be empty": ('root ::= x{300}\nx ::= "a" | "b"?', EMPTY),
    "repetitions in a repetition of what may be empty": ('root ::= (("a"?){20}){20}', EMPTY),
    "what follows may be empty": ('root ::= "x" ' + "e " * 200_000 + '\ne ::= "a"?', f"{MANY_WAYS}|{DEEP}"),
    "what follows may begin in many ways": (
        'root ::= "x" ' + "e " * 300 + "\ne ::= (" + " | ".join(f'"{chr(0x4E00 + i)}"' for i in range(1000)) + ")?",
        MANY_WAYS,
    ),
    "loops of branches": (
        chain(40, "{next} | {next}").replace('r40 ::= "a"', 'r40 ::= e r0 | "a"\ne ::= "b"?'),
        f"{MANY_WAYS}|follow for ever",  # an early llama.cpp does not come so far
    ),
}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", REFUSED)
def test_what_llama_cpp_would_not_survive(make_llama: MakeLlama, name: str) -> None:
    text, message = REFUSED[name]
    llm = make_llama()
    grammar = llama_cpp.LlamaGrammar.from_string(text, verbose=False)
    settings: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
    for mirostat_mode in (0, 2):
        with pytest.raises(ValueError, match=message) as caught:
            llm.create_completion(PROMPT, grammar=grammar, mirostat_mode=mirostat_mode, **settings)
        assert len(str(caught.value)) < 400
    assert llm.create_completion(PROMPT, **settings)["usage"]["completion_tokens"] == 3


ALLOWED = {
    "parentheses": "root ::= " + "(" * 1000 + '"a"' + ")" * 1000,
    "nested options": "root ::= " + '("a" ' * 900 + ")?" * 900,
    "groups one behind the other": "root ::= " + '("a")' * 5000,
    "parentheses that are none": f'root ::= "{"(" * 1001}" | [{"(" * 1001}] | "a" # {"(" * 1001}',
    "quotes and brackets in each other": r'root ::= "\"[\\" ["\]\\(] "]"',
    "a repetition": 'root ::= "a"{0,2000} [a-z]{3} [a-z]{2,}',
    "what may be empty, repeated a few times": 'root ::= ("a"* "b"?){0,20}',
    "what may be empty, a hundred times": 'root ::= ("a"?){100}',
    "up to some": 'root ::= "a"{0,500}',
    "a chain of rules": chain(2900),
    "recursion": 'root ::= "(" root ")" | list\nlist ::= "a" | "[" list ("," list)* "]"',
    "many words": "root ::= " + " | ".join(f'"{i}"' for i in range(1000)),
    "no newline before a name": 'root ::= x  y\nx::="a"\ny ::= "b"',
}


@pytest.mark.parametrize("times", ["{1,1000000000}", "{ 000 , 10000000 }"])
def test_a_recent_llama_cpp_takes_a_high_limit_as_none(make_llama: MakeLlama, times: str) -> None:
    text = 'root ::= "a"' + times
    with pytest.raises(ValueError, match=REPEATED):
        check_gbnf(text, recent=False)
    check_gbnf(text, recent=True)
    if vocabulary._RECENT:
        grammar = llama_cpp.LlamaGrammar.from_string(text, verbose=False)
        assert make_llama().create_completion(PROMPT, grammar=grammar, max_tokens=2)["choices"]


def test_many_long_classes_are_counted_by_their_members() -> None:
    assert refusal_of("root ::= " + r'[^"\\\x7F\x00-\x1F]{0,2000} "\"" ' * 200) == ""


LOOPS = {
    "what may be empty, repeated": 'root ::= ("a"* "b"?)*',
    "what may be empty, at least twice": 'root ::= ("a"* "b"?){2,}',
    "a rule that ends with itself": 'root ::= letters root | "b"\nletters ::= "a"*',
}
"""Early releases call themselves for ever."""


@pytest.mark.parametrize("name", LOOPS)
def test_loops_are_left_to_a_llama_cpp_that_notices_them(make_llama: MakeLlama, name: str) -> None:
    with pytest.raises(ValueError, match="this release of llama-cpp-python would follow for ever"):
        check_gbnf(LOOPS[name], recent=False)
    llm = make_llama()
    grammar = llama_cpp.LlamaGrammar.from_string(LOOPS[name], verbose=False)
    if vocabulary._RECENT:
        assert llm.create_completion(PROMPT, grammar=grammar, max_tokens=2)["choices"]
    else:
        with pytest.raises(ValueError, match="follow for ever"):
            llm.create_completion(PROMPT, grammar=grammar, max_tokens=2)


@pytest.mark.parametrize("name", ALLOWED)
def test_what_llama_cpp_can_do_is_left_to_it(make_llama: MakeLlama, name: str) -> None:
    """In a thread, whose stack may be smaller."""
    llm, finished = make_llama(), []
    grammar = llama_cpp.LlamaGrammar.from_string(ALLOWED[name], verbose=False)

    def complete() -> None:
        finished.append(llm.create_completion(PROMPT, grammar=grammar, max_tokens=2, temperature=0.0))

    thread = threading.Thread(target=complete)
    thread.start()
    thread.join()
    assert finished


THEIRS = [text for name, text in vars(llama_cpp.llama_grammar).items() if name.endswith("_GBNF")]


@pytest.mark.parametrize("text", [*GRAMMARS.values(), *THEIRS, "", "no grammar", "(", '"'])
def test_others_pass(text: str) -> None:
    assert refusal_of(text) == ""


@pytest.mark.long
def test_a_large_schema_passes() -> None:
    leaf = {"type": "object", "properties": {f"field{i}": {"type": "string", "maxLength": 200} for i in range(30)}}
    middle = {"type": "object", "properties": {f"part{i}": leaf for i in range(20)}, "required": ["part0"]}
    words = {"enum": [f"word {i}" for i in range(3000)]}
    whole = {"type": "array", "items": {"anyOf": [middle, words, {"type": "null"}]}, "maxItems": 100}
    assert refusal_of(json_schema_to_gbnf(json.dumps(whole))) == ""


@settings(deadline=None)
@given(st.text(alphabet='ab-1 \n\t"\\[]^(){}|*+?,.#<>!:='))
def test_no_text_is_too_much_for_it(text: str) -> None:
    for prefix in ("", "root ::= "):
        try:
            check_gbnf(prefix + text)
        except ValueError as error:
            assert "the grammar" in str(error)  # noqa: PT017  # most texts raise nothing
