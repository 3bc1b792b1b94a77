"""Chats of several turns: nothing is decoded twice, nothing is lost, and what the template wants is what is read."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import hypothesis
import hypothesis.strategies as st
import pytest
import tiny_models as tiny

import specllama
from specllama.chat import chat_prompt
from specllama.conversation import Conversation, _text_behind
from specllama.drop_in.prompt_tokens import continuation_tokens

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles, WithTemplate

SAMPLING: dict[str, Any] = {"temperature": 0.9, "seed": 3, "max_tokens": 20}
SAID = ("the cat sat on the dog and", "no fox", "a dog")
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
REASONING = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'][5:] if m['role'] == 'assistant' else m['content'] }}\n"
    "{% endfor %}assistant:"
)
REFUSING = (
    "{% for m in messages %}{% if 'dog' in m['content'] %}{{ raise_exception('no dogs here') }}{% endif %}"
    "{{ m['content'] }}\n{% endfor %}"
)


@pytest.fixture(scope="session")
def chatml_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the special tokens of ChatML, which ends its answers now and then."""
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1)
    weights["output.weight"][260, 0] = 0.3
    for token, text in ((259, "<|im_start|>"), (260, "<|im_end|>")):
        words.tokens[token], words.types[token] = text, int(gguf.TokenType.CONTROL)
    words = dataclasses.replace(words, eos=260, chat_template=CHATML)
    return tiny.write_llama(tmp_path_factory.mktemp("chatml") / "chatml.gguf", words, weights)


def said(conversation: Conversation, message: str, **options: Any) -> str:
    """The answer's text."""
    return "".join(token.text for token in conversation.say(message, **options))


def seen(llm: specllama.Llama) -> list[int]:
    """The tokens in the target's KV cache."""
    return [int(token) for token in llm._input_ids]


FORMATS = [None, "chatml", "llama-2", "zephyr", "gemma", "mistral-instruct"]


@pytest.mark.parametrize("chat_format", FORMATS)
def test_a_turn_decodes_what_is_new(make_llama: MakeLlama, tiny_files: TinyFiles, chat_format: str | None) -> None:
    llm = make_llama(draft=tiny_files.good, chat_format=chat_format)
    conversation = Conversation(llm, **SAMPLING)
    before: list[int] = []
    for message in SAID:
        answer = list(conversation.say(message))
        stats = llm.stats
        # The last token of an answer that was cut off is not in the cache.
        assert stats.num_prompt_tokens_reused == max(0, len(before) - 1)
        assert llm.input_ids[: len(before)].tolist() == before
        before = [int(token) for token in llm.input_ids[: conversation.num_tokens]]
        assert before[stats.num_prompt_tokens :] == [token.id for token in answer]
    assert [message["content"] for message in conversation.messages[::2]] == list(SAID)
    assert conversation.num_turns == 3


def test_an_answer_that_ends_by_itself_is_wholly_reused(chatml_file: Path, make_llama: MakeLlama) -> None:
    llm = make_llama(chatml_file)
    conversation = Conversation(llm, "the cat", temperature=1.5, seed=1, max_tokens=300)
    num_tokens = 0
    for message in SAID:
        text = said(conversation, message)
        assert "<|im_end|>" not in text
        assert llm.stats.num_prompt_tokens_reused == num_tokens
        num_tokens = conversation.num_tokens
        assert llm.stats.num_tokens < 300
    prompt = llm.detokenize(seen(llm), special=True).decode(errors="ignore")
    assert prompt.count("<|im_start|>") == 7
    assert prompt.count("<|im_end|>") == 6


def test_the_first_turn_is_create_chat_completion(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    messages: list[Any] = [{"role": "system", "content": "a dog"}, {"role": "user", "content": "the cat"}]
    for options in ({"temperature": 0.0}, {"seed": 5, "top_k": 3}, {"seed": 5}):
        response = llm.create_chat_completion(messages, max_tokens=15, **options)
        conversation = Conversation(llm, "a dog", max_tokens=15, **options)
        assert said(conversation, "the cat") == response["choices"][0]["message"]["content"]


def test_options_of_a_turn_come_before_those_of_the_conversation(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    conversation = Conversation(llm, **SAMPLING, num_draft_tokens=3)
    said(conversation, "the cat")
    assert llm.stats.num_rounds_per_gamma[3] > 0
    said(conversation, "the cat", num_draft_tokens=0, max_tokens=2)
    assert (llm.stats.num_drafts, llm.stats.num_tokens) == (0, 2)
    conversation.options["max_tokens"] = 4
    said(conversation, "the cat")
    assert llm.stats.num_tokens == 4


def test_others_may_use_the_model_between_turns(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    alone, shared = (Conversation(make_llama(draft=tiny_files.good), **SAMPLING) for _ in range(2))
    for message in SAID:
        shared.llm.create_completion("a fox", max_tokens=5)
        assert said(shared, message) == said(alone, message)


@pytest.mark.parametrize("ending", ["close", "interrupt"])
def test_an_answer_that_is_stopped_stays(make_llama: MakeLlama, tiny_files: TinyFiles, ending: str) -> None:
    llm = make_llama(draft=tiny_files.good)
    conversation = Conversation(llm, **SAMPLING)
    answer = conversation.say("the cat")
    texts = [next(answer).text for _ in range(7)]
    if ending == "close":
        answer.close()
    else:
        with pytest.raises(KeyboardInterrupt):
            answer.throw(KeyboardInterrupt)
    assert conversation.messages == [
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "".join(texts)},
    ]
    num_tokens = conversation.num_tokens
    said(conversation, "a dog")
    assert llm.stats.num_prompt_tokens_reused >= num_tokens - 1


def test_a_message_without_an_answer_is_taken_back(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    conversation = Conversation(make_llama(), "a dog", **SAMPLING)
    said(conversation, "the cat")
    before = conversation.messages
    with pytest.raises(TypeError):
        conversation.say("no fox", no_such_option=1)
    conversation.say("no fox").close()

    def interrupted(*args: Any, **options: Any) -> Iterator[Any]:
        raise KeyboardInterrupt
        yield

    monkeypatch.setattr(conversation.llm, "generate_tokens", interrupted)
    with pytest.raises(KeyboardInterrupt):
        said(conversation, "no fox")
    assert conversation.messages == before
    assert conversation.num_turns == 1


def test_an_answer_without_a_word_is_an_answer(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    conversation = Conversation(make_llama(), logit_bias={2: 100.0})
    assert said(conversation, "the cat") == ""
    assert conversation.messages[-1] == {"role": "assistant", "content": ""}
    assert said(conversation, "the cat", logit_bias=None, max_tokens=3)


def test_a_stop_string_is_not_continued(make_llama: MakeLlama) -> None:
    llm = make_llama()
    whole = said(Conversation(llm, **SAMPLING), "the cat")
    letter = next(letter for letter in whole[7:] if letter not in whole[:7])
    for stop in (whole[9:11], letter):
        conversation = Conversation(llm, **SAMPLING)
        text = said(conversation, "the cat", stop=[stop])
        assert text == whole[: whole.index(stop)]
        said(conversation, "a dog")
        prompt = llm.detokenize(seen(llm)[: llm.stats.num_prompt_tokens]).decode(errors="ignore")
        assert f"assistant:{text}" in prompt
        assert f"{text}{stop}" not in prompt


def test_a_template_that_rewrites_answers_is_followed(with_template: WithTemplate) -> None:
    llm = with_template(REASONING)
    conversation = Conversation(llm, **SAMPLING)
    for message in SAID:
        said(conversation, message)
        expected = chat_prompt(llm, conversation.messages[:-1])
        assert llm.input_ids[: llm.stats.num_prompt_tokens].tolist() == expected.tokens


def test_a_template_that_refuses_a_message_changes_nothing(with_template: WithTemplate) -> None:
    conversation = Conversation(with_template(REFUSING), **SAMPLING)
    said(conversation, "the cat")
    conversation.system = "a dog"
    with pytest.raises(ValueError, match="no dogs here"):
        conversation.say("no fox")
    conversation.system = None
    assert said(conversation, "no fox")
    assert conversation.num_turns == 2


def test_a_handler_that_gives_a_text_is_followed_too(make_llama: MakeLlama) -> None:
    def handler(*, llama: Any, messages: list[Any], max_tokens: int, **options: Any) -> Any:
        text = "".join(f"{message['content']}." for message in messages)
        return llama.create_completion(text, max_tokens=max_tokens, temperature=0.0)

    llm = make_llama(chat_handler=handler)
    conversation = Conversation(llm, max_tokens=5)
    said(conversation, "the cat")
    num_tokens = conversation.num_tokens
    said(conversation, "a dog")
    assert llm.stats.num_prompt_tokens_reused == num_tokens - 1
    assert seen(llm)[0] == llm.token_bos()


def test_a_handler_that_makes_tokens_of_its_own_is_followed_too(make_llama: MakeLlama) -> None:
    def handler(*, llama: Any, messages: list[Any], max_tokens: int, **options: Any) -> Any:
        return llama.create_completion(
            [1, *[280 + len(message["content"]) for message in messages]], max_tokens=max_tokens
        )

    llm = make_llama(chat_handler=handler)
    conversation = Conversation(llm, max_tokens=5)
    said(conversation, "the cat")
    said(conversation, "a dog")
    assert llm.stats.num_prompt_tokens == 4


# --- what was said ---------------------------------------------------------------------------------------------------


def test_reset_and_forget(make_llama: MakeLlama) -> None:
    conversation = Conversation(make_llama(), "be a cat", **SAMPLING)
    for message in SAID:
        said(conversation, message)
    conversation.forget()
    assert (conversation.num_turns, conversation.num_tokens, conversation.system) == (2, 0, "be a cat")
    assert conversation.messages[1] == {"role": "user", "content": SAID[1]}
    with pytest.raises(ValueError, match="cannot forget 3 turns: the conversation has 2"):
        conversation.forget(3)
    with pytest.raises(ValueError, match="cannot forget -1 turns"):
        conversation.forget(-1)
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "be a cat"}]
    conversation.system = None
    assert conversation.messages == []


def test_a_full_context_loses_nothing(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=256)
    conversation = Conversation(llm, temperature=0.9, seed=3, max_tokens=60)
    full = None
    for _ in range(20):
        before = conversation.messages
        try:
            said(conversation, "the cat sat on the dog and")
        except specllama.ContextFullError as error:
            full = str(error)
            break
    assert full is not None
    assert "n_ctx is 256" in full
    assert conversation.messages == before
    assert not conversation.is_full
    turns = conversation.num_turns
    conversation.forget(2)
    assert said(conversation, "the cat sat on the dog and")
    assert conversation.num_turns == turns - 1
    with pytest.raises(specllama.ContextFullError):
        conversation.say("cat " * 300)
    said(conversation, "a dog", max_tokens=None)
    assert conversation.is_full


def test_files(make_llama: MakeLlama, tmp_path: Path) -> None:
    conversation = Conversation(make_llama(), "be ä cat", **SAMPLING)
    said(conversation, "the cat")
    file = tmp_path / "chat.json"
    conversation.save(file)
    assert json.loads(file.read_text(encoding="utf-8")) == {"messages": conversation.messages}
    assert list(tmp_path.iterdir()) == [file]
    other = Conversation(conversation.llm, **SAMPLING)
    other.load(file)
    assert other.messages == conversation.messages
    assert said(other, "a dog")
    file.write_text(json.dumps(conversation.messages[1:]))
    other.load(file)
    assert other.system is None
    assert other.num_turns == 1
    with pytest.raises(OSError, match="absent"):
        other.save(tmp_path / "absent" / "chat.json")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "Expecting value"),
        ("\udcff", "codec"),
        ("3", "must be a list"),
        ('{"x": []}', "must be a list"),
        ('[{"role": "user"}]', "content that is a text"),
        ('[{"role": "user", "content": 3}]', "content that is a text"),
        ('["user"]', "content that is a text"),
        ('[{"content": "x"}]', "one of system, user, assistant"),
        ('[{"role": "tool", "content": "x"}]', "one of system, user, assistant"),
    ],
)
def test_files_that_hold_no_conversation(make_llama: MakeLlama, tmp_path: Path, content: str, message: str) -> None:
    conversation = Conversation(make_llama(), "be a cat")
    file = tmp_path / "chat.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=f"chat.json holds no conversation: .*{message}"):
        conversation.load(file)
    with pytest.raises(FileNotFoundError):
        conversation.load(tmp_path / "absent.json")
    assert conversation.system == "be a cat"


def test_the_same_messages_assigned_again_are_not_read_again(make_llama: MakeLlama) -> None:
    conversation = Conversation(make_llama(), **SAMPLING)
    said(conversation, "the cat")
    num_tokens = conversation.num_tokens
    conversation.messages = conversation.messages
    assert conversation.num_tokens == num_tokens
    greeting = {"role": "assistant", "content": "a dog"}
    conversation.messages = [greeting, {"role": "user", "content": "no"}, {"role": "user", "content": "fox"}]
    assert (conversation.num_tokens, conversation.num_turns) == (0, 2)
    conversation.forget()
    assert conversation.messages == [{"role": "user", "content": "fox"}]


# --- texts -----------------------------------------------------------------------------------------------------------

SPACES = st.text(" \n\t", max_size=2)


@hypothesis.given(prompt=st.text(), answer=st.text(), news=st.text(), before=SPACES, behind=SPACES)
def test_text_behind(prompt: str, answer: str, news: str, before: str, behind: str) -> None:
    assert _text_behind(prompt + answer + news, prompt, answer) == news
    assert _text_behind(f"{prompt}x{news}", f"{prompt}y", answer) is None
    hypothesis.assume(answer.strip())
    found = _text_behind(f"{prompt}{before}{answer.strip()}<{news}", prompt, answer + behind)
    assert found == f"<{news}"


@pytest.mark.parametrize("text", ["the cat", "\nthe cat", " the cat", "\n\n", "", "ä", "</s>"])
def test_continuation_tokens(make_llama: MakeLlama, text: str) -> None:
    llm = make_llama()
    before = llm.tokenize(b"a dog", add_bos=False)
    tokens = continuation_tokens(llm, text)
    assert llm.detokenize(before + tokens, special=True) == llm.detokenize(before, special=True) + text.encode()


def test_continuation_tokens_are_those_of_the_whole_text(make_llama: MakeLlama) -> None:
    llm = make_llama()
    before = llm.tokenize(b"a dog", add_bos=False)
    for text in (b"\nthe cat", b"</s>the cat", b"\n</s>\nuser: x"):
        whole = llm.tokenize(b"a dog" + text, add_bos=False, special=True)
        assert [*before, *continuation_tokens(llm, text.decode())] == whole
