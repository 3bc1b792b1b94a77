"""A grammar that takes long at each token stops nobody else, ends with Ctrl-C, and has a limit."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny
from fresh import text_of
from interrupts import seconds_until_interrupted
from test_waiting import LATEST, needs_timers

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama

LETTERS = "abcdefghijk"
ALL_TOKENS: dict[str, Any] = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "temperature": 1.0, "seed": 3}
"""The grammar is asked about each of them."""
MOST_SECONDS = 10.0
FOREVER, A_WHILE = (
    'root ::= "no" (' + " | ".join(f'[a-k]* "{number}"' for number in range(alternatives)) + ")"
    for alternatives in (10_000, 100)
)
"""llama.cpp follows all alternatives to the end of each token."""


def grammar(text: str) -> Any:
    return llama_cpp.LlamaGrammar.from_string(text, verbose=False)


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = tiny.word_vocabulary()
    # Each begins as the grammars allow it, and ends otherwise.
    tokens = ["".join(letters) for letters in itertools.product(LETTERS, LETTERS, LETTERS, LETTERS, "~!?")]
    vocabulary = tiny.Vocabulary(
        [*words.tokens, *tokens], [*words.scores, *[-1000.0] * len(tokens)], [*words.types, *[1] * len(tokens)]
    )
    return tiny.write_llama(
        tmp_path_factory.mktemp("slow") / "slow.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1)
    )


@needs_timers
@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize(
    "call",
    [
        lambda llm, options: llm.create_completion("the cat", **options),
        lambda llm, options: llm.create_completions(["the cat", "a dog"], **options),
    ],
    ids=["one", "many"],
)
def test_ctrl_c_ends_it(
    make_llama: MakeLlama, slow: Path, call: Callable[[specllama.Llama, Any], Any], drafts: bool
) -> None:
    llm = make_llama(slow, slow if drafts else None, max_parallel=2)
    options = {**ALL_TOKENS, "max_tokens": 20, "grammar": grammar(FOREVER)}
    assert seconds_until_interrupted(lambda: call(llm, options)) < LATEST
    assert text_of(llm) == text_of(make_llama(slow))


@pytest.mark.long
def test_it_has_a_limit(make_llama: MakeLlama, slow: Path) -> None:
    llm = make_llama(slow)
    text = ""
    with pytest.raises(
        ValueError, match=r"more than 10 s to find out what this grammar allows after \d+ tokens"
    ) as found:
        for chunk in llm.create_completion(
            "the cat", **ALL_TOKENS, max_tokens=20, grammar=grammar(FOREVER), stream=True
        ):
            text += chunk["choices"][0]["text"]
    assert text
    assert "no".startswith(text)  # an error may come before what a stream still holds back
    assert f"It begins: {FOREVER[:200]}" in str(found.value)
    expected = text_of(make_llama(slow), "the cat")
    assert text_of(llm, "the cat") == expected
    assert llm.stats.num_prompt_tokens_reused > 0


@pytest.mark.long
def test_others_do_not_wait_for_it(make_llama: MakeLlama, slow: Path) -> None:
    llm = make_llama(slow, max_parallel=4, num_draft_tokens="auto")
    plain = {"max_tokens": 40, "temperature": 0.0}
    alone = [llm.create_completion(prompt, **plain)["choices"][0]["text"] for prompt in ("the cat", "a dog", "on")]
    asked = [{"prompt": "no", "grammar": grammar(FOREVER), "max_tokens": 20, **ALL_TOKENS}]
    asked += [{"prompt": prompt, **plain} for prompt in ("the cat", "a dog", "on")]
    start = time.monotonic()
    ended = [(outcome, time.monotonic() - start) for outcome in llm.create_completions(asked, stream=True)]
    *others, (last, _) = ended
    assert isinstance(last.error, ValueError)
    assert [outcome.text for outcome, _ in sorted(others, key=lambda one: one[0].index)] == alone
    assert max(seconds for _, seconds in others) < MOST_SECONDS / 2


@pytest.mark.filterwarnings("ignore:the grammar takes too long to draft")  # on a slow machine
@pytest.mark.parametrize("drafts", [False, True])
def test_it_gives_way_while_it_takes_long(make_llama: MakeLlama, slow: Path, drafts: bool) -> None:
    """Its cells too, and goes on where it was."""
    llm = make_llama(slow, slow if drafts else None, n_ctx=256, cache_tokens=256, max_parallel=4, verify="coupled")
    long = {"max_tokens": 120, "temperature": 0.0}
    asked = [{"prompt": "the cat", "grammar": grammar(A_WHILE), "max_tokens": 4, **ALL_TOKENS}]
    asked += [{"prompt": prompt, **long} for prompt in ("a dog", "on", "the dog", "in")]
    outcomes = llm.create_completions(asked)
    counters = llm.engine.texts.counters
    llm.max_parallel = 1
    assert [outcome.text for outcome in outcomes] == [
        llm.create_completion(**one)["choices"][0]["text"] for one in asked
    ]
    assert counters is not None
    assert counters.num_pauses > 0
