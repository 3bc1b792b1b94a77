"""A draft that has a draft: its tokens and their q are those that there would be without, and so are texts."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from engine import Engine, opened
from exact import EXACT_CACHE
from fresh import RULES, assert_texts_of_plain_decoding, text_of
from test_draft_window import LONG
from test_engine_statistics import CHAINS, Scorer, assert_drafted_sequences_are_the_targets
from test_scheduler import prompts

import specllama
from specllama import _core

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

INNER = ["lookup", "good", "identical"]
"""Drafts of the draft `good`: one that is always right, and one that is as often right as the draft itself."""
GAMMA = 6
REPEATING = [1, *[5, 6, 7, 8, 9, 5, 6, 7] * 3]


class Staged(Engine):
    """A loop whose draft, with a draft of its own or without, is alone."""

    def __init__(self, target: Path, draft: Path, inner: str | Path = "lookup") -> None:
        super().__init__(target, draft)
        assert self.draft is not None
        guessing = _core.Drafter.lookup() if inner else None
        if isinstance(inner, Path):
            self.inner_llama = opened(inner, n_ctx=512)
            self.inner = self._sequence(self.inner_llama, "draft")
            guessing = _core.Drafter.model(self.inner)
        self.speculator = _core.Speculator(self.target, [_core.Drafter.model(self.draft, inner=guessing)])


def inner_of(tiny_files: TinyFiles, name: str) -> str | Path:
    """The draft's draft of this name."""
    return name if name in ("", "lookup") else Path(getattr(tiny_files, name))


def staged(tiny_files: TinyFiles, name: str) -> dict[str, Any]:
    """The draft's arguments."""
    return {"draft_model": str(inner_of(tiny_files, name))}


def rounds_of(engine: Staged, rule: str, **sampler: Any) -> list[Any]:
    """Of some rounds behind several prompts: what was drafted, accepted and emitted, and each p/q."""
    found = []
    for start in range(3):
        engine.begin(REPEATING[: 12 + start], rule=rule, gamma=GAMMA, seed=5 + start, **sampler)
        for _ in range(25):
            engine.step()
            last = engine.rounds[-1]
            ratios = [engine.speculator.acceptance_probability(i) for i in range(last.num_accepted)]
            found.append((last.num_drafted, last.num_accepted, last.tokens, ratios))
    return found


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("inner", INNER)
def test_its_tokens_and_q_are_those_without(tiny_files: TinyFiles, inner: str, rule: str, temperature: float) -> None:
    rounds, decoded = [], []
    for name in ("", inner):
        engine = Staged(tiny_files.target, tiny_files.good, inner_of(tiny_files, name))
        rounds.append(rounds_of(engine, rule, temperature=temperature))
        decoded.append(engine.speculator.counters.num_draft_tokens_decoded)
        engine.close()
    assert [one[:3] for one in rounds[0]] == [one[:3] for one in rounds[1]]
    for without, with_it in zip(*rounds, strict=True):
        assert with_it[3] == pytest.approx(without[3], abs=1e-4)
    assert any(accepted > 0 for _, accepted, _, _ in rounds[0])
    assert decoded[1] > decoded[0]  # guesses, some of which were wrong


@pytest.mark.parametrize(("inner", "most"), [("lookup", 0.9), ("good", 0.3), ("identical", 0.7)])
def test_guesses_that_are_right_save_decodes(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, inner: str, most: float
) -> None:
    """The same rounds, in fewer decodes of the draft."""
    calls: list[int] = []
    signature = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, llama_cpp.llama_batch)

    @signature
    def decode(context: int, batch: Any) -> int:
        calls.append(context)
        return int(llama_cpp.llama_decode(context, batch))

    names = [found.name for found in _core.required_functions()]
    addresses = {name: ctypes.cast(getattr(llama_cpp, name), ctypes.c_void_p).value or 0 for name in names}
    addresses["llama_decode"] = ctypes.cast(decode, ctypes.c_void_p).value or 0
    monkeypatch.setattr("engine.api", lambda: _core.LlamaApi(addresses))
    of_draft = []
    for name in ("", inner):
        engine = Staged(tiny_files.target, tiny_files.good, inner_of(tiny_files, name))
        assert engine.draft_llama is not None
        calls.clear()
        rounds_of(engine, "block", temperature=0.0)
        of_draft.append(calls.count(ctypes.cast(engine.draft_llama.ctx, ctypes.c_void_p).value or 0))
        engine.close()
    assert 0 < of_draft[1] < most * of_draft[0]


@pytest.mark.parametrize("inner", INNER)
def test_what_was_wrong_is_rolled_back(tiny_files: TinyFiles, inner: str) -> None:
    """Between rounds its memory holds a prefix of the text, or what the next round takes back."""
    engine = Staged(tiny_files.target, tiny_files.good, inner_of(tiny_files, inner))
    assert engine.draft is not None
    engine.begin(REPEATING, gamma=GAMMA, temperature=1.0)
    for _ in range(40):
        engine.step()
        held, history = engine.draft.tokens().tolist(), engine.history()
        assert held == history[: len(held)]
        assert len(held) < len(history)
    engine.close()


@pytest.mark.statistics
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chain", ["T=1", "penalties and bias"])
@pytest.mark.parametrize("inner", ["lookup", "letters_bad"])
def test_sequences_have_the_distribution_of_the_target(
    tiny_files: TinyFiles, scorer: Scorer, chain: str, rule: str, inner: str
) -> None:
    engine = Staged(tiny_files.letters, tiny_files.letters_good, inner_of(tiny_files, inner))
    assert_drafted_sequences_are_the_targets(engine, scorer, CHAINS[chain], rule)
    engine.close()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("window", [None, 6])
@pytest.mark.parametrize("inner", INNER)
def test_greedy_and_seeded_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, window: int | None, rule: str, inner: str
) -> None:
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    more: dict[str, Any] = {"draft_window": window, "verify": rule, **EXACT_CACHE}
    llm = make_llama(draft=tiny_files.good, draft_kwargs=staged(tiny_files, inner), **more)
    assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 5, 20, "auto"])
    assert llm.total_stats.num_accepted_tokens > 0


def test_small_batches_and_a_sliding_window(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    pairs = [
        (tiny_files.target, tiny_files.good, "lookup"),
        (tiny_files.target, tiny_files.good, "bad"),
        (tiny_files.sliding, tiny_files.sliding_draft, "lookup"),
        (tiny_files.sliding, tiny_files.sliding_draft, "sliding"),
    ]
    for target, draft, inner in pairs:
        options: dict[str, Any] = {"n_batch": 8, **EXACT_CACHE}
        plain = make_llama(target, num_draft_tokens=0, **options)
        llm = make_llama(target, draft, draft_kwargs=staged(tiny_files, inner), num_draft_tokens=7, **options)
        for prompt in (LONG, "a dog"):
            assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)
            assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("inner", INNER)
def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles, inner: str) -> None:
    given = prompts(14, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 50, "temperature": 0.9, "seed": 3}
    plain = [found.text for found in make_llama(num_draft_tokens=0, **EXACT_CACHE).create_completions(given, **sampled)]
    more: dict[str, Any] = {"max_parallel": 6, "cache_tokens": 512, **EXACT_CACHE}
    llm = make_llama(draft=tiny_files.good, draft_kwargs=staged(tiny_files, inner), **more)
    assert [found.text for found in llm.create_completions(given, **sampled)] == plain
    assert llm.total_stats.num_accepted_tokens > 0


@pytest.mark.parametrize("inner", INNER)
def test_a_grammar(make_llama: MakeLlama, tiny_files: TinyFiles, inner: str) -> None:
    """Guesses that it forbids are never drawn."""
    from llama_cpp import LlamaGrammar

    gbnf = 'root ::= ("the " | "cat " | "dog ")+'
    texts = []
    for options in ({"num_draft_tokens": 0}, {"draft": tiny_files.good, "draft_kwargs": staged(tiny_files, inner)}):
        llm = make_llama(**options, **EXACT_CACHE)
        grammar = LlamaGrammar.from_string(gbnf, verbose=False)
        texts.append(text_of(llm, LONG, temperature=0.0, grammar=grammar))
    assert texts[0] == texts[1]


def test_a_text_that_others_follow(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The draft's draft forgets, is saved and used again like the draft, and is freed with it."""
    plain = make_llama(num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(draft=tiny_files.good, draft_kwargs=staged(tiny_files, "bad"), **EXACT_CACHE)
    assert list(llm.engine.models) == ["target", "draft", "inner"]
    texts = [LONG, "a dog", LONG + " and", LONG]
    expected = [text_of(plain, prompt, temperature=0.0) for prompt in texts]
    assert [text_of(llm, prompt, temperature=0.0) for prompt in texts] == expected
    llm.reset()
    state = llm.save_state()
    assert text_of(llm, LONG, temperature=0.0) == expected[0]
    llm.load_state(state)
    assert text_of(llm, LONG, temperature=0.0) == expected[0]
    inner = llm.engine.models["inner"]
    llm.close()
    assert not inner.is_open


def named(tiny_files: TinyFiles, inner: Any) -> Any:
    """The path of a file with this name, or what else was given."""
    return str(getattr(tiny_files, inner)) if isinstance(inner, str) and hasattr(tiny_files, inner) else inner


@pytest.mark.parametrize(
    ("draft", "options", "match"),
    [
        ("good", {"draft_kwargs": {"draft_model": "no-such-file.gguf"}}, "no-such-file.gguf"),
        ("good", {"draft_kwargs": {"draft_model": 5}}, "a draft model's own draft can only be 'lookup', or a smaller"),
        ("good", {"draft_kwargs": {"draft_model": "auto"}}, "a draft model's own draft can only be 'lookup'"),
        ("good", {"draft_kwargs": {"draft_model": "deep_head"}}, "is a head: a draft model's own draft"),
        ("good", {"draft_kwargs": {"draft_model": "foreign"}}, "foreign.*vocabular|has another tokenizer"),
        ("good", {"draft_kwargs": {"draft_model": "recurrent_good"}}, "is recurrent: the draft of a draft"),
        (
            "good",
            {"draft_kwargs": {"draft_model": "lookup"}, "draft_mask_token": 2},
            "a draft with a mask token says several tokens",
        ),
        ("recurrent_draft", {"draft_kwargs": {"draft_model": "lookup"}}, "is for a draft with a KV cache"),
    ],
)
def test_what_cannot_be(tiny_files: TinyFiles, draft: str, options: dict[str, Any], match: str) -> None:
    path = str(getattr(tiny_files, draft))
    inner = options["draft_kwargs"]["draft_model"]
    options = {**options, "draft_kwargs": {"draft_model": named(tiny_files, inner)}}
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(tiny_files.target), draft_model=path, verbose=False, **options)
