"""What a generation did, in numbers."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from . import _core


@dataclasses.dataclass(frozen=True)
class DrafterStats:
    """What one way of drafting contributed."""

    num_drafts: int = 0
    """Rounds to which it contributed tokens."""
    num_draft_tokens: int = 0
    """Tokens it drafted."""
    num_accepted_tokens: int = 0
    """Tokens it drafted that the target accepted."""


@dataclasses.dataclass(frozen=True)
class Stats:
    """Statistics of one generation (``llm.stats``) or of all of a Llama's (``llm.total_stats``).

    Counters follow vLLM's names. All times are wall-clock seconds. Ratios are 0.0 when nothing was drafted.
    """

    num_prompt_tokens: int = 0
    """Tokens of the prompt, and tokens that the caller has appended later (``append``, ``send``)."""
    num_prompt_tokens_reused: int = 0
    """Prompt tokens that were kept, and not decoded. The last token is always decoded: its logits are needed."""
    num_tokens: int = 0
    """Generated tokens that the caller has received."""
    num_first_tokens: int = 0
    """Tokens sampled from the last batch of a prompt, such as the first token of a text. They belong to no round."""
    num_drafts: int = 0
    """Rounds that drafted."""
    num_draft_tokens: int = 0
    """Tokens drafted."""
    num_accepted_tokens: int = 0
    """Drafted tokens that the target accepted."""
    num_accepted_tokens_per_pos: tuple[int, ...] = ()
    """``num_accepted_tokens`` by position in the draft, first to last."""
    acceptance_rate: float = 0.0
    """``num_accepted_tokens / num_draft_tokens``."""
    mean_acceptance_length: float = 1.0
    """``1 + num_accepted_tokens / num_drafts``: tokens per target decode."""
    expected_acceptance: float = 0.0
    """Mean of sum_x min(p(x), q(x)) over ``num_reached_tokens``, with the target's p and the draft's q: how likely
    rejection sampling accepts a drafted token (alpha of Leviathan et al. 2022, section 3.2)."""
    argmax_acceptance: float = 0.0
    """Mean of p(argmax q) over ``num_reached_tokens``: how likely the target samples the draft's most likely token."""
    prompt_seconds: float = 0.0
    """Decoding of the prompt, by target and draft."""
    draft_seconds: float = 0.0
    """Decoding by the draft."""
    verify_seconds: float = 0.0
    """Decoding by the target."""
    sample_seconds: float = 0.0
    """Sampler chains, drawing, and acceptance rules, for target and draft."""
    rollback_seconds: float = 0.0
    """Rolling back both KV caches."""
    total_seconds: float = 0.0
    """From the start of the generation to its last token, with the time that the caller took between tokens."""
    tokens_per_second: float = 0.0
    """``num_round_tokens / (total_seconds - prompt_seconds)``."""
    verify: str = ""
    """The acceptance rule: rejection, block or coupled."""
    rollback: str = "none"
    """How rejected tokens leave the KV cache."""
    fallback_reason: str | None = None
    """Why text was decoded plainly although a draft was asked for; None if that did not happen."""
    num_reached_tokens: int = 0
    """Drafted positions that a decision reached: every draft before them in the round was accepted."""
    num_target_tokens_decoded: int = 0
    """Tokens that the target decoded, prompt included."""
    num_draft_tokens_decoded: int = 0
    """Tokens that the draft model decoded, prompt included."""
    draft_vocabulary: float = 0.0
    """Among how many tokens the draft model chose, as a mean over its drafted tokens; 0.0 if it drafted none."""
    per_drafter: Mapping[str, DrafterStats] = dataclasses.field(default_factory=dict)
    """Counters for each way of drafting that was used: for example ``model``, ``head``, ``lookup``, or ``grammar`` for
    tokens that a grammar forces."""
    num_rounds_per_gamma: tuple[int, ...] = ()
    """How many rounds drafted 0, 1, 2, ... tokens."""
    plain_seconds: float = 0.0
    """Time of plainly decoding one token, as ``"auto"`` measured it last; 0.0 without ``"auto"``."""
    predicted_speedup: float = 0.0
    """The speedup over plain decoding that ``"auto"`` expected of its rounds; 0.0 without ``"auto"``. In a sum only
    generations under ``"auto"`` count, each with its own ``plain_seconds``."""
    realised_speedup: float = 0.0
    """The speedup that was reached: tokens times ``plain_seconds``, divided by the seconds of draft, verification and
    rollback. In a sum only generations under ``"auto"`` count."""
    exploring_seconds: float = 0.0
    """Time that ``"auto"`` lost in rounds that tried the draft model to find out whether it pays."""
    num_draft_tokens_per_pos: tuple[int, ...] = ()
    """``num_draft_tokens`` by position in the draft: rounds that drafted that far."""
    num_idle_rounds: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Rounds in which ``"auto"`` drafted nothing, by the reason. ``measuring``: it measured plain decoding.
    ``no_match``: there is no draft model, and the end of the text did not occur before. ``not_worth_it``: no draft
    promised to gain more time than it takes. Other rounds without a draft are not counted here, because there was no
    choice: only one token was left, there was no draft, or a recurrent model read tokens again after a rejection."""
    num_draft_prompts_skipped: int = 0
    """Prompts that the draft model did not decode, because decoding would have taken longer than drafts could save."""
    kernels: str = ""
    """Whose kernels multiply the target's weights: for example ``AVX2, 950 MiB of weights``, or ``off`` and why."""
    batch_invariant: bool = False
    """Whether the target's logits are the same, to the last bit, in batches of every size. Then the text of greedy and
    of ``coupled`` decoding is the same with any draft or none."""
    backend_notes: tuple[str, ...] = ()
    """What was changed about llama.cpp's CPU backend for this process, such as AMX being turned off."""
    num_prompt_tokens_from_ram: int = 0
    """Of the reused tokens, those that came from copies in memory (``cache_ram``)."""
    num_prompt_tokens_from_disk: int = 0
    """Of the reused tokens, those that came from files (``cache_dir``). All others were in the target's KV cache."""

    @property
    def num_round_tokens(self) -> int:
        """``num_tokens`` without ``num_first_tokens``."""
        return max(0, self.num_tokens - self.num_first_tokens)

    def with_speed(self) -> Stats:
        """A copy whose ``tokens_per_second`` is computed from the other fields."""
        speed = ratio(self.num_round_tokens, self.total_seconds - self.prompt_seconds)
        return dataclasses.replace(self, tokens_per_second=speed)

    @property
    def acceptance_rate_per_pos(self) -> tuple[float, ...]:
        """Accepted / drafted by position in the draft: how often a draft is accepted at least that far."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_draft_tokens_per_pos, strict=True)
        return tuple(ratio(accepted, drafted) for accepted, drafted in pairs)

    def to_dict(self) -> dict[str, Any]:
        """All fields, in order, ready for JSON."""
        fields = dataclasses.asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}

    @property
    def summary(self) -> str:
        """One line: the length and the speed, how much of the draft was accepted, and why nothing could be drafted."""
        parts = [self._speed()]
        if self.num_drafts:
            parts.append(self._accepted())
        if self.fallback_reason:
            parts.append(f"decoded plainly: {self.fallback_reason}")
        return "; ".join(parts)

    def _speed(self) -> str:
        return (
            f"{self.num_tokens} tokens in {self.total_seconds:.2f} s, {self.tokens_per_second:.2f} tokens/s "
            f"after a prompt of {self.num_prompt_tokens} ({self.num_prompt_tokens_reused} reused{self._copied()})"
        )

    def _accepted(self) -> str:
        return f"accepted {self.num_accepted_tokens} of {self.num_draft_tokens} drafted ({self.acceptance_rate:.1%})"

    def __str__(self) -> str:
        lines = [self._speed()]
        if self.num_drafts:
            rates = self.acceptance_rate_per_pos
            last = max((i for i, rate in enumerate(rates) if rate > 0), default=0)
            per_pos = " ".join(f"{rate:.2f}" for rate in rates[: last + 2])  # all later rates are 0
            lines += [
                f"{self._accepted()} in {self.num_drafts} rounds: "
                f"{self.mean_acceptance_length:.2f} tokens per target decode",
                f"by position {per_pos}; expected {self.expected_acceptance:.3f} per token reached, "
                f"argmax match {self.argmax_acceptance:.3f}",
            ]
        lines.append(
            f"seconds: prompt {self.prompt_seconds:.3f}, draft {self.draft_seconds:.3f}, "
            f"verify {self.verify_seconds:.3f}, sample {self.sample_seconds:.3f}, "
            f"rollback {self.rollback_seconds:.3f}"
        )
        if self.plain_seconds:
            lines += self._pace_lines()
        lines.append(f"rule {self.verify or '-'}, rollback {self.rollback}")
        if self.fallback_reason:
            lines.append(f"decoded plainly: {self.fallback_reason}")
        if self.kernels:
            bits = ", the same bits in every batch" if self.batch_invariant else ""
            lines.append(f"kernels {self.kernels}{bits}")
        lines += self.backend_notes
        return "\n".join(lines)

    def _copied(self) -> str:
        places = {"memory": self.num_prompt_tokens_from_ram, "disk": self.num_prompt_tokens_from_disk}
        said = ", ".join(f"{count} from {place}" for place, count in places.items() if count)
        return f": {said}" if said else ""

    def _pace_lines(self) -> list[str]:
        drafters = ", ".join(
            f"{name} {drafter.num_accepted_tokens} of {drafter.num_draft_tokens}"
            for name, drafter in self.per_drafter.items()
        )
        return [
            f"accepted by drafter: {drafters or '-'}; {self._idle()}",
            f"speedup {self.realised_speedup:.2f} (predicted {self.predicted_speedup:.2f}) against "
            f"{self.plain_seconds * 1000:.1f} ms a token plainly; {self.exploring_seconds:.3f} s lost exploring",
        ]

    def _idle(self) -> str:
        rounds, idle = sum(self.num_rounds_per_gamma), self.num_rounds_per_gamma[0]
        counts = {**self.num_idle_rounds, "no_choice": idle - sum(self.num_idle_rounds.values())}
        why = ", ".join(f"{count} {_WHY_IDLE[name]}" for name, count in counts.items() if count > 0)
        skipped = "; the draft's prompt was skipped" if self.num_draft_prompts_skipped else ""
        return f"{idle} of {rounds} rounds did not draft{f' ({why})' if why else ''}{skipped}"


_WHY_IDLE = {
    "measuring": "to measure plain decoding",
    "no_match": "without a match to look up",
    "not_worth_it": "because it would not have paid",
    "no_choice": "without a choice: the last token of a text, say",
}


@dataclasses.dataclass
class Tally:
    """Sums over generations, from which ``Stats`` are made."""

    num_tokens: int = 0
    total_seconds: float = 0.0
    verify: str = ""
    rollback: str = "none"
    fallback_reason: str | None = None
    extra_sample_seconds: float = 0.0
    sums: Mapping[str, float] = dataclasses.field(default_factory=dict)
    lists: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    per_drafter: dict[str, DrafterStats] = dataclasses.field(default_factory=dict)
    idle_rounds: Counter[str] = dataclasses.field(default_factory=Counter)
    plain_seconds: float = 0.0
    kernels: str = ""
    batch_invariant: bool = False
    backend_notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, counters: _core.Counters, *, num_appended_tokens: int = 0, **known: Any) -> Tally:
        """The tally of one generation, from the native counters and from values that only Python knows."""
        sums = counters.numbers()
        plain_seconds = sums.pop("plain_seconds")  # a time for one token, which is not added up over generations
        sums |= _gained(counters)
        sums["num_prompt_tokens"] += num_appended_tokens
        tally = cls(
            sums=sums,
            lists={name: tuple(values) for name, values in counters.lists().items()},
            per_drafter={
                name: DrafterStats(found.num_drafts, found.num_draft_tokens, found.num_accepted_tokens)
                for name, found in counters.per_source.items()
                if found.num_drafts
            },
            idle_rounds=+Counter(counters.num_idle_rounds),  # without reasons that did not occur
            plain_seconds=plain_seconds,
            **known,
        )
        sums["sample_seconds"] += tally.extra_sample_seconds
        return tally

    def __add__(self, other: Tally) -> Tally:
        """The sums of two tallies. Texts and flags come from ``other``, the later one."""
        return Tally(
            num_tokens=self.num_tokens + other.num_tokens,
            total_seconds=self.total_seconds + other.total_seconds,
            verify=other.verify,
            rollback=other.rollback,
            fallback_reason=other.fallback_reason or self.fallback_reason,
            sums={name: self.sums.get(name, 0) + other.sums.get(name, 0) for name in {**self.sums, **other.sums}},
            lists={
                name: _added(self.lists.get(name, ()), other.lists.get(name, ()))
                for name in {**self.lists, **other.lists}
            },
            per_drafter=_added_drafters(self.per_drafter, other.per_drafter),
            idle_rounds=self.idle_rounds + other.idle_rounds,
            plain_seconds=other.plain_seconds or self.plain_seconds,
            kernels=other.kernels or self.kernels,
            batch_invariant=other.batch_invariant,
            backend_notes=other.backend_notes or self.backend_notes,
        )

    def stats(self) -> Stats:
        """The statistics of these sums."""
        sums = defaultdict(int, self.sums)
        fields = {name: value for name, value in {**self.sums, **self.lists}.items() if name in _FIELDS}
        stats = Stats(
            **fields,  # type: ignore[arg-type]
            num_tokens=self.num_tokens,
            per_drafter=dict(self.per_drafter),
            num_idle_rounds=dict(self.idle_rounds),
            plain_seconds=self.plain_seconds,
            predicted_speedup=ratio(sums["predicted_plain_seconds"], sums["predicted_seconds"]),
            realised_speedup=ratio(sums["realised_plain_seconds"], sums["realised_seconds"]),
            acceptance_rate=ratio(sums["num_accepted_tokens"], sums["num_draft_tokens"]),
            mean_acceptance_length=1.0 + ratio(sums["num_accepted_tokens"], sums["num_drafts"]),
            expected_acceptance=ratio(sums["sum_overlap"], sums["num_reached_tokens"]),
            argmax_acceptance=ratio(sums["sum_argmax_match"], sums["num_reached_tokens"]),
            draft_vocabulary=ratio(sums["sum_draft_vocabulary"], sums["num_drawn_tokens"]),
            total_seconds=self.total_seconds,
            verify=self.verify,
            rollback=self.rollback,
            fallback_reason=self.fallback_reason,
            kernels=self.kernels,
            batch_invariant=self.batch_invariant,
            backend_notes=self.backend_notes,
        )
        return stats.with_speed()


_FIELDS = {field.name for field in dataclasses.fields(Stats)}
_GAINED = ("predicted_plain_seconds", "predicted_seconds", "realised_plain_seconds", "realised_seconds")


def _gained(counters: _core.Counters) -> dict[str, float]:
    """The expected and the real seconds of one generation, each with the seconds of plain decoding for its tokens.

    All are 0 for a generation without ``"auto"``, because it does not measure plain decoding.
    """
    plain = counters.plain_seconds
    if not plain:
        return dict.fromkeys(_GAINED, 0.0)
    spent = counters.draft_seconds + counters.verify_seconds + counters.rollback_seconds
    worth = (counters.predicted_tokens * plain, counters.predicted_seconds, counters.num_emitted_tokens * plain, spent)
    return dict(zip(_GAINED, worth, strict=True))


def _added(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + b for a, b in itertools.zip_longest(one, other, fillvalue=0))


def _added_drafters(one: dict[str, DrafterStats], other: dict[str, DrafterStats]) -> dict[str, DrafterStats]:
    total = dict(one)
    for name, more in other.items():
        known = dataclasses.astuple(total.get(name, DrafterStats()))
        total[name] = DrafterStats(*(a + b for a, b in zip(known, dataclasses.astuple(more), strict=True)))
    return total


def ratio(numerator: float, denominator: float) -> float:
    """The quotient; 0.0 where there is nothing to divide by."""
    return numerator / denominator if denominator > 0 else 0.0
