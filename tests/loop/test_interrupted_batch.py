"""Ctrl-C and a client that leaves act inside a prompt's batch, on a model that is slow enough for it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import tiny_models as tiny
from interrupts import SOON, seconds_until_interrupted

import specllama
from specllama.drop_in.view import call_on
from specllama.drop_in.watch import Watch
from specllama.engine.listener import Stopped

PROMPT = [1, *(270 + i % 40 for i in range(1500))]
LATEST = 0.5
"""Seconds after which it must have ended: the promise is 0.2, and the machine of a test may be busy."""


@pytest.fixture
def slow(opened: specllama.Llama) -> specllama.Llama:
    empty(opened)
    return opened


def empty(llm: specllama.Llama) -> None:
    llm.reset()
    llm.engine.slot.sequence.keep(0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[specllama.Llama]:
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1, n_embd=512, n_ff=2048, n_layer=8)
    path = tiny.write_llama(tmp_path_factory.mktemp("slow") / "slow.gguf", words, weights)
    options: dict[str, Any] = {"n_ctx": 2048, "n_batch": 2048, "n_ubatch": 2048, "n_threads": 1, "n_threads_batch": 1}
    llm = specllama.Llama(str(path), draft_model="lookup", verbose=False, **options)
    yield llm
    llm.close()


def seconds_of(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def first_tokens(llm: specllama.Llama, prompt: list[int], **asked: Any) -> list[int]:
    return [token.id for token in llm.generate_tokens(prompt, max_tokens=3, temperature=0.0, **asked)]


@pytest.mark.sampled(1)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timers that send signals")
def test_a_signal_ends_a_batch(slow: specllama.Llama) -> None:
    took = SOON + seconds_until_interrupted(lambda: first_tokens(slow, PROMPT))
    assert_ended_early(slow, took)


@pytest.mark.long
def test_a_client_that_leaves_ends_a_batch(slow: specllama.Llama) -> None:
    watch = Watch()
    timer = threading.Timer(SOON, watch.stop)
    timer.start()
    start = time.perf_counter()
    with pytest.raises(Stopped):
        first_tokens(slow, PROMPT, call=call_on(slow, watch=watch))
    took = time.perf_counter() - start
    timer.join()
    assert_ended_early(slow, took)


def assert_ended_early(llm: specllama.Llama, took: float) -> None:
    """And the caches are at a committed position: what comes next equals what comes without an interruption."""
    assert llm.engine.slot.sequence.num_tokens == 0, "nothing of the batch is left"
    whole = seconds_of(lambda: first_tokens(llm, PROMPT))
    assert whole > 3 * SOON, "else the batch was at its end, and nothing is shown"
    assert took < SOON + min(LATEST, 0.6 * whole)
    after = first_tokens(llm, PROMPT[:700])
    empty(llm)
    assert first_tokens(llm, PROMPT[:700]) == after
