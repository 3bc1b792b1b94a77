"""Text that a grammar forces: drafted without a model, exactly, also where several tokens could spell it."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import numpy as np
import pytest
import reference as ref
import tiny_models as tiny
from engine import Engine, drafters_of
from test_engine_statistics import LENGTH, LEVEL, OFF, VOCAB, Scorer, chi_square, core_settings, count_sequences

from specllama import _core

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

# --- A vocabulary in which two tokens spell what is forced -----------------------------------------------------------

PIECES = ["a", "b", "ab", "c", "d"]
A, B, AB, C, D = range(3, 8)
PAIRS = 'root ::= "ab" [cd] root'
PROMPT = [1, A, B, C, A, B]
"""A lookup goes on with "cab", which PAIRS forbids at first and allows behind a first "ab"."""


def allowed(generated: list[int]) -> list[int]:
    """What may come next, by the definition of PAIRS."""
    text = "".join(PIECES[token - A] for token in generated)
    return [[A, AB], [B], [C, D]][len(text) % 3]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A target and a draft that is good for it."""
    folder = tmp_path_factory.mktemp("pairs")
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * 5
    pairs = tiny.Vocabulary(["<unk>", "<s>", "</s>", *PIECES], [0.0] * VOCAB, [int(kind) for kind in types])
    weights = tiny.llama_weights(pairs, 1, n_embd=16, n_ff=16, n_layer=1, sharpness=1.0, flat_bias=True)
    return (
        tiny.write_llama(folder / "target.gguf", pairs, weights),
        tiny.write_llama(folder / "draft.gguf", pairs, tiny.noisy(weights, 0.15, seed=2)),
    )


@pytest.fixture(scope="module")
def probabilities(files: tuple[Path, Path]) -> ref.Array:
    """Of every sequence of LENGTH tokens under PAIRS."""
    llm = llama_cpp.Llama(str(files[0]), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    scorer = Scorer(llm, PROMPT)
    result = np.zeros((VOCAB,) * LENGTH)

    def extend(prefix: list[int], probability: float) -> None:
        if len(prefix) == LENGTH:
            result[tuple(prefix)] = probability
            return
        masked = np.full(VOCAB, -np.inf, np.float32)
        masked[allowed(prefix)] = scorer.logits(prefix)[-1][allowed(prefix)]
        probs = ref.sampler_chain(masked, OFF, prefix).probs
        for token in allowed(prefix):
            extend([*prefix, token], probability * probs[token])

    extend([], 1.0)
    llm.close()
    return result


def open_engine(files: tuple[Path, Path], draft: str) -> Engine:
    engine = Engine(files[0], files[1] if draft == "model" else None)
    if draft == "lookup":
        engine.speculator = _core.Speculator(engine.target, drafters_of(None))
    return engine


@pytest.mark.statistics
@pytest.mark.parametrize("draft", ["model", "lookup"])
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_guesses_of_a_split_leave_the_distribution(
    files: tuple[Path, Path], probabilities: ref.Array, rule: str, draft: str
) -> None:
    engine = open_engine(files, draft)
    guide = engine.grammar(PAIRS)
    accepted = drafted = 0

    def generate(seed: int) -> list[int]:
        nonlocal accepted, drafted
        tokens = engine.generate(PROMPT, LENGTH, rule=rule, gamma=4, seed=seed, constraint=guide, **core_settings(OFF))
        counts = engine.speculator.counters.per_source["grammar"]
        accepted += counts.num_accepted_tokens
        drafted += counts.num_draft_tokens
        return tokens

    assert chi_square(count_sequences(generate, 1500), probabilities) > LEVEL
    assert 0 < accepted < drafted
    engine.close()


@pytest.mark.parametrize("draft", ["model", "lookup"])
def test_coupled_texts_are_plain_decodings(files: tuple[Path, Path], draft: str) -> None:
    engine = open_engine(files, draft)
    for seed in range(20):
        settings: dict[str, Any] = {"rule": "coupled", "seed": seed, **core_settings(OFF)}
        plain = engine.generate(PROMPT, 30, gamma=0, constraint=engine.grammar(PAIRS), **settings)
        for gamma in (1, 2, 4, 7):
            assert engine.generate(PROMPT, 30, gamma=gamma, constraint=engine.grammar(PAIRS), **settings) == plain
            assert engine.speculator.counters.per_source["grammar"].num_draft_tokens > 0
    engine.close()


# --- Lookup with a fixed number of tokens -----------------------------------------------------------------------------

REPEATED = b"the cat sat on the dog and the cat sat on the"
"""A lookup goes on with " dog and the cat"."""


@pytest.mark.parametrize(
    ("gbnf", "expected"),
    [
        ("root ::= [a-z ]+", {"lookup": 4}),
        ("root ::= [.,]+", {}),
        ('root ::= (" dog" | " cat") [.,]+', {"lookup": 1}),
        ('root ::= (" dog" | " cat") " is" [.,]', {"lookup": 1, "grammar": 1}),
        ('root ::= " the cat sat on" [.,]', {"grammar": 4}),
    ],
)
def test_a_lookup_drafts_what_the_grammar_allows_and_forces(
    tiny_files: TinyFiles, gbnf: str, expected: dict[str, int]
) -> None:
    engine = open_engine((tiny_files.target, tiny_files.target), "lookup")
    tokens = engine.target_llama.tokenize(REPEATED)
    engine.begin(tokens, gamma=4, temperature=0.0, constraint=engine.grammar(gbnf))
    engine.step()
    counts = {name: found.num_draft_tokens for name, found in engine.speculator.counters.per_source.items()}
    assert {name: count for name, count in counts.items() if count} == expected
    engine.close()


@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
def test_forced_text_is_accepted_without_a_model(make_llama: MakeLlama, verify: str) -> None:
    llm = make_llama(draft="lookup", verify=verify)
    guide = llama_cpp.LlamaGrammar.from_string(
        'root ::= (" the cat sat on" (" a" | " the") " dog and")+', verbose=False
    )

    def text(num_draft_tokens: int) -> list[int]:
        settings: dict[str, Any] = {"temp": 0.0, "grammar": guide, "num_draft_tokens": num_draft_tokens}
        return list(itertools.islice(llm.generate(llm.tokenize(b"the"), **settings), 40))

    plain = text(0)
    for gamma in (1, 4, 8):
        assert text(gamma) == plain
        assert llm.stats.per_drafter["grammar"].num_accepted_tokens > 0
