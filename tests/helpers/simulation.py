"""A target and a draft that exist only as numbers: what their batches cost, and which drafted tokens would be right.

Drives `Pace` of `specllama._core_test` as the native drafter does, and compares it with what plain decoding and fixed
numbers of drafted tokens would have taken for the same text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator, Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from structs import values

from specllama import _core_test as _test

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Integers = npt.NDArray[np.int64]
Curve = Callable[[float], float]
"""Seconds for a batch of n tokens."""
Decodes = Generator[tuple[str, int], float]
"""What is to be decoded next, "target" or "draft" and how many tokens; it is sent the seconds which that took."""

MOST = 16
FIXED_DRAFTERS = ("model", "lookup", "lookup, else model")


def curve(one: float, relative: Mapping[int, float]) -> Curve:
    """T(n) = one * relative[n], linear in between."""
    sizes, costs = list(relative), list(relative.values())
    return lambda n: one * float(np.interp(n, sizes, costs))


# As measured on a 4-core laptop's processor for 1.5 billion weights: 16-bit ones are bound by memory, 4-bit ones by
# arithmetic whose kernels take four rows at a time.
TARGETS: dict[str, Curve] = {
    "flat": curve(0.05, {1: 1.0, 101: 2.0}),
    "linear": curve(0.05, {1: 1.0, 101: 101.0}),
    "16-bit": curve(0.08, {1: 1, 2: 1.3, 4: 1.46, 6: 1.55, 8: 1.94, 12: 2.43, 16: 3.13, 17: 3.3, 32: 4.6}),
    "8-bit": curve(0.06, {1: 1, 2: 1.21, 3: 1.42, 4: 1.55, 5: 1.9, 6: 2.1, 8: 2.53, 12: 3.77, 16: 4.39, 32: 8.4}),
    "stepped": curve(0.05, {1: 1, 4: 1.1, 5: 1.7, 8: 1.8, 9: 2.4, 12: 2.5, 13: 3.1, 16: 3.2, 17: 3.8}),
    "not monotonic": curve(0.045, {1: 1, 2: 1.63, 3: 2.17, 4: 1.69, 5: 2.65, 6: 3.22, 8: 3.95, 12: 4.6, 17: 5.4}),
}
DRAFT = curve(0.015, {1: 1.0, 2: 1.8, 4: 1.7, 8: 2.9, 16: 4.8, 32: 9.3, 200: 60.0})


@dataclasses.dataclass(frozen=True)
class Text:
    """What is known of every position of a text.

    Attributes:
        model: whether the model's token is right there.
        confidence: the probability that the model gives its token.
        match: how many tokens agree before those that are looked up; 0 where there are none.
        right: how many of them are right.
        disputed: whether other matches as long went on in another way.
        prompt: tokens of the prompt that the draft has not decoded.
    """

    model: Flags
    confidence: Array
    match: Integers
    right: Integers
    disputed: Flags
    prompt: int = 0


def _bursty(n: int, rng: np.random.Generator) -> Array:
    return np.where(np.cumsum(rng.random(n) < 0.02) % 2 == 0, 0.95, 0.3)


PROCESSES: dict[str, Callable[[int, np.random.Generator], Array]] = {
    "always": lambda n, rng: np.full(n, 0.97),
    "constant": lambda n, rng: np.full(n, 0.8),
    "often wrong": lambda n, rng: np.full(n, 0.55),
    "pair": lambda n, rng: np.where(rng.random(n) < 0.7, 0.97, 0.45),
    "bursty": _bursty,
    "collapsing": lambda n, rng: np.where(np.arange(n) < n // 2, 0.9, 0.05),
    "never": lambda n, rng: np.zeros(n),
    "never, but sure": lambda n, rng: np.zeros(n),
}
"""The probability that the model's token is right, at each of n positions."""


def _nothing(n: int, rng: np.random.Generator) -> tuple[Integers, Flags]:
    return np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.bool_)


def _copies(n: int, rng: np.random.Generator) -> tuple[Integers, Flags]:
    """Stretches of the text occurred before."""
    match, lookup = _nothing(n, rng)
    at = 0
    while at < n:
        if rng.random() < 0.05:
            end = min(n, at + int(rng.integers(3, 40)))
            match[at:end], lookup[at:end] = np.arange(end - at) + 2, True
            if end < n:
                match[end] = end - at + 2  # a match, but the text goes on in another way
            at = end
        at += 1
    return match, lookup


def _misleading(n: int, rng: np.random.Generator) -> tuple[Integers, Flags]:
    """A few tokens occurred before at every other place, and were followed by something else nine times out of ten."""
    return np.where(rng.random(n) < 0.5, rng.integers(2, 6, n), 0), rng.random(n) < 0.1


LOOKUPS = {"nothing": _nothing, "copies": _copies, "misleading": _misleading}
"""What there is to look up: `Text.match`, and whether the one token behind it is right, of n positions."""


def make_text(process: str, length: int, seed: int, lookup: str = "nothing") -> Text:
    """A text of that length (and some more to draft behind it).

    Args:
        process: of PROCESSES, for the model.
        length: tokens.
        seed: of everything random in it.
        lookup: of LOOKUPS.
    """
    rng = np.random.default_rng(seed)
    n = length + 2 * MOST
    acceptance = PROCESSES[process](n, rng)
    right = rng.random(n) < acceptance
    confidence = np.clip((0.95 if "sure" in process else acceptance) + rng.normal(0.0, 0.1, n), 0.02, 0.999)
    match, flags = LOOKUPS[lookup](n, rng)
    return Text(right, confidence, match, _runs(flags), np.zeros(n, dtype=np.bool_))


def _runs(flags: Flags) -> Integers:
    """How many flags are set from each position on."""
    runs = np.zeros(len(flags) + 1, dtype=np.int64)
    for i in reversed(range(len(flags))):
        runs[i] = runs[i + 1] + 1 if flags[i] else 0
    return runs[:-1]


@dataclasses.dataclass(frozen=True)
class Machine:
    """What decodes cost.

    Attributes:
        target: seconds for a batch of n tokens.
        draft: the same for the draft; None if there is only the lookup.
        noise: standard deviation of the logarithm of what a decode really takes.
        slowdown: by position in the text, a factor of everything.
        cold: what the first batch of each size costs more, in seconds, as on a GPU.
    """

    target: Curve
    draft: Curve | None = DRAFT
    noise: float = 0.04
    slowdown: Callable[[int], float] = lambda position: 1.0
    cold: float = 0.0

    def known(self, constants: Mapping[str, float] = MappingProxyType({})) -> _test.Pace:
        """A pace that knows both curves, but for how fast the machine is today.

        Args:
            constants: of the pace, where they are not the usual ones.
        """
        pace = _test.Pace(dict(constants))
        pace.target.restore({n: 1.3 * self.target(n) for n in range(1, MOST + 2)})
        if self.draft:
            pace.draft.restore({n: 0.7 * self.draft(n) for n in [*range(1, MOST + 2), 32, 200]})
        return pace


_looked_up = functools.cache(_test.Expectation.of_lookup)


@dataclasses.dataclass(frozen=True)
class Round:
    """What one round did: where its drafted tokens came from, how many tokens it emitted, how long it took."""

    sources: list[str]
    num_tokens: int
    seconds: float


def throughput(rounds: list[Round]) -> float:
    """Tokens per second."""
    return sum(r.num_tokens for r in rounds) / sum(r.seconds for r in rounds)


class Simulation:
    """Generates one text on a machine, once."""

    def __init__(self, text: Text, machine: Machine, length: int, seed: int = 0, most: int = MOST) -> None:
        self._text = text
        self._machine = machine
        self._length = length
        self._most_ever = most
        self.prompt_seconds = 0.0  # of the draft
        self._rng = np.random.default_rng([seed, 77])
        self._position = 0
        self._cached = -1  # the first position that the draft has not decoded: that of the prompt's last token
        self._draft_seconds = 0.0  # of this round
        self._warm: set[tuple[str, int]] = set()  # which sizes were decoded
        self.rounds: list[Round] = []

    def fixed(self, gamma: int, drafter: str) -> list[Round]:
        """Every round drafts gamma tokens.

        Args:
            gamma: how many.
            drafter: of FIXED_DRAFTERS. Where there is no match, "lookup" drafts nothing.
        """
        while self._position < self._length:
            self._draft_seconds = 0.0
            looks_up = "lookup" in drafter and self._text.match[self._position] > 0
            count = min(gamma, self._most) if looks_up or "model" in drafter else 0
            for i in range(0 if looks_up else count):
                self._drafted(i, self._measured("draft", self._missing(i)))
            right = self._text.model[self._position : self._position + count].tolist()
            if looks_up:
                right = [i < self._text.right[self._position] for i in range(count)]
            sources = ["lookup" if looks_up else "model"] * count
            self._verified(sources, right, self._measured("target", count + 1))
        return self.rounds

    def paced(self, pace: _test.Pace) -> list[Round]:
        """Every round drafts what the pace says."""
        decodes = self.decodes(pace)
        with contextlib.suppress(StopIteration):
            which, count = next(decodes)
            while True:
                seconds = self._measured(which, count)
                if which == "draft":
                    pace.draft.observe(count, seconds)
                which, count = decodes.send(seconds)
        return self.rounds

    def decodes(self, pace: _test.Pace) -> Decodes:
        """The same, for somebody who decodes, and who tells the pace what the draft's batches take."""
        pace.begin_generation()
        if self._machine.draft and self._text.prompt > 0:
            yield from self._decode_prompt(pace)
        while self._position < self._length:
            start = self._position
            sources, right, offered = yield from self._propose(pace)
            verify_seconds = yield "target", len(sources) + 1
            done = self._verified(sources, right, verify_seconds)
            pace.end_round(done.num_tokens - 1, verify_seconds, self._draft_seconds)
            if offered and sources[:1] != ["lookup"]:
                judged = min(done.num_tokens, len(offered))
                pace.judge_unused(offered, min(judged, int(self._text.right[start])), judged)

    def _decode_prompt(self, pace: _test.Pace) -> Decodes:
        """As far as it pays. Not timed with the rounds."""
        missing = self._text.prompt
        pays = pace.prompt_pays(missing, self._most_ever, self._length)
        if not pays and pace.probes():
            for _ in range(2):
                self.prompt_seconds += yield "draft", 1
            missing -= 2
            pays = pace.prompt_pays(missing, self._most_ever, self._length)
        if pays:
            self.prompt_seconds += yield "draft", missing
            missing = 0
        self._cached = -1 - missing

    @property
    def _most(self) -> int:
        return min(self._most_ever, self._length - self._position - 1)

    def _propose(
        self, pace: _test.Pace
    ) -> Generator[tuple[str, int], float, tuple[list[str], list[bool], list[_test.Expectation]]]:
        sources: list[str] = []
        right: list[bool] = []
        self._draft_seconds = 0.0
        offered = self._looked_up(0)
        pace.begin_round(self._most, self._missing(0) if self._machine.draft else 0)
        while len(right) < self._most:
            at = self._position + len(right)
            found = self._looked_up(len(right)) if all(right) else []
            move, count, _ = values(pace.decide([found]))
            if move == "stop":
                break
            if move == "draw":
                seconds = yield "draft", self._missing(len(right))
                self._drafted(len(right), seconds)
                pace.drafted(_test.Expectation.of_model(float(self._text.confidence[at]), pace.before()))
                right.append(bool(self._text.model[at]))
                sources.append("model")
                continue
            for i in range(count):
                pace.drafted(found[i])
                right.append(i < self._text.right[at])
                sources.append("lookup")
        return sources, right, offered

    def _looked_up(self, drafted: int) -> list[_test.Expectation]:
        at = self._position + drafted
        length, disputed = int(self._text.match[at]), bool(self._text.disputed[at])
        count = self._most - drafted if length > 0 else 0
        return [_looked_up(length + i, disputed) for i in range(count)]

    def _missing(self, drafted: int) -> int:
        return self._position + drafted - self._cached

    def _drafted(self, drafted: int, seconds: float) -> None:
        self._cached = self._position + drafted
        self._draft_seconds += seconds

    def _measured(self, which: str, n: int) -> float:
        cost = self._machine.target if which == "target" else self._machine.draft
        assert cost is not None
        factor = self._machine.slowdown(self._position)
        cold = 0.0 if (which, n) in self._warm else self._machine.cold
        self._warm.add((which, n))
        return cold + cost(n) * factor * float(np.exp(self._rng.normal(0.0, self._machine.noise)))

    def _verified(self, sources: list[str], right: list[bool], verify_seconds: float) -> Round:
        accepted = next((i for i, good in enumerate(right) if not good), len(right))
        self._cached = min(self._cached, self._position + accepted)
        self._position += accepted + 1
        self.rounds.append(Round(sources, accepted + 1, self._draft_seconds + verify_seconds))
        return self.rounds[-1]
