"""Whole texts out of the loop against the target: the place of every token in its exact distribution.

Pairs of next tokens see the beginning of a text and nothing else. Here every draft position, the tokens behind a draft
that was accepted whole, and later rounds are tested, though each with less power.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama.evidence.scorer import Probabilities, Row, Scorer, probabilities, scorer_of
from specllama.evidence.statistics import goodness_of_fit

from .loop import request_for, take
from .result import Drafting, TokenTest

if TYPE_CHECKING:
    from specllama.completions.chat_template import RenderedPrompt
    from specllama.llama import Llama

_NUM_CELLS = 10


class TokenCheck:
    """Draws texts with the loop, and tests their tokens."""

    def __init__(self, llm: Llama, sampling: dict[str, Any], gamma: int, max_tokens: int) -> None:
        self._llm = llm
        self._sampling = sampling
        self._gamma = gamma
        self._max_tokens = max_tokens
        request = request_for([0], sampling, rule="block", num_draft_tokens=0, seed=0)
        self._params = request.native_sampler(llm.last_n_tokens_size)

    def test(
        self,
        prompts: Sequence[RenderedPrompt],
        rule: str,
        seeds: Sequence[int],
        level: float,
        advance: Callable[[], None],
    ) -> TokenTest:
        """Answer every prompt, and test all tokens together.

        A token t drawn from p has P(T < t) + U p(t), with U uniform, uniform on [0, 1] (the randomised probability
        integral transform; Czado, Gneiting and Held 2009, section 2), and independently of those before it.

        Args:
            prompts: what to answer.
            rule: rejection, block or coupled.
            seeds: one for each prompt.
            level: fail below this p-value.
            advance: called after each answer.
        """
        places: list[float] = []
        runs = []
        num_impossible = 0
        uniform = np.random.default_rng(0)  # a rerun gives the same verdict
        for prompt, seed in zip(prompts, seeds, strict=True):
            request = request_for(prompt.tokens, self._sampling, rule=rule, num_draft_tokens=self._gamma, seed=seed)
            text, stats = take(self._llm, request, self._max_tokens)
            runs.append(stats)
            text = self._up_to_its_end(text)
            with scorer_of(self._llm) as scorer:
                for token, p in zip(text, self._distributions(scorer, prompt.tokens, text), strict=True):
                    num_impossible += p[token] == 0
                    places.append(float(p[:token].sum() + uniform.random() * p[token]))
            advance()
        fit = goodness_of_fit(_counts(places), np.full(_NUM_CELLS, 1 / _NUM_CELLS), level)
        return TokenTest(
            rule=rule,
            num_texts=len(prompts),
            num_tokens=len(places),
            chi_square=fit.chi_square,
            p_value=fit.p_value,
            level=level,
            num_impossible=int(num_impossible),
            drafting=Drafting.of(runs),
        )

    def _up_to_its_end(self, text: list[int]) -> list[int]:
        """What comes behind the token that ends a text is of no interest to anybody."""
        ends = [i for i, t in enumerate(text) if llama_cpp.llama_vocab_is_eog(self._llm._model.vocab, t)]
        return text[: ends[0] + 1] if ends else text

    def _distributions(self, scorer: Scorer, prompt: Sequence[int], text: Sequence[int]) -> list[Probabilities]:
        """What each token should have been drawn from, computed in batches of the loop's size."""
        scorer.prefill(prompt[:-1])
        fed = [prompt[-1], *text[:-1]]
        rows: list[Row] = []
        for start in range(0, len(fed), self._gamma + 1):
            rows += scorer.decode(fed[start : start + self._gamma + 1])
        found = [probabilities(row, self._params, text[:i]) for i, row in enumerate(rows)]
        for i, token in enumerate(text):
            if found[i][token] == 0:
                # Rounding can take a token over a top-k, top-p or min-p cut: other batches are tried first.
                row = scorer.decode_last([*prompt, *text[:i]])
                found[i] = probabilities(row, self._params, text[:i])
        return found


def _counts(places: Sequence[float]) -> npt.NDArray[np.int64]:
    cells = np.minimum((np.array(places) * _NUM_CELLS).astype(np.int64), _NUM_CELLS - 1)
    return np.bincount(cells, minlength=_NUM_CELLS).astype(np.int64)
