"""Logits processors that remember their calls: each is for the next token of the text, and none is for nothing."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from fresh import PROMPT, SAMPLING, text_of
from test_logits_processors import Ids, Scores, assert_usable, by_history, processors

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


class Remembering:
    """Knows the whole text by the last tokens that it was shown, and so takes no call twice, nor one in vain."""

    def __init__(self) -> None:
        self.texts: list[list[int]] = []

    def __call__(self, ids: Ids, scores: Scores) -> Scores:
        text = ids.tolist()
        if self.texts:
            assert text[: len(self.texts[-1])] == self.texts[-1]
            assert len(text) > len(self.texts[-1])
        self.texts.append(text)
        return by_history(ids, scores)


@pytest.mark.parametrize("gamma", [0, 1, 6, "auto"])
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_tokens_that_are_sent_in(make_llama: MakeLlama, tiny_files: TinyFiles, verify: str, gamma: int | str) -> None:
    """It has seen nothing of what would have come in their place."""
    llm = make_llama(draft=tiny_files.identical, verify=verify, num_draft_tokens=gamma)
    text = llm.tokenize(PROMPT.encode())
    own = llm.tokenize(b"no fox", add_bos=False)
    processor = Remembering()
    tokens = llm.generate(list(text), temp=0.8, logits_processor=llama_cpp.LogitsProcessorList([processor]))
    expected = []
    token = next(tokens)
    for taken in range(1, 40):
        expected.append(list(text))
        text.append(token)
        if taken % 7 == 0:
            text += own
            token = tokens.send(own)
        else:
            token = next(tokens)
        assert processor.texts == [*expected, text]
    tokens.close()
    assert processor.texts == [*expected, text]
    assert llm.stats.num_drafts > 0 or gamma in (0, "auto")
    assert_usable(llm)


def test_a_half_read_text_is_counted_whoever_ends_it(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """With a processor the tokens of a round come one by one, and here the last round is still open."""
    counted = []
    for by_another_text in (False, True):
        llm = make_llama(draft=tiny_files.identical, num_draft_tokens=8)
        watched = processors("by history")
        stream = llm.generate_tokens(PROMPT, temperature=0.0, max_tokens=60, logits_processor=watched)
        assert len(list(itertools.islice(stream, 14))) == 14
        if by_another_text:
            llm.create_completion(PROMPT, max_tokens=1, num_draft_tokens=0)
        stream.close()
        found = llm.total_stats
        assert found.num_tokens == 14 + by_another_text
        counted.append((found.num_first_tokens, found.num_accepted_tokens, found.num_draft_tokens, found.num_drafts))
        assert_usable(llm)
    assert counted[0] == counted[1]
    assert counted[0][1] > 8


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_it_is_asked_for_no_token_that_nobody_takes(make_llama: MakeLlama, tiny_files: TinyFiles, verify: str) -> None:
    """Behind a stop string, a criterion that stops, or where a stream was left."""
    llm = make_llama(draft=tiny_files.identical, verify=verify, num_draft_tokens=6)
    settings: dict[str, Any] = {**SAMPLING, "logits_processor": processors("by history")}
    tokens = list(llm.generate_tokens(PROMPT, **settings))
    stop = next(token.text for token in tokens[9:] if len(token.text) > 2)
    for ending in ({"stop": [stop]}, {"max_tokens": 11}):
        processor = Remembering()
        watched = llama_cpp.LogitsProcessorList([processor])
        llm.create_completion(PROMPT, **{**settings, **ending, "logits_processor": watched})
        assert 0 < len(processor.texts) == llm.stats.num_tokens < len(tokens)
        assert llm.stats.num_accepted_tokens > 0
    prompt = llm.tokenize(PROMPT.encode())
    for taken in (1, 2, 5, 10):
        processor = Remembering()
        watched = llama_cpp.LogitsProcessorList([processor])
        for number, _ in enumerate(llm.generate(prompt, temp=0.9, logits_processor=watched), 1):
            if number == taken:
                break
        assert len(processor.texts) == taken
    assert_usable(llm)


@pytest.mark.parametrize("after", range(1, 9))
@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_an_error_is_no_reason_to_decode_plainly(
    make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, after: int
) -> None:
    """A round that it ends before the first token leaves more in a recurrent memory than snapshots can take back."""
    llm = make_llama(getattr(tiny_files, kind), getattr(tiny_files, f"{kind}_good"))
    calls = itertools.count()

    def fail(ids: Ids, scores: Scores) -> Scores:
        if next(calls) == after:
            raise KeyboardInterrupt
        return scores

    with pytest.raises(KeyboardInterrupt):
        llm.create_completion(PROMPT, **SAMPLING, logits_processor=llama_cpp.LogitsProcessorList([fail]))
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_tokens == after
    plain = make_llama(getattr(tiny_files, kind))
    assert text_of(llm, seed=5) == text_of(plain, seed=5)


def test_what_was_decided_of_a_round_is_counted(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.identical, num_draft_tokens=6)
    settings: dict[str, Any] = {"temp": 0.0, "logits_processor": llama_cpp.LogitsProcessorList([lambda ids, row: row])}
    for taken in range(1, 16):
        tokens = list(itertools.islice(llm.generate(llm.tokenize(PROMPT.encode()), **settings), taken))
        stats = llm.stats
        assert len(tokens) == stats.num_tokens == taken
        first = stats.num_first_tokens
        assert first == int(taken == 1)  # later the prompt is in the memory
        of_rounds = llm.engine.slot.loop.counters.num_emitted_tokens
        assert of_rounds == taken - first
        assert stats.num_accepted_tokens == max(0, taken - 1 - (taken - 1) // 7)
        assert stats.num_drafts == (taken + 5) // 7
        assert stats.num_reached_tokens == stats.num_accepted_tokens


@pytest.mark.parametrize("verify", ["rejection", "coupled"])
def test_logits_and_origins_of_tokens_one_by_one(make_llama: MakeLlama, tiny_files: TinyFiles, verify: str) -> None:
    llm = make_llama(draft=tiny_files.good, verify=verify)
    settings: dict[str, Any] = {**SAMPLING, "logprobs": 0, "num_draft_tokens": 4, "verify": verify}
    same = llama_cpp.LogitsProcessorList([lambda ids, row: row])
    one_by_one = list(llm.generate_tokens(PROMPT, **settings, logits_processor=same))
    at_once = list(llm.generate_tokens(PROMPT, **settings))
    assert [(token.id, token.origin) for token in one_by_one] == [(token.id, token.origin) for token in at_once]
    assert {token.origin for token in at_once} >= {"draft", "correction", "bonus"}
    for token, other in zip(one_by_one, at_once, strict=True):
        assert token.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert token.acceptance_probability == pytest.approx(other.acceptance_probability, abs=1e-4)
