"""The bodies of requests: llama-cpp-python's types, and what we add to them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import llama_cpp
from llama_cpp.llama_grammar import LlamaGrammar
from llama_cpp.server.types import CreateChatCompletionRequest, CreateCompletionRequest
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    PrivateAttr,
    field_validator,
    model_validator,
)

from specllama import Llama
from specllama.drop_in.arguments import nearest
from specllama.drop_in.chat_arguments import check_request, require_known, with_parameters
from specllama.drop_in.images import reads_images
from specllama.drop_in.parts import text_of
from specllama.drop_in.view import calling
from specllama.engine.limits import BYTES_OF_TOKEN, LARGEST_INT, require_room, size_of
from specllama.engine.options import Verify
from specllama.grammars.schemas import why_not_enforced
from specllama.server.images import require_images
from specllama.server.sampler_fields import SamplerFields

_OURS = {"timings_per_token", "return_origins", "stream_options"}
# OpenAI's fields that mean nothing to one local model.
_WITHOUT_EFFECT = {
    *("audio", "metadata", "modalities", "parallel_tool_calls", "prediction", "prompt_cache_key"),
    *("prompt_cache_retention", "reasoning_effort", "safety_identifier", "service_tier", "store", "verbosity"),
    "web_search_options",
}
_OF_CHATS = {"response_format", "tools", "functions", "tool_choice", "function_call"}  # what an answer must be
_THEIRS = {"n", "best_of", "user", "logit_bias_type"}  # theirs that no method of Llama takes
_IMAGE = "image_url"
_LEAST_OF_MESSAGE = 4  # tokens: chat templates put about as many around each
_MOST_LOGPROBS = 20  # OpenAI's limit in chats; that in completions, 5, is too low for some clients of other servers
_LONGEST_NAME = 60


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    include_usage: bool = False

    @model_validator(mode="before")
    @classmethod
    def _known(cls, options: Any) -> Any:
        require_known("stream_options", options, set(cls.model_fields))
        return options


def _one_prompt(prompt: Any) -> str | list[int]:
    """One text, or token ids. A union of types would make millions of errors of a long list."""
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str):
        return prompt[0]
    if isinstance(prompt, str):
        return prompt
    kinds = {type(part) for part in prompt} if isinstance(prompt, list) else set()
    if not isinstance(prompt, list) or not kinds <= {int}:
        if str in kinds:
            raise ValueError(f"{len(prompt)} prompts in one request are not supported: send one request for each")
        raise ValueError("it must be a text, or a list of token ids, which are whole numbers")
    return prompt


def _token_ids(tokens: Any) -> list[int]:
    if not isinstance(tokens, list) or not {type(part) for part in tokens} <= {int}:
        raise ValueError("it must be a list of token ids, which are whole numbers")
    return tokens


class DetokenizeRequest(BaseModel):
    """The body of /extras/detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_token_ids, json_schema_input_type=list[int])]


Prompt = Annotated[
    str | list[int],
    PlainValidator(_one_prompt, json_schema_input_type=str | list[int] | Annotated[list[str], Field(max_length=1)]),
]


class Additions(SamplerFields):
    """What every request may say besides llama-cpp-python's fields."""

    num_draft_tokens: int | Literal["auto"] | None = Field(
        None, description="Tokens drafted in a round, or auto; 0 is plain decoding. Default: the server's."
    )
    verify: Verify | None = Field(None, description="The rule that accepts drafted tokens. Default: the server's.")
    timings_per_token: bool = Field(False, description="Send the timings so far with every chunk of a stream.")
    return_origins: bool = Field(False, description="Send with each text its tokens and where each came from.")
    stream_options: StreamOptions | None = None
    typical_p: float = Field(1.0, ge=0.0, le=1.0, description="Locally typical sampling; 1 is off.")
    top_k: int = Field(40, ge=0, le=LARGEST_INT, description="How many tokens may be chosen from; 0: all.")
    n: int | None = 1

    model_config = ConfigDict(extra="allow")  # what has no effect is named in `warnings`

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        known = {*CompletionRequest.model_fields, *ChatRequest.model_fields, *_WITHOUT_EFFECT}
        for name in body.keys() - known:
            hint = nearest(name[:_LONGEST_NAME], cls.model_fields) or "; /openapi.json lists all fields"
            raise ValueError(f'there is no field "{name[:_LONGEST_NAME]}"{hint}')
        for name in _OF_CHATS - cls.model_fields.keys():
            if body.get(name) is not None:
                raise ValueError(f'"{name}" is for /v1/chat/completions: ask there, or leave it out')
        if body.get("stream_options") is not None and not body.get("stream"):
            raise ValueError('"stream_options" is for streams: send "stream": true with it, or leave it out')
        return body

    def warnings(self) -> list[str]:
        """What of the request was accepted and did nothing."""
        extra = self.model_extra or {}
        return [f"{name} has no effect here" for name in sorted(extra) if extra[name] is not None]

    @field_validator("n", "best_of", check_fields=False)
    @classmethod
    def _only_one(cls, value: int | None) -> int | None:
        if value is not None and value < 1:
            raise ValueError(f"{value} answers cannot be given: ask for 1")
        if value not in (None, 1):
            raise ValueError(f"{value} answers to one request are not supported: ask for 1, and send it {value} times")
        return value


class CompletionRequest(Additions, CreateCompletionRequest):
    """The body of /v1/completions."""

    prompt: Prompt = Field("", description="A text, or token ids.")  # type: ignore[assignment]
    logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS, description="How many alternatives to each token.")

    def require_room(self, llm: Llama) -> None:
        """Refuse before it is tokenized what cannot fit.

        Raises:
            ValueError: it is too long.
        """
        size = size_of(self.prompt) if isinstance(self.prompt, str) else len(self.prompt) * BYTES_OF_TOKEN
        require_room(size + size_of(self.suffix), llm.n_ctx())

    def text(self) -> str:
        """What is asked, by which it is seen whether another request continues it."""
        return str(self.prompt)

    def begin(self, llm: Llama) -> Any:
        """A response, or the chunks of a stream."""
        return calling(llm, is_prompt_only=self.max_tokens == 0).create_completion(**_arguments(self, llm))


class Message(BaseModel):
    """A message of a chat. Fields that are not here go on as they are."""

    model_config = ConfigDict(extra="allow")

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[dict[str, Any]] | None = None

    @field_validator("content")
    @classmethod
    def _of_known_parts(cls, content: str | list[dict[str, Any]] | None) -> str | list[dict[str, Any]] | None:
        for part in content if isinstance(content, list) else ():
            if part.get("type") != _IMAGE and text_of(part) is None:
                raise ValueError(f"content of type {part.get('type')!r:.60} is not supported: send text")
        return content

    def images(self) -> list[dict[str, Any]]:
        """Its parts that are images."""
        parts = self.content if isinstance(self.content, list) else []
        return [part for part in parts if part["type"] == _IMAGE]

    def words(self) -> Any:
        """All of it but its images."""
        content = self.content
        words = [part for part in content if part["type"] != _IMAGE] if isinstance(content, list) else content
        return {**self.model_dump(exclude={"content"}), "content": words}


class ChatRequest(Additions, CreateChatCompletionRequest):
    """The body of /v1/chat/completions."""

    messages: list[Message] = Field(min_length=1)  # type: ignore[assignment]
    max_tokens: int | None = Field(None, ge=0, description="Default: as many as fit; 0 generates nothing.")
    max_completion_tokens: int | None = Field(None, ge=0, description="OpenAI's newer name of max_tokens.")
    top_logprobs: int | None = Field(None, ge=0, le=_MOST_LOGPROBS, description="How many alternatives to each token.")
    response_format: llama_cpp.ChatCompletionRequestResponseFormat | None = Field(
        None,
        description="text, json_object, or OpenAI's json_schema. A schema is enforced as a whole or refused; with "
        "strict: false beside it, what is not enforced is named in warnings.",
    )

    _is_strict: bool = PrivateAttr(True)

    @model_validator(mode="wrap")
    @classmethod
    def _with_strictness(cls, body: Any, handler: ModelWrapValidatorHandler[ChatRequest]) -> ChatRequest:
        made = handler(body)
        made._is_strict = _is_strict(body)
        return made

    @model_validator(mode="before")
    @classmethod
    def _as_llama_cpp_has_it(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        check_request(body)
        return {
            **body,
            "response_format": _response_format(body),
            "tools": with_parameters(body.get("tools")),
            "tool_choice": _tool_choice(body),
        }

    def require_room(self, llm: Llama) -> None:
        """Refuse before it is rendered and tokenized what cannot fit, or cannot be read.

        Raises:
            ValueError: too many messages, too long ones, or images.
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
        require_room(size_of([texts, self.tools, self.functions]), n_ctx)
        images = [part for message in self.messages for part in message.images()]
        if images and not reads_images(llm):
            raise ValueError(
                f"content of type {_IMAGE!r} is not supported: send text, or start the server with --mmproj"
            )
        if any(message.images() and message.role != "user" for message in self.messages):
            raise ValueError("only messages of the user may have images: send them there")
        require_images(images)

    def text(self) -> str:
        """What is asked, by which it is seen whether another request continues it."""
        return "\0".join(f"{message.role}\0{message.content}" for message in self.messages)

    def warnings(self) -> list[str]:
        """What of the request was accepted and did nothing."""
        reason = None if self._is_strict else self._not_enforced()
        return [*super().warnings(), *([reason] if reason else [])]

    def _not_enforced(self) -> str | None:
        names = ("tools", "tool_choice", "functions", "function_call", "response_format")
        return why_not_enforced({name: getattr(self, name) for name in names})

    def begin(self, llm: Llama) -> Any:
        """A response, or the chunks of a stream."""
        arguments = _arguments(self, llm)
        newer = arguments.pop("max_completion_tokens", None)
        max_tokens = self.max_tokens if newer is None else newer
        arguments["messages"] = [message.model_dump(exclude_unset=True) for message in self.messages]
        view = calling(llm, is_prompt_only=max_tokens == 0, knows_schemas=True)
        return view.create_chat_completion(**{**arguments, "max_tokens": max_tokens})


def _is_strict(body: Any) -> bool:
    """Whether no schema of the request says that it need not be followed."""
    tools = body.get("tools") if isinstance(body, dict) else None
    places = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    wanted = body.get("response_format") if isinstance(body, dict) else None
    places += [wanted, wanted.get("json_schema")] if isinstance(wanted, dict) else []
    return not any(isinstance(place, dict) and place.get("strict") is False for place in places)


def _response_format(body: dict[str, Any]) -> Any:
    """OpenAI's json_schema in llama_cpp's form."""
    wanted = body.get("response_format")
    if not isinstance(wanted, dict) or wanted.get("type") != "json_schema":
        return wanted
    schema = wanted.get("json_schema")
    if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
        raise ValueError("response_format of type json_schema needs json_schema.schema, an object")
    return {"type": "json_object", "schema": schema["schema"]}


def _tool_choice(body: dict[str, Any]) -> Any:
    """The only tool instead of "required", which llama_cpp would ignore."""
    choice, tools = body.get("tool_choice"), body.get("tools")
    if choice != "required":
        return choice
    if not isinstance(tools, list) or len(tools) != 1 or not isinstance(tools[0], dict):
        raise ValueError('tool_choice "required" needs exactly one tool: name the tool that is to be called')
    function = tools[0].get("function")
    name = function.get("name") if isinstance(function, dict) else None
    return {"type": "function", "function": {"name": name}}


def _arguments(body: CompletionRequest | ChatRequest, llm: Llama) -> dict[str, Any]:
    """Arguments of the Llama's method. What was not given, or given as null, is left to its defaults."""
    dumped = body.model_dump(exclude={*_OURS, *_THEIRS, *(body.model_extra or ())})
    arguments = {name: value for name, value in dumped.items() if value is not None}
    if body.grammar is not None:
        arguments["grammar"] = LlamaGrammar.from_string(body.grammar, verbose=False)
    if body.logit_bias and body.logit_bias_type == "tokens":
        arguments["logit_bias"] = {
            token: bias
            for text, bias in body.logit_bias.items()
            for token in llm.tokenize(text.encode("utf-8"), add_bos=False, special=True)
        }
    return arguments
