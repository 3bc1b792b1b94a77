"""Compares the text with the draft with the text without it, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from specllama.evidence.answer import Answer, answer, first_difference
from specllama.evidence.data import total

from .loop import Loop
from .rounding import SAFETY, Position, rounding, rows_by_shape
from .verdicts import Difference, TextComparison

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.engine import NumDraftTokens
    from specllama.prompts import RenderedPrompt


@dataclasses.dataclass(frozen=True)
class Mode:
    """How a text is generated, with the draft or without."""

    name: str
    """``greedy`` or ``coupled``."""
    rule: str
    seed: int
    loop: Loop

    def answer(self, prompt: RenderedPrompt, max_tokens: int, num_draft_tokens: NumDraftTokens) -> Answer:
        """The completion of a prompt, as a user gets it."""
        options = {"max_tokens": max_tokens, "seed": self.seed, "verify": self.rule, **self.loop.sampling}
        return answer(self.loop.llm, prompt, num_draft_tokens=num_draft_tokens, **options)


def modes(loop: Loop, seeds: Sequence[int]) -> list[Mode]:
    """Greedy decoding under the Llama's rule (all rules are equal then), and coupled sampling with each seed."""
    llm = loop.llm
    greedy = Loop(llm, {**loop.sampling, "temperature": 0.0}, loop.gamma)
    rule = "block" if llm.verify == "auto" else llm.verify
    return [Mode("greedy", rule, 0, greedy), *(Mode("coupled", "coupled", seed, loop) for seed in seeds)]


def compare(mode: Mode, prompt_id: str, prompt: RenderedPrompt, plain: list[int], drafted: Answer) -> TextComparison:
    """Compare the tokens of plain decoding with a drafted answer.

    After a near-tie the comparison goes on with the text of plain decoding, because the noise of the coupled rule
    depends on the position only. With penalties it does not go on: penalties see the tokens of one call only, so they
    would see other tokens than in plain decoding.
    """
    differences: list[Difference] = []
    runs = [drafted.stats]
    start, tokens = 0, drafted.tokens
    while (same := first_difference(plain[start:], tokens)) is not None:
        other = tokens[same] if same < len(tokens) else None
        differences.append(_difference(mode, prompt, plain, start + same, other))
        start += same + 1
        if not differences[-1].near_tie or mode.loop.has_penalties or start >= len(plain):
            break
        history = [*prompt.tokens, *plain[:start]]
        tokens, stats = mode.loop.take(history, mode.rule, mode.seed, len(plain) - start)
        runs.append(stats)
    else:
        start = len(plain)
    return TextComparison(
        prompt_id=prompt_id,
        mode=mode.name,
        rule=mode.rule,
        seed=mode.seed if mode.name == "coupled" else None,
        num_tokens=len(plain),
        num_compared=min(start, len(plain)),
        differences=tuple(differences),
        stats=total(runs),
    )


def _difference(mode: Mode, prompt: RenderedPrompt, plain: list[int], index: int, other: int | None) -> Difference:
    """Examine the place where the texts differ."""
    llm, gamma = mode.loop.llm, mode.loop.gamma
    token = plain[index] if index < len(plain) else None
    plain_gap = drafted_gap = None
    change = 0.0
    if token is not None and other is not None:
        request = mode.loop.request(prompt.tokens, mode.rule, mode.seed)
        position = Position(request, plain[:index])
        with llm.engine.direct() as direct:
            rows = rows_by_shape(direct, position, gamma)
        plain_gap, drafted_gap = (position.gap(rows[0], candidate) for candidate in (token, other))
        change = rounding(rows, [token, other])
    return Difference(
        index=index,
        plain=token,
        drafted=other,
        plain_text=_text(llm, token),
        drafted_text=_text(llm, other),
        plain_gap=plain_gap,
        drafted_gap=drafted_gap,
        rounding=change,
        near_tie=all(gap is not None and gap <= SAFETY * change for gap in (plain_gap, drafted_gap)),
    )


def _text(llm: Llama, token: int | None) -> str:
    return "" if token is None else llm.detokenize([token], special=True).decode("utf-8", errors="replace")
