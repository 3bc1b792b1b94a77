"""num_draft_tokens="auto" and max_draft_tokens as options: of a Llama, of one call, and of a copy."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from fresh import PROMPT, text_of
from test_auto import auto

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


def test_auto_for_one_call(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=2)
    for call in (llm.create_completion, llm.__call__):
        call(PROMPT, max_tokens=20, num_draft_tokens="auto")
        assert llm.stats.plain_seconds > 0.0
    list(llm.generate_tokens(PROMPT, max_tokens=20, num_draft_tokens="auto"))
    assert llm.stats.plain_seconds > 0.0
    llm.create_chat_completion([{"role": "user", "content": "the cat"}], max_tokens=20, num_draft_tokens="auto")
    assert llm.stats.plain_seconds > 0.0
    llm.create_completion(PROMPT, max_tokens=20)
    assert llm.stats.plain_seconds == 0.0
    assert llm.num_draft_tokens == 2


def test_the_speedup_of_several_generations_is_that_of_auto(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good")
    text_of(llm)
    one = llm.stats
    for num_draft_tokens in (0, 3):
        text_of(llm, num_draft_tokens=num_draft_tokens)
        assert llm.stats.realised_speedup == llm.stats.predicted_speedup == 0.0
    total = llm.total_stats
    assert total.verify_seconds > one.verify_seconds
    assert (total.realised_speedup, total.predicted_speedup) == (one.realised_speedup, one.predicted_speedup)
    assert f"speedup {one.realised_speedup:.2f} (predicted {one.predicted_speedup:.2f})" in str(total)
    text_of(llm)
    two = llm.stats
    spent = [each.draft_seconds + each.verify_seconds + each.rollback_seconds for each in (one, two)]
    gained = one.realised_speedup * spent[0] + two.realised_speedup * spent[1]
    assert llm.total_stats.realised_speedup == pytest.approx(gained / sum(spent))
    predicted = sorted((one.predicted_speedup, two.predicted_speedup))
    assert predicted[0] * 0.999 <= llm.total_stats.predicted_speedup <= predicted[1] * 1.001


@pytest.mark.parametrize("value", ["AUTO", "4", 1.5, True, None, b"auto", ["auto"]])
def test_other_values_than_auto_or_an_int(make_llama: MakeLlama, value: Any) -> None:
    message = r"num_draft_tokens=.* must be an int, from 0 \(plain decoding\) up, or 'auto'"
    with pytest.raises(TypeError, match=message) as caught:
        make_llama(num_draft_tokens=value)
    assert repr(value) in str(caught.value)
    if value is not None:  # which means "not given" there
        with pytest.raises(TypeError, match=message):
            make_llama().create_completion(PROMPT, num_draft_tokens=value)


@pytest.mark.parametrize("value", [0, -3, 513, "auto", 1.5, True, None])
def test_max_draft_tokens_that_cannot_be(make_llama: MakeLlama, value: Any) -> None:
    """Neither given nor assigned."""
    llm, error = make_llama(max_draft_tokens=4), ValueError if type(value) is int else TypeError
    with pytest.raises(error, match=f"max_draft_tokens={value!r} .* from 1 up"):
        make_llama(max_draft_tokens=value)
    with pytest.raises(error, match=f"max_draft_tokens={value!r}"):
        llm.max_draft_tokens = value
    assert llm.max_draft_tokens == 4


@pytest.mark.parametrize("memory", ["target", "recurrent", "hybrid"])
def test_max_draft_tokens_can_be_changed(make_llama: MakeLlama, tiny_files: TinyFiles, memory: str) -> None:
    """Also to more than a recurrent memory was opened with snapshots for."""
    path = getattr(tiny_files, memory)
    expected = text_of(make_llama(path))
    llm = make_llama(path, lambda history: np.full(40, history[-1]), num_draft_tokens="auto", max_draft_tokens=1)
    for most in (1, 3, 16, 2):
        llm.max_draft_tokens = most
        assert llm.max_draft_tokens == most
        assert text_of(llm) == expected
        assert len(llm.stats.num_draft_tokens_per_pos) == most
    copy = pickle.loads(pickle.dumps(make_llama(max_draft_tokens=3)))
    assert copy.max_draft_tokens == 3
    copy.close()


def test_a_function_drafts_sixteen_tokens_at_most(make_llama: MakeLlama) -> None:
    """Nobody paces it, and 64 are for copies."""
    expected = text_of(make_llama())
    llm = make_llama(draft=lambda history: np.full(40, history[-1]), num_draft_tokens="auto", max_draft_tokens=64)
    assert text_of(llm) == expected
    assert len(llm.stats.num_draft_tokens_per_pos) == 16


def test_pickling(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = auto(make_llama, tiny_files, "good", max_draft_tokens=2)
    copy = pickle.loads(pickle.dumps(llm))
    assert copy.num_draft_tokens == "auto"
    text_of(copy)
    assert len(copy.stats.num_rounds_per_gamma) <= 3
    assert text_of(copy) == text_of(llm)
    assert pickle.loads(pickle.dumps(copy)).engine.account.options == llm.engine.account.options
    copy.close()


@pytest.mark.parametrize("draft", [None, "lookup", "good"])
def test_pickling_after_the_draft_was_exchanged(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str | None
) -> None:
    """Arguments that were for the first draft do not stand in the way."""
    for first, kwargs in (("lookup", {"lookup_corpus": "the cat"}), ("bad", {"draft_kwargs": {"n_ctx": 256}})):
        llm = auto(make_llama, tiny_files, first, **kwargs)
        llm.draft_model = str(tiny_files.good) if draft == "good" else draft
        copy = pickle.loads(pickle.dumps(llm))
        assert (copy.draft_model is None) == (draft is None)
        assert isinstance(copy.draft_model, llama_cpp.Llama) == (draft == "good")
        copy.close()
