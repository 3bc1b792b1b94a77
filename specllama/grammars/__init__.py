"""Grammars and JSON schemas: checked and translated for llguidance, which says which tokens they allow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

if TYPE_CHECKING:
    from .schemas import why_not_enforced, with_grammar_of_format

__all__ = ["why_not_enforced", "with_grammar_of_format"]


__getattr__ = opened(__name__, {"schemas": __all__})
