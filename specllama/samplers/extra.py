"""The samplers of llama-server that ``llama_cpp.Llama`` has no arguments for."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Sequence
from typing import Any

from specllama import _core
from specllama.backend.base_class import BaseLlama
from specllama.engine.limits import LARGEST_INT
from specllama.engine.vocabulary import sequence_breakers_of


@dataclasses.dataclass(frozen=True)
class Samplers:
    """Names, defaults and meanings are llama-server's. All are off unless asked for."""

    dry_multiplier: float = 0.0
    """DRY: a token that would go on with a repetition of n tokens loses dry_multiplier * dry_base ** (n -
    dry_allowed_length). 0: off."""
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    """How many tokens of prompt and text DRY sees; -1: all of them."""
    dry_sequence_breakers: Sequence[str] = ("\n", ":", '"', "*")
    """Texts behind which a repetition counts anew."""
    xtc_probability: float = 0.0
    """XTC: how often all but the least of the tokens that reach xtc_threshold are taken away. 0: off."""
    xtc_threshold: float = 0.1
    top_n_sigma: float = -1.0
    """Keeps the tokens within so many standard deviations of the largest logit; 0 or less: all."""
    dynatemp_range: float = 0.0
    """The temperature lies within so much of ``temperature``, by the entropy of what may come next; 0: fixed."""
    dynatemp_exponent: float = 1.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            kind = numbers.Integral if isinstance(field.default, int) else numbers.Real
            if field.name != "dry_sequence_breakers" and not isinstance(value, kind):
                wanted = "a whole number" if kind is numbers.Integral else "a number"
                raise TypeError(f"{field.name}={value!r} must be {wanted}, such as its default {field.default}")
            if kind is numbers.Integral and abs(value) > LARGEST_INT:
                raise ValueError(f"{field.name}={value} is out of range: it must be from -1 to {LARGEST_INT}")

    def breakers(self, llama: BaseLlama) -> _core.SequenceBreakers | None:
        """The sequence breakers in a Llama's tokens; None if DRY is off.

        Raises:
            TypeError: they are no texts.
            ValueError: an empty one, or one that is too long.
        """
        if not self.dry_multiplier:
            return None
        texts = self.dry_sequence_breakers
        if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
            raise TypeError(f"dry_sequence_breakers={texts!r} must be a list of texts, such as ['\\n', ':']")
        return sequence_breakers_of(llama, tuple(texts))

    def native(self, breakers: _core.SequenceBreakers | None) -> dict[str, Any]:
        """Arguments of ``_core.SamplerParams``."""
        return {
            "top_n_sigma": self.top_n_sigma,
            "xtc_probability": self.xtc_probability,
            "xtc_threshold": self.xtc_threshold,
            "dynatemp_range": self.dynatemp_range,
            "dynatemp_exponent": self.dynatemp_exponent,
            "dry": _core.DryParams(
                multiplier=self.dry_multiplier,
                base=self.dry_base,
                allowed_length=self.dry_allowed_length,
                penalty_last_n=self.dry_penalty_last_n,
                breakers=breakers,
            ),
        }

    def active(self) -> list[str]:
        """The names of those that do something."""
        found = {
            "dry_multiplier": self.dry_multiplier != 0,
            "xtc_probability": self.xtc_probability != 0,
            "top_n_sigma": self.top_n_sigma > 0,
            "dynatemp_range": self.dynatemp_range > 0,
        }
        return [name for name, is_active in found.items() if is_active]


SAMPLERS = tuple(field.name for field in dataclasses.fields(Samplers))
"""Their names, as arguments of the methods that generate."""


def taken_from(arguments: dict[str, Any]) -> dict[str, Any]:
    """Takes these samplers out of a call's arguments."""
    return {name: arguments.pop(name) for name in SAMPLERS if name in arguments}
