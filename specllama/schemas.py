"""JSON schemas of chats: llama_cpp puts "any JSON" in the place of one that it cannot make a grammar of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from .arguments import warn


def warn_of_schemas(options: Mapping[str, Any]) -> None:
    """Say so where llama_cpp does not.

    Args:
        options: the keyword arguments of ``create_chat_completion``.
    """
    for what, schema in _schemas(options):
        try:
            json_schema_to_gbnf(json.dumps(schema))
        except Exception as error:  # llama_cpp, too, takes whatever its converter raises
            reason = f"{type(error).__name__}: {error}"
            warn(f"{what} cannot be made into a grammar ({reason}), so the answer may be any JSON: simplify the schema")


def _schemas(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    answer = options.get("response_format") or {}
    if answer.get("type") == "json_object" and "schema" in answer:
        yield "the schema of response_format", answer["schema"]
    choice = options.get("tool_choice")
    if isinstance(choice, dict):
        chosen = choice["function"]["name"]
        for tool in options.get("tools") or ():
            if tool["function"]["name"] == chosen:
                yield f"the schema of the tool {chosen}", tool["function"]["parameters"]
