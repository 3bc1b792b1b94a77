"""What a generation is asked for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from . import _core
from .limits import LARGEST_INT
from .options import Options
from .rules import RULES, STEPWISE


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
    max_tokens: int = LARGEST_INT
    reset: bool = True

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
        sampling = self.sampling
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
