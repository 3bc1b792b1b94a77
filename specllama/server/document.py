"""Completes /openapi.json for routes whose bodies the app parses itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

_SCHEMA = "#/components/schemas/{model}"


def with_body(model: type[BaseModel]) -> dict[str, Any]:
    """The entry of a route in /openapi.json, for a body of type `model`."""
    content = {"application/json": {"schema": {"$ref": _SCHEMA.format(model=model.__name__)}}}
    return {"requestBody": {"required": True, "content": content}}


def document(app: FastAPI, models: Iterable[type[BaseModel]]) -> None:
    """Adds the schemas of the bodies to /openapi.json, which is built at the first request for it."""
    made: Callable[[], dict[str, Any]] = app.openapi

    def with_schemas() -> dict[str, Any]:
        whole = made()
        _, schemas = models_json_schema([(model, "validation") for model in models], ref_template=_SCHEMA)
        whole.setdefault("components", {}).setdefault("schemas", {}).update(schemas["$defs"])
        return whole

    app.openapi = with_schemas  # type: ignore[method-assign]
