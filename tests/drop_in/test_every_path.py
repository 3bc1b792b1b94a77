"""Each argument changes the text in the same way, whatever is called for it: a text, a stream, many texts, a chat."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from llama_cpp.llama_grammar import LlamaGrammar

from specllama import Conversation

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    import specllama

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")

PROMPT = "the cat sat"
MESSAGES: Any = [{"role": "user", "content": PROMPT}]
COMMON: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 3, "top_p": 1.0, "min_p": 0.0, "top_k": 0}


def no_spaces(ids: Any, scores: Any) -> Any:
    """A logits processor."""
    scores[259:] = -100.0
    return scores


def ends_soon() -> Callable[[Any, Any], bool]:
    """A stopping criterion."""
    first: list[int] = []

    def stop(ids: Any, logits: Any) -> bool:
        first.append(len(ids))
        return len(ids) - first[0] >= 5

    return stop


SETTINGS: dict[str, dict[str, Any]] = {
    "max_tokens": {"max_tokens": 7},
    "temperature": {"temperature": 0.3},
    "top_k": {"top_k": 2},
    "top_p": {"top_p": 0.2},
    "min_p": {"min_p": 0.5},
    "typical_p": {"typical_p": 0.2},
    "seed": {"seed": 4},
    "stop": {"stop": ["e", "a"]},
    "repeat_penalty": {"repeat_penalty": 3.0},
    "frequency_penalty": {"frequency_penalty": 2.0},
    "presence_penalty": {"presence_penalty": 2.0},
    "logit_bias": {"logit_bias": {270: 20.0}},
    "mirostat_mode": {"mirostat_mode": 2, "mirostat_tau": 1.0},
    "grammar": {"grammar": LlamaGrammar.from_string('root ::= [a-c]{9} "."', verbose=False)},
    "logits_processor": {"logits_processor": [no_spaces]},
    "min_tokens": {"min_tokens": 20, "logit_bias": {2: 60.0}},
    "dry": {"dry_multiplier": 9.0, "dry_allowed_length": 0},
    "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    "top_n_sigma": {"top_n_sigma": 0.3},
    "dynatemp": {"dynatemp_range": 1.0, "dynatemp_exponent": 5.0},
}


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good)


def texts_of(llm: specllama.Llama, settings: dict[str, Any]) -> dict[str, str]:
    """What the ways to a completion give."""
    chunks: Any = llm.create_completion(PROMPT, stream=True, **settings)
    many: Any = llm.create_completions([PROMPT, {"prompt": PROMPT, **settings}], **settings)
    return {
        "whole": llm.create_completion(PROMPT, **settings)["choices"][0]["text"],
        "called": llm(PROMPT, **settings)["choices"][0]["text"],
        "stream": "".join(chunk["choices"][0]["text"] for chunk in chunks),
        "tokens": "".join(token.text for token in llm.generate_tokens(PROMPT, **settings)),
        "many": many[0].text,
        "own": many[1].text,
        "plain": llm.create_completion(PROMPT, num_draft_tokens=0, **settings)["choices"][0]["text"],
    }


def chats_of(llm: specllama.Llama, settings: dict[str, Any]) -> dict[str, str]:
    """What the ways to a chat give."""
    chunks: Any = llm.create_chat_completion(MESSAGES, stream=True, **settings)
    many: Any = llm.create_chat_completions([MESSAGES, {"messages": MESSAGES, **settings}], **settings)
    return {
        "whole": llm.create_chat_completion(MESSAGES, **settings)["choices"][0]["message"]["content"],
        "stream": "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks),
        "many": many[0].text,
        "own": many[1].text,
        "conversation": "".join(token.text for token in Conversation(llm, **settings).say(PROMPT)),
        "turn": "".join(token.text for token in Conversation(llm).say(PROMPT, **settings)),
    }


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("ways", [texts_of, chats_of])
def test_it_changes_every_text_alike(
    llm: specllama.Llama, ways: Callable[[specllama.Llama, dict[str, Any]], dict[str, str]], name: str
) -> None:
    without = ways(llm, COMMON)["whole"]
    found = ways(llm, {**COMMON, **SETTINGS[name]})
    assert set(found.values()) == {found["whole"]}, found
    assert found["whole"] != without, "it has an effect"


def test_a_criterion_ends_every_text_alike(llm: specllama.Llama) -> None:
    """A chat has none: llama_cpp's method does not take it."""
    settings = {name: value for name, value in COMMON.items() if name != "max_tokens"}
    counts = [
        llm.create_completion(PROMPT, stopping_criteria=[ends_soon()], **settings)["usage"]["completion_tokens"],
        len(list(llm.generate_tokens(PROMPT, stopping_criteria=[ends_soon()], max_tokens=None, **settings))),
    ]
    (outcome,) = llm.create_completions([PROMPT], stopping_criteria=[ends_soon()], max_tokens=None, **settings)
    assert outcome.response is not None
    assert [*counts, outcome.response["usage"]["completion_tokens"]] == [5, 5, 5]
    with pytest.raises(TypeError, match="stopping_criteria"):
        llm.create_chat_completion(MESSAGES, stopping_criteria=[ends_soon()])
