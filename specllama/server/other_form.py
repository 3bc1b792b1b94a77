"""What bodies have in common that are another form of a chat, or of a completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from .job import Item
from .requests import with_nulls


def with_fields_of(model: type[BaseModel], without: Iterable[str]) -> Callable[[dict[str, Any]], None]:
    """What adds to the document of a body the fields that go on as they are.

    Args:
        model: whose fields these are.
        without: those that are said otherwise here.
    """

    def add(schema: dict[str, Any]) -> None:
        with_nulls(schema)
        for name, field in model.model_json_schema()["properties"].items():
            if name not in without and "$ref" not in json.dumps(field):
                schema["properties"].setdefault(name, field)

    return add


class OtherForm(BaseModel):
    """Such a body. Fields of chats or completions that are not here, such as those of samplers, go on as they are.

    Attributes:
        ignored: fields that mean nothing here.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="allow", json_schema_extra=with_nulls)

    def others(self) -> dict[str, Any]:
        """The fields that go on as they are."""
        return {name: value for name, value in (self.model_extra or {}).items() if name not in self.ignored}

    def without_effect(self) -> list[str]:
        """What of the fields that are here does nothing, by its name."""
        return []

    def progress_chunk(self) -> Item:
        """See ``Translated``. Nothing: `return_progress` is refused."""
        return {}

    def warned(self, told: Mapping[str, Any]) -> Item:
        """The warnings of an answer, if there are any: those of the request that it means, and what does nothing.

        Args:
            told: what the chunks of the answer say.
        """
        names = [*sorted(self.ignored & (self.model_extra or {}).keys()), *self.without_effect()]
        warnings = [*told.get("warnings", ()), *(f"{name} has no effect here" for name in names)]
        return {"warnings": warnings} if warnings else {}
