"""States that cannot be loaded: nothing of them is left, and the message says what is wrong with them."""

from __future__ import annotations

import copy
import dataclasses
import os
import pickle
import shutil
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from fresh import PROMPT, text_of

import specllama
from specllama.backend.ggml import ggml_version

if TYPE_CHECKING:
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


@dataclasses.dataclass(frozen=True)
class Otherwise:
    """Another way to open the tiny target, or one of its kind, by which the same tokens have other states."""

    name: str
    """Of what the message speaks."""
    kwargs: dict[str, Any]


OTHERWISE = [
    Otherwise("rope_freq_base", {"rope_freq_base": 500.0}),
    Otherwise("rope_freq_scale", {"rope_freq_scale": 0.25}),
    Otherwise("rope_scaling_type", {"rope_scaling_type": llama_cpp.LLAMA_ROPE_SCALING_TYPE_YARN}),
    Otherwise("yarn_ext_factor", {"yarn_ext_factor": 0.5}),
    Otherwise("yarn_attn_factor", {"yarn_attn_factor": 2.0}),
    Otherwise("yarn_beta_fast", {"yarn_beta_fast": 5.0}),
    Otherwise("yarn_beta_slow", {"yarn_beta_slow": 2.0}),
    Otherwise("yarn_orig_ctx", {"yarn_orig_ctx": 128}),
    Otherwise("type_k", {"type_k": llama_cpp.GGML_TYPE_F32}),
    Otherwise("type_v", {"type_v": llama_cpp.GGML_TYPE_F32}),
    Otherwise("kv_overrides", {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 0.1}}),
]
OF_THIS_RELEASE = [other for other in OTHERWISE if {*other.kwargs} <= {*signature(llama_cpp.Llama.__init__).parameters}]


@pytest.mark.parametrize("other", OF_THIS_RELEASE, ids=lambda other: other.name)
def test_a_state_of_other_settings_is_named(make_llama: MakeLlama, other: Otherwise) -> None:
    """Both ways round. A prompt in a cache is as good as absent."""
    one, two = make_llama(flash_attn=False), make_llama(flash_attn=False, **other.kwargs)
    for llm, of_other in ((one, two), (two, one)):
        expected, state = text_of(llm), state_of(of_other)
        with pytest.raises(specllama.StateError, match=rf"computed with {other.name}=(.*), and .* {other.name}=(?!\1)"):
            llm.load_state(state)
        assert text_of(llm) == expected  # it is as before
        assert llm.stats.num_prompt_tokens_reused > 0
        llm.set_cache(llama_cpp.LlamaRAMCache())
        llm.cache[llm.tokenize(PROMPT.encode())] = state
        llm.reset()
        assert text_of(llm) == expected
        assert llm.stats.num_prompt_tokens_reused == 0
        llm.set_cache(None)


def test_settings_that_mean_the_same_are_the_same(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """What the file says anyway, what only concerns texts, and how batches are cut and computed."""
    state = state_of(make_llama())
    for kwargs in (
        {"rope_freq_base": 10_000.0, "rope_freq_scale": 1.0, "yarn_ext_factor": -2.0},
        {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.block_count": 2}},
        {"kv_overrides": {"tokenizer.ggml.eos_token_id": 5, "general.name": "x"}},
        {"n_batch": 64, "n_ubatch": 32, "n_ctx": 256, "swa_full": False, "use_mmap": False, "draft": tiny_files.good},
    ):
        llm = make_llama(**kwargs)
        llm.load_state(state)
        assert llm.n_tokens == state.n_tokens


@pytest.mark.parametrize("swa_full", [False, True])
def test_a_state_of_another_window_is_named(make_llama: MakeLlama, tiny_files: TinyFiles, swa_full: bool) -> None:
    state = state_of(make_llama(tiny_files.sliding, swa_full=not swa_full))
    with pytest.raises(specllama.StateError, match=rf"swa_full={not swa_full}, and this Llama has swa_full={swa_full}"):
        make_llama(tiny_files.sliding, swa_full=swa_full).load_state(state)


def test_a_state_of_another_adapter_is_named(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Of another file of the same name, of none, and of another scale. A copy is the same."""
    (tmp_path / "other").mkdir()
    other = tiny.write_lora(tmp_path / "other" / "lora.gguf", tiny.llama_weights(tiny.word_vocabulary(), 1), seed=2)
    with_lora = make_llama(lora_path=str(tiny_files.lora))
    state = state_of(with_lora)
    for kwargs, said in (
        ({}, r"with the LoRA adapter lora\.gguf \(\w+\), and this Llama has no LoRA adapter: .*lora_path"),
        ({"lora_path": str(other)}, r"with the LoRA adapter lora\.gguf \((\w+)\), and .* lora\.gguf \((?!\1)\w+\)"),
        (
            {"lora_path": str(tiny_files.lora), "lora_scale": 0.5},
            r"lora_scale=1\.0, and this Llama has lora_scale=0\.5",
        ),
    ):
        with pytest.raises(specllama.StateError, match=said):
            make_llama(**kwargs).load_state(state)
    with pytest.raises(specllama.StateError, match="with no LoRA adapter, and this Llama has the LoRA adapter"):
        with_lora.load_state(state_of(make_llama()))
    copied = make_llama(lora_path=shutil.copy(tiny_files.lora, tmp_path / "copy.gguf"))
    copied.load_state(state)
    assert copied.n_tokens == state.n_tokens


def test_a_state_of_other_weights_is_named(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Of a file of the same name and shape, though a single tensor is another. A file may move, and be replaced."""
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1)
    for changed_one in ("output.weight", "blk.1.attn_norm.weight", "blk.0.attn_v.weight"):
        folder = tmp_path / changed_one
        folder.mkdir()
        other = {**weights, changed_one: weights[changed_one] * np.float32(1.5)}
        state = state_of(make_llama(tiny.write_llama(folder / "target.gguf", words, other)))
        llm = make_llama()
        expected = text_of(llm)
        said = (
            r"with the weights (\w+) of target .*, and this Llama's are (?!\1)\w+, in a file of the same name and shape"
        )
        with pytest.raises(specllama.StateError, match=said):
            llm.load_state(state)
        assert text_of(llm) == expected
    moved = Path(shutil.copy(tiny_files.target, tmp_path / "moved.gguf"))
    os.utime(moved, (1, 1))
    llm = make_llama(moved)
    llm.load_state(state_of(make_llama()))
    os.replace(folder / "target.gguf", moved)  # what is loaded stays
    make_llama().load_state(state_of(llm))


def test_a_model_in_parts_has_the_states_of_the_whole(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path
) -> None:
    first = tiny.split(tiny_files.target, tmp_path)
    whole, parts = make_llama(), make_llama(first)
    expected = text_of(whole)
    for one, other in ((whole, parts), (parts, whole)):
        one.load_state(state_of(other))
        assert text_of(one) == expected
        assert one.stats.num_prompt_tokens_reused > 0
    last = sorted(tmp_path.iterdir())[-1]
    data = bytearray(last.read_bytes())
    data[-5] ^= 1
    last.write_bytes(data)
    with pytest.raises(specllama.StateError, match="in a file of the same name and shape"):
        make_llama(first).load_state(state_of(whole))


def test_a_state_of_an_early_release_is_loaded(make_llama: MakeLlama) -> None:
    """It says less: what it does not say is not asked for."""
    state = state_of(make_llama())
    early = {name: state.specllama_origin[name] for name in ("model", "library", "checksum", "flash_attn")}
    llm = make_llama(rope_freq_base=500.0)
    llm.load_state(changed(state, specllama_origin=early))
    assert llm.n_tokens == state.n_tokens
