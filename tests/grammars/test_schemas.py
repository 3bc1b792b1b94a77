"""JSON schemas that cannot be enforced: llama_cpp says nothing, we do. And those that its converter must not get."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp.llama_grammar import json_schema_to_gbnf

from specllama import Conversation
from specllama.grammars.schema_converter import grammar_of_schema
from specllama.grammars.schemas import warn_of_schemas, why_not_enforced

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MESSAGES: Any = [{"role": "user", "content": "the cat"}]
GOOD = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}}, "required": ["name"]}
BAD: dict[str, Any] = {
    "llama_cpp makes a grammar of a part": {"type": "string", "maxLength": 3, "not": {"const": "x"}},
    "llama_cpp takes any JSON": {"type": "string", "pattern": "a+", "not": {"const": "x"}},
}
NOT_ENFORCED = r'cannot be enforced: llguidance says: .*"not".*; the answer may not follow all of it'


def tool(name: str, schema: Any) -> Any:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


@pytest.mark.parametrize("name", BAD)
def test_a_schema_that_is_not_followed_is_named(make_llama: MakeLlama, tiny_files: TinyFiles, name: str) -> None:
    llm = make_llama(draft=tiny_files.good)
    response_format: Any = {"type": "json_object", "schema": BAD[name]}
    with pytest.warns(UserWarning, match="the schema of response_format " + NOT_ENFORCED):
        llm.create_chat_completion(MESSAGES, response_format=response_format, max_tokens=4)
    with pytest.warns(UserWarning, match="the schema of the tool 'look' " + NOT_ENFORCED) as caught:
        llm.create_chat_completion(
            MESSAGES,
            tools=[tool("other", GOOD), tool("look", BAD[name])],
            tool_choice={"type": "function", "function": {"name": "look"}},
            max_tokens=4,
        )
    assert caught[0].filename == __file__
    with pytest.warns(UserWarning, match="the schema of the tool 'look' " + NOT_ENFORCED):
        llm.create_chat_completion(
            MESSAGES,
            functions=[{"name": "look", "parameters": BAD[name]}],
            function_call={"name": "look"},
            max_tokens=4,
        )


def test_a_conversation_names_it_too(make_llama: MakeLlama) -> None:
    talk = Conversation(
        make_llama(), response_format={"type": "json_object", "schema": BAD["llama_cpp takes any JSON"]}
    )
    with pytest.warns(UserWarning, match="the schema of response_format " + NOT_ENFORCED) as caught:
        list(talk.say("the cat", max_tokens=4))
    assert caught[0].filename == __file__


ARRAY: Any = {"type": "array", "items": {"type": "null"}}
TOO_LARGE: dict[str, Any] = {
    "minItems": {**ARRAY, "minItems": 10**9},
    "maxItems": {"type": "object", "properties": {"list": {**ARRAY, "maxItems": 10**9}}},
    "maxLength": {"type": "string", "maxLength": 10**4000},
    "a pattern": {"type": "string", "pattern": "^[a-z]{2} *{0 , 1_000_000_000}$"},
    "a long name": {
        "type": "object",
        "properties": {"x": {**ARRAY, "items": {"$ref": "#/$defs/" + "y" * 10_000}, "maxItems": 9000}},
        "$defs": {"y" * 10_000: {"type": "null"}},
    },
    "definitions of definitions": {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/d_0"}},
        "$defs": {
            **{f"d_{i}": {"anyOf": [{"$ref": f"#/$defs/d_{i + 1}"}] * 2} for i in range(40)},
            "d_40": {"type": "null"},
        },
    },
}
LARGE_BUT_FOLLOWED = {"a long name", "definitions of definitions"}  # by llguidance, which makes no grammar of text


@pytest.mark.long
@pytest.mark.parametrize("name", TOO_LARGE)
def test_a_schema_that_would_take_all_memory(make_llama: MakeLlama, name: str) -> None:
    llm = make_llama()
    response_format: Any = {"type": "json_object", "schema": TOO_LARGE[name]}
    called: Any = {
        "tools": [tool("look", TOO_LARGE[name])],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
    }
    refused: list[dict[str, Any]] = [called, {"response_format": response_format}]
    if name in LARGE_BUT_FOLLOWED:
        refused.pop()
        llm.create_chat_completion(MESSAGES, max_tokens=2, response_format=response_format)
    for options in refused:
        with pytest.raises(ValueError, match="makes a grammar of more than 20000000 characters") as caught:
            llm.create_chat_completion(MESSAGES, max_tokens=2, **options)
        assert len(str(caught.value)) < 300


LARGE_BUT_IGNORED: dict[str, Any] = {
    "a list of types": {"type": ["string", "null"], "maxLength": 2**31 - 1},
    "a format": {"type": "string", "format": "date-time", "maxLength": 2**31 - 1},
    "a pattern": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 2**31 - 1},
    "a reference": {"properties": {"x": {"$ref": "#/$defs/y", "maxItems": 10**9}}, "$defs": {"y": {"type": "null"}}},
    "no items": {"type": "array", "maxItems": 10**9},
    "an enum": {"type": "string", "enum": ["a"], "maxLength": 10**9},
    "an object": {"properties": {"x": {"type": "null"}}, "items": {"type": "null"}, "maxItems": 10**9},
    "a tuple": {"type": "array", "items": [{"type": "null"}], "maxItems": 10**9},
}


@pytest.mark.parametrize("name", LARGE_BUT_IGNORED)
def test_what_the_converter_ignores_is_not_too_large(name: str) -> None:
    text = json.dumps(LARGE_BUT_IGNORED[name])
    assert grammar_of_schema(text) == json_schema_to_gbnf(text)


def test_many_optional_properties_are_not_too_large() -> None:
    schema = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(600)}}
    assert grammar_of_schema(json.dumps(schema)) == json_schema_to_gbnf(json.dumps(schema))


def test_a_schema_that_is_nested_too_deeply(make_llama: MakeLlama) -> None:
    schema: Any = {"type": "null"}
    for _ in range(5000):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(ValueError, match="the schema of response_format is nested too deeply"):
        make_llama().create_chat_completion(
            MESSAGES, response_format={"type": "json_object", "schema": schema}, max_tokens=2
        )


def test_a_schema_with_more_optional_properties_than_the_converter_follows(make_llama: MakeLlama) -> None:
    """It calls itself for each."""
    schema = {"type": "object", "properties": {f"p{i}": {"type": "null"} for i in range(1200)}}
    with pytest.raises(RecursionError):
        json_schema_to_gbnf(json.dumps(schema))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        answer: Any = make_llama().create_chat_completion(
            MESSAGES, response_format={"type": "json_object", "schema": schema}, max_tokens=2, temperature=0.0
        )
    assert '{"p'.startswith(answer["choices"][0]["message"]["content"][:3])


def test_what_the_schema_says_is_cut_and_escaped(make_llama: MakeLlama) -> None:
    """It comes from whoever asks a server."""
    schema = {"type": "\x1b[31mred" + "d" * 10_000}
    with pytest.warns(UserWarning, match="cannot be enforced") as caught:
        make_llama().create_chat_completion(
            MESSAGES, response_format={"type": "json_object", "schema": schema}, max_tokens=2
        )
    message = str(caught[0].message)
    assert "\x1b" not in message
    assert len(message) < 400


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?!x)y", "(?!x)y error: look-around, including look-ahead and look-behind, is not supported"),
        ("(a)\\1", "error: backreferences are not supported"),
        ("(" + "ab" * 300, "error: unclosed group"),
        ("(a\nb", "error: unclosed group"),
        ("\\bx", "lookarounds not supported yet"),
    ],
)
def test_why_a_pattern_is_not_enforced(pattern: str, why: str) -> None:
    """The reason stands in the last line of several, and is said though the pattern is long."""
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}, "required": ["a"]}
    said = why_not_enforced({"response_format": {"type": "json_object", "schema": schema}})
    assert said is not None
    assert why in said
    assert "\n" not in said
    assert len(said) < 300


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": {"type": "any"}},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}, "tools": [{"type": "code_interpreter"}, 3]},
        {"tool_choice": {"type": "function", "function": {"name": "look"}}, "tools": [{"function": {"name": "look"}}]},
        {"response_format": {"type": "json_object", "schema": {1, 2}}},
        {"response_format": 7},
        {"function_call": {"name": "look"}, "functions": ["look"]},
    ],
)
def test_what_is_malformed_is_left_to_llama_cpp(options: dict[str, Any]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_schemas(options)
    assert caught == []


def test_other_chats_are_not_warned_of(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    options: list[dict[str, Any]] = [
        {},
        {"response_format": {"type": "text"}},
        {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_object", "schema": GOOD}},
        {"tools": [tool("look", GOOD)], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"tools": [tool("look", BAD["llama_cpp takes any JSON"])]},  # it need not be called
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in options:
            llm.create_chat_completion(MESSAGES, max_tokens=4, **each)
    assert caught == []
