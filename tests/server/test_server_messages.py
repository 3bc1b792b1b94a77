"""/v1/messages, as Anthropic's clients ask for it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import imported
from test_tool_calls import BEGINS, CALLS, HERMES, LOOK, LOOK_AT, THINKS, THOUGHT, XML

imported("fastapi")

from served import Served, serving  # needs the extra

from specllama.chat import chat_prompt
from specllama.server.blocks import Blocks

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying, TinyFiles

PATH, COUNT, CHATS = "/v1/messages", "/v1/messages/count_tokens", "/v1/chat/completions"
HI: list[Any] = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"messages": HI, "temperature": 0.0, "max_tokens": 200}
TOOLS: list[Any] = [
    {"name": "look", "description": "Looks.", "input_schema": LOOK_AT, "cache_control": {"type": "ephemeral"}},
    {"name": "add", "input_schema": {"type": "object", "properties": {}}, "type": "custom"},
]
PNG = {"type": "base64", "media_type": "image/png", "data": "x"}
DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


def ask(served: Served, **body: Any) -> Any:
    """A message; asserts that a stream says the same."""
    body = {**GREEDY, **body}
    reply = served.post(PATH, **body)
    assert reply.status_code == 200, reply.text
    message = reply.json()
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "tiny")
    told = joined(served.named_events(PATH, **body))
    for name in ("stop_reason", "stop_sequence"):
        assert told[name] == message[name]
    assert without_ids(told["content"]) == without_ids(message["content"])
    assert told["usage"]["output_tokens"] == message["usage"]["output_tokens"]
    for usage in (told["usage"], message["usage"]):  # what the cache had is no input
        assert sum(usage[name] for name in usage if name != "output_tokens") == message_size(served, body)
    return message


def message_size(served: Served, body: dict[str, Any]) -> int:
    names = ("messages", "system", "tools", "tool_choice", "thinking", "chat_template_kwargs")
    reply = served.post(COUNT, **{name: body[name] for name in names if name in body})
    assert reply.status_code == 200, reply.text
    size: int = reply.json()["input_tokens"]
    return size


def without_ids(content: list[Any]) -> list[Any]:
    return [{name: value for name, value in block.items() if name != "id"} for block in content]


def joined(events: list[Any]) -> Any:
    """The message of a stream, put together as Anthropic's client does it."""
    first, *between, last = events
    assert (first["type"], last) == ("message_start", {"type": "message_stop"})
    message = first["message"]
    texts: list[str] = []
    assert message["content"] == [] and message["stop_reason"] is None
    for event in between:
        if event["type"] == "content_block_start":
            assert event["index"] == len(message["content"])
            message["content"].append(event["content_block"])
            texts = []
        elif event["type"] == "content_block_delta":
            texts.append(event["delta"][DELTAS[event["delta"]["type"]]])
        elif event["type"] == "content_block_stop":
            block = message["content"][event["index"]]
            if block["type"] == "tool_use":
                block["input"] = json.loads("".join(texts) or "{}")
            else:
                block[block["type"]] = "".join(texts)
        else:
            assert event["type"] == "message_delta"
            message.update(event["delta"])
            message["usage"].update(event["usage"])
    return message


def refused(served: Served, **body: Any) -> str:
    reply = served.post(PATH, **{**GREEDY, "max_tokens": 1, **body})
    assert reply.status_code == 400 and reply.json()["type"] == "error", reply.text
    error = reply.json()["error"]
    assert error["type"] == "invalid_request_error"
    message: str = error["message"]
    return message


def test_a_text_is_that_of_a_chat(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with serving(make_llama(draft=tiny_files.good), api_key="sesame") as served:
        served.client.headers["x-api-key"] = "sesame"
        system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
        message = ask(served, system=system, max_tokens=12)
        messages = [{"role": "system", "content": "Be brief."}, *HI]
        chat = served.post(CHATS, messages=messages, temperature=0.0, max_tokens=12).json()
        assert message["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
        assert (message["stop_reason"], message["usage"]["output_tokens"]) == ("max_tokens", 12)
        assert message["timings"]["draft_n"] > 0
        served.client.headers["x-api-key"] = "wrong"
        assert served.post(PATH, **GREEDY).status_code == 401


def test_no_tokens(make_llama: MakeLlama) -> None:
    """A stream says from its beginning how long the prompt is."""
    with serving(make_llama()) as served:
        whole = ask(served, max_tokens=0)
        first, *_ = served.named_events(PATH, **{**GREEDY, "max_tokens": 0})
        assert first["message"]["usage"] == whole["usage"] and whole["usage"]["input_tokens"] > 0


def test_a_stop_sequence(saying: Saying) -> None:
    with serving(saying(["One", ", two", ", three"], HERMES)) as served:
        message = ask(served, stop_sequences=["four", " th"])
        assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", " th")
        assert message["content"][0]["text"] == "One, two,"
        ended = ask(served, stop_sequences=["four"])
        assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)
        chat = served.post(CHATS, messages=HI, temperature=0.0, max_tokens=20, stop=[" th"]).json()
        assert chat["stopping_word"] == " th"


def test_calls_and_thoughts_are_blocks(saying: Saying) -> None:
    with serving(saying(CALLS, HERMES)) as served:
        message = ask(served, tools=TOOLS)
        assert without_ids(message["content"]) == [
            {"type": "text", "text": "Well, let me."},
            {"type": "tool_use", "name": "look", "input": {"n": 1}},
            {"type": "tool_use", "name": "add", "input": {}},
        ]
        assert message["stop_reason"] == "tool_use"
        assert (
            len(ask(served, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})["content"])
            == 2
        )
        assert len(ask(served, tools=TOOLS, tool_choice={"type": "none"})["content"]) == 1
        cut = served.post(PATH, **{**GREEDY, "max_tokens": 6}, tools=TOOLS).json()
        assert cut["stop_reason"] == "max_tokens" and cut["content"][1]["input"] == {"INVALID_JSON": '{"n": '}
    with serving(saying([LOOK], HERMES)) as served:
        for choice in ({"type": "tool", "name": "look"}, {"type": "any"}):
            choice = {**choice, "disable_parallel_tool_use": True}
            [call] = ask(served, tools=TOOLS[:1], tool_choice=choice)["content"]
            assert call["name"] == "look" and call["input"]["n"] in (1, 2)
    with serving(saying(THOUGHT, THINKS)) as served:
        message = ask(served, thinking={"type": "enabled", "budget_tokens": 1024})
        assert message["content"] == [
            {"type": "thinking", "thinking": "Hm..", "signature": ""},
            {"type": "text", "text": "Hi there."},
        ]
        assert message["warnings"] == ["thinking.budget_tokens has no effect here"]
        assert message_size(served, {**GREEDY, "thinking": {"type": "disabled"}}) > message_size(served, GREEDY)


def test_a_call_that_is_cut_in_a_mark(saying: Saying) -> None:
    pieces = ["go ", "<tool_call>\n<function=look>\n", "<para", "meter=n>\n"]
    cut = {**GREEDY, "tools": TOOLS, "max_tokens": 3}
    with serving(saying(pieces, XML)) as served:
        go, call = served.post(PATH, **cut).json()["content"]
        assert (go["text"], call["input"]) == ("go", {"INVALID_JSON": "{"})
        assert served.named_events(PATH, **cut)[-1] == {"type": "message_stop"}


def test_the_rest_of_a_call_is_of_its_block() -> None:
    """A delta may have it beside the text that follows."""
    begun = {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"n": '}}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    blocks = Blocks()
    for delta in ({"tool_calls": [begun]}, {"content": "So.", "tool_calls": [rest]}, {"tool_calls": [rest]}):
        list(blocks.read({"choices": [{"delta": delta, "finish_reason": None, "logprobs": None}]}))
    assert [(block.kind, block.text) for block in blocks.all] == [("call", '{"n": 1}1}'), ("text", "So.")]


def test_a_schema(saying: Saying) -> None:
    wanted = {"type": "json_schema", "schema": LOOK_AT}
    with serving(saying(THOUGHT[2:], BEGINS)) as served:
        for fields in ({"output_config": {"format": wanted}}, {"output_format": wanted}):
            thought, block = ask(served, **fields)["content"]
            assert thought["thinking"] == "Hm.." and json.loads(block["text"]) in ({"n": 1}, {"n": 2})


def test_what_was_said_goes_back(saying: Saying) -> None:
    llm = saying([*THOUGHT[:6], *CALLS], THINKS)
    with serving(llm) as served:
        content = ask(served, tools=TOOLS)["content"]
        calls = [block for block in content if block["type"] == "tool_use"]
        results: list[Any] = [
            {"type": "tool_result", "tool_use_id": calls[0]["id"], "content": "a cat"},
            {"type": "tool_result", "tool_use_id": calls[1]["id"], "content": [{"type": "text", "text": "done"}]},
            {"type": "text", "text": "Well?"},
        ]
        messages = [*HI, {"role": "assistant", "content": content}, {"role": "user", "content": results}]
        ask(served, messages=messages, tools=TOOLS)
        found = [int(token) for token in llm.input_ids[: llm.stats.num_prompt_tokens]]
    chat = [
        *HI,
        {
            "role": "assistant",
            "content": "Well, let me.",
            "reasoning_content": "Hm..",
            "tool_calls": [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["input"]}}
                for call in calls
            ],
        },
        {"role": "tool", "tool_call_id": calls[0]["id"], "content": "a cat"},
        {"role": "tool", "tool_call_id": calls[1]["id"], "content": "done"},
        {"role": "user", "content": "Well?"},
    ]
    functions = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": LOOK_AT}}]
    functions += [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    expected = chat_prompt(llm, chat, tools=functions).tokens
    assert llm.detokenize(found, special=True) == llm.detokenize(expected, special=True)


def test_a_tool_that_failed(saying: Saying) -> None:
    llm = saying(THOUGHT[6:], HERMES)
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "look", "input": {}}]}
    text = {"type": "text", "text": "no cat"}
    said = {"no cat": "tool: Error: no cat\n", "": "tool: Error: \n"}
    with serving(llm) as served:
        for content in ("no cat", [text], []):
            result = {"type": "tool_result", "tool_use_id": "1", "content": content, "is_error": True}
            ask(served, messages=[*HI, call, {"role": "user", "content": [result]}])
            read = llm.detokenize(llm.input_ids[: llm.n_tokens].tolist(), special=True).decode()
            assert said["no cat" if content else ""] in read


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no length": ({"max_tokens": None}, "max_tokens: Field required"),
    "a choice of what is left out": (
        {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "tool", "name": "bash"}},
        "there are no tools",
    ),
    "a document": ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document' is not supported"),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": PNG}]}]},
        "start the server with --mmproj",
    ),
    "an image in a file": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "x"}}]}]},
        "an image has the source {'type': 'file'",
    ),
    "an image without data": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {**PNG, "data": None}}]}]},
        "an image has the source",
    ),
    "other servers": ({"mcp_servers": [{}]}, '"mcp_servers" is not supported'),
    "a role": ({"messages": [{"role": "robot", "content": "hi"}]}, "role"),
    "a part of a message": ({"messages": [{"role": "user", "content": ["hi"]}]}, "is not supported: send text"),
    "a field of a message": ({"messages": [{"role": "user", "contents": "hi"}]}, "did you mean content?"),
    "a field of chats": ({"stop": ["a"]}, "here it is stop_sequences"),
    "a field that nobody knows": ({"temprature": 1}, "did you mean temperature?"),
    "a choice": ({"tools": TOOLS, "tool_choice": {"type": "tool", "name": "loook"}}, "did you mean look?"),
    "no messages": ({"messages": []}, "messages"),
    "the beginning of an answer": (
        {"messages": [*HI, {"role": "assistant", "content": [{"type": "tool_use", "name": "look", "input": {}}]}]},
        "a last message of the assistant begins the answer, and needs a text",
    ),
    "a format": ({"output_config": {"format": {"type": "xml"}}}, "output_config.format is {'type': 'xml'}"),
    "a format without a schema": ({"output_format": {"type": "json_schema"}}, "output_format of the type json_schema"),
    "a call without tools": ({"tool_choice": {"type": "any"}}, "has the type 'any', and there are no tools"),
    "a choice of no type": ({"tool_choice": {"type": "some"}}, "tool_choice has the type 'some': it may be auto, any"),
    "a choice of no tool": ({"tools": TOOLS, "tool_choice": {"type": "tool"}}, "needs name, that of a tool"),
    "a field of a choice": ({"tool_choice": {"type": "auto", "nam": "x"}}, "did you mean name?"),
    "a way to think": ({"thinking": {"type": "hard"}}, "thinking has the type 'hard': it may be enabled"),
    "no content": ({"messages": [{"role": "user"}]}, "a message needs content"),
    "a role behind a system message": (
        {"system": "Be brief.", "messages": [{"role": "x", "content": ""}]},
        "messages.0.",
    ),
    **{
        what: ({"messages": [{"role": "assistant", "content": [block]}, *HI]}, why)
        for what, block, why in (
            ("a field of a block", {"type": "text", "text": "a", "txt": 1}, "a text block has no field 'txt'"),
            ("a text without text", {"type": "text"}, "a text block needs text, a text"),
            ("a call without a name", {"type": "tool_use", "id": "1", "input": {}}, "needs name, a text"),
            ("a call of a text", {"type": "tool_use", "name": "look", "input": "1"}, "needs input, an object"),
            ("a thought that is none", {"type": "thinking", "thinking": 5}, "needs thinking, a text"),
            ("a result of a kind", {"type": "tool_result", "is_error": "yes"}, "must be true or false"),
        )
    },
}


def test_an_answer_goes_on_with_the_last_message(saying: Saying) -> None:
    """As Anthropic's models go on with what is put into their mouths."""
    with serving(saying(["One", " two", " three", "!!"], tiny.CHAT_TEMPLATE)) as served:
        begun = [*HI, {"role": "assistant", "content": "One two"}]
        answer = served.post("/v1/messages", messages=begun, max_tokens=20, temperature=0.0).json()
    assert answer["content"] == [{"type": "text", "text": " three!!"}]


def test_what_is_refused(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served:
        said = {what: refused(served, **fields) for what, (fields, _) in REFUSED.items()}
        assert served.post(COUNT, messages=[]).json()["error"]["type"] == "invalid_request_error"
    assert {what: REFUSED[what][1] for what in said if REFUSED[what][1] not in said[what]} == {}, said


def test_a_client_of_anthropics_coding_tools(make_llama: MakeLlama) -> None:
    """What such programs send beside what is asked: it is taken, and what does nothing is named."""
    fields = {"metadata": {"user_id": "x"}, "service_tier": "auto", "context_management": {"edits": []}, "top_k": 5}
    with serving(make_llama()) as served:
        message = ask(served, **fields, max_tokens=2, tool_choice={"type": "auto"}, tools=[])
        assert message["warnings"] == [
            f"{name} has no effect here" for name in ("context_management", "metadata", "service_tier")
        ]
        cached = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}, "citations": None}
        result = {"type": "tool_result", "content": [cached]}
        for given in ({"system": [cached]}, {"messages": [{"role": "user", "content": [result]}]}, {"tools": TOOLS}):
            assert ask(served, max_tokens=1, **given)["warnings"] == ["cache_control has no effect here"]
        assert served.client.post(PATH + "?beta=true", json={**GREEDY, "max_tokens": 1}).status_code == 200
