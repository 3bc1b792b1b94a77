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

import specllama
from specllama import _core_test as _test
from specllama.engine.contexts import Contexts

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

TEXT = [1, 270, 280, 290, 300, 275, 285]
OTHER = [1, 305, 300, 299]
SOME = [3, 40, 41, 270, 316]
"""Of four groups; the vocabulary's last one is not whole."""

Tokens = npt.NDArray[np.int32]


def ids(tokens: list[int]) -> Tokens:
    return np.array(tokens, dtype=np.int32)


def tokens_of(listed: _test.TokenList, n_vocab: int) -> list[int]:
    return [token for group in listed.groups for token in range(16 * group, min(16 * group + 16, n_vocab))]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    folder = tmp_path_factory.mktemp("wide")
    return lambda kind: quantized_model(folder, kind)


class Texts:
    """Two texts in one context."""

    def __init__(self, llm: specllama.Llama) -> None:
        self._contexts = Contexts(llm.engine.model, None, 2)
        self.one, self.other = (self._contexts.sequences(number)[0] for number in range(2))
        self.n_vocab = llm.n_vocab()

    def close(self) -> None:
        self._contexts.close()

    def rows(
        self, one: tuple[_test.TokenList | None, int], other: tuple[_test.TokenList | None, int] | None = None
    ) -> list[npt.NDArray[np.float32]]:
        """The rows of one batch of both texts, given what each wants of its tokens and from which token on."""
        parts = [_test.Part(self.one, ids(TEXT), one[1], one[0])]
        if other is not None:
            parts.append(_test.Part(self.other, ids(OTHER), other[1], other[0]))
        _test.decode_together(parts)
        found = [self.one.logits(i) for i in range(one[1], len(TEXT))]
        if other is not None:
            found += [self.other.logits(i) for i in range(other[1], len(OTHER))]
        self.one.keep(0)
        self.other.keep(0)
        return found


@pytest.fixture
def texts(path: Callable[[str], Path]) -> Iterator[Texts]:
    llm = specllama.Llama(str(path("Q8_0")), n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False)
    made = Texts(llm)
    yield made
    made.close()
    llm.close()


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_XS"])
@pytest.mark.parametrize("n_threads", [1, 2])
def test_what_is_listed_has_the_same_bits(path: Callable[[str], Path], kind: str, n_threads: int) -> None:
    llm = specllama.Llama(str(path(kind)), n_ctx=64, n_threads=n_threads, n_threads_batch=n_threads, verbose=False)
    texts = Texts(llm)
    listed = _test.TokenList(llm.n_vocab(), ids(SOME))
    chosen = tokens_of(listed, llm.n_vocab())
    left_out = sorted({*range(llm.n_vocab())} - {*chosen})
    for first in (len(TEXT) - 1, 0):  # one row, and several
        whole = texts.rows((None, first))
        texts.rows((None, 0), (None, 0))  # something else stands in the buffers then
        rows = texts.rows((listed, first))
        assert _test.skipping(texts.one.decoder) == "yes"
        for row, all_of_it in zip(rows, whole, strict=True):
            assert np.array_equal(row[chosen], all_of_it[chosen])
            assert not np.array_equal(row[left_out], all_of_it[left_out]), "they were computed"
    again = texts.rows((None, 0))
    assert all(np.array_equal(a, b) for a, b in zip(again, whole, strict=True)), "a list ends with its decode"
    texts.close()
    llm.close()


@needs_kernels
def test_several_texts_get_what_each_lists(texts: Texts) -> None:
    whole = texts.rows((None, 5), (None, 2))
    lists = [_test.TokenList(texts.n_vocab, ids(tokens)) for tokens in (SOME, [100, 280])]
    chosen = [tokens_of(listed, texts.n_vocab) for listed in lists]
    rows = texts.rows((lists[0], 5), (lists[1], 2))
    for i, row in enumerate(rows):
        both = sorted({*chosen[0], *chosen[1]})
        assert np.array_equal(row[both], whole[i][both])
    assert not np.array_equal(rows[0], whole[0])


@needs_kernels
def test_one_that_lists_nothing_gets_all(texts: Texts) -> None:
    whole = texts.rows((None, 5), (None, 2))
    listed = _test.TokenList(texts.n_vocab, ids(SOME))
    for one, other in ((listed, None), (None, listed)):
        rows = texts.rows((one, 5), (other, 2))
        assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
    # Beside a part of a prompt, which wants no logits, the list holds.
    alone = texts.rows((listed, 5), (None, len(OTHER)))
    chosen = tokens_of(listed, texts.n_vocab)
    assert np.array_equal(alone[0][chosen], whole[0][chosen])
    assert not np.array_equal(alone[0], whole[0])


@needs_kernels
def test_the_same_weights_in_another_thread_give_all(texts: Texts, path: Callable[[str], Path]) -> None:
    """Two contexts over one model decode at the same time, and only one of them has a list."""
    llm = specllama.Llama(str(path("Q8_0")), n_ctx=64, n_threads=2, n_threads_batch=2, verbose=False)
    with_list, without = Texts(llm), Texts(llm)
    whole = without.rows((None, 0))
    listed = _test.TokenList(llm.n_vocab(), ids(SOME))
    ended = threading.Event()

    def decode() -> None:
        while not ended.is_set():
            with_list.rows((listed, 0))

    thread = threading.Thread(target=decode)
    thread.start()
    try:
        for _ in range(300):
            rows = without.rows((None, 0))
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
    texts = Texts(llm)
    whole = texts.rows((None, 0))
    rows = texts.rows((_test.TokenList(llm.n_vocab(), ids(SOME)), 0))
    assert _test.skipping(texts.one.decoder) == "no"
    assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
    texts.close()


def test_a_list_has_whole_groups() -> None:
    listed = _test.TokenList(40, ids([39, 3, 5, -1, 40, 1000]))
    assert listed.groups.tolist() == [0, 2]
    assert [listed.token(place) for place in range(24)] == [*range(16), *range(32, 40)]
    assert [listed.place_of(token) for token in (0, 15, 16, 31, 32, 39, 40, -1)] == [
        0,
        15,
        None,
        None,
        16,
        23,
        None,
        None,
    ]


def test_an_empty_list_wants_all(texts: Texts) -> None:
    whole = texts.rows((None, 5))
    rows = texts.rows((_test.TokenList(texts.n_vocab, ids([])), 5))
    assert all(np.array_equal(a, b) for a, b in zip(rows, whole, strict=True))
