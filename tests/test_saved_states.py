"""States that cannot be loaded: nothing of them is left, and the message says what is wrong with them."""

from __future__ import annotations

import copy
import os
import pickle
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import llama_cpp
import pytest
import tiny_models as tiny
from fresh import PROMPT, text_of

import specllama
from specllama.backend.ggml import ggml_version

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeBase, MakeLlama, TinyFiles

CASES = int(os.environ.get("SPECLLAMA_CASES", "100"))  # more on demand: 2,000 take a minute


def state_of(llm: llama_cpp.Llama, prompt: str = PROMPT) -> llama_cpp.LlamaState:
    """After a short text."""
    text_of(llm, prompt, max_tokens=8)
    return llm.save_state()


def without_mark(state: llama_cpp.LlamaState) -> llama_cpp.LlamaState:
    """As llama_cpp saves it."""
    plain = copy.copy(state)
    del plain.specllama_origin
    return plain


def changed(state: llama_cpp.LlamaState, **fields: Any) -> llama_cpp.LlamaState:
    found = copy.copy(state)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def with_bytes(state: llama_cpp.LlamaState, data: bytes) -> llama_cpp.LlamaState:
    return changed(state, llama_state=data, llama_state_size=len(data))


def test_a_state_survives_a_file(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    state = pickle.loads(pickle.dumps(state_of(llm)))
    expected = text_of(llm, PROMPT + " no")
    other = make_llama(n_ctx=256)
    other.load_state(state)
    assert text_of(other, PROMPT + " no") == expected
    assert other.stats.num_prompt_tokens_reused > 0


def test_a_state_of_llama_cpp_is_loaded_as_it_is(make_llama: MakeLlama, make_base: MakeBase) -> None:
    base, llm = make_base(logits_all=True), make_llama()
    base.eval(base.tokenize(PROMPT.encode()))
    llm.load_state(base.save_state())
    assert text_of(llm) == text_of(make_llama())
    assert llm.stats.num_prompt_tokens_reused > 0


@pytest.mark.parametrize("marked", [True, False])
def test_a_state_of_another_model_leaves_nothing(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, marked: bool
) -> None:
    words = tiny.word_vocabulary()
    wide = tiny.write_llama(tmp_path / "wide.gguf", words, tiny.llama_weights(words, seed=1, n_embd=64))
    for other in (tiny_files.larger, tiny_files.recurrent, wide):
        state = state_of(make_llama(other))
        llm = make_llama(draft=tiny_files.good, seed=3)
        text_of(llm, "a dog")
        with pytest.raises(specllama.StateError) as error:
            llm.load_state(state if marked else without_mark(state))
        said = str(error.value)
        assert "and this Llama has" in said if marked else "the state cannot be loaded: " in said
        assert ("larger" if other == tiny_files.larger else other.stem) in said or not marked
        assert llm._seed == 3
        for prompt in ("a dog", PROMPT):
            assert text_of(llm, prompt) == text_of(make_llama(), prompt)


def test_what_llama_cpp_says_is_handed_on(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    state = without_mark(state_of(make_llama(tiny_files.larger)))
    with pytest.raises(specllama.StateError, match=r"mismatched layer count .*This Llama holds nothing now"):
        make_llama().load_state(state)


def test_a_state_of_another_library_is_named(make_llama: MakeLlama) -> None:
    """Whether llama.cpp would take it or not: its bytes may mean something else there."""
    llm = make_llama()
    expected, state = text_of(llm), state_of(llm)
    assert f" with ggml {ggml_version(llama_cpp.llama_cpp._lib)}" in state.specllama_origin["library"]
    state.specllama_origin = {**state.specllama_origin, "library": "llama-cpp-python 0.9 with ggml 7"}
    said = r"the state was saved by llama-cpp-python 0\.9 with ggml 7, and this is llama-cpp-python .* with ggml \d"
    with pytest.raises(specllama.StateError, match=said):
        llm.load_state(state)
    assert llm.n_tokens > 0  # it is as before
    assert text_of(llm) == expected


@pytest.mark.parametrize("flash", [True, False])
def test_a_state_that_lies_otherwise_in_memory_is_named(make_llama: MakeLlama, flash: bool) -> None:
    """llama.cpp would notice it, but only when it has begun."""
    llm = make_llama(flash_attn=not flash)
    assert llm.has_flash_attention is not flash
    expected, state = text_of(llm), state_of(make_llama(flash_attn=flash))
    said = rf"saved with flash_attn={flash}, and .*: create the Llama with flash_attn={flash}$"
    with pytest.raises(specllama.StateError, match=said):
        llm.load_state(state)
    assert llm.n_tokens > 0  # it is as before
    assert text_of(llm) == expected
    with pytest.raises(specllama.StateError, match=r"the state cannot be loaded: .*flash_attn"):
        llm.load_state(without_mark(state))
    assert text_of(llm) == expected


def test_a_cache_of_another_library_is_as_good_as_empty(make_llama: MakeLlama) -> None:
    llm = make_llama()
    llm.set_cache(llama_cpp.LlamaRAMCache())
    expected = text_of(llm)
    for state in llm.cache.cache_state.values():
        state.specllama_origin["library"] = "llama-cpp-python 0.9 with ggml 7"
    llm.reset()
    assert text_of(llm) == expected
    assert llm.stats.num_prompt_tokens_reused == 0
    llm.reset()
    assert text_of(llm) == expected
    assert llm.stats.num_prompt_tokens_reused > 0  # it is saved anew


def test_what_is_no_state(make_llama: MakeLlama) -> None:
    llm = make_llama()
    expected, state = text_of(llm), state_of(llm)
    with pytest.raises(TypeError, match=r"state=None must be a llama_cpp\.LlamaState: take one from save_state\(\)"):
        llm.load_state(None)  # type: ignore[arg-type]
    for wrong in (
        changed(state, n_tokens=-1),
        changed(state, n_tokens=len(state.input_ids) + 1),
        changed(state, llama_state=b""),
        changed(state, llama_state_size=state.llama_state_size - 1),
        changed(state, input_ids=state.input_ids + 10**6),
        changed(state, input_ids=state.input_ids + 1),
    ):
        with pytest.raises(specllama.StateError, match=r"damaged|n_ctx"):
            llm.load_state(wrong)
        assert text_of(llm) == expected


@hypothesis.settings(
    max_examples=CASES, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture], database=None
)
@hypothesis.given(st.data())
def test_damaged_states_leave_nothing(
    damage_pair: tuple[specllama.Llama, llama_cpp.LlamaState, str], data: st.DataObject
) -> None:
    """Flipped, cut, longer or of other counts, as we and as llama_cpp save them: an error, and the text is right."""
    llm, state, expected = damage_pair
    raw = bytearray(state.llama_state)
    at = data.draw(st.one_of(st.integers(0, min(400, len(raw) - 1)), st.integers(0, len(raw) - 1)))
    kind = data.draw(st.sampled_from(["flip", "cut", "longer", "counts"]))
    wrong = state
    if kind == "flip":
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
        wrong = with_bytes(state, bytes(raw))
    elif kind == "cut":
        wrong = with_bytes(state, bytes(raw[:at]))
    elif kind == "longer":
        wrong = with_bytes(state, bytes(raw) + bytes(at + 1))
    else:
        wrong = changed(state, n_tokens=data.draw(st.integers(-5, 600).filter(lambda count: count != state.n_tokens)))
    with pytest.raises((specllama.StateError, TypeError)):
        llm.load_state(wrong)
    assert text_of(llm) == expected
    try:
        llm.load_state(without_mark(wrong))
    except specllama.StateError:
        assert text_of(llm) == expected
    else:  # only numbers of the cache differ, or fewer tokens are said to be there: nobody can see that
        llm.reset()


@pytest.fixture
def damage_pair(make_llama: MakeLlama, tiny_files: TinyFiles) -> tuple[specllama.Llama, llama_cpp.LlamaState, str]:
    llm = make_llama(draft=tiny_files.good)
    state = state_of(llm)
    return llm, state, text_of(make_llama())
