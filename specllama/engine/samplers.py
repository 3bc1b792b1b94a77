"""The sampling parameters, and the samplers of llama-server for which ``llama_cpp.Llama`` has no arguments."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

from specllama import _core
from specllama.backend.brief import brief

from .limits import LARGEST_FLOAT, LARGEST_INT
from .model import Model
from .vocabulary import sequence_breakers_of

_NUMBERS = {sampler.name: sampler for sampler in _core.server_samplers()}

DEFAULTS: Mapping[str, Any] = {
    **{name: sampler.default for name, sampler in _NUMBERS.items()},
    "dry_sequence_breakers": ("\n", ":", '"', "*"),
}
"""The defaults of llama-server's samplers: all of them are off."""

SAMPLERS = tuple(DEFAULTS)
"""The names of llama-server's samplers, as arguments of the methods that generate."""

CHAIN: Mapping[str, Any] = {
    "temperature": 0.8,
    "top_k": 40,
    "top_p": 0.95,
    "min_p": 0.05,
    "typical_p": 1.0,
    "repeat_penalty": 1.0,
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "penalty_last_n": 64,
}
"""The other sampling parameters, with ``llama_cpp.Llama``'s defaults."""
_WHOLE = ("top_k", "penalty_last_n", "mirostat_mode")


def check_numbers(values: Mapping[str, Any]) -> None:
    """Check sampling parameters.

    Raises:
        TypeError: a value is no number, or no whole number where it must be.
        ValueError: a value is too large.
    """
    for name, value in values.items():
        if not isinstance(value, numbers.Integral if name in _WHOLE else numbers.Real):
            raise TypeError(f"{name}={brief(value)} must be a {'whole ' * (name in _WHOLE)}number")
        if isinstance(value, numbers.Integral):  # floats are checked where they are used
            if name not in _WHOLE:
                require_finite(name, value)
            elif abs(int(value)) > LARGEST_INT:
                raise ValueError(f"{name}={brief(value)} is out of range: it must be at most {LARGEST_INT}")


def require_finite(name: str, value: Any) -> None:
    """Check that a number fits into a float of C.

    Raises:
        ValueError: the number is too large, infinite or NaN.
    """
    if not abs(value) <= LARGEST_FLOAT:
        raise ValueError(f"{name}={brief(value)} is not a usable value: it must be a finite number, at most 3.4e38")


@dataclasses.dataclass(frozen=True)
class Samplers:
    """The values of llama-server's samplers, by llama-server's names. All are off by default."""

    values: Mapping[str, Any] = dataclasses.field(default_factory=lambda: DEFAULTS)

    def overridden(self, given: Mapping[str, Any]) -> Samplers:
        """A copy in which the given values, by name, replace the present ones.

        Raises:
            TypeError: a value is not a number.
            ValueError: a value is out of range.
        """
        for name, value in given.items():
            if name in _NUMBERS:
                _check(name, value)
        return Samplers({**self.values, **given})

    def breakers(self, model: Model) -> _core.SequenceBreakers | None:
        """DRY's sequence breakers in a model's tokens; None if DRY is off.

        Raises:
            TypeError: the breakers are not texts.
            ValueError: a text is empty or too long.
        """
        if not self.values["dry_multiplier"]:
            return None
        texts = self.values["dry_sequence_breakers"]
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"dry_sequence_breakers={brief(texts)} must be a list of texts, such as ['\\n', ':']")
        return sequence_breakers_of(model, tuple(texts))

    def native(self, breakers: _core.SequenceBreakers | None) -> dict[str, Any]:
        """These samplers as arguments of ``_core.SamplerParams``."""
        return {"dry_breakers": breakers, **{name: self.values[name] for name in _NUMBERS}}

    def active(self) -> list[str]:
        """The names of the values that switch a sampler on, such as ``dry_multiplier`` above 0."""
        return [name for name, sampler in _NUMBERS.items() if sampler.switches and self.values[name] > 0]


def _check(name: str, value: Any) -> None:
    default = DEFAULTS[name]
    kind = numbers.Integral if isinstance(default, int) else numbers.Real
    if not isinstance(value, kind):
        wanted = "a whole number" if kind is numbers.Integral else "a number"
        raise TypeError(f"{name}={brief(value)} must be {wanted}, such as its default {default}")
    if isinstance(value, numbers.Integral):
        if kind is numbers.Real:
            require_finite(name, value)
        elif abs(int(value)) > LARGEST_INT:
            raise ValueError(f"{name}={brief(value)} is out of range: it must be from -1 to {LARGEST_INT}")


def taken_from(arguments: dict[str, Any]) -> dict[str, Any]:
    """Remove llama-server's samplers from a call's arguments, and return them."""
    return {name: arguments.pop(name) for name in SAMPLERS if name in arguments}
