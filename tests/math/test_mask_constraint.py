"""Constraints that are told of all tokens at once: the native side of schemas, without llguidance."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
from engine import Engine, api, vocab_address
from test_engine_statistics import LENGTH as SEQUENCE
from test_engine_statistics import LEVEL, Scorer, chi_square, core_settings, count_sequences
from test_engine_statistics import PROMPT as LETTERS
from test_guided import OFF, allowed_letters, guided_probabilities

from specllama import _core

if TYPE_CHECKING:
    from conftest import TinyFiles

END = 2
Recent = list[int]


def packed(tokens: list[int], n_vocab: int = 8) -> bytes:
    bits = np.zeros(n_vocab, dtype=bool)
    bits[tokens] = True
    return np.packbits(bits, bitorder="little").tobytes()


class Steps:
    """Allows what a function says, and notes what it was asked."""

    def __init__(self, allowed: Callable[[Recent], list[int]], guess: int = -1) -> None:
        self.allowed = allowed
        self.guess = guess
        self.asked: list[Recent] = []

    def __call__(self, recent: Any) -> tuple[bytes, bool, int]:
        self.asked.append(recent.tolist())
        tokens = self.allowed(recent.tolist())
        return packed([token for token in tokens if token != END]), END in tokens, self.guess


@pytest.mark.statistics
@pytest.mark.parametrize("chain", [OFF, ref.Chain(temperature=1.5, top_k=3, min_p=0.0)], ids=["T=1", "top-k 3"])
@pytest.mark.parametrize("draft", ["good", "adversarial"])
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_sequences(tiny_files: TinyFiles, scorer: Scorer, rule: str, draft: str, chain: ref.Chain) -> None:
    """The distribution is that of plain guided decoding."""
    engine = Engine(tiny_files.letters, tiny_files.letters_draft(draft))

    def generate(seed: int) -> list[int]:
        constraint = _core.MaskConstraint([END], Steps(allowed_letters))
        return engine.generate(
            LETTERS, SEQUENCE, rule=rule, gamma=3, seed=seed, constraint=constraint, **core_settings(chain)
        )

    counts = count_sequences(generate, 1000)
    engine.close()
    assert chi_square(counts, guided_probabilities(scorer, chain)) > LEVEL


def test_draft_and_target_ask_once_for_a_position(tiny_files: TinyFiles) -> None:
    engine = Engine(tiny_files.letters, tiny_files.letters_good)
    steps = Steps(lambda recent: [3, 4, 5])
    text = engine.generate(LETTERS, 40, gamma=4, temperature=1.0, constraint=_core.MaskConstraint([END], steps))
    assert set(text) <= {3, 4, 5}
    assert engine.speculator.counters.num_draft_tokens > 20
    engine.close()
    for earlier, later in zip(steps.asked, steps.asked[1:], strict=False):
        assert earlier != later
    # A position is asked for again only where another token stands before it.
    assert len({tuple(asked) for asked in steps.asked}) == len(steps.asked)


def test_ends_are_allowed_together(tiny_files: TinyFiles) -> None:
    """Whatever the masks say of them: a model has several, and a matcher knows one."""
    logits = np.zeros(8, dtype=np.float32)
    for may_end in (False, True):
        constraint = _core.MaskConstraint([2, 7], lambda recent, ends=may_end: (packed([3, 7]), ends, -1))
        params = _core.SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
        dist = _core.distribution(logits, params, [], constraint)
        assert {token for token in range(8) if _prob(dist, token) > 0} == ({2, 3, 7} if may_end else {3})


def _prob(dist: _core.Distribution, token: int) -> float:
    if dist.dense:
        return float(dist.probs[token])
    return float(sum(prob for at, prob in zip(dist.ids, dist.probs, strict=True) if at == token))


@pytest.mark.parametrize("size", [0, 1, 5, 9])
def test_what_a_mask_does_not_have_is_forbidden(size: int) -> None:
    constraint = _core.MaskConstraint([], lambda recent: (b"\xff" * size, False, -1))
    params = _core.SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    if size == 0:
        with pytest.raises(RuntimeError, match="no token can be sampled"):
            _core.distribution(np.zeros(70, np.float32), params, [], constraint)
        return
    dist = _core.distribution(np.zeros(70, np.float32), params, [], constraint)
    assert sum(_prob(dist, token) > 0 for token in range(70)) == min(70, 8 * size)


def test_what_is_forced() -> None:
    answers: dict[int, tuple[bytes, bool, int]] = {
        0: (packed([5]), False, -1),
        1: (packed([5, 6]), False, 6),
        2: (packed([5, 6]), False, -1),
        3: (packed([5]), True, 5),
        4: (packed([5, 6]), False, 7),
    }
    constraint = _core.MaskConstraint([END], lambda recent: answers[len(recent)])
    forced = [constraint.forced([3] * i) for i in range(5)]
    assert [one and (one.token, one.is_unique) for one in forced] == [(5, True), (6, False), None, None, None]


@pytest.mark.parametrize("after", [0, 3, 11])
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_an_error_ends_the_round(tiny_files: TinyFiles, rule: str, after: int) -> None:
    """Also one that is met while drafting: the draft may not go on as if there were no schema."""
    engine = Engine(tiny_files.letters, tiny_files.letters_good)
    plain = engine.generate(LETTERS, 10, temperature=0.0)

    def failing(recent: Any) -> tuple[bytes, bool, int]:
        if len(recent) >= after:
            raise KeyError("given up")
        return packed([3, 4, 5]), False, -1

    constraint = _core.MaskConstraint([END], failing)
    engine.begin(LETTERS, rule=rule, gamma=4, temperature=0.0, constraint=constraint)
    with pytest.raises(KeyError, match="given up"):
        engine.take(30)
    assert engine.generate(LETTERS, 10, temperature=0.0) == plain
    engine.close()


def test_pieces_are_what_tokens_add_to_a_text(tiny_files: TinyFiles) -> None:
    for file in (tiny_files.target, tiny_files.letters):
        llm = llama_cpp.Llama(str(file), vocab_only=True, verbose=False)
        pieces, ends = _core.token_pieces(api(), vocab_address(llm))
        assert len(pieces) == llm.n_vocab()
        assert ends == [
            token for token in range(llm.n_vocab()) if llama_cpp.llama_vocab_is_eog(llm._model.vocab, token)
        ]
        before = [next(token for token in range(llm.n_vocab()) if llm.detokenize([token]).strip())]
        for token, piece in enumerate(pieces):
            shown = llm.detokenize([*before, token])[len(llm.detokenize(before)) :]
            assert piece == shown if shown and token not in ends else piece.startswith(b"\xff")
        llm.close()
