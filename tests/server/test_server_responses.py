"""/v1/responses, as OpenAI's client and programs on top of it ask for it."""

from __future__ import annotations

import itertools
import json
import threading
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported
from test_tool_calls import BEGINS, CALLS, HERMES, LOOK, LOOK_AT, THINKS, THOUGHT

imported("fastapi")
openai = imported("openai")

import pydantic
from openai.types import responses as types
from openai.types.responses import Response, ResponseStreamEvent, response_create_params
from served import Served, serving  # needs the extra

import specllama
from specllama.chat import chat_prompt
from specllama.server.chats import ChatRequest
from specllama.server.responses import _OF_ITEM, _OF_PART, _SENT_BACK, ResponsesRequest

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying, TinyFiles

PATH, CHATS = "/v1/responses", "/v1/chat/completions"
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_output_tokens": 200}
TOOLS = [
    {"type": "function", "name": "look", "description": "Looks.", "parameters": LOOK_AT, "strict": True},
    {"type": "function", "name": "add", "parameters": None, "strict": None},
]
EVENT: Any = pydantic.TypeAdapter(ResponseStreamEvent)

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


def ask(served: Served, **body: Any) -> Any:
    """A response; asserts that OpenAI's types know it, and that a stream says the same in events that they know."""
    body = {"input": "hi", **GREEDY, **body}
    reply = served.post(PATH, **body)
    assert reply.status_code == 200, reply.text
    response = reply.json()
    Response.model_validate(response, strict=True)
    events = served.named_events(PATH, **body)
    for number, event in enumerate(events):
        EVENT.validate_python(event)
        assert event["sequence_number"] == number
    assert events[-1]["type"] == f"response.{response['status']}"
    assert comparable(events[-1]["response"]) == comparable(response)
    assert_events_tell(events)
    return response


def comparable(response: Any) -> Any:
    """What is the same in another answer to the same request."""
    text = json.dumps({name: response[name] for name in ("status", "output", "incomplete_details", "instructions")})
    output = json.loads(text)
    for item in output["output"]:
        del item["id"]
        item.pop("call_id", None)
        for part in item.get("content", ()):
            part["logprobs"] = [entry["token"] for entry in part.get("logprobs", ())]  # batches round otherwise
    return output, response.get("warnings")


def assert_events_tell(events: list[Any]) -> None:
    """What the events said on the way is what the last one says."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    output = events[-1]["response"]["output"]
    begun = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == output and [item["id"] for item in begun] == [item["id"] for item in output]
    assert all(item["status"] == "in_progress" for item in begun)
    for item in output:
        deltas = [event for event in events if event["type"].endswith(".delta") and event["item_id"] == item["id"]]
        text = "".join(event["delta"] for event in deltas)
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


def refused(served: Served, **body: Any) -> str:
    reply = served.post(PATH, **{"input": "hi", "max_output_tokens": 1, **body})
    assert reply.status_code == 400, reply.text
    message: str = reply.json()["error"]["message"]
    return message


def prompt_of(served: Served) -> list[int]:
    return [int(token) for token in served.llm.input_ids[: served.llm.stats.num_prompt_tokens]]


def test_a_text_is_that_of_a_chat(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with serving(make_llama(draft=tiny_files.good)) as served:
        response = ask(served, max_output_tokens=12, instructions="Be brief.")
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
        chat = served.post(CHATS, messages=messages, temperature=0.0, max_tokens=12).json()
        [item] = response["output"]
        assert item["content"][0]["text"] == chat["choices"][0]["message"]["content"]
        assert response["status"] == item["status"] == "incomplete"
        assert response["incomplete_details"] == {"reason": "max_output_tokens"}
        usage = response["usage"]
        assert (usage["input_tokens"], usage["output_tokens"]) == (chat["usage"]["prompt_tokens"], 12)
        assert response["timings"]["draft_n"] > 0 and response["model"] == "tiny"
        with_sampler = {**GREEDY, "max_output_tokens": 12, "temperature": 1.5, "seed": 3, "num_draft_tokens": 0}
        first, second = (served.post(PATH, input="hi", **with_sampler).json() for _ in range(2))
        assert comparable(first) == comparable(second) and first["timings"]["draft_n"] == 0
        assert served.post("/responses", input="hi", max_output_tokens=1).status_code == 200


def test_calls_and_thoughts_are_items(saying: Saying) -> None:
    with serving(saying(CALLS, HERMES)) as served:
        response = ask(served, tools=TOOLS)
        assert [item["type"] for item in response["output"]] == ["message", "function_call", "function_call"]
        assert [(item["name"], item["arguments"]) for item in response["output"][1:]] == [
            ("look", '{"n": 1}'),
            ("add", "{}"),
        ]
        assert response["status"] == "completed" and response["tools"][0]["name"] == "look"
        assert len(ask(served, tools=TOOLS, parallel_tool_calls=False)["output"]) == 2
        assert [item["type"] for item in ask(served, tools=TOOLS, tool_choice="none")["output"]] == ["message"]
        cut = ask(served, tools=TOOLS, max_output_tokens=6)["output"]
        assert [(item["status"], item.get("arguments")) for item in cut] == [
            ("completed", None),
            ("incomplete", '{"n": '),
        ]
    choices: list[Any] = [{"type": "function", "name": "look"}]
    choices += [{"type": "allowed_tools", "mode": "required", "tools": choices[:]}]
    with serving(saying([LOOK], HERMES)) as served:
        for choice in choices:
            [call] = ask(served, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False)["output"]
            assert call["name"] == "look" and json.loads(call["arguments"])["n"] in (1, 2)
    with serving(saying(THOUGHT, THINKS)) as served:
        response = ask(served)
        assert [(item["type"], item["content"][0]["text"]) for item in response["output"]] == [
            ("reasoning", "Hm.."),
            ("message", "Hi there."),
        ]
        assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < len(THOUGHT)


def test_a_schema(saying: Saying) -> None:
    wanted = {"format": {"type": "json_schema", "name": "x", "schema": LOOK_AT, "strict": True}}
    with serving(saying(THOUGHT[2:], BEGINS)) as served:
        thought, item = ask(served, text=wanted)["output"]
        assert thought["type"] == "reasoning"
        assert json.loads(item["content"][0]["text"]) in ({"n": 1}, {"n": 2})
        assert "json_schema.schema" in refused(served, text={"format": {"type": "json_schema", "name": "x"}})
        assert '"not"' in refused(served, text={"format": {"type": "json_schema", "name": "x", "schema": {"not": {}}}})


def test_log_probabilities(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served:
        for fields in ({"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}):
            part = ask(served, max_output_tokens=4, **fields)["output"][0]["content"][0]
            chat = {"messages": [{"role": "user", "content": "hi"}], "temperature": 0.0, "max_tokens": 4}
            chosen = served.post(CHATS, **chat, logprobs=True).json()["choices"][0]["logprobs"]["content"]
            assert [entry["token"] for entry in part["logprobs"]] == [entry["token"] for entry in chosen]
            assert [len(entry["top_logprobs"]) for entry in part["logprobs"]] == [fields.get("top_logprobs", 1)] * 4


def test_what_was_said_goes_back(saying: Saying) -> None:
    """The items of an answer are one message of a chat, with its thought and its calls."""
    llm = saying([*THOUGHT[:6], *CALLS], THINKS)
    with serving(llm) as served:
        given: list[Any] = [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
        output = ask(served, input=given, tools=TOOLS)["output"]
        calls = [item for item in output if item["type"] == "function_call"]
        results = [{"type": "function_call_output", "call_id": call["call_id"], "output": "done"} for call in calls]
        ask(served, input=[*given, *output, *results], tools=TOOLS)
        found = prompt_of(served)
    chat = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "Well, let me.",
            "reasoning_content": "Hm..",
            "tool_calls": [
                {
                    "id": call["call_id"],
                    "type": "function",
                    "function": {"name": call["name"], "arguments": call["arguments"]},
                }
                for call in calls
            ],
        },
        *[{"role": "tool", "tool_call_id": call["call_id"], "content": "done"} for call in calls],
    ]
    functions = [{"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": LOOK_AT}}]
    functions += [{"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {}}}}]
    expected = chat_prompt(llm, chat, tools=functions)
    assert llm.detokenize(found, special=True) == llm.detokenize(expected.tokens, special=True)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a response before": ({"previous_response_id": "resp_1"}, '"previous_response_id" is not supported: nothing is st'),
    "a conversation": ({"conversation": "conv_1"}, '"conversation" is not supported'),
    "background": ({"background": True}, '"background" is not supported'),
    "a stored prompt": ({"prompt": {"id": "pmpt_1"}}, '"prompt" is not supported'),
    "a stored item": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "nothing is stored"),
    "a choice of what is left out": (
        {"tools": [{"type": "custom", "name": "x"}], "tool_choice": {"type": "function", "name": "x"}},
        "and there are no tools",
    ),
    "such a choice": ({"tools": TOOLS, "tool_choice": {"type": "file_search"}}, "it may be function or allowed_tools"),
    "a choice without tools": ({"tool_choice": "required"}, "there are no tools"),
    "a file": ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "'input_file' is not supported"),
    "no content": ({"input": [{"role": "user"}]}, "needs a role and content"),
    "no input": ({"input": []}, "messages"),
    "a field of a message": (
        {"input": [{"role": "user", "content": "a", "contents": 1}]},
        "a message of the input has",
    ),
    "a field of a part": (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a", "txt": 1}]}]},
        "the part input_text has no field 'txt'",
    ),
    "a part without its text": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "needs 'text', a text",
    ),
    "a call without a name": ({"input": [{"type": "function_call", "call_id": "1"}]}, "needs name, a text"),
    "a field of chats": ({"max_tokens": 3}, "here it is max_output_tokens"),
    "a field that nobody knows": ({"temprature": 1}, "did you mean temperature?"),
    "an unknown part of text": ({"text": {"fromat": {}}}, "did you mean format?"),
    "an inclusion of another type": ({"include": [{}]}, "include={} is not known"),
    "an inclusion": ({"include": ["everything"]}, "include='everything' is not known"),
    "options of a stream": ({"stream_options": {"include_obfuscation": False}}, "is for streams"),
    "a number": ({"temperature": "hot"}, "temperature"),
}


def test_what_is_refused(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served:
        said = {what: refused(served, **fields) for what, (fields, _) in REFUSED.items()}
    assert {what: why for what, (_, why) in REFUSED.items() if why not in said[what]} == {}, said


def test_every_field_of_openais_is_done_or_ignored_or_refused(make_llama: MakeLlama) -> None:
    params = response_create_params
    streaming = params.ResponseCreateParamsStreaming.__annotations__
    fields = {*params.ResponseCreateParamsBase.__annotations__, *streaming}
    assert len(fields) > 25
    given: dict[str, Any] = {
        "store": True,
        "truncation": "auto",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low"},
        "include": ["reasoning.encrypted_content"],
        "metadata": {"a": "b"},
        "user": "me",
        "prompt_cache_key": "x",
    }
    with serving(make_llama()) as served:
        for name in fields - {"input", "stream", "stream_options"} - given.keys():
            reply = served.post(PATH, **{"input": "hi", "max_output_tokens": 1, name: {"x": 1}})
            assert f'there is no field "{name}"' not in reply.text
        nulls = dict.fromkeys(fields | ResponsesRequest.model_fields.keys() - {"input"})
        nulls.update(dict.fromkeys(ChatRequest.model_fields.keys()))
        del nulls["stream"]
        assert "warnings" not in ask(served, **{**nulls, "input": "hi", "max_output_tokens": 2, "seed": 1})
        answer = ask(served, max_output_tokens=2, **given)
        assert answer["metadata"] == {"a": "b"} and answer["store"] is False
        assert sorted(warning.removesuffix(" has no effect here") for warning in answer["warnings"]) == [
            *("include reasoning.encrypted_content", "prompt_cache_key", "reasoning.summary", "reasoning_effort"),
            *("store", "text.verbosity", "truncation"),
        ]


def test_every_field_of_openais_items_is_known() -> None:
    """Of those that this server takes. Clients send back what they got."""
    items: dict[str, list[Any]] = {
        "message": [types.EasyInputMessage, types.ResponseOutputMessage, types.response_input_item.Message],
        "reasoning": [types.ResponseReasoningItem],
        "function_call": [types.ResponseFunctionToolCall, types.parsed_response.ParsedResponseFunctionToolCall],
        "function_call_output": [
            types.ResponseFunctionToolCallOutputItem,
            types.response_input_item.FunctionCallOutput,
        ],
    }
    parts: dict[str, list[Any]] = {
        "input_text": [types.ResponseInputText],
        "input_image": [types.ResponseInputImage],
        "output_text": [types.ResponseOutputText, types.parsed_response.ParsedResponseOutputText],
        "refusal": [types.ResponseOutputRefusal],
    }

    def names(classes: list[Any]) -> set[str]:
        return {field.alias or name for each in classes for name, field in each.model_fields.items()}

    for kind, classes in items.items():
        assert names(classes) <= _SENT_BACK | _OF_ITEM[kind]
    for kind, classes in parts.items():
        assert names(classes) <= {"type", *_OF_PART[kind]}


def test_nothing_is_stored(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        response = client.responses.create(model="tiny", input="hi", max_output_tokens=2)
        for ask_for in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
            with pytest.raises(openai.NotFoundError, match="this server stores none"):
                ask_for(response.id)


class Answer(pydantic.BaseModel):
    """What the model is made to say."""

    sure: bool


def test_openais_client_reads_a_schema(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client:
        parsed = client.responses.parse(model="tiny", input="hi", text_format=Answer, **GREEDY)
    assert isinstance(parsed.output_parsed, Answer)


def test_openais_client_reads_a_stream(saying: Saying) -> None:
    with (
        serving(saying(CALLS, HERMES)) as served,
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="x") as client,
    ):
        with client.responses.stream(model="tiny", input="hi", tools=TOOLS, **GREEDY) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        assert "".join(deltas) == final.output_text == "Well, let me."
        assert [item.name for item in final.output if item.type == "function_call"] == ["look", "add"]


def test_an_error_in_the_middle_of_a_stream(saying: Saying, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client raises it, as in chats; before the first event it has a status."""
    llm = saying(["One", ", two", ", three"], HERMES)
    made = type(llm).create_completion

    def breaking(self: Any, **chat: Any) -> Any:
        chunks = made(self, **chat)
        yield from itertools.islice(chunks, 2)
        chunks.close()
        raise specllama.DecodeError("the model broke")

    monkeypatch.setattr(type(llm), "create_completion", breaking)
    with serving(llm) as served, openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client:
        events = served.named_events(PATH, input="hi")
        assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
        EVENT.validate_python(events[-1])
        last = events[-1]
        assert (last["type"], last["message"], last["sequence_number"]) == ("error", "the model broke", len(events) - 1)
        assert "event: error" not in served.post(CHATS, messages=[{"role": "user", "content": "hi"}], stream=True).text
        with pytest.raises(openai.APIError, match="the model broke"):
            list(client.responses.create(model="tiny", input="hi", stream=True))
        assert served.post(PATH, input="hi").status_code == 500
        told = served.named_events("/v1/messages", max_tokens=5, messages=[{"role": "user", "content": "hi"}])[-1]
        assert told == {"type": "error", "error": {"type": "api_error", "message": "the model broke"}}


@pytest.mark.parametrize("max_parallel", [1, 3])
def test_several_at_once(make_llama: MakeLlama, tiny_files: TinyFiles, max_parallel: int) -> None:
    with serving(make_llama(draft=tiny_files.good), max_parallel=max_parallel) as served:
        alone = comparable(ask(served, max_output_tokens=10))
        found: list[Any] = []
        threads = [
            threading.Thread(
                target=lambda: found.append(served.post(PATH, input="hi", **{**GREEDY, "max_output_tokens": 10}).json())
            )
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [comparable(response) for response in found] == [alone] * 4
