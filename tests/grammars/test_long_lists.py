"""Lists of thousands of texts, in schemas and in GBNF."""

from __future__ import annotations

import json
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp import LlamaGrammar

from specllama.grammars.schema import NotEnforcedError, matched_schema

if TYPE_CHECKING:
    from conftest import MakeLlama

SECONDS = 5.0
"""A generous bound: 10,000 values take 0.3 s."""


def schema(values: list[Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": {"enum": values}}, "required": ["a"], "additionalProperties": False}


# --- a call with them ------------------------------------------------------------------------------------------------

WAYS = ("response_format", "tool_choice", "grammar")


@pytest.mark.parametrize("way", WAYS)
def test_ten_thousand_values_take_no_time(make_llama: MakeLlama, way: str) -> None:
    """The first call. llama.cpp follows each value by itself, with each token: half a second for each."""
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
