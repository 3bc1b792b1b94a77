"""What coding agents send, in the shapes of their requests, is answered; fields for their own service do nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from needed import imported
from test_tool_calls import CALLS, HERMES

imported("fastapi")

from served import Served, serving  # needs the extra

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Saying

CHATS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
STRICT = HERMES.replace(  # as Qwen3.5's: one system message, at the beginning
    "{% for m in messages %}",
    "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('not at the beginning') }}"
    "{% endif %}",
    1,
)
PARAMETERS = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS, "strict": True},
}
CALL = {"id": "call_AbC123xyz", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
CACHED = {"cache_control": {"type": "ephemeral"}}


def said(role: str, text: str, kind: str = "text", **more: Any) -> dict[str, Any]:
    """A message with one part."""
    return {"role": role, "content": [{"type": kind, "text": text, **more}]}


def item(role: str, text: str) -> dict[str, Any]:
    """A message of /v1/responses."""
    return {"type": "message", **said(role, text, "output_text" if role == "assistant" else "input_text")}


CODEX = {
    "model": "m",
    "instructions": "You are a coding agent.",
    "input": [
        item("developer", "<permissions>"),
        item("user", "<environment_context>"),
        item("user", "look"),
        {"type": "reasoning", "summary": [], "content": None, "encrypted_content": "abc"},
        {"type": "function_call", "name": "look", "arguments": '{"n": 1}', "call_id": "call_1"},
        {"type": "function_call_output", "call_id": "call_1", "output": "1"},
        {
            "type": "custom_tool_call",
            "name": "apply_patch",
            "input": "*** Begin Patch",
            "call_id": "call_2",
            "status": "completed",
        },
        {"type": "custom_tool_call_output", "call_id": "call_2", "output": "done"},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "x"}},
        item("assistant", "Yes."),
        item("user", "again"),
    ],
    "tools": [
        {"type": "function", "name": "look", "strict": False, "parameters": PARAMETERS},
        {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
        {"type": "web_search"},
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "reasoning": {"effort": "medium", "summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"x-codex-installation-id": "1"},
    "text": {"verbosity": "low"},
}
CLAUDE_CODE = {
    "model": "m",
    "system": [{"type": "text", "text": "You are Claude Code.", **CACHED}, {"type": "text", "text": "Be brief."}],
    "messages": [
        said("user", "<system-reminder>", **CACHED),
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm", "signature": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"n": 1}},
                {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "x"}},
                {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "1", **CACHED}]},
        {"role": "system", "content": "Plan mode is over."},
        said("user", "go on"),
    ],
    "tools": [
        {"name": "look", "input_schema": PARAMETERS, **CACHED},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "metadata": {"user_id": "1"},
    "thinking": {"type": "adaptive"},
    "context_management": {"edits": []},
    "stream": True,
}
OPENCODE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are opencode."},
        {"role": "system", "content": "<env>"},
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "Hm"},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "1"},
    ],
    "tools": [TOOL],
    "tool_choice": "auto",
    "stream": True,
    "stream_options": {"include_usage": True},
}
CLINE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "You are Cline.", **CACHED}]},
        {"role": "user", "content": [{"type": "text", "text": "<task>"}, {"type": "text", "text": "<env>", **CACHED}]},
        {"role": "assistant", "content": "<look>", "reasoning_details": [{"type": "reasoning.text", "text": "Hm"}]},
        said("user", "[look] Result:"),
    ],
    "temperature": 0,
    "stream": True,
    "stream_options": {"include_usage": True},
    "include_reasoning": True,
    "usage": {"include": True},
    "transforms": ["middle-out"],
}
AIDER = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "Act as an expert."},
        {"role": "user", "content": "I switched to a new code base."},
        {"role": "assistant", "content": "Ok."},
        {"role": "user", "content": "look", **CACHED},
        {"role": "system", "content": "Reminder: edit whole files."},
    ],
    "temperature": 0,
    "stream": True,
}
CONTINUE = {
    "model": "m",
    "messages": [
        {"role": "system", "content": "You are in agent mode."},
        {"role": "user", "content": [{"type": "text", "text": "look"}]},
        {"role": "assistant", "content": "", "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": "1"},
        {"role": "tool", "tool_call_id": "call_2", "content": "2"},
        {"role": "user", "content": "again"},
        {"role": "user", "content": "now"},
    ],
    "tools": [{**TOOL, **CACHED}],
    "tool_choice": "auto",
    "parallel_tool_calls": False,
    "stream": True,
}
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Codex": (RESPONSES, CODEX),
    "Claude Code": (MESSAGES, CLAUDE_CODE),
    "opencode": (CHATS, OPENCODE),
    "Cline": (CHATS, CLINE),
    "aider": (CHATS, AIDER),
    "Continue": (CHATS, CONTINUE),
}


@pytest.fixture
def served(saying: Saying) -> Iterator[Served]:
    """A model that always calls the tool, and takes one system message."""
    with serving(saying(CALLS, STRICT, n_ctx=2048)) as one:
        yield one


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_request_is_answered(served: Served, agent: str) -> None:
    path, body = AGENTS[agent]
    most = {RESPONSES: "max_output_tokens"}.get(path, "max_tokens")
    whole = served.post(path, **{**body, "stream": False, "stream_options": None, most: 100})
    assert whole.status_code == 200, whole.text
    streamed = served.post(path, **{**body, most: 100})
    assert streamed.status_code == 200, streamed.text
    assert '"error":{' not in streamed.text
    if "tools" in body:
        assert "look" in whole.text
        assert "look" in streamed.text
