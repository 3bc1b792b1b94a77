"""Schemas of requests: the server enforces the whole of one, or says what cannot be enforced."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")
jsonschema = imported("jsonschema")

from served import Served, serving  # needs the extra
from test_schemas import LARGE_BUT_FOLLOWED, TOO_LARGE

from specllama.grammars.schemas import why_not_enforced

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MESSAGES = [{"role": "user", "content": "hi"}]
STRING: Any = {"type": "string"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


NODE = {**of(value={"type": "integer"}, next={"anyOf": [{"$ref": "#/$defs/Node"}, {"type": "null"}]})}
ENFORCED: dict[str, Any] = {
    "a model": {
        "title": "Answer",
        **of(sure={"type": "boolean", "title": "Sure", "description": "?", "default": True}),
    },
    "lists and texts": of(a={"type": "array", "items": STRING, "minItems": 1}, b={**STRING, "maxLength": 3}),
    "values": of(a={"enum": ["x", "y"]}, b={"const": 3}, c={"type": "string", "enum": ["é"]}),
    "types": of(a={"type": ["string", "null"]}, b={"anyOf": [STRING, {"type": "null"}]}),
    "alternatives": {"oneOf": [of(kind={"const": "a"}), of(kind={"const": "b"})]},
    "definitions": {**of(a={"$ref": "#/$defs/Name"}), "$defs": {"Name": of(first=STRING)}},
    "a tree": {**of(tree={"$ref": "#/$defs/Node"}), "$defs": {"Node": NODE}},
    "formats": of(a={**STRING, "format": "date-time"}, b={**STRING, "format": "uuid"}),
    "a pattern": {**STRING, "pattern": "^[a-z]{2}(x|yz)*$"},
    "a tuple": {"type": "array", "prefixItems": [STRING, {"type": "null"}], "items": False},
    "all": {"allOf": [{"properties": {"a": STRING}}, {"type": "object", "properties": {"b": STRING}}]},
    "a pattern without ends": {**STRING, "pattern": "a+"},
    "a pattern of classes": {**STRING, "pattern": r"^\d+$"},
    "a pattern of alternatives": {**STRING, "pattern": "^a|b$"},
    "a reference at the top": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "no name": of(**{"": STRING}),
    "bounds": of(a={"type": "integer", "minimum": 3}),
    "a bound far down": of(a=of(b={"type": "array", "items": {"type": "number", "multipleOf": 2}})),
    "a format": {**STRING, "format": "email"},
    "types with more": {"type": ["string", "null"], "maxLength": 3},
    "names of any kind": {"type": "object", "patternProperties": {"^a": STRING}},
    "more properties": {**of(a=STRING), "additionalProperties": True},
    "escapes": {"enum": ["a\nb"]},
    "a name twice": {**of(b=of(c=STRING), a={"$ref": "#/$defs/b"}), "$defs": {"b": {"type": "null"}}},
}
REFUSED: dict[str, tuple[Any, str]] = {
    "not": ({**STRING, "not": {"const": "x"}}, "not"),
    "a type that does not exist": ({"type": "text"}, "Invalid type: text"),
    "a reference to nothing": ({"properties": {"a": {"$ref": "#/$defs/b"}}}, "/$defs/b"),
    "lists without repetitions": ({"type": "array", "items": STRING, "uniqueItems": True}, "uniqueItems"),
    "alternatives that overlap": ({"oneOf": [STRING, {**STRING, "maxLength": 3}]}, "oneOf"),
    "an anyOf with more": ({**of(a=STRING), "anyOf": [of(b=STRING)]}, "required property 'a' is unsatisfiable"),
    "a required one that is none": ({**of(a=STRING), "required": ["b"]}, "required property 'b' is unsatisfiable"),
}


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good)) as running:
        yield running


def formats(schema: Any, **more: Any) -> list[dict[str, Any]]:
    """Requests that are to be answered by this schema."""
    tool = {"type": "function", "function": {"name": "f", "parameters": schema, **more}}
    return [
        {"response_format": {"type": "json_object", "schema": schema, **more}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema, **more}}},
        {"tools": [tool], "tool_choice": "required"},
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ENFORCED)
def test_what_is_enforced_is_not_refused(served: Served, name: str) -> None:
    for request in formats(ENFORCED[name]):
        reply = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=150, seed=1, **request)
        assert reply.status_code == 200, reply.text
        assert "warnings" not in reply.json()
        choice = reply.json()["choices"][0]
        if choice["finish_reason"] == "stop":
            jsonschema.validate(json.loads(choice["message"]["content"]), ENFORCED[name])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_enforced_is_refused_by_name(served: Served, name: str) -> None:
    """Without strictness it is a warning."""
    schema, part = REFUSED[name]
    for request in formats(schema):
        reply = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, **request)
        message = reply.json()["error"]["message"]
        assert reply.status_code == 400
        assert '"strict": false' in message
        assert part in message.partition("cannot be enforced: llguidance says: ")[2]
        assert len(message) < 1000
    assert served.app.state.worker.outcomes.total() == 0
    for request in formats(schema, strict=False):
        reply = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, **request)
        assert reply.status_code == 200, reply.text
        (warning,) = reply.json()["warnings"]
        assert part in warning.partition("cannot be enforced: llguidance says: ")[2]
    assert served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, **formats(schema)[0]).status_code == 400


@pytest.mark.long
@pytest.mark.parametrize("name", ["maxItems", "minItems", "definitions of definitions"])
def test_what_would_take_all_memory_is_refused_in_any_case(served: Served, name: str) -> None:
    for request in [*formats(TOO_LARGE[name]), *formats(TOO_LARGE[name], strict=False)]:
        if name in LARGE_BUT_FOLLOWED and "tools" not in request:
            continue
        reply = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, **request)
        assert reply.status_code == 400
        message = reply.json()["error"]["message"]
        assert "makes a grammar of more than" in message or "cannot be enforced: minItems and maxItems" in message


def test_a_tool_that_is_not_called_is_not_looked_at(served: Served) -> None:
    request = formats(REFUSED["not"][0])[2]
    reply = served.post("/v1/chat/completions", messages=MESSAGES, max_tokens=4, tools=request["tools"])
    assert reply.status_code == 200


def test_without_a_schema_there_is_nothing_to_enforce() -> None:
    assert why_not_enforced({}) is None
    assert why_not_enforced({"response_format": {"type": "json_object"}}) is None
