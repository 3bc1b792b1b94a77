"""Tokens that no vocabulary has, and texts that have no tokens: llama.cpp would end the process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import llama_cpp
import pytest

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

WRONG = ([10**9], [-1], [332], [5, 2**31], [2**63], [1.5], ["a"], [[1]], [None], "ab", 5, None)


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_tokens_that_the_vocabulary_does_not_have(make_llama: MakeLlama, wrong: Any) -> None:
    llm = make_llama()
    for use in (llm.detokenize, llm.tokenizer().detokenize, llm.tokenizer().decode, llm.eval, llm.create_completion):
        if use == llm.create_completion and isinstance(wrong, str):
            continue  # a text
        with pytest.raises((ValueError, TypeError)) as error:
            use(wrong)
        assert "token" in str(error.value)
    with pytest.raises((ValueError, TypeError), match="prev_tokens"):
        llm.detokenize([5], prev_tokens=wrong if wrong is not None else [10**9])
    assert llm.detokenize(llm.tokenize(b"the cat")) == b" the cat"[1:]


@pytest.mark.long
@hypothesis.settings(max_examples=200, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@hypothesis.given(
    tokens=st.lists(st.integers(-(2**70), 2**70) | st.integers(0, 331), max_size=6), special=st.booleans()
)
def test_any_tokens(make_llama: MakeLlama, make_base: MakeBase, tokens: list[int], special: bool) -> None:
    llm, base = opened(make_llama), opened(make_base)
    if all(0 <= token < 332 for token in tokens):
        assert llm.detokenize(tokens, special=special) == base.detokenize(tokens, special=special)
        assert llm.tokenizer().detokenize(tokens, special=special) == base.tokenizer().detokenize(
            tokens, special=special
        )
    else:
        with pytest.raises((ValueError, TypeError), match="token"):
            llm.detokenize(tokens, special=special)


_OPENED: dict[object, llama_cpp.Llama] = {}


def opened(make: Any) -> llama_cpp.Llama:
    """One for all examples of a test."""
    if make not in _OPENED:
        _OPENED.clear()
    return _OPENED.setdefault(make, make())


def test_more_tokens_than_there_is_room_for(make_llama: MakeLlama) -> None:
    llm = make_llama(n_ctx=256)
    llm.eval([5] * 200)
    with pytest.raises(ValueError, match=r"57 tokens behind 200 do not fit into n_ctx=256: reset\(\), or"):
        llm.eval([5] * 57)
    llm.eval([5] * 56)
    assert llm.n_tokens == 256


def test_a_tokenizer_outlives_its_llama(make_llama: MakeLlama) -> None:
    llm = make_llama()
    tokenizer = llm.tokenizer()
    assert tokenizer.decode(tokenizer.encode("the cat")) == "the cat"
    llm.close()
    for use in (lambda: tokenizer.encode("the cat"), lambda: tokenizer.decode([5])):
        with pytest.raises(specllama.ClosedError):
            use()


def test_texts_of_characters_that_have_no_tokens(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """A SentencePiece vocabulary of five letters, without tokens of bytes, and without one for a space."""
    llm = make_llama(tiny_files.letters)
    assert llm.tokenize(b"<s>", add_bos=False, special=True) == [llm.token_bos()]
    assert llm.tokenize(b"", add_bos=False) == []
    for text in ("abc", "x", "a b", "é", "\n", "<s>"):
        with pytest.raises(ValueError, match="this model's vocabulary has no token for "):
            llm.tokenize(text.encode())
        with pytest.raises(ValueError, match="give a text of characters that it knows, or token ids"):
            llm.tokenizer().encode(text, special=False)
    with pytest.raises(ValueError, match="has no token for"):
        llm.create_chat_completion([{"role": "user", "content": "abc"}])
    sampling: dict[str, Any] = {"max_tokens": 8, "logit_bias": {llm.token_eos(): -100.0}, "seed": 1}
    breakers = ["a!", "b", "\n"]
    out = llm.create_completion([1, 3, 4], dry_multiplier=1.0, dry_sequence_breakers=breakers, **sampling)
    assert out["usage"]["completion_tokens"] == 8
