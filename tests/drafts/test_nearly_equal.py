"""Drafts whose vocabulary is nearly the target's: what both have is drafted, and texts are the target's."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from exact import EXACT_CACHE
from test_engine_statistics import RULES, Scorer, assert_pairs_are_the_targets
from test_kernels_in_llama_cpp import needs_kernels

import specllama
from specllama import Engine
from specllama import _core_test as _test

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = b"the cat sat on"
CHANGED = 280
"""The id at which a draft has another text."""
N_MORE = 128
LETTERS_PROMPT = [1, 3, 4, 5]


def moved(vocabulary: tiny.Vocabulary, weights: tiny.Weights, seed: int = 5) -> tuple[tiny.Vocabulary, tiny.Weights]:
    """The same model, with all of its tokens at other ids."""
    order = np.random.default_rng(seed).permutation(len(vocabulary))
    places = np.argsort(order)
    changed = dataclasses.replace(
        vocabulary,
        tokens=[vocabulary.tokens[i] for i in order],
        scores=[vocabulary.scores[i] for i in order],
        types=[vocabulary.types[i] for i in order],
        bos=int(places[vocabulary.bos]),
        eos=int(places[vocabulary.eos]),
    )
    rows = {name: weights[name][order] for name in ("token_embd.weight", "output.weight")}
    return changed, {**weights, **rows}


def with_more(vocabulary: tiny.Vocabulary) -> tiny.Vocabulary:
    """The same with more tokens behind it, of which texts have some."""
    return dataclasses.replace(
        vocabulary,
        tokens=[*vocabulary.tokens, *(f"<more {i}>" for i in range(N_MORE))],
        scores=[*vocabulary.scores, *[0.0] * N_MORE],
        types=[*vocabulary.types, *[int(gguf.TokenType.USER_DEFINED)] * N_MORE],
    )


@dataclasses.dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path
    missing: str | None
    """What is said of the pair."""


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Pair]:
    """Targets, and drafts of the same weights but for the rows of tokens."""
    folder = tmp_path_factory.mktemp("nearly")
    words = tiny.word_vocabulary()
    count = len(words)
    weights = tiny.llama_weights(words, seed=1)
    more, wide = with_more(words), tiny.with_rows(weights, count + N_MORE)
    padded = words.padded(N_MORE)
    renamed = dataclasses.replace(words, tokens=["<unk>", "<begin>", "<end>", *words.tokens[3:]])
    files = {
        "plain": (words, weights),
        "padded": (padded, wide),
        "more": (more, wide),
        "changed": (words.with_token(CHANGED, "▁zebra"), weights),
        "moved": moved(words, weights),
        "moved, padded and changed": moved(padded.with_token(CHANGED, "▁zebra"), wide),
        "renamed": (renamed, weights),
    }
    paths = {
        name: tiny.write_llama(folder / f"{name}.gguf", vocabulary, tensors)
        for name, (vocabulary, tensors) in files.items()
    }
    one = f"the draft has {count - 1} of the target's {count} tokens"
    return {
        "a padded target": Pair(paths["padded"], paths["plain"], None),
        "a padded draft": Pair(paths["plain"], paths["padded"], None),
        "a target with more": Pair(
            paths["more"], paths["plain"], f"the draft has {count} of the target's {count + N_MORE} tokens"
        ),
        "a draft with more": Pair(paths["plain"], paths["more"], None),
        "one token": Pair(paths["plain"], paths["changed"], one),
        "other ids": Pair(paths["plain"], paths["moved"], None),
        "all of it": Pair(paths["plain"], paths["moved, padded and changed"], one),
        "special tokens of other names": Pair(paths["plain"], paths["renamed"], None),
    }


KINDS = [
    *("a padded target", "a padded draft", "a target with more", "a draft with more", "one token", "other ids"),
    *("all of it", "special tokens of other names"),
]


def opened(make_llama: MakeLlama, pair: Pair, **options: Any) -> specllama.Llama:
    """The pair, after one line about what is missing, or none."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        llm = make_llama(pair.target, pair.draft, **options)
    lines = [str(one.message) for one in said if "larger than the target" not in str(one.message)]
    if pair.missing is None:
        assert lines == []
    else:
        (line,) = lines
        assert line.startswith(pair.missing)
        assert "\n" not in line
    return llm


def tokens_of(llm: specllama.Llama, count: int = 50, **settings: Any) -> list[int]:
    return list(itertools.islice(llm.generate(llm.tokenize(PROMPT), **settings), count))


@pytest.mark.parametrize("kind", KINDS)
def test_texts_are_the_same_and_as_much_is_accepted(make_llama: MakeLlama, pairs: dict[str, Pair], kind: str) -> None:
    llm = opened(make_llama, pairs[kind])
    assert tokens_of(llm, temp=0.0) == tokens_of(llm, temp=0.0, num_draft_tokens=0)
    for gamma in (1, 4, "auto"):
        assert tokens_of(llm, temp=0.0, num_draft_tokens=gamma) == tokens_of(llm, temp=0.0, num_draft_tokens=0)
    tokens_of(llm, temp=0.0, num_draft_tokens=4)
    assert llm.stats.fallback_reason is None
    assert llm.stats.acceptance_rate > 0.8
    for seed in (1, 2):
        llm.set_seed(seed)
        plain = tokens_of(llm, num_draft_tokens=0, verify="coupled")
        assert tokens_of(llm, num_draft_tokens=3, verify="coupled") == plain
    assert llm.stats.num_accepted_tokens > 20


@pytest.mark.parametrize("kind", ["one token", "other ids", "all of it", "a target with more"])
def test_a_penalty_and_a_bias_are_of_the_targets_tokens(
    make_llama: MakeLlama, pairs: dict[str, Pair], kind: str
) -> None:
    llm = opened(make_llama, pairs[kind])
    for settings in ({"repeat_penalty": 1.4}, {"logit_bias": {"270": 4.0, "290": -100.0}}, {"frequency_penalty": 0.8}):
        texts = [
            llm.create_completion(PROMPT.decode(), max_tokens=40, temperature=0.0, num_draft_tokens=gamma, **settings)[
                "choices"
            ][0]["text"]
            for gamma in (0, 4)
        ]
        assert texts[0] == texts[1]
        assert llm.stats.acceptance_rate > 0.7


def test_a_text_with_tokens_that_the_draft_does_not_have(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    """They are read as something else, in the prompt and where the target says them."""
    llm = opened(make_llama, pairs["a target with more"])
    first = llm.n_vocab() - N_MORE
    prompt = [*llm.tokenize(PROMPT), first, first + 5, *llm.tokenize(PROMPT, add_bos=False), first + N_MORE - 1]
    bias = {first + 3: 30.0}  # which it says now and then
    for rule in RULES:
        llm.set_seed(3)
        found = llm.create_completion(
            prompt, max_tokens=30, temperature=0.0, logit_bias=bias, num_draft_tokens=3, verify=rule
        )
        plain = llm.create_completion(prompt, max_tokens=30, temperature=0.0, logit_bias=bias, num_draft_tokens=0)
        assert found["choices"][0]["text"] == plain["choices"][0]["text"]
    tokens = list(itertools.islice(llm.generate(prompt, temp=0.0, num_draft_tokens=4), 30))
    assert tokens == list(itertools.islice(llm.generate(prompt, temp=0.0, num_draft_tokens=0), 30))
    assert llm.total_stats.num_accepted_tokens > 5


def test_a_grammar_that_allows_only_what_the_draft_does_not_have(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    llm = opened(make_llama, pairs["a target with more"])
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "<more 3>" [a-z ]+ "<more 4>" [a-z ]+', verbose=False)
    settings: dict[str, Any] = {"grammar": grammar, "temp": 0.0}
    plain = tokens_of(llm, 30, num_draft_tokens=0, **settings)
    assert tokens_of(llm, 30, num_draft_tokens=3, **settings) == plain
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_accepted_tokens > 5


def test_several_texts_at_once(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    llm = opened(make_llama, pairs["all of it"], max_parallel=3, flash_attn=True, **EXACT_CACHE)
    prompts = ["the cat sat", "a dog", "no fox is on the", "in the end", "he"]
    settings: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 4, "verify": "coupled"}
    plain = [llm.create_completion(prompt, **settings, num_draft_tokens=0)["choices"][0]["text"] for prompt in prompts]
    found = llm.create_completions(prompts, **settings)
    assert [outcome.text for outcome in found] == plain
    assert llm.total_stats.num_accepted_tokens > 20


def test_a_lent_draft_and_its_own_texts(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    """Its cache holds its own tokens, whoever uses it."""
    pair = pairs["other ids"]
    draft = make_llama(pair.draft)
    alone = tokens_of(draft, 30, temp=0.0)
    llm = make_llama(pair.target, draft)
    plain = tokens_of(llm, temp=0.0, num_draft_tokens=0)
    for _ in range(2):
        assert tokens_of(llm, temp=0.0) == plain
        assert llm.stats.acceptance_rate > 0.8
        assert tokens_of(draft, 30, temp=0.0) == alone


def test_a_window_and_a_small_context(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    pair = pairs["other ids"]
    llm = make_llama(pair.target, pair.draft, draft_window=24, draft_kwargs={"n_ctx": 64})
    assert tokens_of(llm, 90, temp=0.0) == tokens_of(llm, 90, temp=0.0, num_draft_tokens=0)


def test_a_parallel_draft_with_other_ids(make_llama: MakeLlama, pairs: dict[str, Pair]) -> None:
    pair = pairs["other ids"]
    llm = make_llama(pair.target, pair.draft, draft_mask_token=7)
    plain = tokens_of(llm, temp=0.0, num_draft_tokens=0)
    assert tokens_of(llm, temp=0.0) == plain
    assert llm.stats.num_draft_tokens > 0


# --- Distributions ----------------------------------------------------------------------------------------------------


SIZE = 12


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    """Twelve tokens, of which the draft has eleven, at other ids, and one that the target does not have."""
    folder = tmp_path_factory.mktemp("letters")
    vocabulary = tiny.letter_vocabulary(SIZE)
    weights = tiny.llama_weights(vocabulary, 1, n_embd=16, n_ff=16, n_layer=1, sharpness=1.5, flat_bias=True)
    target = tiny.write_llama(folder / "target.gguf", vocabulary, weights)
    noisy = tiny.noisy(weights, 0.15, seed=2)
    draft = tiny.write_llama(folder / "draft.gguf", *moved(vocabulary.with_token(6, "z"), noisy))
    return Pair(target, draft, "the draft has 11 of the target's 12 tokens")


@pytest.fixture(scope="module")
def scorer(letters: Pair) -> Scorer:
    llm = llama_cpp.Llama(str(letters.target), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    return Scorer(llm, LETTERS_PROMPT)


@pytest.mark.statistics
@pytest.mark.sampled(3)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "T=0.7 top-k 4", "T=1.5 top-p 0.8", "default"])
def test_pairs_of_tokens_have_the_distribution_of_the_target(
    make_llama: MakeLlama, letters: Pair, scorer: Scorer, chain: str, rule: str
) -> None:
    llm = opened(make_llama, letters, n_ctx=64)
    assert_pairs_are_the_targets(llm, scorer, chain, rule, LETTERS_PROMPT, count=1500, accepted=300)


@needs_kernels
def test_a_list_of_the_drafts_own_tokens(tmp_path: Path) -> None:
    """What is computed of a moved draft's logits are its own rows; what is drafted of them is the target's."""
    from specllama.models.quantize import quantize

    vocabulary = tiny.letter_vocabulary(48)
    weights = tiny.llama_weights(vocabulary, 7, n_embd=64, n_ff=96, sharpness=1.5, flat_bias=True)
    tiny.write_llama(tmp_path / "target.gguf", vocabulary, weights)
    tiny.write_llama(tmp_path / "draft.gguf", *moved(vocabulary, weights))
    target, draft = (
        quantize(tmp_path / f"{name}.gguf", "Q8_0", output=tmp_path / f"{name}-q8.gguf") for name in ("target", "draft")
    )
    options: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    llm = specllama.Llama(str(target), draft_model=str(draft), draft_vocabulary=16, **options)
    for settings in ({"temp": 0.0}, {"temp": 1.0, "top_k": 0, "verify": "coupled"}):
        llm.set_seed(4)
        plain = list(itertools.islice(llm.generate(LETTERS_PROMPT, num_draft_tokens=0, **settings), 40))
        assert list(itertools.islice(llm.generate(LETTERS_PROMPT, num_draft_tokens=3, **settings), 40)) == plain
        assert llm.stats.num_accepted_tokens > 5
    assert llm.engine.draft is not None
    assert _test.skipping(llm.engine.draft.models["draft"].sequence.decoder) == "yes"
    assert 16 <= llm.stats.draft_vocabulary < 48
    llm.close()


# --- What is compared -------------------------------------------------------------------------------------------------


def written(folder: Path, name: str, change: Callable[[tiny.Vocabulary], tiny.Vocabulary]) -> Path:
    words = change(tiny.word_vocabulary())
    return tiny.write_llama(folder / f"{name}.gguf", words, tiny.llama_weights(words, seed=1))


def as_special(words: tiny.Vocabulary) -> tiny.Vocabulary:
    types = list(words.types)
    types[CHANGED] = int(gguf.TokenType.CONTROL)
    return dataclasses.replace(words, types=types)


def test_a_special_token_is_none_of_text(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Although it is called the same."""
    draft = written(tmp_path, "special", as_special)
    bias = {str(CHANGED): 3.0}
    with pytest.warns(UserWarning, match=r"tokens \(99\.\d+ %\): it drafts these, and never the others"):
        llm = make_llama(draft=draft)
    said: Sequence[Any] = [
        token
        for token in llm.generate_tokens(llm.tokenize(PROMPT), max_tokens=60, temperature=0.0, logit_bias=bias)
        if token.id == CHANGED
    ]
    assert said
    assert all(token.origin != "draft" for token in said)


@pytest.mark.parametrize("changed", ["other_bos", "other_eos"])
def test_tokens_that_have_another_role(make_llama: MakeLlama, tiny_files: TinyFiles, changed: str) -> None:
    llm = make_llama(draft=getattr(tiny_files, changed))
    assert tokens_of(llm, temp=0.0) == tokens_of(llm, temp=0.0, num_draft_tokens=0)
    tokens_of(llm, temp=0.0)
    assert llm.stats.acceptance_rate > 0.8


def test_the_end_of_a_text_by_its_role(tmp_path: Path) -> None:
    """What ends the draft's text drafts what ends the target's, whatever the two are called."""
    pieces = [" one", " two", " three"]
    target = tiny.write_saying(tmp_path / "target.gguf", pieces)
    renamed = tmp_path / "renamed.gguf"
    renamed.write_bytes(target.read_bytes().replace(b"</s>", b"<#s>"))
    with specllama.Engine.open(target, renamed, n_ctx=64, n_threads=1) as engine:
        said = list(engine.generate(engine.tokenize("a"), max_tokens=5, num_draft_tokens=8, temperature=0.0))
        assert engine.text(said, special=True).startswith(b" one two three</s>")
        assert engine.stats.num_accepted_tokens == 3, "behind the first token, which the prompt's batch gives"


def test_too_few_tokens_in_common(tiny_files: TinyFiles) -> None:
    message = "by their texts, 5 of the target's 300 tokens are among the draft's 5, and 2% are needed"
    with pytest.raises(ValueError, match=message):
        Engine.open(tiny_files.target, tiny_files.letters, n_ctx=64, n_threads=1)


_WITHOUT_NAMES = """
import sys
from specllama import Engine
named, nameless = sys.argv[1:]
for target, draft in ((named, nameless), (nameless, named)):
    try:
        Engine.open(target, draft, n_ctx=64, n_threads=1)
    except ValueError as error:
        print(error)
with Engine.open(nameless, nameless, n_ctx=64, n_threads=1) as engine:
    print(len(list(engine.generate([1, 5, 7], max_tokens=5))))
"""


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    """Of whose tokens llama.cpp ends the process when it is asked for more than their number."""
    named = written(tmp_path, "named", lambda words: words)
    nameless = written(tmp_path, "nameless", lambda words: dataclasses.replace(words, model="no_vocab"))
    done = faults.finished([sys.executable, "-c", _WITHOUT_NAMES, str(named), str(nameless)])
    assert done.returncode == 0, done.stderr
    of_draft, of_target, count = done.stdout.splitlines()
    assert "the file of the draft has no tokenizer" in of_draft
    assert "the file of the target has no tokenizer" in of_target
    assert count == "5"
