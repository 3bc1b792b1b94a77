"""Several texts in one batch: with flash attention each is computed over its own cells, as if it were alone."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from llama_cpp import _internals
from quantized import needs_kernels, quantized_model

import specllama

pytestmark = needs_kernels
NUM_TEXTS = 4
F32, Q8_0 = 0, 8
MOST = 700  # tokens of a text
Rows = dict[int, list[npt.NDArray[np.float32]]]


class Texts:
    """Texts in one cache."""

    def __init__(self, llm: specllama.Llama, count: int) -> None:
        params = type(llm.context_params).from_buffer_copy(llm.context_params)
        params.n_ctx, params.n_seq_max, params.kv_unified = count * 1024, count, True
        self._context = _internals.LlamaContext(model=llm._model, params=params, verbose=False)
        self._n_vocab = llm.n_vocab()
        self.rows: Rows = {text: [] for text in range(count)}
        """Logits after each token."""

    def decode(self, parts: dict[int, list[int]]) -> None:
        """The next tokens of some texts, in one batch."""
        batch = llama_cpp.llama_batch_init(sum(map(len, parts.values())), 0, 1)
        texts = [text for text, tokens in parts.items() for _ in tokens]
        for i, (text, token) in enumerate(zip(texts, [t for tokens in parts.values() for t in tokens], strict=True)):
            batch.token[i], batch.pos[i] = token, len(self.rows[text]) + texts[:i].count(text)
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, text, 1
        batch.n_tokens = len(texts)
        assert llama_cpp.llama_decode(self._context.ctx, batch) == 0
        llama_cpp.llama_batch_free(batch)
        for i, text in enumerate(texts):
            row = llama_cpp.llama_get_logits_ith(self._context.ctx, i)
            self.rows[text].append(np.ctypeslib.as_array(row, (self._n_vocab,)).copy())

    def forget(self, text: int, first: int) -> None:
        """The tokens from one on."""
        memory = llama_cpp.llama_get_memory(self._context.ctx)
        assert llama_cpp.llama_memory_seq_rm(memory, text, first, -1)
        del self.rows[text][first:]

    def close(self) -> None:
        self._context.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return quantized_model(tmp_path_factory.mktemp("many"), "Q4_K_M")


@pytest.fixture(params=[1, 2, 3], ids="{} threads".format)
def llm(request: pytest.FixtureRequest, path: Path) -> Iterator[specllama.Llama]:
    threads = {"n_threads": request.param, "n_threads_batch": request.param}
    llm = specllama.Llama(str(path), n_ctx=1024, flash_attn=True, verbose=False, **threads)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def tokens() -> list[list[int]]:
    return np.random.default_rng(5).integers(10, 60, (NUM_TEXTS, MOST)).tolist()


def alone(llm: specllama.Llama, tokens: list[int]) -> list[Any]:
    texts = Texts(llm, 1)
    for start in range(0, len(tokens), 256):
        texts.decode({0: tokens[start : start + 256]})
    texts.close()
    return texts.rows[0]


def test_rows_are_those_of_the_text_alone(llm: specllama.Llama, tokens: list[list[int]]) -> None:
    """Prompts of different lengths, one of which joins later, then batches of one to five tokens of each."""
    texts = Texts(llm, NUM_TEXTS)
    texts.decode({0: tokens[0][:300], 1: tokens[1][:40]})
    texts.decode({0: tokens[0][300:301], 1: tokens[1][40:44], 2: tokens[2][:400]})
    sizes = np.random.default_rng(1)
    while any(len(rows) < len(tokens[text]) - 300 for text, rows in texts.rows.items()):
        parts = {}
        for text, rows in texts.rows.items():
            count = int(sizes.integers(1, 6)) if len(rows) < MOST - 300 else 1
            parts[text] = tokens[text][len(rows) : len(rows) + count]
        texts.decode(parts)
    for text, rows in texts.rows.items():
        assert len(rows) >= 400
        assert np.array_equal(rows, alone(llm, tokens[text][: len(rows)])), text
    texts.close()


def test_cells_that_came_free_go_to_others(llm: specllama.Llama, tokens: list[list[int]]) -> None:
    """Then a text's cells are no longer in the order of its tokens, and its last bits may be others."""
    texts = Texts(llm, 2)
    texts.decode({0: tokens[0][:30], 1: tokens[1][:30]})
    texts.forget(0, 10)
    for at in range(30, 90, 2):
        texts.decode({1: tokens[1][at : at + 2], 0: tokens[0][len(texts.rows[0]) :][:1]})
    for text, rows in texts.rows.items():
        assert np.allclose(rows, alone(llm, tokens[text][: len(rows)]), rtol=0, atol=2e-2), text
    texts.close()


def test_without_flash_attention_they_are_not(path: Path, tokens: list[list[int]]) -> None:
    """Or the first test would prove nothing."""
    llm = specllama.Llama(str(path), n_ctx=1024, n_threads=1, n_threads_batch=1, flash_attn=False, verbose=False)
    texts = Texts(llm, 2)
    for at in range(0, 400, 20):
        texts.decode({text: tokens[text][at : at + 20] for text in (0, 1)})
    assert not np.array_equal(texts.rows[1], alone(llm, tokens[1][:400]))
    texts.close()
    llm.close()


def first_logits(ask: Callable[..., Any], prompts: Any) -> Rows:
    """By the length of a prompt, the logits of its first token."""
    rows: Rows = {}

    def listen(tokens: npt.NDArray[np.intc], logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        rows[len(tokens)] = [np.array(logits)]
        return logits

    ask(prompts, max_tokens=1, temperature=0.0, logits_processor=listen)
    return rows


ANY = [{}, {"type_k": F32, "type_v": F32}, {"type_k": Q8_0}]
"""Caches that can be read with flash attention and without."""


@pytest.mark.parametrize(
    ("flash", "cache"), [*itertools.product([False, None], ANY), (None, {"type_k": Q8_0, "type_v": Q8_0})]
)
def test_several_texts_attend_as_one_does(tmp_path: Path, flash: bool | None, cache: dict[str, int]) -> None:
    """A context for several texts has flash attention if the Llama's own has it: it rounds a cache's numbers otherwise.

    Sums over more cells differ by their last bits, which may round an activation to another byte. So not all rows are
    the same, but most are.
    """
    llm = specllama.Llama(
        str(quantized_model(tmp_path, "Q8_0")), n_ctx=256, n_threads=1, flash_attn=flash, verbose=False, **cache
    )
    generator = np.random.default_rng(5)
    prompts = [generator.integers(10, 60, 20 + 3 * i).tolist() for i in range(12)]
    together = first_logits(llm.create_completions, prompts)
    different = []
    for prompt in prompts:
        ((size, (row,)),) = first_logits(llm.create_completion, prompt).items()
        different.append(np.abs(row - together[size][0]).max() / row.std())
    assert np.median(different) < 1e-5
    llm.close()
