"""The options that a caller may choose for one generation, and their checks."""

from __future__ import annotations

import dataclasses
import operator
from typing import TYPE_CHECKING, Any, Literal

import llama_cpp

from specllama.backend.brief import brief

from .limits import LARGEST_INT, MOST_DRAFT_TOKENS
from .rules import VERIFY
from .samplers import Samplers

_MOST_GIB = 1_000_000

if TYPE_CHECKING:
    Verify = str
else:  # for pydantic, which checks values by it: the names of the rules
    Verify = Literal[VERIFY]
NumDraftTokens = int | Literal["auto"]


class FallbackWarning(UserWarning):
    """The warning that a text is decoded plainly, for example because an option cannot be applied under speculation."""


def checked_num_draft_tokens(value: Any) -> NumDraftTokens:
    """Check ``num_draft_tokens``: ``"auto"``, or an int from 0 (plain decoding) to 512.

    Raises:
        TypeError: the value is neither.
        ValueError: the number is out of range.
    """
    if value == "auto":
        return "auto"
    return _checked_int("num_draft_tokens", value, 0, "an int, from 0 (plain decoding) up, or 'auto'")


def checked_max_draft_tokens(value: Any) -> int:
    """Check ``max_draft_tokens``: an int from 1 to 512.

    Raises:
        TypeError: the value is no int.
        ValueError: the number is out of range.
    """
    return _checked_int("max_draft_tokens", value, 1, "an int, from 1 up")


def checked_optional(name: str, value: Any, least: int, what: str) -> int | None:
    """Check an optional number: an int of at least ``least``, or None.

    Raises:
        TypeError: the value is neither. ``what`` is the text in the message after "must be".
        ValueError: the number is out of range.
    """
    return None if value is None else _in_range(name, checked_index(name, value, what), least, LARGEST_INT, what)


def checked_gib(name: str, value: Any, what: str) -> float:
    """Check an option that says how many GiB something on the disk may take. `what` says what, for messages.

    Raises:
        TypeError: no number.
        ValueError: out of range.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={brief(value)} must be a number: the most GiB {what}")
    if not 0 < value <= _MOST_GIB:
        raise ValueError(f"{name}={brief(value)} must be above 0 and at most {_MOST_GIB}: the most GiB {what}")
    return float(value)


def checked_index(name: str, value: Any, what: str) -> int:
    """Check a whole number: an int of any kind, also of NumPy, but no bool.

    Raises:
        TypeError: the value is anything else. ``what`` is the text in the message after "must be".
    """
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{name}={brief(value)} must be {what}") from None


def checked_max_tokens(value: Any) -> int | None:
    """Check ``max_tokens``: an int from 0 up, or None (as many as the context has room for).

    Raises:
        TypeError: the value is neither.
        ValueError: the number is out of range.
    """
    return checked_optional("max_tokens", value, 0, "an int, from 0 up, or None (as many as the context has room for)")


def _checked_int(name: str, value: Any, least: int, what: str) -> int:
    return _in_range(name, checked_index(name, value, what), least, MOST_DRAFT_TOKENS, what)


def _in_range(name: str, number: int, least: int, most: int, what: str) -> int:
    if not least <= number <= most:
        raise ValueError(f"{name}={brief(number)} is out of range: it must be {what}, and at most {most}")
    return number


def checked_verify(value: Any) -> Verify:
    """Check ``verify``: one of the names in ``VERIFY``.

    Raises:
        ValueError: any other value.
    """
    if value not in VERIFY:
        names = ", ".join(repr(name) for name in VERIFY)
        raise ValueError(f"unknown verify={brief(value)}: use one of {names}")
    return str(value)


def checked_seed(seed: Any) -> int | None:
    """The seed, or None for the values by which llama_cpp means "random": None, -1 and LLAMA_DEFAULT_SEED.

    Raises:
        TypeError: the value is no integer.
    """
    if seed is None:
        return None
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed={brief(seed)} must be an int, or None for a random one") from None
    return None if number in (-1, llama_cpp.LLAMA_DEFAULT_SEED) else number


@dataclasses.dataclass(frozen=True)
class Options:
    """How to speculate, and llama-server's samplers: the options of a Llama or an engine, or of one call."""

    num_draft_tokens: NumDraftTokens
    verify: Verify
    max_draft_tokens: int
    samplers: Samplers = dataclasses.field(default_factory=Samplers)

    @classmethod
    def checked(cls, num_draft_tokens: Any, verify: Any, max_draft_tokens: Any) -> Options:
        """Check all values, and make the options."""
        return cls(
            checked_num_draft_tokens(num_draft_tokens),
            checked_verify(verify),
            checked_max_draft_tokens(max_draft_tokens),
        )

    def overridden(
        self, num_draft_tokens: Any | None, verify: Any | None, samplers: dict[str, Any] | None = None
    ) -> Options:
        """A copy in which the values of a call replace these options."""
        options = Options.checked(
            self.num_draft_tokens if num_draft_tokens is None else num_draft_tokens,
            self.verify if verify is None else verify,
            self.max_draft_tokens,
        )
        return dataclasses.replace(options, samplers=self.samplers.overridden(samplers or {}))

    @property
    def paced(self) -> bool:
        """Whether the loop decides how many tokens a round drafts."""
        return self.num_draft_tokens == "auto"

    @property
    def most_draft_tokens(self) -> int:
        """Gamma, the number of tokens drafted in a round, or with ``"auto"`` its largest value; 0 is plain decoding."""
        return self.max_draft_tokens if self.num_draft_tokens == "auto" else self.num_draft_tokens

    def rule(self, seed_given: bool) -> str:
        """The acceptance rule. ``auto`` is ``coupled`` with a seed, so that the seed gives one text; else ``block``."""
        if self.verify != "auto":
            return self.verify
        return "coupled" if seed_given else "block"
