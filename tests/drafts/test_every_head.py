"""Heads of all kinds: whatever they say, texts and distributions are the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import block_heads
import llama_cpp
import pytest
import state_heads
from engine import assert_one_round_is_plain
from exact import EXACT_CACHE
from fresh import RULES, assert_texts_of_plain_decoding
from heads import Headed
from test_block_heads import Drafting, letters_head, words_head
from test_engine_statistics import CHAINS, Scorer, assert_drafted_sequences_are_the_targets
from test_heads import LONG
from test_scheduler import prompts
from test_state_heads import LETTER, WORDS, fitted, headed

from specllama import _core

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
OF_TARGETS = {"deep": "deep_head", "mtp": "mtp", "mtp_several": "mtp", "mtp_hybrid": "mtp", "gemma4": "assistant"}
"""Targets with EAGLE-3 heads, with MTP layers of their own, or with an assistant."""
KINDS = (*OF_TARGETS, *block_heads.KINDS, *state_heads.KINDS)
ALONE = ("deep", "gemma4", *block_heads.KINDS, *state_heads.KINDS)


def pair(files: TinyFiles, folder: Path, kind: str) -> tuple[Path, Path | str, str]:
    """A target, its head, and the drafter's name."""
    if kind in OF_TARGETS:
        name = OF_TARGETS[kind]
        head = name if name == "mtp" else getattr(files, name)
        return getattr(files, kind), head, "assistant" if name == "assistant" else "head"
    if kind in block_heads.KINDS:
        return files.deep, words_head(folder, kind), "block_head"
    head = state_heads.write_state_head(folder / "head.gguf", kind, WORDS, fitted(kind, letters=False))
    return files.deep, head, "state_head"


def alone(files: TinyFiles, folder: Path, kind: str) -> Headed:
    """A loop over letters, whose head is alone."""
    if kind == "deep":
        return Headed(files.letters_deep, files.letters_head, _core.Drafter.head)
    if kind == "gemma4":
        return Headed(files.letters_gemma4, files.letters_assistant, _core.Drafter.assistant)
    if kind in block_heads.KINDS:
        return Drafting(files.letters_deep, letters_head(folder, kind))
    path = state_heads.write_state_head(folder / "head.gguf", kind, LETTER, fitted(kind, letters=True))
    return headed(files.letters_deep, path)


@pytest.mark.statistics
@pytest.mark.sampled(12)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "default", "penalties and bias"])
@pytest.mark.parametrize("kind", ALONE)
def test_sequences_have_the_distribution_of_the_target(
    tiny_files: TinyFiles, tmp_path: Path, request: pytest.FixtureRequest, kind: str, chain: str, rule: str
) -> None:
    engine = alone(tiny_files, tmp_path, kind)
    scorer: Scorer = request.getfixturevalue("gemma4_scorer" if kind == "gemma4" else "deep_scorer")
    assert_drafted_sequences_are_the_targets(engine, scorer, CHAINS[chain], rule)
    engine.close()


@pytest.mark.parametrize("kind", ["deep", *state_heads.KINDS])
def test_behind_what_the_memory_holds(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """Of that there are no states: one round is plain, and then the head reads on from there."""
    engine = alone(tiny_files, tmp_path, kind)
    assert_one_round_is_plain(engine, tiny_files.letters_deep, 3)
    engine.close()


@pytest.mark.sampled(30)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str, window: int | None, rule: str
) -> None:
    path, head, drafter = pair(tiny_files, tmp_path, kind)
    options = {} if drafter in ("assistant", "state_head") else {"draft_window": window}
    plain = make_llama(path, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(path, head, verify=rule, **options, **EXACT_CACHE)
    assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 5, 20, "auto"])
    by_head = llm.total_stats.per_drafter[drafter]
    assert by_head.num_draft_tokens > 300
    assert by_head.num_accepted_tokens > 0 or kind == "mtp_hybrid"  # a random one


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "mtp_hybrid"])
def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """Heads of several texts decode together; some texts give way to others where the cache is full."""
    path, head, drafter = pair(tiny_files, tmp_path, kind)
    given = prompts(14, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 50, "temperature": 0.9, "seed": 3}
    plain = make_llama(path, num_draft_tokens=0, **EXACT_CACHE)
    expected = [found.text for found in plain.create_completions(given, **sampled)]
    for options in ({}, {"cache_tokens": 512}, {"num_draft_tokens": "auto"}):
        llm = make_llama(path, head, max_parallel=6, **options, **EXACT_CACHE)
        assert [found.text for found in llm.create_completions(given, **sampled)] == expected
        stats = llm.total_stats
        assert "num_draft_tokens" in options or stats.per_drafter[drafter].num_accepted_tokens > 0
        assert stats.fallback_reason is None
