"""Messages reach the chat template in the form that it reads, whoever is asked: OpenAI's API has several of each."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from needed import imported

from specllama import Conversation
from specllama.batch.answers import Answers
from specllama.batch.batch import Batch
from specllama.chat import chat_prompt

if TYPE_CHECKING:
    from conftest import MakeLlama, WithTemplate


GREEDY: dict[str, Any] = {"max_tokens": 3, "temperature": 0.0}
HI = {"role": "user", "content": "hi"}

ANY_ROLE = "{% for m in messages %}{{ m.role }}:{{ m.content }}|{% endfor %}"
KNOWN_ROLES = (  # as Qwen's: what has another role is left out
    "{% for m in messages %}{% if m.role in ['system', 'user', 'assistant', 'tool'] %}"
    "{{ m.role }}:{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}"
    "({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}{% endif %}|{% endif %}{% endfor %}"
)
DEVELOPERS = "{% for m in messages %}{{ 'D' if m.role == 'developer' else m.role }}:{{ m.content }}|{% endfor %}"
PARTS_ONLY = (
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{% if p['type'] == 'text' %}{{ p['text'] }}"
    "{% endif %}{% endfor %}|{% endfor %}"
)
CONCATENATED = (  # as DeepSeek's: a call is what has no content
    "{% for m in messages %}{{ m.role }}:{% if m.content is none %}{% for c in m.tool_calls %}"
    "({{ c.function.name + ' ' + c.function.arguments }}){% endfor %}{% else %}{{ m.content }}{% endif %}|{% endfor %}"
)
BY_NAME = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% if 'tool_calls' in m %}{% for c in m.tool_calls %}"
    "({{ c.function.name }}{% for n, v in c.function.arguments.items() %} {{ n }}={{ v }}{% endfor %}){% endfor %}"
    "{% endif %}|{% endfor %}"
)
EITHER = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} "
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
    "{{ c.function.arguments | tojson }}{% endif %}){% endfor %}|{% endfor %}"
)
STRICT = ANY_ROLE.replace("{{ m.role }}", "{% if m.role == 'user' %}{{ raise_exception('no users') }}{% endif %}")


def calling(arguments: Any = '{"a": 1}', **fields: Any) -> dict[str, Any]:
    """A message with a call of a tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **fields}


def text(words: str, kind: str = "text") -> dict[str, Any]:
    """A part of a message."""
    return {"type": kind, "text": words}


RESULT = {"role": "tool", "tool_call_id": "call_1", "content": "ok"}
READ: dict[str, tuple[str, list[Any], str]] = {
    "parts": (ANY_ROLE, [{"role": "user", "content": [text("a"), text("b")]}], "user:a\nb|"),
    "parts of other names": (
        ANY_ROLE,
        [{"role": "user", "content": [text("a", "input_text"), text("b", "output_text")]}],
        "user:a\nb|",
    ),
    "no parts": (ANY_ROLE, [{"role": "user", "content": []}, HI], "user:|user:hi|"),
    "parts of a tool": (ANY_ROLE, [HI, {**RESULT, "content": [text("ok")]}], "user:hi|tool:ok|"),
    "parts where only parts are read": (PARTS_ONLY, [{"role": "user", "content": [text("a")]}, HI], "user:a|user:hi|"),
    "developer": (KNOWN_ROLES, [{"role": "developer", "content": "Be brief."}, HI], "system:Be brief.|user:hi|"),
    "developer, printed": (ANY_ROLE, [{"role": "developer", "content": "Be brief."}, HI], "system:Be brief.|user:hi|"),
    "developer, known": (DEVELOPERS, [{"role": "developer", "content": "Be brief."}, HI], "D:Be brief.|user:hi|"),
    "None": (ANY_ROLE, [HI, {"role": "assistant", "content": None}, HI], "user:hi|assistant:|user:hi|"),
    "no content": (ANY_ROLE, [HI, {"role": "assistant"}, HI], "user:hi|assistant:|user:hi|"),
    "refusal": (ANY_ROLE, [HI, {"role": "assistant", "content": None, "refusal": "no."}], "user:hi|assistant:no.|"),
    "refusal as a part": (
        ANY_ROLE,
        [HI, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no."}]}],
        "user:hi|assistant:no.|",
    ),
    "encoded by the template": (KNOWN_ROLES, [HI, calling(), RESULT], 'user:hi|assistant:(look {"a": 1})|tool:ok|'),
    "an object": (KNOWN_ROLES, [HI, calling({"a": "ä"})], 'user:hi|assistant:(look {"a": "ä"})|'),
    "thoughts before a call": (
        BY_NAME.replace("{{ m.content }}", "{{ m.content }}{{ m.thinking }}"),
        [HI, calling(reasoning_content="Hm."), RESULT],
        "user:hi|assistant:Hm.(look a=1)|tool:ok|",
    ),
    "no arguments": (KNOWN_ROLES, [HI, calling("")], "user:hi|assistant:(look {})|"),
    "no JSON": (KNOWN_ROLES, [HI, calling('{"a')], 'user:hi|assistant:(look "{\\"a")|'),
    "a call without content": (CONCATENATED, [HI, calling(), RESULT], 'user:hi|assistant:(look {"a": 1})|tool:ok|'),
    "an object for JSON": (CONCATENATED, [HI, calling({"a": "ä"})], 'user:hi|assistant:(look {"a": "ä"})|'),
    "by name": (BY_NAME, [HI, calling(), RESULT], "user:hi|assistant:(look a=1)|tool:ok|"),
    "either": (EITHER, [HI, calling('{"a":1}')], 'user:hi|assistant:(look {"a": 1})|'),
    "a list of pairs, unless it is a text": (
        EITHER.replace("{{ c.function.arguments }}", "{{ '{' + c.function.arguments + '}' }}"),
        [HI, calling()],
        'user:hi|assistant:(look {"a": 1})|',
    ),
    "printed": (
        EITHER.replace("is string", "is defined"),
        [HI, calling(), calling({"a": "ä"})],
        'user:hi|assistant:(look {"a": 1})|assistant:(look {"a": "ä"})|',
    ),
    "no calls": (BY_NAME, [HI, {"role": "assistant", "content": "a", "tool_calls": None}], "user:hi|assistant:a|"),
    "an empty list of calls": (
        BY_NAME.replace("in m %}", "in m %}!"),
        [HI, {"role": "assistant", "content": "a", "tool_calls": [], "function_call": None}],
        "user:hi|assistant:a|",
    ),
    "a call of the older form": (
        KNOWN_ROLES,
        [
            HI,
            {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": '{"a": 1}'}},
            {"role": "function", "name": "look", "content": "ok"},
        ],
        'user:hi|assistant:(look {"a": 1})|tool:ok|',
    ),
    "both forms, as answers have them": (
        KNOWN_ROLES,
        [HI, calling(function_call={"name": "look", "arguments": '{"a": 1}'}), RESULT],
        'user:hi|assistant:(look {"a": 1})|tool:ok|',
    ),
}


@pytest.mark.parametrize("name", READ)
def test_what_the_template_reads(with_template: WithTemplate, name: str) -> None:
    template, messages, expected = READ[name]
    given = json.loads(json.dumps(messages))
    assert chat_prompt(with_template(template), messages).text == expected
    assert messages == given, "the caller's own messages stay as they were"


SAID: dict[str, tuple[list[Any], str]] = {
    "parts": ([{"role": "user", "content": [text("a dog"), text("the cat")]}], "user:a dog\nthe cat|"),
    "developer": ([{"role": "developer", "content": "a dog"}, HI], "system:a dog|user:hi|"),
    "None": ([HI, {"role": "assistant", "content": None}, HI], "user:hi|assistant:|user:hi|"),
    "a call": ([HI, calling(), RESULT], 'user:hi|assistant:(look {"a": 1})|tool:ok|'),
}


@pytest.mark.parametrize("name", SAID)
def test_every_door_reads_them_alike(with_template: WithTemplate, tmp_path: Path, name: str) -> None:
    messages, prompt = SAID[name]
    llm = with_template(KNOWN_ROLES)
    expected = llm.tokenize(prompt.encode(), add_bos=False, special=True)

    def seen() -> list[int]:
        return [int(token) for token in llm.input_ids[: llm.stats.num_prompt_tokens]]

    whole = llm.create_chat_completion(messages, **GREEDY)["choices"][0]["message"]["content"]
    assert seen() == expected
    llm.reset()
    chunks = llm.create_chat_completion(messages, stream=True, **GREEDY)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == whole
    assert seen() == expected
    usage = {"prompt_tokens": len(expected), "completion_tokens": 3, "total_tokens": len(expected) + 3}
    outcomes = llm.create_chat_completions([messages, {"messages": messages}], **GREEDY)
    assert [(each.text, each.response["usage"]) for each in outcomes if each.response] == [(whole, usage)] * 2
    body = {"messages": messages, "repeat_penalty": 1.0, **GREEDY}
    source = tmp_path / "in.jsonl"
    request = {"custom_id": "a", "url": "/v1/chat/completions", "body": body}
    source.write_text("".join(json.dumps(line) + "\n" for line in ({"id": 1, **body}, request)), encoding="utf-8")
    with Answers(tmp_path / "out.jsonl") as answers:
        Batch(llm, source, answers, defaults={}, name="tiny").run(1)
    plain, asked = map(json.loads, (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines())
    assert (plain["text"], plain["usage"]) == (whole, usage)
    assert asked["response"]["body"]["choices"][0]["message"]["content"] == whole
    imported("fastapi")
    from served import serving

    with serving(llm) as served:
        answer = served.post("/v1/chat/completions", **body).json()
    cached = {"prompt_tokens_details": {"cached_tokens": len(expected) - 1}}
    assert (answer["choices"][0]["message"]["content"], answer["usage"]) == (whole, {**usage, **cached})


@pytest.mark.parametrize("chat_format", ["llama-2", "chatml", "zephyr", "chatml-function-calling"])
def test_formats_of_llama_cpp(make_llama: MakeLlama, chat_format: str) -> None:
    """They look for no other role than system, and take what is no text for an answer that is to be written."""
    llm = make_llama(chat_format=chat_format)
    answer = {"role": "assistant", "content": "a"}
    plain = chat_prompt(llm, [{"role": "system", "content": "Be\nbrief."}, HI, {**answer, "content": ""}, HI])
    newer = [{"role": "developer", "content": [text("Be"), text("brief.")]}, HI, {**answer, "content": None}, HI]
    assert chat_prompt(llm, newer).text == plain.text
    assert plain.text is not None and "Be\nbrief." in plain.text and "None" not in plain.text


def test_a_conversation_where_only_parts_are_read(with_template: WithTemplate) -> None:
    llm = with_template(PARTS_ONLY)
    conversation = Conversation(llm, "the cat", **GREEDY)
    assert [token.text for token in conversation.say("a dog")]
    prompt = llm.input_ids[: llm.stats.num_prompt_tokens].tolist()
    assert prompt == llm.tokenize(b"system:the cat|user:a dog|", add_bos=False, special=True)


def test_a_handler_made_of_a_template_reads_as_the_template(make_llama: MakeLlama) -> None:
    handler = Jinja2ChatFormatter(KNOWN_ROLES, eos_token="</s>", bos_token="<s>").to_chat_handler()
    llm = make_llama(chat_handler=handler)
    messages: Any = [{"role": "developer", "content": [text("Be brief.")]}, HI, calling()]
    assert chat_prompt(llm, messages).text == 'system:Be brief.|user:hi|assistant:(look {"a": 1})|'


def test_a_handler_of_the_users_own_gets_what_was_sent(make_llama: MakeLlama) -> None:
    got: list[Any] = []

    def handler(*, llama: Any, messages: Any, **options: Any) -> Any:
        got.append(messages)
        return llama.create_completion("a", max_tokens=1)

    llm = make_llama(chat_handler=handler)
    messages: Any = [
        {"role": "developer", "content": [text("a"), {"type": "sound"}]},
        {"role": "user", "content": [text("a"), text("b")], "mood": None},
        calling(),
        {"role": "tool", "content": {"a": 1}},
    ]
    llm.create_chat_completion(messages)
    assert got == [messages]


def test_a_handler_for_images_keeps_the_parts_of_users(make_llama: MakeLlama) -> None:
    got: list[Any] = []

    class Seeing:
        clip_model_path = "eye.gguf"
        CHAT_FORMAT = "its own"

        def __call__(self, *, llama: Any, messages: Any, **options: Any) -> Any:
            got.append(messages)
            return llama.create_completion("a", max_tokens=1)

    llm = make_llama(chat_handler=Seeing())
    image = {"type": "image_url", "image_url": {"url": "x"}}
    parts = [text("a"), image]
    llm.create_chat_completion(
        [
            {"role": "developer", "content": [text("be"), text("brief")]},
            {"role": "user", "content": parts},
            {"role": "user", "content": [text("b")]},
            {"role": "assistant", "content": None},
        ]
    )
    assert got == [
        [
            {"role": "system", "content": "be\nbrief"},
            {"role": "user", "content": parts},
            {"role": "user", "content": [text("b")]},
            {"role": "assistant", "content": ""},
        ]
    ]


class Answer:
    """A message as the openai package has it."""

    def __init__(self, **fields: Any) -> None:
        """Its fields."""
        self._fields = fields

    def model_dump(self, exclude_none: bool) -> Mapping[str, Any]:
        """As a dict."""
        return {name: value for name, value in self._fields.items() if value is not None or not exclude_none}


def test_an_answer_that_is_sent_back_as_it_came(with_template: WithTemplate) -> None:
    llm = with_template(KNOWN_ROLES)
    messages: Any = [HI, Answer(**calling(), refusal=None, annotations=None), RESULT]
    assert chat_prompt(llm, messages).text == 'user:hi|assistant:(look {"a": 1})|tool:ok|'
    assert llm.create_chat_completion(messages, **GREEDY)["choices"]


BAD: list[tuple[Any, type[Exception], str]] = [
    ({"role": "tool", "content": {"a": 1}}, TypeError, "write a result of a tool as text, as by json.dumps"),
    ({"role": "user", "content": 5}, TypeError, "the content 5 of a message must be a text, or a list of parts"),
    ({"role": "user", "content": [{"type": "text"}]}, TypeError, "must be a dict, such as {'type': 'text'"),
    ({"role": "user", "content": [{"type": "video"}]}, ValueError, "has a part of type 'video', and this Llama reads"),
    ({"role": "assistant", "tool_calls": "look"}, TypeError, "tool_calls='look' of a message must be a list of calls"),
]


@pytest.mark.parametrize("number", range(len(BAD)))
def test_a_message_that_nobody_could_read(make_llama: MakeLlama, number: int) -> None:
    message, error, why = BAD[number]
    llm = make_llama()
    with pytest.raises(error) as caught:
        llm.create_chat_completion([HI, message], **GREEDY)
    assert why in str(caught.value)
    with pytest.raises(error) as rendered:
        chat_prompt(llm, [HI, message])
    assert str(rendered.value) == str(caught.value)


@pytest.mark.parametrize(
    ("template", "why"), [(STRICT, "no users"), (ANY_ROLE + "{{ messages[0].mood + 1 }}", "has no attribute 'mood'")]
)
def test_what_the_template_refuses_is_said(with_template: WithTemplate, template: str, why: str) -> None:
    llm = with_template(template)
    for ask in (llm.create_chat_completion, lambda messages: chat_prompt(llm, messages)):
        with pytest.raises(ValueError, match=f"the model's chat template cannot render these messages: .*{why}"):
            ask([HI])


def test_a_tool_without_parameters(make_llama: MakeLlama) -> None:
    llm = make_llama()
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0, "seed": 1}
    choice = {"type": "function", "function": {"name": "look"}}
    tools = [{"type": "function", "function": {"name": "look"}}]
    answer = llm.create_chat_completion([HI], tools=tools, tool_choice=choice, **options)
    assert json.loads(answer["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {}
    older = llm.create_chat_completion([HI], functions=[{"name": "look"}], function_call={"name": "look"}, **options)
    assert older["choices"][0]["message"]["function_call"]["arguments"] == "{}"
