"""The body of /v1/chat/completions."""

from __future__ import annotations

from typing import Any, Literal, cast

import llama_cpp
from llama_cpp.server.types import CreateChatCompletionRequest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    field_validator,
    model_validator,
)
from typing_extensions import Self

from specllama import Llama
from specllama.chat import Chat, ChatPrompt, prepared
from specllama.drop_in import TEXTS, Call, decodes_by_itself, reads_images, text_of
from specllama.engine import require_room, size_of
from specllama.grammars import why_not_enforced

from .fields import MOST_LOGPROBS, Additions, Once, with_llama_servers
from .images import require_images
from .said import say_once
from .wire import is_others

_IMAGE = "image_url"
_LEAST_OF_MESSAGE = 4  # the fewest tokens, about, that a chat template adds around a message


class Message(BaseModel):
    """A message of a chat. Unlisted fields are passed on unchanged."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _of_known_parts(cls, content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
        for part in content if isinstance(content, list) else ():
            kind = part.get("type")
            if kind != _IMAGE and text_of(part) is None:
                if isinstance(kind, str) and kind in TEXTS:
                    raise ValueError(f"content of type {kind!r} needs {TEXTS[kind]!r}, a text")
                raise ValueError(f"content of type {kind!r:.60} is not supported: send text")
        return content

    def images(self) -> list[dict[str, Any]]:
        """The parts that are images."""
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if part["type"] == _IMAGE]

    def words(self) -> Any:
        """The message without its images."""
        content = self.content
        words = [part for part in content if part["type"] != _IMAGE] if isinstance(content, list) else content
        return {**self.model_dump(exclude={"content"}), "content": words}


class ChatRequest(Additions, CreateChatCompletionRequest):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)  # type: ignore[assignment]
    max_tokens: int | None = Field(
        None,
        ge=-1,
        description="The most tokens of the answer. Default, and -1: as many as fit. 0: nothing is generated.",
    )
    max_completion_tokens: int | None = Field(None, ge=-1, description="OpenAI's newer name for max_tokens.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="The number of alternatives that are given for each token."
    )
    response_format: llama_cpp.ChatCompletionRequestResponseFormat | None = Field(
        None,
        description="text, json_object, or OpenAI's json_schema. A schema is enforced as a whole or refused; with "
        "strict: false beside it, what is not enforced is named in warnings.",
    )

    reasoning_format: Literal["auto", "deepseek", "none"] | None = Field(
        None,
        description="`none`: thoughts stay in the content. Otherwise, and by default, they are in `reasoning_content`.",
    )
    parallel_tool_calls: bool | None = Field(
        None, description="Whether an answer may have several calls. Default true."
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the chat template besides the messages, such as enable_thinking."
    )
    reasoning_effort: str | None = Field(
        None, description="The template's variable reasoning_effort. `none` is enable_thinking: false."
    )
    continue_final_message: bool | None = Field(
        None,
        description="The answer continues the last message, which must be the assistant's. Default false.",
    )
    add_generation_prompt: bool | None = Field(
        None,
        description="Whether a new message is begun. Default true. false is allowed with continue_final_message only.",
    )

    parse_special: bool | None = Field(
        None, description="Names of special tokens in messages are read as these tokens. Default false: they are text."
    )

    model_config = ConfigDict(json_schema_extra=with_llama_servers)

    _is_strict: bool = PrivateAttr(True)
    _left_out: list[str] = PrivateAttr([])  # the types of tools that are no functions, and are left out
    _ready: Once = PrivateAttr(default_factory=Once)  # the prepared chat

    @model_validator(mode="wrap")
    @classmethod
    def _with_strictness(cls, body: Any, handler: ModelWrapValidatorHandler[ChatRequest]) -> ChatRequest:
        made = handler(body)
        made._is_strict = _is_strict(body)
        tools = body.get("tools") if isinstance(body, dict) else None
        made._left_out = (
            sorted({tool["type"][:60] for tool in tools if is_others(tool)}) if isinstance(tools, list) else []
        )
        for kind in made._left_out:
            say_once(f"tools of the type {kind!r} are left out: functions can be called, and no other tools")
        return made

    @model_validator(mode="after")
    def _begins_or_continues(self) -> Self:
        if self.add_generation_prompt is not None and self.add_generation_prompt == bool(self.continue_final_message):
            raise ValueError(
                "an answer is either begun (add_generation_prompt) or continued (continue_final_message): send one as "
                "true, or leave both out"
            )
        return self

    def texts(self) -> list[ChatRequest]:
        """A request for each answer; the request itself if it asks for one."""
        return self.copies(self.num_choices) if self.num_choices > 1 else [self]

    def require_room(self, llm: Llama) -> None:
        """Refuses a request that cannot fit or be read, before the template is applied.

        Raises:
            ValueError: there are too many messages, they are too long, a schema cannot be enforced, or an image
                cannot be read.
        """
        n_ctx = llm.n_ctx()
        most = max(1, n_ctx // _LEAST_OF_MESSAGE)
        if len(self.messages) > most:
            raise ValueError(
                f"{len(self.messages)} messages exceed context window of {n_ctx} tokens, for which at most {most} are "
                "taken: leave out the oldest, or start the server with a larger context (-c)"
            )
        if self._is_strict and (reason := self._not_enforced()):
            raise ValueError(f'{reason}; simplify it, or send "strict": false with it')
        texts = [message.words() for message in self.messages]
        more = [self.chat_template_kwargs, self.reasoning_effort]
        require_room(size_of([texts, self.tools, self.functions, *more]), n_ctx)
        self.require_room_for_other_texts(llm)
        images = [part for message in self.messages for part in message.images()]
        if images and not reads_images(llm):
            raise ValueError(
                f"content of type {_IMAGE!r} is not supported: send text, or start the server with --mmproj"
            )
        if any(message.images() and message.role != "user" for message in self.messages):
            raise ValueError("only messages of the user may have images: send them there")
        require_images(images)

    def decodes_by_itself(self, llm: Llama) -> bool:
        """Whether the chat handler decodes the messages, outside of the engine's slots."""
        if llm.chat_handler is None:  # the usual case, checked first because a long chat takes time to copy
            return False
        return decodes_by_itself(llm, [message.model_dump(exclude_unset=True) for message in self.messages])

    def text(self) -> str:
        """The text of the request, by which a slot is chosen whose KV cache holds the beginning of this text."""
        return "\0".join(f"{message.role}\0{message.content}" for message in self.messages)

    def warnings(self, llm: Llama) -> list[str]:
        """Warnings of accepted fields that had no effect."""
        reason = None if self._is_strict else self._not_enforced()
        ours = {"keeps_thoughts": "reasoning_format"}
        unread = [f"{ours.get(name, name)} has no effect here" for name in self.prepared(llm).without_effect]
        unread += [f"a tool of the type {kind!r} is left out: it is no function" for kind in self._left_out]
        return [*super().warnings(llm), *unread, *([reason] if reason else [])]

    def _not_enforced(self) -> str | None:
        names = ("tools", "tool_choice", "functions", "function_call", "response_format")
        return why_not_enforced({name: getattr(self, name) for name in names})

    def prompt(self, llm: Llama) -> ChatPrompt:
        """The prompt that the chat template makes.

        Raises:
            ValueError: the request cannot fit or be read, or the template refuses it.
        """
        self.require_room(llm)
        return self.prepared(llm).prompt

    def prepared(self, llm: Llama) -> Chat:
        """The prepared chat. It is made once for all answers to this request."""
        return cast(Chat, self._ready(0, lambda: self._prepared(llm)))

    def _prepared(self, llm: Llama) -> Chat:
        arguments = self.arguments(llm)
        arguments.pop("max_completion_tokens", None)
        arguments["messages"] = [message.model_dump(exclude_unset=True) for message in self.messages]
        arguments["max_tokens"] = self._most_tokens
        return prepared(llm, arguments, keeps_thoughts=self.reasoning_format == "none", warns=False)

    @property
    def _most_tokens(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    def begin(self, llm: Llama, call: Call) -> Any:
        """Starts the generation. Returns a response, or the chunks of a stream."""
        call = self.asked(llm, call, self._most_tokens)
        return self.prepared(llm).answer(call, stream=self.stream, seed=self.seed)


def _is_strict(body: Any) -> bool:
    """Whether every schema of the request must be followed: none has ``"strict": false``."""
    tools = body.get("tools") if isinstance(body, dict) else None
    places = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    wanted = body.get("response_format") if isinstance(body, dict) else None
    places += [wanted, wanted.get("json_schema")] if isinstance(wanted, dict) else []
    return not any(isinstance(place, dict) and place.get("strict") is False for place in places)
