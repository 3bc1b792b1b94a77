"""/v1/responses: chats in OpenAI's newer form. Nothing is stored, so a request has the whole conversation."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, ClassVar

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field, model_validator
from starlette.exceptions import HTTPException
from starlette.responses import Response

from specllama.chat import require_known

from .blocks import Block, Blocks
from .chats import ChatRequest
from .document import with_body
from .errors import error_body, error_reply
from .generating import Generating
from .job import Item
from .llama_server import counted, prompt_reply
from .other_form import OtherChat, with_fields_of
from .said import say_once
from .wire import is_others, without_nulls

_STATELESS = "nothing is stored: send the whole conversation as input"
_REFUSED = {
    "background": "wait for the answer, or read it as a stream",
    "context_management": "send a shorter input",
    "conversation": _STATELESS,
    "previous_response_id": _STATELESS,
    "prompt": "there are no stored prompts: send the text as instructions and input",
}
_IGNORED = frozenset(
    {"max_tool_calls", "truncation"}
)  # fields that limit OpenAI's own tools, or say how an input that is too long is cut
_OF_CHATS = {
    "functions": "tools",
    "function_call": "tool_choice",
    "logprobs": 'include: ["message.output_text.logprobs"]',
    **dict.fromkeys(("max_tokens", "max_completion_tokens", "n_predict"), "max_output_tokens"),
    "messages": "input",
    **dict.fromkeys(("n", "n_cmpl"), "several requests"),
    "reasoning_effort": "reasoning.effort",
    "response_format": "text.format",
    **dict.fromkeys(("timings_per_token", "return_origins", "return_progress"), "/v1/chat/completions"),
}
"""Fields of /v1/chat/completions that are refused here, and for each what to send in its place, for the message."""
_LOGPROBS = "message.output_text.logprobs"
_INCLUDED = {  # accepted values of `include`. All but the first are about features that this server lacks
    *(_LOGPROBS, "reasoning.encrypted_content", "file_search_call.results", "web_search_call.results"),
    *("web_search_call.action.sources", "message.input_image.image_url", "computer_call_output.output.image_url"),
    "code_interpreter_call.outputs",
}
_SENT_BACK = {"type", "id", "status", "created_by", "phase", "caller", "namespace", "async"}  # in any item
_OF_ITEM = {
    "message": {"role", "content"},
    "reasoning": {"summary", "content", "encrypted_content"},
    "function_call": {"call_id", "name", "arguments", "parsed_arguments"},
    "function_call_output": {"call_id", "name", "output"},
    "custom_tool_call": {"call_id", "name", "input"},
    "custom_tool_call_output": {"call_id", "name", "output"},
}
_LEFT_OUT = {
    *("web_search_call", "file_search_call", "code_interpreter_call", "image_generation_call", "computer_call"),
    *("computer_call_output", "local_shell_call", "local_shell_call_output", "shell_call", "shell_call_output"),
    *("apply_patch_call", "apply_patch_call_output", "mcp_list_tools", "mcp_call", "mcp_approval_request"),
    *("mcp_approval_response", "tool_search_call", "tool_search_output", "compaction"),
}
"""Types of items that are left out: of tools that another server has run, or unreadable."""
_BREAK = "prompt_cache_breakpoint"
_OF_PART = {
    "input_text": {"text", _BREAK},
    "output_text": {"text", "annotations", "logprobs", "parsed"},
    "text": {"text"},
    "refusal": {"refusal"},
    "input_image": {"image_url", "detail", "file_id", _BREAK},
}
"""The fields of each type of part, beside its type. OpenAI's client also sends back all fields of answers."""
_OF_TOOL = {"type", "name", "description", "parameters", "strict"}
_WITHOUT_EFFECT_OF_TOOL = {"allowed_callers", "async", "defer_loading", "output_schema"}


class ResponsesRequest(OtherChat):
    """The body of /v1/responses. Unlisted fields of chats, such as those of samplers, are passed on unchanged."""

    input: str | list[dict[str, Any]] = Field(description="A text, or a list of messages, calls and results of calls.")
    model: str | None = None
    instructions: str | None = Field(None, description="The system message before the input.")
    max_output_tokens: int | None = Field(
        None, ge=-1, description="The most tokens of the answer. Default, and -1: as many as fit."
    )
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    temperature: float | None = None
    top_p: float | None = None
    text: dict[str, Any] = Field(
        {}, description='The form of the answer, {"format": ...}: text, json_object or json_schema.'
    )
    reasoning: dict[str, Any] = Field({}, description='The effort, {"effort": ...}, where the chat template reads it.')
    tools: list[dict[str, Any]] = Field(
        [], description="Functions of the client's. The server has no tools of its own."
    )
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True
    include: list[str] = Field([])
    top_logprobs: int | None = Field(None, ge=0)
    metadata: dict[str, Any] = Field({}, description="Is returned with the answer.")
    store: bool | None = Field(
        None, description="false: a server with `--learn` keeps nothing of the answer. true has no effect."
    )

    ignored: ClassVar[frozenset[str]] = _IGNORED
    refused: ClassVar[Mapping[str, str]] = _REFUSED
    elsewhere: ClassVar[Mapping[str, str]] = _OF_CHATS

    model_config = ConfigDict(json_schema_extra=with_fields_of(ChatRequest, _OF_CHATS))

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        require_known("text", body.get("text"), {"format", "verbosity"})
        require_known("reasoning", body.get("reasoning"), {"effort", "summary", "generate_summary", "context", "mode"})
        if body.get("stream_options") is not None:
            if not body.get("stream"):
                raise ValueError('"stream_options" is for streams: send "stream": true with it, or leave it out')
            require_known("stream_options", body["stream_options"], {"include_obfuscation"})
        for name in body["include"] if isinstance(body.get("include"), list) else ():
            if not isinstance(name, str) or name not in _INCLUDED:
                raise ValueError(f"include={name!r:.60} is not known: it may be {_LOGPROBS}")
        return body

    @property
    def _wants_logprobs(self) -> bool:
        return self.top_logprobs is not None or _LOGPROBS in self.include

    def without_effect(self) -> list[str]:
        """Names of fields that have no effect: see the base class."""
        names = ["store"] if self.store else []
        names += [f"include {name}" for name in self.include if name != _LOGPROBS]
        names += ["text.verbosity"] if self.text.get("verbosity") else []
        return [*names, *(f"reasoning.{name}" for name in self.reasoning if name != "effort")]

    def chat(self) -> dict[str, Any]:
        """The body of the equivalent chat request."""
        body = self.others()
        leading = [{"role": "system", "content": self.instructions}] if self.instructions else []
        body.update(
            messages=[*leading, *_messages(self.input)],
            model=self.model,
            max_tokens=self.max_output_tokens,
            temperature=self.temperature,
            top_p=self.top_p,
            tools=[_tool(tool) for tool in self.tools] or None,
            tool_choice=_choice(self.tool_choice),
            parallel_tool_calls=self.parallel_tool_calls,
            response_format=_format(self.text.get("format")),
            reasoning_effort=self.reasoning.get("effort"),
            store=False if self.store is False else None,
        )
        if self._wants_logprobs:
            body.update(logprobs=True, top_logprobs=self.top_logprobs or 0)
        return body

    def translator(self, asked: ChatRequest) -> _Events:
        """Returns the translator of the answer: see ``Translated``."""
        return _Events(self, asked)


def add_responses(app: FastAPI, generating: Generating) -> None:
    """Adds the routes.

    Args:
        app: gets the routes.
        generating: answers their requests.
    """

    @app.post("/responses", include_in_schema=False, response_model=None)
    @app.post("/v1/responses", response_model=None, openapi_extra=with_body(ResponsesRequest))
    async def responses(request: Request) -> Response:
        return await generating.translated(request, ResponsesRequest, _error_event)

    @app.post("/responses/input_tokens", include_in_schema=False, response_model=None)
    @app.post("/v1/responses/input_tokens", response_model=None, openapi_extra=with_body(ResponsesRequest))
    async def count(request: Request) -> Response:
        return await prompt_reply(request, generating.bodies, generating.lender.llm, ResponsesRequest, counted)

    @app.api_route("/v1/responses/{found}", methods=["GET", "DELETE"], include_in_schema=False)
    @app.get("/v1/responses/{found}/input_items", include_in_schema=False)
    @app.post("/v1/responses/{found}/cancel", include_in_schema=False)
    async def stored(found: str) -> Response:
        return error_reply(HTTPException(404, f"there is no response {found[:100]!r}: this server stores none"))


def _error_event(error: Exception, number: int) -> Item:
    """OpenAI's error event. It also has the field ``error``, by which OpenAI's clients raise an error in a stream."""
    said = error_body(error)
    fields = {name: said["error"][name] for name in ("code", "message", "param")}
    return {"type": "error", **fields, "sequence_number": number, **said}


# The request


def _messages(given: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages of the equivalent chat.

    Raises:
        ValueError: an item is not a part of a conversation, or refers to a stored one.
    """
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    messages: list[dict[str, Any]] = []
    for item in map(without_nulls, given):
        kind = item.get("type", "message")
        if isinstance(kind, str) and kind in _LEFT_OUT:
            say_once(f"items of the type {kind!r} are left out of a conversation: they are of tools that are not here")
            continue
        if not isinstance(kind, str) or kind not in _ITEMS:
            why = _STATELESS if kind == "item_reference" else f"send {', '.join(_ITEMS)}"
            raise ValueError(f"input has an item of type {kind!r:.60}: {why}")
        require_known(f"a {kind} of the input", item, _SENT_BACK | _OF_ITEM[kind])
        _ITEMS[kind](messages, item)
    return messages


def _add_message(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    content = item.get("content")
    if "role" not in item or content is None:
        raise ValueError('a message of the input needs a role and content: {"role": "user", "content": "Hello"}')
    parts = [_part(part) for part in content] if isinstance(content, list) else content
    if item["role"] == "assistant" and _is_open(messages) and not {"content", "tool_calls"} & messages[-1].keys():
        messages[-1]["content"] = parts
    else:
        messages.append({"role": item["role"], "content": parts})


def _add_thought(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    parts = item.get("content") or item.get("summary")
    texts = [part.get("text") for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
    thought = "\n".join(text for text in texts if isinstance(text, str))
    if thought:
        messages.append({"role": "assistant", "reasoning_content": thought})


def _add_call(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    function = {name: _text(item, name) for name in ("name", "arguments")}
    if not _is_open(messages):
        messages.append({"role": "assistant"})
    call = {"id": _text(item, "call_id"), "type": "function", "function": function}
    messages[-1].setdefault("tool_calls", []).append(call)


def _add_custom_call(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Add a call whose input is a text. In chats the arguments of a call are an object: the text is its one field."""
    _add_call(messages, {**item, "arguments": json.dumps({"input": _text(item, "input")}, ensure_ascii=False)})


def _add_result(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    output = item.get("output")
    if not isinstance(output, (str, list)):
        raise ValueError(f"a {item['type']} needs output, a text or a list of parts")
    content = [_part(part) for part in output] if isinstance(output, list) else output
    messages.append({"role": "tool", "tool_call_id": _text(item, "call_id"), "content": content})


_ITEMS: dict[str, Callable[[list[dict[str, Any]], dict[str, Any]], None]] = {
    "message": _add_message,
    "reasoning": _add_thought,
    "function_call": _add_call,
    "function_call_output": _add_result,
    "custom_tool_call": _add_custom_call,
    "custom_tool_call_output": _add_result,
}


def _is_open(messages: list[dict[str, Any]]) -> bool:
    """Whether the last message is the model's. The next item of the model's then becomes a part of this message."""
    return bool(messages) and messages[-1]["role"] == "assistant"


def _text(item: dict[str, Any], name: str) -> str:
    if not isinstance(item.get(name), str):
        raise ValueError(f"a {item['type']} of the input needs {name}, a text")
    text: str = item[name]
    return text


def _part(part: Any) -> Any:
    """The part of a chat message for a part of an item. Parts with text have the same form in both."""
    kind = part.get("type") if isinstance(part, dict) else None
    if isinstance(kind, str) and kind in _OF_PART:
        require_known(f"the part {kind}", part, {"type", *_OF_PART[kind]})
    if kind == "input_image":
        return {"type": "image_url", "image_url": {"url": part.get("image_url")}}
    return part


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if is_others(tool):
        return {"type": tool["type"]}  # chats leave such a tool out
    require_known("a tool", tool, _OF_TOOL | _WITHOUT_EFFECT_OF_TOOL)
    function = {name: tool[name] for name in _OF_TOOL - {"type"} if tool.get(name) is not None}
    return {"type": "function", "function": function}


def _choice(choice: str | dict[str, Any]) -> Any:
    """The ``tool_choice`` of the chat. The check of chat requests refuses a malformed one later."""
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") == "allowed_tools":
        tools = choice.get("tools")
        named = [_named(tool) for tool in tools] if isinstance(tools, list) else tools
        return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": named}}
    if choice.get("type") != "function":
        raise ValueError(f"tool_choice has the type {choice.get('type')!r:.60}: it may be function or allowed_tools")
    return _named(choice)


def _named(tool: Any) -> Any:
    return {"type": "function", "function": {"name": tool.get("name")}} if isinstance(tool, Mapping) else tool


def _format(given: Any) -> Any:
    """The chat's ``response_format`` for a ``text.format`` of this API."""
    if not isinstance(given, dict) or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: given[name] for name in given if name != "type"}}


# The answer


class _Events:
    """Translates the chunks of a chat into an answer in the form of /v1/responses."""

    def __init__(self, request: ResponsesRequest, asked: ChatRequest) -> None:
        self._request = request
        self._asked = asked
        self._blocks = Blocks()
        self._items: list[Item] = []
        self._created = time.time()
        self._id = _new_id("resp")
        self._number = 0

    def __call__(self, chunks: Generator[Item, None, None]) -> Generator[Item, None, None]:
        """Yields one response, or the events of a stream."""
        for event in self._events(chunks):
            if self._request.stream:
                yield {**event, "sequence_number": self._number}
                self._number += 1
        if not self._request.stream:
            yield self._response(is_done=True)

    def _events(self, chunks: Iterator[Item]) -> Iterator[Item]:
        yield {"type": "response.created", "response": self._response()}
        yield {"type": "response.in_progress", "response": self._response()}
        for chunk in chunks:
            for step in self._blocks.read(chunk):
                yield from self._step(*step)
        for step in self._blocks.end():
            yield from self._step(*step)
        how = "incomplete" if self._blocks.is_cut_off else "completed"
        yield {"type": f"response.{how}", "response": self._response(is_done=True)}

    def _step(self, step: str, block: Block, more: str, scores: list[Any]) -> Iterator[Item]:
        if step == "begin":
            self._items.append({**_ITEMS_OF[block.kind](block), "status": "in_progress"})
        item = self._items[block.index]
        place = {"item_id": item["id"], "output_index": block.index}
        if step == "end":
            is_last = self._blocks.is_cut_off and block is self._blocks.all[-1]
            item["status"] = "incomplete" if is_last else "completed"
        tell = self._call if block.kind == "call" else self._part
        if step == "begin":
            yield {"type": "response.output_item.added", "output_index": block.index, "item": {**item}}
        yield from tell(step, block, more, scores, item, place)
        if step == "end":
            yield {"type": "response.output_item.done", "output_index": block.index, "item": item}

    @staticmethod
    def _call(step: str, block: Block, more: str, _: list[Any], item: Item, place: dict[str, Any]) -> Iterator[Item]:
        if step == "more":
            yield {"type": "response.function_call_arguments.delta", **place, "delta": more}
        elif step == "end":
            item["arguments"] = block.text
            done = {"name": block.name, "arguments": block.text}
            yield {"type": "response.function_call_arguments.done", **place, **done}

    @staticmethod
    def _part(
        step: str, block: Block, more: str, scores: list[Any], item: Item, place: dict[str, Any]
    ) -> Iterator[Item]:
        place = {**place, "content_index": 0}
        name = "response.output_text" if block.kind == "text" else "response.reasoning_text"
        if step == "begin":
            yield {"type": "response.content_part.added", **place, "part": _content(block)}
        elif step == "more":
            logprobs = {"logprobs": scores} if block.kind == "text" else {}
            yield {"type": f"{name}.delta", **place, "delta": more, **logprobs}
        else:
            part = _content(block)
            item["content"] = [part]
            logprobs = {"logprobs": block.logprobs} if block.kind == "text" else {}
            yield {"type": f"{name}.done", **place, "text": block.text, **logprobs}
            yield {"type": "response.content_part.done", **place, "part": part}

    def _response(self, *, is_done: bool = False) -> Item:
        asked, blocks = self._request, self._blocks
        status = "in_progress" if not is_done else "incomplete" if blocks.is_cut_off else "completed"
        response: Item = {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            "instructions": asked.instructions,
            "max_output_tokens": asked.max_output_tokens,
            "metadata": asked.metadata,
            "model": self._asked.model,
            "output": list(self._items) if is_done else [],
            "parallel_tool_calls": asked.parallel_tool_calls,
            "previous_response_id": None,
            "reasoning": {"effort": asked.reasoning.get("effort"), "summary": None},
            "store": False,
            "temperature": asked.temperature,
            "text": {"format": {"type": "text"}, **without_nulls(asked.text)},
            "tool_choice": asked.tool_choice,
            "tools": [{"strict": None, "parameters": None, **tool} for tool in asked.tools if not is_others(tool)],
            "top_logprobs": asked.top_logprobs or 0,
            "top_p": asked.top_p,
            "truncation": "disabled",
            "usage": self._usage() if is_done else None,
        }
        if status == "completed":
            response["completed_at"] = time.time()
        if is_done:
            response.update(timings=blocks.other_fields["timings"], **asked.warned(blocks.other_fields))
        return response

    def _usage(self) -> Item:
        usage = self._blocks.other_fields["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": self._blocks.num_thought},
            "total_tokens": usage["total_tokens"],
        }


def _new_id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex}"


def _content(block: Block) -> Item:
    """The only content part of an item with a text or a thought, with the text so far."""
    if block.kind == "thought":
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": list(block.logprobs)}


_ITEMS_OF: dict[str, Callable[[Block], Item]] = {
    "thought": lambda _: {"id": _new_id("rs"), "type": "reasoning", "summary": [], "content": []},
    "text": lambda _: {"id": _new_id("msg"), "type": "message", "role": "assistant", "content": []},
    "call": lambda block: {
        "id": _new_id("fc"),
        "type": "function_call",
        "call_id": block.known_as,
        "name": block.name,
        "arguments": "",
    },
}
