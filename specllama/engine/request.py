"""What a generation is asked for."""

from __future__ import annotations

import dataclasses
import numbers
from collections.abc import Callable, Sequence
from typing import Any

from specllama import _core

from .number_limits import LARGEST_INT
from .options import Options
from .rules import RULES, STEPWISE

_WHOLE = ("top_k", "mirostat_mode")
_MIROSTATS = (0, 1, 2)


def checked_bias(given: Any, n_vocab: int) -> dict[int, float]:
    """``logit_bias`` by token.

    Raises:
        TypeError: no dict of numbers.
        ValueError: a key that is no token of the vocabulary.
    """
    if not isinstance(given, dict):
        raise TypeError(f"logit_bias={given!r:.100} must be a dict from token ids to what is added to their logits")
    found = {}
    for token, bias in given.items():
        try:
            number = int(token)
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias: {token!r:.100} is no token id: give numbers, such as llm.tokenize() gives of a text"
            ) from None
        if not 0 <= number < n_vocab:
            raise ValueError(
                f"logit_bias: token {number} is out of range: the vocabulary has the tokens 0 to {n_vocab - 1}"
            )
        if isinstance(bias, bool) or not isinstance(bias, numbers.Real):
            raise TypeError(f"logit_bias: {bias!r:.100} for token {number} must be a number")
        found[number] = float(bias)
    return found


def checked_callables(name: str, given: Any) -> list[Callable[..., Any]]:
    """``logits_processor`` or ``stopping_criteria``: one function, a list of them, or None.

    Raises:
        TypeError: anything else.
    """
    functions = [given] if callable(given) and not isinstance(given, list) else given or []
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        raise TypeError(f"{name}={given!r:.100} must be a function, or a list of functions")
    return list(functions)


def checked_sampling(sampling: dict[str, Any]) -> dict[str, Any]:
    """The sampling parameters, each of them a number that fits.

    Raises:
        TypeError: one that is no number.
        ValueError: one that does not fit, or a mode of mirostat that does not exist.
    """
    for name, value in sampling.items():
        if name == "penalize_nl":  # a flag, and without effect in llama_cpp
            continue
        if not isinstance(value, numbers.Integral if name in _WHOLE else numbers.Real):
            raise TypeError(f"{_SHOWN.get(name, name)}={value!r:.100} must be a {'whole ' * (name in _WHOLE)}number")
        if isinstance(value, numbers.Integral) and name in _WHOLE and abs(int(value)) > LARGEST_INT:
            raise ValueError(f"{name}={value} is out of range: it must be at most {LARGEST_INT}")
    if sampling["mirostat_mode"] not in _MIROSTATS:
        raise ValueError(f"mirostat_mode={sampling['mirostat_mode']} must be 0 (off), 1 or 2")
    return sampling


_SHOWN = {"temp": "temperature"}


@dataclasses.dataclass(frozen=True)
class Request:
    """What to generate. Sampling parameters have llama_cpp's names and meanings."""

    tokens: Sequence[int]
    options: Options
    seed: int
    seed_given: bool
    sampling: dict[str, Any]
    logit_bias: dict[int, float] = dataclasses.field(default_factory=dict)
    logits_processor: Any = None
    grammar: Any = None
    stopping_criteria: Any = None
    wants_logits: bool = False
    max_tokens: int = LARGEST_INT
    reset: bool = True

    @property
    def keeps_logits(self) -> bool:
        """Whether somebody looks at the logits of a token after it is out."""
        return self.wants_logits or bool(self.stopping_criteria)

    def fallback_reason(self) -> str | None:
        """What of this cannot be applied exactly under speculation yet."""
        if self.sampling["mirostat_mode"] in (1, 2) and self.sampling["temp"] > 0:
            return "mirostat is applied by llama.cpp's sampler"
        return None

    def rule(self) -> str:
        """The acceptance rule.

        A rule that decides on the whole draft asks for p behind drafts that are then rejected, which a logits processor
        that remembers its calls would not survive: one that decides in steps takes its place.
        """
        rule = self.options.rule(self.seed_given)
        return STEPWISE if self.logits_processor and not RULES[rule].decides_in_steps else rule

    def native_sampler(
        self, penalty_last_n: int, breakers: _core.SequenceBreakers | None = None
    ) -> _core.SamplerParams:
        """The parameters of the native sampler chain. `breakers`: what DRY needs of the vocabulary.

        Raises:
            ValueError: a value that has no meaning, such as NaN.
        """
        sampling = checked_sampling(self.sampling)
        active = self.options.samplers.active()
        if active and self.fallback_reason():
            raise ValueError(
                f"mirostat_mode={sampling['mirostat_mode']} and {active[0]} together: mirostat is a sampler of its "
                "own, and would ignore it; switch one of them off"
            )
        return _core.SamplerParams(
            temperature=sampling["temp"],
            top_k=sampling["top_k"],
            top_p=sampling["top_p"],
            min_p=sampling["min_p"],
            typical_p=sampling["typical_p"],
            repeat_penalty=sampling["repeat_penalty"],
            frequency_penalty=sampling["frequency_penalty"],
            presence_penalty=sampling["presence_penalty"],
            penalty_last_n=penalty_last_n,
            logit_bias=self.logit_bias,
            **self.options.samplers.native(breakers),
        )
