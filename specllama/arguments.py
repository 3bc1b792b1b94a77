"""Arguments of llama_cpp.Llama's methods: as its installed release declares them, plus those of ours."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_Method = TypeVar("_Method", bound=Callable[..., Any])

SAMPLING = (
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "temp",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "tfs_z",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "penalize_nl",
)
"""The parameters of ``llama_cpp.Llama._init_sampler`` that are numbers."""

_GENERATE = {"tokens", "reset", "logits_processor", "stopping_criteria", "grammar"}
_COMPLETION = {
    "prompt",
    "suffix",
    "max_tokens",
    "temperature",
    "logprobs",
    "echo",
    "stop",
    "stream",
    "seed",
    "model",
    "stopping_criteria",
    "logits_processor",
    "grammar",
    "logit_bias",
}
_KNOWN = {*SAMPLING, *_GENERATE, *_COMPLETION}


def with_options(base: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Decorator: the base method's signature and documentation, plus ``num_draft_tokens`` and ``verify``."""

    def decorate(method: _Method) -> _Method:
        functools.update_wrapper(method, base)
        signature = inspect.signature(base)
        ours = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None)
            for name in ("num_draft_tokens", "verify")
        ]
        parameters = [*signature.parameters.values(), *ours]
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


def bound(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, with the method's defaults.

    Raises:
        TypeError: not a call of the method, or one that uses a parameter of a newer llama-cpp-python that specllama
            does not know: it must not be ignored.
    """
    signature = inspect.signature(method)
    call = signature.bind(None, *args, **kwargs)  # None is self
    given = set(call.arguments)
    call.apply_defaults()
    arguments = dict(list(call.arguments.items())[1:])
    for name in arguments.keys() - _KNOWN:
        if name in given and arguments[name] != signature.parameters[name].default:
            raise TypeError(f"{name}={arguments[name]!r} is not known to this release of specllama: upgrade it")
    return arguments


def sampling_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters among the arguments of ``generate`` or ``create_completion``."""
    named = {**arguments, "temp": arguments.get("temp", arguments.get("temperature"))}
    return {name: named[name] for name in SAMPLING if name in named}
