"""JSON schemas of chats: llama_cpp puts "any JSON" in the place of one that it cannot make a grammar of."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from typing import Any

from llama_cpp.llama_grammar import json_schema_to_gbnf

from .arguments import warn

_LONGEST_REASON = 200  # characters: the converter quotes the schema


def warn_of_schema(options: Mapping[str, Any]) -> None:
    """Say so where llama_cpp does not.

    Args:
        options: the keyword arguments of ``create_chat_completion``. What is malformed is left to it.
    """
    chosen = _chosen_tool(options)
    if chosen is not None:
        what, schema = f"the schema of the tool {chosen['name']!r:.100}", chosen.get("parameters")
    else:
        answer = options.get("response_format")
        if not isinstance(answer, dict) or answer.get("type") != "json_object":
            return
        what, schema = "the schema of response_format", answer.get("schema")
    if schema is None:
        return
    try:
        text = json.dumps(schema)
    except (TypeError, ValueError):
        return
    reason = _why_not(text)
    if reason is not None:
        warn(f"{what} cannot be made into a grammar ({reason}), so the answer may be any JSON: simplify the schema")


def _chosen_tool(options: Mapping[str, Any]) -> dict[str, Any] | None:
    """The function that has to be called: its grammar takes precedence."""
    choice = options.get("function_call")  # as OpenAI's API had it before there were tools
    if not isinstance(choice, dict):
        tool = options.get("tool_choice")
        choice = tool.get("function") if isinstance(tool, dict) else None
    if not isinstance(choice, dict):
        return None
    tools = [tool.get("function") for tool in options.get("tools") or () if isinstance(tool, dict)]
    for function in [*(options.get("functions") or ()), *tools]:
        if isinstance(function, dict) and "name" in function and function["name"] == choice.get("name"):
            return function
    return None


@functools.lru_cache(maxsize=16)
def _why_not(schema: str) -> str | None:
    try:
        json_schema_to_gbnf(schema)
    except Exception as error:  # llama_cpp, too, takes whatever its converter raises
        return f"{type(error).__name__}: {ascii(str(error))[:_LONGEST_REASON]}"
    return None
