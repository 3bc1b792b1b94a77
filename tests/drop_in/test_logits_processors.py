"""Logits processors: called in the loop as plain decoding would call them."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
from fresh import PROMPT, SAMPLING, assert_like_fresh, text_of
from responses import Pair, assert_same, complete, completions, without_halves
from test_callback_drafter import CHAIN, SAMPLER
from test_engine_statistics import LENGTH, LEVEL, Scorer, chi_square, sequence_probabilities
from test_engine_statistics import PROMPT as LETTERS_PROMPT

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

Ids = np.ndarray[Any, np.dtype[np.intc]]
Scores = np.ndarray[Any, np.dtype[np.single]]
Processor = Callable[[Ids, Scores], Scores]


def by_history(ids: Ids, scores: Scores) -> Scores:
    """Prefers other tokens behind other histories, the whole of them."""
    favoured = (np.arange(len(scores)) * 7 + int(ids.sum()) + len(ids)) % 5 == 0
    return np.where(favoured, scores + np.float32(1.5), scores)


def in_place(ids: Ids, scores: Scores) -> Scores:
    """Writes into what it is given, as many processors do."""
    scores[int(ids[-1]) % 3 :: 3] = -np.inf
    return scores


PROCESSORS: dict[str, list[Processor]] = {
    "by history": [by_history],
    "in place": [in_place],
    "both": [by_history, in_place],
}


def processors(name: str) -> llama_cpp.LogitsProcessorList:
    return llama_cpp.LogitsProcessorList(PROCESSORS[name])


@pytest.mark.parametrize("name", PROCESSORS)
def test_greedy_text_is_the_base_classes(pair: Pair, name: str) -> None:
    llm, _ = pair
    for settings in ({}, {"repeat_penalty": 1.3}, {"stop": ["cat"]}, {"num_draft_tokens": 0}):
        theirs = {key: value for key, value in settings.items() if key != "num_draft_tokens"}
        gamma = settings.get("num_draft_tokens", 4)
        llm.num_draft_tokens = gamma  # type: ignore[assignment]
        complete(pair, max_tokens=40, logits_processor=processors(name), **theirs)
        assert llm.stats.fallback_reason is None
        assert (llm.stats.num_drafts > 0) == (gamma != 0)


def test_a_processor_and_a_bias_are_both_applied(pair: Pair) -> None:
    """The processor first. (The base class forgets both.)"""
    llm, _ = pair
    ban = llama_cpp.LogitsProcessorList([lambda ids, scores: np.where(np.arange(len(scores)) == 280, -np.inf, scores)])
    tokens = list(
        llm.generate_tokens(
            PROMPT, max_tokens=20, temperature=0.0, logits_processor=ban, logit_bias={280: 50.0, 290: 9.0}
        )
    )
    assert llm.stats.num_drafts > 0
    ids = [token.id for token in tokens]
    assert 280 not in ids
    assert 290 in ids


@pytest.mark.parametrize("draft", ["identical", "good", "adversarial", "lookup"])
def test_coupled_texts_are_plain_decodings(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = make_llama(draft="lookup" if draft == "lookup" else tiny_files.draft(draft), verify="coupled")
    for gamma, name in itertools.product((1, 4, "auto"), PROCESSORS):
        settings = {"seed": 7, "logits_processor": processors(name)}
        assert text_of(llm, num_draft_tokens=gamma, **settings) == text_of(llm, num_draft_tokens=0, **settings)
        assert text_of(llm, seed=7) != text_of(llm, **settings), "the processor does something"


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_it_is_called_as_without_a_draft(make_llama: MakeLlama, tiny_files: TinyFiles, verify: str) -> None:
    """Once for each token of the text, in order, behind the tokens that stay, with the target's own scores."""
    llm = make_llama(draft=tiny_files.good, verify=verify)
    prompt = llm.tokenize(PROMPT.encode())
    seen: list[tuple[list[int], Any]] = []

    def watch(ids: Ids, scores: Scores) -> Scores:
        assert ids.dtype == np.intc
        assert scores.dtype == np.single
        assert scores.shape == (llm.n_vocab(),)
        seen.append((ids.tolist(), scores.copy()))
        return scores

    watched = llama_cpp.LogitsProcessorList([watch])
    settings: dict[str, Any] = {"max_tokens": 30, "temperature": 0.9, "seed": 1, "logits_processor": watched}
    tokens = [token.id for token in llm.generate_tokens(prompt, **settings)]
    stats = llm.stats
    assert stats.verify == ("rejection" if verify == "block" else verify)
    assert stats.num_drafts > 0
    assert stats.num_accepted_tokens < stats.num_draft_tokens, "there were positions behind a rejection"
    text = [*prompt, *tokens]
    assert [ids for ids, _ in seen] == [text[:end] for end in range(len(prompt), len(text))]
    llm.reset()
    for position, logits in llm.engine.score(text):
        if position >= len(prompt) - 1:
            assert np.allclose(seen[position - len(prompt) + 1][1], logits, atol=1e-4)


def test_the_llama_itself_has_the_same_history(pair: Pair) -> None:
    """As in the base class, where processors and criteria read it from there."""

    def asked(llama: llama_cpp.Llama, **settings: Any) -> Any:
        def unlike_before(ids: Ids, scores: Scores) -> Scores:
            assert llama._input_ids.tolist() == ids.tolist()
            scores[llama.input_ids[: llama.n_tokens]] = -np.inf
            return scores

        def is_long(ids: Ids, scores: Scores) -> bool:
            assert llama._input_ids.tolist() == ids.tolist()
            return llama.n_tokens >= 20

        settings["logits_processor"] = llama_cpp.LogitsProcessorList([unlike_before])
        settings["stopping_criteria"] = llama_cpp.StoppingCriteriaList([is_long])
        answer = llama.create_completion(PROMPT, max_tokens=40, temperature=0.0, **settings)
        return answer["choices"][0], answer["usage"]

    ours, theirs = pair
    expected = asked(theirs)
    assert expected[0]["finish_reason"] == "stop"
    for gamma in (0, 4):
        for verify in ("rejection", "block", "coupled"):
            assert asked(ours, num_draft_tokens=gamma, verify=verify) == expected
            assert ours.n_tokens == 20
    assert ours.stats.num_drafts > 0


@pytest.mark.parametrize("after", [0, 5])
def test_a_position_that_a_processor_sets(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, after: int
) -> None:
    """What it has set is what the Llama has afterwards."""
    calls = itertools.count()

    def change(ids: Ids, scores: Scores) -> Scores:
        if next(calls) == after:
            llm.n_tokens = 3
        return scores

    with pytest.raises(RuntimeError, match="was changed during a generation"):
        text_of(llm, logits_processor=llama_cpp.LogitsProcessorList([change]))
    assert llm.n_tokens == 3
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("gamma", [0, 1, 4, "auto"])
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_it_is_not_asked_behind_the_end(
    make_llama: MakeLlama, tiny_files: TinyFiles, verify: str, gamma: int | str
) -> None:
    """The draft may foresee the end. A processor that knows when it is done is not called again then."""
    llm = make_llama(tiny_files.eos_happy, tiny_files.eos_happy, verify=verify, num_draft_tokens=gamma)

    def until_the_end(ids: Ids, scores: Scores) -> Scores:
        assert llm.token_eos() not in ids
        scores[llm.token_eos()] = 20.0 if len(ids) > 20 else -np.inf
        return scores

    processor = llama_cpp.LogitsProcessorList([until_the_end])
    for _ in range(3):
        out = llm.create_completion(PROMPT, max_tokens=60, temperature=0.8, seed=3, logits_processor=processor)
        assert out["choices"][0]["finish_reason"] == "stop"
        assert llm.stats.num_prompt_tokens + llm.stats.num_tokens in (21, 22)
    assert_usable(llm)


@pytest.mark.parametrize("gamma", [6, "auto"])
def test_it_is_not_asked_behind_an_end_that_was_looked_up(
    make_llama: MakeLlama, tiny_files: TinyFiles, gamma: int | str
) -> None:
    """An earlier turn of a chat ended in the same way, and something followed."""
    llm = make_llama(tiny_files.eos_happy, "lookup", num_draft_tokens=gamma)
    turn = [*llm.tokenize(b"the cat sat on the mat", add_bos=False), llm.token_eos()]
    prompt = [llm.token_bos(), *turn, 280, 290, *turn, 280, 290, *turn[:3]]
    rest = turn[3:]

    def repeat(ids: Ids, scores: Scores) -> Scores:
        said = len(ids) - len(prompt)
        assert said < len(rest), "it has said everything"
        scores[rest[said]] = 50.0
        return scores

    again = llama_cpp.LogitsProcessorList([repeat])
    for _ in range(3):
        llm.engine.slot.loop.restore_costs([{1: 1.0, 17: 1.1}, {}])  # a lookup pays
        out = llm.create_completion(prompt, max_tokens=60, temperature=0.0, logits_processor=again)
        assert out["choices"][0]["finish_reason"] == "stop"
        assert llm.stats.num_tokens == len(rest)
    assert llm.total_stats.num_accepted_tokens > 0


def assert_usable(llm: specllama.Llama) -> None:
    once, again = (text_of(llm, seed=5, verify="coupled") for _ in range(2))  # whatever "auto" drafts
    assert once == again


class ProcessedScorer(Scorer):
    """The exact distribution of the next token under `by_history`."""

    def logits(self, generated: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        text = np.array([*self.prompt, *generated], np.intc)
        rows = super().logits(generated)
        return np.array([by_history(text[: len(self.prompt) + i], row) for i, row in enumerate(rows)])


@pytest.fixture(scope="module")
def exact(tiny_files: TinyFiles) -> Iterator[ref.Array]:
    """The probability of every sequence of three letters under `by_history`: [VOCAB, VOCAB, VOCAB]."""
    llm = llama_cpp.Llama(
        str(tiny_files.letters), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
    )
    yield sequence_probabilities(ProcessedScorer(llm, LETTERS_PROMPT), CHAIN)
    llm.close()


@pytest.mark.statistics
@pytest.mark.sampled(1)
@pytest.mark.parametrize("verify", ["rejection", "block"])
def test_samples_have_the_targets_distribution(
    make_llama: MakeLlama, tiny_files: TinyFiles, exact: ref.Array, verify: str
) -> None:
    llm = make_llama(tiny_files.letters, tiny_files.letters_good, n_ctx=64, verify=verify, num_draft_tokens=3)
    counts = np.zeros_like(exact)
    sampling = {"temp": SAMPLER["temperature"], **{k: v for k, v in SAMPLER.items() if k != "temperature"}}
    for seed in range(3000):
        llm.set_seed(seed)
        text = llm.generate(LETTERS_PROMPT, logits_processor=processors("by history"), **sampling)
        counts[tuple(itertools.islice(text, LENGTH))] += 1
        text.close()
    assert chi_square(counts, exact) > LEVEL
    assert llm.total_stats.num_accepted_tokens > 1000


class Boom(Exception):
    """Raised by processors of these tests."""


@pytest.mark.sampled(10)
@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("after", [1, 2, 5, 9, 30])
def test_an_error_ends_the_generation_and_harms_nothing(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, after: int, error: type[BaseException]
) -> None:
    calls = itertools.count(1)

    def fail(ids: Ids, scores: Scores) -> Scores:
        if next(calls) > after:
            raise error("on purpose")
        return scores

    with pytest.raises(error, match="on purpose"):
        text_of(llm, logits_processor=llama_cpp.LogitsProcessorList([fail]))
    assert next(calls) == after + 2, "it was not called again"
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize(
    ("result", "name"), [(None, "NoneType"), (np.zeros(3), "ndarray"), (np.zeros((2, 4)), "ndarray"), ("abc", "str")]
)
def test_a_result_that_is_none(pair: Pair, result: Any, name: str) -> None:
    llm, _ = pair
    with pytest.raises(ValueError, match=f"returned a {name} that is no array of {llm.n_vocab()} numbers"):
        text_of(llm, logits_processor=llama_cpp.LogitsProcessorList([lambda ids, scores: result]))
    complete(pair)


def test_results_may_be_of_another_type(pair: Pair) -> None:
    llm, _ = pair
    expected = text_of(llm, seed=2)
    for kind in (np.float64, np.float16):
        same = llama_cpp.LogitsProcessorList([lambda ids, scores, kind=kind: scores.astype(kind)])
        assert (text_of(llm, seed=2, logits_processor=same) == expected) or kind is np.float16
    as_list = llama_cpp.LogitsProcessorList([lambda ids, scores: scores.tolist()])
    assert text_of(llm, seed=2, logits_processor=as_list) == expected


def test_all_banned_is_said(pair: Pair) -> None:
    with pytest.raises(RuntimeError, match="no token can be sampled"):
        text_of(pair[0], logits_processor=llama_cpp.LogitsProcessorList([lambda ids, scores: scores - np.inf]))
    complete(pair)


@pytest.mark.parametrize("shorter", ["draft", "target"])
def test_vocabularies_of_other_sizes(make_llama: MakeLlama, tiny_files: TinyFiles, shorter: str) -> None:
    """A processor sees the target's scores for all of its vocabulary."""
    files = (tiny_files.padded, tiny_files.good) if shorter == "draft" else (tiny_files.target, tiny_files.padded_draft)
    llm = make_llama(*files, verify="coupled")
    sizes = set()
    num_impossible = set()

    def watch(ids: Ids, scores: Scores) -> Scores:
        sizes.add(len(scores))
        num_impossible.add(int(np.isneginf(scores).sum()))
        return by_history(ids, scores)

    watched = llama_cpp.LogitsProcessorList([watch])
    text = text_of(llm, logits_processor=watched)
    assert llm.stats.num_draft_tokens > 0
    assert llm.stats.fallback_reason is None
    assert sizes == {llm.n_vocab()}
    assert num_impossible == {0}
    assert text == text_of(llm, logits_processor=watched, num_draft_tokens=0)


def test_logprobs_are_those_before_the_processor(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    pair = (make_llama(draft=tiny_files.good), make_base(logits_all=True))
    assert_same(*map(without_halves, completions(pair, logprobs=3, logits_processor=processors("both"))))


def test_a_processor_may_start_nothing_on_the_same_llama(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    def nested(ids: Ids, scores: Scores) -> Scores:
        llm.create_completion("a dog", max_tokens=1)
        return scores

    with pytest.raises(specllama.BusyError):
        text_of(llm, logits_processor=llama_cpp.LogitsProcessorList([nested]))
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_processor_may_ask_another_llama(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Which has its own options, not those of the call that the processor belongs to."""
    llm = make_llama(draft=tiny_files.good)
    other = make_llama(draft=tiny_files.good, num_draft_tokens=3, verify="rejection")

    def ask(ids: Ids, scores: Scores) -> Scores:
        other.create_completion("a dog", max_tokens=9, temperature=0.0)
        return scores

    asking = llama_cpp.LogitsProcessorList([ask])
    for settings in ({"num_draft_tokens": 0}, {"num_draft_tokens": 6, "verify": "coupled"}):
        llm.create_completion(PROMPT, max_tokens=3, logits_processor=asking, **settings)
        assert other.stats.verify == "rejection"
        assert max(gamma for gamma, count in enumerate(other.stats.num_rounds_per_gamma) if count) == 3


def test_a_processor_is_not_kept_alive(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """It may lead to the Llama itself. The engine, whose references no garbage collector sees, lets go of it."""
    llm = make_llama(draft=tiny_files.good)

    class Watcher:
        def __call__(self, ids: Ids, scores: Scores) -> Scores:
            return scores

    watcher = Watcher()
    gone = weakref.ref(watcher)
    text_of(llm, logits_processor=llama_cpp.LogitsProcessorList([watcher]))
    del watcher
    gc.collect()
    assert gone() is None


def test_an_abandoned_stream(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    chunks = llm.create_completion(PROMPT, stream=True, logits_processor=processors("both"), **SAMPLING)
    next(chunks)
    del chunks
    assert_like_fresh(llm, make_llama, tiny_files)
