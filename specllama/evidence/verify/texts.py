"""The text with the draft against the text without it, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.completions.chat_template import RenderedPrompt
from specllama.engine.request import Request
from specllama.evidence.answer import Answer, answer, first_difference
from specllama.evidence.scorer import scorer_of

from .loop import has_penalties, request_for, take
from .result import Difference, Drafting, TextComparison
from .rounding import SAFETY, Position, rounding, rows_by_shape

if TYPE_CHECKING:
    from specllama.engine.options import NumDraftTokens
    from specllama.llama import Llama


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a text is generated, with the draft or without."""

    name: str
    """``greedy`` or ``coupled``."""
    rule: str
    seed: int
    sampling: dict[str, Any]

    def answer(self, llm: Llama, prompt: RenderedPrompt, max_tokens: int, num_draft_tokens: NumDraftTokens) -> Answer:
        """The completion of a prompt, as a user gets it."""
        options = {"max_tokens": max_tokens, "seed": self.seed, "verify": self.rule, **self.sampling}
        return answer(llm, prompt, num_draft_tokens=num_draft_tokens, **options)

    def request(self, tokens: Sequence[int], num_draft_tokens: int) -> Request:
        """The same of the raw loop, for tokens that continue the prompt."""
        return request_for(tokens, self.sampling, rule=self.rule, num_draft_tokens=num_draft_tokens, seed=self.seed)


def modes(llm: Llama, sampling: dict[str, Any], seeds: Sequence[int]) -> list[Mode]:
    """Greedy decoding under the Llama's rule (all are the same there), and coupled sampling with each seed."""
    greedy = Mode("greedy", "block" if llm.verify == "auto" else llm.verify, 0, {**sampling, "temperature": 0.0})
    return [greedy, *(Mode("coupled", "coupled", seed, sampling) for seed in seeds)]


class TextCheck:
    """Compares the texts of one prompt.

    Behind a near-tie the comparison goes on with the text of plain decoding, whose noise is that of the position. Not
    so with penalties: they see the tokens of one call only, and would see others than plain decoding did.
    """

    def __init__(self, llm: Llama, prompt_id: str, prompt: RenderedPrompt, num_draft_tokens: int) -> None:
        self._llm = llm
        self._prompt_id = prompt_id
        self._prompt = prompt
        self._gamma = num_draft_tokens

    def compare(self, mode: Mode, plain: list[int], drafted: Answer) -> TextComparison:
        """Compare the tokens of plain decoding with an answer that was drafted."""
        differences: list[Difference] = []
        runs = [drafted.stats]
        start, tokens = 0, drafted.tokens
        while (same := first_difference(plain[start:], tokens)) is not None:
            other = tokens[same] if same < len(tokens) else None
            differences.append(self._difference(mode, plain, start + same, other))
            start += same + 1
            request = mode.request([*self._prompt.tokens, *plain[:start]], self._gamma)
            if not differences[-1].near_tie or has_penalties(request) or start >= len(plain):
                break
            tokens, stats = take(self._llm, request, len(plain) - start)
            runs.append(stats)
        else:
            start = len(plain)
        return TextComparison(
            prompt_id=self._prompt_id,
            mode=mode.name,
            rule=mode.rule,
            seed=mode.seed if mode.name == "coupled" else None,
            num_tokens=len(plain),
            num_compared=min(start, len(plain)),
            differences=tuple(differences),
            drafting=Drafting.of(runs),
        )

    def _difference(self, mode: Mode, plain: list[int], index: int, other: int | None) -> Difference:
        """Look at the place where the texts part."""
        token = plain[index] if index < len(plain) else None
        plain_gap = drafted_gap = None
        change = 0.0
        if token is not None and other is not None:
            position = Position(
                mode.request(self._prompt.tokens, self._gamma), plain[:index], self._llm.last_n_tokens_size
            )
            with scorer_of(self._llm) as scorer:
                rows = rows_by_shape(scorer, position, self._gamma)
            plain_gap, drafted_gap = (position.gap(rows[0], candidate) for candidate in (token, other))
            change = rounding(rows, [token, other])
        return Difference(
            index=index,
            plain=token,
            drafted=other,
            plain_text=self._text(token),
            drafted_text=self._text(other),
            plain_gap=plain_gap,
            drafted_gap=drafted_gap,
            rounding=change,
            near_tie=all(gap is not None and gap <= SAFETY * change for gap in (plain_gap, drafted_gap)),
        )

    def _text(self, token: int | None) -> str:
        return "" if token is None else self._llm.detokenize([token], special=True).decode("utf-8", errors="replace")
