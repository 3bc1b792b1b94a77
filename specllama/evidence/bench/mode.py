"""Modes of decoding that a comparison sets side by side."""

from __future__ import annotations

import dataclasses
from typing import Any

from specllama.engine.options import NumDraftTokens, checked_num_draft_tokens
from specllama.engine.rules import VERIFY

_FORMS = f"plain, auto, RULE or RULE:GAMMA, as in block:4, where RULE is one of {', '.join(VERIFY)}"


@dataclasses.dataclass(frozen=True)
class Mode:
    """One way of decoding: what it overrides in the Llama's own settings."""

    name: str
    """As the user wrote it."""
    num_draft_tokens: NumDraftTokens | None = None
    """Gamma; 0 is plain decoding, None the Llama's own."""
    verify: str | None = None
    """The acceptance rule; None is the Llama's own."""

    @classmethod
    def parse(cls, text: str) -> Mode:
        """Read ``plain``, ``auto`` (what the Llama itself is set to), ``RULE`` or ``RULE:GAMMA``.

        Raises:
            ValueError: no such mode, or a gamma out of range.
        """
        name = text.strip()
        rule, separator, gamma = name.partition(":")
        if name == "plain":
            return cls(name, num_draft_tokens=0)
        if name == "auto":
            return cls(name)
        if rule not in VERIFY or (separator and not (gamma.isascii() and gamma.isdecimal())):
            raise ValueError(f"unknown mode {text!r}: use {_FORMS}")
        if not separator:
            return cls(name, verify=rule)
        if int(gamma) == 0:
            raise ValueError(f"mode {text!r} drafts nothing: give at least 1 token, or the mode `plain`")
        return cls(name, checked_num_draft_tokens(int(gamma)), rule)

    @property
    def is_plain(self) -> bool:
        """Whether it decodes without a draft."""
        return self.num_draft_tokens == 0

    def options(self) -> dict[str, Any]:
        """Keyword arguments of ``create_completion``: only what the mode overrides."""
        chosen = {"num_draft_tokens": self.num_draft_tokens, "verify": self.verify}
        return {name: value for name, value in chosen.items() if value is not None}
