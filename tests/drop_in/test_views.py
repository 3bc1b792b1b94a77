"""Chats are given a view of the Llama: it is the Llama, and knows what the call asks for."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from responses import comparable

import specllama
from specllama.chat import chat_prompt
from specllama.drop_in.view import View, call_on
from specllama.drop_in.watch import Watch

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

MESSAGES: Any = [{"role": "user", "content": "the cat sat"}]
OPTIONS: dict[str, Any] = {"max_tokens": 9, "temperature": 0.0}


class Overriding(specllama.Llama):
    """Does something around each completion."""

    asked: list[Any]

    def create_completion(self, *args: Any, **kwargs: Any) -> Any:
        self.asked.append(kwargs.get("prompt", args))
        return super().create_completion(*args, **kwargs)


def test_a_subclass_that_overrides_completions_is_asked_by_chats(tiny_files: TinyFiles) -> None:
    settings = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    llm = Overriding(str(tiny_files.target), draft_model=str(tiny_files.good), **settings)
    plain = specllama.Llama(str(tiny_files.target), **settings)
    llm.asked = []
    answer = llm.create_chat_completion(MESSAGES, num_draft_tokens=3, **OPTIONS)
    assert comparable(answer) == comparable(plain.create_chat_completion(MESSAGES, **OPTIONS))
    assert len(llm.asked) == 1
    assert llm.stats.num_draft_tokens > 0, "the options of the call have come through"
    outcomes = llm.create_chat_completions([MESSAGES] * 3, **OPTIONS)
    assert {outcome.text for outcome in outcomes} == {answer["choices"][0]["message"]["content"]}
    assert len(llm.asked) == 4
    llm.close()
    plain.close()


def test_a_view_is_the_llama(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    watch = Watch()
    view: Any = View(llm, call_on(llm, watch=watch))
    assert isinstance(view, specllama.Llama)
    assert isinstance(view, llama_cpp.Llama)
    assert view.n_ctx() == llm.n_ctx()
    view.num_draft_tokens = 2
    assert llm.num_draft_tokens == 2
    assert view("the cat", **OPTIONS)["choices"] == llm("the cat", **OPTIONS)["choices"]
    assert watch.num_shown == 9
    assert llm("the cat", **OPTIONS, call=call_on(view, is_prompt_only=True))["usage"]["completion_tokens"] == 0
    assert watch.num_shown == 9


def test_a_call_that_is_none_is_no_argument(make_llama: MakeLlama) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'call'"):
        make_llama().create_completion("the cat", call={"watch": Watch()})


@pytest.fixture
def handled(make_llama: MakeLlama) -> Any:
    """A Llama whose chats a function answers."""

    def make(handler: Any) -> specllama.Llama:
        llm = make_llama()
        llm.chat_handler = handler
        return llm

    return make


def test_a_handler_that_decodes_by_itself(handled: Any, make_llama: MakeLlama) -> None:
    """As llama_cpp's own for images do: it evaluates a part of the prompt, and goes on behind it."""

    def handler(*, llama: Any, messages: Any, **options: Any) -> Any:
        tokens = llama.tokenize(b"the cat sat on", special=True)
        llama.reset()
        llama.eval(tokens)
        assert llama.n_tokens == len(tokens)
        prompt = [*llama.input_ids[: llama.n_tokens].tolist(), *llama.tokenize(b" the dog", add_bos=False)]
        return llama.create_completion(prompt=prompt, max_tokens=options["max_tokens"], temperature=0.0)

    llm = handled(handler)
    tokens = [*llm.tokenize(b"the cat sat on", special=True), *llm.tokenize(b" the dog", add_bos=False)]
    expected = make_llama().create_completion(tokens, **OPTIONS)
    assert llm.create_chat_completion(MESSAGES, **OPTIONS)["choices"] == expected["choices"]
    assert llm.stats.num_prompt_tokens_reused > 0
    (outcome,) = llm.create_chat_completions([MESSAGES], **OPTIONS, max_parallel=1)
    assert outcome.error is None
    for outcome in llm.create_chat_completions([MESSAGES] * 2, **OPTIONS):
        assert isinstance(outcome.error, ValueError), "several texts share a context, in which nothing else decodes"
        assert "needs the Llama for one text alone" in str(outcome.error)


def test_a_handler_that_asks_again_is_rendered_by_its_first_prompt(handled: Any) -> None:
    def handler(*, llama: Any, messages: Any, **_: Any) -> Any:
        numbers = itertools.count()
        while True:
            answer = llama.create_completion(prompt=f"the cat {next(numbers)}", max_tokens=2)
            if "no such text" in answer["choices"][0]["text"]:
                return answer

    call = chat_prompt(handled(handler), MESSAGES)
    assert call.text == "the cat 0"
    assert call.options["max_tokens"] == 2


def test_a_lent_draft_that_drafts_stays_open(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    """Its owner is told that it is busy, and may close it later."""
    draft = make_base(tiny_files.good, n_ctx=256)
    llm = make_llama(draft=draft, n_ctx=256)
    errors: list[BaseException] = []

    def close_in_a_thread(ids: Any, scores: Any) -> Any:
        def close() -> None:
            try:
                draft.close()
            except specllama.BusyError as error:
                errors.append(error)

        thread = threading.Thread(target=close)
        thread.start()
        thread.join()
        return scores

    text = llm.create_completion("the cat", logits_processor=[close_in_a_thread], num_draft_tokens=3, **OPTIONS)
    assert text["choices"][0]["text"]
    assert errors or draft._model.model is None
    if errors:
        assert draft.create_completion("the cat", max_tokens=3)["choices"][0]["text"]
        draft.close()
    assert draft._model.model is None
