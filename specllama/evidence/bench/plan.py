"""What a benchmark is to do, checked before a model is loaded."""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from specllama.engine import VERIFY, NumDraftTokens, checked_num_draft_tokens, checked_seed
from specllama.evidence.plan import require_at_least
from specllama.prompts import Prompt

_FORMS = f"plain, auto, RULE or RULE:GAMMA, as in block:4, where RULE is one of {', '.join(VERIFY)}"


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way of decoding: what it overrides in the Llama's own settings."""

    name: str
    """As the user wrote it."""
    num_draft_tokens: NumDraftTokens | None = None
    """Gamma; 0 is plain decoding, None the Llama's own."""
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
        """Whether it decodes without a draft."""
        return self.num_draft_tokens == 0

    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``create_completion``: only what the mode overrides."""
        chosen = {"num_draft_tokens": self.num_draft_tokens, "verify": self.verify}
        return {name: value for name, value in chosen.items() if value is not None}


@dataclasses.dataclass(frozen=True)
class Plan:
    """Modes, lengths and sampling. ``Plan.checked`` makes one."""

    modes: tuple[Mode, ...]
    """Plain decoding is always among them, and first unless the caller placed it."""
    repeat: int
    max_tokens: int
    curve: bool
    seed: int | None
    temperature: float
    sampling: dict[str, Any]

    @classmethod
    def checked(
        cls,
        modes: Iterable[str | Mode] = ("plain", "auto"),
        *,
        repeat: int = 1,
        max_tokens: int = 128,
        curve: bool = False,
        seed: int | None = None,
        temperature: float = 0.0,
        **sampling: Any,
    ) -> Plan:
        """Check every value.

        Args:
            modes: what to compare, see ``Mode.parse``.
            repeat: answers of each mode to each prompt.
            max_tokens: the length at which an answer is cut.
            curve: whether to measure what a batch of n tokens costs, too.
            seed: of the first repeat; each repeat has the next one. None: a random one for each answer.
            temperature: 0 is greedy.
            sampling: other options of ``create_completion``: ``top_p``, ``min_p``, ...

        Raises:
            ValueError: an unknown mode or one given twice, or a count below 1.
            TypeError: a count or seed that is no integer.
        """
        parsed = [Mode.parse(mode) if isinstance(mode, str) else mode for mode in modes]
        names = [mode.name for mode in parsed]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"mode {name!r} is given {names.count(name)} times: once is enough, see repeat")
        if "plain" not in names:
            parsed.insert(0, Mode.parse("plain"))
        require_at_least(1, repeat=repeat, max_tokens=max_tokens)
        return cls(tuple(parsed), repeat, max_tokens, curve, checked_seed(seed), temperature, sampling)

    def turns(self, num_prompts: int) -> Iterator[tuple[int, int, tuple[Mode, ...]]]:
        """Yield (repeat, index of a prompt, the modes in their order): A B C, then C B A.

        What changes slowly, such as a clock that heat throttles, then strikes all modes alike. A prompt's own order
        alternates over its repeats, too.
        """
        for repeat in range(self.repeat):
            for index in range(num_prompts):
                yield repeat, index, self.modes if (repeat + index) % 2 == 0 else self.modes[::-1]

    def options(self, mode: Mode, repeat: int) -> dict[str, Any]:
        """Keyword arguments of ``create_completion`` for one answer."""
        seed = None if self.seed is None else self.seed + repeat
        lengths = {"max_tokens": self.max_tokens, "temperature": self.temperature, "seed": seed}
        return {**self.sampling, **lengths, **mode.options()}

    def settings(self, prompts: Iterable[Prompt]) -> dict[str, Any]:
        """What a result says of this plan and of the prompts that are used."""
        counts = collections.Counter(prompt.category for prompt in prompts)
        return {**dataclasses.asdict(self), "modes": [mode.name for mode in self.modes], "prompts": dict(counts)}
