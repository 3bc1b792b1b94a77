"""Prompts rendered apart from their completion are those that create_chat_completion decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from specllama.chat import render_chat, render_text
from specllama.evidence.answer import answer, first_difference

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MESSAGE = "the cat"


@pytest.mark.parametrize("chat_format", [None, "llama-2", "chatml"])
def test_chat_prompts_are_those_of_create_chat_completion(
    tiny_files: TinyFiles, make_llama: MakeLlama, chat_format: str | None
) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good, chat_format=chat_format)
    rendered = render_chat(llm, MESSAGE)
    response = llm.create_chat_completion([{"role": "user", "content": MESSAGE}], max_tokens=4, temperature=0.0)
    assert llm.input_ids[: llm.stats.num_prompt_tokens].tolist() == rendered.tokens
    assert response["usage"]["prompt_tokens"] == len(rendered.tokens)
    ours = answer(llm, rendered, max_tokens=4, temperature=0.0)
    assert ours.text == response["choices"][0]["message"]["content"]


def test_text_prompts_are_those_of_create_completion(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target)
    rendered = render_text(llm, MESSAGE)
    assert rendered.stop == []
    text = llm.create_completion(MESSAGE, max_tokens=4, temperature=0.0)["choices"][0]["text"]
    assert llm.input_ids[: llm.stats.num_prompt_tokens].tolist() == rendered.tokens
    assert answer(llm, rendered, max_tokens=4, temperature=0.0).text == text


def test_answers_hold_their_tokens_and_statistics(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    given = answer(llm, render_text(llm, MESSAGE), max_tokens=9, temperature=0.0)
    assert len(given.tokens) == given.stats.num_tokens == 9
    assert given.finish_reason == "length"
    assert llm.detokenize(given.tokens).decode(errors="ignore") == given.text


def test_a_handler_that_completes_nothing_is_named(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, chat_handler=lambda **kwargs: None)
    with pytest.raises(ValueError, match="asks for no completion"):
        render_chat(llm, MESSAGE)


def test_first_difference() -> None:
    assert first_difference([1, 2], [1, 2]) is None
    assert first_difference([1, 2], [1, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
