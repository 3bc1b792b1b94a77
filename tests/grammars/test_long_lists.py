"""Lists of thousands of texts: in schemas, and in GBNF, where they are written as trees."""

from __future__ import annotations

import itertools
import json
import re
import time
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from llama_cpp import LlamaGrammar

from specllama.grammars.gbnf import check_gbnf
from specllama.grammars.literals import with_trees
from specllama.grammars.schema import NotEnforcedError, matched_schema

if TYPE_CHECKING:
    from conftest import MakeLlama

SECONDS = 5.0
"""A generous bound: 10,000 values take 0.3 s."""
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[()|]')


def schema(values: list[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"enum": values}}, "required": ["a"], "additionalProperties": False}


def listed(texts: list[str]) -> str:
    return " | ".join(f'"{text}"' for text in texts)


def expanded(tree: str) -> list[str]:
    """All texts of literals, alternatives and groups."""

    def alternatives(tokens: Iterator[str]) -> list[str]:
        found, sequence = list[str](), [""]
        for token in tokens:
            if token == ")":
                break
            if token == "|":
                found, sequence = found + sequence, [""]
            else:
                more = alternatives(tokens) if token == "(" else [token[1:-1]]
                sequence = [one + other for one, other in itertools.product(sequence, more)]
        return found + sequence

    return alternatives(iter(_TOKEN.findall(tree)))


@given(st.lists(st.text(r'ab"\n\\', max_size=6).map(lambda text: json.dumps(text)[1:-1]), min_size=40, max_size=90))
def test_a_tree_has_the_same_texts(texts: list[str]) -> None:
    tree = with_trees(f"root ::= {listed(texts)}")
    assert sorted(expanded(tree.removeprefix("root ::="))) == sorted(set(texts))


@pytest.mark.parametrize(
    "around",
    [
        "root ::= {}",
        "root ::= ({}) end\nend ::= [.]",
        "root ::= end | {} | end\nend ::= [.]",
        "root ::= end {} end\nend ::= [.]",  # the first and the last text are in sequences
        "root ::= {} end\nend ::= [.]",
        "root ::= end ({})* end # a | b\nend ::= [.]",
        'root ::= [^"] {}',
    ],
)
def test_what_stands_beside_a_list_keeps_its_place(around: str) -> None:
    texts = [f"text {i}" for i in range(50)]
    made = with_trees(around.format(listed(texts)))
    assert with_trees(made) == made != around.format(listed(texts))
    behind, before = (part.strip() for part in reversed(around.split("{}")))
    first, last = '"text 0" |' in made, '| "text 49"' in made
    assert first == before.endswith(("end", "]"))
    assert last == behind.startswith("end")
    check_gbnf(made)
    LlamaGrammar.from_string(made, verbose=False)


def test_what_is_no_list_stays() -> None:
    for text in (
        f"root ::= {listed(['a', 'b'])}",
        f"# {listed([str(i) for i in range(50)])}\nroot ::= [a]",
        'root ::= ["|] | "a" ("b" | "c")?',
        'root ::= "not closed',
        "root ::= [ab]" + " | [ab]" * 50 + ' | "' + "a" * 1_000_000,  # nor does it take forever
    ):
        assert with_trees(text) == text


def test_a_tree_is_never_deep() -> None:
    tree = with_trees(f"root ::= {listed(['a' * i for i in range(3000)])}")
    assert max(itertools.accumulate({"(": 1, ")": -1}.get(one, 0) for one in tree)) <= 20
    assert len(expanded(tree.removeprefix("root ::="))) == 3000


# --- a call with them ------------------------------------------------------------------------------------------------

WAYS = ("response_format", "tool_choice", "grammar")


@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_values_take_no_time(make_llama: MakeLlama, way: str) -> None:
    """The first call. Each value was followed by itself, with each token: half a second for each."""
    values = [f"{way} {i}" for i in range(10_000)]
    text = json.dumps(schema(values))
    options: dict[str, Any] = {"response_format": {"type": "json_object", "schema": schema(values)}}
    if way == "tool_choice":
        tool = {"type": "function", "function": {"name": "f", "parameters": schema(values)}}
        options = {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "f"}}}
    elif way == "grammar":
        options = {"grammar": LlamaGrammar.from_json_schema(text, verbose=False)}
    llm = make_llama(n_ctx=512)
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer = llm.create_chat_completion([{"role": "user", "content": "x"}], max_tokens=100, seed=1, **options)
    assert time.process_time() - begun < SECONDS
    message = answer["choices"][0]["message"]
    said = message["tool_calls"][0]["function"]["arguments"] if way == "tool_choice" else message["content"]
    assert json.loads(said)["a"] in values


def test_a_hundred_thousand_values_are_enforced() -> None:
    begun = time.process_time()
    assert matched_schema(json.dumps(schema([f"number {i}" for i in range(100_000)])))
    assert time.process_time() - begun < 6 * SECONDS


def test_more_is_refused_with_the_limits() -> None:
    said = (
        r"characters of schema, \d+ of them of texts and numbers in enum: at most 5000000 of these, and 100000 others"
    )
    for refused in (
        schema([f"{'x' * 1000}{i}" for i in range(5_000)]),
        {"enum": [{"a": "x" * 100, "b": i} for i in range(1000)]},  # objects are no texts
        {"const": {"enum": ["x" * 100] * 1000}},  # and this is none
        {"type": "object", "properties": {f"property {i}": {"type": "integer"} for i in range(5000)}},
    ):
        with pytest.raises(NotEnforcedError, match=said):
            matched_schema(json.dumps(refused))
