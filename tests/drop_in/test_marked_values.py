"""Values in the forms of Gemma and LFM2: whatever its grammar allows is read as arguments that the schema allows."""

from __future__ import annotations

import json
import random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from llguidance import LLMatcher, LLTokenizer
from test_tool_formats import read

from specllama.chat.formats.forced import forced_calls
from specllama.chat.formats.gemma import FUNCTION_GEMMA, GEMMA4
from specllama.chat.formats.kinds import FORMATS
from specllama.chat.formats.lfm2 import LFM2

BYTES = LLTokenizer("byte")
QUOTES = {GEMMA4.name: '<|"|>', FUNCTION_GEMMA.name: "<escape>", LFM2.name: '"'}
_SHORT = 40  # characters of a drawn answer before it is brought to its end


def matcher(form: str, schema: Any) -> LLMatcher:
    [written] = [each.written for each in FORMATS if each.name == form]
    assert written is not None
    found = LLMatcher(BYTES, forced_calls(written, {"look": schema}, lambda _: None, several=False))
    assert not found.is_error(), found.get_error()
    return found


def drawn(form: str, schema: Any, rng: random.Random) -> str:
    """An answer that the grammar allows."""
    found, text = matcher(form, schema), b""
    while not found.is_stopped():
        mask = found.compute_bitmask()
        allowed = [byte for byte in range(256) if mask[byte // 8] >> byte % 8 & 1]
        if not allowed:
            break
        byte = rng.choice([each for each in allowed if 32 <= each < 127] or allowed)
        if len(text) > _SHORT:
            byte = next((each for each in closing(text, QUOTES[form]) if each in allowed), byte)
        assert found.consume_token(byte)
        text += bytes([byte])
    return text.decode()


def closing(text: bytes, quote: str) -> list[int]:
    """What brings an answer nearer to its end: the rest of a mark around a text, or a bracket."""
    mark = quote.encode()
    begun = max((size for size in range(len(mark)) if text.endswith(mark[:size])), default=0)
    return [mark[begun], *b"}])", mark[0]]


SCALARS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "integer", "minimum": -3, "maximum": 120},
        {"type": "number"},
        {"type": "boolean"},
        {"type": "null"},
        {"enum": ["a b", 1, None, True, {"k": ["v", {}]}, []]},
        {"const": "x:y"},
        {"type": ["string", "null"]},
        {"$ref": "#/$defs/tree"},
        {},
    ]
)
NAMES = st.sampled_from(["n", "path", "Zoom", "odd key", "a:b", "é"])


def _of_parts(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    properties = st.dictionaries(NAMES, parts, min_size=1, max_size=4)
    objects = properties.flatmap(
        lambda those: st.lists(st.sampled_from([*those]), unique=True).map(
            lambda required: {
                "type": "object",
                "properties": those,
                "required": required,
                "additionalProperties": False,
            }
        )
    )
    counts = st.tuples(st.integers(0, 2), st.integers(0, 2) | st.none()).map(
        lambda two: {"minItems": two[0], **({} if two[1] is None else {"maxItems": two[0] + two[1]})}
    )
    lists = st.builds(lambda items, count: {"type": "array", "items": items, **count}, parts, counts)
    first = st.builds(
        lambda before, items, count: {"type": "array", "prefixItems": before, "items": items, **count},
        st.lists(parts, min_size=1, max_size=3),
        parts | st.just(False),
        counts.filter(lambda count: count["minItems"] < 2),
    )
    maps = st.builds(lambda others: {"type": "object", "additionalProperties": others}, parts | st.just(False))
    either = st.lists(parts, min_size=1, max_size=3).map(lambda those: {"anyOf": those})
    return objects | lists | first | maps | either


TREE = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
    "required": ["name"],
    "additionalProperties": False,
}
SCHEMAS = st.builds(
    lambda part, is_needed: {
        "type": "object",
        "properties": {"value": part, "z": {"type": "boolean"}},
        "required": ["value"] if is_needed else [],
        "additionalProperties": False,
        "$defs": {"tree": TREE},
    },
    st.recursive(SCALARS, _of_parts, max_leaves=6),
    st.booleans(),
)


@given(st.sampled_from([*QUOTES]), SCHEMAS, st.randoms(use_true_random=False))
def test_what_is_allowed_is_read_as_what_the_schema_allows(form: str, schema: Any, rng: random.Random) -> None:
    text = drawn(form, schema, rng)
    said = read(form, [text])
    [(name, arguments)] = said["calls"]
    assert (name, said["content"]) == ("look", ""), text
    jsonschema.validate(json.loads(arguments), schema)


ALLOWED: list[tuple[Any, str]] = [
    ({"type": "string"}, '<|"|>a "b"\n<<|"|>'),
    ({"type": "string"}, '<|"|><|"|>'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1,2,3]"),
    ({"type": "object", "properties": {"b": {}, "a": {}, "c": {}}, "required": ["b"]}, "{b:[],c:{d:1}}"),
    ({"type": "object", "properties": {"b": {}, "a": {}, "c": {}}, "required": ["b"]}, '{a:null,b:<|"|>x<|"|>}'),
    ({"type": "object", "properties": {"a b": {"type": "number"}}}, '{<|"|>a b<|"|>:-1.5e3}'),
    ({"$ref": "#/$defs/tree"}, '{kids:[{name:<|"|>b<|"|>}],name:<|"|>a<|"|>}'),
]
FORBIDDEN: list[tuple[Any, str]] = [
    ({"type": "string"}, "1"),
    ({"type": "string"}, '"a"'),
    ({"type": "integer"}, "1.5"),
    ({"enum": ["a", "b"]}, '<|"|>c<|"|>'),
    ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, "[1]"),
    ({"type": "array", "prefixItems": [{"type": "null"}], "items": False, "minItems": 1}, "[null,null]"),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "required": ["b"]}, "{a:1}"),
    ({"type": "object", "properties": {"a": {}}}, "{q:1}"),
    ({"$ref": "#/$defs/tree"}, "{kids:[]}"),
]


@pytest.mark.parametrize("is_allowed", [True, False])
def test_values(is_allowed: bool) -> None:
    for value, text in ALLOWED if is_allowed else FORBIDDEN:
        schema = {"properties": {"value": value}, "required": ["value"], "$defs": {"tree": TREE}}
        found = matcher("gemma4", schema)
        whole = f"<|tool_call>call:look{{value:{text}}}<tool_call|>".encode()
        follows = found.try_consume_tokens(list(whole)) == len(whole)
        assert follows == is_allowed, (value, text)
