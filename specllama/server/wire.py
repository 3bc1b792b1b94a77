"""What clients send, as our types have it: nulls left out, others' names, and what has no effect or is refused."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from specllama.drop_in.arguments import nearest
from specllama.drop_in.chat_arguments import as_llama_cpp_has_it, check_request, with_parameters

from .llama_fields import ASKS_FOR_NOTHING

WITHOUT_EFFECT = {
    # OpenAI's that mean nothing to one local model
    *("metadata", "moderation", "prompt_cache_key", "prompt_cache_options"),
    *("prompt_cache_retention", "safety_identifier", "service_tier", "store", "verbosity"),
    "modalities",  # of which only text is taken
    # llama-server's that say how the same answer is made, or what comes beside it
    *(
        "backend_sampling",
        "cache_prompt",
        "id_slot",
        "n_cache_reuse",
        "n_discard",
        "n_keep",
    ),
    *("return_tokens", "sse_ping_interval", "verbose"),
    *("adaptive_decay", "t_max_prompt_ms"),  # of what is refused, and what llama-server itself passes over
}
"""Fields that are taken and do nothing: the answer would be the same."""
REFUSED = {
    "audio": "an answer is text",
    "web_search_options": "nothing is searched for",
}
"""Fields that would make another answer, and why there is none."""
OTHER_NAMES = {"n_predict": "max_tokens", "n_cmpl": "n", "mirostat": "mirostat_mode"}
"""llama-server's names of fields, and ours. They win over ours."""

_LONGEST_NAME = 60
_MODES = ("auto", "required")


def plain_body(body: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """A body without nulls, which mean defaults, and by our names.

    Args:
        body: a request.
        known: the fields of all requests.

    Raises:
        ValueError: it has a field that is unknown, or that would need what we lack.
    """
    plain = without_nulls(body)
    for theirs in OTHER_NAMES.keys() & plain.keys():
        plain[OTHER_NAMES[theirs]] = plain.pop(theirs)
    if isinstance(plain.get("logit_bias"), (list, dict)):
        plain["logit_bias"] = _biases(plain["logit_bias"])
    if plain.get("modalities", ["text"]) != ["text"]:
        raise ValueError('"modalities" must be ["text"]: an answer is text')
    fields = {*known, *WITHOUT_EFFECT, *ASKS_FOR_NOTHING, "samplers", "n_probs"}
    for name in plain.keys() - fields:
        if name in REFUSED:
            raise ValueError(f'"{name}" is not supported: {REFUSED[name]}; leave it out')
        hint = nearest(name[:_LONGEST_NAME], sorted(fields)) or "; /openapi.json lists all fields"
        raise ValueError(f'there is no field "{name[:_LONGEST_NAME]}"{hint}')
    return plain


def _biases(given: list[Any] | dict[str, Any]) -> dict[str, Any]:
    """Biases by token: llama-server also takes a list of pairs, and false for never.

    Raises:
        ValueError: an entry of a list is no pair.
    """
    pairs = given if isinstance(given, list) else list(given.items())
    if not all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in pairs):
        raise ValueError('logit_bias must be an object {"TOKEN": BIAS, ...}, or a list of pairs [TOKEN, BIAS]')
    return {str(token): -math.inf if bias is False else bias for token, bias in pairs}


def chat_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The body of a chat in llama_cpp's form. What is malformed is left to the types.

    Raises:
        ValueError: a part of it has a field that is unknown, or a tool is chosen that is not there.
    """
    plain = without_nulls(body)
    for name in ("tools", "functions"):
        if isinstance(plain.get(name), list):
            plain[name] = [_without_inner_nulls(tool, "function") for tool in plain[name]]
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


def without_nulls(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is not null. Deeper nulls stay: in a schema they may be values."""
    return {name: value for name, value in given.items() if value is not None}


def _without_inner_nulls(given: Any, inner: str) -> Any:
    """A dict and one in it, both without nulls."""
    if not isinstance(given, dict):
        return given
    plain = without_nulls(given)
    return {**plain, inner: without_nulls(plain[inner])} if isinstance(plain.get(inner), dict) else plain


def _allowed_tools(body: dict[str, Any]) -> dict[str, Any]:
    """The tools that are left, and whether one must be called, where ``tool_choice`` names those that may be.

    Raises:
        ValueError: it names none, or one that is not there.
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
