"""Many texts at once: each is the text that it is alone, whatever happens to the others."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import several_texts
from engine import Engine, api
from scipy import stats
from several_texts import MEMORIES

from specllama import _core, _core_test

if TYPE_CHECKING:
    from conftest import TinyFiles
    from several_texts import ManyTexts

PLACES = 4
needs_copies = pytest.mark.skipif(
    not hasattr(llama_cpp, "llama_model_is_hybrid"), reason="this llama-cpp-python cannot copy states"
)
LENGTH = 48


def prompts(count: int, *, shared: int = 0, longest: int = 60) -> list[list[int]]:
    rng = np.random.default_rng(count)
    begin = [1, *rng.integers(5, 60, size=shared).tolist()]
    return [begin + rng.integers(5, 60, size=rng.integers(2, longest)).tolist() for _ in range(count)]


def settings_of(i: int) -> dict[str, Any]:
    """Of text number i: every rule, greedy and not, paced and not, with any number of draft tokens."""
    temperature = (0.0, 0.8, 1.3)[i % 3]
    rule = ("coupled", "block", "rejection")[i // 3 % 3]
    paced = i % 2 == 0 and (temperature == 0.0 or rule == "coupled")  # elsewhere the text depends on what is drafted
    return {"temperature": temperature, "rule": rule, "gamma": (3, 5, 0, 8)[i % 4], "paced": paced, "seed": i}


def depends_on_text_alone(settings: dict[str, Any]) -> bool:
    """Whether the text is the same with any draft."""
    return settings["temperature"] == 0.0 or settings["rule"] == "coupled"


@pytest.mark.parametrize("draft", ["good", "bad", None])
def test_every_text_is_the_one_it_is_alone(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], draft: str | None
) -> None:
    path = tiny_files.draft(draft) if draft else None
    alone = Engine(tiny_files.target, path)
    texts = open_texts(tiny_files.target, path, PLACES)
    given = prompts(27, shared=30)
    expected = [alone.generate(prompt, LENGTH, **settings_of(i)) for i, prompt in enumerate(given)]
    assert texts.generate_all(given, LENGTH, settings_of) == expected
    counters = texts.scheduler.counters
    assert counters.most_texts == PLACES
    assert counters.num_batches < sum(len(text) for text in expected) / 2
    assert _core_test.num_generating(texts.scheduler) == 0
    alone.close()


@needs_copies
@pytest.mark.sampled(2)
@pytest.mark.parametrize("drafts", ["its kind", "plain", "none"])
@pytest.mark.parametrize("memory", MEMORIES)
def test_every_text_is_the_one_it_is_alone_in_other_memories(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], memory: str, drafts: str
) -> None:
    target, own, num_snapshots = MEMORIES[memory]
    path = {"its kind": getattr(tiny_files, own), "plain": tiny_files.good, "none": None}[drafts]
    alone, texts = (
        open_texts(getattr(tiny_files, target), path, places, num_snapshots=num_snapshots) for places in (1, PLACES)
    )
    given = prompts(27, shared=30)
    expected = alone.generate_all(given, LENGTH, settings_of)
    found = texts.generate_all(given, LENGTH, settings_of)
    assert found == expected
    assert texts.scheduler.counters.most_texts > 1
    plain = Engine(getattr(tiny_files, target))
    some = [i for i in range(len(given)) if depends_on_text_alone(settings_of(i))]
    without = [plain.generate(given[i], LENGTH, **{**settings_of(i), "gamma": 0}) for i in some]
    assert [found[i] for i in some] == without
    plain.close()


def test_a_memory_that_cannot_be_shared_is_refused(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(several_texts, "API", api())  # without functions that only later releases have
    with pytest.raises(ValueError, match="together"):
        open_texts(tiny_files.recurrent, None, PLACES)


@pytest.mark.statistics
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_several_texts_in_flight_have_the_targets_distribution(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], rule: str
) -> None:
    """Pairs of tokens by every rule, four texts at a time, against plain decoding's by another noise."""
    texts = open_texts(tiny_files.letters, tiny_files.letters_bad, PLACES, n_ctx=64)
    prompt = [1, 4, 5]
    count = 1500

    def sample(gamma: int, first_seed: int) -> dict[tuple[int, ...], int]:
        def job(place: int, seed: int) -> tuple[int, ...]:
            settings = {"gamma": gamma, "seed": seed, "rule": rule, "temperature": 1.0}
            return tuple(texts.generate(place, prompt, 2, **settings))

        found: dict[tuple[int, ...], int] = {}
        for pair in texts.run([lambda place, s=s: job(place, s) for s in range(first_seed, first_seed + count)]):
            found[pair] = found.get(pair, 0) + 1
        return found

    drafted, plain = sample(3, 1), sample(0, 10_000)
    seen = sorted({*drafted, *plain}, key=lambda pair: -plain.get(pair, 0) - drafted.get(pair, 0))
    common = [pair for pair in seen if plain.get(pair, 0) + drafted.get(pair, 0) >= 16]
    rows = [[counts.get(pair, 0) for pair in common] for counts in (drafted, plain)]
    table = [[*row, count - sum(row)] for row in rows]
    kept = [column for column in zip(*table, strict=True) if sum(column)]
    assert stats.chi2_contingency(np.transpose(kept)).pvalue > 1e-4
    # The test can fail: shifted by one place, the same numbers do.
    shifted = np.array([table[0], np.roll(table[1], 1)])
    assert stats.chi2_contingency(shifted[:, shifted.sum(axis=0) > 0]).pvalue < 1e-4


def test_prompts_that_begin_alike_are_decoded_once(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    texts = open_texts(tiny_files.target, tiny_files.good, PLACES)
    given = prompts(12, shared=300, longest=20)
    alone = Engine(tiny_files.target)
    jobs = [lambda place, prompt=prompt: texts.generate(place, prompt, 4, gamma=0) for prompt in given]
    assert texts.run(jobs) == [alone.generate(prompt, 4, gamma=0) for prompt in given]
    own = sum(len(prompt) - 301 for prompt in given)
    assert texts.decoders[0].num_decoded <= 301 + own + 4 * len(given)
    assert sum(engine.counters.num_prompt_tokens_reused for engine in texts.engines) >= 300 * (PLACES - 1)
    alone.close()


@needs_copies
@pytest.mark.parametrize("memory", MEMORIES)
def test_in_other_memories_too(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], memory: str) -> None:
    """Also by texts that wait: a state is copied where they go another way."""
    target, _, num_snapshots = MEMORIES[memory]
    texts = open_texts(getattr(tiny_files, target), None, PLACES, n_batch=64, num_snapshots=num_snapshots)
    alone = Engine(getattr(tiny_files, target))
    more = []
    for first in range(5, 11):  # a text that begins late finds no copy: there is one where somebody has waited
        given = [[1, first, *prompt[2:]] for prompt in prompts(PLACES, shared=300, longest=20)]
        jobs = [lambda place, prompt=prompt: texts.generate(place, prompt, 4, gamma=0) for prompt in given]
        before = texts.decoders[0].num_decoded
        assert texts.run(jobs) == [alone.generate(prompt, 4, gamma=0) for prompt in given]
        own = sum(len(prompt) - 301 for prompt in given)
        more.append(texts.decoders[0].num_decoded - before - 301 - own)
    assert min(more) < 64 + 4 * PLACES
    before = texts.decoders[0].num_decoded
    texts.run([lambda place: texts.generate(place, given[0], 4, gamma=0) for _ in given])  # the same, at all places
    assert texts.decoders[0].num_decoded - before < 64 + 4 * PLACES
    alone.close()


def test_cells_of_a_window_that_another_text_has_taken(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    """Cells that a window has left behind are free for others, even where all of the window is kept."""
    texts = open_texts(tiny_files.sliding, None, 3)
    alone = Engine(tiny_files.sliding)
    rng = np.random.default_rng(7)
    first, second, long = ([1, *rng.integers(5, 60, size=size).tolist()] for size in (90, 160, 120))
    texts.generate(2, first, 4)
    texts.generate(0, long, 4)
    texts.generate(1, [*long[:5], 7, 8], 4)
    texts.generate(2, second, 10)  # where the first one was, and then in cells of the long one's
    for prompt in (long[:110], long[:40], long):
        assert texts.generate(1, prompt, 12) == alone.generate(prompt, 12), len(prompt)
    alone.close()


def test_of_those_that_begin_at_the_same_time_one_decodes_what_they_share(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    """Many times: whoever of them asks first, and whichever of the places has the smaller number."""
    texts = open_texts(tiny_files.target, None, 2)
    decoder = texts.decoders[0]
    for i in range(60):
        given = [[1, 5 + i % 50, *prompt[2:]] for prompt in prompts(2, shared=100 + i, longest=20)]
        before = decoder.num_decoded
        texts.run([lambda place, prompt=prompt: texts.generate(place, prompt, 1, gamma=0) for prompt in given])
        shared = 101 + i
        own = sum(len(prompt) - shared for prompt in given)
        assert decoder.num_decoded - before < shared + own + 32  # and what is sooner decoded than waited for


def tokens_meanwhile(text: _core.Speculator, work: Callable[[], object]) -> list[int]:
    """What a text of three tokens gets, by plain rounds, while another thread does some work."""
    done = threading.Event()
    during: list[int] = []

    def run() -> None:
        try:
            work()
        finally:
            done.set()

    thread = threading.Thread(target=run)
    thread.start()
    while not done.is_set():
        during += text.step(1).tokens
        text.rewind(4)  # its context is finite
    thread.join()
    return during


def test_a_prompt_comes_in_parts_beside_the_others_tokens(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    """Whoever generates goes on while a long prompt is decoded."""
    texts = open_texts(tiny_files.target, None, 2, n_batch=32)
    first = texts.begin(0, [1, 5, 6], gamma=0)
    first.step(1)
    prompt = prompts(1, shared=400)[0]
    assert len(tokens_meanwhile(first, lambda: texts.begin(1, prompt, gamma=0))) > 6
    texts.finish()


def test_a_drafts_prompt_comes_in_parts_beside_the_others_tokens(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    texts = open_texts(tiny_files.target, tiny_files.good, 2, n_batch=32)
    first = texts.begin(0, [1, 5, 6], gamma=0)
    first.step(1)
    second = texts.begin(1, prompts(1, shared=400)[0], gamma=3)
    second.step(1)

    def read_by_the_draft() -> None:
        while second.prefill():
            pass

    assert len(tokens_meanwhile(first, read_by_the_draft)) > 6
    texts.finish()


def test_nobody_waits_for_what_a_draft_does_not_decode_after_all(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    """Its prompt paid at first, and does not any more when a part of it is decoded."""
    texts = open_texts(tiny_files.target, tiny_files.good, 2, n_batch=32)
    prompt = prompts(1, shared=400)[0]
    first = texts.begin(0, prompt, gamma=3, paced=True)
    first.step(1)
    texts.scheduler.restore_costs([{1: 0.5, 2: 0.51, 17: 0.52}, {1: 0.001, 600: 0.002}])
    assert first.prefill()
    texts.scheduler.restore_costs([{1: 1e-7, 2: 1.1e-7, 17: 2e-7}, {1: 0.1, 600: 60.0}])
    assert not first.prefill()
    assert 0 < texts.drafts[0].num_tokens < len(prompt) - 1
    second = texts.begin(1, prompt, gamma=3)
    second.step(1)
    assert sum(1 for _ in itertools.takewhile(lambda _: second.prefill(), range(60))) < 60
    assert len(second.step(4).tokens) > 0
    texts.finish()


def test_a_prompt_that_pays_later_is_decoded_later(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    alone = Engine(tiny_files.target)
    texts = open_texts(tiny_files.target, tiny_files.good, 1, n_batch=64)
    prompt = prompts(1, shared=200)[0]
    text = texts.begin(0, prompt, gamma=3, paced=True, temperature=0.0)
    found = list(text.step(1).tokens)

    def reads(costs: list[dict[int, float]], rounds: int) -> bool:
        for _ in range(rounds):
            texts.scheduler.restore_costs(costs)  # what it has measured meanwhile is that of a tiny model
            if text.prefill():
                return True
            found.extend(text.step(1).tokens)
        return False

    assert not reads([{1: 1e-7, 2: 1.1e-7, 17: 2e-7}, {1: 0.1, 600: 60.0}], 40)
    assert texts.drafts[0] is not None
    assert texts.drafts[0].num_tokens == 0
    pays = [{1: 0.5, 2: 0.51, 17: 0.52}, {1: 0.001, 600: 0.002}]
    assert reads(pays, 20)
    while text.prefill():
        texts.scheduler.restore_costs(pays)
    assert texts.drafts[0].num_tokens == len(prompt) + len(found) - 1
    while len(found) < 90:
        found += text.step(4).tokens
    assert text.counters.num_draft_tokens > 0
    assert found == alone.generate(prompt, len(found), gamma=0, temperature=0.0)
    alone.close()
    texts.finish()


def test_a_reader_who_takes_their_time_holds_nobody_up(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    texts = open_texts(tiny_files.target, None, 2)
    slow = texts.begin(0, [1, 5, 6], gamma=0)
    slow.step(1)
    start = time.perf_counter()
    quick = texts.begin(1, [1, 7, 8], gamma=0)
    for _ in range(100):
        quick.step(1)
    assert texts.scheduler.counters.waiting_seconds < 0.5 * max(1.0, time.perf_counter() - start)
    assert _core_test.num_generating(texts.scheduler) == 1, "nobody asks for the other's next token"
    assert len(slow.step(1).tokens) == 1, "it goes on where it was"
    texts.finish()


@needs_copies
@pytest.mark.parametrize("memory", MEMORIES)
def test_texts_whose_readers_come_and_go(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], memory: str
) -> None:
    """Two at a time, so that the others' states are moved while they are away."""
    target, own, num_snapshots = MEMORIES[memory]
    texts = open_texts(getattr(tiny_files, target), getattr(tiny_files, own), PLACES, num_snapshots=num_snapshots)
    plain, rng = Engine(getattr(tiny_files, target)), np.random.default_rng(1)
    given, settings = prompts(PLACES, shared=20), {"temperature": 0.9, "rule": "coupled", "seed": 1}
    engines = [texts.begin(i, prompt, gamma=3, **settings) for i, prompt in enumerate(given)]
    with ThreadPoolExecutor(2) as pool:
        for _ in range(40):
            list(pool.map(lambda engine: engine.step(LENGTH), [engines[i] for i in rng.permutation(PLACES)[:2]]))
    for engine, prompt in zip(engines, given, strict=True):
        found = list(engine.history())[len(prompt) :]
        assert found == plain.generate(prompt, len(found), gamma=0, **settings)
    texts.finish()
    plain.close()


def test_logits_are_those_of_the_token(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    """Of one text, after others have decoded."""
    alone = Engine(tiny_files.target)
    texts = open_texts(tiny_files.target, None, 2)
    one = texts.begin(0, [1, 5, 6], gamma=0, keeps_logits=True)
    one.step(1)
    other = texts.begin(1, [1, 9, 4, 7], gamma=0)
    for _ in range(3):
        other.step(1)
    alone.generate([1, 5, 6], 1, gamma=0)
    np.testing.assert_allclose(one.logits(0), alone.speculator.logits(0), atol=1e-4)
    texts.finish()
    alone.close()


def test_processors_are_called_behind_the_text_alone(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]
) -> None:
    """One that forbids the last token, for some of the texts: a round of theirs stays open between calls."""

    def no_repetition(history: Any, scores: Any) -> Any:
        scores[history[-1]] = -np.inf
        return scores

    texts = open_texts(tiny_files.target, tiny_files.good, PLACES)
    alone = open_texts(tiny_files.target, tiny_files.good, 1)
    given = prompts(8)

    def settings(i: int) -> dict[str, Any]:
        return {"gamma": 4, "seed": i, "temperature": 1.0, "logits_processor": no_repetition if i % 2 else None}

    expected = [alone.generate(0, prompt, LENGTH, **settings(i)) for i, prompt in enumerate(given)]
    found = texts.generate_all(given, LENGTH, settings)
    assert found == expected
    assert all(a != b for i in range(1, 8, 2) for a, b in itertools.pairwise(found[i]))


def test_an_error_is_that_of_its_text(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    def broken(history: Any, scores: Any) -> Any:
        raise ArithmeticError("of this text")

    alone = Engine(tiny_files.target, n_ctx=64)
    texts = open_texts(tiny_files.target, tiny_files.good, PLACES, n_ctx=64)
    good = prompts(8, longest=10)
    bad: list[tuple[list[int], dict[str, Any], type[Exception]]] = [
        ([1] * 65, {}, ValueError),
        ([], {}, ValueError),
        ([1, 10**6], {}, ValueError),
        ([1, 5], {"logits_processor": broken}, ArithmeticError),
        ([1] * 60, {"gamma": 2}, _core.ContextFullError),
        ([1, 5], {"rule": "none"}, ValueError),
    ]
    jobs: list[Callable[[int], Any]] = []
    for i, prompt in enumerate(good):
        jobs.append(lambda place, prompt=prompt: texts.generate(place, prompt, 30, gamma=3, temperature=0.0))
        if i < len(bad):
            jobs.append(lambda place, i=i: texts.generate(place, bad[i][0], 30, **bad[i][1]))
    results = texts.run(jobs)
    errors = [result for result in results if isinstance(result, Exception)]
    assert [type(error) for error in errors] == [kind for _, _, kind in bad]
    expected = [alone.generate(prompt, 30, gamma=0, temperature=0.0) for prompt in good]
    assert [result for result in results if not isinstance(result, Exception)] == expected
    alone.close()


def test_more_tokens_than_a_batch_holds(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    alone = Engine(tiny_files.target)
    texts = open_texts(tiny_files.target, tiny_files.good, PLACES, n_batch=16)
    given = prompts(8, longest=80)
    greedy = {"temperature": 0.0}
    jobs = [lambda place, prompt=prompt: texts.generate(place, prompt, 30, gamma=9, **greedy) for prompt in given]
    assert texts.run(jobs) == [alone.generate(prompt, 30, gamma=0, **greedy) for prompt in given]
    alone.close()


def test_closing_ends_what_is_under_way(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    texts = open_texts(tiny_files.target, None, PLACES)
    started = threading.Barrier(PLACES + 1)

    def endless(place: int) -> None:
        engine = texts.begin(place, [1, 5, 6], gamma=0)
        started.wait()
        while True:
            engine.rewind(3)
            engine.step(1)

    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(texts.run([endless] * PLACES)))
    thread.start()
    started.wait()
    texts.scheduler.close()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert [type(result) for result in results] == [_core.ClosedError] * PLACES
    with pytest.raises(_core.ClosedError, match="closed"):
        texts.begin(0, [1, 5])


def test_a_place_has_one_text_at_a_time(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    texts = open_texts(tiny_files.target, None, 1)
    errors: list[BaseException] = []
    inside, leave = threading.Event(), threading.Event()

    def wait(history: Any, scores: Any) -> Any:
        inside.set()
        leave.wait(30)
        return scores

    thread = threading.Thread(target=lambda: texts.generate(0, [1, 5, 6], 1, gamma=0, logits_processor=wait))
    thread.start()
    inside.wait(30)
    try:
        texts.begin(0, [1, 5])
    except _core.BusyError as error:
        errors.append(error)
    leave.set()
    thread.join()
    assert len(errors) == 1


def test_what_batches_cost_is_learned_and_shared(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    """Of whole batches, not of one text's part."""
    texts = open_texts(tiny_files.target, tiny_files.good, PLACES)
    jobs = [
        lambda place, prompt=prompt: texts.generate(place, prompt, LENGTH, gamma=8, paced=True, temperature=0.0)
        for prompt in prompts(16)
    ]
    texts.run(jobs)
    target = texts.scheduler.costs[0]
    assert texts.scheduler.costs[1]
    assert any(n >= PLACES for n in target)
    assert all(seconds > 0 for seconds in target.values())
    texts.scheduler.restore_costs([{1: 1.0, 4: 2.0}, {1: 0.5}])
    assert (texts.scheduler.costs[0], texts.scheduler.costs[1]) == ({1: 1.0, 4: 2.0}, {1: 0.5})


def test_texts_that_draw_are_counted(tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts]) -> None:
    """Who shares the draft's batches: those that drew in their last round."""
    texts = open_texts(tiny_files.target, tiny_files.good, PLACES)
    seen: dict[int, list[int]] = {0: [], 3: []}
    engines = []
    for place, (gamma, counts) in enumerate(seen.items()):
        engine = texts.begin(place, [1, 5, 6], gamma=gamma, temperature=0.0)
        engines.append(engine)
        for _ in range(3):
            engine.step(8)
            counts.append(_core_test.num_drawing(texts.scheduler))
    assert seen == {0: [0, 0, 0], 3: [1, 1, 1]}
    for engine in engines:
        engine.finish(3)
    assert _core_test.num_drawing(texts.scheduler) == 0
