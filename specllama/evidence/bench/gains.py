"""The result of `bench --against`: calls, and the gain of each mode over llama_cpp.Llama on the same prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from specllama.evidence.data import Result
from specllama.evidence.tables import prompts_text, report_text, table

from .runs import ALL, by_prompt, interval

THEIRS = "llama_cpp"
"""The name of the other class, used as the name of a mode."""
_EXPLANATION = (
    "gain: tokens per second of whole calls, prompts included, over those of llama_cpp.Llama on the same prompt; the "
    "mean over prompts [95% bootstrap interval]. over plain: the same over specllama's own plain decoding, the draft's "
    "part. same text: greedy answers that are llama_cpp's; kernels that round otherwise may let them part."
)


@dataclasses.dataclass(frozen=True)
class Call:
    """One answer of one side."""

    prompt_id: str
    category: str
    mode: str
    """``llama_cpp``, or a mode of specllama's."""
    repeat: int
    text: str
    num_prompt_tokens: int
    num_tokens: int
    seconds: float
    """The time of the whole call."""

    @property
    def tokens_per_second(self) -> float:
        """Generated tokens per second of the whole call."""
        return self.num_tokens / self.seconds


@dataclasses.dataclass(frozen=True)
class Gain:
    """The gain of a mode on the prompts of a category. A prompt's gain is the mean of its repeats."""

    mode: str
    category: str
    """The category; ``all`` stands for all prompts."""
    num_prompts: int
    their_tokens_per_second: float
    """All tokens of llama_cpp.Llama divided by all its seconds."""
    tokens_per_second: float
    """All tokens of the mode divided by all its seconds."""
    mean: float
    """The mean over prompts of the gain: tokens per second divided by llama_cpp's."""
    low: float
    """The lower end of the 95% bootstrap interval of the mean, over prompts."""
    high: float
    """The upper end of this interval."""
    least: float
    least_prompt: str
    over_plain: float
    """The mean over prompts of tokens per second divided by those of the mode ``plain``."""
    num_texts_equal: int
    """The number of answers with llama_cpp's text."""
    num_texts_compared: int
    """The number of answers that should have llama_cpp's text, except for rounding: the greedy ones."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AgainstResult(Result):
    """The result of a comparison with llama_cpp.Llama."""

    calls: list[Call]
    """All answers, in the order in which they were made."""
    gains: list[Gain]
    notes: list[str]
    """What a reader of the figures must know."""

    def to_markdown(self) -> str:
        """Machine, settings, a row for each mode and category, and notes."""
        settings, temperature = self.settings, self.settings["temperature"]
        heading = (
            f"{'greedy' if temperature == 0 else f'temperature {temperature:g}'}; {prompts_text(settings)}, "
            f"{settings['repeat']} times each; each class in a process of its own, by turns"
        )
        titles = "mode|category|prompts|t/s|llama_cpp t/s|gain|least|over plain|same text".split("|")
        rows = table(titles, [_cells(gain) for gain in self.gains], left=("mode", "category", "least"))
        return report_text(self.machine, [heading, rows, _EXPLANATION], self.notes, settings.get("command"))


def _cells(gain: Gain) -> list[str]:
    spread = f" [{gain.low:.2f}, {gain.high:.2f}]" if gain.num_prompts > 1 else ""
    return [
        gain.mode,
        gain.category,
        str(gain.num_prompts),
        f"{gain.tokens_per_second:.2f}",
        f"{gain.their_tokens_per_second:.2f}",
        f"{gain.mean:.2f}x{spread}",
        f"{gain.least:.2f}x {gain.least_prompt}",
        f"{gain.over_plain:.2f}x",
        f"{gain.num_texts_equal}/{gain.num_texts_compared}" if gain.num_texts_compared else "-",
    ]


def gains(calls: Iterable[Call], *, greedy: bool) -> list[Gain]:
    """A row for each category and mode, and for all prompts together. Only prompts that all modes answered count."""
    turns: dict[tuple[str, int], dict[str, Call]] = {}
    for call in calls:
        turns.setdefault((call.prompt_id, call.repeat), {})[call.mode] = call
    names = list(dict.fromkeys(name for turn in turns.values() for name in turn))
    answered = [
        turn for turn in turns.values() if len(turn) == len(names) and all(call.num_tokens for call in turn.values())
    ]
    found = []
    categories = list(dict.fromkeys(turn[THEIRS].category for turn in answered))
    for category in [*(categories if len(categories) > 1 else []), ALL]:
        chosen = [turn for turn in answered if category in (turn[THEIRS].category, ALL)]
        if chosen:
            found += [_gain(name, category, chosen, greedy) for name in names if name != THEIRS]
    return found


def _gain(name: str, category: str, turns: list[dict[str, Call]], greedy: bool) -> Gain:
    rates = [(turn[THEIRS].prompt_id, {mode: call.tokens_per_second for mode, call in turn.items()}) for turn in turns]
    ratios, over_plain = (
        by_prompt((prompt, of_turn[name] / of_turn[base]) for prompt, of_turn in rates) for base in (THEIRS, "plain")
    )
    values = np.array(list(ratios.values()))
    low, high = interval(values)
    least = min(ratios, key=ratios.__getitem__)
    return Gain(
        mode=name,
        category=category,
        num_prompts=len(ratios),
        their_tokens_per_second=_rate([turn[THEIRS] for turn in turns]),
        tokens_per_second=_rate([turn[name] for turn in turns]),
        mean=float(values.mean()),
        low=low,
        high=high,
        least=ratios[least],
        least_prompt=least,
        over_plain=float(np.mean(list(over_plain.values()))),
        num_texts_equal=sum(turn[name].text == turn[THEIRS].text for turn in turns) if greedy else 0,
        num_texts_compared=len(turns) if greedy else 0,
    )


def _rate(calls: list[Call]) -> float:
    return sum(call.num_tokens for call in calls) / sum(call.seconds for call in calls)
