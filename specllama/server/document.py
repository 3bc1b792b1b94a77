"""/openapi.json of routes whose bodies the app parses itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_SCHEMA = "#/components/schemas/{model}"


def with_body(model: type[BaseModel]) -> dict[str, Any]:
    """What the document is to say of such a route."""
    content = {"application/json": {"schema": {"$ref": _SCHEMA.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def document(app: FastAPI, models: Iterable[type[BaseModel]]) -> None:
    """Add the schemas of these bodies to the app's document, which is made when somebody asks for it."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def with_schemas() -> dict[str, Any]:
        whole = made()
        _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_SCHEMA)
        whole.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return whole

    app.openapi = with_schemas  # type: ignore[method-assign]
