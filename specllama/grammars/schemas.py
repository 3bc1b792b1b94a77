"""JSON schemas in chats. llama_cpp's chat handlers turn a schema into a grammar, and pass only the grammar on."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar

from specllama.warn import warn

from .schema import NotEnforcedError, SchemaGrammar, matched_schema
from .schema_converter import TooLargeError, grammar_of_schema
from .schema_limits import dicts

_ALTERNATIVES = ("enum", "anyOf", "oneOf")


def warn_of_schemas(options: Mapping[str, Any]) -> None:
    """Warn if the answer of a chat may not follow its schema.

    Args:
        options: the keyword arguments of ``create_chat_completion``, which itself reports malformed arguments.

    Raises:
        ValueError: a schema is nested too deeply, or no answer can follow it.
    """
    reason = why_not_enforced(options)
    if reason is not None:
        warn(f"{reason}; the answer may not follow all of it: simplify it, or check the answer")


def with_grammar_of_format(options: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a chat, with a grammar in place of the schema in ``response_format``.

    llama_cpp's chat handlers pass a grammar on unchanged. Of a schema they would make a grammar themselves, which takes
    all memory for some schemas.

    Args:
        options: the keyword arguments of ``create_chat_completion``.

    Raises:
        ValueError: a schema is nested too deeply; or llguidance cannot follow it, and its grammar would take all
            memory.
    """
    given = dict(options)
    for _, text in _format(options):
        try:
            matched = matched_schema(text)
            grammar: LlamaGrammar = SchemaGrammar(matched, matched)
        except NotEnforcedError:
            grammar = LlamaGrammar(_grammar=_gbnf(text))
        given.update(grammar=grammar, response_format=None)
    return given


def schemas_by_grammar(options: Mapping[str, Any]) -> dict[str, SchemaGrammar]:
    """The tools' schemas that can be enforced, by the text of the grammar that llama_cpp makes of each schema.

    The caller finds a schema again by this text, because llama_cpp's chat handlers pass only the grammar on.

    Raises:
        ValueError: a schema is nested too deeply, or its grammar would take all memory.
    """
    found: dict[str, SchemaGrammar | None] = {}
    for _, text in _of_tools(options):
        gbnf = _gbnf(text)
        try:
            schema = SchemaGrammar(gbnf, matched_schema(text))
        except NotEnforcedError:
            schema = None
        found.setdefault(gbnf, schema)  # if several schemas have the same grammar, the first is taken
    return {gbnf: schema for gbnf, schema in found.items() if schema is not None}


def why_not_enforced(options: Mapping[str, Any]) -> str | None:
    """Why a schema in the arguments of a chat cannot be enforced; None if all can, or there is none.

    Args:
        options: the keyword arguments of ``create_chat_completion``.

    Raises:
        ValueError: a schema is nested too deeply, or no answer can follow it.
    """
    for what, text in (*_of_tools(options), *_format(options)):
        try:
            matched_schema(text)
        except NotEnforcedError as error:
            parts = list(dicts(json.loads(text)))
            empty = next((name for name in _ALTERNATIVES for part in parts if part.get(name) == []), None)
            if empty is not None:
                raise ValueError(
                    f"{what} has {empty}: [], which no answer can follow: give it values, or leave it out"
                ) from None
            return f"{what} cannot be enforced: {error}"
    return None


def _gbnf(text: str) -> str:
    """The grammar that llama_cpp makes of a schema. If its converter fails, llama_cpp takes the grammar of any JSON."""
    try:
        return grammar_of_schema(text)
    except TooLargeError:
        raise
    except Exception:  # as llama_cpp does
        return JSON_GBNF


def _of_tools(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """For each tool that `_chosen` gives: a name of the schema for messages, and the schema as JSON."""
    for tool in _chosen(options):
        yield from _as_json(f"the schema of the tool {tool['name']!r:.100}", tool.get("parameters"))


def _format(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The schema of ``response_format``, in the same form; nothing if a tool has to be called instead."""
    answer = options.get("response_format")
    if isinstance(answer, dict) and answer.get("type") == "json_object" and not _chosen(options):
        yield from _as_json("the schema of response_format", answer.get("schema"))


def _as_json(what: str, schema: Any) -> Iterator[tuple[str, str]]:
    try:
        text = json.dumps(schema)
    except RecursionError:
        raise ValueError(f"{what} is nested too deeply: give inner parts names in $defs") from None
    except (TypeError, ValueError):  # it is no JSON: llama_cpp raises an error later
        return
    if schema is not None:
        yield what, text


def _chosen(options: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The functions (tools) of which the answer has to call one; empty if it does not have to call any."""
    tools = [tool.get("function") for tool in options.get("tools") or () if isinstance(tool, dict)]
    given = [each for each in (*(options.get("functions") or ()), *tools) if isinstance(each, dict) and "name" in each]
    if options.get("tool_choice") == "required":
        return given
    choice = options.get("function_call")  # OpenAI's older form of ``tool_choice``
    if not isinstance(choice, dict):
        tool = options.get("tool_choice")
        choice = tool.get("function") if isinstance(tool, dict) else None
    name = choice.get("name") if isinstance(choice, dict) else None
    return [function for function in given if name is not None and function["name"] == name][:1]
