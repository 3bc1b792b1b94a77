"""Tokens of a prompt: put together as ``llama_cpp.Llama.create_completion`` does, and checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .base_class import BaseLlama

# llama_cpp has these fixed at 0 until it takes them from the model.
_PREFIX = _SUFFIX = _MIDDLE = 0


def checked_prompt(prompt: Any) -> str | list[int]:
    """A prompt as text or as a list of tokens.

    Raises:
        TypeError: neither: bytes, say, which Python takes for a sequence of numbers.
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, np.ndarray) and prompt.ndim == 1:
        prompt = prompt.tolist()
    if isinstance(prompt, (bytes, bytearray, memoryview)) or not isinstance(prompt, Sequence):
        hint = ": decode it, as in prompt.decode()" if isinstance(prompt, (bytes, bytearray)) else ""
        raise TypeError(f"the prompt is {type(prompt).__name__}, and must be a text or a list of token ids{hint}")
    return list(prompt)


def prompt_tokens_of(llama: BaseLlama, prompt: str | list[int], suffix: str | None) -> list[int]:
    """Tokens of a prompt given as text or tokens, with BOS and EOS where the model wants them."""
    model = llama._model
    is_tokens = not isinstance(prompt, str) and suffix is None
    bos = model.token_cls() if model.token_cls() != -1 else llama.token_bos()
    eos = model.token_sep() if model.token_sep() != -1 else llama.token_eos()
    leading = [] if is_tokens or not model.add_bos_token() or bos == -1 else [bos]
    trailing = [] if is_tokens or (not model.add_eos_token() and model.token_sep() == -1) else [eos]
    if isinstance(prompt, str):
        body = llama.tokenize(prompt.encode("utf-8"), add_bos=False, special=suffix is None) if prompt else []
    else:
        body = list(prompt)
    if suffix is None:
        return leading + body + trailing
    before, behind = [_PREFIX, *body], [_SUFFIX, *_suffix_tokens(llama, suffix)]
    parts = behind + before if llama.spm_infill else before + behind
    return [*leading, *parts, _MIDDLE, *trailing]


def _suffix_tokens(llama: BaseLlama, suffix: str) -> list[int]:
    if not suffix:
        return []
    if llama.metadata.get("tokenizer.ggml.add_space_prefix", "true") != "true":
        return llama.tokenize(suffix.encode("utf-8"), add_bos=False, special=False)
    # A tokenizer that puts a space before the text would put one before the suffix: have it put before another token.
    return llama.tokenize(f"☺{suffix}".encode(), add_bos=False, special=False)[2:]
