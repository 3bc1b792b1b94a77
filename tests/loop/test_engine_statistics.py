"""The whole engine samples from the target's distribution: chi-square over sequences, conditional tests over texts.

The probabilities of all sequences of three tokens are worked out exactly from the logits of plain llama_cpp.Llama and
reference.py's sampler chain. All seeds are fixed, so a run is reproducible; with some hundred p-values, one below LEVEL
is a sign of a wrong distribution and not of bad luck.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import reference as ref
import scipy.stats
import tiny_models as tiny
from engine import Engine, drafters_of

from specllama import _core

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    import specllama

LEVEL = 1e-5
VOCAB = 8
LENGTH = 3
PROMPT = [1, 3, 4, 5]
RULES = ["rejection", "block", "coupled"]
DRAFTS = ["identical", "good", "bad", "adversarial"]
OFF = ref.Chain(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
CHAINS = {
    "T=1": OFF,
    "T=0.7 top-k 4": dataclasses.replace(OFF, temperature=0.7, top_k=4),
    "T=1.5 top-p 0.8": dataclasses.replace(OFF, temperature=1.5, top_p=0.8),
    "default": ref.Chain(),
    "penalties and bias": dataclasses.replace(
        OFF, repeat_penalty=1.3, frequency_penalty=0.5, logit_bias={3: 1.0, 6: float("-inf")}
    ),
    "XTC": dataclasses.replace(OFF, xtc_probability=0.6, xtc_threshold=0.15),
    "sigma and dynamic T": dataclasses.replace(OFF, top_n_sigma=1.2, dynatemp_range=0.6),
}


class Scorer:
    """The exact distribution of the next token after any text, by plain llama_cpp.Llama."""

    def __init__(self, llm: llama_cpp.Llama, prompt: list[int]) -> None:
        self.llm = llm
        self.prompt = prompt

    def logits(self, generated: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        """Row i: the logits after the prompt and `generated[:i]`."""
        self.llm.reset()
        self.llm.eval(self.prompt + generated)
        return self.llm.scores[len(self.prompt) - 1 : len(self.prompt) + len(generated)].copy()

    def distributions(self, generated: list[int], chain: ref.Chain) -> list[ref.Array]:
        """The distributions from which `generated` and the token behind it should have been drawn."""
        rows = self.logits(generated)
        return [ref.sampler_chain(row, chain, generated[:i]).probs for i, row in enumerate(rows)]


def sequence_probabilities(scorer: Scorer, chain: ref.Chain) -> ref.Array:
    """The probability of every sequence of LENGTH tokens, as an array [VOCAB, .., VOCAB]."""
    result = np.zeros((VOCAB,) * LENGTH)
    for prefix in itertools.product(range(VOCAB), repeat=LENGTH - 1):
        dists = scorer.distributions(list(prefix), chain)
        result[prefix] = np.prod([dists[i][token] for i, token in enumerate(prefix)]) * dists[-1]
    return result


def chi_square(counts: ref.Array, probabilities: ref.Array) -> float:
    """The p-value of counts, with all cells of small expectation pooled into one."""
    n = counts.sum()
    expected = n * probabilities.ravel()
    counts = counts.ravel()
    assert counts[expected == 0].sum() == 0, "a sequence of probability 0 came out"
    large = expected >= 5
    counts = np.append(counts[large], counts[~large].sum())
    expected = np.append(expected[large], expected[~large].sum())
    if expected[-1] < 5:
        counts, expected = np.append(counts[:-2], counts[-2:].sum()), np.append(expected[:-2], expected[-2:].sum())
    return float(scipy.stats.chisquare(counts, expected * (n / expected.sum())).pvalue)


def core_settings(chain: ref.Chain) -> dict[str, Any]:
    """The parameters of the chain under the core's names."""
    return {f.name: getattr(chain, f.name) for f in dataclasses.fields(chain)}


@pytest.fixture(scope="module")
def exact(scorer: Scorer) -> dict[str, ref.Array]:
    tables = {name: sequence_probabilities(scorer, chain) for name, chain in CHAINS.items()}
    for table in tables.values():
        assert table.sum() == pytest.approx(1.0)
    return tables


def count_sequences(generate: Callable[[int], list[int]], n: int) -> ref.Array:
    """Counts of the first LENGTH tokens of n generations, one for each seed."""
    counts = np.zeros((VOCAB,) * LENGTH)
    for seed in range(n):
        counts[tuple(generate(seed)[:LENGTH])] += 1
    return counts


def assert_drafted_sequences_are_the_targets(engine: Engine, scorer: Scorer, chain: ref.Chain, rule: str) -> None:
    """A loop over the letters, two tokens drafted a round: some are accepted, and texts are the target's in law."""
    accepted = 0

    def generate(seed: int) -> list[int]:
        nonlocal accepted
        tokens = engine.generate(PROMPT, LENGTH, rule=rule, gamma=2, seed=seed, **core_settings(chain))
        accepted += sum(found.num_accepted for found in engine.rounds)
        return tokens

    counts = count_sequences(generate, 1500)
    assert accepted > 100
    assert chi_square(counts, sequence_probabilities(scorer, chain)) > LEVEL


def assert_pairs_are_the_targets(
    llm: specllama.Llama, scorer: Scorer, chain: str, rule: str, prompt: list[int], *, count: int, accepted: int
) -> None:
    """Of a Llama whose draft has another vocabulary: the first two tokens have the target's distribution."""
    known, size = CHAINS[chain], llm.n_vocab()
    exact = np.zeros((size, size))
    for first in range(size):
        p = scorer.distributions([first], known)
        exact[first] = p[0][first] * p[1]
    assert exact.sum() == pytest.approx(1.0)
    values = {field.name: getattr(known, field.name) for field in dataclasses.fields(ref.Chain)}
    settings = {name: values[name] for name in ("top_k", "top_p", "min_p", "typical_p")}
    request: dict[str, Any] = {"temp": known.temperature, "verify": rule, "num_draft_tokens": 2, **settings}
    counts = np.zeros((size, size))
    for seed in range(count):
        llm.set_seed(seed)
        counts[tuple(itertools.islice(llm.generate(prompt, **request), 2))] += 1
    assert llm.total_stats.num_accepted_tokens > accepted
    assert chi_square(counts, exact) > LEVEL


@pytest.mark.statistics
@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("chain", CHAINS)
def test_sequences_of_three_tokens(
    tiny_files: TinyFiles, exact: dict[str, ref.Array], chain: str, draft: str, rule: str
) -> None:
    engine = Engine(tiny_files.letters, tiny_files.letters_draft(draft))
    settings = core_settings(CHAINS[chain])
    gamma = {"identical": 1, "good": 4, "bad": 2, "adversarial": 3}[draft]

    def generate(seed: int) -> list[int]:
        return engine.generate(PROMPT, LENGTH, rule=rule, gamma=gamma, seed=seed, **settings)

    assert chi_square(count_sequences(generate, 3000), exact[chain]) > LEVEL
    engine.close()


@pytest.mark.statistics
@pytest.mark.parametrize("rule", RULES)
def test_sequences_without_a_draft(tiny_files: TinyFiles, exact: dict[str, ref.Array], rule: str) -> None:
    engine = Engine(tiny_files.letters)

    def generate(seed: int) -> list[int]:
        return engine.generate(PROMPT, LENGTH, rule=rule, gamma=0, seed=seed, **core_settings(CHAINS["default"]))

    assert chi_square(count_sequences(generate, 3000), exact["default"]) > LEVEL
    engine.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("verify", [*RULES, "auto"])
def test_sequences_through_llama(
    tiny_files: TinyFiles, exact: dict[str, ref.Array], make_llama: MakeLlama, verify: str
) -> None:
    """The same through specllama.Llama.generate; "auto" without a seed, where calls must differ from each other."""
    llm = make_llama(tiny_files.letters, tiny_files.letters_good, num_draft_tokens=3, verify=verify, n_ctx=64)
    chain = CHAINS["default"]

    def generate(seed: int) -> list[int]:
        if verify != "auto":
            llm.set_seed(seed)
        tokens = llm.generate(PROMPT, temp=chain.temperature, top_k=chain.top_k, top_p=chain.top_p, min_p=chain.min_p)
        return list(itertools.islice(tokens, LENGTH))

    counts = count_sequences(generate, 1500)
    assert chi_square(counts, exact["default"]) > (1e-9 if verify == "auto" else LEVEL)
    assert llm.total_stats.num_draft_tokens > 1500


def test_plain_sampling_of_the_base_class_passes_the_same_test(
    tiny_files: TinyFiles, exact: dict[str, ref.Array]
) -> None:
    """The yardstick itself: llama_cpp.Llama's own samples against the exact probabilities."""
    llm = llama_cpp.Llama(str(tiny_files.letters), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False)

    def generate(seed: int) -> list[int]:
        llm.set_seed(seed)
        return list(itertools.islice(llm.generate(PROMPT), LENGTH))

    assert chi_square(count_sequences(generate, 1500), exact["default"]) > LEVEL
    llm.close()


def test_a_wrong_rule_fails_the_test(tiny_files: TinyFiles, exact: dict[str, ref.Array]) -> None:
    """The chi-square can tell: the draft's own text is rejected, and so is a temperature that is 25% off."""
    engine = Engine(tiny_files.letters_good)
    settings = core_settings(CHAINS["T=1"])

    def draft_only(seed: int) -> list[int]:
        return engine.generate(PROMPT, LENGTH, gamma=0, seed=seed, **settings)

    assert chi_square(count_sequences(draft_only, 2500), exact["T=1"]) < LEVEL
    engine.close()
    engine = Engine(tiny_files.letters, tiny_files.letters_good)

    def too_hot(seed: int) -> list[int]:
        return engine.generate(PROMPT, LENGTH, gamma=4, seed=seed, **{**settings, "temperature": 1.25})

    assert chi_square(count_sequences(too_hot, 2500), exact["T=1"]) < LEVEL
    engine.close()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("chain", ["T=1", "penalties and bias"])
def test_long_texts(tiny_files: TinyFiles, scorer: Scorer, chain: str, draft: str, rule: str) -> None:
    """Many rounds in a row: conditional probabilities of every token, given the text that really came before it."""
    params = CHAINS[chain]
    engine = Engine(tiny_files.letters, tiny_files.letters_draft(draft))
    overrated = llama_cpp.Llama(
        str(tiny_files.letters_draft(draft)), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
    )
    draft_scorer = Scorer(overrated, PROMPT)
    u, excess, variance = [], 0.0, 0.0
    for seed in range(4):
        text = engine.generate(PROMPT, 300, rule=rule, gamma=4, seed=seed, **core_settings(params))
        p = scorer.distributions(text, params)
        q = draft_scorer.distributions(text, params)
        rng = np.random.default_rng(seed)
        for i, token in enumerate(text):
            # Uniform if and only if the token was drawn from p (a randomised probability integral transform).
            u.append(float(p[i][:token].sum() + rng.random() * p[i][token]))
            # How often tokens come that the draft overrates: where a wrong acceptance rule would show most.
            favoured = q[i] > p[i]
            mass = float(p[i][favoured].sum())
            excess += favoured[token] - mass
            variance += mass * (1 - mass)
    engine.close()
    overrated.close()
    assert scipy.stats.kstest(u, "uniform").pvalue > LEVEL
    # Independent of each other, too: consecutive triples fill a 4 x 4 x 4 grid evenly.
    cells = np.minimum((4 * np.array(u)).astype(int), 3).reshape(-1, 3)
    counts = np.bincount(cells @ [16, 4, 1], minlength=64)
    assert scipy.stats.chisquare(counts).pvalue > LEVEL
    if draft != "identical":  # there, who is overrated is a matter of rounding
        assert abs(excess) / np.sqrt(variance) < scipy.stats.norm.isf(LEVEL / 2)


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_acceptance_is_the_overlap_of_the_distributions(tiny_files: TinyFiles, rule: str) -> None:
    """One drafted token is accepted with probability sum min(p, q): more often than by matching the draft's argmax."""
    engine = Engine(tiny_files.target, tiny_files.good)
    accepted = drafted = 0
    overlap = argmax = 0.0
    for seed in range(6):
        engine.generate([1, 270, 280], 300, rule=rule, gamma=1, seed=seed, **core_settings(OFF))
        counters = engine.speculator.counters
        accepted += counters.num_accepted_tokens
        drafted += counters.num_draft_tokens
        overlap += counters.sum_overlap
        argmax += counters.sum_argmax_match
    engine.close()
    error = 4 * np.sqrt(0.25 / drafted)
    assert accepted / drafted == pytest.approx(overlap / drafted, abs=error)
    assert accepted / drafted > argmax / drafted


def test_block_accepts_more_than_rejection(tiny_files: TinyFiles) -> None:
    """On the same pair at gamma 6, over a few thousand tokens."""
    rates = {}
    for rule in ("rejection", "block"):
        engine = Engine(tiny_files.target, tiny_files.good)
        rounds = accepted = 0
        for seed in range(12):
            engine.generate([1, 270, 280], 400, rule=rule, gamma=6, seed=seed, **core_settings(OFF))
            rounds += engine.speculator.counters.num_drafts
            accepted += engine.speculator.counters.num_accepted_tokens
        rates[rule] = accepted / rounds
        engine.close()
    assert rates["block"] > rates["rejection"]


# num_draft_tokens="auto"


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten layers, so that a draft of one layer can pay."""
    letters = tiny.letter_vocabulary(VOCAB)
    weights = tiny.llama_weights(letters, seed=1, n_embd=16, n_ff=16, n_layer=10, sharpness=1.5, flat_bias=True)
    return tiny.write_llama(tmp_path_factory.mktemp("auto") / "deep.gguf", letters, weights)


@pytest.fixture(scope="module")
def of_deep(deep: Path) -> Iterator[ref.Array]:
    llm = llama_cpp.Llama(str(deep), n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True)
    yield sequence_probabilities(Scorer(llm, PROMPT), CHAINS["T=1"])
    llm.close()


class PacedEngine(Engine):
    """A loop under auto, with whatever else is looked up."""

    def __init__(self, target: Path, draft: Path | None, corpus: list[int]) -> None:
        super().__init__(target, draft, n_ctx=64, draft_n_ctx=64)
        self.speculator = _core.Speculator(self.target, drafters_of(self.draft, np.array(corpus, dtype=np.int32)))

    def text(self, *, rule: str, most: int, seed: int) -> list[int]:
        """The first LENGTH tokens of rounds that could go on behind them."""
        self.speculator.restore_costs(CHEAP)
        self.begin(PROMPT, rule=rule, gamma=most, seed=seed, paced=True, **core_settings(CHAINS["T=1"]))
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
def test_sequences_under_auto(tiny_files: TinyFiles, deep: Path, of_deep: ref.Array, rule: str, most: int) -> None:
    engine = PacedEngine(deep, tiny_files.letters_bad, CORPUS)
    counts = np.zeros((VOCAB,) * LENGTH)
    drafted: set[str] = set()
    for seed in range(1200):
        counts[tuple(engine.text(rule=rule, most=most, seed=seed))] += 1
        per_source = engine.speculator.counters.per_source
        drafted |= {name for name, counters in per_source.items() if counters.num_draft_tokens > 0}
    engine.close()
    assert chi_square(counts, of_deep) > LEVEL
    assert {"lookup", "model"} <= drafted
