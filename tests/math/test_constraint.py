"""The sampler chain under a constraint: against reference.py, and under a grammar against llama.cpp's own samplers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import pytest
import reference as ref
import tiny_models as tiny
from engine import grammar
from llama_chain import llama_cpp_probs
from structs import values
from test_distribution import (
    CHAINS,
    LLAMA_CPP_TOLERANCE,
    OFF,
    TOLERANCE,
    Logits,
    assert_same,
    specllama_probs,
)

from specllama import _core
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeBase, TinyFiles

GRAMMARS = {
    "words": 'root ::= (" the" | " cat" | " dog" | " on" | "." | ",")+',
    "letters": "root ::= [a-e .]*",
    "json": llama_cpp.llama_grammar.JSON_GBNF,
    "utf-8": 'root ::= ("é" | "ü" | "日本" | " a" | [α-ω])+',
    "not": r'root ::= [^aeiou"\x80-\U0FFFFFFF]+',  # no bytes that llama.cpp alone takes
    "finite": 'root ::= " the cat sat" | " the dog"',
}


class Recorder:
    """Allows some tokens, and notes which it was asked about."""

    def __init__(self, allowed: Sequence[int]) -> None:
        self.allowed = set(allowed)
        self.asked: list[int] = []

    def __call__(self, recent: Sequence[int], ids: Sequence[int]) -> list[bool]:
        self.asked += ids
        return [token in self.allowed for token in ids]


def constrained(logits: Logits, chain: ref.Chain, allowed: Sequence[int]) -> tuple[ref.Array, list[int]]:
    """The probabilities when only some tokens are allowed, and which tokens the constraint was asked about."""
    recorder = Recorder(allowed)
    probs = specllama_probs(logits, chain, [], _test.CallbackConstraint(recorder))
    return probs, recorder.asked


# --- Any constraint, without llama.cpp -------------------------------------------------------------------------------


@pytest.mark.sampled(40)
@pytest.mark.parametrize("share", [1.0, 0.5, 0.03, 0.001])
@pytest.mark.parametrize("chain", CHAINS)
def test_the_chain_sees_only_what_is_allowed(chain: str, share: float) -> None:
    rng = np.random.default_rng(5)
    compared = 0
    for n_vocab in (300, 300, 5000, 5000):
        logits = (3.0 * rng.standard_normal(n_vocab)).astype(np.float32)
        allowed = rng.permutation(n_vocab)[: max(1, int(share * n_vocab))]
        masked = np.full(n_vocab, -np.inf, np.float32)
        masked[allowed] = logits[allowed]
        expected = ref.sampler_chain(masked, CHAINS[chain])
        if expected.margin < (1e-9 if CHAINS[chain].typical_p >= 1 else 1e-5):
            continue
        probs, asked = constrained(logits, CHAINS[chain], allowed.tolist())
        assert_same(probs, expected.probs, TOLERANCE)
        assert len(asked) == len(set(asked))
        compared += 1
    assert compared


@pytest.mark.parametrize("seed", range(20))
def test_cuts_are_those_of_all_allowed_tokens(seed: int) -> None:
    """Peaked and flat logits: what has not been tested must not move the cut of top-p or min-p."""
    rng = np.random.default_rng(seed)
    logits = (rng.uniform(0.5, 6.0) * rng.standard_normal(4000)).astype(np.float32)
    allowed = rng.permutation(4000)[: int(rng.integers(1, 4000))]
    masked = np.full(4000, -np.inf, np.float32)
    masked[allowed] = logits[allowed]
    for top_k, top_p, min_p in itertools.product((0, 1, 40, 500), (0.3, 0.95, 1.0), (0.0, 0.05, 0.9)):
        chain = dataclasses.replace(OFF, top_k=top_k, top_p=top_p, min_p=min_p)
        expected = ref.sampler_chain(masked, chain)
        if expected.margin > 1e-5:
            assert_same(constrained(logits, chain, allowed.tolist())[0], expected.probs, TOLERANCE)


@pytest.mark.parametrize(
    ("chain", "most"),
    [
        ("greedy", 8),
        ("default", 64),
        ("top-k 40", 64),
        ("top-k 200", 256),
        ("top-p 0.9", 256),
        ("min-p 0.1", 64),
        ("top-p and min-p", 256),
        ("all", 64),
    ],
)
def test_candidates_that_cannot_be_chosen_are_not_tested(chain: str, most: int) -> None:
    rng = np.random.default_rng(2)
    logits = (2.0 * rng.standard_normal(100_000)).astype(np.float32)
    logits[rng.integers(100_000, size=30)] += 18.0
    _, asked = constrained(logits, CHAINS[chain], range(100_000))
    assert len(asked) <= most
    assert asked == np.lexsort((np.arange(100_000), -logits))[: len(asked)].tolist()


def test_few_allowed_tokens_end_the_search_where_min_p_decides() -> None:
    """The default chain asks for 40 allowed tokens; there is one, and what lies far below it is not looked through."""
    logits = np.linspace(0.0, -50.0, 100_000).astype(np.float32)
    probs, asked = constrained(logits, ref.Chain(), [700])
    assert probs[700] == 1.0
    assert len(asked) < 20_000
    assert constrained(logits, dataclasses.replace(ref.Chain(), min_p=0.0), [700])[0][700] == 1.0


@pytest.mark.parametrize("chain", CHAINS)
def test_nothing_allowed_is_an_error(chain: str) -> None:
    with pytest.raises(RuntimeError, match=r"no token can be sampled.*grammar"):
        constrained(np.zeros(500, np.float32), CHAINS[chain], [])


def test_bias_and_penalties_come_before_the_constraint() -> None:
    logits = np.arange(10, dtype=np.float32)
    chain = ref.Chain(temperature=0.0, logit_bias={3: 100.0, 9: float("-inf")}, repeat_penalty=1.5)
    assert constrained(logits, chain, [3, 8, 9])[0][3] == 1.0
    assert constrained(logits, chain, [8, 9])[0][8] == 1.0
    assert constrained(logits, chain, [0, 9])[0][0] == 1.0


# --- Grammars ---------------------------------------------------------------------------------------------------------


def logits_behind(llm: llama_cpp.Llama, tokens: Sequence[int]) -> Logits:
    llm.reset()
    llm.eval(tokens)
    row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
    return np.ctypeslib.as_array(row, shape=(llm.n_vocab(),)).copy()


def guided_text(llm: llama_cpp.Llama, name: str, length: int, seed: int = 3) -> list[int]:
    """What plain llama_cpp.Llama writes under a grammar."""
    llm.set_seed(seed)
    guide = llama_cpp.LlamaGrammar.from_string(GRAMMARS[name], verbose=False)
    return list(itertools.islice(llm.generate(llm.tokenize(b"the cat"), temp=1.0, grammar=guide), length))


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_chain_is_llama_cpps(make_base: MakeBase, name: str) -> None:
    llm = make_base()
    prompt = llm.tokenize(b"the cat")
    text = guided_text(llm, name, 24)
    ours = grammar(llm, GRAMMARS[name])
    guide = llama_cpp.LlamaGrammar.from_string(GRAMMARS[name], verbose=False)
    compared = 0
    for length in range(len(text)):
        recent = text[:length]
        logits = logits_behind(llm, prompt + recent)
        for chain in CHAINS.values():
            if chain.typical_p < 1:
                continue  # llama.cpp computes 0 * log 0 there
            masked = np.where(allowed_by(ours, logits, recent), logits, -np.inf).astype(np.float32)
            if ref.sampler_chain(masked, chain, recent).margin < 1e-5:
                continue
            theirs = llama_cpp_probs(logits, chain, recent, model=llm._model, grammar=guide)
            assert_same(specllama_probs(logits, chain, recent, ours), theirs, LLAMA_CPP_TOLERANCE)
            compared += 1
    assert compared > 100


def allowed_by(constraint: _core.Constraint, logits: Logits, recent: Sequence[int]) -> ref.Array:
    """Which tokens may come next."""
    return specllama_probs(np.zeros_like(logits), OFF, recent, constraint) > 0


@pytest.mark.parametrize("name", GRAMMARS)
def test_answers_depend_on_the_text_alone(make_base: MakeBase, name: str) -> None:
    """Back and forth as the loop goes, farther back than states are kept, and behind guesses that are not allowed."""
    llm = make_base()
    logits = np.zeros(llm.n_vocab(), np.float32)
    text = guided_text(llm, name, 150)
    guess = text[:5] + [text[5], 3, 290, 280, text[6]] * 3
    ours = grammar(llm, GRAMMARS[name])
    rng = np.random.default_rng(1)
    for length in [0, 5, 6, 3, 150, 149, 151, 0, 100, *rng.integers(0, 151, size=20).tolist()]:
        for recent in (text[:length], guess[:length]):
            fresh = allowed_by(grammar(llm, GRAMMARS[name]), logits, recent)
            assert np.array_equal(allowed_by(ours, logits, recent), fresh)
            assert fresh.any()


def test_what_is_not_allowed_is_passed_over(make_base: MakeBase) -> None:
    llm = make_base()
    logits = np.zeros(llm.n_vocab(), np.float32)
    the, cat, dog = (tiny.word_vocabulary().tokens.index(text) for text in ("▁the", "▁cat", "▁dog"))
    end, z = llm.token_eos(), 3 + ord("z")
    guide = grammar(llm, GRAMMARS["finite"])
    behind_the = allowed_by(guide, logits, [the])
    assert np.array_equal(allowed_by(guide, logits, [the, end, z, 0, llm.token_bos(), 10**6, -1]), behind_the)
    assert not np.array_equal(allowed_by(guide, logits, [the, cat]), behind_the)
    at_the_end = allowed_by(guide, logits, [the, dog])
    assert np.flatnonzero(at_the_end).tolist() == [end]
    assert np.array_equal(allowed_by(guide, logits, [the, dog, end, cat]), at_the_end)


def test_what_a_grammar_forces(make_base: MakeBase, tiny_files: TinyFiles) -> None:
    """One token, or several of which each begins the longest: that one is a good guess."""
    words = tiny.word_vocabulary().tokens.index
    guide = grammar(make_base(), GRAMMARS["finite"])
    the, cat, dog, sa = (words(text) for text in ("▁the", "▁cat", "▁dog", "▁sa"))
    assert values(guide.forced([])) == (the, False)
    assert guide.forced([the]) is None  # a cat or a dog
    assert values(guide.forced([the, cat])) == (words("▁sat"), False)
    assert values(guide.forced([the, cat, sa])) == (words("t"), False)  # there is a token for the byte, too
    assert guide.forced([the, dog]) is None  # the end
    letters = grammar(make_base(tiny_files.letters), 'root ::= ("a" [bc] | "de")+')
    assert letters.forced([]) is None
    assert letters.forced([3]) is None
    assert values(letters.forced([6])) == (7, True)
    assert letters.forced([6, 7]) is None  # an "a", a "d" or the end


def test_a_grammar_names_tokens(make_base: MakeBase) -> None:
    llm = make_base()
    logits = np.zeros(llm.n_vocab(), np.float32)
    token, cat = (tiny.word_vocabulary().tokens.index(text) for text in ("▁an", "▁cat"))
    guide = grammar(llm, f'root ::= <[{token}]> <s> !<[{token}]> "."')
    assert np.flatnonzero(allowed_by(guide, logits, [])).tolist() == [token]
    assert np.flatnonzero(allowed_by(guide, logits, [token])).tolist() == [llm.token_bos()]
    assert not allowed_by(guide, logits, [token, llm.token_bos()])[[token, llm.token_eos()]].any()
    assert allowed_by(guide, logits, [token, llm.token_bos()])[[cat, 0]].all()
    assert allowed_by(guide, logits, [token, llm.token_bos(), cat])[3 + ord(".")]
