"""Arguments of a chat that llama_cpp would pass over: each is refused by its name, and what is near is said."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp.llama_grammar import LlamaGrammar

from specllama import Conversation

if TYPE_CHECKING:
    from conftest import MakeLlama

    import specllama

HI = [{"role": "user", "content": "hi"}]
FUNCTION = {"name": "look", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CHOICE = {"type": "function", "function": {"name": "look"}}
JSON = {"type": "json_object"}
GRAMMAR = LlamaGrammar.from_string('root ::= "x"', verbose=False)

BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"messages": "hi"}, TypeError, "messages='hi' must be a list of messages, such as"),
    ({"messages": []}, ValueError, "there are no messages: give one at least, such as"),
    ({"messages": None}, TypeError, "messages=None must be a list"),
    ({"messages": iter([])}, TypeError, "must be a list of messages"),
    ({"messages": ["hi"]}, TypeError, "the message 'hi' must be a dict"),
    ({"messages": [{"content": "hi"}]}, ValueError, "has no role: give one"),
    ({"messages": [{"role": "user", "contnet": "hi"}]}, ValueError, "no field 'contnet': did you mean content"),
    ({"tools": 5}, TypeError, "tools=5 must be a list"),
    ({"functions": "look"}, TypeError, "functions='look' must be a list"),
    ({"response_format": "json"}, TypeError, "response_format='json' must be a dict"),
    ({"response_format": {"type": "zzz"}}, ValueError, "the type 'zzz': it must be one of text, json_object"),
    ({"response_format": {"type": "json_schema"}}, ValueError, "needs json_schema.schema, an object"),
    ({"response_format": {**JSON, "shema": {}}}, ValueError, "no field 'shema': did you mean schema"),
    ({"response_format": JSON, "grammar": GRAMMAR}, ValueError, "response_format and grammar both say"),
    ({"tools": TOOLS, "tool_choice": CHOICE, "grammar": GRAMMAR}, ValueError, "tool_choice and grammar both say"),
    ({"tools": TOOLS, "tool_choice": CHOICE, "response_format": JSON}, ValueError, "and response_format both say"),
    ({"tools": TOOLS, "functions": [FUNCTION]}, ValueError, "tools and functions mean the same"),
    ({"tools": TOOLS, "tool_choice": "auto", "function_call": "auto"}, ValueError, "and function_call mean the same"),
    ({"tool_choice": CHOICE}, ValueError, "tool_choice names the function 'look', and there are no tools"),
    ({"function_call": {"name": "look"}}, ValueError, "function_call names the function 'look', and there are no"),
    (
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "lok"}}},
        ValueError,
        "'lok', which is not among the tools: did you mean look",
    ),
    ({"tool_choice": "required"}, ValueError, "tool_choice='required' and there are no tools with"),
    ({"tools": [{"type": "function"}], "tool_choice": "required"}, ValueError, "and there are no tools with a name"),
    ({"tools": TOOLS, "tool_choice": "any"}, ValueError, "tool_choice='any' must be 'none', 'auto', 'required', or"),
    ({"functions": [FUNCTION], "function_call": "required"}, ValueError, "function_call='required' must be 'none'"),
    ({"tools": TOOLS, "tool_choice": {"name": "look"}}, ValueError, "tool_choice={'name': 'look'} must be"),
    ({"chat_template_kwargs": ["x"]}, TypeError, "chat_template_kwargs=['x'] must be a dict"),
    ({"chat_template_kwargs": {"messages": []}}, ValueError, "chat_template_kwargs has 'messages', which"),
    ({"reasoning_effort": 3}, TypeError, "reasoning_effort=3 must be a text"),
    ({"top_logprobs": 3}, ValueError, "top_logprobs=3 needs logprobs=True"),
]


@pytest.fixture
def llm(make_llama: MakeLlama) -> specllama.Llama:
    return make_llama()


@pytest.mark.parametrize("number", range(len(BAD)))
def test_it_is_refused_by_name(llm: specllama.Llama, number: int) -> None:
    given, error, why = BAD[number]
    arguments = {"messages": HI, "max_tokens": 2, **given}
    with pytest.raises(error) as caught:
        llm.create_chat_completion(**arguments)
    assert why in str(caught.value) and len(str(caught.value)) < 300
    (outcome,) = llm.create_chat_completions([arguments])
    assert str(outcome.error) == str(caught.value)


def test_a_text_that_is_no_chat(llm: specllama.Llama) -> None:
    (outcome,) = llm.create_chat_completions(["hi"], max_tokens=2)
    assert "messages='hi' must be a list of messages" in str(outcome.error)


@pytest.mark.parametrize(
    "given",
    [
        {"tools": TOOLS, "tool_choice": CHOICE},
        {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": None},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": FUNCTION["parameters"]}}},
        {"functions": [FUNCTION], "function_call": {"name": "look"}},
        {"tools": TOOLS, "tool_choice": "auto", "response_format": JSON},
        {"tools": TOOLS, "tool_choice": "none", "grammar": GRAMMAR},
        {"response_format": {"type": "text"}, "grammar": GRAMMAR},
        {"logprobs": True, "top_logprobs": 2},
        {"top_logprobs": 0},
        {"messages": [*HI, {"role": "assistant", "content": "a", "refusal": None, "tool_calls": None}, *HI]},
    ],
)
def test_what_has_a_meaning(llm: specllama.Llama, given: dict[str, Any]) -> None:
    assert llm.create_chat_completion(**{"messages": HI, "max_tokens": 2, **given})["choices"]


def test_logprobs_without_alternatives(llm: specllama.Llama) -> None:
    """llama_cpp gives none at all then."""
    answer = llm.create_chat_completion(HI, max_tokens=3, temperature=0.0, logprobs=True)
    entries = answer["choices"][0]["logprobs"]["content"]
    assert len(entries) == 3 and all(entry["logprob"] <= 0 for entry in entries)
    assert all(token.logprob is not None for token in Conversation(llm, max_tokens=3, logprobs=True).say("hi"))


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_conversation_refuses_it_too(llm: specllama.Llama, number: int) -> None:
    given, error, why = BAD[number]
    options = {name: value for name, value in given.items() if name != "messages"}
    if options:
        with pytest.raises(error, match=re.escape(why)):
            list(Conversation(llm, **options).say("hi"))


@pytest.mark.parametrize("chat_format", ["chatml", "chatml-function-calling", "functionary"])
def test_what_a_handler_of_llama_cpp_leaves_out(make_llama: MakeLlama, chat_format: str) -> None:
    llm = make_llama(chat_format=chat_format)
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0}

    def said(**more: Any) -> Any:
        return llm.create_chat_completion(HI, **options, **more)["choices"][0]["message"]["content"]

    assert said(seed=5) == said(seed=5) != said(seed=6)
    cat = llm.tokenize(b" cat", add_bos=False)[-1]
    biased = said(logit_bias={cat: 100.0})
    assert biased.split() == [llm.detokenize([cat]).decode().strip()] * 12
    assert "".join(token.text for token in Conversation(llm, **options).say("hi", seed=5)) == said(seed=5)
    whole = said(seed=5)
    stop = next(letter for letter in whole[2:] if letter.isascii() and letter.isalpha())
    assert said(seed=5, stop=stop) == whole[: whole.index(stop)]
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    options["max_tokens"] = 40
    assert json.loads(said(seed=5, response_format={**JSON, "schema": schema})) == {"a": "x"}
    answer = llm.create_chat_completion(HI, max_tokens=2, logprobs=True)
    assert len(answer["choices"][0]["logprobs"]["content"]) == 2


def test_fields_that_the_template_reads(llm: specllama.Llama) -> None:
    llm.metadata["tokenizer.chat_template"] = "{{ message.mood }}"
    assert llm.create_chat_completion([{"role": "user", "content": "hi", "mood": "good"}], max_tokens=2)["choices"]
