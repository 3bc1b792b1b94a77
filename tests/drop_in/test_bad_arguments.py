"""Sizes and arguments that cannot be: a clear Python exception that names the value; the object works afterwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from test_bad_input import assert_still_works

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("n_ctx", -1), ("n_ctx", 2**40), ("n_batch", 0), ("n_batch", 10**9), ("n_ubatch", 0), ("n_ubatch", 10**9)),
        *(("n_threads", 2**33), ("n_threads_batch", -3), ("last_n_tokens_size", -5)),
        *(("pooling_type", 99), ("rope_scaling_type", 99), ("split_mode", -1), ("numa", 9)),
    ],
)
def test_numbers_that_would_abort_the_process_or_mean_nothing(make_llama: MakeLlama, name: str, value: int) -> None:
    with pytest.raises(ValueError, match=name):
        make_llama(**{name: value})


@pytest.mark.parametrize("n_ctx", [1, 2, 300])
def test_n_ctx_that_llama_cpp_rounds_up(make_llama: MakeLlama, tiny_files: TinyFiles, n_ctx: int) -> None:
    """llama.cpp rounds a context up to a multiple of 256 tokens; what does not fit then is refused by name."""
    llm = make_llama(draft=tiny_files.good, n_ctx=n_ctx)
    prompt = [1] + [280] * (llm.n_ctx() - 20)
    out = llm.create_completion(prompt, max_tokens=None, temperature=0.0)
    assert out["usage"]["total_tokens"] == llm.n_ctx()
    assert len(llm.eval_tokens) >= llm.n_ctx() - 1
    with pytest.raises(ValueError, match=f"{llm.n_ctx()}"):
        llm.create_completion("the cat " * 400)
    assert_still_works(llm)


def test_n_ctx_of_the_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=0)
    assert llm.n_ctx() == 1024
    assert llm.draft_model is not None and llm.draft_model.n_ctx() == 1024
    assert_still_works(llm)


def test_draft_kwargs_win_over_what_is_inherited(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_batch=64, draft_kwargs={"n_batch": 32})
    assert llm.draft_model is not None
    assert (llm.draft_model.n_batch, llm.draft_model.n_ctx(), llm.draft_model.n_threads) == (32, 512, 1)
    assert_still_works(llm)


def test_the_embedding_option(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """embedding=True is for embed(), which empties the cache; generating works beside it."""
    llm = make_llama(draft=tiny_files.good, embedding=True)
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0}
    expected = make_llama().create_completion("the cat", **settings)["choices"]
    for _ in range(2):
        assert len(llm.embed("no dog is on the cat")) > 0
        assert llm.create_completion("the cat", **settings)["choices"] == expected
        with pytest.raises(ValueError, match="out of range"):
            llm.embed(["the cat", [99999]])
        assert llm.create_completion("the cat", **settings)["choices"] == expected
        assert llm.create_completion("the cat", **settings)["choices"] == expected


def test_unknown_arguments(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises(TypeError, match="num_draft_token"):
        llm.create_completion("the", num_draft_token=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        specllama.Llama()  # type: ignore[call-arg]
    assert_still_works(llm)


@pytest.mark.parametrize("value", ["x", float("nan"), 2.5, [3]])
def test_max_tokens_that_are_no_number_of_tokens(make_llama: MakeLlama, value: Any) -> None:
    llm = make_llama()
    with pytest.raises(TypeError, match=r"max_tokens=.* must be an int, or None for as many as fit"):
        llm.create_completion("the", max_tokens=value)
    (outcome,) = llm.create_completions([{"prompt": "the", "max_tokens": value}])
    assert "max_tokens=" in str(outcome.error)
    assert_still_works(llm)


@pytest.mark.parametrize("value", [2, 2.0, np.int64(2)])
def test_max_tokens_of_other_types(make_llama: MakeLlama, value: Any) -> None:
    assert make_llama().create_completion("the", max_tokens=value)["usage"]["completion_tokens"] == 2


def test_a_mistyped_constructor_argument_is_named(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(TypeError, match=r"Llama has no argument draft_modle: did you mean draft_model\?"):
        make_llama(draft_modle="draft.gguf")
    with pytest.raises(TypeError, match="Llama has no argument zzz; help"):
        make_llama(zzz=5)
    with pytest.raises(TypeError, match=r"the draft has no argument n_gpu_layer: did you mean n_gpu_layers\?"):
        make_llama(draft=tiny_files.good, draft_kwargs={"n_gpu_layer": 1})
    with pytest.raises(TypeError, match="the draft has no argument num_draft_tokens"):
        make_llama(draft=tiny_files.good, draft_kwargs={"num_draft_tokens": 1})


def test_what_langchain_gives_has_no_effect(make_llama: MakeLlama) -> None:
    assert_still_works(make_llama(n_parts=-1, f16_kv=True))


@pytest.mark.parametrize(
    ("name", "value"), [("n_ctx", "256"), ("n_ctx", True), ("n_ctx", None), ("n_batch", 1.5), ("n_threads", "2")]
)
def test_sizes_that_are_no_whole_numbers(
    make_llama: MakeLlama, tiny_files: TinyFiles, name: str, value: object
) -> None:
    with pytest.raises(TypeError, match=f"{name}={value!r} must be a whole number, from . to"):
        make_llama(**{name: value})
    with pytest.raises(TypeError, match=f"{name}={value!r} must be a whole number, from . to"):
        make_llama(draft=tiny_files.good, draft_kwargs={name: value})


def test_a_draft_argument_without_a_name(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(TypeError, match=r"draft_kwargs=\{5: 6\} must be a dict of the draft's constructor arguments"):
        make_llama(draft=tiny_files.good, draft_kwargs={5: 6})


def test_a_bias_of_no_token(make_llama: MakeLlama) -> None:
    with pytest.raises(ValueError, match="logit_bias: token 99999 is out of range: the vocabulary has the tokens 0 to"):
        make_llama().create_completion("the", logit_bias={99999: 1.0})


@pytest.mark.parametrize("bias", [1e300, 10**39, float("inf"), float("nan")])
def test_a_bias_that_is_too_large_is_named_with_its_token(make_llama: MakeLlama, bias: float) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match=re.escape(f"logit_bias: {bias!r} for token 5 is not a usable value")):
        llm.create_completion("the", logit_bias={5: bias})
    banned = llm.create_completion("the", max_tokens=4, logit_bias={5: -(10**400)})
    assert banned["usage"]["completion_tokens"] == 4


def test_more_alternatives_than_there_are_tokens(make_llama: MakeLlama) -> None:
    llm = make_llama()
    answer: Any = llm.create_completion("the", max_tokens=2, temperature=0.0, logprobs=2**70)
    assert len(answer["choices"][0]["logprobs"]["top_logprobs"][0]) > llm.n_vocab() // 2, "one for each text"
    chat: Any = llm.create_chat_completion(
        [{"role": "user", "content": "the"}], max_tokens=2, logprobs=True, top_logprobs=2**70
    )
    assert len(chat["choices"][0]["logprobs"]["content"]) == 2


def test_half_of_a_surrogate_pair_in_a_sequence_breaker(make_llama: MakeLlama) -> None:
    with pytest.raises(UnicodeEncodeError):
        make_llama().create_completion("the", dry_multiplier=1.0, dry_sequence_breakers=["\ud800"])


def test_a_llama_that_its_own_processor_calls(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)

    def process(ids: Any, scores: Any) -> Any:
        llm.create_completion("a", max_tokens=1)
        return scores

    with pytest.raises(specllama.BusyError, match=r"generating already.*a logits processor.*create one Llama for each"):
        llm.create_completion("the", logits_processor=llama_cpp.LogitsProcessorList([process]))
    assert_still_works(llm)
