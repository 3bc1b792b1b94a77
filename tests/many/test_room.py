"""Many texts in a cache that is too small for all of them: some wait, and each is the text that it is alone."""

from __future__ import annotations

import functools
import itertools
import pickle
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from engine import Engine
from exact import EXACT_CACHE
from several_texts import MEMORIES
from test_scheduler import needs_copies, prompts, settings_of

import specllama
from specllama import _core, _core_test
from specllama.cli import build_parser
from specllama.commands.arguments import load_llama
from specllama.many import Outcomes

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles
    from several_texts import ManyTexts

PLACES = 8
LENGTH = 60
N_CTX = 256
CACHE = 256  # two or three of the texts


@pytest.fixture
def open_texts(open_texts: Callable[..., ManyTexts]) -> Callable[..., ManyTexts]:
    """With a cache that is too small."""
    return functools.partial(open_texts, n_ctx=N_CTX, cache_tokens=CACHE)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shared", [0, 40])
@pytest.mark.parametrize("draft", ["good", "bad", None])
def test_every_text_is_the_one_it_is_alone(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], draft: str | None, shared: int
) -> None:
    path = tiny_files.draft(draft) if draft else None
    alone = Engine(tiny_files.target, path)
    texts = open_texts(tiny_files.target, path, PLACES)
    given = prompts(30, shared=shared)
    expected = [alone.generate(prompt, LENGTH, **settings_of(i)) for i, prompt in enumerate(given)]
    assert texts.generate_all(given, LENGTH, settings_of) == expected
    counters = texts.scheduler.counters
    assert counters.num_pauses > 0
    assert counters.most_texts > 1
    assert _core_test.num_generating(texts.scheduler) == 0
    alone.close()


@needs_copies
@pytest.mark.sampled(2)
@pytest.mark.parametrize("memory", MEMORIES)
def test_so_is_it_in_other_memories(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], memory: str) -> None:
    target, own, num_snapshots = MEMORIES[memory]
    paths = getattr(tiny_files, target), getattr(tiny_files, own)
    alone, texts = (open_texts(*paths, places, num_snapshots=num_snapshots) for places in (1, PLACES))
    given = prompts(20, shared=20)
    assert texts.generate_all(given, LENGTH, settings_of) == alone.generate_all(given, LENGTH, settings_of)
    assert texts.scheduler.counters.num_pauses > 0


def test_texts_that_fill_the_cache_alone(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    """Each needs nearly all of it, so that they go on one after the other."""
    alone = Engine(tiny_files.target, tiny_files.good)
    texts = open_texts(tiny_files.target, tiny_files.good, 4)
    given = prompts(6, shared=0, longest=150)
    count = N_CTX - max(map(len, given)) - 1
    expected = [alone.generate(prompt, count, temperature=0.0) for prompt in given]
    jobs = [lambda place, prompt=prompt: texts.generate(place, prompt, count, temperature=0.0) for prompt in given]
    assert texts.run(jobs) == expected
    alone.close()


@pytest.mark.parametrize("draft", ["good", None])
def test_who_reads_slowly_gives_way(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], draft: str | None
) -> None:
    """A text whose caller is away is paused for one that is not, and goes on when its caller is back."""
    path = tiny_files.draft(draft) if draft else None
    alone = Engine(tiny_files.target, path)
    slow, quick = prompts(2, shared=0, longest=120)
    slow, quick = slow * 3, quick * 3
    slow, quick = slow[:100], quick[:100]
    settings: dict[str, Any] = {"temperature": 0.8, "rule": "coupled", "gamma": 4, "seed": 3}
    expected = [alone.generate(prompt, 100, **settings) for prompt in (slow, quick)]
    texts = open_texts(tiny_files.target, path, 2)
    engine = texts.begin(0, slow, **settings)
    while len(engine.history()) < len(slow) + 60:
        engine.step(100)
    assert texts.generate(1, quick, 100, **settings) == expected[1]
    assert texts.scheduler.counters.num_pauses == 1
    while len(engine.history()) < len(slow) + 100:
        engine.step(len(slow) + 100 - len(engine.history()))
    assert list(engine.history())[len(slow) :] == expected[0]
    alone.close()


def test_a_paused_text_that_is_ended_holds_nobody_up(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    texts = open_texts(tiny_files.target, tiny_files.good, 2)
    slow, quick = ([1, *range(5, 55), *range(5, 55)] for _ in range(2))
    quick[1] = 9
    engine = texts.begin(0, slow, gamma=0)
    while len(engine.history()) < len(slow) + 60:
        engine.step(100)
    texts.generate(1, quick, 100, gamma=0)
    assert texts.scheduler.counters.num_pauses == 1
    assert engine.finish(len(engine.history())) == 0
    assert texts.generate(0, slow, 100, gamma=0) == texts.generate(1, slow, 100, gamma=0)


def test_short_texts_do_not_starve_a_long_one(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    """It is the youngest when the cache is full. Then there is room for short texts, again and again, not for it."""
    alone = Engine(tiny_files.target)
    texts = open_texts(tiny_files.target, None, 3)
    long = prompts(1, shared=150, longest=10)[0]
    settings: dict[str, Any] = {"temperature": 0.0, "gamma": 0}
    expected = alone.generate(long, 90, **settings)
    done = threading.Event()
    found: list[list[int]] = []
    ended: list[int] = []

    def short(place: int) -> None:
        counts = itertools.chain([70], itertools.repeat(25))
        for prompt, count in zip(itertools.cycle(prompts(50, shared=20, longest=9)), counts, strict=False):
            if done.is_set():
                return
            texts.generate(place, prompt, count, **settings)
            ended.append(place)

    threads = [threading.Thread(target=short, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    while _core_test.num_generating(texts.scheduler) < 2:
        time.sleep(0.001)
    last = threading.Thread(target=lambda: found.append(texts.generate(2, long, 90, **settings)))
    last.start()
    last.join(30)
    num_ended = len(ended)
    done.set()
    for thread in (*threads, last):
        thread.join()
    assert num_ended < 50  # hundreds, where the long one has to wait until both leave at once
    assert found == [expected]
    assert texts.scheduler.counters.num_pauses > 0
    alone.close()


def test_what_a_pause_costs_is_not_the_prompts(llm: specllama.Llama) -> None:
    """What is borrowed to compute a text anew is no reused prompt."""
    given = ["hello " * 20 + "word " * (i % 9) for i in range(20)]
    outcomes = llm.create_completions(given, max_tokens=80, temperature=0.0)
    assert llm.engine.texts.counters is not None
    assert llm.engine.texts.counters.num_pauses > 0
    for outcome in outcomes:
        assert outcome.stats.num_prompt_tokens_reused < outcome.stats.num_prompt_tokens


def test_closing_while_texts_are_paused(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    texts = open_texts(tiny_files.target, None, PLACES)
    given = prompts(PLACES, shared=0, longest=60)
    errors: list[BaseException] = []

    def generate(place: int) -> None:
        try:
            while True:
                texts.generate(place, given[place], 150, gamma=0)
        except _core.ClosedError as error:
            errors.append(error)

    threads = [threading.Thread(target=generate, args=(place,)) for place in range(PLACES)]
    for thread in threads:
        thread.start()
    while texts.scheduler.counters.num_pauses < 3:
        time.sleep(0.001)
    texts.scheduler.close()
    for thread in threads:
        thread.join(10)
    assert len(errors) == PLACES


# From Python


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(
        draft=tiny_files.good, n_ctx=256, max_parallel=PLACES, cache_tokens=256, num_draft_tokens="auto", **EXACT_CACHE
    )


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 5}])
def test_completions(llm: specllama.Llama, options: dict[str, Any]) -> None:
    given = ["hello " * (i % 5 + 1) + "word " * i for i in range(20)]
    outcomes = llm.create_completions(given, max_tokens=80, **options)
    counters = llm.engine.texts.counters
    assert counters is not None
    assert counters.num_pauses > 0
    for prompt, outcome in zip(given, outcomes, strict=True):
        alone = llm.create_completion(prompt, max_tokens=80, **options)
        assert outcome.text == alone["choices"][0]["text"]
        assert outcome.stats.num_tokens == llm.stats.num_tokens


def test_a_call_that_is_given_up_while_texts_are_paused(llm: specllama.Llama) -> None:
    given = ["hello " * (i % 5 + 1) + "word " * i for i in range(20)]
    outcomes = llm.create_completions(given * 20, max_tokens=150, temperature=1.0, stream=True)
    assert isinstance(outcomes, Outcomes)
    next(outcomes)
    while llm.engine.texts.counters.num_pauses < 3:  # type: ignore[union-attr]
        next(outcomes)
    start = time.monotonic()
    outcomes.close()
    assert time.monotonic() - start < 10
    assert [outcome.error for outcome in llm.create_completions(given, max_tokens=3)] == [None] * len(given)


@pytest.mark.parametrize(
    ("value", "error", "match"),
    [(255, ValueError, "255 is less than n_ctx=256"), (0, ValueError, "at least n_ctx"), ("9", TypeError, "an int")],
)
def test_a_cache_that_cannot_be(make_llama: MakeLlama, value: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make_llama(n_ctx=256, cache_tokens=value).create_completions(["hello", "hello"], max_tokens=3)


def test_a_cache_of_one_text_for_a_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """llama.cpp rounds n_ctx up, the draft's too."""
    llm = make_llama(draft=tiny_files.good, n_ctx=200, cache_tokens=200)
    (outcome,) = llm.create_completions(["hello"], max_tokens=3)
    assert outcome.error is None


def test_the_servers_option(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """`--cache-tokens` of `serve` and `batch` is the Llama's ``cache_tokens``, and so is a copy's."""
    files = ["-m", str(tiny_files.target), "-c", "256", "--cache-tokens", "300"]
    for command in (["serve"], ["batch", "--input", "a", "--output", "b"]):
        llm = load_llama(build_parser().parse_args([*command, *files]))
        assert llm.cache_tokens == 300
        llm.close()
    copied = pickle.loads(pickle.dumps(make_llama(cache_tokens=700)))
    assert copied.cache_tokens == 700
    copied.close()
