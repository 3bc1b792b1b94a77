"""A synthetic draft, which is right with given probabilities. It is for planning, before there is a real draft.

It knows the text that plain decoding writes, drafts the next tokens of this text, and errs with the given
probabilities. So the target does the work that it would do with such a draft, and the text is the one without a draft.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from specllama.evidence.answer import Answer

SYNTHETIC = "synthetic"
"""The word for a synthetic draft in the names of modes and of the drafter."""


@dataclasses.dataclass(frozen=True)
class Synthetic:
    """The properties of a synthetic draft.

    Attributes:
        acceptance: for each place of a round, the probability that its token is accepted if all before it were. The
            last one is also used for all later places.
        cost: the cost of drafting a token, divided by that of a token of plain decoding.
    """

    acceptance: tuple[float, ...]
    cost: float

    @classmethod
    def checked(cls, acceptance: Iterable[float], cost: float) -> Synthetic:
        """Check every value, and make the properties.

        Raises:
            ValueError: no probability, or one out of range, or a cost below 0.
        """
        rates = tuple(map(float, acceptance))
        if not rates:
            raise ValueError("acceptance is empty: give a probability for each drafted token, such as 0.8,0.6")
        for rate in rates:
            if not 0.0 <= rate <= 1.0:
                raise ValueError(f"acceptance={rate:g} is no probability: give numbers from 0 to 1, such as 0.8,0.6")
        if not 0.0 <= cost <= 10.0:
            raise ValueError(
                f"draft_cost={cost:g} is out of range: give what a drafted token costs over one of the target, from 0 "
                "to 10"
            )
        return cls(rates, float(cost))

    def __str__(self) -> str:
        """The properties in words."""
        rates = ", ".join(f"{rate:g}" for rate in self.acceptance)
        return f"a {SYNTHETIC} draft (accepted {rates}; {self.cost:g} T(1) a token)"


class SyntheticDraft:
    """A drafting function that is told the right text."""

    def __init__(self, about: Synthetic) -> None:
        self._about = about
        self._prompt_size = 0
        self._known: Sequence[int] = ()
        self._most = 0
        self._wrong: tuple[int, int] = (0, 0)
        self._seconds = 0.0
        self._random = random.Random()

    def begin(
        self, prompt: Sequence[int], plain: Answer, ends: Callable[[int], bool], *, gamma: int, luck: str
    ) -> None:
        """Tell the draft the right text of the next generation.

        Args:
            prompt: the tokens of the prompt.
            plain: the answer of plain decoding.
            ends: says whether a token ends a text.
            gamma: how many tokens a round drafts.
            luck: the seed of the errors. Equal seeds give equal errors.
        """
        self._prompt_size, self._known, self._most = len(prompt), plain.tokens, gamma
        # A wrong token must not end the text. Two are kept, because one of them may be the right token at a place.
        usual = [token for token in dict.fromkeys([*plain.tokens, *prompt, *range(64)]) if not ends(token)]
        self._wrong = (usual[0], usual[1])
        self._seconds = self._about.cost / plain.stats.tokens_per_second if plain.stats.tokens_per_second else 0.0
        self._random = random.Random(luck)

    def __call__(self, history: npt.NDArray[np.intc]) -> list[int]:
        """Draft the next tokens, with errors. The call takes as long as the draft is to cost."""
        start = time.perf_counter()
        at = len(history) - self._prompt_size
        # The last token of an answer is not drafted, because a round ends with a token of the target's.
        right = self._known[at : at + min(self._most, len(self._known) - at - 1)]
        if list(history[self._prompt_size :]) != list(self._known[:at]):
            return []  # rounding has led to another text, for which the right tokens are not known
        drafted: list[int] = []
        errs = False
        for place, token in enumerate(right):
            rate = self._about.acceptance[min(place, len(self._about.acceptance) - 1)]
            errs = errs or self._random.random() >= rate
            drafted.append(self._wrong[token == self._wrong[0]] if errs else token)
        time.sleep(max(0.0, start + len(drafted) * self._seconds - time.perf_counter()))
        return drafted
