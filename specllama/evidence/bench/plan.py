"""The plan of a benchmark, which is checked before a model is loaded."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from specllama.engine import VERIFY, NumDraftTokens, checked_num_draft_tokens, checked_seed, is_independent_of_draft
from specllama.evidence.plan import require_at_least
from specllama.prompts import Prompt

from .synthetic import SYNTHETIC, Synthetic

_FORMS = f"plain, auto, RULE or RULE:GAMMA, as in block:4, where RULE is one of {', '.join(VERIFY)}"

_OF_SYNTHETIC = ("plain", "auto:1", "auto:2", "auto:4", "auto:8")


@dataclasses.dataclass(frozen=True)
class Mode:
    """A way of decoding: the settings of the Llama that it overrides."""

    name: str
    """The name, as the user wrote it."""
    num_draft_tokens: NumDraftTokens | None = None
    """Gamma; 0 is plain decoding, None the Llama's own value."""
    verify: str | None = None
    """The acceptance rule; None is the Llama's own."""

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Read ``plain``, ``auto`` (what the Llama itself is set to), ``RULE`` or ``RULE:GAMMA``.

        Raises:
            ValueError: no such mode, or a gamma out of range.
        """
        name = text.strip()
        rule, separator, gamma = name.partition(":")
        if name == "plain":
            return cls(name, num_draft_tokens=0)
        if name == "auto":
            return cls(name)
        if rule not in VERIFY or (separator and not (gamma.isascii() and gamma.isdecimal())):
            raise ValueError(f"unknown mode {text!r}: use {_FORMS}")
        if not separator:
            return cls(name, verify=rule)
        if int(gamma) == 0:
            raise ValueError(f"mode {text!r} drafts nothing: give at least 1 token, or the mode `plain`")
        return cls(name, checked_num_draft_tokens(int(gamma)), rule)

    @property
    def is_plain(self) -> bool:
        """Whether the mode decodes without a draft."""
        return self.num_draft_tokens == 0

    def synthetic(self, temperature: float, seed: int | None) -> Mode:
        """This mode with a synthetic draft, which is added to its name.

        Raises:
            ValueError: the mode has no number of drafted tokens, or with its rule the text depends on the draft.
        """
        if self.is_plain:
            return self
        if self.num_draft_tokens is None or self.verify is None:
            raise ValueError(
                f"mode {self.name!r} of a synthetic draft: only what is measured can say how many tokens pay; give "
                "RULE:GAMMA, as in auto:4"
            )
        is_known = seed is not None and (self.verify == "auto" or is_independent_of_draft(self.verify))
        if temperature > 0 and not is_known:
            raise ValueError(
                f"mode {self.name!r} of a synthetic draft: it must know a text that no draft changes; give "
                "temperature 0 (--temp), or a seed and the rule coupled"
            )
        return dataclasses.replace(self, name=f"{self.name} {SYNTHETIC}")

    def options(self) -> dict[str, Any]:
        """The keyword arguments of ``create_completion`` that the mode overrides."""
        chosen = {"num_draft_tokens": self.num_draft_tokens, "verify": self.verify}
        return {name: value for name, value in chosen.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The modes, lengths and sampling of a benchmark. ``Plan.checked`` makes one."""

    modes: tuple[Mode, ...]
    """The modes. Plain decoding is always among them, and comes first unless the caller has placed it."""
    repeat: int
    max_tokens: int
    curve: bool
    seed: int | None
    temperature: float
    sampling: dict[str, Any]
    synthetic: Synthetic | None = None
    """A synthetic draft; None: the Llama's own draft is used."""

    @classmethod
    def checked(
        cls,
        modes: Iterable[str | Mode] | None = None,
        *,
        repeat: int = 1,
        max_tokens: int = 128,
        curve: bool = False,
        seed: int | None = None,
        temperature: float = 0.0,
        acceptance: Iterable[float] | None = None,
        draft_cost: float | None = None,
        **sampling: Any,
    ) -> Plan:
        """Check every value, and make a plan.

        Args:
            modes: the modes to compare, as ``Mode.parse`` reads them. None: plain and auto; for a synthetic draft plain
                and auto:1, auto:2, auto:4, auto:8.
            repeat: how often each mode answers each prompt.
            max_tokens: the length at which an answer is cut.
            curve: whether to measure what a batch of n tokens costs, too.
            seed: the seed of the first repeat; each repeat has the next one. None: a random one for each answer.
            temperature: the temperature; 0 is greedy.
            acceptance: for a synthetic draft: the probability, at each place of a round, that the drafted token is
                right if all before it were. The last one is also used for all later places.
            draft_cost: for a synthetic draft: the cost of drafting a token, divided by that of plainly decoding one;
                None: 0.
            sampling: other options of ``create_completion``: ``top_p``, ``min_p``, ...

        Raises:
            ValueError: an unknown mode or one given twice, or a count below 1.
            TypeError: a count or seed that is not an integer.
        """
        synthetic = None if acceptance is None else Synthetic.checked(acceptance, draft_cost or 0.0)
        if synthetic is None and draft_cost is not None:
            raise ValueError(f"draft_cost={draft_cost!r} is of a synthetic draft: give acceptance (--acceptance), too")
        if modes is None:
            modes = ("plain", "auto") if synthetic is None else _OF_SYNTHETIC
        parsed = [Mode.parse(mode) if isinstance(mode, str) else mode for mode in modes]
        names = [mode.name for mode in parsed]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"mode {name!r} is given {names.count(name)} times: once is enough, see repeat")
        if "plain" not in names:
            parsed.insert(0, Mode.parse("plain"))
        require_at_least(1, repeat=repeat, max_tokens=max_tokens)
        seed = checked_seed(seed)
        if synthetic is not None:
            parsed = [mode.synthetic(temperature, seed) for mode in parsed]
        return cls(tuple(parsed), repeat, max_tokens, curve, seed, temperature, sampling, synthetic)

    def turns(self, num_prompts: int) -> Iterator[tuple[int, int, tuple[Mode, ...]]]:
        """Yield (repeat, index of a prompt, modes in their order): A B C for one prompt, C B A for the next.

        So slow changes, such as a clock that is throttled by heat, affect all modes alike. The order also alternates
        over the repeats of a prompt.
        """
        for repeat in range(self.repeat):
            for index in range(num_prompts):
                yield repeat, index, self.modes if (repeat + index) % 2 == 0 else self.modes[::-1]

    def options(self, mode: Mode, repeat: int) -> dict[str, Any]:
        """The keyword arguments of ``create_completion`` for one answer."""
        seed = None if self.seed is None else self.seed + repeat
        lengths = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": seed}
        return {**self.sampling, **lengths, **mode.options()}

    def settings(self, prompts: Iterable[Prompt]) -> dict[str, Any]:
        """The settings in a result: this plan, and how many prompts of each category are used."""
        counts = collections.Counter(prompt.category for prompt in prompts)
        return {**dataclasses.asdict(self), "modes": [mode.name for mode in self.modes], "prompts": dict(counts)}
