"""A decode that needs the logits of some tokens only: our kernels compute these, and no other decode hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pytest
from quantized import quantized_model
from test_kernels_in_llama_cpp import needs_kernels
from test_together import Context

import specllama
from specllama import _core
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

TEXT = [1, 270, 280, 290, 300, 275, 285]
SOME = [3, 40, 41, 270, 316]
"""Of four groups; the vocabulary's last one is not whole."""

Tokens = npt.NDArray[np.int32]


def ids(tokens: list[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def tokens_of(listed: _core.TokenList, n_vocab: int) -> list[int]:
    return [token for group in listed.groups for token in range(16 * group, min(16 * group + 16, n_vocab))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("wide")
    return lambda kind: quantized_model(folder, kind)


class Text:
    """One in a context of its own."""

    def __init__(self, llm: specllama.Llama, n_threads: int = 2) -> None:
        self._context = Context(llm, 1, n_threads)
        self.one = self._context.sequence(0)
        self.n_vocab = llm.n_vocab()

    def close(self) -> None:
        self._context.close()

    def rows(self, listed: _core.TokenList | None, first: int) -> list[npt.NDArray[np.float32]]:
        """Those of one batch, from a token on: of all tokens, or of those that are listed."""
        self.one.decode(ids(TEXT), first, listed)
        found = [self.one.logits(i) for i in range(first, len(TEXT))]
        self.one.keep(0)
        return found


@pytest.fixture
def text(path: Callable[[str], Path]) -> Iterator[Text]:
    llm = specllama.Llama(str(path("Q8_0")), n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False)
    made = Text(llm)
    yield made
    made.close()
    llm.close()


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS"])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_listed_has_the_same_bits(path: Callable[[str], Path], kind: str, n_threads: int) -> None:
    llm = specllama.Llama(str(path(kind)), n_ctx=64, verbose=False)
    text = Text(llm, n_threads)
    listed = _core.TokenList(llm.n_vocab(), ids(SOME))
    chosen = tokens_of(listed, llm.n_vocab())
    left_out = sorted({*range(llm.n_vocab())} - {*chosen})
    for first in (len(TEXT) - 1, 0):  # one row, and several
        whole = text.rows(None, first)
        text.rows(None, 0)  # something else stands in the buffers then
        rows = text.rows(listed, first)
        assert _test.skipping(text.one.decoder) == "yes"
        for row, all_of_it in zip(rows, whole, strict=True):
            assert np.array_equal(row[chosen], all_of_it[chosen])
            assert not np.array_equal(row[left_out], all_of_it[left_out]), "they were computed"
    again = text.rows(None, 0)
    assert all(np.array_equal(a, b) for a, b in zip(again, whole, strict=True)), "a list ends with its decode"
    text.close()
    llm.close()


@needs_kernels
def test_the_same_weights_in_another_thread_give_all(text: Text, path: Callable[[str], Path]) -> None:
    """Two contexts over one model decode at the same time, and only one of them has a list."""
    llm = specllama.Llama(str(path("Q8_0")), n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False)
    with_list, without = Text(llm), Text(llm)
    whole = without.rows(None, 0)
    listed = _core.TokenList(llm.n_vocab(), ids(SOME))
    ended = threading.Event()

    def decode() -> None:
        while not ended.is_set():
            with_list.rows(listed, 0)

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        for _ in range(300):
            rows = without.rows(None, 0)
            assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
    finally:
        ended.set()
        thread.join()
    assert _test.skipping(with_list.one.decoder) == "yes"
    assert _test.skipping(without.one.decoder) == "unknown"
    for each in (with_list, without):
        each.close()
    llm.close()


def test_other_kernels_compute_all(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(tiny_files.target)
    text = Text(llm)
    whole = text.rows(None, 0)
    rows = text.rows(_core.TokenList(llm.n_vocab(), ids(SOME)), 0)
    assert _test.skipping(text.one.decoder) == "no"
    assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
    text.close()


def test_a_list_has_whole_groups() -> None:
    listed = _core.TokenList(40, ids([39, 3, 5, -1, 40, 1000]))
    assert listed.groups.tolist() == [0, 2]


@needs_kernels
def test_an_empty_list_wants_all(text: Text) -> None:
    whole = text.rows(None, 5)
    rows = text.rows(_core.TokenList(text.n_vocab, ids([])), 5)
    assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
