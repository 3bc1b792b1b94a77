"""The samplers that llama_cpp.Llama has no arguments for, and those that llama.cpp alone has."""

from __future__ import annotations

from .extra import DEFAULTS, SAMPLERS, Samplers, taken_from

__all__ = ["DEFAULTS", "SAMPLERS", "Samplers", "taken_from"]
