"""Who would wait for himself is told, and Ctrl-C ends every wait within a second."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from interrupts import seconds_until_interrupted

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama

LATEST = 1.5
"""Seconds. The promise is one, and the machine of a test may be busy."""
needs_timers = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timers that send signals")


@pytest.mark.parametrize("max_parallel", [1, 3])
@pytest.mark.parametrize("inner", [1, 2])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_a_text_that_asks_its_own_llama_for_others(
    make_llama: MakeLlama, where: str, inner: int, max_parallel: int
) -> None:
    llm = make_llama(max_parallel=max_parallel)

    def ask(ids: Any, scores: Any) -> Any:
        llm.create_completions(["a dog"] * 2, max_tokens=2, max_parallel=inner)
        return scores

    given: Any = [ask] if where == "logits_processor" else ask
    outcomes = llm.create_completions(["the cat"] * 5, max_tokens=2, **{where: given})
    assert [type(outcome.error) for outcome in outcomes] == [specllama.BusyError] * 5
    assert [outcome.error for outcome in llm.create_completions(["the cat"] * 5, max_tokens=2)] == [None] * 5


def test_numbers_of_places_that_differ(make_llama: MakeLlama) -> None:
    """Places are closed by who asks for one text at a time, and are there again for who asked for more."""
    llm = make_llama(max_parallel=4)
    errors: list[object] = []

    def ask(count: int) -> None:
        for _ in range(60):
            outcomes = llm.create_completions(["the cat", "a dog"] * 2, max_tokens=1, max_parallel=count)
            errors.extend(outcome.error for outcome in outcomes if outcome.error)

    threads = [threading.Thread(target=ask, args=(count,)) for count in (1, 4, 1, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


@needs_timers
def test_a_source_of_prompts_that_waits(make_llama: MakeLlama) -> None:
    llm, go_on = make_llama(max_parallel=3), threading.Event()

    def prompts() -> Iterator[str]:
        yield "the cat"
        go_on.wait(30)

    try:
        assert seconds_until_interrupted(lambda: llm.create_completions(prompts(), max_tokens=2)) < LATEST
    finally:
        go_on.set()


@needs_timers
@pytest.mark.parametrize("count", [1, 2])
def test_places_that_are_all_taken(make_llama: MakeLlama, count: int) -> None:
    llm, begun, go_on = make_llama(max_parallel=count), threading.Event(), threading.Event()

    def hold(ids: Any, scores: Any) -> Any:
        begun.set()
        go_on.wait(30)
        return False

    first: Any = llm.create_completions(["the cat"] * count, max_tokens=2, stopping_criteria=hold, stream=True)
    try:
        assert begun.wait(30)
        assert seconds_until_interrupted(lambda: llm.create_completions(["a dog"], max_tokens=2)) < LATEST
        assert seconds_until_interrupted(lambda: next(first)) < LATEST
    finally:
        go_on.set()
        first.close()
    assert [outcome.error for outcome in llm.create_completions(["the cat"] * 3, max_tokens=2)] == [None] * 3
