"""Embeddings: what is embedded, what is refused, and that nothing ends the process."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

MEAN, CLS, LAST, RANK, NONE = (
    llama_cpp.LLAMA_POOLING_TYPE_MEAN,
    llama_cpp.LLAMA_POOLING_TYPE_CLS,
    llama_cpp.LLAMA_POOLING_TYPE_LAST,
    llama_cpp.LLAMA_POOLING_TYPE_RANK,
    llama_cpp.LLAMA_POOLING_TYPE_NONE,
)


@pytest.fixture(scope="module")
def without_bos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model in which an empty text has no token."""
    vocabulary = tiny.byte_pair_vocabulary()
    path = tmp_path_factory.mktemp("embeddings") / "no_bos.gguf"
    return tiny.write_llama(path, dataclasses.replace(vocabulary, adds_bos=False), tiny.llama_weights(vocabulary, 1))


def assert_still_embeds(llm: Any) -> None:
    """As a sound object does."""
    assert len(llm.embed("abc")) > 0


@pytest.mark.parametrize("pooling", [MEAN, CLS, LAST])
def test_they_are_those_of_llama_cpp(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, pooling: int
) -> None:
    options: dict[str, Any] = {"embedding": True, "pooling_type": pooling}
    texts = ["the cat", "a", "no dog is on the cat " * 12, "the cat"] * 3
    for path in (tiny_files.target, tiny_files.embedding):
        ours, theirs = make_llama(path, **options), make_base(path, **options)
        for normalize in (False, True):
            assert ours.embed(texts, normalize=normalize) == theirs.embed(texts, normalize=normalize)
        assert ours.embed("a b") == theirs.embed("a b")
        assert ours.create_embedding(texts) == {**theirs.create_embedding(texts), "model": ours.model_path}
        assert ours.create_embedding("a")["usage"] == theirs.create_embedding("a")["usage"]


def test_without_pooling_each_token_has_a_vector(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    """llama_cpp takes the rows of a second text from within the first one: it is asked for one at a time."""
    texts = ["the cat", "a", "no dog is on the cat"]
    for path in (tiny_files.target, tiny_files.embedding):
        ours, theirs = (make(path, embedding=True, pooling_type=NONE) for make in (make_llama, make_base))
        for text, vectors in zip(texts, ours.embed(texts), strict=True):
            np.testing.assert_allclose(vectors, theirs.embed(text), rtol=1e-5, atol=1e-6)


def test_what_has_no_tokens(make_llama: MakeLlama, without_bos: Path) -> None:
    llm = make_llama(without_bos, embedding=True, pooling_type=MEAN)
    assert llm.embed([]) == []
    assert llm.create_embedding([])["data"] == []
    for nothing, index in (("", 0), ([""], 0), (["a", ""], 1), (["a", "b", []], 2)):
        with pytest.raises(ValueError, match=f"input {index} .* has no tokens"):
            llm.embed(nothing)
    assert_still_embeds(llm)


def test_texts_may_be_token_ids(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(embedding=True, pooling_type=MEAN)
    texts = ["the cat", "no dog"]
    ids = [llm.tokenize(text.encode()) for text in texts]
    assert llm.embed(ids) == llm.embed(texts)
    assert llm.embed(ids[0]) == llm.embed(texts[0])
    assert llm.create_embedding(ids) == llm.create_embedding(texts)
    assert llm.create_embedding(ids[1]) == llm.create_embedding(texts[1])
    with pytest.raises(ValueError, match="token 99999 at index 1 is out of range"):
        llm.embed([[1, 99999]])
    assert_still_embeds(llm)


def test_ids_of_numpy_and_any_iterable_of_texts(make_llama: MakeLlama) -> None:
    llm = make_llama(embedding=True, pooling_type=MEAN)
    expected = llm.embed([[5, 6], [7, 8]])
    for ids in ([np.array([5, 6]), np.array([7, 8])], np.array([[5, 6], [7, 8]]), [(5, 6), [np.int32(7), np.int64(8)]]):
        assert llm.embed(ids) == expected
        assert [one["embedding"] for one in llm.create_embedding(ids)["data"]] == expected
    for ids in ([np.int32(5), 6], np.array([5, 6], dtype=np.uint16)):
        assert llm.embed(ids) == expected[0]
    texts = {"the cat": 1, "no dog": 2}
    expected = llm.embed(list(texts))
    for given in (texts.keys(), np.array([*texts]), (text for text in texts), tuple(texts)):
        assert llm.embed(given) == expected
    assert sorted(llm.embed({*texts})) == sorted(expected)


@pytest.mark.parametrize(
    "nothing",
    [
        None,
        3,
        1.5,
        b"text",
        {"a": 1},
        [None],
        [1, "a"],
        [[1], 2],
        [["a"]],
        [[1.5]],
        np.array(1),
        np.array([1.5]),
        [np.array(["a"])],
    ],
)
def test_what_is_no_text(make_llama: MakeLlama, nothing: Any) -> None:
    llm = make_llama(embedding=True)
    for method in (llm.embed, llm.create_embedding):
        with pytest.raises(TypeError, match="must be a text or a list of texts"):
            method(nothing)
    assert_still_embeds(llm)


@pytest.mark.parametrize("pooling", [MEAN, CLS, LAST, NONE])
def test_a_small_n_ubatch(make_llama: MakeLlama, without_bos: Path, pooling: int) -> None:
    """A text is embedded as a whole, whatever n_ubatch is: cut, it would end the process, or be wrong."""
    text = "the cat is in a cat" * 12
    expected = make_llama(without_bos, embedding=True, pooling_type=pooling, n_batch=256).embed(text)
    small = make_llama(without_bos, embedding=True, pooling_type=pooling, n_batch=256, n_ubatch=64)
    np.testing.assert_allclose(small.embed(text), expected, rtol=1e-4, atol=1e-5)


def test_an_encoder_takes_more_than_the_default_n_ubatch(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(tiny_files.embedding, embedding=True, n_ctx=1024, n_batch=1024)
    assert len(llm.embed("a " * 700)) == 32
    assert llm.embed("a " * 700, return_count=True)[1] == 702


def test_no_text_is_longer_than_the_positions_that_a_model_has_learned(
    make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    with pytest.warns(UserWarning, match=r"n_ctx=4096 becomes 1024: .* has learned 1024 positions"):
        llm = make_llama(tiny_files.embedding, embedding=True, n_ctx=4096, n_batch=4096)
    assert llm.n_ctx() == tiny.N_CTX_TRAIN
    assert llm.embed("a " * 3000, return_count=True)[1] == tiny.N_CTX_TRAIN
    with pytest.raises(ValueError, match=r"at most n_batch=1024 are .*: shorten it \(or in Python: truncate it\)$"):
        llm.embed("a " * 3000, truncate=False)
    small = make_llama(tiny_files.embedding, embedding=True, n_batch=256)
    with pytest.raises(
        ValueError, match=r"input 0 has 602 tokens, and .* truncate it, or take a larger n_batch and n_"
    ):
        small.embed("a " * 600, truncate=False)
    assert_still_embeds(llm)


def test_a_model_without_weights(make_llama: MakeLlama) -> None:
    llm = make_llama(embedding=True, vocab_only=True)
    with pytest.raises(ValueError, match="vocab_only=True: it has no weights"):
        llm.embed("a")


def test_a_model_that_makes_none(make_llama: MakeLlama) -> None:
    llm = make_llama()
    with pytest.raises(RuntimeError, match="create it with embedding=True"):
        llm.embed("a")


@pytest.mark.parametrize("n_batch", [100, 257, 300, 997])
def test_the_mean_of_texts_in_batches_of_any_size(make_llama: MakeLlama, tiny_files: TinyFiles, n_batch: int) -> None:
    """llama.cpp would end the process unless it can give each sequence an equal share of a batch."""
    texts = ["a " * (n_batch // 2 - 2), *["the cat"] * 300]
    for path in (tiny_files.target, tiny_files.embedding):
        llm = make_llama(path, embedding=True, pooling_type=MEAN, n_ctx=1024, n_batch=n_batch)
        found, one = llm.embed(texts), llm.embed("the cat")
        np.testing.assert_allclose(found[1:], [one] * 300, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_ctx", [100, 300, 600])
def test_the_mean_in_contexts_of_any_size(make_llama: MakeLlama, tiny_files: TinyFiles, n_ctx: int) -> None:
    assert_still_embeds(make_llama(tiny_files.embedding, embedding=True, n_ctx=n_ctx))


def test_scores_without_a_head_that_ranks(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """llama.cpp takes them from the state of the first text in the batch."""
    for path in (tiny_files.embedding, tiny_files.target):
        with pytest.raises(ValueError, match=rf"pooling_type={RANK} gives scores, and .*{path.name} has no head that"):
            make_llama(path, embedding=True, pooling_type=RANK)


def test_a_model_that_computes_nan(make_llama: MakeLlama, tmp_path: Path) -> None:
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1)
    weights["blk.0.ffn_down.weight"][3, 3] = np.nan
    path = tiny.write_llama(tmp_path / "nan.gguf", words, weights)
    for pooling in (MEAN, NONE):
        llm = make_llama(path, embedding=True, pooling_type=pooling)
        for normalize in (False, True):
            with pytest.raises(RuntimeError, match="the model computes NaN or infinity, and so no embedding"):
                llm.embed("the cat", normalize=normalize)


@pytest.mark.parametrize("scores", [1, 3])
def test_a_model_that_ranks_gives_scores(make_llama: MakeLlama, tmp_path: Path, scores: int) -> None:
    """Behind them llama.cpp has no more numbers to read."""
    path = tiny.write_embedding_model(tmp_path / "reranker.gguf", 1, num_scores=scores)
    llm = make_llama(path, embedding=True)
    found = llm.embed(["a b", "c"])
    assert [len(one) for one in found] == [scores, scores]
    np.testing.assert_allclose(found, [llm.embed("a b"), llm.embed("c")], rtol=1e-4, atol=1e-5)
    assert llm.embed(["a b", "c"], normalize=True) == found  # of length 1 they would all be 1.0 or -1.0
