"""`create_completions`: many texts at once from Python."""

from __future__ import annotations

import _thread
import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from exact import EXACT_CACHE

import specllama
from specllama import _core
from specllama.backend import libllama
from specllama.drop_in import call_on
from specllama.engine import checked_max_parallel
from specllama.many import Outcomes

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPTS = ["hello " * (i % 5 + 1) + "word " * i for i in range(14)]


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good, n_ctx=256, max_parallel=4, num_draft_tokens="auto", **EXACT_CACHE)


def text_of(response: Any) -> str:
    return str(response["choices"][0]["text"])


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0.0},
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.9, "seed": 5, "logprobs": 2},
        {"temperature": 0.7, "seed": 5, "dry_multiplier": 0.8, "stop": ["a"]},
        {"temperature": 0.7, "seed": 5, "verify": "block", "num_draft_tokens": 3},
        {"temperature": 0.0, "logit_bias": {"7": 3.0}, "echo": True, "repeat_penalty": 1.1},
    ],
)
def test_each_is_what_create_completion_gives(llm: specllama.Llama, options: dict[str, Any]) -> None:
    outcomes = llm.create_completions(PROMPTS, max_tokens=24, **options)
    assert [outcome.index for outcome in outcomes] == list(range(len(PROMPTS)))
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        alone = llm.create_completion(prompt, max_tokens=24, **options)
        assert outcome.text == text_of(alone)
        assert outcome.response is not None
        assert outcome.response["usage"] == alone["usage"]
        assert outcome.stats.num_tokens == llm.stats.num_tokens
    counters = llm.engine.texts.counters
    assert counters is not None
    assert counters.most_texts > 1


def test_logprobs_are_those_of_the_text(llm: specllama.Llama) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0.0, "logprobs": 3}
    for prompt, outcome in zip(PROMPTS, llm.create_completions(PROMPTS, **options), strict=True):
        assert outcome.response is not None
        found = outcome.response["choices"][0]["logprobs"]
        alone = llm.create_completion(prompt, **options)["choices"][0]["logprobs"]
        assert found["tokens"] == alone["tokens"]
        np.testing.assert_allclose(found["token_logprobs"], alone["token_logprobs"], atol=2e-3)


def test_chats(llm: specllama.Llama) -> None:
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS[:5]]
    for messages, outcome in zip(chats, llm.create_chat_completions(chats, max_tokens=8, seed=1), strict=True):
        alone = llm.create_chat_completion(messages, max_tokens=8, seed=1)
        assert outcome.text == alone["choices"][0]["message"]["content"]


def test_a_seed_of_the_llama_gives_each_text_its_own(make_llama: MakeLlama) -> None:
    """The same ones, in the same order, as one call after the other."""
    one, other = make_llama(seed=7, max_parallel=3), make_llama(seed=7)
    found = [outcome.text for outcome in one.create_completions(["hello"] * 6, max_tokens=12, temperature=1.0)]
    assert found == [text_of(other.create_completion("hello", max_tokens=12, temperature=1.0)) for _ in range(6)]
    assert len(set(found)) > 1


def test_arguments_of_its_own_and_errors_of_its_own(llm: specllama.Llama) -> None:
    given: list[Any] = [
        "hello",
        {"prompt": "hello", "max_tokens": 3},
        {"prompt": "hello", "temprature": 1.0},
        {"text": "hello"},
        5,
        "word " * 5000,
        {"prompt": "hello", "grammar": "broken"},
        {"prompt": "hello", "stream": True},
        "word",
    ]
    outcomes = llm.create_completions(given, max_tokens=9, temperature=0.5, seed=1)
    errors = {outcome.index: str(outcome.error) for outcome in outcomes if outcome.error}
    assert sorted(errors) == [2, 3, 4, 5, 6, 7]
    assert "temprature" in errors[2]
    assert "'prompt'" in errors[3]
    assert "n_ctx" in errors[5]
    assert "together" in errors[7]
    assert outcomes[1].stats.num_tokens == 3
    for i in (0, 8):
        assert outcomes[i].text == text_of(llm.create_completion(given[i], max_tokens=9, temperature=0.5, seed=1))
    with pytest.raises(TypeError, match="temprature"):
        _ = outcomes[2].text


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_what_takes_the_model_alone_is_generated_beside_the_others(llm: specllama.Llama) -> None:
    given: list[Any] = [
        {"prompt": f"hello {i}", **arguments}
        for i in range(4)
        for arguments in ({}, {"mirostat_mode": 2}, {"echo": True, "logprobs": 1})
    ]
    options = {"max_tokens": 9, "temperature": 0.5, "seed": 1}
    outcomes = llm.create_completions(given, **options)
    assert [outcome.error for outcome in outcomes] == [None] * len(given)
    for outcome, arguments in zip(outcomes, given, strict=True):
        assert outcome.text == text_of(llm.create_completion(**arguments, **options)), arguments
    scored = outcomes[2].response["choices"][0]["logprobs"]
    assert scored["tokens"][0] and len(scored["tokens"]) > 9
    counters = llm.engine.texts.counters
    assert counters is not None and counters.num_tokens > 9, "the others were at places"
    with pytest.raises(ValueError, match="not of a slot"), llm.engine.texts.taken(2, lambda: None) as slot:
        llm.create_completion("hello", mirostat_mode=2, call=call_on(llm, slot=slot))


def test_who_waits_for_the_llama_itself_can_be_ended(llm: specllama.Llama) -> None:
    taken, done = threading.Event(), threading.Event()

    def take() -> None:
        with llm.engine.texts.taken(1, lambda: None, is_alone=True) as itself:
            assert itself is llm.engine.slot
            taken.set()
            done.wait(30)

    taker = threading.Thread(target=take)
    taker.start()
    assert taken.wait(30)
    outcomes: Any = llm.create_completions(["hello", {"prompt": "hello", "mirostat_mode": 2}], stream=True, seed=1)
    assert next(outcomes).index == 0
    outcomes.close()
    assert not list(outcomes)
    done.set()
    taker.join()


def test_outcomes_as_they_come(llm: specllama.Llama) -> None:
    """Nothing is read from the source, or kept, beyond what is under way and a few that wait."""
    num_read = 0

    def endless() -> Iterator[str]:
        nonlocal num_read
        for i in itertools.count():
            num_read += 1
            yield f"hello {i}"

    with llm.create_completions(endless(), max_tokens=4, stream=True) as outcomes:
        for num_taken, outcome in enumerate(itertools.islice(outcomes, 30)):
            assert outcome.error is None
            assert num_read <= num_taken + 1 + 4 * 4
            time.sleep(0.002)
    assert text_of(llm.create_completion("hello", max_tokens=4))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("specllama-text")]


def test_leaving_ends_what_is_under_way(llm: specllama.Llama) -> None:
    outcomes = llm.create_completions(["hello"] * 100, max_tokens=200, stream=True, temperature=1.0)
    next(outcomes)
    start = time.perf_counter()
    outcomes.close()
    assert time.perf_counter() - start < 5.0
    with pytest.raises(StopIteration):
        next(outcomes)
    assert len(llm.create_completions(["hello"] * 4, max_tokens=2)) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("has_started", [False, True])
def test_ctrl_c_while_they_start(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, stream: bool, has_started: bool
) -> None:
    """No thread is left, so that the Llama is free at once, also one whose memory cannot be shared."""
    llm = make_llama(tiny_files.recurrent, n_ctx=256)
    start = _thread.start_new_thread

    def interrupted(function: Callable[[], None], arguments: tuple[()]) -> None:
        if has_started:
            start(function, arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(_thread, "start_new_thread", interrupted)
        llm.create_completions(["hello"] * 100, max_tokens=200, temperature=1.0, stream=stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("specllama-text")]
    assert text_of(llm.create_completion("hello", max_tokens=2))


def test_an_error_of_the_source_is_raised(llm: specllama.Llama) -> None:
    def broken() -> Iterator[str]:
        yield "hello"
        raise OSError("the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        llm.create_completions(broken(), max_tokens=4)
    assert llm.create_completions(["hello"], max_tokens=2)[0].error is None


def test_async(llm: specllama.Llama) -> None:
    async def texts() -> dict[int, str]:
        return {outcome.index: outcome.text async for outcome in llm.acreate_completions(PROMPTS, max_tokens=5, seed=2)}

    found = asyncio.run(texts())
    expected = llm.create_completions(PROMPTS, max_tokens=5, seed=2)
    assert [found[i] for i in range(len(PROMPTS))] == [outcome.text for outcome in expected]


def test_cancelled_before_the_first(llm: specllama.Llama) -> None:
    async def cancelled() -> None:
        texts = llm.acreate_completions(["hello"] * 100, max_tokens=20)
        first = asyncio.ensure_future(anext(texts))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(cancelled())
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("specllama-text")]


def test_the_llama_itself_is_free_meanwhile(llm: specllama.Llama) -> None:
    before = text_of(llm.create_completion("hello", max_tokens=9, seed=1))
    n_tokens = llm.n_tokens
    with llm.create_completions(["word"] * 20, max_tokens=30, stream=True) as outcomes:
        next(outcomes)
        assert text_of(llm.create_completion("hello", max_tokens=9, seed=1)) == before
        assert sum(outcome.error is None for outcome in outcomes) == 19
    assert llm.n_tokens == n_tokens


def test_several_calls_share_the_places(llm: specllama.Llama) -> None:
    results: dict[int, list[str]] = {}

    def call(number: int) -> None:
        results[number] = [outcome.text for outcome in llm.create_completions(PROMPTS, max_tokens=9, seed=number)]

    threads = [threading.Thread(target=call, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number in range(3):
        assert results[number] == [
            text_of(llm.create_completion(prompt, max_tokens=9, seed=number)) for prompt in PROMPTS
        ]


def test_total_stats_count_all_texts(llm: specllama.Llama) -> None:
    """At all places, also at those that are no more."""
    num_tokens = num_drafted = 0
    for _ in range(2):
        outcomes = llm.create_completions(PROMPTS * 4, max_tokens=9, num_draft_tokens=3)
        num_tokens += sum(outcome.stats.num_tokens for outcome in outcomes)
        num_drafted += sum(outcome.stats.num_draft_tokens for outcome in outcomes)
        assert (llm.total_stats.num_tokens, llm.total_stats.num_draft_tokens) == (num_tokens, num_drafted)
        llm.draft_model = "lookup"
    assert num_drafted > 0


def test_all_places_together_warn_once(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=lambda tokens: 1 // 0, n_ctx=256, max_parallel=4)
    with pytest.warns(specllama.FallbackWarning, match="decoding plainly") as warned:
        outcomes = llm.create_completions(PROMPTS, max_tokens=4, num_draft_tokens=2)
    assert all(outcome.error is None for outcome in outcomes)
    assert len(warned) == 1


def test_another_draft_means_other_places(llm: specllama.Llama, tiny_files: TinyFiles) -> None:
    expected = [outcome.text for outcome in llm.create_completions(PROMPTS, max_tokens=9, temperature=0.0)]
    for draft in (None, "lookup", str(tiny_files.bad), lambda tokens: tokens[-1:]):
        llm.draft_model = draft
        assert [o.text for o in llm.create_completions(PROMPTS, max_tokens=9, temperature=0.0)] == expected
    drafted = llm.create_completions(PROMPTS, max_tokens=9, temperature=0.0, num_draft_tokens=2)
    assert all(outcome.stats.num_draft_tokens for outcome in drafted)


def test_another_draft_waits_for_the_texts_under_way(llm: specllama.Llama) -> None:
    with llm.create_completions(["hello"] * 50, max_tokens=200, stream=True) as outcomes:
        next(outcomes)
        llm.draft_model = "lookup"
        with pytest.raises(specllama.BusyError, match="under way with the draft as it was before: wait for them"):
            llm.create_completions(["hello"], max_tokens=2)
    assert llm.create_completions(["hello"], max_tokens=2)[0].error is None


@pytest.mark.parametrize("name", ["recurrent", "hybrid", "sliding"])
def test_other_memories(make_llama: MakeLlama, tiny_files: TinyFiles, name: str) -> None:
    can_share = name == "sliding" or hasattr(llama_cpp, "llama_model_is_hybrid")
    draft = getattr(tiny_files, f"{name}_draft") if can_share else None
    llm = make_llama(getattr(tiny_files, name), draft=draft, n_ctx=256, **EXACT_CACHE)
    outcomes = llm.create_completions(PROMPTS, max_tokens=9, temperature=0.0)
    counters = llm.engine.texts.counters
    assert (counters is not None and counters.most_texts > 1) == can_share
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        assert outcome.text == text_of(llm.create_completion(prompt, max_tokens=9, temperature=0.0))


def test_a_hybrid_of_a_release_that_cannot_tell(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0.3.16 has no function that says whether a model is one."""
    known = {found.name for found in _core.required_functions()}
    addresses = {name: address for name, address in libllama._addresses(llama_cpp).items() if name in known}
    monkeypatch.setattr(libllama, "API", _core.LlamaApi(addresses))
    monkeypatch.delattr(llama_cpp, "llama_model_is_hybrid", raising=False)
    llm = make_llama(tiny_files.hybrid, n_ctx=256)
    outcomes = llm.create_completions(PROMPTS, max_tokens=9, temperature=0.0)
    assert llm.engine.texts.counters is None
    for prompt, outcome in zip(PROMPTS, outcomes, strict=True):
        assert outcome.text == text_of(
            make_llama(tiny_files.hybrid).create_completion(prompt, max_tokens=9, temperature=0.0)
        )


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (10**6, ValueError), ("4", TypeError), (True, TypeError)]
)
def test_a_number_of_texts_that_cannot_be(make_llama: MakeLlama, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="max_parallel"):
        checked_max_parallel(value)
    with pytest.raises(error, match="max_parallel"):
        make_llama(max_parallel=value)


def test_one_text_is_no_list(llm: specllama.Llama) -> None:
    with pytest.raises(TypeError, match="must be a list"):
        llm.create_completions("hello")


def test_outcomes_are_an_iterator(llm: specllama.Llama) -> None:
    with llm.create_completions(["hello"], max_tokens=1, stream=True) as outcomes:
        assert isinstance(outcomes, Outcomes)
        assert iter(outcomes) is outcomes
