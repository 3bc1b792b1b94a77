"""MTP layers of each architecture of which llama.cpp has a graph of them: tiny random models draft for themselves."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny
from engine import opened
from exact import EXACT_CACHE
from fresh import assert_texts_of_plain_decoding, text_of
from heads import Headed
from mtp_driver import MtpDriver
from mtp_models import KINDS, SEVERAL, WITHOUT_GRAPH, write_mtp_model
from test_engine_statistics import OFF, VOCAB, Scorer, assert_drafted_sequences_are_the_targets
from test_engine_statistics import PROMPT as LETTERS
from test_heads import GAMMA, LONG

import specllama
from specllama import _core
from specllama.models import mtp_file

if TYPE_CHECKING:
    from conftest import MakeLlama

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
MODELS = [*((arch, 1) for arch in KINDS), *((arch, 3) for arch in SEVERAL)]
each_model = pytest.mark.parametrize(("arch", "count"), MODELS, ids=lambda value: str(value))


def test_all_that_are_known_are_tested() -> None:
    assert set(KINDS) == mtp_file._WITH_MTP
    assert set(SEVERAL) == mtp_file._WITH_SEVERAL


@each_model
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tmp_path: Path, arch: str, count: int
) -> None:
    path = write_mtp_model(tmp_path / "model.gguf", tiny.word_vocabulary(), arch, count=count)
    plain = make_llama(path, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(path, "mtp", verify="coupled", **EXACT_CACHE)
    assert_texts_of_plain_decoding(llm, plain, "coupled", [LONG, "a dog"], [5, "auto"])
    head = llm.total_stats.per_drafter["head"]
    assert head.num_draft_tokens > 100
    assert head.num_accepted_tokens > 20


@each_model
def test_several_texts(make_llama: MakeLlama, tmp_path: Path, arch: str, count: int) -> None:
    path = write_mtp_model(tmp_path / "model.gguf", tiny.word_vocabulary(), arch, count=count)
    given = [LONG[:60] + end for end in (" a", " no fox", " the dog", " of in", " it", " is on the")]
    sampled: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "seed": 3}
    expected = [
        found.text for found in make_llama(path, num_draft_tokens=0, **EXACT_CACHE).create_completions(given, **sampled)
    ]
    llm = make_llama(path, "mtp", max_parallel=3, **EXACT_CACHE)
    assert [found.text for found in llm.create_completions(given, **sampled)] == expected
    assert llm.total_stats.per_drafter["head"].num_accepted_tokens > 0
    assert llm.total_stats.fallback_reason is None


@each_model
def test_they_are_fed_as_by_llama_cpp(tmp_path: Path, arch: str, count: int) -> None:
    """Tokens, states and layers, also behind rejections: the same tokens are accepted as of another driver's."""
    letters = tiny.letter_vocabulary(16)
    path = write_mtp_model(tmp_path / "model.gguf", letters, arch, count=count)
    engine, oracle = (Headed(path, "mtp", _core.Drafter.head) for _ in range(2))
    driver = MtpDriver(path, count)
    oracle.draft_by(lambda history, most: driver.draft(history, most if count == 1 else min(most, count)))
    found, expected = (loop.greedy_rounds(len(letters), GAMMA, 2) for loop in (engine, oracle))
    for loop in (engine, oracle, driver):
        loop.close()
    assert found == expected
    assert {0, 1} <= {accepted for accepted, _ in found}


@pytest.mark.statistics
@pytest.mark.sampled(4)
@each_model
@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_sequences_have_the_targets_distribution(tmp_path: Path, arch: str, count: int, rule: str) -> None:
    path = write_mtp_model(tmp_path / "model.gguf", tiny.letter_vocabulary(VOCAB), arch, count=count)
    engine, plain = Headed(path, "mtp", _core.Drafter.head), opened(path, n_ctx=64, logits_all=True)
    hot = dataclasses.replace(OFF, temperature=5.0)  # these models are often sure
    assert_drafted_sequences_are_the_targets(engine, Scorer(plain, LETTERS), hot, rule)
    engine.close()
    plain.close()


@each_model
def test_in_a_file_of_their_own(make_llama: MakeLlama, tmp_path: Path, arch: str, count: int) -> None:
    """As ``convert_hf_to_gguf.py --mtp`` writes one. They draft what they do in the target's file."""
    words = tiny.word_vocabulary()
    path = write_mtp_model(tmp_path / "model.gguf", words, arch, count=count)
    head = write_mtp_model(tmp_path / "head.gguf", words, arch, count=count, is_alone=True)
    found = []
    for draft in ("mtp", head):
        llm = make_llama(path, draft, **EXACT_CACHE)
        found.append((text_of(llm), llm.stats.num_accepted_tokens, llm.stats.num_draft_tokens))
    assert found[0] == found[1]


@pytest.mark.parametrize("arch", KINDS)
def test_earlier_texts_come_back(make_llama: MakeLlama, tmp_path: Path, arch: str) -> None:
    """With a copy of a part of the memory, or of the whole where llama.cpp would end the process (deepseek4)."""
    path = write_mtp_model(tmp_path / "model.gguf", tiny.word_vocabulary(), arch)
    plain = make_llama(path, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(path, "mtp", cache_ram=64, **EXACT_CACHE)
    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0.9, "seed": 1}
    one, other = ([1, *range(first, first + 30)] for first in (260, 290))
    for text in (one, other):
        text += llm.engine.generate(text, **settings)
    for text in (other, one):
        text.append(270)
        assert [*llm.engine.generate(text, **settings)] == [*plain.engine.generate(text, **settings)]
    assert llm.stats.num_prompt_tokens_from_ram > 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("arch", "count"), [*((arch, 1) for arch in WITHOUT_GRAPH), ("qwen35", 2)])
def test_what_llama_cpp_cannot_run_is_refused(make_llama: MakeLlama, tmp_path: Path, arch: str, count: int) -> None:
    """llama.cpp would end the process. The models are whole, and generate without MTP."""
    path = write_mtp_model(tmp_path / "model.gguf", tiny.word_vocabulary(), arch, count=count)
    with pytest.raises(ValueError, match=f"MTP layers of the architecture {arch}, which llama.cpp cannot run"):
        specllama.Llama(str(path), draft_model="mtp", n_ctx=64, verbose=False)
    assert make_llama(path, num_draft_tokens=0).create_completion(LONG, max_tokens=4)["usage"]["completion_tokens"] == 4
