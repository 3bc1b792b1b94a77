"""A request: everything that one text asks for, such as prompt, options and constraint."""

from __future__ import annotations

import dataclasses
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from specllama import _core
from specllama.backend.brief import brief

from .limits import LARGEST_FLOAT, LARGEST_INT
from .listener import SILENT, Listener
from .model import Model
from .options import Options
from .rules import RULES, STEPWISE
from .samplers import CHAIN, check_numbers


class Constraint(Protocol):
    """A rule that a text must follow: ``Gbnf`` or ``Schema``."""

    def over(self, model: Model) -> _core.Constraint:
        """The native constraint over a model's tokens, at the beginning of the text."""


class Chooser(Protocol):
    """Chooses the tokens of one generation in place of our sampler chain, from the logits that were decoded last."""

    reason: str
    """Why the text is decoded plainly, for messages."""

    def begin(self, processors: list[Callable[..., Any]]) -> None:
        """Called when the generation begins, with the request's logits processors."""

    def sample(self) -> int:
        """Choose the next token."""


@dataclasses.dataclass(frozen=True)
class Request:
    """Everything that one text asks for.

    Attributes:
        options: how to speculate, and the values of llama-server's samplers (``SAMPLERS``).
        seed_given: whether the user chose the seed.
        sampling: values of the parameters in ``CHAIN``; missing parameters have their defaults.
        chooser: chooses the tokens in place of our sampler chain; None for the chain.
        learns: whether a head may learn from the text, if the engine keeps examples.
        reset: whether ``tokens`` is a text from its beginning. If not, ``tokens`` continues the evaluated tokens.

    The other attributes are the arguments of ``Engine.request``, where they are described.
    """

    tokens: Sequence[int]
    options: Options
    seed: int
    seed_given: bool
    sampling: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    logits_processor: Any = None
    stopping_criteria: Any = None
    constraint: Constraint | None = None
    chooser: Chooser | None = None
    wants_logits: bool = False
    max_tokens: int | None = LARGEST_INT
    reset: bool = True
    listener: Listener = SILENT
    drafts_first: bool = False
    lookup_corpus: Sequence[int] = ()
    learns: bool = True

    @property
    def keeps_logits(self) -> bool:
        """Whether the logits of a token are needed after it was sampled."""
        return self.wants_logits or bool(self.stopping_criteria)

    @property
    def fallback_reason(self) -> str | None:
        """Why the text cannot be generated exactly under speculation; None if it can."""
        return None if self.chooser is None else self.chooser.reason

    def rule(self) -> str:
        """The acceptance rule.

        A rule that decides on the whole draft computes p after drafted tokens that it then rejects. These calls would
        confuse a logits processor that remembers its calls. So with a logits processor, such a rule is replaced by one
        that decides step by step.
        """
        rule = self.options.rule(self.seed_given)
        return STEPWISE if self.logits_processor and not RULES[rule].decides_in_steps else rule

    @property
    def chain(self) -> dict[str, Any]:
        """All parameters of ``CHAIN``: this request's values, or else the defaults."""
        return {**CHAIN, **self.sampling}

    def probabilities(self, row: npt.NDArray[np.single], generated: Sequence[int] = ()) -> npt.NDArray[np.float64]:
        """The probabilities [n_vocab] that the sampler chain makes of logits, without the constraint.

        Args:
            row: raw logits [n_vocab].
            generated: the tokens after the prompt, to which penalties apply.
        """
        distribution = self._distribution(row, generated)
        found = np.zeros(len(row))
        found[distribution.ids] = distribution.probs
        return found

    def coupled_choice(self, row: npt.NDArray[np.single], generated: Sequence[int] = ()) -> int:
        """The token that the ``coupled`` rule chooses for these logits; at temperature 0 it is the most likely one.

        Args:
            row: raw logits [n_vocab].
            generated: the tokens after the prompt.
        """
        place = len(self.tokens) + len(generated)
        return _core.gumbel_argmax(self._distribution(row, generated), self.seed & (2**64 - 1), place)

    def _distribution(self, row: npt.NDArray[np.single], generated: Sequence[int]) -> _core.Distribution:
        return _core.distribution(row, self.sampler(), list(generated))

    def sampler(self, breakers: _core.SequenceBreakers | None = None) -> _core.SamplerParams:
        """The parameters of the native sampler chain.

        Args:
            breakers: DRY's sequence breakers, in tokens; None without them.

        Raises:
            TypeError: a parameter is not a number.
            ValueError: a value has no meaning, such as NaN.
        """
        values = self.chain
        check_numbers(values)
        return _core.SamplerParams(**values, logit_bias=dict(self.logit_bias), **self.options.samplers.native(breakers))


def checked_bias(given: Any, n_vocab: int) -> dict[int, float]:
    """Check ``logit_bias``. Returns the biases by token.

    Raises:
        TypeError: the value is no dict of numbers.
        ValueError: a key is not a token of the vocabulary, or a bias is NaN or too large.
    """
    if not isinstance(given, dict):
        raise TypeError(f"logit_bias={given!r:.100} must be a dict from token ids to what is added to their logits")
    return dict(_biases(given, n_vocab))


def _biases(given: dict[Any, Any], n_vocab: int) -> Iterator[tuple[int, float]]:
    for token, bias in given.items():
        try:
            number = int(token)
        except (TypeError, ValueError):
            raise ValueError(
                f"logit_bias: {token!r:.100} is no token id: give numbers, such as llm.tokenize() gives of a text"
            ) from None
        if not 0 <= number < n_vocab:
            raise ValueError(
                f"logit_bias: token {brief(number)} is out of range: the vocabulary has the tokens 0 to {n_vocab - 1}"
            )
        if isinstance(bias, bool) or not isinstance(bias, numbers.Real):
            raise TypeError(f"logit_bias: {brief(bias)} for token {number} must be a number")
        if not bias <= LARGEST_FLOAT:
            raise ValueError(
                f"logit_bias: {brief(bias)} for token {number} is not a usable value: it must be at most 3.4e38, or "
                "-inf to ban the token"
            )
        yield number, -math.inf if bias < -LARGEST_FLOAT else float(bias)


def checked_callables(name: str, given: Any) -> list[Callable[..., Any]]:
    """Check ``logits_processor`` or ``stopping_criteria``: one function, a list of functions, or None.

    Raises:
        TypeError: anything else.
    """
    functions = [given] if callable(given) and not isinstance(given, list) else given or []
    if not isinstance(functions, (list, tuple)) or not all(map(callable, functions)):
        raise TypeError(f"{name}={given!r:.100} must be a function, or a list of functions")
    return list(functions)
