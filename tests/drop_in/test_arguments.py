"""Arguments that mean nothing: an error names the value and what it must be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from specllama import Conversation

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat"


@pytest.mark.parametrize("prompt", [b"abc", bytearray(b"abc"), memoryview(b"abc"), 5, None, {1: 2}])
def test_a_prompt_is_a_text_or_token_ids(make_llama: MakeLlama, prompt: Any) -> None:
    with pytest.raises(TypeError, match=f"the prompt is {type(prompt).__name__}, and must be a text or a list"):
        make_llama().create_completion(prompt, max_tokens=1)


def test_a_prompt_of_numpys(make_llama: MakeLlama) -> None:
    llm = make_llama()
    tokens = llm.tokenize(PROMPT.encode())
    texts = [
        llm.create_completion(prompt, max_tokens=8, temperature=0.0)["choices"][0]["text"]
        for prompt in (tokens, tuple(tokens), np.array(tokens), np.array(tokens, np.int64))
    ]
    assert texts == [texts[0]] * 4


@pytest.mark.parametrize(
    ("name", "value", "error", "why"),
    [
        ("mirostat_mode", 3, ValueError, r"mirostat_mode=3 must be 0 \(off\), 1 or 2"),
        ("mirostat_mode", -1, ValueError, "mirostat_mode=-1 must be 0"),
        ("mirostat_mode", "x", TypeError, "mirostat_mode='x' must be a whole number"),
        ("mirostat_mode", 1.0, TypeError, "mirostat_mode=1.0 must be a whole number"),
        ("temperature", None, TypeError, "temperature=None must be a number"),
        ("top_p", "x", TypeError, "top_p='x' must be a number"),
        ("top_k", 2**31, ValueError, "top_k=2147483648 is out of range: it must be at most 2147483647"),
        ("top_k", 1.5, TypeError, "top_k=1.5 must be a whole number"),
        ("logit_bias", {"x": 1.0}, ValueError, "logit_bias: 'x' is no token id"),
        ("logit_bias", {1: "x"}, TypeError, "logit_bias: 'x' for token 1 must be a number"),
        ("logit_bias", [1], TypeError, r"logit_bias=\[1\] must be a dict"),
    ],
)
def test_numbers_that_are_none(make_llama: MakeLlama, name: str, value: Any, error: type[Exception], why: str) -> None:
    llm = make_llama()
    with pytest.raises(error, match=why) as caught:
        llm.create_completion(PROMPT, max_tokens=1, **{name: value})
    assert len(str(caught.value)) < 200
    assert llm.create_completion(PROMPT, max_tokens=2)["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize("size", [400, 5000])  # Python writes no number of more than 4300 digits
def test_huge_numbers(make_llama: MakeLlama, size: int) -> None:
    """They are not numbers of another kind, and a message does not show all of their digits."""
    llm, huge = make_llama(), 10**size
    names = ["temperature", "top_p", "top_k", "mirostat_tau", "xtc_probability", "dry_allowed_length"]
    calls: list[dict[str, Any]] = [{name: sign * huge} for name in names for sign in (1, -1)]
    calls += [{"logit_bias": {huge: 1.0}}, {"logit_bias": {1: huge}}, {"prompt": [huge]}, {"num_draft_tokens": huge}]
    calls += [{"min_tokens": -huge}, {"logprobs": -huge}, {"tfs_z": -huge}]
    for given in calls:
        with pytest.raises(ValueError, match=rf"\(a number of about {size + 1} digits\)") as caught:
            llm.create_completion(**{"prompt": PROMPT, "max_tokens": 1, **given})
        assert len(str(caught.value)) < 200


GONE: list[tuple[dict[str, Any], str]] = [
    ({"tfs_z": 0.5}, r"tfs_z=0.5 has no effect: llama.cpp has no tail-free sampling any more; leave it out"),
    ({"tfs_z": 0}, r"tfs_z=0 has no effect"),
]


@pytest.mark.parametrize(("given", "why"), GONE, ids=str)
def test_a_sampler_that_llama_cpp_has_no_more(make_llama: MakeLlama, given: dict[str, Any], why: str) -> None:
    llm = make_llama()
    messages: Any = [{"role": "user", "content": PROMPT}]
    for ask in (
        lambda: llm.create_completion(PROMPT, max_tokens=1, **given),
        lambda: llm(PROMPT, max_tokens=1, **given),
        lambda: next(llm.create_completion(PROMPT, stream=True, max_tokens=1, **given)),
        lambda: next(llm.generate([1, 270], **given)),
        lambda: next(llm.generate_tokens(PROMPT, max_tokens=1, **given)),
        lambda: llm.create_chat_completion(messages, max_tokens=1, **given),
        lambda: llm.create_completion(PROMPT, max_tokens=1, mirostat_mode=2, **given),
        lambda: list(Conversation(llm, **given).say(PROMPT)),
    ):
        with pytest.raises(ValueError, match=why):
            ask()
    for outcome in (*llm.create_completions([PROMPT], **given), *llm.create_chat_completions([messages], **given)):
        assert "has no effect" in str(outcome.error)
    assert llm.create_completion(PROMPT, max_tokens=2, tfs_z=1)["usage"]["completion_tokens"] == 2


def test_newlines_that_no_penalty_leaves_out(make_llama: MakeLlama) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match=r"penalize_nl=False has no effect: .* give newlines a logit_bias"):
        next(llm.generate([1, 270], penalize_nl=False, repeat_penalty=1.1))
    assert next(llm.generate([1, 270], penalize_nl=False)) >= 0, "there is no penalty"


def test_a_vocabulary_alone_cannot_generate(make_llama: MakeLlama) -> None:
    llm = make_llama(vocab_only=True)
    assert llm.tokenize(b"the cat")
    with pytest.raises(ValueError, match="opened with vocab_only=True"):
        llm.create_completion(PROMPT, max_tokens=1)


def test_a_drafts_arguments_are_a_dict(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(TypeError, match="draft_kwargs=5 must be a dict"):
        make_llama(draft=tiny_files.good, draft_kwargs=5)
