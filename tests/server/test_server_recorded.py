"""Requests as programs send them to any server of OpenAI's API, after their sources: each is answered, and nothing of
what it asks for is passed over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported
from test_tool_calls import CALLS, HERMES

imported("fastapi")
imported("openai")

from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from served import Served, serving  # needs the extra

if TYPE_CHECKING:
    from conftest import Saying

CHATS, TEXTS = "/v1/chat/completions", "/v1/completions"
WEATHER = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Look at the weather.",
        "parameters": {
            "type": "object",
            "properties": {"n": {"type": "integer", "description": "How many days"}},
            "required": ["n"],
        },
    },
}
CALL = {"id": "call_x1", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
ADD_CALL = {"id": "call_x2", "type": "function", "function": {"name": "add", "arguments": '{"a": 17, "b": 25}'}}
STRICT_LOOK: dict[str, Any] = {**WEATHER, "function": {**WEATHER["function"], "strict": True}}
STRICT_ADD: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Add two whole numbers.",
        "parameters": {
            "properties": {"a": {"title": "A", "type": "integer"}, "b": {"title": "B", "type": "integer"}},
            "required": ["a", "b"],
            "title": "add_args",
            "type": "object",
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TITLE = """### Task:
Generate a concise, 3-5 word title with an emoji summarizing the chat history.
### Output:
JSON format: { "title": "your concise title here" }
### Chat History:
<chat_history>
USER: hi
ASSISTANT: Hello!
</chat_history>"""
READ_FILE = {
    "type": "function",
    "function": {
        "name": "read_file",
        "description": "Use this tool if you need to view the contents of an existing file.",
        "parameters": {
            "type": "object",
            "required": ["filepath"],
            "properties": {"filepath": {"type": "string", "description": "The path of the file to read"}},
        },
    },
}
CODE = "def add(a, b):\n    return a + b\n"
FIM = f"<|fim_prefix|>{CODE}\ndef sub(<|fim_suffix|>\n    return c\n<|fim_middle|>"

REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    # Open WebUI: a chat, its title, and a second turn with a tool called natively
    "open webui, chat": (
        CHATS,
        {
            "stream": True,
            "model": "tiny",
            "messages": [{"role": "user", "content": "hi"}],
            "stream_options": {"include_usage": True},
        },
    ),
    "open webui, chat with parameters": (
        CHATS,
        {
            "stream": True,
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": [{"type": "text", "text": "hi"}]},
                {"role": "assistant", "content": "Hello!"},
                {"role": "user", "content": "and?"},
            ],
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 40,
            "min_p": 0.05,
            "max_tokens": 20,
            "frequency_penalty": 0.1,
            "presence_penalty": 0,
            "repeat_penalty": 1.1,
            "repeat_last_n": 64,
            "mirostat": 0,
            "mirostat_eta": 0.1,
            "mirostat_tau": 5.0,
            "seed": 42,
            "stop": ["\n\n\n"],
            "logit_bias": {"5": -100},
        },
    ),
    "open webui, title": (
        CHATS,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": TITLE}],
            "stream": False,
            "max_completion_tokens": 30,
        },
    ),
    "open webui, native tools": (
        CHATS,
        {
            "stream": True,
            "model": "tiny",
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": "", "tool_calls": [{**CALL, "index": 0}]},
                {"role": "tool", "tool_call_id": "call_x1", "content": "Sunny."},
            ],
            "tools": [WEATHER],
        },
    ),
    # continue.dev: a chat in agent mode, applying an edit with a prediction, and a completion in the editor
    "continue, agent": (
        CHATS,
        {
            "model": "tiny",
            "max_tokens": 40,
            "messages": [
                {"role": "system", "content": "<important_rules>\n  You are in agent mode.\n</important_rules>"},
                {"role": "user", "content": [{"type": "text", "text": "What is in a.py?"}]},
                {"role": "assistant", "content": " ", "tool_calls": [CALL]},
                {"role": "tool", "content": CODE, "tool_call_id": "call_x1"},
            ],
            "stream": True,
            "tools": [READ_FILE, WEATHER],
            "parallel_tool_calls": False,
            "stream_options": {"include_usage": True},
        },
    ),
    "continue, apply": (
        CHATS,
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"```python\n{CODE}```\nRename a to x."}],
            "temperature": 0,
            "max_tokens": 40,
            "stream": True,
            "prediction": {"type": "content", "content": CODE},
        },
    ),
    "continue, autocomplete": (
        TEXTS,
        {
            "model": "tiny",
            "prompt": FIM,
            "max_tokens": 20,
            "temperature": 0.01,
            "stop": ["<|endoftext|>", "<|fim_prefix|>", "/src/", "#- coding: utf-8", "```", "\n\n"],
            "stream": True,
        },
    ),
    "continue, llama.cpp": (
        "/completion",
        {
            "prompt": FIM,
            "n_predict": 20,
            "temperature": 0.01,
            "top_k": 40,
            "top_p": 0.9,
            "min_p": 0.0,
            "frequency_penalty": 0.0,
            "presence_penalty": 0.0,
            "mirostat": 0,
            "stop": ["<|endoftext|>", "\n\n"],
            "stream": True,
        },
    ),
    # aider, by way of litellm: an edit, with its reminder; and with its prompts marked for a cache
    "aider, edit": (
        CHATS,
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Act as an expert software developer."},
                {"role": "user", "content": f"I have *added these files to the chat*.\n\na.py\n```\n{CODE}```"},
                {"role": "assistant", "content": "Ok."},
                {"role": "user", "content": "rename a to x\n\n*SEARCH/REPLACE* blocks, please."},
            ],
            "stream": True,
            "temperature": 0,
        },
    ),
    "aider, cached prompts": (
        CHATS,
        {
            "model": "tiny",
            "messages": [
                {
                    "role": "system",
                    "content": [
                        {"type": "text", "text": "Act as an expert.", "cache_control": {"type": "ephemeral"}},
                    ],
                },
                {"role": "user", "content": "rename a to x"},
            ],
            "temperature": 0,
            "stream": False,
        },
    ),
    "aider, commit message": (
        CHATS,
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Generate a one-line commit message."},
                {"role": "user", "content": "diff --git a/a.py b/a.py"},
            ],
            "temperature": 0,
        },
    ),
    # the Agents SDK, both ways
    "agents, chats": (
        CHATS,
        {
            "messages": [{"content": "Be brief.", "role": "system"}, {"role": "user", "content": "hi"}],
            "model": "tiny",
            "stream": False,
            "tools": [{**WEATHER, "function": {**WEATHER["function"], "strict": True}}],
        },
    ),
    "agents, responses": (
        "/v1/responses",
        {
            "include": [],
            "input": [
                {"content": "hi", "role": "user"},
                {"id": "fc_1", "call_id": "call_x1", "name": "look", "arguments": '{"n": 1}', "type": "function_call"},
                {"call_id": "call_x1", "output": "Sunny.", "type": "function_call_output"},
            ],
            "instructions": "Be brief.",
            "model": "tiny",
            "stream": False,
            "tools": [{"type": "function", "strict": True, **WEATHER["function"]}],
        },
    ),
    # and its second rounds, with two tools that were called at once (0.24, as it sent them)
    "agents, chats, second round": (
        CHATS,
        {
            "messages": [
                {"content": "Be brief.", "role": "system"},
                {"role": "user", "content": "What is the weather in Bonn, and what is 17 + 25?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL, ADD_CALL]},
                {"role": "tool", "tool_call_id": CALL["id"], "content": "Sunny."},
                {"role": "tool", "tool_call_id": ADD_CALL["id"], "content": "42"},
            ],
            "model": "tiny",
            "max_tokens": 200,
            "temperature": 0.0,
            "tools": [STRICT_LOOK, STRICT_ADD],
        },
    ),
    "agents, responses, second round": (
        "/v1/responses",
        {
            "include": [],
            "input": [
                {"content": "What is the weather in Bonn, and what is 17 + 25?", "role": "user"},
                *(
                    {
                        **{name: call["function"][name] for name in ("arguments", "name")},
                        "call_id": call["id"],
                        "id": f"fc_{call['id']}",
                        "type": "function_call",
                        "status": "completed",
                    }
                    for call in (CALL, ADD_CALL)
                ),
                {"call_id": CALL["id"], "output": "Sunny.", "type": "function_call_output"},
                {"call_id": ADD_CALL["id"], "output": "42", "type": "function_call_output"},
            ],
            "instructions": "Be brief.",
            "max_output_tokens": 200,
            "model": "tiny",
            "temperature": 0.0,
            "tools": [{"type": "function", **each["function"]} for each in (STRICT_LOOK, STRICT_ADD)],
        },
    ),
}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


def events(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    with served.client.stream("POST", path, json=body) as response:
        assert response.status_code == 200, response.read()
        data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return [json.loads(part) for part in data if part != "[DONE]"]


def answer_to(served: Served, path: str, body: dict[str, Any]) -> list[Any]:
    """Its chunks, or the one response; asserts that OpenAI's types know them."""
    kinds: dict[str, Any] = {CHATS: ChatCompletion, TEXTS: Completion, "/v1/responses": Response}
    if body.get("stream"):
        answer = events(served, path, body)
        kinds = {CHATS: ChatCompletionChunk}  # they have none for chunks of texts
    else:
        reply = served.post(path, **body)
        assert reply.status_code == 200, reply.text
        answer = [reply.json()]
    for part in answer if path in kinds else ():
        kinds[path].model_validate(part)
    return answer


def test_each_is_answered(saying: Saying) -> None:
    with serving(saying(CALLS, HERMES, num_draft_tokens="auto"), api_key="sk-0") as served:
        served.client.headers["Authorization"] = "Bearer sk-0"
        models = served.client.get("/v1/models").json()
        assert [model["id"] for model in models["data"]] == ["tiny"]
        for name, (path, body) in REQUESTS.items():
            answer = answer_to(served, path, body)
            assert not any("warnings" in part for part in answer), name
            calls = [
                call
                for part in answer
                for choice in part.get("choices", ())
                for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls", ())
                if "id" in call
            ]
            asks_for_tools = "tools" in body and path == CHATS
            assert bool(calls) == asks_for_tools, name
            if body.get("parallel_tool_calls") is False:
                assert len(calls) == 1
            if body.get("stream_options"):
                assert answer[-1]["usage"]["total_tokens"] > 0, name
