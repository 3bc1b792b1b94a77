"""The bodies of requests: llama-cpp-python's types with our additions."""

from __future__ import annotations

import dataclasses
import random
from typing import Annotated, Any, ClassVar, Literal, TypeGuard, cast

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
from typing_extensions import Self

from specllama import Llama
from specllama.chat import prepared
from specllama.chat.arguments import CHOICES, require_known
from specllama.chat.formats.kinds import taught_by
from specllama.chat.messages import template_of
from specllama.chat.template_fields import given_fields, unread_fields
from specllama.drop_in.images import decodes_by_itself, reads_images
from specllama.drop_in.parts import TEXTS, text_of
from specllama.drop_in.prediction import checked_prediction, is_looked_up
from specllama.drop_in.prompt_tokens import leading_tokens
from specllama.drop_in.view import Call, call_on
from specllama.engine.limits import BYTES_OF_TOKEN, require_room, require_room_for_ids, size_of
from specllama.engine.options import Verify, checked_seed
from specllama.engine.vocabulary import end_tokens
from specllama.grammars.schemas import why_not_enforced, with_grammar_of_format
from specllama.server.images import require_images
from specllama.server.llama_fields import DOCUMENTED, DOCUMENTED_OF_CHATS, any_object, as_ours
from specllama.server.said import say_once
from specllama.server.sampler_fields import ChainFields, SamplerFields
from specllama.server.wire import chat_body, is_others, plain_body, without_nulls

_OURS = {
    *("timings_per_token", "return_origins", "return_progress", "stream_options", "repeat_last_n", "ignore_eos"),
    "reasoning_format",
}
_OF_CHATS = {"response_format", "tools", "functions", "tool_choice", "function_call"}  # they say what an answer must be
_ENDLESS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("grammar", "json_schema"), (None,)),
    "response_format": (None, {"type": "text"}),
    **dict.fromkeys(("tool_choice", "function_call"), CHOICES),
}
"""Fields with which an answer ends by itself, but for these values."""
_THEIRS = {"n", "best_of", "user", "logit_bias_type", "add_generation_prompt"}  # no method of Llama takes these
_IMAGE = "image_url"
OnePrompt = str | list[int | str]
_LEAST_OF_MESSAGE = 4  # tokens that a chat template adds around each message, about
_MOST_LOGPROBS = 20  # OpenAI's limit for chats; that for completions, 5, is too low for some clients
_MOST_TEXTS = 128  # OpenAI's limit of n


class StreamOptions(BaseModel):
    """OpenAI's options of a stream."""

    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="Has no effect: nothing is added to chunks.")

    @model_validator(mode="before")
    @classmethod
    def _known(cls, options: Any) -> Any:
        require_known("stream_options", options, set(cls.model_fields))
        return without_nulls(options) if isinstance(options, dict) else options


def checked_prompt(prompt: Any) -> OnePrompt | list[OnePrompt]:
    """Checks one prompt or several. A union of types would make millions of errors for a long list."""
    if isinstance(prompt, list) and prompt and not any(type(part) is int for part in prompt):
        return [_one_prompt(part) for part in prompt]
    return _one_prompt(prompt)


def _one_prompt(prompt: Any) -> OnePrompt:
    """Checks one prompt: a text, token ids, or, as llama-server accepts, a list of both or an object with a text."""
    if isinstance(prompt, dict) and prompt.keys() <= {"prompt_string", "multimodal_data"}:
        if prompt.get("multimodal_data"):
            raise ValueError("multimodal_data is not supported: send images in messages, to /v1/chat/completions")
        prompt = prompt.get("prompt_string")
    if isinstance(prompt, str) or (isinstance(prompt, list) and {type(part) for part in prompt} <= {int, str}):
        return cast("OnePrompt", prompt)
    raise ValueError(
        "it must be a text, a list of token ids, which are whole numbers, and texts, or a list of one of these"
    )


def checked_ids(given: Any) -> OnePrompt | list[OnePrompt]:
    """Checks the input of an embedding: as `checked_prompt`, but without objects and lists of both ids and texts."""
    prompt = checked_prompt(given)
    each = prompt if isinstance(prompt, list) and not is_one(prompt) else [prompt]
    if isinstance(given, dict) or any(isinstance(part, list) and not _is_list_of(int, part) for part in each):
        raise ValueError("it must be a text, a list of token ids, which are whole numbers, or a list of one of these")
    return prompt


def is_one(prompt: OnePrompt | list[OnePrompt]) -> TypeGuard[OnePrompt]:
    """Whether it is one prompt, not a list of prompts."""
    return isinstance(prompt, str) or not prompt or any(isinstance(part, int) for part in prompt)


def ids_of(llm: Llama, prompt: OnePrompt) -> str | list[int]:
    """Converts a prompt of texts and ids to ids; returns any other prompt unchanged."""
    if isinstance(prompt, str) and _has_bos(llm, prompt):
        return _tokens_of(llm, prompt)
    if isinstance(prompt, str) or _is_list_of(int, prompt):
        return cast("str | list[int]", prompt)
    ids: list[int] = []
    for number, part in enumerate(prompt):
        ids += [part] if isinstance(part, int) else _tokens_of(llm, part, is_first=number == 0)
    return ids


def require_room_for_prompt(prompt: OnePrompt, n_ctx: int, beside: int = 0) -> None:
    """Refuses a prompt that cannot fit, before it is tokenized.

    Raises:
        ValueError: it cannot fit, with `beside` bytes of other text.
    """
    num_ids = 0 if isinstance(prompt, str) else sum(isinstance(part, int) for part in prompt)
    require_room_for_ids(num_ids, n_ctx)
    require_room(size_of(prompt) + BYTES_OF_TOKEN * num_ids + beside, n_ctx)


def _is_list_of(kind: type, given: Any) -> bool:
    return isinstance(given, list) and {type(part) for part in given} <= {kind}


def _token_ids(tokens: Any) -> list[int]:
    if not _is_list_of(int, tokens):
        raise ValueError("it must be a list of token ids, which are whole numbers")
    return cast("list[int]", tokens)


class KnownFields(BaseModel):
    """A body, or a part of one, that may have its own fields only."""

    called: ClassVar[str] = "the request"
    """What messages call it."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        require_known(cls.called, given, set(cls.model_fields))
        return without_nulls(given) if isinstance(given, dict) else given


class TokenizeInputRequest(KnownFields):
    """The body of /extras/tokenize."""

    model: str | None = None
    input: str


class DetokenizeRequest(KnownFields):
    """The body of /extras/detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_token_ids, json_schema_input_type=list[int])]


Prompt = Annotated[
    str | list[int] | list[str] | list[list[int]],
    PlainValidator(checked_ids, json_schema_input_type=str | list[int] | list[str] | list[list[int]]),
]
PromptOfCompletion = Annotated[
    OnePrompt | list[OnePrompt],
    PlainValidator(checked_prompt, json_schema_input_type=OnePrompt | list[OnePrompt] | dict[str, Any]),
]


def with_nulls(schema: dict[str, Any]) -> None:
    """Adds to the schema that each optional field may be null."""
    for name, field in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in field.get("anyOf", ()):
            kept = {key: field.pop(key) for key in ("title", "description", "default") if key in field}
            schema["properties"][name] = {"anyOf": [field, {"type": "null"}], **kept}


def with_llama_servers(schema: dict[str, Any]) -> None:
    """Adds llama-server's fields to the schema, and that each optional field may be null."""
    properties = schema["properties"]
    properties.update(DOCUMENTED_OF_CHATS if "messages" in properties else DOCUMENTED)
    with_nulls(schema)


class Additions(ChainFields, SamplerFields):
    """The fields that our requests add to llama-cpp-python's."""

    num_draft_tokens: int | Literal["auto"] | None = Field(
        None,
        description="The number of tokens drafted in a round, or `auto`. 0 is plain decoding. Default: the server's.",
    )
    verify: Verify | None = Field(None, description="The rule that accepts drafted tokens. Default: the server's.")
    timings_per_token: bool = Field(False, description="Send the timings so far with every chunk of a stream.")
    return_origins: bool = Field(
        False, description="Send the tokens of each text, and for each token where it came from."
    )
    return_progress: bool = Field(
        False, description="Send how much of the prompt has been read, in the first chunks of a stream."
    )
    stream_options: StreamOptions | None = None
    seed: int | None = Field(None, description="Equal seeds give equal answers. null and -1: a random seed.")
    ignore_eos: bool = Field(
        False,
        description="End tokens do not end the answer: only max_tokens, a stop text or the size of the context does.",
    )
    prediction: str | dict[str, Any] | None = Field(
        None, description="The expected answer, a text or OpenAI's object. Drafts are looked up in it."
    )
    n: int | None = Field(None, ge=1, le=_MOST_TEXTS, description="The number of answers to each prompt. Default 1.")

    model_config = ConfigDict(extra="allow")  # fields without effect are named in `warnings`

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        ours = as_ours(body, is_chat="messages" in cls.model_fields)
        plain = plain_body(ours, {*CompletionRequest.model_fields, *ChatRequest.model_fields})
        for name in _OF_CHATS - cls.model_fields.keys():
            if name in plain:
                raise ValueError(f'"{name}" is for /v1/chat/completions: ask there, or leave it out')
        if "stream_options" in plain and not plain.get("stream"):
            raise ValueError('"stream_options" is for streams: send "stream": true with it, or leave it out')
        if plain.get("ignore_eos") is True and (ended := _ended_by(plain)):
            raise ValueError(f'"ignore_eos" and "{ended}" disagree: what that asks for has an end; leave one out')
        return plain

    def warnings(self, llm: Llama) -> list[str]:
        """Warnings of accepted fields that had no effect."""
        names = {*(self.model_extra or {})}
        asked = call_on(llm, options=llm.engine.account.options.overridden(self.num_draft_tokens, None))
        if self.prediction is not None and not is_looked_up(llm, asked):
            names.add("prediction")
        return [f"{name} has no effect here" for name in sorted(names)]

    @field_validator("prediction")
    @classmethod
    def _of_text(cls, prediction: Any) -> Any:
        try:
            return checked_prediction(prediction)
        except TypeError as error:
            raise ValueError(str(error)) from None

    def _copies(self, count: int) -> list[Self]:
        """Requests for `count` answers, each with a seed of its own. The first one has the request's seed."""
        return [
            self.model_copy(update={"n": None, "stream_options": None, "seed": _seed_of(self.seed, number)})
            for number in range(count)
        ]


def _ended_by(body: dict[str, Any]) -> str | None:
    """The field with which an answer ends by itself; None if there is none."""
    return next((name for name, endless in _ENDLESS.items() if body.get(name) not in endless), None)


class CompletionRequest(Additions, CreateCompletionRequest):
    """The body of /v1/completions."""

    prompt: PromptOfCompletion = Field("", description="A text, or token ids.")  # type: ignore[assignment]
    max_tokens: int | None = Field(
        None,
        ge=-1,
        description="The most tokens of the answer. Default 16. -1: as many as fit. 0: nothing is generated.",
    )
    logprobs: int | None = Field(
        None, ge=0, le=_MOST_LOGPROBS, description="The number of alternatives that are given for each token."
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=_MOST_TEXTS,
        description="The number of answers that are generated. The n likeliest of them are returned.",
    )

    json_schema: dict[str, Any] | None = Field(
        None,
        description="llama-server's: a JSON schema that the answer must follow. It is enforced as a whole, or refused.",
    )

    model_config = ConfigDict(json_schema_extra=with_llama_servers)

    @field_validator("logprobs", mode="before")
    @classmethod
    def _no_flag(cls, logprobs: Any) -> Any:
        return None if logprobs is False else logprobs

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if self.json_schema is not None and self.grammar is not None:
            raise ValueError('"json_schema" and "grammar" each say what the answer must be: leave one out')
        if self.best_of is not None and self.best_of < self.num_choices:
            raise ValueError(f"best_of={self.best_of} must be n={self.num_choices} or more")
        if self.stream and self.num_candidates > self.num_choices:
            raise ValueError(f"best_of={self.best_of} has no stream: all answers must be there first; leave one out")
        if (count := len(self._prompts()) * self.num_candidates) > _MOST_TEXTS:
            raise ValueError(f"{count} texts in one request: send at most {_MOST_TEXTS}, or several requests")
        return self

    @property
    def num_choices(self) -> int:
        """How many answers to each prompt are given."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """How many answers are generated for each prompt."""
        return self.best_of or self.num_choices

    def texts(self) -> list[CompletionRequest]:
        """A request for each text: first all answers to the first prompt, then all to the next prompt."""
        made = [
            copy.model_copy(update={"prompt": prompt, "best_of": None})
            for prompt in self._prompts()
            for copy in self._copies(self.num_candidates)
        ]
        if self.num_candidates > self.num_choices and self.logprobs is None:
            made = [text.model_copy(update={"logprobs": 0}) for text in made]  # to compare the answers
        return made if len(made) > 1 else [self.model_copy(update={"prompt": self._prompts()[0]})]

    def _prompts(self) -> list[Any]:
        return [self.prompt] if is_one(self.prompt) else list(self.prompt)

    def require_room(self, llm: Llama) -> None:
        """Refuses a request that cannot fit, before it is tokenized.

        Raises:
            ValueError: it is too long, or its schema cannot be enforced.
        """
        for prompt in self._prompts():
            require_room_for_prompt(prompt, llm.n_ctx(), beside=size_of(self.suffix))
        if reason := why_not_enforced(self._format()):
            raise ValueError(f"{reason}; simplify it".replace("response_format", "json_schema"))
        _require_room_beside_prompt(self, llm)

    def decodes_by_itself(self, llm: Llama) -> bool:
        """Whether a chat handler decodes the prompt, outside of the engine's slots. Completions have no handler."""
        return False

    def text(self) -> str:
        """The text of the request. It shows whether another request continues this one."""
        return str(self.prompt)

    def begin(self, llm: Llama, call: Call) -> Any:
        """Starts the generation. Returns a response, or the chunks of a stream."""
        call = _asked(self, llm, call, is_prompt_only=self.max_tokens == 0, knows_what_is_ignored=True)
        arguments = _arguments(self, llm)
        if arguments.pop("json_schema", None) is not None:
            arguments["grammar"] = with_grammar_of_format(self._format())["grammar"]
        return llm.create_completion(**{**arguments, "prompt": ids_of(llm, cast("OnePrompt", self.prompt))}, call=call)

    def _format(self) -> dict[str, Any]:
        """The ``response_format`` of a chat with the same schema."""
        if self.json_schema is None:
            return {}
        return {"response_format": {"type": "json_object", "schema": any_object(self.json_schema)}}


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
        None, ge=0, le=_MOST_LOGPROBS, description="The number of alternatives that are given for each token."
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
    _left_out: list[str] = PrivateAttr([])  # the types of tools that are left out

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

    @model_validator(mode="before")
    @classmethod
    def _as_llama_cpp_has_it(cls, body: Any) -> Any:
        return chat_body(as_ours(body, is_chat=True)) if isinstance(body, dict) else body

    @model_validator(mode="after")
    def _begins_or_continues(self) -> Self:
        if self.add_generation_prompt is not None and self.add_generation_prompt == bool(self.continue_final_message):
            raise ValueError(
                "an answer is either begun (add_generation_prompt) or continued (continue_final_message): send one as "
                "true, or leave both out"
            )
        return self

    @property
    def num_choices(self) -> int:
        """How many answers are returned."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """How many answers are generated."""
        return self.num_choices

    def texts(self) -> list[ChatRequest]:
        """A request for each answer."""
        return self._copies(self.num_choices) if self.num_choices > 1 else [self]

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
        _require_room_beside_prompt(self, llm)
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
        if llm.chat_handler is None:  # nearly always, and a long chat takes time to copy
            return False
        return decodes_by_itself(llm, [message.model_dump(exclude_unset=True) for message in self.messages])

    def text(self) -> str:
        """The text of the request. It shows whether another request continues this one."""
        return "\0".join(f"{message.role}\0{message.content}" for message in self.messages)

    def warnings(self, llm: Llama) -> list[str]:
        """Warnings of accepted fields that had no effect."""
        reason = None if self._is_strict else self._not_enforced()
        fields = given_fields(self.chat_template_kwargs, self.reasoning_effort)
        unread = [f"{name} has no effect here" for name in unread_fields(llm, fields)]
        form = taught_by(template_of(llm))[0]
        if self.reasoning_format == "none" and form is not None and form.thoughts:
            unread.append("reasoning_format has no effect here")  # its thoughts are not a text between two marks
        unread += [f"a tool of the type {kind!r} is left out: it is no function" for kind in self._left_out]
        return [*super().warnings(llm), *unread, *([reason] if reason else [])]

    def _not_enforced(self) -> str | None:
        names = ("tools", "tool_choice", "functions", "function_call", "response_format")
        return why_not_enforced({name: getattr(self, name) for name in names})

    def begin(self, llm: Llama, call: Call) -> Any:
        """Starts the generation. Returns a response, or the chunks of a stream."""
        arguments = _arguments(self, llm)
        newer = arguments.pop("max_completion_tokens", None)
        max_tokens = self.max_tokens if newer is None else newer
        arguments["messages"] = [message.model_dump(exclude_unset=True) for message in self.messages]
        keeps_thoughts = self.reasoning_format == "none"
        call = _asked(self, llm, call, is_prompt_only=max_tokens == 0, knows_what_is_ignored=True)
        chat = prepared(llm, {**arguments, "max_tokens": max_tokens}, keeps_thoughts=keeps_thoughts, warns=False)
        return chat.answer(call)


def _is_strict(body: Any) -> bool:
    """Whether every schema of the request must be followed: none has ``"strict": false``."""
    tools = body.get("tools") if isinstance(body, dict) else None
    places = [tool.get("function") for tool in tools if isinstance(tool, dict)] if isinstance(tools, list) else []
    wanted = body.get("response_format") if isinstance(body, dict) else None
    places += [wanted, wanted.get("json_schema")] if isinstance(wanted, dict) else []
    return not any(isinstance(place, dict) and place.get("strict") is False for place in places)


def _is_id(name: str) -> bool:
    """Whether it is the number of a token. llama-server also takes texts, which stand for all of their tokens."""
    return name.lstrip("-").isdecimal()


def _require_room_beside_prompt(body: CompletionRequest | ChatRequest, llm: Llama) -> None:
    """Refuses other texts that are longer than a prompt may be: nobody else has the model while they are prepared."""
    for name, texts in (("prediction", body.prediction), ("stop", body.stop), ("logit_bias", _biased_texts(body))):
        require_room(size_of(texts), llm.n_ctx(), name)


def _biased_texts(body: CompletionRequest | ChatRequest) -> list[str]:
    """The keys of ``logit_bias`` that stand for all of their tokens."""
    return [name for name in body.logit_bias or () if not _is_id(name) or body.logit_bias_type == "tokens"]


def _tokens_of(llm: Llama, text: str, *, is_first: bool = False) -> list[int]:
    add_bos = is_first and not _has_bos(llm, text)
    return llm.tokenize(text.encode("utf-8", errors="replace"), add_bos=add_bos, special=True)


def _has_bos(llm: Llama, text: str) -> bool:
    """Whether a text begins with the name of the token that would be put before it, as rendered chats often do."""
    name = llm.engine.text(leading_tokens(llm), special=True).decode("utf-8", "replace")
    return bool(name) and text.startswith(name)


def _seed_of(seed: int | None, number: int) -> int | None:
    """The seed of one of several answers."""
    is_random = checked_seed(seed) is None
    return seed if number == 0 or is_random else random.Random(f"{seed}, {number}").randrange(1 << 31)


def _asked(body: CompletionRequest | ChatRequest, llm: Llama, call: Call, **changes: Any) -> Call:
    """The call, with settings for which the Llama's methods have no argument."""
    if body.repeat_last_n is not None:
        changes["penalty_last_n"] = llm.n_ctx() if body.repeat_last_n < 0 else body.repeat_last_n
    return dataclasses.replace(call, **changes)


def _arguments(body: CompletionRequest | ChatRequest, llm: Llama) -> dict[str, Any]:
    """The arguments of the Llama's method. Fields that are missing or null are left to its defaults."""
    dumped = body.model_dump(exclude={*_OURS, *_THEIRS, *(body.model_extra or ())})
    arguments = {name: value for name, value in dumped.items() if value is not None}
    if body.grammar is not None:
        arguments["grammar"] = LlamaGrammar.from_string(body.grammar, verbose=False)
    if body.logit_bias:
        texts = {*_biased_texts(body)}
        arguments["logit_bias"] = {
            token: bias
            for name, bias in body.logit_bias.items()
            for token in (_tokens_of(llm, name) if name in texts else [name])
        }
    if body.ignore_eos:
        never = {str(token): float("-inf") for token in llm.engine.model.once(end_tokens)}
        arguments["logit_bias"] = {**arguments.get("logit_bias", {}), **never}
    return arguments
