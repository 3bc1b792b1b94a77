"""Medusa, Hydra and blockwise parallel heads: computed as published, and texts stay the target's."""

from __future__ import annotations

import dataclasses
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from engine import Engine, opened
from exact import EXACT_CACHE
from fresh import text_of
from heads import Headed
from state_heads import KINDS, PLACES, fitted_state_head, head_weights, place_states, write_state_head
from test_engine_statistics import CHAINS, PROMPT, RULES, VOCAB, Scorer, assert_drafted_sequences_are_the_targets
from test_heads import LETTERS, LONG
from transcribed import forward

import specllama
from specllama import _core
from specllama.engine import hidden
from specllama.engine.drafts.state_head import native_head
from specllama.engine.learned import learned_path
from specllama.models.heads import read_head
from specllama.models.state_head_file import StateHeadFile

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

WORDS, LETTER = tiny.word_vocabulary(), tiny.letter_vocabulary(VOCAB)
GAMMA = 3


@functools.cache
def letters_target() -> tiny.Weights:
    return tiny.llama_weights(LETTER, 1, **LETTERS)


@functools.cache
def fitted(kind: str, *, letters: bool) -> tiny.Weights:
    """A head for `letters_deep`, or for `deep`."""
    if letters:
        return fitted_state_head(kind, LETTER, letters_target())
    return fitted_state_head(kind, WORDS, tiny.llama_weights(WORDS, seed=1, n_layer=4), first=259)


def native(path: Path, target: Path) -> _core.StateHead:
    """The head in a file."""
    file = read_head(path)
    assert isinstance(file, StateHeadFile)
    return native_head(file, str(target))


def headed(target: Path, head: Path) -> Headed:
    """A loop whose head is alone."""
    return Headed(target, head, lambda _: _core.Drafter.state_head(in_use_of(head, target)))


def in_use_of(path: Path, target: Path) -> _core.HeadInUse:
    file = read_head(path)
    assert file is not None
    return _core.HeadInUse(file.hidden_size, file.n_vocab, native(path, target))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("kind_of_weights", [None, "F16", "BF16", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_its_logits_are_those_of_the_paper(
    tiny_files: TinyFiles, tmp_path: Path, kind: str, kind_of_weights: str | None, shared: bool
) -> None:
    """A transcription in NumPy, of the weights as the file has them; each place, for any state and tokens."""
    rng = np.random.default_rng(2)
    n_embd = LETTERS["n_embd"]
    weights = head_weights(kind, 3, n_embd)
    for name in ["output"] if shared else [f"place.{k}.output" for k in range(PLACES)]:
        weights[f"{name}.weight"] = rng.standard_normal((VOCAB, n_embd)).astype(np.float32)
    types = {}
    if kind_of_weights is not None:
        types = {
            name: gguf.GGMLQuantizationType[kind_of_weights]
            for name, weight in weights.items()
            if weight.ndim == 2 and weight.shape[1] % 32 == 0
        }
    path = write_state_head(tmp_path / "head.gguf", kind, LETTER, weights, types=types)
    for name, one in types.items():
        weights[name] = gguf.quants.dequantize(gguf.quants.quantize(weights[name], one), one)
    head = native(path, tiny_files.letters_deep)
    tokens = np.array([5, 7, 4], np.int32)
    embedded = [*letters_target()["token_embd.weight"][tokens].astype(np.float64)]
    state = rng.standard_normal(n_embd)
    found = np.concatenate([head.say(state.astype(np.float32), tokens, k, 1) for k in range(PLACES)])
    states = place_states(kind, weights, state, embedded)
    matrices = [weights["output.weight" if shared else f"place.{k}.output.weight"] for k in range(PLACES)]
    expected = np.array([matrix @ x for matrix, x in zip(matrices, states, strict=True)])
    rounding = {"Q8_0": 0.02, "Q4_0": 0.02}.get(kind_of_weights or "", 1e-4)  # of columns in 8 bits
    assert np.abs(found - expected).max() < rounding * np.abs(expected).max()
    at_once = head.say(state.astype(np.float32), tokens, 0, PLACES)
    np.testing.assert_array_equal(at_once, found, "what is said of a place does not depend on the others")


@pytest.mark.parametrize("said", [None, [*range(1, VOCAB, 2)]])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_fed_as_published(tiny_files: TinyFiles, tmp_path: Path, kind: str, said: list[int] | None) -> None:
    """States and tokens, also behind rejections: the same tokens are accepted as of the transcription's.

    Where the memory has the whole prompt, the head begins one round later: so the first token comes alone.
    """
    weights = fitted(kind, letters=True)
    path = write_state_head(tmp_path / "head.gguf", kind, LETTER, weights, tokens=said)

    def draft(history: list[int], count: int) -> list[int]:
        state = forward(letters_target(), history[:-1])[1][-1][-1]
        tokens = [history[-1]]
        for k in range(min(count, PLACES)):
            embedded = [*letters_target()["token_embd.weight"][tokens].astype(np.float64)]
            x = place_states(kind, weights, state, embedded, k + 1)[k]
            logits = weights[f"place.{k}.output.weight"] @ x
            allowed = range(VOCAB) if said is None else said
            tokens.append(max(allowed, key=lambda token: float(logits[token])))
        return tokens[1:]

    engine, oracle = headed(tiny_files.letters_deep, path), Engine(tiny_files.letters_deep)
    oracle.draft_by(draft)
    found, expected = (loop.greedy_rounds(VOCAB, GAMMA, 4, first_alone=True) for loop in (engine, oracle))
    engine.close()
    oracle.close()
    assert found == expected
    assert {accepted for accepted, _ in found} >= {0, 1}


def test_a_grammar_that_leaves_none_of_its_tokens(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    said = [token for token in range(259, len(WORDS)) if token % 3 == 0]
    head = write_state_head(tmp_path / "h.gguf", "medusa", WORDS, fitted("medusa", letters=False), tokens=said)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    never = llama_cpp.LlamaGrammar.from_string('root ::= "zz" [0-9]*', verbose=False)
    for more in ({}, {"grammar": never}):
        assert text_of(llm, LONG, temperature=0.0, **more) == text_of(plain, LONG, temperature=0.0, **more)
        assert llm.stats.fallback_reason is None


@pytest.mark.parametrize("kind", KINDS)
def test_auto_finds_it(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(tiny_files.deep.read_bytes())
    head = write_state_head(tmp_path / f"{kind}-model.gguf", kind, WORDS, fitted(kind, letters=False))
    llm = specllama.Llama(str(target), draft_model="auto", n_ctx=256, n_threads=1, verbose=False)
    assert llm.draft_model == str(head)
    llm.close()


@pytest.mark.parametrize(
    ("kind", "without", "changed", "said"),
    [
        ("medusa", "place.1.0.linear.weight", {}, "it has no place.1.0.linear.weight"),
        ("blockwise", "hidden.1.weight", {}, "it has no hidden.1.weight"),
        ("hydra", "place.0.0.straight.weight", {}, "do not fit together"),
        ("medusa", None, {"place_count": 0}, "place_count is 0"),
        ("medusa", None, {"embedding_length": 24}, "reads states of 24 numbers"),
        ("medusa", None, {"vocab_size": 7}, "that has 7 tokens"),
    ],
)
def test_damaged_files_are_refused(
    tiny_files: TinyFiles, tmp_path: Path, kind: str, without: str | None, changed: dict[str, int], said: str
) -> None:
    weights = {name: one for name, one in fitted(kind, letters=False).items() if name != without}
    path = write_state_head(tmp_path / "head.gguf", kind, WORDS, weights, changed=changed)
    with pytest.raises(ValueError, match=said):
        specllama.Llama(str(tiny_files.deep), draft_model=str(path), n_ctx=256, n_threads=1, verbose=False)


def test_a_head_for_another_vocabulary_is_refused(tiny_files: TinyFiles, tmp_path: Path) -> None:
    other = dataclasses.replace(WORDS, tokens=[*WORDS.tokens[:-1], "▁other"])
    path = write_state_head(tmp_path / "head.gguf", "medusa", other, fitted("medusa", letters=False))
    with pytest.raises(ValueError, match="its tokens are not those of"):
        specllama.Llama(str(tiny_files.deep), draft_model=str(path), n_ctx=256, n_threads=1, verbose=False)


def test_the_engine_shows_the_final_state(tiny_files: TinyFiles) -> None:
    """Of every token, also of those behind which no logits are asked for."""
    tokens = [1, *np.random.default_rng(5).integers(3, VOCAB, 40).tolist()]
    with specllama.Engine.open(tiny_files.letters_deep, n_ctx=256, n_threads=1, shown_layers=[-1]) as engine:
        found = np.concatenate([part.hidden for part in engine.states(tokens, rows=[3], first_logits=30)])
    assert found.shape == (len(tokens), 1, LETTERS["n_embd"])
    np.testing.assert_allclose(found[:, 0], forward(letters_target(), tokens)[1][-1], atol=2e-2)


@pytest.mark.parametrize("by", ["head", "engine"])
def test_a_target_without_such_a_state_is_refused_when_it_is_opened(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """By the tensor's name: as of a llama.cpp that has another one for it."""
    monkeypatch.setattr(hidden, "FINAL_STATE", "result_of_all")
    said = pytest.raises(
        ValueError, match=r"the target .*deep\.gguf does not show result_of_all, .*architecture llama\."
    )
    with said:
        if by == "head":
            specllama.Llama(
                str(tiny_files.deep), draft_model=str(tiny_files.deep_medusa), n_ctx=256, n_threads=1, verbose=False
            )
        else:
            specllama.Engine.open(tiny_files.letters_deep, n_ctx=256, n_threads=1, shown_layers=[-1])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_ends_early_is_refused(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    path = write_state_head(tmp_path / "head.gguf", kind, WORDS, fitted(kind, letters=False))
    whole = path.read_bytes()
    for size in (len(whole) - 64, len(whole) // 2):
        path.write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"head\.gguf is truncated or damaged: it has"):
            specllama.Llama(str(tiny_files.deep), draft_model=str(path), n_ctx=256, n_threads=1, verbose=False)


@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_state_that_was_loaded(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str
) -> None:
    """What the memory holds then has no hidden state: texts are the target's, whatever stood there before."""
    head = write_state_head(tmp_path / "head.gguf", kind, WORDS, fitted(kind, letters=False))
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, head, num_draft_tokens=3, **EXACT_CACHE)
    expected = {prompt: text_of(plain, prompt, temperature=0.0) for prompt in (LONG, "a dog", LONG + " no fox")}
    assert text_of(llm, LONG, temperature=0.0) == expected[LONG]
    kept = llm.save_state()
    assert text_of(llm, "a dog", temperature=0.0) == expected["a dog"]
    llm.load_state(kept)
    assert text_of(llm, LONG + " no fox", temperature=0.0) == expected[LONG + " no fox"]
    assert llm.stats.per_drafter["state_head"].num_draft_tokens > 0
    assert text_of(llm, LONG, temperature=0.0) == expected[LONG], "the text is rewound"


@pytest.mark.parametrize("kind", KINDS)
def test_behind_an_interruption(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """A stream that is left in the middle, and a callback that throws: the next text is the target's."""
    head = write_state_head(tmp_path / "head.gguf", kind, WORDS, fitted(kind, letters=False))
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, head, num_draft_tokens=3, **EXACT_CACHE)
    stream: Any = llm.create_completion(LONG, max_tokens=24, temperature=0.0, stream=True)
    for _ in range(4):
        next(stream)
    stream.close()
    for prompt in (LONG, "a dog"):
        assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)

    def broken(tokens: Any, logits: Any) -> Any:
        if len(tokens) > 60:
            raise RuntimeError("the user's own")
        return logits

    with pytest.raises(RuntimeError, match="the user's own"):
        text_of(llm, LONG, temperature=0.0, logits_processor=llama_cpp.LogitsProcessorList([broken]))
    assert text_of(llm, LONG, temperature=0.0) == text_of(plain, LONG, temperature=0.0)


@pytest.mark.parametrize("target", ["recurrent", "hybrid"])
def test_a_target_whose_memory_is_recurrent(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, target: str
) -> None:
    head = write_state_head(tmp_path / "head.gguf", "medusa", WORDS, fitted("medusa", letters=False))
    path = getattr(tiny_files, target)
    plain, llm = make_llama(path, num_draft_tokens=0), make_llama(path, head, num_draft_tokens=2)
    for prompt in (LONG, "a dog"):
        assert text_of(llm, prompt, temperature=0.0) == text_of(plain, prompt, temperature=0.0)


# Another head takes the place of one


def test_a_replaced_file_drafts_in_the_next_call(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Of another kind, too, in the midst of a conversation, for several texts at once. What cannot be used does not."""
    path, other = tmp_path / "head.gguf", tmp_path / "other.gguf"
    right = fitted("medusa", letters=False)
    wrong = {name: -one if name.endswith("output.weight") else one for name, one in right.items()}
    write_state_head(path, "medusa", WORDS, right)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, path, num_draft_tokens=3, max_parallel=3, **EXACT_CACHE)
    sampled: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "seed": 3}

    def accepted() -> float:
        """The rate of one text and of three others, which are those without a draft."""
        before = llm.total_stats
        assert text_of(llm) == text_of(plain)
        given = [LONG[:60] + end for end in (" a", " no fox", " the dog")]
        texts = [[one.text for one in each.create_completions(given, **sampled)] for each in (llm, plain)]
        assert texts[0] == texts[1]
        now = llm.total_stats
        drafted = now.num_draft_tokens - before.num_draft_tokens
        return (now.num_accepted_tokens - before.num_accepted_tokens) / drafted

    def replace_by(kind: str, weights: tiny.Weights, **more: Any) -> None:
        os.replace(write_state_head(other, kind, WORDS, weights, **more), path)

    first = accepted()
    replace_by("medusa", wrong)
    second = accepted()
    assert second < first / 2
    replace_by("hydra", fitted("hydra", letters=False))
    assert accepted() > 2 * second
    replace_by("medusa", {name: one for name, one in right.items() if name != "place.1.0.linear.weight"})
    assert accepted() > 2 * second
    other.write_bytes(b"no head")
    os.replace(other, path)
    assert accepted() > 2 * second
    path.unlink()
    assert accepted() > 2 * second
    replace_by("medusa", wrong)
    assert accepted() < first / 2


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("gamma", [3, "auto"])
def test_a_head_that_learns_drafts_as_soon_as_it_is_there(
    make_llama: MakeLlama, tiny_files: TinyFiles, gamma: Any
) -> None:
    """`auto` with learn=True looks up the text until then. Of several texts, too."""
    llm = make_llama(tiny_files.deep, "auto", learn=True, num_draft_tokens=gamma, max_parallel=2, **EXACT_CACHE)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    prompts = [LONG[:60] + " a", LONG[:60] + " no fox"]

    def drafted() -> int:
        """By the head. All texts are those without a draft."""
        before = llm.total_stats
        assert text_of(llm) == text_of(plain)
        texts = [[one.text for one in each.create_completions(prompts, max_tokens=40, seed=3)] for each in (llm, plain)]
        assert texts[0] == texts[1]
        return by("state_head", llm.total_stats) - by("state_head", before)

    def by(drafter: str, stats: specllama.Stats) -> int:
        return stats.per_drafter[drafter].num_draft_tokens if drafter in stats.per_drafter else 0

    assert llm.draft_model == "auto"
    assert drafted() == 0
    assert by("lookup", llm.total_stats) > 0
    path = learned_path(os.path.basename(llm.learn_dir or ""))
    write_state_head(path, "medusa", WORDS, fitted("medusa", letters=False))
    assert drafted() > 0
    path.unlink()
    assert drafted() > 0


def test_a_head_of_other_states_does_not_take_its_place(tiny_files: TinyFiles, tmp_path: Path) -> None:
    one = write_state_head(tmp_path / "one.gguf", "medusa", WORDS, fitted("medusa", letters=False))
    other = write_state_head(tmp_path / "other.gguf", "medusa", LETTER, fitted("medusa", letters=True))
    in_use = in_use_of(one, tiny_files.deep)
    with pytest.raises(ValueError, match=r"the head reads 16 numbers and knows .* tokens, and must read 32 and know"):
        in_use.exchange(native(other, tiny_files.letters_deep))


@pytest.mark.statistics
@pytest.mark.parametrize("rule", RULES)
def test_sequences_have_the_targets_distribution_while_heads_change(
    tiny_files: TinyFiles, tmp_path: Path, rule: str
) -> None:
    paths = [
        write_state_head(tmp_path / f"{kind}.gguf", kind, LETTER, fitted(kind, letters=True))
        for kind in ("medusa", "hydra")
    ]
    heads = [native(path, tiny_files.letters_deep) for path in paths]
    in_use = in_use_of(paths[0], tiny_files.letters_deep)
    engine = Headed(tiny_files.letters_deep, tmp_path / "medusa.gguf", lambda _: _core.Drafter.state_head(in_use))
    generate, number = engine.generate, 0

    def exchanging(*given: Any, **settings: Any) -> list[int]:
        nonlocal number
        number += 1
        in_use.exchange(heads[number % 2])
        return generate(*given, **settings)

    engine.generate = exchanging  # type: ignore[method-assign]
    plain = opened(tiny_files.letters_deep, n_ctx=64, logits_all=True)
    assert_drafted_sequences_are_the_targets(engine, Scorer(plain, PROMPT), CHAINS["T=1"], rule)
    engine.close()
    plain.close()
