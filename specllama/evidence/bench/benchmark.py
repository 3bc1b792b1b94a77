"""Runs a benchmark: all modes answer each prompt in turn."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from specllama.engine import is_independent_of_draft
from specllama.evidence.answer import Answer, answer
from specllama.evidence.machine import describe_machine
from specllama.evidence.neighbours import Neighbours
from specllama.evidence.plan import require_draft, that_fit
from specllama.prompts import Prompt, as_prompts

from . import remarks
from .plan import Mode, Plan
from .runs import ALL, BenchResult, Run, summarise
from .synthetic import SyntheticDraft

if TYPE_CHECKING:
    from specllama import Llama, Stats
    from specllama.cost_curve import CostCurve
    from specllama.evidence.plan import Question

OnRun = Callable[[Run, int, int], None]
"""Called with each run, how many are done, and how many there will be. `speedup` is None until plain's run is done."""
OnNote = Callable[[str], None]
_WARM_UP_TOKENS = 8


def run(
    llm: Llama,
    prompts: Iterable[Prompt | str],
    *,
    on_run: OnRun | None = None,
    on_note: OnNote | None = None,
    **options: Any,
) -> BenchResult:
    """Compare modes of decoding with plain decoding on the same prompts.

    To keep the runs of an interrupted benchmark, use ``Bench``.

    Args:
        llm: a target with its draft. Give it equal ``n_threads`` and ``n_threads_batch``: llama_cpp's defaults would
            credit speculation with idle cores.
        prompts: the prompts to answer: user's messages, or what ``specllama.prompts`` reads from files.
        on_run: called with each run, how many are done, and how many there will be.
        on_note: called with the name of each step besides the runs.
        options: the arguments of ``Plan.checked``, where they are described.

    Raises:
        ValueError: an option out of range, a mode that drafts without a draft, or no prompt that fits.
    """
    return Bench(llm, prompts, Plan.checked(**options)).run(on_run, on_note)


@dataclasses.dataclass(frozen=True)
class _Measured:
    prompt: Prompt
    mode: str
    repeat: int
    answer: Answer


class Bench:
    """A benchmark. If ``run`` is interrupted, the measured runs stay."""

    def __init__(self, llm: Llama, prompts: Iterable[Prompt | str], plan: Plan) -> None:
        self._llm = llm
        self._plan = plan
        self._measured: list[_Measured] = []
        self._plain: dict[tuple[str, int], Answer] = {}
        self._curves: dict[str, CostCurve] = {}
        self._finished = False
        self._neighbours = Neighbours()
        self._synthetic = None if plan.synthetic is None else SyntheticDraft(plan.synthetic)
        self._texts: dict[tuple[str, int], Answer] = {}
        self._was_drafted = llm.draft_model is not None
        if self._synthetic is not None:
            if llm.draft_model not in (None, "lookup"):
                raise ValueError(
                    "acceptance is of a synthetic draft, and the Llama has a draft_model: open it with draft_model="
                    "'lookup', which the synthetic draft replaces"
                )
        elif not all(mode.is_plain for mode in plan.modes):
            require_draft(llm)
        given = distinct(as_prompts(prompts))
        for prompt in given:
            if prompt.category == ALL:
                raise ValueError(f"prompt {prompt.id}: the category {ALL!r} means every prompt: give it another name")
        self._prompts, too_long = that_fit(llm, given, plan.max_tokens)
        self._skipped = [f"left out: {too_long}"] if too_long else []

    @property
    def num_runs(self) -> int:
        """How many runs there will be."""
        return len(self._prompts) * len(self._plan.modes) * self._plan.repeat

    @property
    def runs(self) -> list[Run]:
        """The runs so far."""
        return [self._as_run(one) for one in self._measured]

    def run(self, on_run: OnRun | None = None, on_note: OnNote | None = None) -> BenchResult:
        """Warm up, and do all runs; then measure the curves, if they are wanted."""
        if self._synthetic is None:
            return self._run(on_run, on_note)
        before, self._llm.draft_model = self._llm.draft_model, self._synthetic
        try:
            return self._run(on_run, on_note)
        finally:
            self._llm.draft_model = before

    def _run(self, on_run: OnRun | None, on_note: OnNote | None) -> BenchResult:
        say = on_note or (lambda text: None)
        say("warming up")
        for mode in self._plan.modes:
            self._answer(self._prompts[0], mode, 0, max_tokens=min(_WARM_UP_TOKENS, self._plan.max_tokens))
        say(f"{self.num_runs} runs")
        for repeat, index, modes in self._plan.turns(len(self._prompts)):
            prompt, _ = self._prompts[index]
            for mode in modes:
                found = _Measured(prompt, mode.name, repeat, self._answer(self._prompts[index], mode, repeat))
                if mode.name == "plain":
                    self._plain[prompt.id, repeat] = found.answer
                self._measured.append(found)
                if on_run is not None:
                    on_run(self._as_run(found), len(self._measured), self.num_runs)
        if self._plan.curve:
            self._measure_curves(say)
        self._finished = True
        return self.result()

    def result(self) -> BenchResult:
        """The result so far. The Llama must still be open."""
        runs = self.runs
        machine = describe_machine(self._llm)
        return BenchResult(
            runs=runs,
            summary=summarise(runs),
            machine=machine,
            settings=self._settings(),
            notes=self._notes(runs, machine),
            curves=dict(self._curves),
            interrupted=not self._finished,
        )

    def _answer(self, question: Question, mode: Mode, repeat: int, **changes: Any) -> Answer:
        rendered = question[1]
        if self._synthetic is not None and not mode.is_plain:
            self._prepare(self._synthetic, question, mode, repeat)
        self._llm.reset()  # each run decodes its own prompt
        return answer(self._llm, rendered, **{**self._plan.options(mode, repeat), **changes})

    def _prepare(self, draft: SyntheticDraft, question: Question, mode: Mode, repeat: int) -> None:
        """Tell a synthetic draft the right text: the text without a draft, from a run that is not counted."""
        prompt, rendered = question
        key = (prompt.id, 0 if self._plan.temperature == 0 else repeat)
        if key not in self._texts:
            self._llm.reset()
            options = {**self._plan.options(mode, repeat), "num_draft_tokens": 0}
            self._texts[key] = answer(self._llm, rendered, **options)
        draft.begin(
            rendered.tokens,
            self._texts[key],
            self._llm.engine.model.ends_text,
            gamma=int(mode.num_draft_tokens or 0),
            luck=f"{self._plan.seed} {repeat} {prompt.id}",
        )

    def _measure_curves(self, say: OnNote) -> None:
        from specllama.cost_curve import measure_cost_curve

        for name, model in self._llm.models.items():
            say(f"measuring what a batch costs the {name}")
            try:
                self._curves[name] = measure_cost_curve(model, name)
            except ValueError as error:  # the runs are worth showing without the curve
                self._skipped.append(f"no costs of batches for the {name}: {error}")
        self._llm.reset()

    def _as_run(self, one: _Measured) -> Run:
        stats = one.answer.stats
        plain = self._plain.get((one.prompt.id, one.repeat))
        reference = self._reference(one)
        speedup = end_to_end = None
        if plain is not None and plain.stats.tokens_per_second > 0:
            speedup = stats.tokens_per_second / plain.stats.tokens_per_second
            end_to_end = _end_to_end(stats) / _end_to_end(plain.stats)
        equal = None if reference is None else one.answer.tokens == reference.tokens
        return Run(one.prompt.id, one.prompt.category, one.mode, one.repeat, speedup, end_to_end, equal, stats)

    def _reference(self, one: _Measured) -> Answer | None:
        """The answer of plain decoding, if this answer should be the same."""
        plain = self._plain.get((one.prompt.id, one.repeat))
        if plain is None or plain is one.answer or self._plan.temperature == 0:
            return plain
        rule = one.answer.stats.verify
        same = self._plan.seed is not None and rule == plain.stats.verify and is_independent_of_draft(rule)
        return plain if same else None

    def _notes(self, runs: list[Run], machine: dict[str, Any]) -> list[str]:
        found = [remarks.on_threads(name, machine[name]) for name in ("target", "draft") if machine[name]]
        found.append(self._neighbours.remark(machine["target"]["n_threads"]))
        found.append(remarks.on_noise([run for run in runs if run.mode == "plain"]))
        found.append(remarks.on_synthetic(self._plan.synthetic))
        if not self._was_drafted:
            found.append(remarks.on_checkpoints(runs))
        for mode in self._plan.modes:
            pairs = [
                (one.prompt.id, one.answer, reference)
                for one in self._measured
                if one.mode == mode.name and (reference := self._reference(one)) is not None
            ]
            found.append(remarks.on_fallbacks([run for run in runs if run.mode == mode.name]))
            found.append(remarks.on_differences(mode.name, pairs))
        if not self._finished:
            what = "the costs of batches" if len(runs) == self.num_runs else f"{self.num_runs - len(runs)} runs"
            found.append(f"interrupted: {what} are missing ({len(runs)} of {self.num_runs} runs are done)")
        return [*self._skipped, *(note for note in found if note)]

    @property
    def _drafter(self) -> str | None:
        if self._plan.synthetic is not None:
            return str(self._plan.synthetic)
        return None if self._llm.engine.draft is None else self._llm.engine.draft.label

    def _settings(self) -> dict[str, Any]:
        return {
            **self._plan.settings([prompt for prompt, _ in self._prompts]),
            "drafter": self._drafter,
            "num_draft_tokens": self._llm.num_draft_tokens,
            "is_paced": self._llm.engine.draft is None or self._llm.engine.draft.is_paced,
            "verify": self._llm.verify,
            "num_runs": self.num_runs,
        }


def _end_to_end(stats: Stats) -> float:
    return stats.num_tokens / stats.total_seconds if stats.total_seconds > 0 else 0.0


def distinct(prompts: Iterable[Prompt]) -> list[Prompt]:
    """The prompts with distinct names: files may use the same ones, so a number is added to a name that came before."""
    names: set[str] = set()
    distinct = []
    for prompt in prompts:
        name, number = prompt.id, 1
        while name in names:
            number += 1
            name = f"{prompt.id}#{number}"
        names.add(name)
        distinct.append(prompt if name == prompt.id else dataclasses.replace(prompt, id=name))
    return distinct
