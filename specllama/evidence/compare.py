"""Decodes one prompt plainly and speculatively, token by token."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from specllama.engine import is_independent_of_draft
from specllama.llama import require_ours
from specllama.prompts import Prompt

from .answer import first_difference
from .data import Data

if TYPE_CHECKING:
    from specllama import Llama, Stats, Token

WAYS = ("plain", "speculative")


@dataclasses.dataclass(frozen=True)
class Side(Data):
    """The tokens and statistics of one way of decoding the prompt."""

    computed = ("text", "seconds", "tokens_per_second")

    tokens: list[Token]
    stats: Stats

    @property
    def text(self) -> str:
        """The generated text."""
        return "".join(token.text for token in self.tokens)

    @property
    def seconds(self) -> float:
        """The seconds of the native loop, without the prompt and without `on_token`."""
        stats = self.stats
        return stats.draft_seconds + stats.verify_seconds + stats.sample_seconds + stats.rollback_seconds

    @property
    def tokens_per_second(self) -> float:
        """The tokens that the rounds have given, divided by `seconds`."""
        return self.stats.num_round_tokens / self.seconds if self.seconds > 0 else 0.0


@dataclasses.dataclass(frozen=True)
class Comparison(Data):
    """One prompt decoded both ways. Speeds are those of the native loop, without the prompt."""

    computed = ("speedup", "first_difference")

    plain: Side
    speculative: Side
    same_text_expected: bool
    """Whether both ways must write the same text, except for rounding: greedy, or ``coupled`` with one seed."""

    @property
    def speedup(self) -> float:
        """Speculative tokens per second divided by plain ones; 0.0 if nothing was generated."""
        base = self.plain.tokens_per_second
        return self.speculative.tokens_per_second / base if base > 0 else 0.0

    @property
    def first_difference(self) -> int | None:
        """The index of the first token in which the texts differ; None if they are equal."""
        return first_difference(*([token.id for token in side.tokens] for side in (self.plain, self.speculative)))


def run(
    llm: Llama, prompt: str | Prompt, *, on_token: Callable[[str, Token], None] | None = None, **options: Any
) -> Comparison:
    """Decode a prompt plainly, then speculatively, each from empty caches.

    Args:
        llm: a target with its draft.
        prompt: the prompt to complete: a user's message, for which the chat template is used, or a ``Prompt``.
        on_token: called with "plain" or "speculative" and each token as it comes. The time of the call does not count.
        options: options of ``create_completion``, such as ``max_tokens``, ``temperature``, ``seed``;
            ``num_draft_tokens`` and ``verify`` are for the speculative side. With a seed (or at temperature 0) both
            texts are the same.

    Raises:
        ValueError: an option out of range, or a prompt that does not fit.
        TypeError: the Llama is not ours, or ``prompt`` is neither a text nor a ``Prompt``.
    """
    require_ours(llm)
    rendered = Prompt.of(prompt, 1).rendered(llm)
    stop = options.pop("stop", None) or []
    options["stop"] = [*([stop] if isinstance(stop, str) else stop), *rendered.stop]
    options_of = {"plain": {**options, "num_draft_tokens": 0}, "speculative": options}
    for chosen in options_of.values():  # a warm-up, which brings both models' weights into memory
        list(llm.generate_tokens(rendered.tokens, **{**chosen, "max_tokens": 2}))
    sides = {}
    for way, chosen in options_of.items():
        llm.reset()
        tokens = []
        for token in llm.generate_tokens(rendered.tokens, **chosen):
            tokens.append(token)
            if on_token is not None:
                on_token(way, token)
        sides[way] = Side(tokens, llm.stats)
    greedy = options.get("temperature") == 0  # at a temperature below 0, llama_cpp samples
    coupled = all(is_independent_of_draft(side.stats.verify) for side in sides.values())
    return Comparison(**sides, same_text_expected=greedy or (coupled and options.get("seed") is not None))
