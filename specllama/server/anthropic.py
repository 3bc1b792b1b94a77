"""/v1/messages: chats in Anthropic's form."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field, model_validator
from starlette.responses import Response

from specllama.chat import ChatPrompt, require_known
from specllama.drop_in import text_of

from .blocks import Block, Blocks
from .chats import ChatRequest
from .document import with_body
from .errors import error_body, error_headers, status_of
from .generating import Generating
from .job import Item
from .llama_server import prompt_reply
from .other_form import OtherChat, with_fields_of
from .replies import JsonReply, event_of
from .request_limits import Place
from .said import say_once
from .wire import without_nulls

_REFUSED = {
    "container": "nothing is run here",
    "mcp_servers": "nobody is asked from here: give the tools as tools",
}
_IGNORED = frozenset(
    {
        *("betas", "cache_control", "context_management", "diagnostics", "inference_geo", "metadata", "service_tier"),
        *("speed", "user_profile_id", "workspace_id"),
    }
)
_OF_CHATS = {
    **dict.fromkeys(("max_completion_tokens", "n_predict"), "max_tokens"),
    **dict.fromkeys(("functions", "function_call"), "tools"),
    **dict.fromkeys(("n", "n_cmpl"), "several requests"),
    **dict.fromkeys(("continue_final_message", "add_generation_prompt"), "a last message of the assistant"),
    "parallel_tool_calls": "tool_choice.disable_parallel_tool_use",
    "reasoning_effort": "output_config.effort",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    **dict.fromkeys(
        ("logprobs", "stream_options", "timings_per_token", "return_origins", "return_progress"), "/v1/chat/completions"
    ),
}
"""Fields of /v1/chat/completions that are refused here, and for each what to send in its place, for the message."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none", "tool": "tool"}
_OF_CHOICE = {"type", "name", "disable_parallel_tool_use"}
_THINKS = {"enabled": True, "adaptive": True, "disabled": False}
_FORMATS = ("json_schema", "json_object", "text")
_CACHE = "cache_control"
_OF_BLOCK = {
    "text": {"text", "citations", "parsed_output"},
    "image": {"source"},
    "tool_use": {"id", "name", "input", "caller"},
    "tool_result": {"tool_use_id", "content", "is_error"},
    "thinking": {"thinking", "signature"},
    "redacted_thinking": {"data"},
}
"""The fields of each type of block beside type and cache_control. Clients also send back all fields of answers."""
_LEFT_OUT = {
    *("server_tool_use", "web_search_tool_result", "web_fetch_tool_result", "code_execution_tool_result"),
    *("bash_code_execution_tool_result", "text_editor_code_execution_tool_result", "tool_search_tool_result"),
    *("mcp_tool_use", "mcp_tool_result", "container_upload", "compaction"),
}
"""Types of blocks that are left out: of tools that another server has run, or unreadable."""
_IMAGE = '{"type": "base64", "media_type": "image/png", "data": "..."}'
_OF_TOOL = {"name", "description", "input_schema", "strict"}
_WITHOUT_EFFECT_OF_TOOL = {
    *("type", "cache_control", "allowed_callers", "defer_loading", "eager_input_streaming", "input_examples"),
}
_PING = event_of({"type": "ping"})
_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 413: "request_too_large"}


class CountRequest(OtherChat):
    """The body of /v1/messages/count_tokens. Unlisted fields of chats are passed on unchanged."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    system: str | list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] = Field([])
    tool_choice: dict[str, Any] = Field({"type": "auto"})
    thinking: dict[str, Any] = Field({}, description="Whether the model thinks, where the chat template reads it.")
    output_config: dict[str, Any] = Field(
        {}, description="The effort (`effort`) and the form of the answer (`format`)."
    )
    output_format: dict[str, Any] | None = Field(None, description="The older name of output_config.format.")
    chat_template_kwargs: dict[str, Any] | None = None

    ignored: ClassVar[frozenset[str]] = _IGNORED
    refused: ClassVar[Mapping[str, str]] = _REFUSED
    elsewhere: ClassVar[Mapping[str, str]] = _OF_CHATS

    model_config = ConfigDict(json_schema_extra=with_fields_of(ChatRequest, _OF_CHATS))

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if isinstance(body, dict):
            require_known("output_config", body.get("output_config"), {"effort", "format", "task_budget"})
        return body

    def without_effect(self) -> list[str]:
        """Names of fields that have no effect: see the base class."""
        names = [f"thinking.{name}" for name in self.thinking if name != "type"]
        names += ["output_config.task_budget"] if self.output_config.get("task_budget") else []
        caches = any(each.get(_CACHE) is not None for each in _objects(self.system, self.tools, *self._contents()))
        return [*names, *([_CACHE] if caches and _CACHE not in (self.model_extra or {}) else [])]

    def _contents(self) -> Iterator[Any]:
        """The contents of all messages, and of the tools' results in these messages."""
        contents = [message.get("content") for message in self.messages]
        yield from contents
        yield from (block.get("content") for block in _objects(*contents))

    def chat(self) -> dict[str, Any]:
        """The body of the equivalent chat request."""
        body = self.others()
        body.update(
            messages=[message for message, _ in self._messages()],
            model=self.model,
            tools=[_tool(without_nulls(tool)) for tool in self.tools] or None,
            tool_choice=_choice(
                without_nulls(self.tool_choice),
                has_tools=self._has_functions(),
            ),
            parallel_tool_calls=not self.tool_choice.get("disable_parallel_tool_use"),
            response_format=_format("output_config.format", self.output_config.get("format"))
            or _format("output_format", self.output_format),
            reasoning_effort=self.output_config.get("effort"),
            chat_template_kwargs={**self._thinks(), **(self.chat_template_kwargs or {})} or None,
            continue_final_message=self._is_begun() or None,
        )
        return body

    def _messages(self) -> Iterator[tuple[dict[str, Any], Place]]:
        """The messages of the equivalent chat, and the place of each in this body."""
        if self.system:
            system = self.system if isinstance(self.system, str) else [_part(block) for block in self.system]
            yield {"role": "system", "content": system}, ("system",)
        for number, message in enumerate(self.messages):
            for each in _messages(without_nulls(message)):
                yield each, ("messages", number)

    def place(self, place: Place) -> Place:
        """Where this body has what stands at `place` in the equivalent chat request."""
        if place[:1] != ("messages",) or len(place) == 1:
            return place
        return (*[of for _, of in self._messages()][int(place[1])], *place[2:])

    def _has_functions(self) -> bool:
        return any(tool.get("type") in (None, "custom") for tool in self.tools)

    def _is_begun(self) -> bool:
        """Whether the last message is the beginning of the answer.

        Raises:
            ValueError: the last message is the assistant's, but the model cannot continue it.
        """
        last = self.messages[-1]
        if last.get("role") != "assistant":
            return False
        blocks = _objects(last.get("content"))
        begun = last.get("content") if isinstance(last.get("content"), str) else any(map(text_of, blocks))
        if not begun or any(block.get("type") == "tool_use" for block in blocks):
            raise ValueError(
                "a last message of the assistant begins the answer, and needs a text and no tool_use: end with such a "
                "message, or with one of the user"
            )
        return True

    def _thinks(self) -> dict[str, Any]:
        """The template's field ``enable_thinking``; none, for the chat template's own default, without ``thinking``."""
        kind = self.thinking.get("type")
        if kind is None:
            return {}
        if not isinstance(kind, str) or kind not in _THINKS:
            raise ValueError(f"thinking has the type {kind!r:.60}: it may be {', '.join(_THINKS)}")
        return {"enable_thinking": _THINKS[kind]}


class MessagesRequest(CountRequest):
    """The body of /v1/messages. Unlisted fields of chats, such as those of samplers, are passed on unchanged."""

    max_tokens: int = Field(ge=-1, description="The most tokens of the answer. -1: as many as fit.")
    stop_sequences: list[str] = Field([])
    stream: bool = False

    def chat(self) -> dict[str, Any]:
        """The body of the equivalent chat request."""
        return {**super().chat(), "max_tokens": self.max_tokens, "stop": self.stop_sequences or None}

    def translator(self, asked: ChatRequest) -> _Events:
        """Returns the translator of the answer: see ``Translated``."""
        return _Events(self, asked)


def add_messages(app: FastAPI, generating: Generating) -> None:
    """Adds the routes.

    Args:
        app: gets the routes.
        generating: answers their requests.
    """

    @app.post("/v1/messages", response_model=None, openapi_extra=with_body(MessagesRequest))
    async def messages(request: Request) -> Response:
        return await generating.translated(
            request, MessagesRequest, lambda error, _: _error(error), _error_reply, _PING
        )

    @app.post("/v1/messages/count_tokens", response_model=None, openapi_extra=with_body(CountRequest))
    async def count_tokens(request: Request) -> Response:
        llm, bodies = generating.lender.llm, generating.bodies
        return await prompt_reply(request, bodies, llm, CountRequest, _counted, _error_reply)


def _counted(prompt: ChatPrompt) -> Item:
    return {"input_tokens": len(prompt.tokens)}


def _error(error: Exception) -> Item:
    status = status_of(error)
    other = "invalid_request_error" if status < 500 else "overloaded_error" if status == 503 else "api_error"
    said = {"type": _TYPES.get(status, other), "message": error_body(error)["error"]["message"]}
    return {"type": "error", "error": said}


def _error_reply(error: Exception) -> JsonReply:
    return JsonReply(_error(error), status_of(error), error_headers(error))


# The request


def _messages(message: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chat messages of one Anthropic message: in chats each result of a tool is a message of its own.

    Raises:
        ValueError: a block is unknown or malformed.
    """
    role, content = message.get("role"), message.get("content")
    require_known("a message", message, {"role", "content"})
    if content is None:
        raise ValueError('a message needs content: {"role": "user", "content": "Hello"}')
    if not isinstance(content, list):
        yield {"role": role, "content": content}
        return
    parts: list[Any] = []
    answer: dict[str, Any] = {"role": role}
    for block in map(_block, content):
        kind = block.get("type")
        if kind == "tool_result":
            yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": _result(block)}
        elif kind == "tool_use":
            function = {"name": _field(block, "name", str), "arguments": _field(block, "input", dict, {})}
            answer.setdefault("tool_calls", []).append(
                {"id": block.get("id"), "type": "function", "function": function}
            )
        elif kind == "thinking":
            answer["reasoning_content"] = answer.get("reasoning_content", "") + _field(block, "thinking", str, "")
        elif kind in _LEFT_OUT:
            say_once(f"blocks of the type {kind!r} are left out of a conversation: they are of tools that are not here")
        elif kind != "redacted_thinking":  # its data cannot be read, so it is left out
            parts.append(_part(block))
    if parts or len(answer) > 1:
        yield {**answer, "content": parts or None}


def _objects(*lists: Any) -> list[dict[str, Any]]:
    """All objects in some values that may be lists."""
    return [each for given in lists if isinstance(given, list) for each in given if isinstance(each, dict)]


def _block(given: Any) -> dict[str, Any]:
    """A block without nulls. The check of chat requests refuses blocks of unknown types later.

    Raises:
        ValueError: the block has an unknown field.
    """
    if not isinstance(given, dict):
        return {"type": str(given)[:60]}
    block = without_nulls(given)
    kind = block.get("type")
    if isinstance(kind, str) and kind in _OF_BLOCK:
        require_known(f"a {kind} block", block, {"type", _CACHE, *_OF_BLOCK[kind]})
    return block


def _field(block: dict[str, Any], name: str, kind: type[Any], default: Any = None) -> Any:
    value = block.get(name, default)
    if not isinstance(value, kind):
        raise ValueError(f"a {block['type']} block needs {name}, {'a text' if kind is str else 'an object'}")
    return value


def _result(block: dict[str, Any]) -> Any:
    """The content of a tool's message. Chats have no field for a failure, so the text begins with ``Error:``."""
    content = block.get("content", "")
    parts = [_part(part) for part in content] if isinstance(content, list) else content
    failed = block.get("is_error", False)
    if not isinstance(failed, bool):
        raise ValueError("is_error of a tool_result block must be true or false")
    if not failed:
        return parts
    if isinstance(parts, list):
        said = text_of(parts[0]) if parts else None
        return [{"type": "text", "text": f"Error: {said or ''}"}, *(parts if said is None else parts[1:])]
    return f"Error: {parts}" if isinstance(parts, str) else parts


def _part(given: Any) -> Any:
    """A part of a chat message."""
    block = _block(given)
    if block.get("type") == "text":
        return {"type": "text", "text": _field(block, "text", str)}
    if block.get("type") == "image":
        return {"type": "image_url", "image_url": {"url": _address(block.get("source"))}}
    return block


def _address(source: Any) -> Any:
    """The address of an image. The check of chat requests decides whether an address of the type url is allowed."""
    given = without_nulls(source) if isinstance(source, dict) else {}
    if given.get("type") == "url":
        return given.get("url")
    if given.get("type") != "base64" or not all(isinstance(given.get(name), str) for name in ("media_type", "data")):
        raise ValueError(f"an image has the source {str(source)[:60]}: send {_IMAGE}")
    return f"data:{given['media_type']};base64,{given['data']}"


def _choice(choice: dict[str, Any], *, has_tools: bool) -> Any:
    """The ``tool_choice`` of the chat."""
    require_known("tool_choice", choice, _OF_CHOICE)
    kind = choice.get("type", "auto")
    if not isinstance(kind, str) or kind not in _CHOICES:
        raise ValueError(f"tool_choice has the type {kind!r:.60}: it may be {', '.join(_CHOICES)}")
    if kind in ("any", "tool") and not has_tools:
        raise ValueError(f"tool_choice has the type {kind!r}, and there are no tools: give them, too")
    if kind == "tool":
        if not isinstance(choice.get("name"), str):
            raise ValueError("tool_choice of the type 'tool' needs name, that of a tool")
        return {"type": "function", "function": {"name": choice["name"]}}
    return _CHOICES[kind] if has_tools else None


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type", "custom") != "custom":
        return {"type": str(tool["type"])}  # chats leave such a tool out
    require_known("a tool", tool, _OF_TOOL | _WITHOUT_EFFECT_OF_TOOL)
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema")}}


def _format(name: str, given: Any) -> Any:
    """The chat's ``response_format`` for an output format of Anthropic's."""
    if given is None:
        return None
    if not isinstance(given, dict) or given.get("type") not in _FORMATS:
        raise ValueError(f"{name} is {given!r:.60}: its type may be {', '.join(_FORMATS)}")
    if given["type"] != "json_schema":
        return given
    if not isinstance(given.get("schema"), dict):
        raise ValueError(f"{name} of the type json_schema needs schema, an object")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": given.get("schema")}}


# The answer


class _Events:
    """Translates the chunks of a chat into Anthropic's answer."""

    def __init__(self, request: MessagesRequest, asked: ChatRequest) -> None:
        self._request = request
        self._asked = asked
        self._blocks = Blocks()
        self._id = f"msg_{uuid.uuid4().hex}"

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """Yields one response, or the events of a stream."""
        for event in self._events(chunks):
            if self._request.stream:
                yield event
        if not self._request.stream:
            yield {**self._message(), **self._end(), "usage": self._usage(), **self._more()}

    def _events(self, chunks: Iterator[Item]) -> Iterator[Item]:
        first = True
        for chunk in chunks:
            steps = list(self._blocks.read(chunk))
            # message_start says how much of the prompt was in the cache, which is known with the first text, or else at
            # the end.
            if first and (steps or "usage" in self._blocks.other_fields):
                head = {**self._message(), "content": [], "stop_reason": None, "stop_sequence": None}
                yield {"type": "message_start", "message": {**head, "usage": {**self._read(), "output_tokens": 0}}}
                first = False
            for step, block, more, _ in steps:
                yield from self._step(step, block, more)
        for step, block, more, _ in self._blocks.end():
            yield from self._step(step, block, more)
        yield {"type": "message_delta", "delta": self._end(), "usage": self._usage(), **self._more()}
        yield {"type": "message_stop"}

    @staticmethod
    def _step(step: str, block: Block, more: str) -> Iterator[Item]:
        if step == "begin":
            yield {"type": "content_block_start", "index": block.index, "content_block": _BEGINS[block.kind](block)}
        elif step == "more":
            kind, field = _DELTAS[block.kind]
            yield {"type": "content_block_delta", "index": block.index, "delta": {"type": kind, field: more}}
        else:
            yield {"type": "content_block_stop", "index": block.index}

    def _message(self) -> Item:
        content = [_whole(block) for block in self._blocks.all]
        model = self._asked.model
        return {"id": self._id, "type": "message", "role": "assistant", "model": model, "content": content}

    def _end(self) -> Item:
        calls = any(block.kind == "call" for block in self._blocks.all)
        stopped = self._blocks.other_fields.get("stopping_word")
        reason = "stop_sequence" if stopped else "tool_use" if calls else "end_turn"
        return {"stop_reason": "max_tokens" if self._blocks.is_cut_off else reason, "stop_sequence": stopped}

    def _read(self) -> Item:
        """The fields with the numbers of input tokens. Tokens from the cache have a field of their own."""
        other_fields = self._blocks.other_fields
        read, cached = other_fields["timings"]["prompt_n"], other_fields["timings"]["cache_n"]
        if "usage" in other_fields:
            cached = other_fields["usage"]["prompt_tokens_details"]["cached_tokens"]
            read = other_fields["usage"]["prompt_tokens"] - cached
        return {"input_tokens": read, "cache_read_input_tokens": cached, "cache_creation_input_tokens": 0}

    def _usage(self) -> Item:
        return {**self._read(), "output_tokens": self._blocks.other_fields["usage"]["completion_tokens"]}

    def _more(self) -> Item:
        return {"timings": self._blocks.other_fields["timings"], **self._request.warned(self._blocks.other_fields)}


_DELTAS = {
    "thought": ("thinking_delta", "thinking"),
    "text": ("text_delta", "text"),
    "call": ("input_json_delta", "partial_json"),
}
_BEGINS: dict[str, Callable[[Block], Item]] = {
    "thought": lambda _: {"type": "thinking", "thinking": "", "signature": ""},
    "text": lambda _: {"type": "text", "text": ""},
    "call": lambda block: {"type": "tool_use", "id": block.known_as, "name": block.name, "input": {}},
}


def _whole(block: Block) -> Item:
    """The content of a finished block."""
    begun = _BEGINS[block.kind](block)
    if block.kind != "call":
        return {**begun, _DELTAS[block.kind][1]: block.text}
    return {**begun, "input": _object(block.text)}


def _object(text: str) -> Any:
    """The arguments of a call. Arguments that were cut off are given as text, in the form of Anthropic's clients."""
    try:
        return json.loads(text or "{}")
    except ValueError:
        return {"INVALID_JSON": text}
