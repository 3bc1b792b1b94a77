"""The same logits, to the last bit, in batches of every size, and so the same text with any draft or none."""

from __future__ import annotations

import itertools
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny_models
from quantized import KERNELS, needs_kernels, quantized_model

import specllama
from specllama import _core
from specllama.drop_in.lending import lent
from specllama.evidence.machine import describe_machine
from specllama.evidence.tables import machine_text
from specllama.evidence.verify import batches
from specllama.models.quantize import quantize

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = needs_kernels
N_CTX = 1280
LENGTHS = (40, 500, 530, 1100)
"""Behind more than 512 llama.cpp's own flash attention goes another way for a single token."""
NUM_ROWS = 16
SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 80)
"""Of batches. From 64 on llama.cpp's own flash attention goes a third way."""
F32, Q4_0, Q8_0, IQ4_NL = 0, 2, 8, 20


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_model(tmp_path_factory.mktemp("wide"), "Q4_K_M")


@pytest.fixture(scope="module")
def tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(3).integers(10, 60, N_CTX)]


def opened(path: Path, **options: Any) -> specllama.Llama:
    usual: dict[str, Any] = {"n_ctx": N_CTX, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    return specllama.Llama(str(path), **{**usual, **options})


def rows_behind(
    sequence: _core.Sequence, tokens: list[int], length: int, size: int, *, prompt: int = 512
) -> npt.NDArray[np.float32]:
    """Logits of the tokens behind `length` others, in batches of `size`, the others decoded `prompt` at a time."""
    sequence.keep(length)
    if sequence.num_tokens < length:
        sequence.keep(0)
        for start in range(0, length, prompt):
            part = np.array(tokens[start : min(length, start + prompt)], np.int32)
            sequence.decode(part, len(part))
    rows: list[npt.NDArray[np.float32]] = []
    while len(rows) < NUM_ROWS:
        at = length + len(rows)
        sequence.decode(np.array(tokens[at : at + size], np.int32), 0)
        rows += [sequence.logits(i).copy() for i in range(size)]
    return np.array(rows[:NUM_ROWS])


def differing(llm: specllama.Llama, tokens: list[int], length: int) -> list[int]:
    """Sizes of batches that change a bit."""
    sequence = lent(llm).sequence
    alone = rows_behind(sequence, tokens, length, 1)
    return [size for size in SIZES if not np.array_equal(rows_behind(sequence, tokens, length, size), alone)]


@pytest.mark.parametrize("flash", [True, False])
def test_logits_are_the_same_bits_in_every_batch_at_any_length(path: Path, tokens: list[int], flash: bool) -> None:
    llm = opened(path, flash_attn=flash)
    for length in LENGTHS:
        assert differing(llm, tokens, length) == [], length
    assert llm.batch_invariant


def test_without_the_kernels_they_are_not(path: Path, tokens: list[int]) -> None:
    """Or the test above would prove nothing: it is what llama.cpp does by itself."""
    for flash in (True, False):
        llm = opened(path, flash_attn=flash, kernels="off")
        assert differing(llm, tokens, 530)
        assert not llm.batch_invariant


@pytest.mark.parametrize("flash", [True, False])
def test_a_prompt_in_other_pieces_gives_the_same_bits(path: Path, tokens: list[int], flash: bool) -> None:
    llm = opened(path, flash_attn=flash)
    sequence = lent(llm).sequence
    expected = rows_behind(sequence, tokens, 600, 8)
    for prompt in (1, 37, 300):
        sequence.keep(0)
        assert np.array_equal(rows_behind(sequence, tokens, 600, 8, prompt=prompt), expected)


@pytest.mark.parametrize("flash", [True, False])
def test_threads_and_the_room_of_the_context_change_nothing(path: Path, tokens: list[int], flash: bool) -> None:
    llm = opened(path, flash_attn=flash)
    expected = rows_behind(lent(llm).sequence, tokens, 530, 4)
    for options in ({"n_threads": 2, "n_threads_batch": 3}, {"n_ctx": 2048}, {"n_batch": 128, "n_ubatch": 64}):
        other = opened(path, flash_attn=flash, **options)
        found = rows_behind(lent(other).sequence, tokens, 530, 4, prompt=128)
        assert np.array_equal(found, expected), options


def test_a_cache_of_float32_is_no_exception(path: Path, tokens: list[int]) -> None:
    for flash in (True, False):
        llm = opened(path, flash_attn=flash, type_k=F32, type_v=F32)
        assert differing(llm, tokens, 530) == []
        assert llm.batch_invariant


@pytest.mark.parametrize(
    "options",
    [*({"type_k": kind, "type_v": kind} for kind in (Q8_0, Q4_0, IQ4_NL)), {"type_k": Q8_0}, {"type_k": Q4_0}],
)
def test_nor_is_a_quantized_cache(path: Path, tokens: list[int], options: dict[str, int]) -> None:
    """With values of such a type there is flash attention, and else there is none."""
    llm = opened(path, **options)
    assert llm.has_flash_attention == ("type_v" in options)
    for length in LENGTHS:
        assert differing(llm, tokens, length) == [], length
    assert llm.batch_invariant


def test_alibi_is_no_exception(tmp_path: Path, tokens: list[int]) -> None:
    """And its slopes are those of llama.cpp, which has a kernel of its own."""
    path = tiny_models.write_alibi(tmp_path / "alibi.gguf", tiny_models.word_vocabulary(), 3)
    llm = opened(path)
    for length in (40, 530):
        assert differing(llm, tokens, length) == [], length
    assert llm.batch_invariant
    ours, theirs = (rows_behind(lent(each).sequence, tokens, 300, 8) for each in (llm, opened(path, kernels="off")))
    assert np.abs(ours - theirs).mean() < 0.05 * theirs.std()


WIDE = {"n_embd": 256, "n_ff": 512}
OTHERS: dict[str, Callable[[Path], Path]] = {
    "windows": lambda path: tiny_models.write_sliding_window(path, tiny_models.word_vocabulary(), 3, **WIDE),
    "sinks": lambda path: tiny_models.write_sinks(
        path, tiny_models.word_vocabulary(), 3, n_embd=96, n_ff=64, head_size=32
    ),
    "latent": lambda path: tiny_models.write_latent(path, tiny_models.word_vocabulary(), 3),
    "convolution": lambda path: tiny_models.write_hybrid(path, tiny_models.word_vocabulary(), 3, **WIDE),
    "delta net": lambda path: tiny_models.write_mtp_hybrid(path, tiny_models.word_vocabulary(), 3, heads=16, **WIDE),
    "scan": lambda path: tiny_models.write_recurrent(path, tiny_models.word_vocabulary(), 3, n_embd=256),
    "scan of heads": lambda path: tiny_models.write_scanning_hybrid(path, tiny_models.word_vocabulary(), 3, **WIDE),
}
"""Models with other memories."""


@pytest.fixture(scope="module", params=OTHERS)
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    return quantize(OTHERS[request.param](folder / "floats.gguf"), "Q8_0", output=folder / "made.gguf")


def test_other_memories_are_no_exception(other: Path, tokens: list[int]) -> None:
    llm = opened(other, draft_model="lookup", num_draft_tokens=4)
    for length in (40, 530):
        assert differing(llm, tokens, length) == [], length
    assert llm.batch_invariant


@pytest.mark.parametrize("other", ["sinks"], indirect=True)
def test_flash_attention_is_on_by_the_size_of_a_head(other: Path) -> None:
    """As of gpt-oss, whose heads are wider than its width over their number. Our kernels take whole lanes."""
    assert opened(other).has_flash_attention


def test_they_are_near_llama_cpps_own(other: Path, tokens: list[int]) -> None:
    llm, plain = opened(other, draft_model="lookup"), opened(other, kernels="off")
    for count in (1, 8):
        ours, theirs = (rows_behind(lent(each).sequence, tokens, 300, count) for each in (llm, plain))
        assert np.abs(ours - theirs).mean() < 0.05 * theirs.std()


@pytest.mark.parametrize("other", ["convolution", "delta net", "scan of heads"], indirect=True)
def test_several_texts_of_recurrent_memories_are_those_alone(other: Path, tokens: list[int]) -> None:
    llm = opened(other, n_ctx=256, draft_model=str(other), draft_kwargs={"kernels": "off"})
    prompts = [tokens[start : start + 20 + 7 * place] for place, start in enumerate(range(0, 350, 50))]
    options = {"max_tokens": 30, "temperature": 0, "logit_bias": {llm.token_eos(): -100.0}, "progress": False}
    alone = [outcome.text for outcome in llm.create_completions(prompts, max_parallel=1, num_draft_tokens=0, **options)]
    for drafted in (0, 3, "auto"):
        for most in (3, 7):
            found = llm.create_completions(prompts, max_parallel=most, num_draft_tokens=drafted, **options)
            assert [outcome.text for outcome in found] == alone


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "coupled"])
def test_texts_of_other_memories_are_those_without_a_draft(
    other: Path, tokens: list[int], sampling: dict[str, Any]
) -> None:
    llm = opened(other, draft_model=str(other), draft_kwargs={"kernels": "off"})
    answer: Callable[..., Any] = llm.create_completion
    options = {"max_tokens": 40, "logit_bias": {llm.token_eos(): -100.0}, **sampling}
    accepted = 0
    for length in (20, 300):
        plain = answer(tokens[:length], num_draft_tokens=0, **options)["choices"][0]["text"]
        for draft in DRAFTS:
            assert answer(tokens[:length], **draft, **options)["choices"][0]["text"] == plain
            assert llm.stats.batch_invariant
            accepted += llm.stats.num_accepted_tokens
    assert accepted > 50


DRAFTS: list[dict[str, Any]] = [{"num_draft_tokens": gamma} for gamma in (1, 4, 11, "auto")]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("flash", [True, False])
@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.9, "seed": 5}], ids=["greedy", "coupled"])
def test_texts_are_those_without_a_draft(path: Path, tokens: list[int], sampling: dict[str, Any], flash: bool) -> None:
    llm = opened(path, flash_attn=flash, draft_model=str(path), draft_kwargs={"kernels": "off"})
    answer: Callable[..., Any] = llm.create_completion
    options = {"max_tokens": 40, "logit_bias": {llm.token_eos(): -100.0}, **sampling}
    accepted = 0
    for length, start in itertools.product((20, 490, 700), (0, 100)):
        prompt = tokens[start : start + length]
        plain = answer(prompt, num_draft_tokens=0, **options)["choices"][0]["text"]
        for draft in DRAFTS:
            assert answer(prompt, **draft, **options)["choices"][0]["text"] == plain
            assert llm.stats.batch_invariant
            accepted += llm.stats.num_accepted_tokens
    assert accepted > 500


def test_where_it_does_not_hold_it_is_not_said(path: Path, tiny_files: TinyFiles, tokens: list[int]) -> None:
    llm = opened(path)
    assert not llm.batch_invariant  # nothing was decoded yet
    llm(tokens[:5], max_tokens=2)
    assert llm.batch_invariant
    assert llm.stats.batch_invariant
    assert llm.total_stats.batch_invariant
    assert "the same bits in every batch" in str(llm.stats)
    assert "same bits in every batch" in machine_text(describe_machine(llm))
    floats = opened(tiny_files.target)
    floats(tokens[:5], max_tokens=2)
    assert not floats.stats.batch_invariant
    assert "same bits" not in machine_text(describe_machine(floats)) + str(floats.stats)


def test_a_product_that_is_llama_cpps_ends_it(path: Path, tmp_path: Path, tokens: list[int]) -> None:
    """A LoRA's are, and they are left alone: its weights are no cache."""
    weights = tiny_models.llama_weights(tiny_models.word_vocabulary(), 5, n_embd=256, n_ff=512)
    lora = tiny_models.write_lora(tmp_path / "lora.gguf", weights, seed=1)
    llm = opened(path, lora_path=str(lora))
    llm(tokens[:5], max_tokens=2)
    assert not llm.stats.batch_invariant


def test_weights_of_a_type_that_is_llama_cpps_end_it(tmp_path: Path, tokens: list[int]) -> None:
    """One matrix is enough."""
    vocabulary = tiny_models.word_vocabulary()
    weights = tiny_models.llama_weights(vocabulary, 5, n_embd=256, n_ff=512)
    kinds = {name: "Q8_0" for name, weight in weights.items() if weight.ndim > 1}
    all_ours = tiny_models.write_llama(tmp_path / "ours.gguf", vocabulary, weights, kinds)
    kinds["blk.1.ffn_down.weight"] = "F32"
    with_theirs = tiny_models.write_llama(tmp_path / "theirs.gguf", vocabulary, weights, kinds)
    for path, invariant in ((all_ours, True), (with_theirs, False)):
        llm = opened(path)
        llm(tokens[:5], max_tokens=2)
        assert llm.kernels.startswith(KERNELS.instruction_set)
        assert llm.stats.batch_invariant is invariant


def test_verify_compares_batches(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = opened(path, n_ctx=700, draft_model=str(path))
    result = specllama.verify.run(llm, ["the cat"], samples=30, max_tokens=8, num_contexts=1, top_k=4)
    assert [test.num_tokens_before for test in result.batches] == [64, 600]
    assert result.passed, result.problems
    assert not result.num_near_ties
    monkeypatch.setattr(batches, "np", types.SimpleNamespace(array_equal=lambda one, other: False))
    found = batches.compare_batches(llm, [5, 6, 7], 64, lambda: None)
    assert found.differing_sizes == tuple(range(1, NUM_ROWS + 1))
    assert "logits behind 64 tokens differ" in found.problems[0]
    assert not found.to_dict()["passed"]
