"""JSON schemas of chats: llama_cpp puts "any JSON" in the place of one that it cannot make a grammar of."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from specllama.completions.llama_cpp_arguments import warn

from .schema_converter import TooLargeError, grammar_of_schema, parts_passed_over

_known: contextvars.ContextVar[bool] = contextvars.ContextVar("specllama_schemas_known", default=False)
_MOST_PARTS = 5
_LONGEST_REASON = 200  # characters: the converter quotes the schema


def warn_of_schema(options: Mapping[str, Any]) -> None:
    """Say so where llama_cpp does not.

    Args:
        options: the keyword arguments of ``create_chat_completion``. What is malformed is left to it.

    Raises:
        ValueError: a schema that is nested too deeply, or whose grammar would take all memory.
    """
    if _known.get():
        return
    reasons = [(what, _why_not(what, schema)) for what, schema in _schemas(options) if schema is not None]
    if reasons and reasons[0][1] is not None:
        what, reason = reasons[0]  # its grammar takes precedence
        warn(f"{what} cannot be made into a grammar ({reason}), so the answer may be any JSON: simplify the schema")


def why_not_enforced(options: Mapping[str, Any]) -> str | None:
    """What of the schema that a chat is to follow cannot be enforced; None if all of it is.

    Args:
        options: the keyword arguments of ``create_chat_completion``.

    Raises:
        ValueError: a schema that is nested too deeply, or whose grammar would take all memory.
    """
    for what, schema in _schemas(options):  # the first one is followed
        if schema is None:
            return None
        reason = _why_not(what, schema)
        parts = [reason] if reason is not None else parts_passed_over(json.dumps(schema))
        return f"{what} cannot be enforced: {'; '.join(parts[:_MOST_PARTS])}" if parts else None
    return None


@contextlib.contextmanager
def schemas_are_known() -> Iterator[None]:
    """Within the block nothing is said of schemas: their user has been told."""
    token = _known.set(True)
    try:
        yield
    finally:
        _known.reset(token)


def _schemas(options: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What llama_cpp makes grammars of. The first one is followed."""
    chosen = _chosen_tool(options)
    if chosen is not None:
        yield f"the schema of the tool {chosen['name']!r:.100}", chosen.get("parameters")
    answer = options.get("response_format")
    if isinstance(answer, dict) and answer.get("type") == "json_object":
        yield "the schema of response_format", answer.get("schema")


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


def _why_not(what: str, schema: Any) -> str | None:
    try:
        return _why_not_text(json.dumps(schema))
    except TooLargeError:
        raise
    except RecursionError as error:
        raise ValueError(
            f"{what} is nested too deeply for Python, or has too many optional properties: give inner parts names in "
            "$defs, and "
            'list in "required" what an answer always has'
        ) from error
    except (TypeError, ValueError):  # no JSON
        return None


@functools.lru_cache(maxsize=16)
def _why_not_text(schema: str) -> str | None:
    try:
        grammar_of_schema(schema)
    except (TooLargeError, RecursionError):
        raise
    except Exception as error:  # llama_cpp, too, takes whatever its converter raises
        return f"{type(error).__name__}: {ascii(str(error))[:_LONGEST_REASON]}"
    return None
