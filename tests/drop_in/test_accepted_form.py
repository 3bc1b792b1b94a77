"""Conversations that a chat template refuses as they are sent: agents' system messages, turns and calls."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest
from release_source import released_templates

from specllama.chat import chat_prompt

if TYPE_CHECKING:
    from conftest import WithTemplate


TAKEN = (
    "{% for m in messages %}{{ m.role }}:{{ m.content }}"
    "{% for c in m.tool_calls or [] %}({{ c.id }} {{ c.function.name }}){% endfor %}|{% endfor %}"
)


def refusing(condition: str, why: str = "not so") -> str:
    """A template that prints the messages, unless one of them meets a condition."""
    check = f"{{% if {condition} %}}{{{{ raise_exception('{why}') }}}}{{% endif %}}"
    return TAKEN.replace("%}{{ m.role }}", "%}" + check + "{{ m.role }}")


ONE_SYSTEM = refusing("m.role == 'system' and not loop.first")  # as Qwen3.5's
NO_SYSTEM = refusing("m.role == 'system'")  # as Gemma 2's
ALTERNATING = (  # as Gemma 3's: the system message is taken, and no tools are known
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}|{% set turns = messages[1:] %}{% else %}"
    "{% set turns = messages %}{% endif %}{% for m in turns %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}{{ m.role }}:{{ m.content }}|{% endfor %}"
)
NINE = refusing("m.tool_calls and m.tool_calls[0].id | length != 9")  # as Mistral's
ONE_CALL = refusing("m.tool_calls and m.tool_calls | length != 1")  # as Llama 3.1's


def said(role: str, content: Any, **more: Any) -> dict[str, Any]:
    """A message."""
    return {"role": role, "content": content, **more}


def calls(*ids: str, content: Any = None) -> dict[str, Any]:
    """A message with calls."""
    each = [{"id": name, "type": "function", "function": {"name": f"f{name[-1]}", "arguments": "{}"}} for name in ids]
    return said("assistant", content, tool_calls=each)


def result(name: str, content: str) -> dict[str, Any]:
    """The result of a call."""
    return said("tool", content, tool_call_id=name)


CASES: dict[str, tuple[str, list[dict[str, Any]], str]] = {
    "two system messages": (
        ONE_SYSTEM,
        [said("system", "A"), said("system", "B"), said("user", "C")],
        "system:A\n\nB|user:C|",
    ),
    "system and developer": (
        ONE_SYSTEM,
        [said("system", "A"), said("developer", "B"), said("user", "C")],
        "system:A\n\nB|user:C|",
    ),
    "a later one": (
        ONE_SYSTEM,
        [said("system", "A"), said("user", "B"), said("assistant", "C"), said("system", "D"), said("user", "E")],
        "system:A|user:B|assistant:C|user:D|user:E|",
    ),
    "one before the user": (NO_SYSTEM, [said("system", "A"), said("user", "B")], "user:A\n\nB|"),
    "one alone": (NO_SYSTEM, [said("system", "A")], "user:A|"),
    "turns of one role": (
        ALTERNATING,
        [said("system", "A"), said("user", "B"), said("user", "C"), said("assistant", "D"), said("assistant", "E")],
        "A|user:B\n\nC|assistant:D\n\nE|",
    ),
    "system messages and turns": (
        ALTERNATING,
        [said("system", "A"), said("system", "B"), said("user", "C"), said("system", "D")],
        "A\n\nB|user:C\n\nD|",
    ),
    "calls where none are known": (
        ALTERNATING,
        [said("user", "A"), calls("c1"), result("c1", "B"), said("user", "C")],
        "user:A|assistant:f1({})|user:B\n\nC|",
    ),
    "long ids": (
        NINE,
        [said("user", "A"), calls("call_of_f1"), result("call_of_f1", "B")],
        "user:A|assistant:(ID f1)|tool:B|",
    ),
    "two calls": (
        ONE_CALL,
        [said("user", "A"), calls("c1", "c2", content="B"), result("c1", "C"), result("c2", "D")],
        "user:A|assistant:B(c1 f1)|tool:C|assistant:(c2 f2)|tool:D|",
    ),
    "what is taken stays": (
        TAKEN,
        [said("system", "A"), said("system", "B"), said("user", "C"), said("user", "D"), calls("call_1", "call_2")],
        "system:A|system:B|user:C|user:D|assistant:(call_1 f1)(call_2 f2)|",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_refused_conversation_is_brought_into_a_form_that_is_taken(with_template: WithTemplate, case: str) -> None:
    template, messages, expected = CASES[case]
    llm = with_template(template)
    found = str(chat_prompt(llm, messages).text)
    assert re.sub(r"\([0-9a-f]{9} ", "(ID ", found) == expected
    answer = llm.create_chat_completion(messages, max_tokens=2)
    assert answer["usage"]["prompt_tokens"] == len(chat_prompt(llm, messages).tokens)


def test_parts_stay_parts(with_template: WithTemplate) -> None:
    template = ONE_SYSTEM.replace("{{ m.content }}", "{% for p in m.content %}<{{ p.text }}>{% endfor %}")
    messages = [said("system", "A"), said("system", [{"type": "text", "text": "B"}]), said("user", "C")]
    assert chat_prompt(with_template(template), messages).text == "system:<A><B>|user:<C>|"


def test_a_tool_without_a_description(with_template: WithTemplate) -> None:
    llm = with_template("{% for t in tools %}{{ '//' + t.function.description }}{% endfor %}" + TAKEN)
    tools = [{"type": "function", "function": {"name": "f"}}]
    assert chat_prompt(llm, [said("user", "A")], tools=tools).text == "//user:A|"


def test_it_is_said_once(with_template: WithTemplate, caplog: pytest.LogCaptureFixture) -> None:
    template, messages, _ = CASES["two system messages"]
    llm = with_template(template.replace("not so", "never"))
    with caplog.at_level(logging.WARNING, "specllama.chats"):
        for _ in range(2):
            chat_prompt(llm, messages)
    assert [record.message for record in caplog.records] == [
        "the chat template refuses a conversation as it was sent, and gets it with one system message at the beginning"
    ]


def test_what_no_change_helps_is_refused_as_it_was_sent(with_template: WithTemplate) -> None:
    llm = with_template(refusing("'dog' in m.content", "no dogs in {}".format("' ~ m.content ~ '")))
    with pytest.raises(ValueError, match=r"cannot render these messages: no dogs in dog$"):
        chat_prompt(llm, [said("system", "A"), said("system", "B"), said("user", "dog"), said("user", "cat")])


def agents() -> dict[str, list[dict[str, Any]]]:
    """What coding agents send, in OpenAI's form: where their messages are, who says them, and what ids are like."""
    ids = ("call_Zk3fJx81bQ0aN4sPuXhRlw2e", "toolu_01A09q90qw90lq917835lq9")
    first, second = ids
    one = calls(first, content="(which some templates leave out)")
    text = [{"type": "text", "text": "S2"}, {"type": "text", "text": "S3"}]
    return {
        "Codex": [
            said("system", "S1"), said("developer", "S2"), said("user", "S3"), said("user", "S4"), calls(first),
            result(first, "S5"), said("assistant", "S6"), said("user", "S7"),
        ],
        "Claude Code": [
            said("system", "S1"), said("user", text), one, result(first, "S4"),
            said("system", "S5"), said("assistant", "S6"), said("user", "S7"),
        ],
        "opencode": [said("system", "S1"), said("system", "S2"), said("user", "S3"), one, result(first, "S4")],
        "Cline": [said("system", "S1"), said("user", text), said("assistant", "S4"), said("user", "S5")],
        "aider": [
            said("system", "S1"), said("user", "S2"), said("assistant", "S3"), said("user", "S4"),
            said("assistant", "S5"), said("user", "S6"), said("system", "S7"),
        ],
        "Continue": [
            said("system", "S1"), said("user", "S2"), calls(first, second), result(first, "S3"), result(second, "S4"),
            said("user", "S5"),
        ],
    }  # fmt: skip


FAMILIES = (
    *("Qwen3.5-4B", "mistralai-Mistral-Nemo-Instruct-2407", "Mistral-Small-3.2-24B-Instruct-2506"),
    *("mistralai-Ministral-3-14B-Reasoning-2512", "google-gemma-2-2b-it", "google-gemma-4-31B-it", "GLM-4.6"),
    *("meta-llama-Llama-3.1-8B-Instruct", "meta-llama-Llama-3.3-70B-Instruct", "openai-gpt-oss-120b"),
    *("ibm-granite-granite-4.0", "LFM2-8B-A1B", "LFM2.5-Instruct", "Qwen-Qwen3-0.6B"),
)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_templates_of_many_models_take_what_agents_send(with_template: WithTemplate, family: str) -> None:
    llm = with_template((released_templates() / f"{family}.jinja").read_text(encoding="utf-8"))
    for agent, messages in agents().items():
        text = str(chat_prompt(llm, messages).text)
        number = max(int(found) for found in re.findall(r"S(\d)", json.dumps(messages)))
        places = [text.find(f"S{each}") for each in range(1, number + 1)]
        assert min(places) > -1, (agent, text)
        assert places == sorted(places) or "Nemo" in family, (agent, text)  # Nemo's reads the system message last
