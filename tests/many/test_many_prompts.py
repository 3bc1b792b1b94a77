"""A thousand prompts at once: bad ones among them, and calls that are given up beside them."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from exact import EXACT_CACHE
from resident import resident_megabytes

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

NUM_PROMPTS = 1000
NUM_GIVEN_UP = NUM_PROMPTS // 20
MOST_GROWTH = 5.0  # MB, over the last two thirds
BAD: list[tuple[Any, type[Exception], str]] = [
    ("word " * 5000, ValueError, "context"),
    ([], ValueError, "empty"),
    ({"prompt": "a", "grammar": llama_cpp.LlamaGrammar.from_string('root ::= "a')}, ValueError, "grammar"),
    ({"prompt": "a", "grammar": "x"}, TypeError, "LlamaGrammar"),
    (3, TypeError, "prompt"),
    ({"prompt": None}, TypeError, "prompt"),
    ({"prompt": "a", "temprature": 1.0}, TypeError, "temprature"),
]


def given() -> Iterator[Any]:
    """Every tenth is bad."""
    for i in range(NUM_PROMPTS):
        yield BAD[i // 10 % len(BAD)][0] if i % 10 == 3 else good(i)


def good(i: int) -> str:
    return f"hello {i} " + "word " * (i % 17)


def give_up(llm: specllama.Llama, done: threading.Event) -> None:
    """One call after the other whose text is ended before its time."""
    chance = random.Random(5)
    for i in range(NUM_GIVEN_UP):
        with llm.create_completions([f"stop {i} me"], max_tokens=230, temperature=1.0, stream=True):
            done.wait(chance.random() * 0.05)


def test_outcomes_that_are_dropped(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Their threads end, and nothing of theirs keeps the Llama."""
    llm = make_llama(n_ctx=256, max_parallel=3)
    for _ in range(3):
        for _ in llm.create_completions(["the cat"] * 12, max_tokens=4, stream=True):
            break
    deadline = time.monotonic() + 20
    while any(thread.name.startswith("specllama-text") for thread in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    found = llm.create_completions(["the cat"] * 4, max_tokens=4, temperature=0.0)
    assert len({outcome.text for outcome in found}) == 1


@pytest.mark.long
def test_a_thousand(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Every good one is what it is alone, each bad one has its own error, and memory does not grow."""
    llm = make_llama(draft=tiny_files.good, n_ctx=256, max_parallel=4, num_draft_tokens="auto", **EXACT_CACHE)
    texts: dict[int, str] = {}
    errors: dict[int, tuple[type[BaseException], str]] = {}
    resident: list[float | None] = []
    done = threading.Event()
    leaver = threading.Thread(target=give_up, args=(llm, done))
    leaver.start()
    try:
        with llm.create_completions(given(), max_tokens=6, temperature=0.8, seed=11, stream=True) as outcomes:
            for outcome in outcomes:
                if outcome.error is None:
                    texts[outcome.index] = outcome.text
                else:
                    errors[outcome.index] = type(outcome.error), str(outcome.error)
                if len(texts) + len(errors) in (NUM_PROMPTS // 3, NUM_PROMPTS):
                    resident.append(resident_megabytes())
    finally:
        done.set()
        leaver.join()
    assert sorted([*texts, *errors]) == list(range(NUM_PROMPTS))
    assert sorted(errors) == list(range(3, NUM_PROMPTS, 10))
    for i, (kind, said) in errors.items():
        _, error, match = BAD[i // 10 % len(BAD)]
        assert issubclass(kind, error), said
        assert match in said
    for i, text in texts.items():
        alone: Any = llm.create_completion(good(i), max_tokens=6, temperature=0.8, seed=11)
        assert text == alone["choices"][0]["text"], i
    first, last = resident
    assert first is None or last is None or last - first < MOST_GROWTH, f"{first:.1f} MB, then {last:.1f}"
