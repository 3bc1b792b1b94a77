"""The arguments of ``llama_cpp.Llama``'s methods, as the installed release declares them, and our additional ones."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, TypeVar

from specllama.backend.brief import brief
from specllama.engine.samplers import CHAIN, DEFAULTS, check_numbers, require_finite
from specllama.engine.sizes import check_sizes

from .base_class import BaseLlama

_Method = TypeVar("_Method", bound=Callable[..., Any])

SAMPLING = (
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "temperature",
    "repeat_penalty",
    "frequency_penalty",
    "presence_penalty",
    "tfs_z",
    "mirostat_mode",
    "mirostat_tau",
    "mirostat_eta",
    "penalize_nl",
)
"""The numeric parameters of ``llama_cpp.Llama._init_sampler``, which calls the temperature ``temp``."""

_GENERATE = {"tokens", "temp", "reset", "logits_processor", "stopping_criteria", "grammar"}
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
_NEAR = 0.8  # difflib's measure of similarity: two names that differ in meaning reach up to 0.7
_LEAST_BEGINNING = 4  # letters; a shorter beginning of a known name does not hint at that name
_signature = functools.cache(inspect.signature)  # inspecting a method takes longer than decoding a token
_KNOWN = {*SAMPLING, *_GENERATE, *_COMPLETION, "idx"}
_MIROSTATS = (0, 1, 2)
# The penalties, each with the value that switches it off.
_PENALTIES = {name: CHAIN[name] for name in ("repeat_penalty", "frequency_penalty", "presence_penalty")}
OURS = {
    **{"num_draft_tokens": None, "verify": None, "min_tokens": 0, "prediction": None, "learn": True},
    **DEFAULTS,
}
"""Our own arguments of the methods that generate, with their defaults."""
_OF_OLD_RELEASES = {"f16_kv", "low_vram", "mul_mat_q", "n_gqa", "n_parts", "rms_norm_eps"}
"""Constructor arguments of early releases that other software (LangChain) still gives. They have no effect."""


def with_options(base: Callable[..., Any], **more: Any) -> Callable[[_Method], _Method]:
    """A decorator that gives a method the base method's signature and documentation, and our arguments in addition.

    Args:
        base: the base method.
        more: further arguments of this method alone, with their defaults.
    """

    def decorate(method: _Method) -> _Method:
        functools.update_wrapper(method, base)
        signature = inspect.signature(base)
        defaults = {**OURS, **more}
        ours = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for name, default in defaults.items()
            if name not in signature.parameters  # newer releases may have some of these themselves
        ]
        parameters = [*signature.parameters.values(), *ours]
        method.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        return method

    return decorate


def declared_as(base: Callable[..., Any]) -> Callable[[_Method], _Method]:
    """A decorator that gives a method the base method's signature and documentation."""

    def decorate(method: _Method) -> _Method:
        functools.update_wrapper(method, base)
        return method

    return decorate


def bound(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name, completed with the method's defaults.

    Raises:
        TypeError: the arguments do not fit the method, or one is of a newer llama-cpp-python and unknown to this
            release of specllama.
    """
    signature = _signature(method)
    call = signature.bind(None, *args, **kwargs)  # None stands for self
    given = set(call.arguments)
    call.apply_defaults()
    arguments = dict(list(call.arguments.items())[1:])
    for name in arguments.keys() - _KNOWN:
        if name in given and arguments[name] != signature.parameters[name].default:
            raise TypeError(f"{name}={arguments[name]!r} is not known to this release of specllama: upgrade it")
    return arguments


def given_to(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call that the caller has given, by name.

    Raises:
        TypeError: the arguments do not fit the method.
    """
    return dict(list(_signature(method).bind(None, *args, **kwargs).arguments.items())[1:])


def completed(method: Callable[..., Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The given arguments, completed with the method's defaults."""
    parameters = _signature(method).parameters.values()
    defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **given}


def names_of(method: Callable[..., Any]) -> Set[str]:
    """The names of a method's arguments."""
    return _signature(method).parameters.keys() - {"self"}


def checked_stops(stop: Any) -> list[str]:
    """The stop strings as a list, without empty ones.

    Raises:
        TypeError: `stop` is neither a string nor a list of strings.
    """
    texts = [stop] if isinstance(stop, str) else stop or []
    if not isinstance(texts, (list, tuple, set)) or not all(text is None or isinstance(text, str) for text in texts):
        raise TypeError(
            f"stop={stop!r:.100} must be a text or a list of texts: the answer ends before the first of them"
        )
    return [text for text in texts if text]


def check_constructor(kwargs: dict[str, Any]) -> None:
    """Check the arguments for ``llama_cpp.Llama``'s constructor, which ignores unknown names.

    Raises:
        TypeError: neither specllama nor the installed llama_cpp knows the argument, or it must be a number and is none.
        ValueError: a size would reach a ``GGML_ASSERT``, which aborts the process.
    """
    ours = ("draft_kwargs", "lookup_corpus", "num_draft_tokens", "max_draft_tokens", "verify", "kernels")
    more = ("draft_vocabulary", "draft_mask_token", "draft_window", "max_parallel", "cache_tokens")
    kept = ("cache_ram", "cache_dir", "cache_disk", "learn", "learn_disk")
    _check_names("Llama", kwargs, {*_of_constructor(), *ours, *more, *kept})
    check_sizes(kwargs)


def check_draft_kwargs(draft_kwargs: Mapping[str, Any]) -> None:
    """Check the constructor arguments of a draft that is given by its path.

    Raises:
        TypeError: the argument is unknown, or must be a number and is none.
        ValueError: a size would reach a ``GGML_ASSERT``, which aborts the process.
    """
    _check_names("the draft", draft_kwargs, {*_of_constructor(), "kernels", "draft_model"} - {"model_path"})
    check_sizes(draft_kwargs)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint at the name that was probably meant, for the end of a message; empty if no name is near.

    A known name is near if it differs in a letter or two, or if no other known name begins with the given name.
    """
    names = list(known)
    longer = [other for other in names if len(name) >= _LEAST_BEGINNING and other.startswith(name)]
    similar = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR) or (longer if len(longer) == 1 else [])
    return f": did you mean {similar[0]}?" if similar else ""


def _of_constructor() -> set[str]:
    parameters = _signature(BaseLlama.__init__).parameters.values()
    return {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD} - {"self"}


def _check_names(whose: str, kwargs: Mapping[str, Any], known: set[str]) -> None:
    for name in kwargs.keys() - known - _OF_OLD_RELEASES:
        hint = nearest(name, sorted(known)) or "; help(llama_cpp.Llama) lists those of the installed release"
        raise TypeError(f"{whose} has no argument {name}{hint}")


def chain_of(sampling: dict[str, Any]) -> dict[str, Any]:
    """Those of the given sampling parameters that our own sampler chain has."""
    return {name: value for name, value in sampling.items() if name in CHAIN}


def sampling_of(arguments: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters among the arguments of ``generate`` or ``create_completion``, checked.

    Raises:
        TypeError: a parameter is no number.
        ValueError: a number is too large, the mode of mirostat does not exist, or llama.cpp no longer has the sampler
            (llama_cpp takes such a parameter and ignores it).
    """
    named = {**arguments, "temperature": arguments.get("temperature", arguments.get("temp"))}
    sampling = {name: named[name] for name in SAMPLING if name in named}
    check_numbers({name: value for name, value in sampling.items() if name != "penalize_nl"})  # penalize_nl is a flag
    if sampling["mirostat_mode"] not in _MIROSTATS:
        raise ValueError(f"mirostat_mode={brief(sampling['mirostat_mode'])} must be 0 (off), 1 or 2")
    for name in ("mirostat_tau", "mirostat_eta"):
        require_finite(name, sampling[name])
    if sampling.get("tfs_z", 1.0) < 1:
        raise ValueError(
            f"tfs_z={brief(sampling['tfs_z'])} has no effect: llama.cpp has no tail-free sampling any more; leave it "
            "out, and take min_p or typical_p instead"
        )
    if not sampling.get("penalize_nl", True) and any(sampling[name] != off for name, off in _PENALTIES.items()):
        raise ValueError(
            "penalize_nl=False has no effect: llama.cpp's penalties now include newlines; leave it out, or give "
            "newlines a logit_bias"
        )
    return sampling
