"""Sampling parameters: nonsense is refused by name; what llama.cpp gives a meaning keeps it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from specllama import _core

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", NAN),
        ("temperature", INF),
        ("top_p", NAN),
        ("min_p", NAN),
        ("min_p", INF),
        ("typical_p", NAN),
        ("repeat_penalty", NAN),
        ("repeat_penalty", INF),
        ("repeat_penalty", 0.0),
        ("repeat_penalty", -1.0),
        ("frequency_penalty", NAN),
        ("frequency_penalty", INF),
        ("frequency_penalty", -INF),
        ("presence_penalty", NAN),
        ("presence_penalty", -INF),
        ("top_n_sigma", NAN),
        ("top_n_sigma", INF),
        ("xtc_probability", NAN),
        ("xtc_probability", -0.1),
        ("xtc_probability", 1.1),
        ("xtc_threshold", NAN),
        ("xtc_threshold", -0.1),
        ("xtc_threshold", 1.1),
        ("dynatemp_range", NAN),
        ("dynatemp_range", INF),
        ("dynatemp_exponent", NAN),
        ("dynatemp_exponent", -0.5),
    ],
)
def test_bad_values_are_named(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=name):
        _core.SamplerParams(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("multiplier", NAN),
        ("multiplier", INF),
        ("multiplier", -0.1),
        ("base", NAN),
        ("base", INF),
        ("base", 0.9),
        ("allowed_length", -1),
        ("penalty_last_n", -2),
    ],
)
def test_bad_values_of_dry(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"dry_{name}={value:g} is not .* must be"):
        _core.SamplerParams(**{f"dry_{name}": value})


@pytest.mark.parametrize("bias", [{5: NAN}, {5: INF}, {-1: 0.5}])
def test_bad_biases(bias: dict[int, float]) -> None:
    with pytest.raises(ValueError, match="logit_bias"):
        _core.SamplerParams(logit_bias=bias)


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"temperature": 0.0},
        {"temperature": -1.0},
        {"temperature": 1e-6},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": 2**31 - 1},
        {"top_p": 0.0},
        {"top_p": -1.0},
        {"top_p": 1.0},
        {"top_p": INF},
        {"min_p": -1.0},
        {"min_p": 5.0},
        {"typical_p": 2.0},
        {"repeat_penalty": 0.5},
        {"frequency_penalty": -2.0},
        {"penalty_last_n": 0},
        {"penalty_last_n": -1},
        {"logit_bias": {3: -INF, 4: 100.0}},
        {"top_n_sigma": -5.0},
        {"top_n_sigma": 0.01},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"xtc_probability": 1.0, "xtc_threshold": 1.0},
        {"dynatemp_range": 3e38, "temperature": 3e38},
        {"dynatemp_range": 3e38, "temperature": 3e38, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"dynatemp_range": -1.0},
        {"dynatemp_range": 5.0, "dynatemp_exponent": 0.0},
        {"dynatemp_range": 0.8, "dynatemp_exponent": 1000.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"dry_multiplier": 3e38, "dry_base": 3e38, "dry_allowed_length": 0, "dry_prompt": [5] * 100},
        {"dry_multiplier": 1.0, "dry_base": 1.0, "dry_penalty_last_n": 0, "dry_prompt": [5] * 100},
        {"dry_multiplier": 1.0, "dry_penalty_last_n": 2**31 - 1, "dry_prompt": [5] * 100},
    ],
)
def test_values_with_a_meaning_give_a_distribution(values: dict[str, Any]) -> None:
    import numpy as np

    dist = _core.distribution(np.arange(8, dtype=np.float32), _core.SamplerParams(**values), [1, 2])
    assert sum(dist.probs) == pytest.approx(1.0)


def test_names_are_keywords_and_unknown_ones_are_refused() -> None:
    with pytest.raises(TypeError):
        _core.SamplerParams(0.8)  # type: ignore[misc]
    with pytest.raises(TypeError):
        _core.SamplerParams(temprature=0.8)
    with pytest.raises(TypeError):
        _core.SamplerParams(temperature="hot")  # type: ignore[arg-type]
