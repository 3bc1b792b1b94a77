"""Several sequences of one decoder in one batch: each is as if it were alone, whatever becomes of the others."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from engine import api
from several_texts import MEMORIES
from test_scheduler import needs_copies

from specllama import _core
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeBase, TinyFiles
    from several_texts import ManyTexts

N_CTX, N_BATCH = 256, 32
ONE = [1, 270, 280, 290, 265, 271, 281]
OTHER = [1, 280, 280, 275, 290]
CLOSE = 1e-4  # a batch of another size adds up in another order

Rows = npt.NDArray[np.float32]


class Context:
    """A llama_context of a model, with room for some sequences."""

    def __init__(self, llama: llama_cpp.Llama, num_sequences: int = 3, n_threads: int = 1) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch = N_CTX * num_sequences, N_BATCH, N_BATCH
        params.n_seq_max = num_sequences
        params.n_threads = params.n_threads_batch = n_threads
        self._context = llama_cpp.llama_init_from_model(llama._model.model, params)
        address = ctypes.cast(self._context, ctypes.c_void_p).value
        assert address is not None
        self.decoder = _core.Decoder(api(), address, "target")

    def sequence(self, number: int) -> _core.Sequence:
        return _core.Sequence(self.decoder, number)

    def close(self) -> None:
        self.decoder.close()
        llama_cpp.llama_free(self._context)


@pytest.fixture
def llama(make_base: MakeBase) -> llama_cpp.Llama:
    return make_base()


@pytest.fixture
def context(llama: llama_cpp.Llama) -> Iterator[Context]:
    made = Context(llama)
    yield made
    made.close()


def alone(llama: llama_cpp.Llama, tokens: Sequence[int]) -> Rows:
    """The logits behind each token of a text that is decoded by itself: [tokens, n_vocab]."""
    context = Context(llama, 1)
    sequence = context.sequence(0)
    sequence.decode(np.array(tokens, dtype=np.int32), 0)
    rows = np.array([sequence.logits(i) for i in range(len(tokens))])
    context.close()
    return rows


def part(sequence: _core.Sequence, tokens: Sequence[int], first_output: int = 0) -> _test.Part:
    return _test.Part(sequence, np.array(tokens, dtype=np.int32), first_output)


def rows_of(sequence: _core.Sequence, first: int, end: int) -> Rows:
    return np.array([sequence.logits(i) for i in range(first, end)])


def test_rows_of_logits_are_those_of_each_sequence_alone(llama: llama_cpp.Llama, context: Context) -> None:
    """Different lengths, not all rows wanted, and a second batch with its parts the other way round."""
    one, other, third = (context.sequence(number) for number in (0, 2, 1))
    expected_one, expected_other = alone(llama, ONE), alone(llama, OTHER)
    assert np.abs(expected_one[: len(OTHER)] - expected_other).max(axis=1)[1:].min() > 100 * CLOSE, "they differ"
    _test.decode_together([part(one, ONE[:4], 2), part(other, OTHER[:3], 0)])
    assert rows_of(one, 2, 4) == pytest.approx(expected_one[2:4], abs=CLOSE)
    assert rows_of(other, 0, 3) == pytest.approx(expected_other[:3], abs=CLOSE)
    _test.decode_together([part(other, OTHER[3:]), part(third, OTHER[:1]), part(one, ONE[4:])])
    assert rows_of(other, 0, 2) == pytest.approx(expected_other[3:], abs=CLOSE)
    assert rows_of(third, 0, 1) == pytest.approx(expected_other[:1], abs=CLOSE)
    assert rows_of(one, 0, 3) == pytest.approx(expected_one[4:], abs=CLOSE)
    assert [one.tokens().tolist(), other.tokens().tolist(), third.tokens().tolist()] == [ONE, OTHER, OTHER[:1]]
    assert context.decoder.num_decoded == len(ONE) + len(OTHER) + 1


@pytest.mark.parametrize("kept", [0, 1, 3])
def test_rolling_one_back_leaves_the_other(llama: llama_cpp.Llama, context: Context, kept: int) -> None:
    one, other = context.sequence(0), context.sequence(1)
    _test.decode_together([part(one, ONE), part(other, OTHER)])
    one.keep(kept)
    assert (one.tokens().tolist(), other.tokens().tolist()) == (ONE[:kept], OTHER)
    new = [285, 290, 270] if kept else [1, 285, 290]
    _test.decode_together([part(one, new), part(other, [271])])
    assert rows_of(one, 0, 3) == pytest.approx(alone(llama, ONE[:kept] + new)[kept:], abs=CLOSE)
    assert rows_of(other, 0, 1) == pytest.approx(alone(llama, [*OTHER, 271])[-1:], abs=CLOSE)


@pytest.mark.parametrize(
    ("whose", "tokens", "message"),
    [
        ("one", [271], "each of its sequences once"),
        ("foreign", [271], "a batch is of one decoder"),
        ("other", [], "a part of a batch has no tokens"),
        ("other", [10**6], "token 1000000 is out of range"),
        ("other", [270] * N_BATCH, f"n_batch={N_BATCH}"),
    ],
)
def test_a_batch_that_is_refused_changes_no_sequence(
    llama: llama_cpp.Llama, context: Context, whose: str, tokens: list[int], message: str
) -> None:
    one, other, elsewhere = context.sequence(0), context.sequence(1), Context(llama)
    sequences = {"one": one, "other": other, "foreign": elsewhere.sequence(0)}
    _test.decode_together([part(one, ONE), part(other, OTHER)])
    with pytest.raises(ValueError, match=message):
        _test.decode_together([part(one, [270]), part(sequences[whose], tokens)])
    assert (one.tokens().tolist(), other.tokens().tolist()) == (ONE, OTHER)
    _test.decode_together([part(one, [270]), part(other, [271])])
    assert rows_of(one, 0, 1) == pytest.approx(alone(llama, [*ONE, 270])[-1:], abs=CLOSE)
    assert rows_of(other, 0, 1) == pytest.approx(alone(llama, [*OTHER, 271])[-1:], abs=CLOSE)
    elsewhere.close()


def test_a_number_belongs_to_one_sequence(context: Context) -> None:
    one = context.sequence(1)
    with pytest.raises(ValueError, match="sequence 1 of the target is there already"):
        context.sequence(1)
    del one
    context.sequence(1)


@needs_copies
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("memory", MEMORIES)
def test_texts_come_and_go_in_other_memories(
    tiny_files: TinyFiles, open_texts: Callable[..., ManyTexts], memory: str, seed: int
) -> None:
    """In any order and length, rolled back and emptied in between, with copies of their states."""
    target, _, num_snapshots = MEMORIES[memory]
    texts, alone = (open_texts(getattr(tiny_files, target), None, n, num_snapshots=num_snapshots) for n in (4, 1))
    for each in (texts, alone):
        each.scheduler.close()
    rng, sequences = np.random.default_rng(seed), texts.targets
    held: list[list[int]] = [[] for _ in sequences]
    for _ in range(30):
        for number in np.flatnonzero(rng.random(4) < 0.3):
            least = max(0, len(held[number]) - 4) if rng.random() < 0.6 else 0  # often what snapshots allow
            sequences[number].keep(int(rng.integers(least, len(held[number]) + 1)))
            del held[number][sequences[number].num_tokens :]
        some = rng.permutation(4)[: rng.integers(1, 5)]
        lengths = rng.choice([1, 1, 4, 9], 1 if num_snapshots else len(some))  # where snapshots need equal ones
        added = [rng.integers(5, 60, length).tolist() for length, _ in zip(itertools.cycle(lengths), some)]
        _test.decode_together([part(sequences[i], more, len(more) - 1) for i, more in zip(some, added, strict=True)])
        for i, more in zip(some, added, strict=True):
            held[i] += more
            last = len(held[i]) - 1
            alone.targets[0].keep(0)
            alone.targets[0].decode(np.array(held[i], np.int32), last)
            off = np.abs(sequences[i].logits(len(more) - 1) - alone.targets[0].logits(last)).max()
            assert off < (0.02 if memory == "sliding" else CLOSE)
        for i in np.flatnonzero(rng.random(4) < 0.5):
            sequences[i].save()
