"""The common part of bodies that are another form of a chat or a completion."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from .fields import with_nulls
from .job import Item


def with_fields_of(model: type[BaseModel], without: Iterable[str]) -> Callable[[dict[str, Any]], None]:
    """Returns a function that adds the fields that are passed on to the /openapi.json entry of a body.

    Args:
        model: the request that these fields belong to.
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
    """

    ignored: ClassVar[frozenset[str]] = frozenset()

    model_config = ConfigDict(extra="allow", json_schema_extra=with_nulls)

    def others(self) -> dict[str, Any]:
        """The fields that are passed on unchanged."""
        return {name: value for name, value in (self.model_extra or {}).items() if name not in self.ignored}

    def without_effect(self) -> list[str]:
        """Names of listed fields that have no effect."""
        return []

    def progress_chunk(self) -> Item:
        """See ``Translated``. Not used, because `return_progress` is refused."""
        return {}

    def warned(self, told: Mapping[str, Any]) -> Item:
        """The warnings of an answer, if there are any: those of the equivalent request, and fields without effect.

        Args:
            told: the other fields of the answer's chunks.
        """
        names = [*sorted(self.ignored & (self.model_extra or {}).keys()), *self.without_effect()]
        warnings = [*told.get("warnings", ()), *(f"{name} has no effect here" for name in names)]
        return {"warnings": warnings} if warnings else {}
