"""Converts clients' requests to the form of our types: nulls, other names, and fields without effect or refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.chat import as_llama_cpp_has_it, check_request, with_parameters
from specllama.drop_in import nearest

from .llama_fields import ASKS_FOR_NOTHING
from .said import say_once

OF_CLIENTS = (
    "cache_control",
    "client_metadata",
    "include_reasoning",
    "provider",
    "session_id",
    "trace",
    "transforms",
    "usage",
)
"""Fields for a client's own service, such as Codex's and OpenRouter's, which coding agents send to any server."""
_INSIDE = ("cache_control", "reasoning_details")
"""Fields for a client's own service inside messages and tools."""
WITHOUT_EFFECT = {
    # fields of OpenAI that mean nothing for one local model
    *("metadata", "moderation", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "verbosity"),
    "modalities",  # only text is accepted
    *OF_CLIENTS,
    # fields of llama-server about how the same answer is computed, or what is sent beside it
    *(
        "backend_sampling",
        "cache_prompt",
        "id_slot",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
    ),
    *("return_tokens", "sse_ping_interval", "verbose"),
    *("adaptive_decay", "t_max_prompt_ms"),  # the first belongs to a refused field; llama-server ignores the second
}
"""Fields that are accepted and have no effect: the answer would be the same."""
REFUSED = {
    "audio": "an answer is text",
    "web_search_options": "nothing is searched for",
}
"""Fields that would change the answer, and why they are refused."""
OTHER_NAMES = {"n_predict": "max_tokens", "n_cmpl": "n", "mirostat": "mirostat_mode"}
"""llama-server's names of fields, and ours. If both are given, the value under llama-server's name is used."""

_LONGEST_NAME = 60
_MODES = ("auto", "required")


def plain_body(body: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Returns a body with our names and without nulls, which mean defaults.

    Args:
        body: a request.
        known: the names of the fields of all requests.

    Raises:
        ValueError: a field is unknown, or not supported.
    """
    plain = without_nulls(body)
    for theirs in OTHER_NAMES.keys() & plain.keys():
        plain[OTHER_NAMES[theirs]] = plain.pop(theirs)
    if isinstance(plain.get("logit_bias"), (list, dict)):
        plain["logit_bias"] = _biases(plain["logit_bias"])
    if plain.get("modalities", ["text"]) != ["text"]:
        raise ValueError('"modalities" must be ["text"]: an answer is text')
    for name in plain.keys() & {*OF_CLIENTS}:
        _pass_over(name)
    fields = {*known, *WITHOUT_EFFECT, *ASKS_FOR_NOTHING, "samplers", "n_probs"}
    for name in plain.keys() - fields:
        if name in REFUSED:
            raise ValueError(f'"{name}" is not supported: {REFUSED[name]}; leave it out')
        hint = nearest(name[:_LONGEST_NAME], sorted(fields)) or "; /openapi.json lists all fields"
        raise ValueError(f'there is no field "{name[:_LONGEST_NAME]}"{hint}')
    return plain


def _pass_over(name: str) -> None:
    say_once(f'"{name}" has no effect here: it is a field of a client for its own service')


def _without_clients(given: Any) -> Any:
    """A message or a tool without fields for a client's own service."""
    found = [name for name in _INSIDE if isinstance(given, dict) and name in given]
    for name in found:
        _pass_over(name)
    return {name: value for name, value in given.items() if name not in _INSIDE} if found else given


def _biases(given: list[Any] | dict[str, Any]) -> dict[str, Any]:
    """Biases by token. llama-server also accepts a list of pairs, and false for a token that must not come.

    Raises:
        ValueError: an entry of a list is not a pair.
    """
    pairs = given if isinstance(given, list) else list(given.items())
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise ValueError('logit_bias must be an object {"TOKEN": BIAS, ...}, or a list of pairs [TOKEN, BIAS]')
    return {str(token): -math.inf if bias is False else bias for token, bias in pairs}


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat in llama_cpp's form. The types of the fields refuse malformed values later.

    Raises:
        ValueError: a part of the body has an unknown field, or the chosen tool is not in the request.
    """
    plain = without_nulls(body)
    for name in ("messages", "tools"):
        if isinstance(plain.get(name), list):
            plain[name] = [_without_clients(each) for each in plain[name]]
    for name in ("tools", "functions"):
        if isinstance(plain.get(name), list):
            plain[name] = [_without_inner_nulls(tool, "function") for tool in plain[name] if not is_others(tool)]
    if "response_format" in plain:
        plain["response_format"] = _without_inner_nulls(plain["response_format"], "json_schema")
    check_request(plain)
    plain.update(_allowed_tools(plain))
    return without_nulls(
        {
            **plain,
            "response_format": as_llama_cpp_has_it(plain.get("response_format")),
            "tools": with_parameters(plain.get("tools")),
        }
    )


def is_others(tool: Any) -> bool:
    """Whether a tool is no function, but one that another server would run. Such a tool is left out."""
    return isinstance(tool, dict) and isinstance(tool.get("type"), str) and tool["type"] != "function"


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """The values that are not null. Deeper nulls stay, because they may be values of a schema."""
    return {name: value for name, value in given.items() if value is not None}


def _without_inner_nulls(given: Any, inner: str) -> Any:
    """A dict and the dict at `inner`, both without nulls."""
    if not isinstance(given, dict):
        return given
    plain = without_nulls(given)
    return {**plain, inner: without_nulls(plain[inner])} if isinstance(plain.get(inner), dict) else plain


def _allowed_tools(body: dict[str, Any]) -> dict[str, Any]:
    """The fields ``tools`` and ``tool_choice``, if ``tool_choice`` is a list of allowed tools; else no fields.

    Raises:
        ValueError: the list is empty or malformed, or names a tool that is not in the request.
    """
    choice = body.get("tool_choice")
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return {}
    allowed = choice.get("allowed_tools")
    named = allowed.get("tools") if isinstance(allowed, dict) else None
    if not isinstance(allowed, dict) or allowed.get("mode") not in _MODES or not isinstance(named, list) or not named:
        form = '{"mode": "auto" or "required", "tools": [{"type": "function", "function": {"name": ...}}, ...]}'
        raise ValueError(f"tool_choice of type allowed_tools needs allowed_tools, an object: {form}")
    tools = body.get("tools") if isinstance(body.get("tools"), list) else []
    by_name = {_name_of(tool): tool for tool in tools or ()}
    for name in map(_name_of, named):
        if name is None or name not in by_name:
            raise ValueError(f"tool_choice allows the tool {name!r:.60}, which is not among the tools: give it there")
    return {"tools": [by_name[name] for name in dict.fromkeys(map(_name_of, named))], "tool_choice": allowed["mode"]}


def _name_of(tool: Any) -> str | None:
    function = tool.get("function") if isinstance(tool, dict) else None
    name = function.get("name") if isinstance(function, dict) else None
    return name if isinstance(name, str) else None
