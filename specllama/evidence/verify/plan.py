"""The plan of a verification, which is checked before anything is decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from specllama.engine import RULES, NumDraftTokens, checked_seed
from specllama.evidence.plan import checked_gamma, require_at_least
from specllama.llama import require_ours

from .loop import Loop, options_of

if TYPE_CHECKING:
    from specllama import Llama

_USUAL_GAMMA = 4


@dataclasses.dataclass(frozen=True)
class Plan:
    """The checked arguments of ``Verification``, where they are described."""

    num_draft_tokens: NumDraftTokens
    """Gamma for the texts."""
    seeds: tuple[int, ...]
    max_tokens: int
    samples: int
    num_contexts: int
    rules: tuple[str, ...]
    sampling: dict[str, Any]

    @classmethod
    def checked(
        cls,
        llm: Llama,
        *,
        num_draft_tokens: NumDraftTokens | None,
        seeds: Sequence[int],
        rules: Sequence[str],
        **known: Any,
    ) -> Plan:
        """Check all values, and make a plan.

        Raises:
            ValueError: there is no draft, or the draft cannot be used; a value out of range.
            TypeError: an option that the sampler chain does not have, or a value of another type.
            ClosedError: the Llama is closed.
        """
        require_ours(llm)
        llm.engine.model.require_open()
        seeds, rules = _listed("seeds", seeds, "[1, 2]"), _listed("rules", rules, "['block']")
        plan = cls(checked_gamma(llm, num_draft_tokens), seeds, rules=rules, **known)
        if llm.engine.why_plain is not None:
            raise ValueError(f"there is nothing to verify: {llm.engine.why_plain}, so all text is decoded plainly")
        if plan.gamma >= llm.n_batch:
            raise ValueError(
                f"a round of num_draft_tokens={plan.gamma} and one more does not fit n_batch={llm.n_batch}: "
                "draft fewer, or create the Llama with a larger n_batch, which is at most n_ctx (-c)"
            )
        require_at_least(2, max_tokens=plan.max_tokens)
        require_at_least(1, samples=plan.samples, num_contexts=plan.num_contexts)
        _require_seeds_and_rules(plan.seeds, plan.rules)
        _require_sampling(llm, plan.sampling, plan.gamma)
        return plan

    @property
    def gamma(self) -> int:
        """Gamma for the samples, in which every round must draft, and for the batches that compute probabilities."""
        return _USUAL_GAMMA if self.num_draft_tokens == "auto" else self.num_draft_tokens


def _listed(name: str, given: Any, example: str) -> tuple[Any, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name}={given!r:.100} must be a list, such as {example}")
    return tuple(given)


def _require_seeds_and_rules(seeds: Sequence[int], rules: Sequence[str]) -> None:
    for seed in seeds:
        if checked_seed(seed) is None:
            raise ValueError(f"seed={seed} means a random one: give another, so that both texts share it")
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds={list(seeds)}: give at least one, each of them once")
    if not rules or not all(rule in list(RULES) for rule in rules):
        raise ValueError(f"rules={list(rules)}: give some of {', '.join(RULES)}")


def _require_sampling(llm: Llama, sampling: dict[str, Any], gamma: int) -> None:
    if sampling.get("mirostat_mode"):
        raise ValueError(
            "there is nothing to verify: mirostat is applied by llama.cpp's sampler, so such text is decoded plainly"
        )
    known = options_of(llm.engine.request([0])).keys() - {"penalty_last_n"}  # this belongs to the Llama, not to a call
    known |= {"logit_bias"}
    for name in sampling.keys() - known:
        raise TypeError(
            f"{name}={sampling[name]!r} is no option of the sampler chain: those that can be verified are "
            f"{', '.join(sorted(known))}"
        )
    loop = Loop(llm, sampling, gamma)
    loop.sampler.sampler()  # raises for values that are not numbers
    if loop.chain["temperature"] == 0:
        raise ValueError(
            "temperature=0 leaves nothing to sample: give one above 0 (greedy texts are among those compared)"
        )
