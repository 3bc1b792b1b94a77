"""Prompts rendered apart from their completion are those that create_chat_completion decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter

import specllama
from specllama.chat import chat_prompt, prepared
from specllama.drop_in import call_on
from specllama.evidence.answer import answer, first_difference
from specllama.prompts import Prompt, RenderedPrompt

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying, TinyFiles

MESSAGE = "the cat"
MESSAGES: Any = [{"role": "user", "content": MESSAGE}]


def rendered(llm: specllama.Llama, chat: bool) -> RenderedPrompt:
    return Prompt("1", "a", MESSAGE, chat=chat).rendered(llm)


@pytest.mark.parametrize("chat_format", [None, "llama-2", "chatml"])
def test_chat_prompts_are_those_of_create_chat_completion(
    tiny_files: TinyFiles, make_llama: MakeLlama, chat_format: str | None
) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good, chat_format=chat_format)
    response = llm.create_chat_completion(MESSAGES, max_tokens=4, temperature=0.0)
    found = llm.input_ids[: llm.stats.num_prompt_tokens].tolist()
    prompt = chat_prompt(llm, MESSAGES, max_tokens=4, temperature=0.0)
    assert found == prompt.tokens == rendered(llm, chat=True).tokens
    assert response["usage"]["prompt_tokens"] == len(prompt.tokens)
    ours = answer(llm, rendered(llm, chat=True), max_tokens=4, temperature=0.0)
    assert ours.text == response["choices"][0]["message"]["content"]
    assert llm.create_completion(prompt.tokens, **prompt.options)["choices"][0]["text"] == ours.text


def test_a_chat_is_prepared_once_and_answered_often(saying: Saying, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole or as a stream."""
    call = ['<tool_call>\n{"name": "look", "arguments": ', "{}", "}\n</tool_call>"]
    template = "{# name and arguments within <tool_call> #}{{ messages[0].content }}<think>{# </think> #}"
    llm = saying(["I look", "</think>", *call], template)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}]
    chat = prepared(llm, {"messages": MESSAGES, "tools": tools, "temperature": 0.0, "max_tokens": 20})
    monkeypatch.setattr(Jinja2ChatFormatter, "__call__", lambda *_, **__: pytest.fail("it is rendered again"))
    for _ in range(2):
        message = chat.answer(call_on(llm))["choices"][0]["message"]
        deltas = [chunk["choices"][0]["delta"] for chunk in chat.answer(call_on(llm), stream=True)]
        thought = "".join(delta.get("reasoning_content", "") for delta in deltas)
        names = [each["function"]["name"] for delta in deltas for each in delta.get("tool_calls", ()) if "id" in each]
        assert thought == message["reasoning_content"] == "I look"
        assert names == [each["function"]["name"] for each in message["tool_calls"]] == ["look"]


def test_text_prompts_are_those_of_create_completion(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target)
    prompt = rendered(llm, chat=False)
    assert prompt.stop == []
    text = llm.create_completion(MESSAGE, max_tokens=4, temperature=0.0)["choices"][0]["text"]
    assert llm.input_ids[: llm.stats.num_prompt_tokens].tolist() == prompt.tokens
    assert answer(llm, prompt, max_tokens=4, temperature=0.0).text == text


def test_answers_hold_their_tokens_and_statistics(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    given = answer(llm, rendered(llm, chat=False), max_tokens=9, temperature=0.0)
    assert len(given.tokens) == given.stats.num_tokens == 9
    assert given.finish_reason == "length"
    assert llm.detokenize(given.tokens).decode(errors="ignore") == given.text


def test_a_handler_that_completes_nothing_is_named(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, chat_handler=lambda **kwargs: None)
    with pytest.raises(ValueError, match="asks for no completion"):
        chat_prompt(llm, MESSAGES)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
