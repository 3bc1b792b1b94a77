"""JSON schemas of chats: llama_cpp puts "any JSON" in the place of one that it cannot make a grammar of."""

from __future__ import annotations

import contextlib
import contextvars
import functools
import json
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar

from specllama.warn import warn

from .schema_converter import TooLargeError, grammar_of_schema, parts_passed_over
from .schema_matcher import NotEnforcedError, SchemaGrammar, has_matcher, matched_schema

_followed: contextvars.ContextVar[Mapping[str, SchemaGrammar]] = contextvars.ContextVar(
    "specllama_schemas_followed", default=types.MappingProxyType({})
)
_known: contextvars.ContextVar[bool] = contextvars.ContextVar("specllama_schemas_known", default=False)
_MOST_PARTS = 5
_ALTERNATIVES = ("enum", "anyOf", "oneOf")
_LONGEST_REASON = 200  # characters: the converter quotes the schema


@contextlib.contextmanager
def schemas_followed(options: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, what llama_cpp makes of the schemas of a chat is known by ``enforced``.

    Args:
        options: the keyword arguments of ``create_chat_completion``.
    """
    token = _followed.set(dict(_matched_schemas(options)))
    try:
        yield
    finally:
        _followed.reset(token)


def enforced(grammar: Any) -> Any:
    """The schema of which llama_cpp made this grammar, if llguidance enforces it; else the grammar as it is."""
    if isinstance(grammar, LlamaGrammar) and not isinstance(grammar, SchemaGrammar):
        return _followed.get().get(grammar._grammar, grammar)
    return grammar


def _matched_schemas(options: Mapping[str, Any]) -> Iterator[tuple[str, SchemaGrammar]]:
    """By the text of llama_cpp's grammar: its chat handlers make one on the way, and hand on nothing else."""
    schemas = [schema for _, schema in _schemas(options) if schema is not None]
    for schema in reversed(schemas):  # the first one takes precedence
        with contextlib.suppress(NotEnforcedError):
            matched, gbnf = _matched(schema), _gbnf(json.dumps(schema))
            yield gbnf, SchemaGrammar(gbnf, matched)


def _matched(schema: Any) -> str:
    """Llguidance's grammar of a schema.

    Raises:
        NotEnforcedError: there is none.
    """
    try:
        return matched_schema(json.dumps(schema))
    except (TypeError, ValueError, RecursionError) as error:  # no JSON
        raise NotEnforcedError(str(error)) from None


def _gbnf(schema: str) -> str:
    """What llama_cpp makes of a schema: any JSON, where its converter fails."""
    try:
        return grammar_of_schema(schema)
    except TooLargeError:
        raise
    except Exception:  # as llama_cpp takes it
        return JSON_GBNF


def _why_not_matched(schema: Any) -> str | None:
    try:
        _matched(schema)
    except NotEnforcedError as error:
        return str(error)
    return None


def warn_of_schema(options: Mapping[str, Any]) -> None:
    """Say so where llama_cpp does not.

    Args:
        options: the keyword arguments of ``create_chat_completion``. What is malformed is left to it.

    Raises:
        ValueError: a schema that is nested too deeply, or whose grammar would take all memory.
    """
    reasons = [(what, _why_not(what, schema)) for what, schema in _schemas(options) if schema is not None]
    if reasons and reasons[0][1] is not None and not _known.get():
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
        unmatched = _why_not_matched(schema)
        if unmatched is None:
            return None
        parts = [reason] if reason is not None else parts_passed_over(json.dumps(schema))
        if parts and has_matcher():
            parts = [*parts[:_MOST_PARTS], f"and llguidance says: {unmatched}"]
        return f"{what} cannot be enforced: {'; '.join(parts[: _MOST_PARTS + 1])}" if parts else None
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
    """Why nothing makes a grammar of a schema."""
    empty = next((name for name in _ALTERNATIVES if _has_empty(schema, name)), None)
    if empty is not None and _why_not_matched(schema) is not None:
        raise ValueError(f"{what} has {empty}: [], which no answer can follow: give it values, or leave it out")
    try:
        reason = _why_not_text(json.dumps(schema))
    except TooLargeError:
        raise
    except RecursionError as error:
        if _why_not_matched(schema) is None:
            return None
        raise _too_much(what, schema) from error
    except (TypeError, ValueError):  # no JSON
        return None
    return None if reason is None or _why_not_matched(schema) is None else reason


def _has_empty(schema: Any, keyword: str) -> bool:
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and part.get(keyword) == []:
            return True
        if isinstance(part, (dict, list)):
            waiting += part.values() if isinstance(part, dict) else part
    return False


def _too_much(what: str, schema: Any) -> ValueError:
    """What the converter, which calls itself for each level and for each optional property, cannot follow."""
    levels, most, waiting = 0, 0, [(schema, 1)]
    while waiting:
        part, level = waiting.pop()
        levels = max(levels, level)
        if isinstance(part, dict) and isinstance(part.get("properties"), dict):
            required = part["required"] if isinstance(part.get("required"), list) else ()
            most = max(most, sum(name not in required for name in part["properties"]))
        if isinstance(part, (dict, list)):
            waiting += [(inner, level + 1) for inner in (part.values() if isinstance(part, dict) else part)]
    limit = f"which Python's recursion limit of {sys.getrecursionlimit()} does not let it follow"
    if most > levels:
        return ValueError(
            f"{what} has an object with {most} optional properties, {limit}: "
            'list in "required" what an answer always has, or split it'
        )
    return ValueError(f"{what} is nested too deeply, with {levels} levels, {limit}: give inner parts names in $defs")


@functools.lru_cache(maxsize=16)
def _why_not_text(schema: str) -> str | None:
    try:
        grammar_of_schema(schema)
    except (TooLargeError, RecursionError):
        raise
    except Exception as error:  # llama_cpp, too, takes whatever its converter raises
        return f"{type(error).__name__}: {ascii(str(error))[:_LONGEST_REASON]}"
    return None
