"""Calls of tools and thoughts, the whole way, of models that say what they were made to say."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import tiny_models as tiny
from served import serving

import specllama
from specllama import cli
from specllama.chat import chat_prompt

openai = pytest.importorskip("openai")

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")

ROUNDS = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}{{ '\n' }}{% endfor %}"
)
END = "{% if add_generation_prompt %}assistant:{% endif %}"
HERMES = (
    "{% if tools %}{{ tools | tojson }} name and arguments within <tool_call></tool_call>{% endif %}" + ROUNDS + END
)
THINKS = HERMES + "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
BEGINS = HERMES + "<think>\n{# up to </think> #}"
LLAMA = (
    '{# Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}. #}'
    + ROUNDS
    + END
)
MISTRAL = "{# [TOOL_CALLS]name[ARGS]{} #}" + ROUNDS + END
DEEPSEEK = "{# <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>name<｜tool▁sep｜>{} #}" + ROUNDS + END
XML = "{# <tool_call><function=name><parameter=key> #}" + ROUNDS + END
GLM = "{# <tool_call>name<arg_key>key #}" + ROUNDS + END
MINIMAX = "{# <minimax:tool_call> #}" + ROUNDS + END
GEMMA = "{# <|tool_call>call:name{key:value}<tool_call|> #}" + ROUNDS + END
GEMMA_THINKS = "{# <|channel>thought <channel|> #}" + GEMMA
FUNCTION_GEMMA = "{# <start_function_call>call:name{} #}" + ROUNDS + END
KIMI = "{# <|tool_calls_section_begin|> #}" + ROUNDS + END
LFM2 = "{# <|tool_call_start|>[name(key=value)] #}" + ROUNDS + END
IN_TEXT = '{# "List of tools: [" #}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}' + END
MINICPM = '{# <function name="name"><param name="key"> #}' + ROUNDS + END
COHERE = "{# <|START_ACTION|>[] #}" + ROUNDS + END
MUSE = "{# <atem:function_calls> #}" + ROUNDS + END
HARMONY = "{# <|channel|> <|message|> #}{% if reasoning_effort %}{{ reasoning_effort }}{% endif %}" + ROUNDS + END

LOOK_AT = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": LOOK_AT}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}},
]
HI: list[Any] = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"messages": HI, "temperature": 0.0, "max_tokens": 200}
LOOK, ADD = '<tool_call>\n{"name": "look", "arguments": ', '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
CALLS = ["Well", ", ", "let me.\n", LOOK, "{", '"n": ', "1", "}", "}\n</tool_call>", " \n", ADD]
MARKS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
)
SECTION = (
    *("<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>"),
    *("<|tool_call_end|>", "<|tool_calls_section_end|>"),
)
QUOTED = ("<|tool_call>", '<|"|>', "<tool_call|>")
ESCAPED = ("<start_function_call>", "<escape>", "<end_function_call>")
CALLED = ("<|tool_call_start|>", "<|tool_call_end|>")
ATEM = "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>"
ACTION = ("<|START_ACTION|>", "<|END_ACTION|>")
OPENS = ("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|constrain|>")


def joined(chunks: Iterator[Any]) -> dict[str, Any]:
    """What openai's package makes of a stream, in the form of a response's message, with the reason."""
    from openai.lib.streaming.chat._completions import ChatCompletionStreamState
    from openai.types.chat import ChatCompletionChunk

    state = ChatCompletionStreamState()
    reasoning = ""
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
        for choice in chunk["choices"]:
            reasoning += choice["delta"].get("reasoning_content", "")
    [choice] = state.current_completion_snapshot.choices
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or ()]
    return {
        "content": choice.message.content or "",
        "reasoning": reasoning,
        "calls": calls,
        "why": choice.finish_reason,
    }


def said(response: Any) -> dict[str, Any]:
    from openai.types.chat import ChatCompletion

    ChatCompletion.model_validate(response)
    [choice] = response["choices"]
    message = choice["message"]
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())]
    assert len({call["id"] for call in message.get("tool_calls", ())}) == len(calls)
    return {
        "content": message["content"] or "",
        "reasoning": message.get("reasoning_content", ""),
        "calls": calls,
        "why": choice["finish_reason"],
    }


def everywhere(llm: specllama.Llama, **chat: Any) -> dict[str, Any]:
    """What is said in Python and over the server, streamed and not: all the same."""
    chat = {**GREEDY, **chat}
    found = [said(llm.create_chat_completion(**chat)), joined(llm.create_chat_completion(**chat, stream=True))]
    with serving(llm) as served:
        response = served.post("/v1/chat/completions", **chat)
        assert response.status_code == 200, response.text
        found.append(said(response.json()))
        found.append(joined(iter(served.events("/v1/chat/completions", **chat))))
    assert found[1:] == found[:1] * 3
    return found[0]


def test_a_models_own_calls(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    calls = [("look", '{"n": 1}'), ("add", "{}")]
    assert everywhere(llm, tools=TOOLS) == {
        "content": "Well, let me.",
        "reasoning": "",
        "calls": calls,
        "why": "tool_calls",
    }
    assert everywhere(llm, tools=TOOLS, parallel_tool_calls=False)["calls"] == calls[:1]
    assert llm.stats.num_accepted_tokens > 0
    for chat in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        assert everywhere(llm, **chat) == {"content": "".join(CALLS), "reasoning": "", "calls": [], "why": "stop"}


def test_one_call_ends_the_answer(saying: Saying) -> None:
    """Nothing is generated behind the one call that there may be, with any number of texts at once."""
    llm = saying(CALLS, HERMES)
    one: dict[str, Any] = {**GREEDY, "tools": TOOLS, "parallel_tool_calls": False}
    whole = llm.create_chat_completion(**one)
    assert whole["usage"]["completion_tokens"] == CALLS.index("}\n</tool_call>") + 1
    [outcome] = llm.create_chat_completions([HI], **{name: one[name] for name in one if name != "messages"})
    assert outcome.response["usage"] == whole["usage"]
    with serving(llm) as served:
        events = served.events("/v1/chat/completions", **one, stream_options={"include_usage": True})
        assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert llm.create_chat_completion(**{**one, "parallel_tool_calls": True})["usage"]["completion_tokens"] == len(
        CALLS
    )
    assert llm.create_chat_completion(**{**one, "tools": None})["usage"]["completion_tokens"] == len(CALLS)


ENDLESS: dict[str, tuple[str, list[str], Sequence[str]]] = {
    "bare": (HERMES, ['{"name": "look", "arguments": ', '{"n": 1}', "}", "\nThat"], ()),
    "llama": (LLAMA, ['{"name": "look", "parameters": ', '{"n": 1}', "}", "; ", "so"], ()),
    "mistral": (MISTRAL, ["[TOOL_CALLS]", "look", "[ARGS]", '{"n": 1}', " so"], ("[TOOL_CALLS]", "[ARGS]")),
    "deepseek": (DEEPSEEK, [*MARKS[:2], "look", MARKS[2], '{"n": 1}', MARKS[3], "\n", "so"], MARKS),
}


@pytest.mark.parametrize("name", ENDLESS)
def test_one_call_of_any_form_ends_the_answer(saying: Saying, name: str) -> None:
    """At the latest where something else begins."""
    template, pieces, special = ENDLESS[name]
    more = [*pieces, *(f" and {number}" for number in range(9))]
    answer = saying(more, template, special).create_chat_completion(**GREEDY, tools=TOOLS, parallel_tool_calls=False)
    found = said(answer)
    assert (found["calls"], found["why"]) == ([("look", '{"n": 1}')], "tool_calls")
    assert answer["usage"]["completion_tokens"] <= len(pieces)


def test_reading_changes_no_token(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    prompt = chat_prompt(llm, HI, tools=TOOLS).tokens
    plain = llm.create_completion(prompt, temperature=0.0, max_tokens=200)
    read = llm.create_chat_completion(**GREEDY, tools=TOOLS)
    assert plain["usage"] == read["usage"] and plain["choices"][0]["text"] == "".join(CALLS)


def test_arguments_come_in_pieces(saying: Saying) -> None:
    chunks = list(saying(CALLS, HERMES).create_chat_completion(**GREEDY, tools=TOOLS, stream=True))
    parts = [part for chunk in chunks for part in chunk["choices"][0]["delta"].get("tool_calls", ())]
    assert [part["function"]["arguments"] for part in parts if part["index"] == 0] == ["", "{", '"n": ', "1", "}"][1:]
    assert [part["function"].get("name") for part in parts if "id" in part] == ["look", "add"]
    assert chunks[-1]["choices"][0] | {"logprobs": None} == {
        "index": 0,
        "delta": {},
        "logprobs": None,
        "finish_reason": "tool_calls",
    }


def test_log_probabilities_are_those_of_all_tokens(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    chat = {**GREEDY, "tools": TOOLS, "logprobs": True}
    whole = llm.create_chat_completion(**chat)["choices"][0]["logprobs"]["content"]
    chunks = [chunk["choices"][0]["logprobs"] for chunk in llm.create_chat_completion(**chat, stream=True)]
    assert [entry for each in chunks if each for entry in each["content"]] == whole
    assert "".join(entry["token"] for entry in whole) == "".join(CALLS)


def test_origins_are_those_of_all_tokens(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    with serving(llm) as served:
        chat = {**GREEDY, "tools": TOOLS, "return_origins": True}
        events = served.events("/v1/chat/completions", **chat, stream_options={"include_usage": True})
        tokens = [token["id"] for event in events for token in event.get("tokens", ())]
        assert tokens == [token["id"] for token in served.post("/v1/chat/completions", **chat).json()["tokens"]]
        assert len(tokens) == len(CALLS) == events[-1]["usage"]["completion_tokens"]


def test_a_call_that_is_cut_off(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    for count in range(1, len(CALLS)):
        found = everywhere(llm, tools=TOOLS, max_tokens=count) if count in (4, 6) else None
        found = found or said(llm.create_chat_completion(**{**GREEDY, "tools": TOOLS, "max_tokens": count}))
        assert found["why"] == "length"
        if count <= 4:
            assert found["content"] == "".join(CALLS[:count]) and not found["calls"]
        else:
            assert found["calls"] == [("look", "".join(CALLS[4 : min(count, 8)]))]


FORMS: dict[str, tuple[str, list[str], Sequence[str], str]] = {
    "llama": (LLAMA, ['{"name": "look", "parameters": ', '{"n": 1}', "}"], (), ""),
    "mistral": (MISTRAL, ["Hm.", "[TOOL_CALLS]", "look", "[ARGS]", '{"n": 1}'], ("[TOOL_CALLS]", "[ARGS]"), "Hm."),
    "deepseek": (DEEPSEEK, [*MARKS[:2], "look", MARKS[2], '{"n": 1}', *MARKS[3:]], MARKS, ""),
    "gpt-oss": (
        HARMONY,
        ["<|channel|>", "commentary to=functions.look ", "<|constrain|>", "json", "<|message|>", '{"n": 1}'],
        OPENS,
        "",
    ),
    "kimi": (KIMI, [*SECTION[:2], "functions.look:0", SECTION[2], '{"n": 1}', *SECTION[3:]], SECTION, ""),
    "qwen-xml": (
        XML,
        ["<tool_call>\n", "<function=look>", "\n<parameter=n>\n1", "\n</parameter>\n</function>\n</tool_call>"],
        (),
        "",
    ),
    "glm": (
        GLM,
        ["<tool_call>", "look\n", "<arg_key>n</arg_key>", "\n<arg_value>1", "</arg_value></tool_call>"],
        (),
        "",
    ),
    "minimax": (
        MINIMAX,
        [
            "<minimax:tool_call>\n",
            '<invoke name="look">',
            '<parameter name="n">1',
            "</parameter></invoke>\n</minimax:tool_call>",
        ],
        (),
        "",
    ),
    "gemma": (GEMMA, ["Hm.", QUOTED[0], "call:look", "{n:", "1}", QUOTED[2]], QUOTED, "Hm."),
    "function-gemma": (FUNCTION_GEMMA, [ESCAPED[0], "call:look{", "n: 1", "}", ESCAPED[2]], ESCAPED, ""),
    "lfm2": (LFM2, ["Hm.", CALLED[0], "[look(", "n=", "1", ")]", CALLED[1]], CALLED, "Hm."),
    "muse": (
        MUSE,
        [
            " to=look",
            "<|message|>",
            '<atem:function_calls>\n<atem:invoke name="look">\n<atem:parameter name="n">1',
            ATEM,
        ],
        ("<|message|>",),
        "",
    ),
    "minicpm": (MINICPM, ['<function name="look">', '<param name="n">1', "</param></function>"], (), ""),
    "cohere": (
        COHERE,
        ["Hm.", ACTION[0], '[{"tool_call_id": "0", "tool_name": "look", "parameters": ', '{"n": 1}', "}]", ACTION[1]],
        ACTION,
        "Hm.",
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_calls_with_special_tokens(saying: Saying, name: str) -> None:
    template, pieces, special, content = FORMS[name]
    llm = saying(pieces, template, special)
    expected = {"content": content, "reasoning": "", "calls": [("look", '{"n": 1}')], "why": "tool_calls"}
    assert everywhere(llm, tools=TOOLS) == expected


BEGINNINGS = {
    "hermes": '<tool_call>\n{"name": ',
    "llama": '{"name": ',
    "mistral": "[TOOL_CALLS]",
    "deepseek": MARKS[0] + MARKS[1],
    "gpt-oss": "<|channel|>commentary to=functions.",
    "kimi": SECTION[0] + SECTION[1] + "functions.",
    "qwen-xml": "<tool_call>\n<function=",
    "glm": "<tool_call>",
    "minimax": '<minimax:tool_call>\n<invoke name="',
    "gemma": "<|tool_call>call:",
    "function-gemma": "<start_function_call>call:",
    "lfm2": "<|tool_call_start|>[",
    "muse": " to=",
    "minicpm": '<function name="',
    "cohere": "<|START_ACTION|>[",
}


@pytest.mark.parametrize("name", ["hermes", *FORMS])
def test_a_call_is_written_as_the_template_teaches_it(saying: Saying, name: str) -> None:
    """A model that would say something else: the grammar has it use the form, and special tokens where those are."""
    template, pieces, special, _ = FORMS.get(name, (HERMES, [LOOK], (), ""))
    others = pieces if name in ("gpt-oss", "muse") else ["So", " it", " is", *special]
    llm = saying(others, template, special)
    one = {"type": "function", "function": {"name": "look"}}
    for choice, most in ((one, 1), ("required", 4)):
        found = everywhere(llm, tools=TOOLS, tool_choice=choice, max_tokens=120, parallel_tool_calls=False)
        assert found["content"] == "" and len(found["calls"]) == 1 <= most and found["why"] == "tool_calls"
        for called, arguments in found["calls"]:
            schema = {each["function"]["name"]: each["function"]["parameters"] for each in TOOLS}[called]
            jsonschema.validate(json.loads(arguments), schema)
            assert called == "look" or choice == "required"
    answer = llm.detokenize(llm.input_ids[: llm.n_tokens].tolist(), special=True).decode().rpartition("assistant:")[2]
    assert answer.startswith(BEGINNINGS[name])
    for mark in special[:1]:
        assert llm.tokenize(mark.encode(), add_bos=False, special=True)[-1] in llm.input_ids[: llm.n_tokens]


# What a model begins as a call and would then write wrongly, and what it says before.
BEGUN: dict[str, tuple[str, list[str], Sequence[str], str]] = {
    "hermes": (
        HERMES,
        ["Well", ", let me.\n", '<tool_call>\n{"name": "loo', "oop", '", "q": 1}', "!!"],
        (),
        "Well, let me.",
    ),
    "no mark": (HERMES, ['{"name": "look", "arguments": ', '{"q": 3}', "}"], (), ""),
    "fenced": (HERMES, ["So:\n", "```json\n", '{"name": "look", "arguments": ', '{"q": 3}', "}"], (), "So:"),
    "llama": (LLAMA, ['{"name": "look", "parameters": ', '{"m": 1}', "}"], (), ""),
    "mistral": (MISTRAL, ["Hm.", "[TOOL_CALLS]", "loop", "[ARGS]", '{"m": 1}'], ("[TOOL_CALLS]", "[ARGS]"), "Hm."),
    "deepseek": (DEEPSEEK, ["Hm.", *MARKS[:2], "loop", MARKS[2], '{"m": 1}', *MARKS[3:]], MARKS, "Hm."),
    "gpt-oss": (
        HARMONY,
        [OPENS[0], "commentary to=functions.", "loop ", *OPENS[4:], "json", OPENS[1], '{"n": 1}'],
        OPENS,
        "",  # the mark of the next message, which has begun, is no text
    ),
    "kimi": (KIMI, ["Hm.", *SECTION[:2], "functions.loop", ":0", SECTION[2], '{"m": 1}', *SECTION[3:]], SECTION, "Hm."),
    "qwen-xml": (XML, ["Well", ".\n", "<tool_call>\n<function=loo", "oop>", "\n<parameter=q>\n3", "!!"], (), "Well."),
    "glm": (GLM, ["Well", ".\n", "<tool_call>loo", "oop\n", "<arg_key>q</arg_key>", "3"], (), "Well."),
    "minimax": (
        MINIMAX,
        ["Well", ".\n", "<minimax:tool_call>\n", '<invoke name="loo', 'oop">', '<parameter name="q">3'],
        (),
        "Well.",
    ),
    "gemma": (GEMMA, ["Hm.", QUOTED[0], "call:loo", "op{", "q:", QUOTED[1], "!!"], QUOTED, "Hm."),
    "function-gemma": (FUNCTION_GEMMA, ["Hm.", ESCAPED[0], "call:loo", "op{", "q:3", ESCAPED[2]], ESCAPED, "Hm."),
    "lfm2": (LFM2, ["Hm.", CALLED[0], "[loo", "op(", "q=", "3", ")]", CALLED[1]], CALLED, "Hm."),
    "minicpm": (MINICPM, ["Well", ".\n", '<function name="loo', 'oop">', '<param name="q">3'], (), "Well."),
    "cohere": (
        COHERE,
        ["Hm.", ACTION[0], '[{"tool_call_id": "0", ', '"tool_name": "loop", ', '"parameters": {"m": 1}}]', ACTION[1]],
        ACTION,
        "Hm.",
    ),
}


@pytest.mark.parametrize("name", BEGUN)
def test_a_call_that_was_begun_follows_its_schema(saying: Saying, name: str) -> None:
    """The words before it are free, with any draft the tokens are the same, and the draft's are taken."""
    template, pieces, special, content = BEGUN[name]
    llm = saying(pieces, template, special)
    found = everywhere(llm, tools=TOOLS[:1], parallel_tool_calls=False)
    assert (found["content"], [called for called, _ in found["calls"]]) == (content, ["look"])
    assert found["why"] == "tool_calls" and llm.stats.num_accepted_tokens > 0
    jsonschema.validate(json.loads(found["calls"][0][1]), LOOK_AT)
    one: dict[str, Any] = {**GREEDY, "tools": TOOLS[:1], "parallel_tool_calls": False}
    for options in ({"num_draft_tokens": 0}, {"num_draft_tokens": 1}, {"num_draft_tokens": "auto"}, {"seed": 1}):
        assert said(llm.create_chat_completion(**one, **options)) == found


ALL_KINDS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "how": {"enum": ["r", "w"]},
        "whole": {"$ref": "#/$defs/whole"},
        "flag": {"type": "boolean"},
    },
    "required": ["path", "how", "whole", "flag"],
    "additionalProperties": False,
    "$defs": {"whole": {"enum": [1, 2]}},
}


@pytest.mark.parametrize("template", [XML, GLM, MINIMAX, GEMMA, MINICPM])
def test_keys_and_values_follow_the_schema(saying: Saying, template: str) -> None:
    """Texts as they are, anything else as JSON. Tools without parameters have no keys; others may have any."""
    tools = [{"type": "function", "function": {"name": "open", "parameters": ALL_KINDS}}]
    ends = {XML: "\n</parameter>\n", GLM: "</arg_value>", MINIMAX: "</parameter>", GEMMA: QUOTED[1]}
    llm = saying(['So "it" is\n', ends.get(template, "</param>")], template)
    found = everywhere(llm, tools=tools, tool_choice="required", max_tokens=400, parallel_tool_calls=False)
    [(name, arguments)] = found["calls"]
    assert name == "open" and found["content"] == ""
    jsonschema.validate(json.loads(arguments), ALL_KINDS)
    free = [{"type": "function", "function": {"name": "go", "parameters": {"type": "object", "title": "any"}}}]
    for tools in (free, TOOLS[1:]):
        found = everywhere(llm, tools=tools, tool_choice="required", max_tokens=200, parallel_tool_calls=False)
        assert [name for name, _ in found["calls"]] == [tools[0]["function"]["name"]]


def test_calls_that_were_begun_have_the_targets_distribution(saying: Saying) -> None:
    """A drawn text is the same with each draft, if the seed is."""
    pieces = ["Well", ", let me.\n", "<tool_call>", " so", "!!"]
    llm = saying(pieces, HERMES)
    chat: dict[str, Any] = {**GREEDY, "tools": TOOLS, "temperature": 3.0, "max_tokens": 60, "verify": "coupled"}
    for seed in range(4):
        plain = said(llm.create_chat_completion(**chat, seed=seed, num_draft_tokens=0))
        for count in (1, 4, "auto"):
            assert said(llm.create_chat_completion(**chat, seed=seed, num_draft_tokens=count)) == plain


def test_what_begins_no_call_is_free(saying: Saying) -> None:
    """In a thought, in JSON that is an answer, and with a name that no tool has."""
    thought = ["<think>", "<tool_call>", "Hm", "</think>", "Hey"]
    assert everywhere(saying(thought, THINKS), tools=TOOLS)["reasoning"] == "<tool_call>Hm"
    assert everywhere(saying(thought[1:], BEGINS), tools=TOOLS)["content"] == "Hey"
    for template, text in ((LLAMA, '{"name": "Ann", "parameters": 1}'), (HERMES, ' {"name": "look", "is": 1}')):
        assert everywhere(saying([text], template), tools=TOOLS)["content"].strip() == text.strip()


def test_mirostat_follows_a_begun_call_too(saying: Saying) -> None:
    template, pieces, special, content = BEGUN["hermes"]
    chat: dict[str, Any] = {**GREEDY, "tools": TOOLS[:1], "parallel_tool_calls": False, "temperature": 0.1}
    found = said(saying(pieces, template, special).create_chat_completion(**chat, mirostat_mode=2, seed=1))
    assert found["content"] == content and json.loads(found["calls"][0][1]) in ({"n": 1}, {"n": 2})


def test_an_answer_goes_on_with_the_last_message(saying: Saying) -> None:
    """In Python, over the server, and with what a model thought before."""
    llm = saying(["One", " two", " three", "!!"], HERMES)
    begun = [*HI, {"role": "assistant", "content": "One two"}]
    expected = {"content": " three!!", "reasoning": "", "calls": [], "why": "stop"}
    assert everywhere(llm, messages=begun, continue_final_message=True) == expected
    assert everywhere(llm, messages=begun)["content"] == "One two three!!"
    text = chat_prompt(llm, begun, continue_final_message=True).text
    assert text is not None and text.endswith("assistant:One two")
    parts = [*HI, {"role": "assistant", "content": [{"type": "text", "text": "One two"}]}]
    assert said(llm.create_chat_completion(**{**GREEDY, "messages": parts}, continue_final_message=True)) == expected
    thought = {"role": "assistant", "content": "Hi", "reasoning_content": "Hm"}
    for template in (THINKS, BEGINS):
        text = chat_prompt(saying(["So"], template), [*HI, thought], continue_final_message=True).text
        assert text is not None and text.endswith("<think>\nHm\n</think>\n\nHi") and text.count("<think>") == 1


def test_what_cannot_be_continued(saying: Saying) -> None:
    llm = saying(["So"], HERMES)
    asked = {**GREEDY, "messages": [*HI, {"role": "assistant", "content": "One two"}]}
    with serving(llm) as served:
        path = "/v1/chat/completions"
        assert served.post(path, **asked, continue_final_message=True, add_generation_prompt=False).status_code == 200
        for one in (True, False):
            wrong = served.post(path, **asked, continue_final_message=one, add_generation_prompt=one)
            assert wrong.status_code == 400 and "either begun" in wrong.text
        none = served.post(path, **GREEDY, continue_final_message=True)
        assert none.status_code == 400 and "needs a last message of the assistant" in none.text
    with pytest.raises(TypeError, match="must be True or False"):
        llm.create_chat_completion(**asked, continue_final_message=1)
    other = saying(["So"], HERMES, chat_format="chatml-function-calling")
    with pytest.raises(ValueError, match="a chat handler makes those of"):
        other.create_chat_completion(**asked, continue_final_message=True)


def test_one_of_several_tools_where_the_template_teaches_none(saying: Saying) -> None:
    found = everywhere(saying(["So"], tiny.CHAT_TEMPLATE), tools=TOOLS, tool_choice="required")
    assert len(found["calls"]) == 1 and found["calls"][0][0] in ("look", "add") and found["why"] == "tool_calls"


FORCED: dict[str, dict[str, Any]] = {
    "named": {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}},
    "the only one": {"tools": TOOLS[:1], "tool_choice": "required"},
    "functions": {"functions": [tool["function"] for tool in TOOLS], "function_call": {"name": "look"}},
}


@pytest.mark.parametrize("how", FORCED)
@pytest.mark.parametrize("template", ["chatml-function-calling", HERMES, tiny.CHAT_TEMPLATE])
def test_a_stream_names_a_forced_call_once(saying: Saying, template: str, how: str) -> None:
    """Clients join the texts of all parts: llama_cpp's handlers would have them call looklooklook."""
    named = {"chat_format": template} if template not in (HERMES, tiny.CHAT_TEMPLATE) else {}
    llm = saying(["So"], HERMES if named else template, **named)
    found = everywhere(llm, **FORCED[how])
    [(name, arguments)] = found["calls"]
    assert name == "look" and json.loads(arguments)["n"] in (1, 2)
    chunks = list(llm.create_chat_completion(**GREEDY, **FORCED[how], stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    parts = [part for delta in deltas for part in delta.get("tool_calls") or ()]
    assert len(parts) > 2 and {"id", "type"} <= parts[0].keys()
    assert not any({"id", "type", "name"} & {*part, *part["function"]} for part in parts[1:])
    older = [call for delta in deltas if (call := delta.get("function_call"))]
    assert "".join(call.get("name", "") for call in older) in ("", "look")
    assert "".join(call["arguments"] for call in older) in ("", arguments)


@pytest.mark.parametrize("how", FORCED)
@pytest.mark.parametrize("template", ["chatml-function-calling", HERMES, tiny.CHAT_TEMPLATE])
def test_a_forced_call_that_is_cut_off(saying: Saying, template: str, how: str) -> None:
    """llama_cpp's handlers would say that it was called."""
    named = {"chat_format": template} if template not in (HERMES, tiny.CHAT_TEMPLATE) else {}
    found = everywhere(saying(["So"], HERMES if named else template, **named), **FORCED[how], max_tokens=3)
    assert found["why"] == "length"


def test_a_stream_names_the_only_allowed_tool_once(saying: Saying) -> None:
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "look"}}]}
    asked = {**GREEDY, "tools": TOOLS, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    with serving(saying(["So"], tiny.CHAT_TEMPLATE)) as served:
        whole = said(served.post("/v1/chat/completions", **asked).json())
        assert joined(iter(served.events("/v1/chat/completions", **asked))) == whole
    assert [name for name, _ in whole["calls"]] == ["look"]


@pytest.mark.parametrize("template", [HERMES, tiny.CHAT_TEMPLATE])
def test_odd_tools_can_be_called(saying: Saying, template: str) -> None:
    """Names that have to be quoted, parameters that are none, and a schema of which one part cannot be enforced."""
    llm = saying(["So"], template)
    for name, parameters in (
        ('é"x\\\n<[5]>', {"type": "object"}),
        ("a", [1]),
        ("b", {"type": "object", "format": "?"}),
    ):
        tools = [{"type": "function", "function": {"name": name, "parameters": parameters}}] * 2
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = llm.create_chat_completion(**GREEDY, tools=tools, tool_choice="required")
        assert [name for name, _ in said(answer)["calls"]][:1] == [name]


def test_a_vocabulary_without_the_marks(make_llama: MakeLlama, tmp_path: Path) -> None:
    """llama.cpp would end the process at letters that no token has."""
    letters = dataclasses.replace(tiny.letter_vocabulary(), chat_template="{# [TOOL_CALLS] <think></think> #}<s>")
    llm = make_llama(tiny.write_llama(tmp_path / "letters.gguf", letters, tiny.llama_weights(letters, seed=1)))
    assert said(llm.create_chat_completion(**{**GREEDY, "tools": TOOLS, "max_tokens": 5}))["content"]
    with pytest.raises(ValueError, match="cannot be followed any further"):
        llm.create_chat_completion(**{**GREEDY, "tools": TOOLS, "max_tokens": 5}, tool_choice="required")


def test_a_handler_that_takes_no_grammar_says_so(make_llama: MakeLlama) -> None:
    llm = make_llama(chat_format="chatml-function-calling")
    with pytest.raises(ValueError, match="needs a chat handler that takes a grammar"):
        llm.create_chat_completion(**GREEDY, tools=TOOLS, tool_choice="required")
    found = said(llm.create_chat_completion(**GREEDY, tools=TOOLS[:1], tool_choice="required"))
    assert [name for name, _ in found["calls"]] == ["look"]


def test_handlers_of_llama_cpp_stay_as_they_are(saying: Saying) -> None:
    """Whoever names a chat format, or gives a handler, gets what that makes of the text."""
    for options in (
        {"chat_format": "chatml"},
        {"chat_handler": lambda *, llama, **_: llama.create_completion("hi", max_tokens=200, temperature=0.0)},
    ):
        answer = saying(CALLS, HERMES, **options).create_chat_completion(**GREEDY, tools=TOOLS)
        choice = answer["choices"][0]
        assert (choice["message"]["content"] if "message" in choice else choice["text"]) == "".join(CALLS)


THOUGHT = ["<think>", "\n ", "Hm", "..", "\n</think>", "\n\n", "Hi", " there."]


def test_thoughts(saying: Saying) -> None:
    llm = saying(THOUGHT, THINKS)
    expected = {"content": "Hi there.", "reasoning": "Hm..", "calls": [], "why": "stop"}
    assert everywhere(llm) == everywhere(llm, tools=TOOLS) == expected
    assert llm.create_chat_completion(**GREEDY)["usage"]["completion_tokens"] == len(THOUGHT)
    cut = everywhere(llm, max_tokens=4)
    assert cut == {"content": "", "reasoning": "Hm..", "calls": [], "why": "length"}


def test_thoughts_that_the_prompt_begins(saying: Saying) -> None:
    expected = {"content": "Hi there.", "reasoning": "Hm..", "calls": [], "why": "stop"}
    assert everywhere(saying(THOUGHT[2:], BEGINS)) == expected
    calls = everywhere(saying([*THOUGHT[2:5], " \n", LOOK, '{"n": 1}', "}\n</tool_call>"], BEGINS), tools=TOOLS)
    assert calls == {"content": "", "reasoning": "Hm..", "calls": [("look", '{"n": 1}')], "why": "tool_calls"}


def test_a_conversation_knows_when_the_model_thinks(saying: Saying) -> None:
    for pieces, template in ((THOUGHT, THINKS), (THOUGHT[2:], BEGINS), (["Hi", " <think>", "</think>"], THINKS)):
        chat = specllama.Conversation(saying(pieces, template), temperature=0.0)
        thought = [token.text for token in chat.say("hi") if chat.is_thinking]
        assert thought == (pieces[: pieces.index("\n</think>") + 1] if "\n</think>" in pieces else [])
        assert chat.messages[-1]["content"] == "".join(pieces)


def test_generate_prints_thoughts_before_the_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tiny.write_saying(tmp_path / "model.gguf", THOUGHT, THINKS)
    assert cli.main(["generate", "-m", str(path), "-t", "1", "-c", "256", "-n", "20", "-p", "hi", "--chat"]) == 0
    assert capsys.readouterr().out.strip() == "Hm..\n\nHi there."


@pytest.mark.parametrize("template", [THINKS, BEGINS])
def test_a_model_thinks_before_a_call_that_it_must_make(saying: Saying, template: str) -> None:
    pieces = THOUGHT[2 if template is BEGINS else 0 : 5]
    found = everywhere(saying(pieces, template), tools=TOOLS[:1], tool_choice="required")
    assert found["reasoning"] == "Hm.." and found["content"] == ""
    assert [name for name, _ in found["calls"]] == ["look"]


@pytest.mark.parametrize("template", ["chatml-function-calling", HERMES, BEGINS, tiny.CHAT_TEMPLATE])
def test_a_conversation_makes_a_call_that_it_must_make(saying: Saying, template: str) -> None:
    named = {"chat_format": template} if template == "chatml-function-calling" else {}
    llm = saying(THOUGHT[2:5] if template is BEGINS else ["So"], HERMES if named else template, **named)
    must: dict[str, Any] = {"tools": TOOLS[:1], "tool_choice": "required", "parallel_tool_calls": False}
    [(_, arguments)] = said(llm.create_chat_completion(**GREEDY, **must))["calls"]
    chat = specllama.Conversation(llm, **must, temperature=0.0, max_tokens=200)
    text = "".join(token.text for token in chat.say("hi"))
    assert arguments in text and json.loads(arguments)["n"] in (1, 2)
    assert text.startswith("".join(THOUGHT[2:5]) if template is BEGINS else ("<tool_call>", arguments))


def test_a_model_thinks_in_a_channel_before_a_call(saying: Saying) -> None:
    """Gemma's marks of thoughts, of which the first is a token with a word behind it."""
    channel = ("<|channel>", "<channel|>")
    llm = saying([channel[0], "thought", "\nHm..", channel[1], *QUOTED[:1]], GEMMA_THINKS, (*channel, *QUOTED))
    found = everywhere(llm, tools=TOOLS[:1], tool_choice="required", parallel_tool_calls=False)
    assert found["reasoning"] == "Hm.." and [name for name, _ in found["calls"]] == ["look"]
    assert llm.tokenize(channel[0].encode(), add_bos=False, special=True)[-1] in llm.input_ids[: llm.n_tokens]


def test_thoughts_of_gpt_oss(saying: Saying) -> None:
    pieces = ["<|channel|>", "analysis", "<|message|>", "Hm..", "<|end|>"]
    llm = saying(pieces, HARMONY, OPENS)
    assert everywhere(llm) == {"content": "", "reasoning": "Hm..", "calls": [], "why": "stop"}


def test_what_the_template_reads(saying: Saying) -> None:
    llm = saying(THOUGHT, THINKS)
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert chat_prompt(llm, HI, **off).text.endswith("<think>\n\n</think>\n\n")
    with serving(llm) as served:
        sizes = [
            served.post("/v1/chat/completions", **GREEDY, **fields).json()["usage"]["prompt_tokens"]
            for fields in ({}, off, {"chat_template_kwargs": {"enable_thinking": True}})
        ]
        answer = served.post(
            "/v1/chat/completions", **GREEDY, reasoning_effort="low", chat_template_kwargs={"zeal": 1}
        ).json()
        bad = served.post("/v1/chat/completions", **GREEDY, chat_template_kwargs={"tools": []})
    assert sizes[0] == sizes[2] < sizes[1] == llm.create_chat_completion(**GREEDY, **off)["usage"]["prompt_tokens"]
    assert answer["warnings"] == ["reasoning_effort has no effect here", "zeal has no effect here"]
    assert bad.status_code == 400 and "chat_template_kwargs has 'tools'" in bad.text
    with pytest.warns(UserWarning, match="reasoning_effort has no effect: the chat template of .* does not read it"):
        llm.create_chat_completion(**GREEDY, reasoning_effort="low")
    assert "low" in chat_prompt(saying(["So"], HARMONY), HI, reasoning_effort="low").text
    other = saying(["So"], THINKS.replace("enable_thinking", "thinking"))  # as Granite 3.3 and DeepSeek V3.1 call it
    for fields in (off, {"reasoning_effort": "none"}):
        assert chat_prompt(other, HI, **fields).text.endswith("<think>\n\n</think>\n\n")


def test_calls_stand_in_the_text_where_the_template_reads_them(saying: Saying) -> None:
    """With the marks as special tokens, which nobody else's text has."""
    llm = saying(["So", *CALLED], IN_TEXT, CALLED)
    function = {"name": "look", "arguments": json.dumps({"n": 1, "s": "it's", "x": None})}
    call = {"id": "1", "type": "function", "function": function}
    said_before = {"role": "assistant", "content": "Hm.", "tool_calls": [call]}
    result = {"role": "tool", "tool_call_id": "1", "content": CALLED[0]}
    prompt = chat_prompt(llm, [*HI, said_before, result], tools=TOOLS)
    assert f'assistant: Hm.{CALLED[0]}[look(n=1, s="it\'s", x=None)]{CALLED[1]}\n' in str(prompt.text)
    for mark in CALLED:
        assert prompt.tokens.count(llm.tokenize(mark.encode(), add_bos=False, special=True)[-1]) == 1


def test_a_loop_of_two_tools(saying: Saying) -> None:
    """The answers go back as they came, over the server, and the template has their arguments once encoded."""
    llm = saying(CALLS, HERMES)
    with serving(llm) as served:
        client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="none")
        messages = list(HI)
        for _ in range(2):
            answer = client.chat.completions.create(
                model="tiny", messages=messages, tools=TOOLS, temperature=0.0, max_tokens=200
            )
            message = answer.choices[0].message
            messages.append(message)
            messages += [{"role": "tool", "tool_call_id": call.id, "content": "done"} for call in message.tool_calls]
        text = chat_prompt(llm, messages, tools=TOOLS).text
        assert text.count('assistant: Well, let me.{"n": 1}{}\n') == 2 and text.count("tool: done\n") == 4
        client.close()


def test_several_answers_with_calls(saying: Saying) -> None:
    with serving(saying(CALLS, HERMES), max_parallel=2) as served:
        answer = served.post("/v1/chat/completions", **GREEDY, tools=TOOLS, n=2).json()
        parts = served.events("/v1/chat/completions", **GREEDY, tools=TOOLS, n=2)
    calls = [[call["function"]["name"] for call in choice["message"]["tool_calls"]] for choice in answer["choices"]]
    assert calls == [["look", "add"]] * 2
    reasons = [choice["finish_reason"] for part in parts for choice in part["choices"] if choice["finish_reason"]]
    assert reasons == ["tool_calls"] * 2


def test_many_chats_with_calls(saying: Saying) -> None:
    llm = saying(CALLS, HERMES)
    outcomes = llm.create_chat_completions([HI] * 3, tools=TOOLS, temperature=0.0, max_tokens=200)
    assert [said(outcome.response)["calls"] for outcome in outcomes] == [[("look", '{"n": 1}'), ("add", "{}")]] * 3
    assert [outcome.text for outcome in outcomes] == ["Well, let me."] * 3
