"""DRY: against its definition, llama.cpp's own sampler, and plain decoding with that sampler by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import hypothesis
import hypothesis.strategies as st
import llama_cpp
import numpy as np
import pytest
import reference as ref
from engine import Engine, api, vocab_address
from llama_chain import applied
from llama_cpp import _internals
from test_engine_statistics import LEVEL, OFF, VOCAB, Scorer, chi_square, core_settings, count_sequences
from test_engine_statistics import sequence_probabilities as probabilities_of_sequences

from specllama import _core
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

TOKENS = 6
BREAKERS = st.lists(st.lists(st.integers(0, TOKENS - 1), min_size=1, max_size=3), max_size=3)
TEXTS = ["\n", ".", "the", " the", "cat sat", "t", "n no", "日本", "a\nb"]


def subtracted(history: Sequence[int], n_vocab: int = TOKENS, prompt: int = 0, **dry: Any) -> dict[int, float]:
    """What our chain subtracts from the logits of the tokens, the first `prompt` of which are the prompt."""
    named = {f"dry_{name}": value for name, value in dry.items()}
    params = _core.SamplerParams(temperature=-1.0, dry_multiplier=1.5, dry_prompt=history[:prompt], **named)
    probs = _core.distribution(np.zeros(n_vocab, np.float32), params, history[prompt:]).probs
    logs = np.log(np.maximum(probs, 1e-30))
    return {int(token): float(logs.max() - logs[token]) for token in np.flatnonzero(logs < logs.max() - 1e-6)}


@hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
@hypothesis.given(
    history=st.lists(st.integers(0, TOKENS - 2), max_size=40),
    prompt=st.integers(0, 40),
    last_n=st.integers(-1, 40),
    allowed_length=st.integers(0, 4),
    breakers=BREAKERS,
)
def test_the_definition(
    history: list[int], prompt: int, last_n: int, allowed_length: int, breakers: list[list[int]]
) -> None:
    """Token TOKENS - 1 is in no history: it loses nothing. Where the prompt ends makes no difference."""
    seen = history if last_n < 0 else history[len(history) - min(last_n, len(history)) :]
    expected = ref.dry_penalties(seen, 1.5, 1.3, allowed_length, breakers) if last_n else {}
    found = subtracted(
        history,
        prompt=min(prompt, len(history)),
        base=1.3,
        allowed_length=allowed_length,
        penalty_last_n=last_n,
        breakers=_test.sequence_breakers(breakers),
    )
    expected = {token: penalty for token, penalty in expected.items() if penalty < 60}  # beyond, both are impossible
    assert {token: found[token] for token in expected} == pytest.approx(expected, abs=1e-3)
    assert {token for token, penalty in found.items() if penalty < 60} == expected.keys()


def dry_sampler(llm: llama_cpp.Llama, breakers: Sequence[str], **dry: Any) -> _internals.LlamaSampler:
    """llama.cpp's own. Early releases ask for the context's size, which -1 stood for."""
    sampler = _internals.LlamaSampler()
    texts = (llama_cpp.llama_sampler_init_dry.argtypes[-2]._type_ * len(breakers))(*[b.encode() for b in breakers])
    size = [llm.n_ctx()] if len(llama_cpp.llama_sampler_init_dry.argtypes) == 8 else []
    numbers = (dry["multiplier"], dry["base"], dry["allowed_length"], dry.get("penalty_last_n", llm.n_ctx()))
    one = llama_cpp.llama_sampler_init_dry(llm._model.vocab, *size, *numbers, texts, len(breakers))
    llama_cpp.llama_sampler_chain_add(sampler.sampler, one)
    return sampler


@pytest.mark.parametrize("breakers", [[], ["\n", ":", '"', "*"], *([text] for text in TEXTS), TEXTS])
def test_llama_cpps_sampler(make_base: MakeBase, breakers: list[str]) -> None:
    """Texts of few words and of the tokens that breakers are made of, long and short windows."""
    llm = make_base()
    words = llm.tokenize(" the cat sat on a no 日本 b.\n t".encode(), add_bos=False)
    native = _core.breakers_of_texts(api(), vocab_address(llm), breakers)
    rng = np.random.default_rng(len(breakers))
    n_penalised = 0
    for length, allowed_length, last_n in itertools.product((0, 3, 30, 200), (0, 1, 3), (5, 64, 512)):
        pool = rng.choice(words, size=3).tolist()
        history = [int(rng.choice(pool if rng.random() < 0.8 else words)) for _ in range(length)]
        dry = {"base": 1.2, "allowed_length": allowed_length, "penalty_last_n": last_n}
        sampler = dry_sampler(llm, breakers, multiplier=1.5, **dry)
        candidates, _ = applied(sampler, np.zeros(llm.n_vocab(), np.float32), history)
        sampler.close()
        expected = {int(one["id"]): -float(one["logit"]) for one in candidates if -60 < one["logit"] < 0}
        found = subtracted(history, llm.n_vocab(), length // 2, breakers=native, **dry)
        assert {token: found[token] for token in expected} == pytest.approx(expected, abs=1e-3)
        assert {t for t, penalty in found.items() if penalty < 60} <= expected.keys()
        n_penalised += len(expected)
    assert n_penalised > 20


def test_many_breakers_that_overlap(make_base: MakeBase) -> None:
    """As many as may be, of which most begin at the end of many tokens, against llama.cpp's sampler."""
    texts = [*TEXTS, *(rest + " the cat" * 3 for rest in ("", "t", "at", "e", "s")), "sat on", "on t", "b.", "no"]
    texts += [f"t {i} the" for i in range(64 - len(texts))]
    assert len(texts) == 64
    test_llama_cpps_sampler(make_base, texts)


def test_bad_breakers(make_base: MakeBase) -> None:
    for text in ("", "a" * 41):
        with pytest.raises(ValueError, match=f"dry_sequence_breakers has {len(text)} bytes"):
            _core.breakers_of_texts(api(), vocab_address(make_base()), ["\n", text])
    with pytest.raises(ValueError, match="dry_sequence_breakers has 65 texts: it may have at most 64"):
        _core.breakers_of_texts(api(), vocab_address(make_base()), [f"a{i}" for i in range(65)])
    with pytest.raises(ValueError, match="no tokens"):
        _test.sequence_breakers([[1], []])


# --- The engine -------------------------------------------------------------------------------------------------------

DRY: dict[str, dict[str, Any]] = {
    "long": {"dry_multiplier": 0.8, "dry_allowed_length": 1},
    "strong": {"dry_multiplier": 4.0, "dry_base": 2.0, "dry_allowed_length": 2, "dry_sequence_breakers": [" the"]},
    "of the last": {"dry_multiplier": 2.0, "dry_penalty_last_n": 20, "dry_allowed_length": 0},
}
TEXT = b"the cat sat on the dog and the cat sat on"


def by_hand(llm: llama_cpp.Llama, prompt: list[int], length: int, **dry: Any) -> list[int]:
    """Greedy text with llama.cpp's DRY, which sees the prompt as llama-server has it see it."""
    breakers = dry.pop("dry_sequence_breakers", ["\n", ":", '"', "*"])
    values = {"base": 1.75, **{name.removeprefix("dry_"): value for name, value in dry.items()}}
    sampler = dry_sampler(llm, breakers, **values)
    sampler.add_greedy()
    text: list[int] = []
    llm.reset()
    unseen = prompt
    while len(text) < length:
        llm.eval(unseen)
        row = llama_cpp.llama_get_logits_ith(llm.ctx, -1)
        logits = np.ctypeslib.as_array(row, shape=(llm.n_vocab(),)).copy()
        text.append(applied(sampler, logits, unseen)[1])
        unseen = text[-1:]
    sampler.close()
    return text


@pytest.mark.parametrize("name", DRY)
def test_greedy_text_is_that_of_llama_cpps_sampler(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, name: str
) -> None:
    base = make_base()
    prompt = base.tokenize(TEXT)
    expected = by_hand(base, prompt, 60, **DRY[name])
    for draft in ("identical", "good", "adversarial", "lookup"):
        llm = make_llama(draft=draft if draft == "lookup" else tiny_files.draft(draft))
        without = list(itertools.islice(llm.generate(prompt, temp=0.0), 60))
        assert without != expected, "DRY does something"
        for gamma, rule in itertools.product((0, 1, 4, "auto"), ("rejection", "block", "coupled")):
            tokens = llm.generate(prompt, temp=0.0, num_draft_tokens=gamma, verify=rule, **DRY[name])  # type: ignore[arg-type]
            assert list(itertools.islice(tokens, 60)) == expected, (draft, gamma, rule)
            assert llm.stats.fallback_reason is None


class DryScorer(Scorer):
    """Probabilities under DRY, too: it sees prompt and text."""

    def logits(self, generated: list[int]) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        rows = super().logits(generated)
        for i, row in enumerate(rows):
            for token, penalty in ref.dry_penalties([*self.prompt, *generated[:i]], 0.9, 1.5, 1).items():
                row[token] -= penalty
        return rows


@pytest.mark.statistics
@pytest.mark.sampled(1)
@pytest.mark.parametrize("rule", ["rejection", "block", "coupled"])
def test_sequences_of_three_tokens(tiny_files: TinyFiles, rule: str) -> None:
    prompt = [1, 3, 4, 5, 3, 4, 6, 5, 3, 4]
    llm = llama_cpp.Llama(
        str(tiny_files.letters), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, logits_all=True
    )
    exact = probabilities_of_sequences(DryScorer(llm, prompt), OFF)
    without = probabilities_of_sequences(Scorer(llm, prompt), OFF)
    llm.close()
    dry = {"dry_multiplier": 0.9, "dry_base": 1.5, "dry_allowed_length": 1}
    for draft, gamma in (("good", 4), ("adversarial", 2)):
        engine = Engine(tiny_files.letters, tiny_files.letters_draft(draft))

        def generate(seed: int, engine: Engine = engine, gamma: int = gamma) -> list[int]:
            return engine.generate(prompt, 3, rule=rule, gamma=gamma, seed=seed, **dry, **core_settings(OFF))

        counts = count_sequences(generate, 3000)
        engine.close()
        assert counts.shape == (VOCAB,) * 3
        assert chi_square(counts, exact) > LEVEL
        assert chi_square(counts, without) < LEVEL, "the test can tell"
