"""A draft that says several tokens in one decode, by masks: fed as its authors feed it, and texts stay the target's.

No trained one is small enough for a test. Random weights say something at a mask as well, and that is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from engine import Engine
from exact import EXACT_CACHE
from fresh import RULES, assert_texts_of_plain_decoding, text_of
from test_draft_window import LONG
from test_engine_statistics import CHAINS, VOCAB, Scorer, assert_drafted_sequences_are_the_targets
from test_engine_statistics import PROMPT as LETTERS
from test_scheduler import prompts
from transcribed import forward

import specllama
from specllama import _core

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

MASK = 2
GAMMA = 4


def drafted_as_published(weights: tiny.Weights, text: list[int], count: int, mask: int) -> list[int]:
    """PARD (arXiv 2504.18583, `pard_infer.py`): count - 1 masks behind the text, the last rows' best tokens.

    The published code keeps the cache of the text and drops the masks': here nothing is kept from call to call.
    """
    rows = forward(weights, [*text, *[mask] * (count - 1)])[0][-count:]
    return [int(token) for token in rows.argmax(-1)]


class Parallel(Engine):
    """A loop whose parallel draft is alone."""

    def __init__(self, target: Path, draft: Path, mask: int | None = MASK) -> None:
        super().__init__(target, draft)
        assert self.draft is not None
        self.speculator = _core.Speculator(self.target, [_core.Drafter.model(self.draft, mask=mask)])


@pytest.fixture(scope="module")
def weights() -> tiny.Weights:
    letters = tiny.letter_vocabulary(VOCAB)
    found = tiny.llama_weights(letters, 1, n_embd=16, n_ff=16, n_layer=1, sharpness=1.5, flat_bias=True)
    return tiny.noisy(found, 0.15, seed=2)


def test_it_is_fed_as_published(tiny_files: TinyFiles, weights: tiny.Weights) -> None:
    """Rows, positions, and what is kept from round to round: the same tokens are accepted as of the transcription's."""

    def transcribed(mask: int) -> list[tuple[int, list[int]]]:
        oracle = Engine(tiny_files.letters)
        oracle.draft_by(lambda history, count: drafted_as_published(weights, history, count, mask))
        found = oracle.greedy_rounds(VOCAB, GAMMA, 3)
        oracle.close()
        return found

    engine = Parallel(tiny_files.letters, tiny_files.letters_good)
    found = engine.greedy_rounds(VOCAB, GAMMA, 3)
    assert found == transcribed(MASK)
    assert found != transcribed(MASK + 1)
    assert {accepted for accepted, _ in found} >= {0, 1, 2}
    engine.close()


def test_a_round_costs_one_decode_and_keeps_no_mask(tiny_files: TinyFiles) -> None:
    engine = Parallel(tiny_files.letters, tiny_files.letters_good)
    assert engine.draft is not None
    engine.begin(LETTERS, gamma=GAMMA)
    decoded = engine.speculator.counters.num_draft_tokens_decoded
    for _ in range(30):
        before = engine.history()
        held = len(engine.draft.tokens())
        engine.step()
        assert engine.draft.tokens().tolist() == before
        now = engine.speculator.counters.num_draft_tokens_decoded
        assert now - decoded == len(before) - held + GAMMA - 1
        decoded = now
    engine.close()


@pytest.mark.statistics
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "default", "penalties and bias"])
def test_sequences_have_the_distribution_of_the_target(
    tiny_files: TinyFiles, scorer: Scorer, chain: str, rule: str
) -> None:
    engine = Parallel(tiny_files.letters, tiny_files.letters_good)
    assert_drafted_sequences_are_the_targets(engine, scorer, CHAINS[chain], rule)
    engine.close()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("window", [None, 6])
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, window: int | None, rule: str
) -> None:
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(draft=tiny_files.good, draft_mask_token=MASK, draft_window=window, verify=rule, **EXACT_CACHE)
    assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 5, 20, "auto"])
    assert llm.total_stats.num_accepted_tokens > 0


def test_a_batch_that_is_smaller_than_the_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    options: dict[str, Any] = {"n_batch": 8, **EXACT_CACHE}
    plain = make_llama(num_draft_tokens=0, **options)
    llm = make_llama(draft=tiny_files.good, draft_mask_token=MASK, num_draft_tokens=7, **options)
    for prompt in (LONG, "a dog"):
        assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)
        assert llm.stats.fallback_reason is None


def test_a_sliding_window(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Masks do not push the text out of it."""
    plain = make_llama(tiny_files.sliding, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.sliding, tiny_files.sliding_draft, draft_mask_token=MASK, **EXACT_CACHE)
    for prompt in (LONG, "a dog"):
        assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)
        assert llm.stats.fallback_reason is None
        decoded = llm.stats.num_prompt_tokens + llm.stats.num_tokens + llm.stats.num_draft_tokens
        assert llm.stats.num_draft_tokens_decoded <= decoded


def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    given = prompts(14, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 50, "temperature": 0.9, "seed": 3}
    plain = [found.text for found in make_llama(num_draft_tokens=0, **EXACT_CACHE).create_completions(given, **sampled)]
    llm = make_llama(draft=tiny_files.good, draft_mask_token=MASK, max_parallel=6, cache_tokens=512, **EXACT_CACHE)
    assert [found.text for found in llm.create_completions(given, **sampled)] == plain
    assert llm.total_stats.num_accepted_tokens > 0


@pytest.mark.parametrize(
    ("draft", "value", "error", "match"),
    [
        ("good", -1, ValueError, "draft_mask_token=-1 is out of range"),
        ("good", 10**6, ValueError, "draft_mask_token=1000000 is out of range"),
        ("good", "<mask>", TypeError, "draft_mask_token"),
        ("recurrent_draft", 3, ValueError, "draft with a KV cache"),
    ],
)
def test_bad_masks(tiny_files: TinyFiles, draft: str, value: Any, error: type[Exception], match: str) -> None:
    path = str(getattr(tiny_files, draft))
    with pytest.raises(error, match=match):
        specllama.Llama(str(tiny_files.target), draft_model=path, draft_mask_token=value, verbose=False)
