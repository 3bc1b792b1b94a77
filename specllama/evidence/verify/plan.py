"""What a verification is to do, checked before anything is decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.drop_in.arguments import SAMPLING
from specllama.drop_in.mirostat import fallback_reason
from specllama.engine.options import NumDraftTokens, checked_seed
from specllama.engine.rules import RULES
from specllama.evidence.plan import checked_gamma, require_at_least

from .loop import Loop

if TYPE_CHECKING:
    from specllama.llama import Llama

_USUAL_GAMMA = 4
_OPTIONS = {"logit_bias", *SAMPLING}


@dataclasses.dataclass(frozen=True)
class Plan:
    """The arguments of ``run``; see there."""

    num_draft_tokens: NumDraftTokens
    """For the texts."""
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
        """Check everything.

        Raises:
            ValueError: there is no draft, or it cannot be used; a value out of range.
            TypeError: an option that is none of the sampler chain's.
        """
        plan = cls(checked_gamma(llm, num_draft_tokens), tuple(seeds), rules=tuple(rules), **known)
        if not llm.engine.own.claim(llm.engine.draft) and llm.engine.draft is not None:
            raise ValueError(f"there is nothing to verify: {llm.engine.draft.unusable}, so all text is decoded plainly")
        if plan.gamma >= llm.n_batch:
            raise ValueError(
                f"a round of num_draft_tokens={plan.gamma} and one more does not fit n_batch={llm.n_batch}: "
                "draft fewer, or create the Llama with a larger n_batch"
            )
        require_at_least(2, max_tokens=plan.max_tokens)
        require_at_least(1, samples=plan.samples, num_contexts=plan.num_contexts)
        plan._require_seeds_and_rules()
        plan._require_sampling(llm)
        return plan

    @property
    def gamma(self) -> int:
        """For the samples, whose every round is to draft, and for the batches with which probabilities are computed."""
        return _USUAL_GAMMA if self.num_draft_tokens == "auto" else self.num_draft_tokens

    def _require_seeds_and_rules(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: give at least one, each of them once")
        for seed in self.seeds:
            if checked_seed(seed) is None:
                raise ValueError(f"seed={seed} means a random one: give another, so that both texts share it")
        if not self.rules or not set(self.rules) <= RULES.keys():
            raise ValueError(f"rules={list(self.rules)}: give some of {', '.join(RULES)}")

    def _require_sampling(self, llm: Llama) -> None:
        for name in self.sampling.keys() - _OPTIONS:
            raise TypeError(f"{name}={self.sampling[name]!r} is no option of the sampler chain")
        request = Loop(llm, self.sampling, self.gamma).request([0], "block", 0)
        if self.sampling.get("mirostat_mode"):
            raise ValueError(f"there is nothing to verify: {fallback_reason()}, so such text is decoded plainly")
        if request.sampling["temperature"] == 0:
            raise ValueError(
                "temperature=0 leaves nothing to sample: give one above 0 (greedy texts are among those compared)"
            )
