"""What a verification is to do, checked before anything is decoded."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from specllama.completions.llama_cpp_arguments import SAMPLING
from specllama.engine.options import NumDraftTokens, Verify, checked_num_draft_tokens, checked_seed

from .loop import request_for

if TYPE_CHECKING:
    from specllama.llama import Llama

RULES = tuple(rule for rule in get_args(Verify) if rule != "auto")
_USUAL_GAMMA = 4
_OPTIONS = {"temperature", "logit_bias", *SAMPLING} - {"temp"}


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
        gamma = checked_num_draft_tokens(llm.num_draft_tokens if num_draft_tokens is None else num_draft_tokens)
        plan = cls(gamma, tuple(seeds), rules=tuple(rules), **known)
        plan._require_draft(llm)
        plan._require_numbers()
        plan._require_seeds_and_rules()
        plan._require_sampling()
        return plan

    @property
    def gamma(self) -> int:
        """For the samples, whose every round is to draft, and for the batches with which probabilities are computed."""
        return _USUAL_GAMMA if self.num_draft_tokens == "auto" else self.num_draft_tokens

    def _require_draft(self, llm: Llama) -> None:
        draft = llm.session.draft
        if draft is None:
            raise ValueError("this Llama has no draft, so there is nothing to verify: create it with a draft_model")
        if not llm.session.claim_draft():
            raise ValueError(f"there is nothing to verify: {draft.unusable}, so all text is decoded plainly")
        if self.gamma >= llm.n_batch:
            raise ValueError(
                f"a round of num_draft_tokens={self.gamma} and one more does not fit n_batch={llm.n_batch}: "
                "draft fewer, or create the Llama with a larger n_batch"
            )
        if self.num_draft_tokens == 0:
            raise ValueError("num_draft_tokens=0 is plain decoding, so there is nothing to verify: give at least 1")

    def _require_numbers(self) -> None:
        least = {"max_tokens": 2, "samples": 1, "num_contexts": 1}
        for name, limit in least.items():
            value = getattr(self, name)
            if value < limit:
                raise ValueError(f"{name}={value} is too small: give at least {limit}")

    def _require_seeds_and_rules(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={list(self.seeds)}: give at least one, each of them once")
        for seed in self.seeds:
            if checked_seed(seed) is None:
                raise ValueError(f"seed={seed} means a random one: give another, so that both texts share it")
        if not self.rules or not set(self.rules) <= set(RULES):
            raise ValueError(f"rules={list(self.rules)}: give some of {', '.join(RULES)}")

    def _require_sampling(self) -> None:
        for name in self.sampling.keys() - _OPTIONS:
            raise TypeError(f"{name}={self.sampling[name]!r} is no option of the sampler chain")
        request = request_for([0], self.sampling, rule="block", num_draft_tokens=1, seed=0)
        reason = request.fallback_reason()
        if reason is not None:
            raise ValueError(f"there is nothing to verify: {reason}, so such text is decoded plainly")
        if request.sampling["temp"] == 0:
            raise ValueError(
                "temperature=0 leaves nothing to sample: give one above 0 (greedy texts are among those compared)"
            )
