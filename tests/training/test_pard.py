"""`train-draft --kind pard`: a small model learns to say several tokens in one decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
import tiny_models as tiny
from engine import opened
from needed import imported

imported("torch")

import torch
from test_sibling import TEXT, pair
from training_driver import BUDGET

from specllama.models.found_drafts import survey
from specllama.models.gguf_values import read_whole_header
from specllama.models.head_kinds import MASK_TOKEN
from specllama.training.batches import Batch
from specllama.training.parallel import PLACES, _mask_of, read_parallel
from specllama.training.target import read_target
from specllama.training.text import read_texts
from specllama.training.train import Budget, trained

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

UNKNOWN = 0  # of the tiny vocabulary: no other token is free


def batch_of(texts: list[list[int]], learned: slice) -> Batch:
    tokens = torch.tensor(texts)
    none = torch.zeros(0)
    where = torch.zeros(tokens.shape, dtype=torch.bool)
    where[:, learned] = True
    return Batch(tokens, none, none, none, none, none, none, where)


def test_it_computes_what_llama_cpp_does(tiny_files: TinyFiles) -> None:
    """The text up to a place and masks behind it, in one decode; each further token of the draft is the next mask's."""
    model = read_parallel(str(tiny_files.good), read_target(str(tiny_files.target)))
    assert model.mask == UNKNOWN
    head = model.build(np.arange(259, 301), torch.zeros(0), 1.0).eval()
    with torch.no_grad():
        found = [head.logits(one[0]).numpy() for one in head.drafted(batch_of([TEXT], slice(0, None)), 4)]
    llama = opened(tiny_files.good, n_ctx=512, logits_all=True)
    for last in (0, 7, 20):
        llama.reset()
        llama.eval([*TEXT[: last + 1], *[UNKNOWN] * 3])
        for step in range(4):
            expected = llama.scores[last + step, 259:301]
            assert np.abs(found[step][last + step] - expected).max() < 1e-3 * np.abs(expected).max()


def test_what_learns(tiny_files: TinyFiles) -> None:
    """In training some places have masks behind them, the same ones in a pass; other ones if the texts are others."""
    model = read_parallel(str(tiny_files.good), read_target(str(tiny_files.target)))
    head = model.build(np.arange(259, 301), torch.zeros(0), 1.0)
    where = set()
    for more in range(8):
        batch = batch_of([TEXT, [*TEXT[:-1], 260 + more]], slice(5, None))
        drafted, at_all = head.drafted(batch, PLACES), head.eval().drafted(batch, PLACES)
        head.train()
        assert head.learned(batch, 0).equal(batch.learned)
        for step in range(1, PLACES):
            learned = head.learned(batch, step)
            where.add(int(learned[0].nonzero()[0]) - step)
            assert 0 < int(learned.sum()) <= 2 * -(-(len(TEXT) - 5) // 4)
            assert torch.allclose(drafted[step][learned], at_all[step][learned], atol=1e-5)
    assert where == {5, 6, 7, 8}


@pytest.mark.long
def test_it_is_right_more_often(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> None:
    model, small = pair(tiny_files, tmp_path)
    with trained(model, Budget(tokens=6000, answer=64, parallel=4), kind="pard", small=small, threads=1) as made:
        path = made.keep("Q8_0")
    assert path == tmp_path / "pard-model.gguf"
    assert read_whole_header(str(path))[0][MASK_TOKEN] == UNKNOWN
    (written,) = (cache / "training").glob("*.jsonl")
    texts = [text for text in read_texts(written) if text.is_held_out]

    def accepted(draft: Path, **options: int) -> tuple[float, int]:
        llm = make_llama(model, draft, num_draft_tokens=3, **options)
        for text in texts:
            list(llm.engine.generate(text.tokens[: text.start], max_tokens=text.size, temperature=0.0))
        stats = llm.total_stats
        return stats.num_accepted_tokens / stats.num_draft_tokens, sum(stats.num_rounds_per_gamma)

    before, rounds = accepted(small, draft_mask_token=UNKNOWN)
    after, fewer = accepted(path)  # which token is the mask, the file says
    assert after > before + 0.15
    assert fewer < 0.8 * rounds
    first, second, third = made.greedy
    assert after == pytest.approx(first * (1 + second * (1 + third)) / 3, abs=0.1)


def test_it_is_found(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> None:
    model, small = pair(tiny_files, tmp_path)
    with trained(model, BUDGET, kind="pard", small=small, threads=1) as made:
        path = made.keep("Q4_0")
    (found,) = (one for one in survey(str(model)).found if one.draft_model == str(path))
    assert (found.kind, found.why_not, found.is_of_name) == ("parallel", None, True)
    with pytest.raises(ValueError, match="a draft with a mask token says several tokens in one decode"):
        make_llama(model, path, draft_kwargs={"draft_model": "lookup"})
    llm, plain = make_llama(model, path), make_llama(model, num_draft_tokens=0)
    expected = plain.create_completion("the cat", max_tokens=24, seed=3)["choices"][0]["text"]
    assert llm.create_completion("the cat", max_tokens=24, seed=3)["choices"][0]["text"] == expected


def test_a_mask_that_is_no_token(tiny_files: TinyFiles) -> None:
    values, _ = read_whole_header(tiny_files.good)
    for wrong in (len(values["tokenizer.ggml.tokens"]), -1, "one"):
        assert _mask_of("a file", {**values, "tokenizer.ggml.mask_token_id": wrong}) == UNKNOWN
    assert _mask_of("a file", {**values, "tokenizer.ggml.mask_token_id": 7}) == 7


def test_a_model_without_a_token_for_the_mask(tmp_path: Path, tiny_files: TinyFiles) -> None:
    words = tiny.word_vocabulary()
    words.types[:] = [kind if number in (1, 2) else 1 for number, kind in enumerate(words.types)]
    path = tiny.write_llama(tmp_path / "none.gguf", words, tiny.llama_weights(words, seed=1))
    with pytest.raises(ValueError, match="has no control token that could stand for"):
        read_parallel(str(path), read_target(str(tiny_files.target)))
