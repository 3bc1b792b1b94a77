"""Runs all parts of a verification."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from specllama.completions.chat_template import RenderedPrompt
from specllama.engine.rules import DEPENDENT_ON_DRAFT
from specllama.evidence.machine import describe_machine
from specllama.prompts import Prompt, as_prompts, builtin_prompts, limited

from .batches import NUM_ROWS, BatchTest, compare_batches, lengths_for
from .plan import Plan
from .result import SamplingTest, TextComparison, TokenTest, VerifyResult
from .sampling import Context, SamplingCheck
from .texts import TextCheck, modes
from .tokens import TokenCheck

if TYPE_CHECKING:
    from specllama.engine.options import NumDraftTokens
    from specllama.llama import Llama

OnProgress = Callable[[str, int, int], None]
"""Called with what is being done, and how much of the whole is done: (step, done, total)."""

LEVEL = 0.001
"""How often a loop that is exact fails parts 2 and 3, all tests of a run together."""
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
        llm: target with its draft.
        prompts: what to answer, see ``Verification``.
        on_progress: called now and then.
        options: all others of ``Verification``, where they are described, as are the errors.
    """
    verification = Verification(llm, prompts, **options)
    verification.run(on_progress)
    return verification.result()


class Verification:
    """Whether a draft changes neither texts nor the distribution of samples; an interrupted one keeps what it found.

    Part 1 compares texts with the draft and without: greedy, and under the coupled rule with every seed. Part 2 draws
    pairs of next tokens under each rule, and compares them with the target's exact probabilities. Part 3 samples whole
    texts under each rule, and looks at the place of every token in its exact distribution. Part 4 compares logits from
    batches of every size, where they are to be the same bits (``Llama.batch_invariant``); then no text may differ.

    A rerun with the same arguments draws the same samples. The caches of both models are used, and what was in them is
    forgotten.

    Args:
        llm: target with its draft.
        prompts: what to answer: user's messages, or what ``specllama.prompts`` reads from files. None takes one of each
            category of those that come with the package, as far as they fit.
        num_prompts: use this many of them, spread over the list.
        seeds: of the coupled texts; the first one seeds part 2, too.
        max_tokens: length of each text.
        samples: pairs for each context and rule.
        num_contexts: contexts of part 2: the places in the texts of part 1, one a prompt, where the target is least
            certain of what comes next.
        rules: acceptance rules of part 2.
        num_draft_tokens: gamma, or "auto"; None for the Llama's own. With "auto" the samples draft 4: what is sampled
            without a draft would prove nothing.
        sampling: options of ``create_completion`` for the sampler chain; its defaults where not given.

    Raises:
        ValueError: there is no draft, or it cannot be used; an argument out of range; a prompt that does not fit.
        TypeError: an option that is none of the sampler chain's.
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
        self._llm = llm
        self._plan = plan = Plan.checked(
            llm,
            num_draft_tokens=num_draft_tokens,
            seeds=seeds,
            rules=rules,
            max_tokens=max_tokens,
            samples=samples,
            num_contexts=num_contexts,
            sampling=sampling,
        )
        chosen = _chosen(llm, plan, prompts, num_prompts)
        self._prompts = [(prompt.id, _rendered(llm, prompt, plan)) for prompt in chosen]
        self._modes = modes(llm, plan.sampling, plan.seeds)
        self._sampling = SamplingCheck(llm, plan.sampling, plan.gamma, plan.samples)
        self._tokens = TokenCheck(llm, plan.sampling, plan.gamma, plan.max_tokens)
        self._num_tests = min(plan.num_contexts, len(chosen)) * len(plan.rules)
        self._level = LEVEL / (self._num_tests + len(plan.rules))
        texts = plan.max_tokens * len(chosen) * (2 * len(self._modes) + len(plan.rules))
        self._total = texts + _PAIR_WORK * plan.samples * self._num_tests
        self._begin(None)

    def _begin(self, on_progress: OnProgress | None) -> None:
        self._on_progress = on_progress
        self._done = 0
        self._finished = False
        self._texts: list[TextComparison] = []
        self._sampled: list[SamplingTest] = []
        self._token_tests: list[TokenTest] = []
        self._batches: list[BatchTest] = []

    def run(self, on_progress: OnProgress | None = None) -> None:
        """Verify. Whatever ends it, ``result`` has what was found until then.

        Args:
            on_progress: called now and then.
        """
        self._begin(on_progress)
        contexts = [
            self._compare(f"texts of prompt {number}/{len(self._prompts)}", prompt_id, prompt)
            for number, (prompt_id, prompt) in enumerate(self._prompts, 1)
        ]
        contexts.sort(key=lambda context: -context.spread)
        for number, context in enumerate(contexts[: self._plan.num_contexts]):
            self._test(number, context)
        for number, rule in enumerate(self._plan.rules):
            self._token_tests.append(self._test_tokens(number, rule))
        for length in lengths_for(self._llm):
            self._batches.append(self._compare_batches(length))
        self._finished = True

    def result(self) -> VerifyResult:
        """What was found so far."""
        return VerifyResult(
            list(self._texts),
            list(self._sampled),
            list(self._token_tests),
            list(self._batches),
            self._settings(),
            describe_machine(self._llm),
            interrupted=not self._finished,
        )

    def _compare(self, step: str, prompt_id: str, prompt: RenderedPrompt) -> Context:
        """All texts of a prompt. The plain ones come first, from empty caches, which no draft can have harmed.

        Returns:
            Where samples could be drawn.
        """
        plan, llm = self._plan, self._llm
        check = TextCheck(llm, prompt_id, prompt, plan.gamma)
        llm.reset()
        plain = []
        for mode in self._modes:
            plain.append(mode.answer(llm, prompt, plan.max_tokens, 0).tokens)
            self._advance(step, plan.max_tokens)
        for mode, tokens in zip(self._modes, plain, strict=True):
            drafted = mode.answer(llm, prompt, plan.max_tokens, plan.num_draft_tokens)
            if drafted.stats.num_draft_tokens == 0:  # "auto" says that it does not pay, which proves nothing
                drafted = mode.answer(llm, prompt, plan.max_tokens, plan.gamma)
            self._texts.append(check.compare(mode, tokens, drafted))
            self._advance(step, plan.max_tokens)
        return self._sampling.most_open_context(prompt_id, prompt, plain[1])

    def _test(self, number: int, context: Context) -> None:
        """One context under every rule."""
        exact = self._sampling.exact(context)
        for rule_number, rule in enumerate(self._plan.rules):
            step = f"samples of {rule}, context {number + 1}/{self._num_tests // len(self._plan.rules)}"
            seeds = np.random.SeedSequence([self._plan.seeds[0] % 2**64, number, rule_number])
            self._sampled.append(
                self._sampling.test(
                    context,
                    exact,
                    rule,
                    [int(seed) for seed in seeds.generate_state(self._plan.samples, np.uint64)],
                    self._level,
                    functools.partial(self._advance, step, _PAIR_WORK),
                )
            )

    def _test_tokens(self, rule_number: int, rule: str) -> TokenTest:
        """Whole texts under one rule, one for each prompt."""
        plan = self._plan
        seeds = np.random.SeedSequence([plan.seeds[0] % 2**64, self._num_tests, rule_number])
        return self._tokens.test(
            [prompt for _, prompt in self._prompts],
            rule,
            [int(seed) for seed in seeds.generate_state(len(self._prompts), np.uint64)],
            self._level,
            functools.partial(self._advance, f"texts sampled under {rule}", plan.max_tokens),
        )

    def _compare_batches(self, length: int) -> BatchTest:
        step = f"batches behind {length} tokens"
        self._total += NUM_ROWS  # only now is it known whether there are any
        return compare_batches(self._llm, self._prompts[0][1].tokens, length, functools.partial(self._advance, step, 1))

    def _advance(self, step: str, work: int) -> None:
        self._done += work
        if self._on_progress is not None:
            self._on_progress(step, self._done, self._total)

    def _settings(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self._plan),
            "sampling": self._sampling.chain,
            "level": LEVEL,
            "prompts": [prompt_id for prompt_id, _ in self._prompts],
        }


def _chosen(llm: Llama, plan: Plan, prompts: Sequence[Prompt | str] | None, count: int) -> list[Prompt]:
    """So many prompts, spread over the list."""
    given = limited(builtin_prompts(), 1) if prompts is None else as_prompts(prompts)
    if prompts is None:  # a user's own must not be left out without a word
        given = [prompt for prompt in given if _needed(prompt.rendered(llm), plan) <= llm.n_ctx()] or given[:1]
    used = min(count, len(given))
    if used < 1:
        raise ValueError(f"num_prompts={count} of {len(given)} prompts: give at least one")
    return [given[i * len(given) // used] for i in range(used)]


def _needed(rendered: RenderedPrompt, plan: Plan) -> int:
    return len(rendered.tokens) + plan.max_tokens + plan.gamma + 1


def _rendered(llm: Llama, prompt: Prompt, plan: Plan) -> RenderedPrompt:
    """The tokens of a prompt, with room behind it for a round at the end of the text.

    Raises:
        ValueError: there is none.
    """
    rendered = prompt.rendered(llm)
    needed = _needed(rendered, plan)
    if needed > llm.n_ctx():
        raise ValueError(
            f"prompt {prompt.id} needs a context of {needed} tokens, with its answer, and n_ctx={llm.n_ctx()}: "
            "give a larger one (n_ctx, or -c on the command line), or shorter prompts"
        )
    return rendered
