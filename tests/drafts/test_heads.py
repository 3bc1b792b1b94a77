"""Heads, which read hidden states of the target: fed as their authors feed them, and texts stay the target's.

No trained one is small enough for a test. Random weights say something of any state, and that is compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny
from engine import Engine
from exact import EXACT_CACHE
from fresh import text_of
from heads import Headed, fitted_head, fitted_mtp
from test_engine_statistics import VOCAB
from transcribed import Eagle, Mtp, drafted_by_heads

import specllama
from specllama import _core
from specllama.backend.trial import tried

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)

GAMMA = 4
LONG = "the cat sat on the dog and " * 8
LETTERS: dict[str, Any] = {"n_embd": 16, "n_ff": 16, "n_layer": 4, "sharpness": 1.5, "flat_bias": True}


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("said", [None, [*range(1, VOCAB, 2)]])
def test_it_is_fed_as_published(
    tiny_files: TinyFiles, tmp_path: Path, said: list[int] | None, first_alone: bool
) -> None:
    """Tokens, states and positions, also behind rejections: the same tokens are accepted as of the transcription's."""
    letters = tiny.letter_vocabulary(VOCAB)
    target = tiny.llama_weights(letters, 1, **LETTERS)
    head = fitted_head(letters, target, n_embd=32)
    if said is not None:
        head["output.weight"] = head["output.weight"][said]
    path = tiny.write_head(tmp_path / "head.gguf", letters, head, n_target=LETTERS["n_embd"], tokens=said)

    def transcribed(layers: tuple[int, ...]) -> list[tuple[int, list[int]]]:
        oracle, eagle = Engine(tiny_files.letters_deep), Eagle(head, layers, said)
        oracle.draft_by(lambda history, count: drafted_by_heads([eagle] * GAMMA, target, history, count))
        found = oracle.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone)
        oracle.close()
        return found

    engine = Headed(tiny_files.letters_deep, path, _core.Drafter.head)
    found = engine.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone)
    engine.close()
    assert found == transcribed(tiny.HEAD_LAYERS)
    assert found != transcribed((1, 3, 2))
    assert {accepted for accepted, _ in found} >= {0, 1, 2}


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("count", [1, 3])
def test_mtp_is_fed_as_published(tmp_path: Path, count: int, first_alone: bool) -> None:
    """The same of layers in the target's own file: one draws all tokens, or each of several the next one."""
    letters = tiny.letter_vocabulary(VOCAB)
    weights = fitted_mtp(letters, 2, first=3, count=count)
    path = tiny.write_mtp(tmp_path / "mtp.gguf", letters, weights, count=count)
    engine, oracle = Headed(path, "mtp", _core.Drafter.head), Engine(path)
    layers = [Mtp(weights, i) for i in range(count)] if count > 1 else [Mtp(weights)] * GAMMA
    oracle.draft_by(lambda history, most: drafted_by_heads(layers, weights, history, most))
    found, expected = (loop.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone) for loop in (engine, oracle))
    engine.close()
    oracle.close()
    assert found == expected
    assert {accepted for accepted, _ in found} >= {0, 1, 2}


def test_what_is_decoded(tiny_files: TinyFiles) -> None:
    """A round decodes the last one's tokens with the target's states, and all but the last drafted one."""
    engine = Headed(tiny_files.letters_deep, tiny_files.letters_head, _core.Drafter.head)
    assert engine.draft is not None
    engine.begin([1, 3, 4, 5], gamma=GAMMA)
    decoded, added = 0, 3  # [3, 4, 5], each with the state of the token before it
    for _ in range(30):
        before = engine.history()
        emitted = len(engine.step())
        now = engine.speculator.counters.num_draft_tokens_decoded
        assert now - decoded == added + engine.rounds[-1].num_drafted - 1
        assert engine.draft.tokens().tolist()[: len(before) - 1] == before[1:]
        decoded, added = now, emitted
    engine.close()


def test_a_head_that_says_some_tokens(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Its q knows no others; where a grammar leaves none of them it drafts nothing."""
    words = tiny.word_vocabulary()
    said = [token for token in range(259, len(words)) if token % 3 == 0]
    weights = fitted_head(words, tiny.llama_weights(words, seed=1, n_layer=4), n_embd=64, first=259)
    weights["output.weight"] = weights["output.weight"][said]
    head = tiny.write_head(tmp_path / "some.gguf", words, weights, tokens=said)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    never = llama_cpp.LlamaGrammar.from_string('root ::= "zz" [0-9]*', verbose=False)
    for settings in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}):
        for more in ({}, {"grammar": never}):
            assert text_of(llm, LONG, **settings, **more) == text_of(plain, LONG, **settings, **more)
            assert llm.stats.fallback_reason is None
    assert llm.total_stats.per_drafter["head"].num_accepted_tokens > 0


def test_mtp_in_a_file_of_its_own(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """As ``convert_hf_to_gguf.py --mtp`` writes one. It drafts what it does in the target's file."""
    words = tiny.word_vocabulary()
    weights = fitted_mtp(words, 1)
    parts = {
        "target": {name: matrix for name, matrix in weights.items() if not name.startswith("blk.2.")},
        "head": {name: matrix for name, matrix in weights.items() if not name.startswith(("blk.0.", "blk.1."))},
    }
    target = tiny.write_mtp(tmp_path / "target.gguf", words, parts["target"], count=0, n_layer=2)
    head = tiny.write_mtp(tmp_path / "mtp-head.gguf", words, parts["head"])
    texts = []
    for path, draft in ((tiny_files.mtp, "mtp"), (target, head)):
        llm = make_llama(path, draft, **EXACT_CACHE)
        texts.append((text_of(llm, LONG), llm.stats.num_accepted_tokens, llm.stats.num_draft_tokens))
    assert texts[0] == texts[1]
    assert texts[0][1] > 0
    with pytest.raises(ValueError, match="it reads states of 32 numbers, and this one's have 16"):
        make_llama(tiny_files.letters_deep, head)


def test_what_it_lacks_is_the_targets(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Without token embeddings and an output matrix of its own."""
    words = tiny.word_vocabulary()
    weights = tiny.head_weights(words, 5, n_target=32, n_embd=32)
    target = tiny.llama_weights(words, seed=1, n_layer=4)
    whole = tiny.write_head(
        tmp_path / "whole.gguf",
        words,
        {**weights, **{name: target[name] for name in ("token_embd.weight", "output.weight")}},
    )
    for name in ("token_embd.weight", "output.weight"):
        del weights[name]
    part = tiny.write_head(tmp_path / "part.gguf", words, weights)
    texts = []
    for head in (whole, part):
        llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
        texts.append((text_of(llm, LONG), llm.stats.num_accepted_tokens, llm.stats.num_draft_tokens))
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            {"layers": [0, 1, 2]},
            "reads the inputs of the layers 0, 1, 2, and this target shows those of the layers 1",
        ),
        ({"layers": [1, 2, 4]}, "of the layers 1 to 3"),
        ({"layers": [1, 2]}, "must name the layers of its target"),
        ({"n_target": 48}, "reads states of 48 numbers, and this one's have 32"),
        ({"tokens": [3, 10**6]}, "drafts tokens from 3 to 1000000"),
        ({"tokens": [-1, 3]}, "drafts tokens from -1 to 3"),
        ({"tokens": []}, "the tensor d2t of the shape .0., which holds nothing"),
        ({"without": "fc.weight"}, "not found"),
        ({"without": "blk.0.attn_q.weight"}, "not found"),
        ({"without": "output.weight"}, "token embeddings or output matrix"),
        ({"vocabulary": "other"}, "another vocabulary"),
    ],
    ids=str,
)
def test_a_head_that_does_not_fit(tiny_files: TinyFiles, tmp_path: Path, change: dict[str, Any], match: str) -> None:
    words = tiny.word_vocabulary()
    said = words.with_token(280, "zebra") if change.pop("vocabulary", None) else words
    n_target = change.pop("n_target", 32)
    weights = tiny.head_weights(words, 5, n_target=n_target, n_embd=24)
    without = change.pop("without", None)
    if "tokens" in change:
        weights["output.weight"] = weights["output.weight"][: len(change["tokens"])]
    kept = {name: matrix for name, matrix in weights.items() if name != without}
    head = tiny.write_head(tmp_path / "head.gguf", said, kept, n_target=n_target, **change)
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(tiny_files.deep), draft_model=str(head), n_ctx=64, verbose=False)


@pytest.mark.parametrize("kind", ["deep_head", "deep_block", "deep_medusa", "mtp"])
def test_a_head_is_no_model(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """llama.cpp would end the process."""
    weights = tiny.mtp_weights(tiny.word_vocabulary(), 1)
    kept = {name: matrix for name, matrix in weights.items() if not name.startswith(("blk.0.", "blk.1."))}
    mtp = tiny.write_mtp(tmp_path / "mtp.gguf", tiny.word_vocabulary(), kept)
    with pytest.raises(ValueError, match="is a head, and no model"):
        specllama.Llama(str(mtp if kind == "mtp" else getattr(tiny_files, kind)), n_ctx=64, verbose=False)


def test_a_target_that_was_opened_without_it(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(tiny_files.deep)
    with pytest.raises(ValueError, match=r"was not opened for the head deep_head\.gguf"):
        llm.draft_model = str(tiny_files.deep_head)
    assert llm.draft_model is None


@pytest.mark.parametrize(
    ("arch", "count", "without", "match"),
    [
        ("hy_v3", 0, "nothing", "has no MTP layers"),
        ("hy_v3", 1, "nextn", "names MTP layers in its metadata, and does not have them"),
        ("exaone-moe", 1, "nothing", "MTP layers of the architecture exaone-moe, which llama.cpp cannot run"),
    ],
)
def test_a_model_without_mtp(tmp_path: Path, arch: str, count: int, without: str, match: str) -> None:
    """llama.cpp would end the process."""
    words = tiny.word_vocabulary()
    weights = {name: matrix for name, matrix in tiny.mtp_weights(words, 1).items() if without not in name}
    path = tiny.write_mtp(tmp_path / "model.gguf", words, weights, arch, count)
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(path), draft_model="mtp", n_ctx=64, verbose=False)


@pytest.mark.parametrize(("model", "runs"), [("mtp", True), ("mtp_hybrid", True), ("target", False)])
def test_an_architecture_that_is_not_known_is_tried(tiny_files: TinyFiles, model: str, runs: bool) -> None:
    """In a child process: a library may have learned it since."""
    assert tried("engine._mtp_trial", [str(getattr(tiny_files, model))], key={"asked by": "a test"}).ok == runs
