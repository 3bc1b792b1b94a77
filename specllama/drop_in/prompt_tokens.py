"""The tokens of a prompt, put together as ``llama_cpp.Llama.create_completion`` does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import llama_cpp
import numpy as np

from .base_class import BaseLlama, file_of

_SNIPPET = "\n\n--- snippet ---\n\n"  # separates files for a model that has no special token for this


def checked_prompt(prompt: Any) -> str | list[int]:
    """Check a prompt.

    Returns:
        The text, or a list of tokens.

    Raises:
        TypeError: the prompt is neither a text nor a sequence of tokens. Bytes are refused, although they are a
            sequence of ints.
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
    """The tokens of a prompt, with BOS and EOS where the model wants them.

    Args:
        llama: the Llama that tokenizes.
        prompt: the text to complete, or its tokens, which are returned unchanged if there is no suffix.
        suffix: the text after the completion, if the completion fills a gap. An empty suffix is ignored if the model
            cannot fill gaps.

    Raises:
        TypeError: the suffix is no text.
        ValueError: there is a suffix, and the model cannot fill gaps.
    """
    fim = None if suffix is None else _fim_tokens(llama, suffix)
    if suffix is not None and fim is not None:
        return infill_tokens(llama, prompt, suffix)
    if not isinstance(prompt, str):
        return list(prompt)
    model = llama._model
    eos = model.token_sep() if model.token_sep() != -1 else llama.token_eos()
    trailing = [eos] if model.add_eos_token() or model.token_sep() != -1 else []
    body = llama.tokenize(prompt.encode("utf-8"), add_bos=False, special=True) if prompt else []
    return [*leading_tokens(llama), *body, *trailing]


def place_of_prompt(llama: BaseLlama, prompt: str, suffix: str | None, count: int) -> slice:
    """Where the tokens of the text itself are, among the `count` tokens that `prompt_tokens_of` makes of it."""
    start = len(leading_tokens(llama))
    if suffix is None or _fim_tokens(llama, suffix) is None:
        return slice(start, count)
    size = len(_plain(llama, prompt))
    # With spm_infill the text comes last, before the FIM-middle token; else it follows the FIM-prefix token.
    start = count - 1 - size if llama.spm_infill else start + 1
    return slice(start, start + size)


def continuation_tokens(llama: BaseLlama, text: str, special: bool = True) -> list[int]:
    """The tokens of a text that continues another one.

    A SentencePiece tokenizer puts a space before a whole text. Before a continuation there must be none.

    Args:
        llama: the Llama that tokenizes.
        text: the continuation.
        special: whether names of special tokens in the text are read as these tokens.
    """
    mark = llama.tokenize(b"\n", add_bos=False, special=special)
    marked = llama.tokenize(b"\n" + text.encode("utf-8"), add_bos=False, special=special)
    if marked[: len(mark)] == mark:
        return marked[len(mark) :]
    # The tokenizer merges the text with the newline, so it is not SentencePiece and adds no space.
    return llama.tokenize(text.encode("utf-8"), add_bos=False, special=special)


def leading_tokens(llama: BaseLlama) -> list[int]:
    """The tokens that the model wants before a text: BOS, or none."""
    model = llama._model
    bos = model.token_cls() if model.token_cls() != -1 else llama.token_bos()
    return [bos] if model.add_bos_token() and bos != -1 else []


def _fim_tokens(llama: BaseLlama, suffix: Any) -> tuple[int, int, int] | None:
    """The model's special tokens before the prefix, the suffix, and the text between; None if it has no such tokens.

    Raises:
        TypeError: the suffix is no text.
        ValueError: there is a suffix, and the model has no such tokens.
    """
    if not isinstance(suffix, str):
        raise TypeError(f"suffix={suffix!r:.100} must be a text, or None")
    model = llama._model
    found = (model.token_prefix(), model.token_suffix(), model.token_middle())
    if min(found) >= 0:
        return found
    if suffix:
        _raise_no_fim(llama)
    return None


def _raise_no_fim(llama: BaseLlama) -> NoReturn:
    """Say that a model cannot fill gaps.

    Raises:
        ValueError: always.
    """
    raise ValueError(
        f"suffix: {file_of(llama)} has no tokens for filling a gap (FIM), so it cannot see what comes after it: "
        "leave the suffix out, or take a model that was trained to fill gaps"
    )


def infill_tokens(
    llama: BaseLlama,
    prompt: str | list[int],
    suffix: str,
    *,
    extra: Sequence[tuple[str | None, str]] = (),
    most: int | None = None,
) -> list[int]:
    """The tokens of a prompt that asks for the text in a gap. Names of special tokens in texts are read as plain text.

    Args:
        llama: the Llama that tokenizes.
        prompt: the text before the gap, or its tokens.
        suffix: the text after the gap.
        extra: the names and the texts of other files, the most relevant one last.
        most: the most tokens in the prompt. If there are more, the beginning of the other files is left out. None: no
            limit.

    Raises:
        ValueError: the model cannot fill gaps.
    """
    fim = _fim_tokens(llama, suffix)
    if fim is None:
        _raise_no_fim(llama)
    before, behind, middle = fim
    leading = leading_tokens(llama)
    body = _plain(llama, prompt) if isinstance(prompt, str) else prompt
    if not isinstance(prompt, str) and prompt[: len(leading)] == leading:
        body = prompt[len(leading) :]
    prefix = [before, *body]
    rest = [behind, *(continuation_tokens(llama, suffix, special=False) if suffix else [])]
    gap = [*(rest + prefix if llama.spm_infill else prefix + rest), middle]
    others = _other_files(llama, extra) if extra else []
    room = len(others) if most is None else max(0, most - len(leading) - len(gap))
    return [*leading, *others[max(0, len(others) - room) :], *gap]


def _other_files(llama: BaseLlama, extra: Sequence[tuple[str | None, str]]) -> list[int]:
    """The tokens of other files, in the form that models were trained with and that llama-server uses."""
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    repository, file = llama_cpp.llama_vocab_fim_rep(vocab), llama_cpp.llama_vocab_fim_sep(vocab)
    tokens = [repository, *_plain(llama, "myproject\n")] if repository >= 0 else []
    for name, text in extra:
        head = [file, *_plain(llama, f"{name or 'tmp'}\n")] if file >= 0 else _plain(llama, _SNIPPET)
        tokens += [*head, *_plain(llama, text)]
    return [*tokens, *([file, *_plain(llama, "filename\n")] if file >= 0 else [])]


def _plain(llama: BaseLlama, text: str) -> list[int]:
    return llama.tokenize(text.encode("utf-8"), add_bos=False, special=False) if text else []
