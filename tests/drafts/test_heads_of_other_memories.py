"""EAGLE-3, DFlash and DSpark heads over targets with windows, recurrent states and experts: texts stay the target's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import block_heads
import llama_cpp
import pytest
import tiny_models as tiny
from exact import EXACT_CACHE
from fresh import text_of
from test_heads import LONG
from test_scheduler import prompts

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
WORDS = tiny.word_vocabulary()
TARGETS = {
    "gemma3": {"target": "sliding"},
    "gemma3 without what the windows leave": {"target": "sliding", "swa_full": False},
    "gemma4": {"target": "gemma4"},
    "mamba": {"target": "recurrent"},
    "lfm2": {"target": "hybrid"},
    "delta net": {"target": "mtp_hybrid"},
    "mixture": {"target": "mixture"},
    "gpt-oss": {"target": "sinks"},
}
"""Files of `conftest.TinyFiles` by names, and options of their Llama. The mixtures are written here."""
KINDS = ("eagle3", *block_heads.KINDS)


def target_of(files: TinyFiles, folder: Path, name: str) -> Path:
    if name == "sinks":
        return tiny.write_sinks(folder / "sinks.gguf", WORDS, seed=1)
    if name != "mixture":
        return getattr(files, name)  # type: ignore[no-any-return]
    weights = tiny.with_experts(tiny.llama_weights(WORDS, seed=1), seed=1)
    return tiny.write_llama(folder / "mixture.gguf", WORDS, weights)


def head_of(folder: Path, kind: str) -> Path:
    """A head with random weights, which reads what enters the second layer."""
    path = folder / "head.gguf"
    if kind == "eagle3":
        return tiny.write_head(path, WORDS, tiny.head_weights(WORDS, 5, n_target=32, n_embd=24), layers=[1, 1, 1])
    weights = block_heads.weights_of(kind, WORDS, 5, n_embd=32)
    weights["fc.weight"] = weights["fc.weight"][:, :32]
    return block_heads.write_block_head(path, kind, WORDS, weights, layers=[1])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TARGETS)
def test_texts_alone_and_at_once(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, name: str, kind: str
) -> None:
    options: dict[str, Any] = {**TARGETS[name], **EXACT_CACHE}
    path, drafter = target_of(tiny_files, tmp_path, options.pop("target")), "head" if kind == "eagle3" else "block_head"
    plain = make_llama(path, num_draft_tokens=0, **options)
    llm = make_llama(path, head_of(tmp_path, kind), max_parallel=4, **options)
    for settings in ({"temperature": 0.0}, {"temperature": 0.9}):
        for prompt in (LONG, "a dog", LONG + " no fox"):
            assert text_of(llm, prompt, **settings) == text_of(plain, prompt, **settings)
            assert llm.stats.fallback_reason is None
            assert llm.stats.per_drafter[drafter].num_draft_tokens > 0
    given, sampled = prompts(6, shared=40), {"max_tokens": 30, "temperature": 0.9, "seed": 3}
    expected = [found.text for found in plain.create_completions(given, **sampled)]
    assert [found.text for found in llm.create_completions(given, **sampled)] == expected
    assert llm.total_stats.fallback_reason is None
