"""Lookahead decoding: its window and pool are those of llama.cpp's example, and texts are those of plain decoding."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import test_engine_statistics as stats
from engine import Engine, opened
from exact import EXACT_CACHE
from fresh import PROMPT, RULES, assert_texts_of_plain_decoding, text_of
from quantized import quantized_model
from test_decode_failures import aborting

import specllama
from specllama import _core, cli
from specllama.backend.prepare import prepare_backend

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

SIZES = {"window": 5, "n_gram": 4, "guesses": 3}
LOOKAHEAD: dict[str, Any] = {"draft": "lookahead", "draft_kwargs": SIZES}
LONG = "the cat sat on the dog and the cat sat on the fox and the cat sat on the dog"


class Looking(Engine):
    """A loop in which lookahead is alone."""

    def __init__(self, path: Path, *, n_ctx: int = 512, **sizes: int) -> None:
        self.sizes = {**SIZES, **sizes}
        self.target_llama = specllama.Llama(
            str(path),
            draft_model="lookahead",
            draft_kwargs=self.sizes,
            n_ctx=n_ctx,
            n_threads=1,
            n_threads_batch=1,
            verbose=False,
            **EXACT_CACHE,
        )
        self.draft_llama = self.draft = None
        self.target = self.target_llama.engine.model.sequence
        self.window = _core.LookaheadWindow(**self.sizes)
        self.speculator = _core.Speculator(self.target, [_core.Drafter.lookahead(self.window)])
        self.rounds = []

    def pool(self) -> dict[int, list[list[int]]]:
        """All n-grams, by their first tokens."""
        found = {first: self.window.pool(first) for first in range(self.target_llama.n_vocab())}
        return {first: grams for first, grams in found.items() if grams}

    def close(self) -> None:
        """See the base class."""
        self.target_llama.close()


class Texts:
    """What a model says behind a text, decoded in a context of its own as any text is: greedily, by its raw logits."""

    def __init__(self, path: Path) -> None:
        self._llama = opened(path, n_ctx=512)
        self._known: dict[tuple[int, ...], int] = {}

    def greedy(self, tokens: list[int]) -> int:
        key = tuple(tokens)
        if key not in self._known:
            held = self._llama.input_ids[: self._llama.n_tokens].tolist()
            common = sum(
                1 for _ in itertools.takewhile(lambda both: both[0] == both[1], zip(held, tokens, strict=False))
            )
            self._llama.n_tokens = min(common, len(tokens) - 1)
            self._llama.eval(tokens[self._llama.n_tokens :])
            row = llama_cpp.llama_get_logits_ith(self._llama.ctx, -1)
            self._known[key] = int(np.argmax(np.ctypeslib.as_array(row, (self._llama.n_vocab(),))))
        return self._known[key]

    def close(self) -> None:
        self._llama.close()


class Example:
    """llama.cpp's examples/lookahead/lookahead.cpp, line by line, at temperature 0, in its words.

    Its batch has several n-grams to verify. Here it has one, the newest. What a row of its batch says is what the model
    says of the text that this row sees, by itself.
    """

    def __init__(self, texts: Texts, n_vocab: int, tokens_j: list[list[int]], prompt: list[int], g: int) -> None:
        self.texts, self.tokens_j, self.all = texts, [[*level] for level in tokens_j], [*prompt]
        self.W, self.N, self.G = len(tokens_j[0]), len(tokens_j) + 1, g
        self.cnt, self.head = [0] * n_vocab, [0] * n_vocab
        self.tokens = [[[0] * (self.N - 1) for _ in range(self.G)] for _ in range(n_vocab)]

    def last_level(self) -> list[int]:
        """What is sampled from the rows of the last level: each sees its own sequence."""
        said = []
        for i in range(self.W):
            sequence = self.tokens_j[0][1 : i + 1] + [level[i] for level in self.tokens_j[1:]]
            said.append(self.texts.greedy(self.all + sequence))
        return said

    def step(self) -> list[int]:
        """One pass of its loop. What it samples."""
        first = self.all[-1]
        newest = (self.head[first] - 1) % self.G
        ngram = [first, *self.tokens[first][newest]] if self.cnt[first] else None
        sampled: list[int] = []
        said = self.last_level()
        before = [*self.all]
        for v in range(self.N):
            if v > 0 and ngram is None:
                break
            token = self.texts.greedy(before + sampled)
            sampled.append(token)
            if ngram is not None and (v == self.N - 1 or token != ngram[v + 1]):
                ngram = None
            tokens_j_prev = self.tokens_j[0]
            self.tokens_j = self.tokens_j[1:]
            self.tokens_j.append(said if v == 0 else [*self.tokens_j[0]])
            if v == 0:
                self.observe(tokens_j_prev)
        self.all += sampled
        return sampled

    def observe(self, tokens_j_prev: list[int]) -> None:
        for f in range(self.W):
            ft = tokens_j_prev[f]
            ngram = [self.tokens_j[j][f] for j in range(self.N - 1)]
            if ngram in self.tokens[ft][: self.cnt[ft]]:
                continue
            self.tokens[ft][self.head[ft]] = ngram
            self.cnt[ft] = min(self.G, self.cnt[ft] + 1)
            self.head[ft] = (self.head[ft] + 1) % self.G

    def pool(self) -> dict[int, list[list[int]]]:
        """The oldest first, as `Looking.pool`."""
        found = {}
        for first in range(len(self.cnt)):
            places = [(self.head[first] - self.cnt[first] + i) % self.G for i in range(self.cnt[first])]
            found[first] = [self.tokens[first][place] for place in places]
        return {first: grams for first, grams in found.items() if grams}


@pytest.mark.parametrize(
    ("sizes", "num_prompts"),
    [({}, 30), ({"window": 1, "n_gram": 3, "guesses": 1}, 4), ({"window": 15, "n_gram": 5, "guesses": 15}, 4)],
)
def test_window_and_pool_are_those_of_llama_cpps_example(
    tiny_files: TinyFiles, sizes: dict[str, int], num_prompts: int
) -> None:
    """After each step, at temperature 0."""
    chance = np.random.default_rng(4)
    engine, texts = Looking(tiny_files.target, **sizes), Texts(tiny_files.target)
    accepted = 0
    for _ in range(num_prompts):
        prompt = [1, *chance.integers(259, engine.target_llama.n_vocab(), chance.integers(1, 12)).tolist()]
        engine.begin(prompt, gamma=engine.sizes["n_gram"] - 1, temperature=0.0)
        assert {*itertools.chain(*engine.window.levels)} <= {*prompt}
        example = Example(texts, engine.target_llama.n_vocab(), engine.window.levels, prompt, engine.sizes["guesses"])
        for _ in range(12):
            assert engine.step() == example.step()
            assert engine.window.levels == example.tokens_j
            assert engine.pool() == example.pool()
            accepted += engine.rounds[-1].num_accepted
    assert accepted > 0 or num_prompts < 30
    texts.close()
    engine.close()


@pytest.mark.statistics
@pytest.mark.parametrize(("chain", "rule"), [*itertools.product(["T=1"], RULES), ("penalties and bias", "block")])
def test_sequences_have_the_distribution_of_the_target(
    tiny_files: TinyFiles, scorer: stats.Scorer, chain: str, rule: str
) -> None:
    """With a pool that is full of what came of another text."""
    engine = Looking(tiny_files.letters, n_gram=3)
    accepted = 0

    def generate(seed: int) -> list[int]:
        nonlocal accepted
        engine.begin(stats.PROMPT, rule=rule, gamma=2, seed=seed, **stats.core_settings(stats.CHAINS[chain]))
        engine.take(6)
        engine.speculator.rewind(len(stats.PROMPT))
        before = len(engine.rounds)
        tokens = engine.take(stats.LENGTH)
        accepted += sum(found.num_accepted for found in engine.rounds[before:])
        return tokens

    counts = stats.count_sequences(generate, 1500)
    assert accepted > 100
    assert stats.chi_square(counts, stats.sequence_probabilities(scorer, stats.CHAINS[chain])) > stats.LEVEL
    engine.close()


@pytest.mark.parametrize("rule", RULES)
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(make_llama: MakeLlama, rule: str) -> None:
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(**LOOKAHEAD, verify=rule, **EXACT_CACHE)
    assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 3, 20, "auto"])
    assert llm.total_stats.num_accepted_tokens > 0
    assert llm.total_stats.per_drafter["lookahead"].num_draft_tokens == llm.total_stats.num_draft_tokens


def num_cells_of_branches(llm: specllama.Llama) -> list[int]:
    """Where each branch ends in the context's memory."""
    memory = llama_cpp.llama_get_memory(llm.ctx)
    return [int(llama_cpp.llama_memory_seq_pos_max(memory, 1 + i)) + 1 for i in range(SIZES["window"])]


def test_memory_holds_the_text_alone_between_rounds(tiny_files: TinyFiles) -> None:
    engine = Looking(tiny_files.target)
    engine.begin([1, 5, 6, 7], gamma=3, temperature=1.0)
    for _ in range(30):
        engine.step()
        assert engine.target.tokens().tolist() == engine.history()[:-1]
        memory = llama_cpp.llama_get_memory(engine.target_llama.ctx)
        assert llama_cpp.llama_memory_seq_pos_max(memory, 0) + 1 == len(engine.history()) - 1
        assert not any(num_cells_of_branches(engine.target_llama))
    engine.close()


def test_rows_beside_the_text_are_counted(make_llama: MakeLlama) -> None:
    """As decoded tokens: they cost as much."""
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    text_of(llm, "a dog", max_tokens=20, temperature=0.0)
    rounds = llm.stats.num_target_tokens_decoded // (SIZES["window"] * (SIZES["n_gram"] - 1) - 1)
    assert 5 <= rounds <= 20


def test_a_context_that_gets_full(make_llama: MakeLlama) -> None:
    """Near its end there is no room beside the text."""
    texts = []
    for options in ({"num_draft_tokens": 0}, LOOKAHEAD):
        llm = make_llama(n_ctx=64, **options, **EXACT_CACHE)
        texts.append(text_of(llm, LONG, temperature=0.0, max_tokens=None))
        assert llm.stats.fallback_reason is None
        assert llm.n_tokens >= 63
    assert texts[0] == texts[1]


def test_small_microbatches(make_llama: MakeLlama) -> None:
    """What a row sees is before it, in whichever part of the batch."""
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(**LOOKAHEAD, n_ubatch=8, n_batch=32, **EXACT_CACHE)
    whole = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    for prompt in (LONG, "a dog"):
        text = text_of(plain, prompt, temperature=0.0)
        assert text_of(llm, prompt, temperature=0.0) == text_of(whole, prompt, temperature=0.0) == text
        assert llm.stats.num_accepted_tokens == whole.stats.num_accepted_tokens


def test_a_grammar(make_llama: MakeLlama) -> None:
    texts = []
    for options in ({"num_draft_tokens": 0}, LOOKAHEAD):
        llm = make_llama(**options, **EXACT_CACHE)
        grammar = llama_cpp.LlamaGrammar.from_string('root ::= ("the " | "cat " | "dog ")+', verbose=False)
        texts.append(text_of(llm, LONG, temperature=0.0, grammar=grammar))
        assert llm.stats.fallback_reason is None
    assert texts[0] == texts[1]


def test_stop_strings_and_abandoned_streams(make_llama: MakeLlama) -> None:
    """The next call goes on as after plain decoding, and decodes nothing twice."""
    plain, llm = make_llama(num_draft_tokens=0, **EXACT_CACHE), make_llama(**LOOKAHEAD, **EXACT_CACHE)
    whole = text_of(plain, temperature=0.0)
    stop = whole[10:12]
    assert text_of(llm, temperature=0.0, stop=[stop]) == text_of(plain, temperature=0.0, stop=[stop])
    assert text_of(llm, temperature=0.0) == whole
    stream = llm.create_completion(PROMPT, stream=True, temperature=0.0, max_tokens=40)
    for _ in range(3):
        next(stream)
    stream.close()
    assert text_of(llm, temperature=0.0) == whole
    assert not any(num_cells_of_branches(llm))


def test_an_interrupted_round(make_llama: MakeLlama) -> None:
    """A processor that fails in the middle of a round leaves a text that can go on."""
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    whole = text_of(llm, temperature=0.0)
    calls: Iterator[int] = itertools.count()

    def failing(tokens: Any, logits: Any) -> Any:
        if next(calls) == 7:
            raise KeyboardInterrupt
        return logits

    processors = llama_cpp.LogitsProcessorList([failing])
    with pytest.raises(KeyboardInterrupt):
        text_of(llm, temperature=0.0, logits_processor=processors)
    assert not any(num_cells_of_branches(llm))
    assert text_of(llm, temperature=0.0, logits_processor=processors) == whole
    assert text_of(llm, temperature=0.0) == whole


def test_an_aborted_decode(make_llama: MakeLlama) -> None:
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    prompt = llm.tokenize(PROMPT.encode())
    whole = list(itertools.islice(llm.generate(prompt, temp=0.0), 30))
    tokens = llm.generate(prompt, temp=0.0)
    first = list(itertools.islice(tokens, 7))
    with aborting(llm), pytest.raises(specllama.DecodeError, match=r"returned 2 on the target: aborted"):
        first += list(tokens)  # what the last round left, then the failure
    assert first == whole[: len(first)]
    assert not any(num_cells_of_branches(llm))
    assert list(itertools.islice(llm.generate(prompt, temp=0.0), 30)) == whole


def test_the_commands_take_it(
    tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    models = ["-m", str(tiny_files.target), "-md", "lookahead", "-t", "1", "-c", "256", "-n", "12"]
    assert cli.main(["bench", *models, "--limit", "1", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["settings"]["drafter"] == "lookahead"
    assert cli.main(["bench", *models, "--limit", "1", "-o", "md"]) == 0
    assert "the mode auto drafts all tokens that there are" in capsys.readouterr().out
    assert cli.main(["tune", *models[:-2], "--max-draft-tokens", "1"]) == 0
    assert "the plan is lookup's: lookahead drafts what it has" in capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n/stats\n"))
    assert cli.main(["chat", *models, "--seed", "3"]) == 0
    assert "12 tokens in" in capsys.readouterr().out


def test_saved_states(make_llama: MakeLlama) -> None:
    """A state goes from one Llama to another, and to one without lookahead."""
    llm, other, plain = make_llama(**LOOKAHEAD), make_llama(**LOOKAHEAD), make_llama(num_draft_tokens=0)
    whole = text_of(plain, temperature=0.0)
    assert text_of(llm, temperature=0.0) == whole
    state = llm.save_state()
    for loaded in (other, plain, llm):
        loaded.load_state(state)
        assert text_of(loaded, temperature=0.0) == whole
        assert loaded.stats.num_prompt_tokens_reused > 0


def test_a_pickled_llama_has_the_same_sizes(make_llama: MakeLlama) -> None:
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    with pickle.loads(pickle.dumps(llm)) as other:
        assert text_of(other, temperature=0.0) == text_of(llm, temperature=0.0)
        assert other.stats.num_target_tokens_decoded == llm.stats.num_target_tokens_decoded


def test_the_next_call_is_that_of_a_fresh_one(make_llama: MakeLlama) -> None:
    """The pool of one text is not that of the next."""
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    found = []
    for _ in range(2):
        text_of(llm, LONG, temperature=0.0)
        found.append((llm.stats.num_drafts, llm.stats.num_draft_tokens, llm.stats.num_accepted_tokens))
    assert found[0] == found[1]


@pytest.mark.skipif(not prepare_backend().kernels.instruction_set, reason="no kernels of ours here")
@pytest.mark.parametrize("flash", [True, False])
def test_rows_beside_the_text_do_not_change_a_bit_of_it(tmp_path: Path, flash: bool) -> None:
    path = quantized_model(tmp_path, "Q4_K_M")
    rows: list[list[bytes]] = []
    texts = []
    for draft in (None, "lookahead"):
        options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "flash_attn": flash}
        with specllama.Llama(str(path), draft_model=draft, verbose=False, **options) as llm:
            prompt = np.random.default_rng(3).integers(10, 60, 245).tolist()
            generation = llm.engine.generate(prompt, seed=1, temperature=0.8, wants_logits=True, max_tokens=40)
            texts.append([])
            rows.append([])
            for token in generation:
                texts[-1].append(token)
                rows[-1].append(np.asarray(generation.logits()).tobytes())
            assert llm.batch_invariant
    assert texts[0] == texts[1]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"draft_kwargs": {"window": 0}}, "window=0 of lookahead must be from 1 to 60"),
        ({"draft_kwargs": {"window": -1}}, "window=-1 of lookahead must be from 1 to 60"),
        ({"draft_kwargs": {"n_gram": 2}}, "n_gram=2 of lookahead must be from 3 to 16"),
        ({"draft_kwargs": {"guesses": 0}}, "guesses=0 of lookahead must be from 1 to 1024"),
        ({"draft_kwargs": {"n_ctx": 100}}, "may have window, n_gram, guesses: leave n_ctx out"),
        ({"n_batch": 30}, r"n_batch=30 is too small for lookahead: .* Take n_batch=32 and n_ctx=32 or more"),
        ({"n_batch": 7}, "n_batch=7 is too small for lookahead"),  # llama.cpp ended the process for these two
        ({"n_ctx": 4}, "n_batch=4 is too small for lookahead"),
        ({"embedding": True}, "leave embedding=True out"),
        ({"embedding": True, "pooling_type": 1}, "leave embedding=True out"),
        ({"lookup_corpus": "a text"}, "lookup_corpus is for a draft model or draft_model='lookup'"),
    ],
)
def test_what_cannot_be(tiny_files: TinyFiles, options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(tiny_files.target), draft_model="lookahead", **{"n_ctx": 128, "verbose": False, **options})


@pytest.mark.parametrize("value", [2.5, True, "3"])
def test_sizes_are_ints(tiny_files: TinyFiles, value: Any) -> None:
    with pytest.raises(TypeError, match=r"window=.* must be an int"):
        specllama.Llama(str(tiny_files.target), draft_model="lookahead", draft_kwargs={"window": value}, verbose=False)


@pytest.mark.parametrize("target", ["sliding", "recurrent", "hybrid"])
def test_other_memories_are_refused(tiny_files: TinyFiles, target: str) -> None:
    with pytest.raises(ValueError, match="needs a plain KV cache"):
        specllama.Llama(str(getattr(tiny_files, target)), draft_model="lookahead", verbose=False)


def test_several_texts_and_lists_are_refused(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    with pytest.raises(ValueError, match="one text at a time: take max_parallel=1"):
        llm.create_completions(["a dog", "a cat"])
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    one_by_one = llm.create_completions(["a dog", "a cat"], max_parallel=1, max_tokens=10, temperature=0.0)
    assert [found.text for found in one_by_one] == [
        text_of(plain, prompt, max_tokens=10, temperature=0.0) for prompt in ("a dog", "a cat")
    ]
    with pytest.raises(ValueError, match="must be a head"):
        specllama.Llama(str(tiny_files.target), draft_model=["lookahead", str(tiny_files.good)], verbose=False)


def test_it_cannot_be_assigned_where_the_context_has_no_room(make_llama: MakeLlama) -> None:
    llm = make_llama(draft="lookup", **EXACT_CACHE)
    with pytest.raises(ValueError, match="no room for lookahead with window=7"):
        llm.draft_model = "lookahead"
    text = text_of(llm, temperature=0.0)
    other = make_llama(**LOOKAHEAD, **EXACT_CACHE)
    other.draft_model = "lookup"
    assert text_of(other, temperature=0.0) == text
    with pytest.raises(ValueError, match="no room for lookahead with window=7"):
        other.draft_model = "lookahead"
