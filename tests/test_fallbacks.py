"""What cannot be applied exactly under speculation yet decodes plainly, says so once, and is never ignored."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from responses import PROMPT, Pair, assert_same, comparable, complete

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

GRAMMAR = 'root ::= ("cat" | "dog") " " root'


def yes_processor(input_ids: Any, scores: Any) -> Any:
    """Makes one token a little likelier."""
    scores = np.copy(scores)
    scores[280] += 2.0
    return scores


FALLBACKS: dict[str, dict[str, Any]] = {
    "logits processor": {"logits_processor": llama_cpp.LogitsProcessorList([yes_processor]), "temperature": 0.0},
    "logits processor and bias": {
        "logits_processor": llama_cpp.LogitsProcessorList([yes_processor]),
        "logit_bias": {290: 1.0},
        "temperature": 0.0,
    },
    "logits processor and grammar": {
        "logits_processor": llama_cpp.LogitsProcessorList([yes_processor]),
        "grammar": "GRAMMAR",
        "temperature": 0.0,
    },
    "mirostat 1": {"mirostat_mode": 1, "temperature": 0.8, "seed": 3},
    "mirostat 2": {"mirostat_mode": 2, "temperature": 0.8, "seed": 3},
}


def fallback_settings(name: str) -> dict[str, Any]:
    settings = {"max_tokens": 15, **FALLBACKS[name]}
    if "grammar" in settings:
        settings["grammar"] = llama_cpp.LlamaGrammar.from_string(GRAMMAR, verbose=False)
    return settings


@pytest.mark.parametrize("name", FALLBACKS)
def test_what_cannot_be_exact_yet_decodes_plainly_and_says_so_once(pair: Pair, name: str) -> None:
    llm, base = pair
    if name == "logits processor and bias":
        with pytest.warns(specllama.FallbackWarning, match="logits processor"):
            llm.create_completion(PROMPT, **fallback_settings(name))
    else:
        theirs = comparable(base.create_completion(PROMPT, **fallback_settings(name)))
        with pytest.warns(specllama.FallbackWarning, match=name.split()[0]):
            ours = comparable(llm.create_completion(PROMPT, **fallback_settings(name)))
        assert_same(ours, theirs)
    assert llm.stats.num_drafts == 0
    assert llm.stats.num_draft_tokens_decoded == 0
    assert name.split()[0] in (llm.stats.fallback_reason or "")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.create_completion(PROMPT, **fallback_settings(name))  # not a second time
    complete(pair)
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_drafts > 0


def test_a_grammar_is_never_ignored(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.warns(specllama.FallbackWarning):
        response = llm.create_completion(PROMPT, **fallback_settings("logits processor and grammar"))
    text = response["choices"][0]["text"]
    assert set(text.split()) <= {"cat", "dog", "c", "ca", "d", "do"}


def test_a_processor_and_a_bias_are_both_applied(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    ban = llama_cpp.LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == 280, -np.inf, scores)])
    with pytest.warns(specllama.FallbackWarning):
        tokens = llm.create_completion(
            PROMPT, max_tokens=20, temperature=0.0, logits_processor=ban, logit_bias={280: 50.0}
        )
    assert llm.detokenize([280]).decode() not in tokens["choices"][0]["text"]


def test_without_a_draft_nothing_warns(make_llama: MakeLlama, make_base: MakeBase) -> None:
    pair = (make_llama(), make_base())
    complete(pair)
    for name in ("logits processor and grammar", "logits processor", "mirostat 2"):
        complete(pair, **fallback_settings(name))
        assert pair[0].stats.num_tokens > 0
