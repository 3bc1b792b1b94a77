"""Translates llama-server's fields that have another name here, and drops fields whose value asks for nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
"""llama-server's names of the samplers, in the order in which they are applied."""

_OFF: dict[str, dict[str, Any]] = {
    "penalties": {"repeat_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0},
    "dry": {"dry_multiplier": 0.0},
    "top_n_sigma": {"top_n_sigma": -1.0},
    "top_k": {"top_k": 0},
    "typ_p": {"typical_p": 1.0},
    "top_p": {"top_p": 1.0},
    "min_p": {"min_p": 0.0},
    "xtc": {"xtc_probability": 0.0},
    "temperature": {"temperature": 1.0, "dynatemp_range": 0.0},
}
_OTHER_NAMES = {"typical": "typ_p", "typical_p": "typ_p", "typ": "typ_p", "nucleus": "top_p", "temp": "temperature"}
_LETTERS = dict(zip("edskypmxt", ORDER, strict=True))


def _is_none(value: Any) -> bool:
    return not value and not isinstance(value, str)


def _is_negative(value: Any) -> bool:
    return isinstance(value, (int, float)) and value < 0


def _is_no_time(value: Any) -> bool:
    return isinstance(value, (int, float)) and value <= 0


ASKS_FOR_NOTHING: dict[str, tuple[Callable[[Any], bool], str]] = {
    "adaptive_target": (_is_negative, "adaptive sampling is not supported"),
    "lora": (_is_none, "adapters are given when the model is opened"),
    "min_keep": (_is_none, "there is no least number of candidates"),
    "n_indent": (_is_none, "lines may begin anywhere; /infill takes it and passes over it"),
    "post_sampling_probs": (_is_none, "log-probabilities are those before the samplers"),
    "t_max_predict_ms": (_is_no_time, "set max_tokens"),
}
"""Fields that are accepted only with a value that asks for nothing: its check, and why other values are refused."""


DOCUMENTED: dict[str, dict[str, Any]] = {
    "samplers": {
        "anyOf": [{"type": "array", "items": {"enum": list(ORDER)}}, {"type": "string"}],
        "description": "Those that are applied, in this order. The others do nothing.",
    },
    "n_probs": {"type": "integer", "minimum": 0, "description": "How many alternatives to each token; 0: none."},
    "n_predict": {"type": "integer", "minimum": -1, "description": "Another name of max_tokens."},
    "n_cmpl": {"type": "integer", "minimum": 1, "description": "Another name of n."},
    "mirostat": {"type": "integer", "minimum": 0, "maximum": 2, "description": "Another name of mirostat_mode."},
    "lora": {"type": "array", "maxItems": 0, "description": "Has no effect."},
    "min_keep": {"const": 0, "description": "Has no effect."},
    "n_indent": {"const": 0, "description": "Has no effect."},
    "post_sampling_probs": {"const": False, "description": "Has no effect."},
    "t_max_predict_ms": {"type": "integer", "maximum": 0, "description": "Has no effect."},
    "adaptive_target": {"type": "number", "exclusiveMaximum": 0, "description": "Has no effect."},
}
"""Entries in /openapi.json of llama-server's fields that are translated or dropped."""
DOCUMENTED_OF_CHATS: dict[str, dict[str, Any]] = {
    **DOCUMENTED,
    "json_schema": {"type": "object", "description": "What the answer must be: as response_format."},
    **{
        name: {"enum": [-1, 0], "description": "0: the model does not think, where the chat template reads it."}
        for name in ("thinking_budget_tokens", "reasoning_budget_tokens")
    },
}


def as_ours(body: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """Returns a body without nulls, in which llama-server's fields have our names.

    Args:
        body: a chat or completion request.
        is_chat: whether it is a chat request.

    Raises:
        ValueError: a field asks for something that is not supported.
    """
    plain = {name: value for name, value in body.items() if value is not None}
    for name in ASKS_FOR_NOTHING.keys() & plain.keys():
        asks_for_nothing, why = ASKS_FOR_NOTHING[name]
        if not asks_for_nothing(plain.pop(name)):
            raise ValueError(f'"{name}" is not supported: {why}; leave it out')
    if "samplers" in plain:
        plain.update(_without_samplers(plain.pop("samplers")))
    if "n_probs" in plain:
        plain.update(_logprobs(plain.pop("n_probs"), plain, is_chat=is_chat))
    return _of_chats(plain) if is_chat else plain


def samplers_named(given: Any) -> list[str]:
    """The samplers that a request asks for, by their names in `ORDER`.

    Raises:
        ValueError: a name is unknown, or the order is not ours.
    """
    names = [_LETTERS.get(letter, letter) for letter in given] if isinstance(given, str) else given
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError('"samplers" must be a list of names, or one text of their letters')
    known = [_OTHER_NAMES.get(name, name) for name in (name.replace("-", "_") for name in names)]
    for name in known:
        if name not in ORDER:
            raise ValueError(f'"samplers" has {name!r:.60}, which there is not: it may have {", ".join(ORDER)}')
    if known != [name for name in ORDER if name in known]:
        raise ValueError(f'"samplers" has another order than {", ".join(ORDER)}, which is fixed: send them in this one')
    return known


def _without_samplers(given: Any) -> dict[str, Any]:
    """Returns values that turn off the samplers that `given` does not name.

    Raises:
        ValueError: see `samplers_named`.
    """
    known = samplers_named(given)
    return {field: value for name in ORDER if name not in known for field, value in _OFF[name].items()}


def _logprobs(count: Any, body: Mapping[str, Any], *, is_chat: bool) -> dict[str, Any]:
    """Fields that ask for `count` alternatives to each token. If it is not a number, the field's type refuses it."""
    if count == 0 or "logprobs" in body:
        return {}
    return {"logprobs": True, "top_logprobs": count} if is_chat else {"logprobs": count}


def _of_chats(plain: dict[str, Any]) -> dict[str, Any]:
    if "json_schema" in plain:
        if "response_format" in plain:
            raise ValueError('"json_schema" and "response_format" each say what the answer must be: leave one out')
        plain["response_format"] = {"type": "json_object", "schema": any_object(plain.pop("json_schema"))}
    for name in ("thinking_budget_tokens", "reasoning_budget_tokens"):
        budget = plain.pop(name, -1)
        if budget == 0:
            plain["chat_template_kwargs"] = {"enable_thinking": False, **(plain.get("chat_template_kwargs") or {})}
        elif budget != -1:
            raise ValueError(f'"{name}" may be 0 (no thoughts) or -1 (any number): thoughts are not cut; leave it out')
    if plain.get("continue_final_message") in ("auto", "content"):  # the field's type refuses other texts
        plain["continue_final_message"] = True
    return plain


def any_object(schema: Any) -> Any:
    """The schema; for an empty schema, the schema of any object."""
    return {"type": "object"} if schema == {} else schema
