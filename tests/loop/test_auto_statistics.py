"""Under auto the engine samples from the target's distribution: chi-square over sequences of three tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import pytest
import reference as ref
import tiny_models as tiny
from engine import Engine, drafters_of
from test_engine_statistics import (
    CHAINS,
    LENGTH,
    LEVEL,
    PROMPT,
    RULES,
    VOCAB,
    Scorer,
    chi_square,
    core_settings,
    sequence_probabilities,
)

from specllama import _core

if TYPE_CHECKING:
    from conftest import TinyFiles

CHAIN = CHAINS["T=1"]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten layers, so that a draft of one layer can pay."""
    letters = tiny.letter_vocabulary(VOCAB)
    weights = tiny.llama_weights(letters, seed=1, n_embd=16, n_ff=16, n_layer=10, sharpness=1.5, flat_bias=True)
    return tiny.write_llama(tmp_path_factory.mktemp("auto") / "deep.gguf", letters, weights)


@pytest.fixture(scope="module")
def exact(target: Path) -> Iterator[ref.Array]:
    llm = llama_cpp.Llama(str(target), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    yield sequence_probabilities(Scorer(llm, PROMPT), CHAIN)
    llm.close()


class PacedEngine(Engine):
    """A loop under auto, with whatever else is looked up."""

    def __init__(self, target: Path, draft: Path | None, corpus: list[int]) -> None:
        super().__init__(target, draft, n_ctx=64, draft_n_ctx=64)
        self.speculator = _core.Speculator(self.target, drafters_of(self.draft, np.array(corpus, dtype=np.int32)))

    def text(self, *, rule: str, most: int, seed: int) -> list[int]:
        """The first LENGTH tokens of rounds that could go on behind them."""
        self.speculator.restore_costs(CHEAP)
        self.begin(PROMPT, rule=rule, gamma=most, seed=seed, paced=True, **core_settings(CHAIN))
        tokens: list[int] = []
        while len(tokens) < LENGTH:
            tokens += self.step()
        return tokens[:LENGTH]


# Batches that cost no more than one token, and a draft that costs nearly nothing: the model is used on any machine.
CHEAP = dict.fromkeys(range(1, 18), 1e-3), dict.fromkeys(range(1, 18), 1e-5)

# What followed pairs of tokens before: every pair occurs, so that there is always something to look up.
CORPUS = [
    token for pair in itertools.product(range(3, VOCAB), repeat=2) for token in (*pair, (3 * pair[0] + pair[1]) % 5 + 3)
]


@pytest.mark.statistics
@pytest.mark.sampled(2)
@pytest.mark.parametrize("most", [1, 3, 16])
@pytest.mark.parametrize("rule", RULES)
def test_sequences_of_three_tokens(tiny_files: TinyFiles, target: Path, exact: ref.Array, rule: str, most: int) -> None:
    engine = PacedEngine(target, tiny_files.letters_bad, CORPUS)
    counts = np.zeros((VOCAB,) * LENGTH)
    drafted: set[str] = set()
    for seed in range(1200):
        counts[tuple(engine.text(rule=rule, most=most, seed=seed))] += 1
        per_source = engine.speculator.counters.per_source
        drafted |= {name for name, counters in per_source.items() if counters.num_draft_tokens > 0}
    engine.close()
    assert chi_square(counts, exact) > LEVEL
    assert {"lookup", "model"} <= drafted
