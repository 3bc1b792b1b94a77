"""The body of /v1/completions."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

from llama_cpp.server.types import CreateCompletionRequest
from pydantic import ConfigDict, Field, PrivateAttr, field_validator, model_validator
from typing_extensions import Self

from specllama import Llama
from specllama.drop_in import Call, prompt_tokens_of
from specllama.engine import size_of
from specllama.grammars import why_not_enforced, with_grammar_of_format

from .fields import MOST_LOGPROBS, MOST_TEXTS, Additions, Once, with_llama_servers
from .llama_fields import any_object
from .prompts import OnePrompt, PromptOfCompletion, ids_of, is_one, require_room_for_prompt


class CompletionRequest(Additions, CreateCompletionRequest):
    """The body of /v1/completions."""

    prompt: PromptOfCompletion = Field("", description="A text, or token ids.")  # type: ignore[assignment]
    max_tokens: int | None = Field(
        None,
        ge=-1,
        description="The most tokens of the answer. Default 16. -1: as many as fit. 0: nothing is generated.",
    )
    logprobs: int | None = Field(
        None, ge=0, le=MOST_LOGPROBS, description="The number of alternatives that are given for each token."
    )
    best_of: int | None = Field(
        None,
        ge=1,
        le=MOST_TEXTS,
        description="The number of answers that are generated. The n likeliest of them are returned.",
    )

    json_schema: dict[str, Any] | None = Field(
        None,
        description="llama-server's: a JSON schema that the answer must follow. It is enforced as a whole, or refused.",
    )

    model_config = ConfigDict(json_schema_extra=with_llama_servers)

    _ready: Once = PrivateAttr(default_factory=Once)  # the prompts and their tokens
    _number: int = PrivateAttr(0)  # the index of this text's prompt among the prompts of the whole request

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
        if (count := len(self._prompts()) * self.num_candidates) > MOST_TEXTS:
            raise ValueError(f"{count} texts in one request: send at most {MOST_TEXTS}, or several requests")
        return self

    @property
    def num_candidates(self) -> int:
        """How many answers are generated for each prompt."""
        return self.best_of or self.num_choices

    def texts(self) -> list[CompletionRequest]:
        """A request for each text: first all answers to the first prompt, then all answers to the next prompt."""
        made = [
            copy.model_copy(update={"prompt": prompt, "best_of": None})
            for prompt in self._prompts()
            for copy in self.copies(self.num_candidates)
        ]
        for number, text in enumerate(made):
            text._number = number // self.num_candidates
        if self.num_candidates > self.num_choices and self.logprobs is None:
            made = [text.model_copy(update={"logprobs": 0}) for text in made]  # by which the likeliest are found
        return made if len(made) > 1 else [self.model_copy(update={"prompt": self._prompts()[0]})]

    def _prompts(self) -> list[Any]:
        return [self.prompt] if is_one(self.prompt) else list(self.prompt)

    def require_room(self, llm: Llama) -> None:
        """Refuses a request that cannot fit, before it is tokenized.

        Raises:
            ValueError: a prompt is too long, or the schema cannot be enforced.
        """
        for prompt in self._prompts():
            require_room_for_prompt(prompt, llm.n_ctx(), other_bytes=size_of(self.suffix))
        if reason := why_not_enforced(self._format()):
            raise ValueError(f"{reason}; simplify it".replace("response_format", "json_schema"))
        self.require_room_for_other_texts(llm)

    def text(self) -> str:
        """The text of the request, by which a slot is chosen whose KV cache holds the beginning of this text."""
        return str(self.prompt)

    def begin(self, llm: Llama, call: Call) -> Any:
        """Starts the generation. Returns a response, or the chunks of a stream."""
        arguments = self.arguments(llm)
        if arguments.pop("json_schema", None) is not None:
            arguments["grammar"] = with_grammar_of_format(self._format())["grammar"]
        arguments["prompt"], tokens = self._ready(self._number, lambda: self._prompt_and_tokens(llm))
        call = dataclasses.replace(self.asked(llm, call, self.max_tokens), prompt_tokens=tokens)
        return llm.create_completion(**arguments, call=call)

    def _prompt_and_tokens(self, llm: Llama) -> tuple[str | list[int], list[int]]:
        prompt = ids_of(llm, cast("OnePrompt", self.prompt))
        return prompt, prompt_tokens_of(llm, prompt, self.suffix)

    def _format(self) -> dict[str, Any]:
        """``json_schema`` as a chat's ``response_format``, whose grammar is then used; none without a schema."""
        if self.json_schema is None:
            return {}
        return {"response_format": {"type": "json_object", "schema": any_object(self.json_schema)}}
