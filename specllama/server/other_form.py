"""The common part of bodies that are another form of a chat or a completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, model_validator

from specllama import Llama
from specllama.chat import ChatPrompt

from .blocks import READ
from .chats import ChatRequest
from .fields import with_nulls
from .job import Item
from .request_limits import Place, checked
from .wire import without_nulls


def with_fields_of(model: type[BaseModel], without: Iterable[str]) -> Callable[[dict[str, Any]], None]:
    """Returns a function that adds, to a body's entry in /openapi.json, the fields that are passed on.

    Args:
        model: the type of the equivalent request, which has these fields.
        without: fields of `model` that have another form here.
    """

    def add(schema: dict[str, Any]) -> None:
        with_nulls(schema)
        for name, field in model.model_json_schema()["properties"].items():
            if name not in without and "$ref" not in json.dumps(field):
                schema["properties"].setdefault(name, field)

    return add


class OtherForm(BaseModel):
    """A body of another API. Unlisted fields of chats or completions, such as those of samplers, are passed on.

    Attributes:
        ignored: accepted fields that have no effect.
        refused: fields that are not supported, and what to do in their place.
        elsewhere: fields of the equivalent request that have another form here, and what to send here.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    refused: ClassVar[Mapping[str, str]] = {}
    elsewhere: ClassVar[Mapping[str, str]] = {}

    model_config = ConfigDict(extra="allow", json_schema_extra=with_nulls)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        plain = without_nulls(body)
        for name in plain.keys() & cls.refused.keys():
            if plain.pop(name) is not False:
                raise ValueError(f'"{name}" is not supported: {cls.refused[name]}')
        for name in plain.keys() & cls.elsewhere.keys():
            raise ValueError(f'"{name}" is for /v1/chat/completions: here it is {cls.elsewhere[name]}')
        return plain

    def others(self) -> dict[str, Any]:
        """The fields that are passed on unchanged."""
        return {name: value for name, value in (self.model_extra or {}).items() if name not in self.ignored}

    def without_effect(self) -> list[str]:
        """Names of listed fields that have no effect."""
        return []

    def progress_chunk(self) -> Item:
        """See ``Translated``. Not used, because `return_progress` is refused."""
        return {}

    def warned(self, other_fields: Mapping[str, Any]) -> Item:
        """The warnings of an answer, if there are any: those of the equivalent request, and fields without effect.

        Args:
            other_fields: the fields of the answer's chunks besides its text.
        """
        names = [*sorted(self.ignored & (self.model_extra or {}).keys()), *self.without_effect()]
        warnings = [*other_fields.get("warnings", ()), *(f"{name} has no effect here" for name in names)]
        return {"warnings": warnings} if warnings else {}


class OtherChat(OtherForm):
    """A chat in the form of another API."""

    def chat(self) -> dict[str, Any]:
        """The body of the equivalent chat request."""
        raise NotImplementedError

    def place(self, place: Place) -> Place:
        """The place in this body that became `place` in the equivalent chat request, for error messages."""
        return place

    def asked(self, llm: Llama) -> ChatRequest:
        """The equivalent chat request: see ``Translated``."""
        return checked({**self.chat(), **READ}, ChatRequest, self.place)

    def prompt(self, llm: Llama) -> ChatPrompt:
        """The prompt that the chat template makes of the chat: see ``ChatRequest.prompt``."""
        return self.asked(llm).prompt(llm)
