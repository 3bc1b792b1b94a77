"""Runs all parts of a verification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from specllama.engine import DEPENDENT_ON_DRAFT
from specllama.evidence.machine import describe_machine
from specllama.evidence.plan import require_at_least, that_fit
from specllama.prompts import Prompt, as_prompts, builtin_prompts, limited

from .batches import NUM_ROWS, compare_batches, lengths_for
from .loop import Loop
from .plan import Plan
from .sampling import Context, check_pairs, exact_pairs, most_open_context
from .texts import compare, modes
from .tokens import check_tokens
from .verdicts import BatchTest, SamplingTest, TextComparison, TokenTest, VerifyResult

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.engine import NumDraftTokens
    from specllama.evidence.plan import Question
    from specllama.prompts import RenderedPrompt

OnProgress = Callable[[str, int, int], None]
"""Called with the current step, and how much of all is done: (step, done, total)."""

LEVEL = 0.001
"""The probability with which an exact loop fails any test of parts 2 and 3 (see `Verification`) in a run."""
_T = TypeVar("_T")
_PAIR_WORK = 4  # a pair takes one or two rounds: about as long as this many single tokens


def run(
    llm: Llama,
    prompts: Sequence[Prompt | str] | None = None,
    *,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> VerifyResult:
    """Verify that a draft changes neither texts nor the distribution of samples.

    Args:
        llm: a target with its draft.
        prompts: the prompts to answer, as in ``Verification``.
        on_progress: called now and then.
        options: the other arguments of ``Verification``. They are described there, as are the errors.
    """
    return Verification(llm, prompts, **options).run(on_progress)


class Verification:
    """Verifies that a draft changes neither texts nor the distribution of samples. After Ctrl-C, results stay.

    Part 1 compares texts with the draft and without: greedy, and under the coupled rule with every seed. Part 2 draws
    pairs of next tokens under each rule, and compares them with the target's exact probabilities. Part 3 samples whole
    texts under each rule, and tests the place of every token in its exact distribution. Part 4 compares logits from
    batches of every size, if they must have the same bits (``Llama.batch_invariant``); then no text may differ.

    A rerun with the same arguments draws the same samples. The caches of both models are used, and their content is
    lost.

    Args:
        llm: a target with its draft.
        prompts: the prompts to answer: user's messages, or what ``specllama.prompts`` reads from files. None takes one
            prompt of each category from the package, as far as they fit.
        num_prompts: how many of the prompts are used, spread over the list.
        seeds: the seeds of the coupled texts. The first one is the seed of part 2, too.
        max_tokens: the length of each text.
        samples: the number of pairs for each context and rule.
        num_contexts: the number of contexts of part 2. They are places in the texts of part 1, one for each prompt,
            where something is drafted, and the target is least certain of what comes next.
        rules: the acceptance rules of parts 2 and 3.
        num_draft_tokens: gamma, or "auto"; None for the Llama's own. With "auto" the samples draft 4 tokens, because
            samples without a draft would prove nothing.
        sampling: options of ``create_completion`` for the sampler chain, but for DRY; missing ones have their defaults.

    Raises:
        ValueError: there is no draft, or it cannot be used; an argument is out of range; a prompt does not fit.
        TypeError: an option that the sampler chain does not have, or an argument of another type.
    """

    def __init__(
        self,
        llm: Llama,
        prompts: Sequence[Prompt | str] | None = None,
        *,
        num_prompts: int = 4,
        seeds: Sequence[int] = (1, 2),
        max_tokens: int = 32,
        samples: int = 200,
        num_contexts: int = 2,
        rules: Sequence[str] = DEPENDENT_ON_DRAFT,
        num_draft_tokens: NumDraftTokens | None = None,
        **sampling: Any,
    ) -> None:
        plan = Plan.checked(
            llm,
            num_draft_tokens=num_draft_tokens,
            seeds=seeds,
            rules=rules,
            max_tokens=max_tokens,
            samples=samples,
            num_contexts=num_contexts,
            sampling=sampling,
        )
        self._llm = llm
        self._plan = plan
        self._questions = _chosen(llm, plan, prompts, num_prompts)
        self._loop = Loop(llm, plan.sampling, plan.gamma)
        self._modes = modes(self._loop, plan.seeds)
        self._num_contexts = min(plan.num_contexts, len(self._questions))
        num_tests = self._num_contexts * len(plan.rules)
        self._level = LEVEL / (num_tests + len(plan.rules))
        texts = plan.max_tokens * len(self._questions) * (2 * len(self._modes) + len(plan.rules))
        self._total = texts + _PAIR_WORK * plan.samples * num_tests
        self._begin(None)

    def _begin(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._done = 0
        self._finished = False
        self._texts: list[TextComparison] = []
        self._sampled: list[SamplingTest] = []
        self._tokens: list[TokenTest] = []
        self._batches: list[BatchTest] = []

    def run(self, on_progress: OnProgress | None = None) -> VerifyResult:
        """Run all parts. If this is interrupted, ``result`` has the results of all finished tests.

        Args:
            on_progress: called now and then.
        """
        self._begin(on_progress)
        contexts = [
            self._compare(f"texts of prompt {number}/{len(self._questions)}", prompt.id, rendered)
            for number, (prompt, rendered) in enumerate(self._questions, 1)
        ]
        contexts.sort(key=lambda context: (not context.drafts, -context.spread))
        for number, context in enumerate(contexts[: self._num_contexts]):
            self._check_pairs(number, context)
        for number, rule in enumerate(self._plan.rules):
            self._check_tokens(number, rule)
        for length in lengths_for(self._llm):
            self._compare_batches(length)
        self._finished = True
        return self.result()

    def result(self) -> VerifyResult:
        """The result so far."""
        return VerifyResult(
            texts=list(self._texts),
            sampling=list(self._sampled),
            tokens=list(self._tokens),
            batches=list(self._batches),
            settings={
                **dataclasses.asdict(self._plan),
                "sampling": self._loop.chain,
                "level": LEVEL,
                "prompts": [prompt.id for prompt, _ in self._questions],
            },
            machine=describe_machine(self._llm),
            interrupted=not self._finished,
        )

    def _compare(self, step: str, prompt_id: str, prompt: RenderedPrompt) -> Context:
        """Compare all texts of a prompt. The plain texts come first, from empty caches that no draft has touched.

        Returns:
            A context at which samples could be drawn.
        """
        plan = self._plan
        self._llm.reset()
        plain = []
        for mode in self._modes:
            plain.append(mode.answer(prompt, plan.max_tokens, 0).tokens)
            self._advance(step, plan.max_tokens)
        for mode, tokens in zip(self._modes, plain, strict=True):
            drafted = mode.answer(prompt, plan.max_tokens, plan.num_draft_tokens)
            if drafted.stats.num_draft_tokens == 0:  # "auto" may draft nothing, which would prove nothing
                drafted = mode.answer(prompt, plan.max_tokens, plan.gamma)
            self._texts.append(compare(mode, prompt_id, prompt, tokens, drafted))
            self._advance(step, plan.max_tokens)
        return most_open_context(self._loop, prompt_id, prompt, plain[1], plan.rules[0], plan.samples)

    def _check_pairs(self, number: int, context: Context) -> None:
        """Test the pairs after one context under every rule."""
        exact = exact_pairs(self._loop, context, self._plan.samples)
        for rule_number, rule in enumerate(self._plan.rules):
            step = f"samples of {rule}, context {number + 1}/{self._num_contexts}"
            advance = functools.partial(self._advance, step, _PAIR_WORK)
            seeds = self._seeds(number, rule_number, self._plan.samples)
            self._sampled.append(check_pairs(self._loop, context, exact, rule, seeds, self._level, advance))

    def _check_tokens(self, rule_number: int, rule: str) -> None:
        """Test whole texts under one rule, one for each prompt."""
        max_tokens, prompts = self._plan.max_tokens, [rendered for _, rendered in self._questions]
        seeds = self._seeds(self._num_contexts * len(self._plan.rules), rule_number, len(prompts))
        advance = functools.partial(self._advance, f"texts sampled under {rule}", max_tokens)
        self._tokens.append(check_tokens(self._loop, prompts, rule, seeds, max_tokens, self._level, advance))

    def _compare_batches(self, length: int) -> None:
        self._total += NUM_ROWS  # the total did not count these batches before
        advance = functools.partial(self._advance, f"batches behind {length} tokens", 1)
        self._batches.append(compare_batches(self._llm, self._questions[0][1].tokens, length, advance))

    def _seeds(self, part: int, rule_number: int, count: int) -> list[int]:
        sequence = np.random.SeedSequence([self._plan.seeds[0] % 2**64, part, rule_number])
        return [int(seed) for seed in sequence.generate_state(count, np.uint64)]

    def _advance(self, step: str, work: int) -> None:
        self._done += work
        if self._on_progress is not None:
            self._on_progress(step, self._done, self._total)


def _chosen(llm: Llama, plan: Plan, prompts: Sequence[Prompt | str] | None, count: int) -> list[Question]:
    """Choose `count` prompts, spread over the list. Each leaves room for its text and a last round.

    Raises:
        ValueError: there are no prompts, or none fits; or a prompt of the user's does not fit.
    """
    require_at_least(1, num_prompts=count)
    given = limited(builtin_prompts(), 1) if prompts is None else _spread(as_prompts(prompts), count)
    questions, problem = that_fit(llm, given, plan.max_tokens + plan.gamma + 1)
    if problem and prompts is not None:  # a user's prompt must not be left out silently
        raise ValueError(problem)
    return _spread(questions, count)


def _spread(given: list[_T], count: int) -> list[_T]:
    used = min(count, len(given))
    return [given[i * len(given) // used] for i in range(used)]
