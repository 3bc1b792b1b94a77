"""A draft model that chooses among some tokens only: texts and distributions stay the target's, whatever is listed."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import reference as ref
import tiny_models as tiny
from exact import EXACT_CACHE
from quantized import quantized_model
from test_engine_statistics import CHAINS, LEVEL, RULES, chi_square
from test_kernels_in_llama_cpp import needs_kernels

import specllama
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = needs_kernels
TEXT = b"the cat sat on the dog and"
N_LETTERS = 48
PROMPT = [1, 3, 4, 5]
SAMPLED: dict[str, dict[str, Any]] = {
    "greedy": {"temp": 0.0},
    "default": {},
    "hot": {"temp": 1.3, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
    "below 0": {"temp": -1.0},
    "penalties": {"temp": 1.0, "repeat_penalty": 1.3, "frequency_penalty": 0.3},
    "DRY": {"temp": 0.6, "dry_multiplier": 1.5, "dry_allowed_length": 1},
}


@pytest.fixture(autouse=True)
def _nothing_is_known_of_what_targets_write(own_cache: Path) -> None:
    gc.collect()  # what is freed later must not write then
    shutil.rmtree(own_cache / "written", ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Files:
    target: Path
    draft: Path  # the same model, coarser
    letters: Path
    letters_draft: Path


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    from specllama.models.quantize import quantize

    folder = tmp_path_factory.mktemp("listed")
    vocabulary = tiny.letter_vocabulary(N_LETTERS)
    weights = tiny.llama_weights(vocabulary, 7, n_embd=64, n_ff=96, sharpness=1.5, flat_bias=True)
    quantized = []
    for name, made in {"letters": weights, "letters_draft": tiny.noisy(weights, 0.2, seed=2)}.items():
        tiny.write_llama(folder / f"{name}.gguf", vocabulary, made)
        quantized.append(quantize(folder / f"{name}.gguf", "Q8_0", output=folder / f"{name}-q8.gguf"))
    return Files(quantized_model(folder, "Q8_0"), quantized_model(folder, "Q4_0"), *quantized)


def opened(target: Path, draft: Any, vocabulary: int | str | None, **options: Any) -> specllama.Llama:
    options = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, **options}
    draft = str(draft) if isinstance(draft, Path) else draft
    return specllama.Llama(str(target), draft_model=draft, draft_vocabulary=vocabulary, verbose=False, **options)


@pytest.fixture
def listed(files: Files) -> Iterator[specllama.Llama]:
    """Of some 320 tokens the draft chooses among 16 and those of the text."""
    llm = opened(files.target, files.draft, 16)
    yield llm
    llm.close()


def skipping(llm: specllama.Llama) -> str:
    assert llm.engine.draft is not None
    sequence = llm.engine.draft.sequence
    assert sequence is not None
    return _test.skipping(sequence.decoder)


def tokens_of(llm: specllama.Llama, count: int = 50, **settings: Any) -> list[int]:
    return list(itertools.islice(llm.generate(llm.tokenize(TEXT), **settings), count))


@pytest.mark.parametrize("rule", [*RULES, "auto"])
@pytest.mark.parametrize("name", SAMPLED)
def test_texts_are_those_of_plain_decoding(listed: specllama.Llama, name: str, rule: str) -> None:
    """All of greedy ones, and with a seed those of the rule that promises it."""
    settings = SAMPLED[name]
    if name != "greedy" and rule in ("rejection", "block"):
        pytest.skip("their texts depend on the draft")
    llm = listed
    for seed in (1, 2):
        llm.set_seed(seed)
        plain = tokens_of(llm, num_draft_tokens=0, **settings)
        for gamma in (1, 3, 8, "auto"):
            assert tokens_of(llm, num_draft_tokens=gamma, verify=rule, **settings) == plain
            assert llm.stats.fallback_reason is None
    assert skipping(llm) == "yes"
    assert llm.total_stats.num_accepted_tokens > 0
    assert 16 < llm.total_stats.draft_vocabulary < llm.n_vocab()


@pytest.mark.parametrize("rule", ["rejection", "block"])
def test_a_seed_repeats_a_text(files: Files, listed: specllama.Llama, rule: str) -> None:
    """Also where the text depends on the draft: what was learned of other texts does not change the list."""
    settings: dict[str, Any] = {"verify": rule, "num_draft_tokens": 3}
    listed.set_seed(5)
    first = tokens_of(listed, **settings)
    tokens_of(listed, 20, temp=2.0, top_k=0)
    listed.set_seed(5)
    assert tokens_of(listed, **settings) == first
    other = opened(files.target, files.draft, 16, seed=5)
    assert tokens_of(other, **settings) == first
    other.close()


@pytest.mark.statistics
@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "T=0.7 top-k 4", "T=1.5 top-p 0.8", "default", "penalties and bias"])
def test_sequences_have_the_distribution_of_the_target(files: Files, chain: str, rule: str) -> None:
    llm = opened(files.letters, files.letters_draft, 16, n_ctx=64)
    known = dataclasses.replace(CHAINS[chain], logit_bias={3: 1.0, 40: 2.0} if CHAINS[chain].logit_bias else {})
    exact = probabilities_of_pairs(llm, known)
    values = {field.name: getattr(known, field.name) for field in dataclasses.fields(known)}
    settings = {name: values[name] for name in ("top_k", "top_p", "min_p", "typical_p", "repeat_penalty")}
    settings |= {name: values[name] for name in ("frequency_penalty", "presence_penalty")}
    request: dict[str, Any] = {"temp": known.temperature, "verify": rule, "num_draft_tokens": 2, **settings}
    if known.logit_bias:
        request["logits_processor"] = biased(known.logit_bias)
    counts = np.zeros((N_LETTERS, N_LETTERS))
    for seed in range(2500):
        llm.set_seed(seed)
        counts[tuple(itertools.islice(llm.generate(PROMPT, **request), 2))] += 1
    assert skipping(llm) == "yes"
    assert llm.total_stats.num_accepted_tokens > 100
    assert chi_square(counts, exact) > LEVEL
    llm.close()


def biased(bias: dict[int, float]) -> Callable[..., Any]:
    def add(_ids: Any, logits: Any) -> Any:
        logits = logits.copy()
        for token, value in bias.items():
            logits[token] += value
        return logits

    return add


def probabilities_of_pairs(llm: specllama.Llama, chain: ref.Chain) -> ref.Array:
    """Of every two tokens behind the prompt, by what the target's own kernels make of them."""
    sequence = llm.engine.slot.sequence
    table = np.zeros((N_LETTERS, N_LETTERS))
    for first in range(N_LETTERS):
        sequence.assume(np.empty(0, dtype=np.int32))
        sequence.keep(0)
        sequence.decode(np.array([*PROMPT, first], dtype=np.int32), len(PROMPT) - 1)
        rows = [sequence.logits(i) for i in range(len(PROMPT) - 1, len(PROMPT) + 1)]
        p = [ref.sampler_chain(row, chain, [first][:i]).probs for i, row in enumerate(rows)]
        table[first] = p[0][first] * p[1]
    assert table.sum() == pytest.approx(1.0)
    return table


def test_what_is_drafted_is_listed_or_of_the_text(listed: specllama.Llama) -> None:
    """The list grows with the text: what the target has just said can be drafted."""
    prompt = listed.tokenize(TEXT)
    listed.set_seed(1)
    text = list(prompt)
    drafted = 0
    for token in listed.generate_tokens(list(prompt), max_tokens=60, num_draft_tokens=4, temperature=1.0, top_k=0):
        groups = {known // 16 for known in text}
        if token.origin == "draft":
            drafted += 1
            # A draft's own tokens are listed, and a grammar or a lookup is not there.
            assert token.id // 16 in groups | {0}
        text.append(token.id)
    assert drafted > 5


@pytest.mark.parametrize("num_draft_tokens", [3, "auto"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_grammar_that_allows_nothing_listed(files: Files, num_draft_tokens: int | str, temperature: float) -> None:
    """Then nothing is drafted there, and all tokens are there to choose afterwards."""
    llm = opened(files.letters, files.letters_draft, 16, n_ctx=64, seed=3, verify="coupled")
    letters = "".join(chr(ord("a") + i) for i in range(14, 20))  # "opqrst": behind the first group
    grammar = specllama_grammar(f"root ::= [{letters}] [{letters}a-e]+")
    settings: dict[str, Any] = {"temp": temperature, "top_k": 0, "grammar": grammar}
    plain = list(itertools.islice(llm.generate(PROMPT, num_draft_tokens=0, **settings), 30))
    found = list(itertools.islice(llm.generate(PROMPT, num_draft_tokens=num_draft_tokens, **settings), 30))
    assert found == plain
    assert llm.stats.fallback_reason is None
    if num_draft_tokens == 3:
        assert llm.stats.num_rounds_per_gamma[0] >= 1
        assert llm.stats.num_accepted_tokens > 5
    llm.close()


def specllama_grammar(gbnf: str) -> Any:
    import llama_cpp

    return llama_cpp.LlamaGrammar.from_string(gbnf, verbose=False)


def test_a_bias_that_leaves_nothing_listed(files: Files) -> None:
    llm = opened(files.letters, files.letters_draft, 16, n_ctx=64)
    bias = {token: float("-inf") for token in range(30)}
    texts = {
        llm.create_completion(PROMPT, max_tokens=20, temperature=0, logit_bias=bias, num_draft_tokens=gamma)["choices"][
            0
        ]["text"]
        for gamma in (0, 1, 4)
    }
    assert len(texts) == 1
    assert llm.stats.num_accepted_tokens > 5
    llm.close()


def test_several_texts_at_once(files: Files) -> None:
    """Each draws from a list of its own, among the others in one batch.

    Which cells a text gets depends on when the others come, and with them the last bits of its sums. A text that
    follows its draft's draws goes another way where these decide: of fifteen texts one or two did.
    """
    llm = opened(files.target, files.draft, 16, max_parallel=3, num_draft_tokens=3, flash_attn=True, **EXACT_CACHE)
    prompts = ["the cat sat", "a dog", "no fox is on the", "in the end", "he"]
    equal: list[bool] = []
    for verify in RULES:
        settings: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 4, "verify": verify}
        alone = [llm.create_completion(prompt, **settings)["choices"][0]["text"] for prompt in prompts]
        found = llm.create_completions(prompts, **settings)
        same = [outcome.text == text for outcome, text in zip(found, alone, strict=True)]
        assert verify != "coupled" or all(same)
        equal += same
    assert sum(equal) >= 10
    assert llm.total_stats.num_accepted_tokens > 0
    llm.close()


def test_a_lent_draft_says_what_it_says_alone(files: Files) -> None:
    """Its own texts have all tokens, in its own context and while others draft with it."""
    draft = specllama.Llama(str(files.draft), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    alone = [tokens_of(draft, 30, temp=temp) for temp in (0.0,)]
    llm = opened(files.target, draft, 16)
    tokens_of(llm, num_draft_tokens=3)
    assert skipping(llm) == "yes"
    assert [tokens_of(draft, 30, temp=temp) for temp in (0.0,)] == alone
    llm.close()
    draft.close()


def test_no_home_folder(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is learned then, and the draft chooses among the first tokens."""
    monkeypatch.setenv("SPECLLAMA_CACHE", "~nobody-of-that-name/x")
    llm = opened(files.letters, files.letters_draft, 16, n_ctx=64)
    assert llm.create_completion(PROMPT, max_tokens=8, temperature=0, num_draft_tokens=3)["usage"]
    assert llm.stats.num_draft_tokens > 0
    llm.close()


def test_what_the_target_writes_is_learned(files: Files, own_cache: Path) -> None:
    folder = own_cache / "written"
    llm = opened(files.letters, files.letters_draft, 32, n_ctx=64, seed=1)
    assert llm.engine.draft is not None
    assert groups_of(llm) == [0, 1]
    bias = dict.fromkeys(range(32, 48), 20.0)
    for _ in range(3):
        llm.create_completion(PROMPT, max_tokens=20, logit_bias=bias, temperature=1.0)
    llm.create_completion(PROMPT, max_tokens=9, logit_bias=bias, num_draft_tokens=0)  # nobody drafts: not counted
    llm.close()
    del llm
    gc.collect()
    (path,) = folder.glob("*.json")
    kept = json.loads(path.read_text())
    assert kept["groups"]["2"] >= 55
    assert sum(kept["groups"].values()) == 60
    again = opened(files.letters, files.letters_draft, 32, n_ctx=64)
    assert groups_of(again) == [0, 2], "the group that was written, and the one with the end of the text"
    again.close()
    for damage in ("", "[]", '{"format": 1}', path.read_text().replace('"2"', '"-2"'), "[" * 100_000):
        path.write_text(damage)
        damaged = opened(files.letters, files.letters_draft, 32, n_ctx=64)
        assert groups_of(damaged) == [0, 1]
        damaged.close()
    path.unlink()


def groups_of(llm: specllama.Llama) -> list[int]:
    draft: Any = llm.engine.draft
    groups: list[int] = draft._vocabulary.tokens.groups.tolist()
    return groups


@pytest.mark.parametrize("size", ["auto", None, 1000])
def test_all_tokens_are_there_to_choose(files: Files, size: int | str | None) -> None:
    llm = opened(files.target, files.draft, size)
    tokens_of(llm, num_draft_tokens=3)
    assert skipping(llm) == "unknown"
    assert llm.stats.draft_vocabulary == llm.n_vocab()
    llm.close()


def test_other_kernels_choose_among_all(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    listed = make_llama(tiny_files.target, tiny_files.good, draft_vocabulary=16, seed=2)
    whole = make_llama(tiny_files.target, tiny_files.good, draft_vocabulary=None, seed=2)
    settings: dict[str, Any] = {"verify": "rejection", "num_draft_tokens": 3}
    assert tokens_of(listed, **settings) == tokens_of(whole, **settings)
    assert skipping(listed) == "no"
    assert listed.stats.num_accepted_tokens == whole.stats.num_accepted_tokens


@pytest.mark.parametrize("size", [0, 15, -1, True, 2.5, "all", [16]])
def test_bad_sizes(tiny_files: TinyFiles, size: Any) -> None:
    with pytest.raises(ValueError, match="draft_vocabulary"):
        specllama.Llama(str(tiny_files.target), draft_vocabulary=size)
