"""Fields and checks that several request bodies share. They are added to llama-cpp-python's types of bodies."""

from __future__ import annotations

import dataclasses
import random
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from llama_cpp.llama_grammar import LlamaGrammar
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator
from typing_extensions import Self

from specllama import Llama
from specllama.chat import CHOICES, require_known
from specllama.drop_in import Call, call_of, checked_prediction, is_looked_up
from specllama.engine import Verify, checked_seed, end_tokens, require_room, size_of

from .llama_fields import DOCUMENTED, DOCUMENTED_OF_CHATS, as_ours
from .sampler_fields import ChainFields, SamplerFields
from .wire import chat_body, plain_body, without_nulls

_OURS = {
    *("timings_per_token", "return_origins", "return_progress", "stream_options", "repeat_last_n", "ignore_eos"),
    *("reasoning_format", "store"),
}
# Fields that say what a chat's answer must be. Requests of other types refuse them.
_OF_CHATS = {"response_format", "tools", "functions", "tool_choice", "function_call"}
_ENDLESS: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("grammar", "json_schema"), (None,)),
    "response_format": (None, {"type": "text"}),
    **dict.fromkeys(("tool_choice", "function_call"), CHOICES),
}
"""Fields that make an answer end by itself, each with the values that do not."""
_THEIRS = {"n", "best_of", "user", "logit_bias_type", "add_generation_prompt"}  # no method of Llama takes these
MOST_TEXTS = 128  # OpenAI's limit of n
MOST_LOGPROBS = 20  # OpenAI's limit for chats; OpenAI's limit for completions, 5, is too low for some clients


class KnownFields(BaseModel):
    """A body, or a part of one, that may have its own fields only."""

    called: ClassVar[str] = "the request"
    """The name of the body in error messages."""

    @model_validator(mode="before")
    @classmethod
    def _known(cls, given: Any) -> Any:
        require_known(cls.called, given, set(cls.model_fields))
        return without_nulls(given) if isinstance(given, dict) else given


class StreamOptions(KnownFields):
    """OpenAI's options of a stream."""

    called: ClassVar[str] = "stream_options"

    include_usage: bool = False
    include_obfuscation: bool = Field(False, description="Has no effect: nothing is added to chunks.")


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
    store: bool | None = Field(
        None, description="false: a server with `--learn` keeps nothing of the answer. true has no effect."
    )
    n: int | None = Field(None, ge=1, le=MOST_TEXTS, description="The number of answers to each prompt. Default 1.")

    model_config = ConfigDict(extra="allow")  # fields without effect are named in `warnings`

    @model_validator(mode="before")
    @classmethod
    def _known(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        is_chat = "messages" in cls.model_fields
        ours = as_ours(body, is_chat=is_chat)
        known = {name for kind in Additions.__subclasses__() for name in kind.model_fields}
        plain = plain_body(chat_body(ours) if is_chat else ours, known)
        for name in _OF_CHATS - cls.model_fields.keys():
            if name in plain:
                raise ValueError(f'"{name}" is for /v1/chat/completions: ask there, or leave it out')
        if "stream_options" in plain and not plain.get("stream"):
            raise ValueError('"stream_options" is for streams: send "stream": true with it, or leave it out')
        if plain.get("ignore_eos") is True and (ended := _ended_by(plain)):
            raise ValueError(f'"ignore_eos" and "{ended}" disagree: what that asks for has an end; leave one out')
        return plain

    @field_validator("prediction")
    @classmethod
    def _of_text(cls, prediction: Any) -> Any:
        try:
            return checked_prediction(prediction)
        except TypeError as error:
            raise ValueError(str(error)) from None

    @property
    def num_choices(self) -> int:
        """How many answers to each prompt are given."""
        return self.n or 1

    @property
    def num_candidates(self) -> int:
        """How many answers are generated for each prompt."""
        return self.num_choices

    def decodes_by_itself(self, llm: Llama) -> bool:
        """Whether a chat handler decodes the prompt, outside of the engine's slots."""
        return False

    def warnings(self, llm: Llama) -> list[str]:
        """Warnings of accepted fields that had no effect."""
        names = {*(self.model_extra or {})}
        asked = call_of(llm, {"num_draft_tokens": self.num_draft_tokens})
        if self.prediction is not None and not is_looked_up(llm, asked):
            names.add("prediction")
        if self.store:
            names.add("store")
        return [f"{name} has no effect here" for name in sorted(names)]

    def copies(self, count: int) -> list[Self]:
        """Requests for `count` answers, each with a seed of its own. The first one has the request's seed."""
        return [
            self.model_copy(update={"n": None, "stream_options": None, "seed": _seed_of(self.seed, number)})
            for number in range(count)
        ]

    def require_room_for_other_texts(self, llm: Llama) -> None:
        """Refuses other texts that are longer than a prompt may be. Preparing them would keep other requests waiting.

        Raises:
            ValueError: a text is too long.
        """
        given: Any = self
        for name, texts in (("prediction", self.prediction), ("stop", given.stop), ("logit_bias", self._biased())):
            require_room(size_of(texts), llm.n_ctx(), name)

    def _biased(self) -> list[str]:
        """The keys of ``logit_bias`` that are texts. As in llama-server, the bias is for all tokens of such a text."""
        given: Any = self
        return [name for name in given.logit_bias or () if not _is_id(name) or given.logit_bias_type == "tokens"]

    def asked(self, llm: Llama, call: Call, max_tokens: int | None) -> Call:
        """The `Call`, with this request's settings for which the Llama's methods have no argument."""
        last_n = self.repeat_last_n
        return dataclasses.replace(
            call,
            is_prompt_only=max_tokens == 0,
            learns=self.store is not False,
            knows_what_is_ignored=True,
            penalty_last_n=llm.n_ctx() if last_n is not None and last_n < 0 else last_n,
        )

    def arguments(self, llm: Llama) -> dict[str, Any]:
        """The arguments of the Llama's method. For fields that are missing or null, the method's defaults apply."""
        given: Any = self
        dumped = self.model_dump(exclude={*_OURS, *_THEIRS, *(self.model_extra or ())})
        arguments = {name: value for name, value in dumped.items() if value is not None}
        if given.grammar is not None:
            arguments["grammar"] = LlamaGrammar.from_string(given.grammar, verbose=False)
        if given.logit_bias:
            texts = {*self._biased()}
            arguments["logit_bias"] = {
                token: bias
                for name, bias in given.logit_bias.items()
                for token in (llm.tokenize(name.encode("utf-8", "replace"), False, True) if name in texts else [name])
            }
        if self.ignore_eos:
            never = {str(token): float("-inf") for token in llm.engine.model.once(end_tokens)}
            arguments["logit_bias"] = {**arguments.get("logit_bias", {}), **never}
        return arguments


class Once:
    """Keeps values made from a request, such as tokens. The first thread that asks makes the value, and others wait."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[int, Any] = {}

    def __call__(self, number: int, make: Callable[[], Any]) -> Any:
        """The value for the prompt with this index. `make` is called if there is none yet."""
        with self._lock:
            if number not in self._made:
                self._made[number] = make()
            return self._made[number]


def _ended_by(body: dict[str, Any]) -> str | None:
    """The name of a field that makes the answer end by itself; None if there is none."""
    return next((name for name, endless in _ENDLESS.items() if body.get(name) not in endless), None)


def _is_id(name: str) -> bool:
    """Whether a key of ``logit_bias`` is the number of a token, and not a text."""
    return name.lstrip("-").isdecimal()


def _seed_of(seed: int | None, number: int) -> int | None:
    """The seed of the answer with this index, from the request's seed. Answer 0 has the request's seed itself."""
    is_random = checked_seed(seed) is None
    return seed if number == 0 or is_random else random.Random(f"{seed}, {number}").randrange(1 << 31)
