"""Compares the responses of specllama.Llama with those of llama_cpp.Llama."""

from __future__ import annotations

import copy
from typing import Any

import llama_cpp
import numpy as np
import pytest

import specllama

PROMPT = "the cat sat on the dog and"
Pair = tuple[specllama.Llama, llama_cpp.Llama]
"""Ours and theirs."""


ROUNDING = 5e-4
"""Of log-probabilities: batches of other sizes round otherwise. 2.2e-4 was seen with AVX2 alone, less with AVX-512."""


def comparable(response: Any) -> Any:
    """A response without what differs from call to call."""
    response = copy.deepcopy(response)
    for key in ("id", "created"):
        assert response.pop(key)
    return response


def assert_same(ours: Any, theirs: Any) -> None:
    """Equal but for rounding in log-probabilities, which the base class gives as np.float32."""
    theirs = float(theirs) if isinstance(theirs, np.floating) else theirs
    assert type(ours) is type(theirs), (ours, theirs)
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        for key in theirs:
            assert_same(ours[key], theirs[key])
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_same(a, b)
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, abs=ROUNDING)
    else:
        assert ours == theirs


def without_halves(response: Any) -> Any:
    """Log-probabilities in which half a character has no text, as in the base class, and is no alternative."""
    response = copy.deepcopy(response)
    logprobs = response["choices"][0]["logprobs"]
    logprobs["tokens"] = ["" if name.startswith("bytes:") else name for name in logprobs["tokens"]]
    for top in logprobs["top_logprobs"]:
        for name in [name for name in top or {} if name == "" or name.startswith("bytes:")]:
            del top[name]
    return response


def complete(pair: Pair, prompt: Any = PROMPT, **settings: Any) -> Any:
    """Ours, as both complete greedily; asserts that they agree."""
    ours, theirs = completions(pair, prompt, **settings)
    assert_same(ours, theirs)
    return ours


def completions(pair: Pair, prompt: Any = PROMPT, **settings: Any) -> tuple[Any, Any]:
    """Both complete greedily."""
    settings = {"temperature": 0.0, "max_tokens": 30, **settings}
    ours, theirs = (comparable(llm.create_completion(prompt, **settings)) for llm in pair)
    return ours, theirs


def stream(llm: llama_cpp.Llama, prompt: Any = PROMPT, **settings: Any) -> list[Any]:
    """The chunks of a greedy stream."""
    settings = {"temperature": 0.0, "max_tokens": 30, **settings}
    return [comparable(chunk) for chunk in llm.create_completion(prompt, stream=True, **settings)]


def joined(chunks: list[Any]) -> str:
    """The text of a stream."""
    return "".join(chunk["choices"][0]["text"] for chunk in chunks)
