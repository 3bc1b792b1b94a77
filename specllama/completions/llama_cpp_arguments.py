"""Arguments of llama_cpp.Llama's methods: as its installed release declares them, plus those of ours."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from specllama.backend.base_class import BaseLlama
from specllama.engine.number_limits import LARGEST_INT, MOST_THREADS
from specllama.samplers import DEFAULTS
from specllama.warn import warn

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
_signature = functools.cache(inspect.signature)  # of methods of the base class: making one takes longer than a token
_KNOWN = {*SAMPLING, *_GENERATE, *_COMPLETION}
_RANGES = {
    "n_ctx": (0, LARGEST_INT),
    "n_batch": (1, LARGEST_INT),
    "n_ubatch": (1, LARGEST_INT),
    "n_threads": (0, MOST_THREADS),  # 0: llama_cpp's default
    "n_threads_batch": (0, MOST_THREADS),
}


def with_options(base: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """Decorator: the base method's signature and documentation, plus the arguments that are ours."""

    def decorate(method: _Method) -> _Method:
        functools.update_wrapper(method, base)
        signature = inspect.signature(base)
        ours = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in {"num_draft_tokens": None, "verify": None, **DEFAULTS}.items()
            if name not in signature.parameters  # of a release that has them as well
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
    signature = _signature(method)
    call = signature.bind(None, *args, **kwargs)  # None is self
    given = set(call.arguments)
    call.apply_defaults()
    arguments = dict(list(call.arguments.items())[1:])
    for name in arguments.keys() - _KNOWN:
        if name in given and arguments[name] != signature.parameters[name].default:
            raise TypeError(f"{name}={arguments[name]!r} is not known to this release of specllama: upgrade it")
    return arguments


def check_constructor(kwargs: dict[str, Any]) -> None:
    """Look at what goes on to llama_cpp.Llama's constructor, which ignores names that it does not know.

    Raises:
        ValueError: a size that would reach a GGML_ASSERT, which aborts the process.
    """
    known = [
        *inspect.signature(BaseLlama.__init__).parameters,
        "draft_kwargs",
        "lookup_corpus",
        "num_draft_tokens",
        "max_draft_tokens",
        "verify",
        "kernels",
    ]
    for name in kwargs.keys() - set(known):
        similar = difflib.get_close_matches(name, known, n=1)
        hint = f": did you mean {similar[0]}?" if similar else ""
        warn(f"Llama has no argument {name}, it is ignored{hint}")
    for name, (least, most) in _RANGES.items():
        value = kwargs.get(name)
        if value is not None and not least <= value <= most:
            raise ValueError(f"{name}={value} is out of range: it must be from {least} to {most}")


def check_draft_kwargs(draft_kwargs: Any) -> None:
    """Raises TypeError unless it is None or a dict with names."""
    named = isinstance(draft_kwargs, dict) and all(isinstance(name, str) for name in draft_kwargs)
    if draft_kwargs is not None and not named:
        raise TypeError(
            f"draft_kwargs={draft_kwargs!r:.100} must be a dict of the draft's constructor arguments, such as "
            "{'n_gpu_layers': 0}"
        )


def sampling_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters among the arguments of ``generate`` or ``create_completion``."""
    named = {**arguments, "temp": arguments.get("temp", arguments.get("temperature"))}
    return {name: named[name] for name in SAMPLING if name in named}
