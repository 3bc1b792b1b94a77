"""What a benchmark is to do, checked before a model is loaded."""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Iterable, Iterator
from typing import Any

from specllama.engine.options import checked_seed

from .mode import Mode


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
        return cls(
            modes=tuple(parsed),
            repeat=_count("repeat", repeat, "answers of each mode to each prompt"),
            max_tokens=_count("max_tokens", max_tokens, "tokens of an answer"),
            curve=curve,
            seed=checked_seed(seed),
            temperature=temperature,
            sampling=sampling,
        )

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


def _count(name: str, value: Any, what: str) -> int:
    number = operator.index(value)
    if number < 1:
        raise ValueError(f"{name}={number}: give the number of {what}, at least 1")
    return number
