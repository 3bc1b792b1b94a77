"""Heads that say several tokens in one decode: fed as llama.cpp's own tool feeds them, and texts stay the target's."""

from __future__ import annotations

import functools
import os
import random
import re
from typing import TYPE_CHECKING, Any

import block_heads as blocks
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
import uses
from block_heads import CANDIDATES, KINDS, Feeding, Flash, fitted_block_head, weights_of, write_block_head
from exact import EXACT_CACHE
from fresh import text_of
from heads import Headed
from test_engine_statistics import VOCAB
from test_heads import LETTERS, LONG
from test_scheduler import prompts
from transcribed import forward

import specllama
from specllama import _core
from specllama.engine.hidden import Hidden

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="each file is tried in a forked child")
NUM_FLIPS = int(os.environ.get("SPECLLAMA_FLIPS", "45"))

WORDS = tiny.word_vocabulary()
LETTER = tiny.letter_vocabulary(VOCAB)
NEAR = 0.01
"""Two logits so near to each other are one, computed twice."""
SOME = [1, *range(3, VOCAB, 2)]
SLIDING = {"attention.sliding_window": 6, "attention.sliding_window_pattern": [True, False]}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"changed": {"attention.causal": True}},
    "of some tokens": {"tokens": SOME},
    "with the target's embeddings": {"without": ("token_embd.weight", "output.weight")},
    "with a sliding window": {"changed": SLIDING},
    "with positions of several axes": {"changed": {"rope.dimension_sections": [2, 0, 0, 0]}},
    "of small blocks": {"changed": {"block_size": 3}},
}


class Drafting(Headed):
    """A loop whose head is alone, and which keeps what it drafts."""

    def __init__(self, target: Path, head: Path) -> None:
        super().__init__(target, head, _core.Drafter.block_head)

    def drafts(self, prompt: list[int], most: int, count: int) -> list[tuple[list[int], list[int]]]:
        """What is drafted, and emitted, in so many rounds behind a prompt."""
        drafted: list[list[int]] = []

        def seen(ids: Any, logits: Any) -> Any:
            """The target has decoded what was drafted, and not yet forgotten it."""
            drafted.append(self.target.tokens().tolist())
            return logits

        self.begin(prompt, gamma=most, temperature=0.0, logits_processor=seen)
        found = []
        for _ in range(count):
            size = len(self.history())
            drafted.clear()
            emitted = self.step()
            while self.speculator.round_is_open:
                emitted += self.step()
            found.append((drafted[0][size:], emitted))
        return found


@functools.cache
def fitted(kind: str, *, letters: bool) -> tiny.Weights:
    """A head for `letters_deep`, or for `deep`."""
    if letters:
        return fitted_block_head(kind, LETTER, tiny.llama_weights(LETTER, 1, **LETTERS))
    return fitted_block_head(kind, WORDS, tiny.llama_weights(WORDS, seed=1, n_layer=4), first=259, chain=0.1)


def letters_head(folder: Path, kind: str, variant: str = "plain") -> Path:
    """A head for `letters_deep`."""
    weights = dict(fitted(kind, letters=True))
    change = dict(VARIANTS[variant])
    for name in change.pop("without", ()):
        del weights[name]
    if "tokens" in change:
        for name in ("output.weight", *(["markov_w2.weight"] if kind.startswith("dspark") else [])):
            weights[name] = weights[name][change["tokens"]]
    return write_block_head(folder / "head.gguf", kind, LETTER, weights, **change)


def words_head(folder: Path, kind: str) -> Path:
    """A head for `deep`."""
    return write_block_head(folder / "head.gguf", kind, WORDS, fitted(kind, letters=False))


def some_prompts(count: int) -> list[list[int]]:
    """Of letters; many begin alike."""
    chance = np.random.default_rng(3)
    return [[1, *chance.integers(3, VOCAB, chance.integers(0, 14)).tolist()] for _ in range(count)]


@pytest.mark.sampled(6)
@pytest.mark.parametrize("most", [1, 3, 8])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_fed_as_llama_cpp_feeds_it(
    tiny_files: TinyFiles, tmp_path: Path, kind: str, variant: str, most: int
) -> None:
    """Every draft is that of llama.cpp's own tool, also behind rejections, token for token; but for near-ties.

    Where what is said is chained, our blocks are always whole: what comes first does not depend on what follows.
    """
    head = letters_head(tmp_path, kind, variant)
    oracle = Feeding(tiny_files.letters_deep, head, CANDIDATES if kind == "dflash2" else 0)
    engine = Drafting(tiny_files.letters_deep, head)
    whole = kind != "dflash"
    drafts, num_near = [], 0
    for prompt in some_prompts(12):
        expected = oracle.rounds(prompt, blocks.SIZE if whole else most, 4, cut=most)
        for (draft, emitted, said), found in zip(expected, engine.drafts(prompt, most, 4), strict=True):
            drafts.append(draft)
            if draft != found[0]:
                row, one, other = next(
                    differing for differing in zip(said, draft, found[0], strict=False) if differing[1] != differing[2]
                )
                assert row[one] - row[other] < NEAR
                num_near += 1
                break
            assert emitted == found[1]
    engine.close()
    oracle.close()
    assert num_near <= 2
    assert len({*map(tuple, drafts)}) > 1


def test_it_says_what_was_published(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """As a transcription of the paper, by another hand: it and llama.cpp's graph are one function."""
    target = tiny.llama_weights(LETTER, 1, **LETTERS)
    head, weights = letters_head(tmp_path, "dflash"), fitted("dflash", letters=True)
    flash, engine = Flash(weights), Drafting(tiny_files.letters_deep, head)
    for prompt in some_prompts(30):
        text = list(prompt)
        for drafted, emitted in engine.drafts(prompt, 7, 3):
            said = flash(text, forward(target, text)[1], blocks.SIZE)
            logits = said[1:] @ weights["output.weight"].astype(float).T
            assert (logits[range(len(drafted)), drafted] > logits.max(-1) - NEAR).all()
            text += emitted
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_decoded(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """A round reads the states of the last one's tokens, and one block; the memory holds nothing but the text."""
    engine = Drafting(tiny_files.letters_deep, letters_head(tmp_path, kind))
    assert engine.draft is not None
    engine.begin([1, 3, 4, 5], gamma=4, temperature=0.0)
    width = 5 if kind == "dflash" else blocks.SIZE
    decoded, added = 0, 3
    for _ in range(30):
        before = engine.history()
        emitted = len(engine.step())
        now = engine.speculator.counters.num_draft_tokens_decoded
        assert now - decoded == added + width
        assert engine.draft.tokens().tolist() == before[:-1]
        decoded, added = now, emitted
    engine.close()


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_grammar(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """What must come stands before what the head says of its block, and nothing that is forbidden is said."""
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, words_head(tmp_path, kind), num_draft_tokens=6, **EXACT_CACHE)
    for gbnf in ('root ::= "the cat " [a-d ]+ " sat " [a-z ]*', 'root ::= "zz" [0-9]*'):
        grammar = llama_cpp.LlamaGrammar.from_string(gbnf, verbose=False)
        for settings in ({"temperature": 0.0}, {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}):
            for gamma in (6, "auto"):
                llm.num_draft_tokens = gamma
                found, expected = (text_of(each, LONG, grammar=grammar, **settings) for each in (llm, plain))
                assert found == expected
                assert llm.stats.fallback_reason is None
    assert llm.total_stats.per_drafter["block_head"].num_draft_tokens > 0


def test_a_head_with_a_sliding_window_drafts_for_one_text(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path
) -> None:
    """A context of several texts cannot have one: each text is decoded by itself."""
    head = write_block_head(tmp_path / "head.gguf", "dflash", WORDS, fitted("dflash", letters=False), changed=SLIDING)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, head, max_parallel=3, **EXACT_CACHE)
    given = prompts(5, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "seed": 3}
    found, expected = ([each.text for each in one.create_completions(given, **sampled)] for one in (llm, plain))
    assert found == expected
    assert text_of(llm, LONG) == text_of(plain, LONG)
    assert llm.stats.per_drafter["block_head"].num_draft_tokens > 0


def test_near_the_end_of_the_context(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """A block needs room there that the text does not have: the head reads on from a later beginning."""
    for n_ctx, own in ((256, {}), (512, {"n_ctx": 256}), (512, {"n_ctx": 256, "n_batch": blocks.SIZE})):
        plain = make_llama(tiny_files.deep, num_draft_tokens=0, n_ctx=n_ctx, **EXACT_CACHE)
        llm = make_llama(tiny_files.deep, tiny_files.deep_block, n_ctx=n_ctx, draft_kwargs=own, **EXACT_CACHE)
        for prompt in (LONG, LONG * 2 + "a dog"):
            found, expected = (text_of(each, prompt, max_tokens=n_ctx) for each in (llm, plain))
            assert found == expected
            assert llm.stats.fallback_reason is None


@pytest.mark.parametrize(
    ("own", "match"),
    [
        ({"n_ctx": 8}, "n_ctx=8 in draft_kwargs is too small: .* reads blocks of 8 tokens, and needs at least 9"),
        ({"n_batch": 7}, "n_batch=7 in draft_kwargs is too small: .* needs at least 8"),
        ({"seed": 7}, "draft_kwargs of a head may have .*: leave seed out"),
    ],
    ids=str,
)
def test_a_context_without_room_for_a_block(tiny_files: TinyFiles, own: dict[str, int], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(tiny_files.deep), draft_model=str(tiny_files.deep_block), draft_kwargs=own, verbose=False)


MISFITS: dict[str, tuple[dict[str, Any], str]] = {
    "a layer too deep": ({"layers": [1, 2, 4]}, "and this target shows those of the layers 1 to 3"),
    "a layer that nothing enters": ({"layers": [0, 2, 3]}, "shows those of the layers 1 to 3"),
    "no layers": ({"layers": []}, "must name the layers of its target"),
    "texts for layers": ({"changed": {"target_layers": "1"}}, "must name the layers of its target"),
    "fewer layers": ({"layers": [1, 2]}, "has wrong shape"),
    "width": ({"n_embd": 24}, "it reads states of 24 numbers, and this one's have 32"),
    "tokens": ({"tokens": [3, 10**6]}, "drafts tokens from 3 to 1000000"),
    "no tokens": ({"tokens": []}, "the tensor d2t of the shape .0., which holds nothing"),
    "fc": ({"without": ["fc.weight"]}, "not found"),
    "q": ({"without": ["blk.1.attn_q.weight"]}, "not found"),
    "vocabulary": ({"vocabulary": WORDS.with_token(280, "zebra")}, "another vocabulary"),
    "mask": ({"changed": {"mask_token_id": len(WORDS)}}, "and there are embeddings of the tokens 0 to"),
    "no mask": ({"changed": {"mask_token_id": None}}, "mask_token_id must be a number, and is None"),
    "no block": ({"changed": {"block_size": 0}}, r"block_size is 0: it must be from 2 to 512"),
    "a large block": ({"changed": {"block_size": 2**31}}, r"block_size is 2147483648: it must be from 2 to 512"),
    "a block of text": ({"changed": {"block_size": "8"}}, "block_size must be a number"),
    "causal": ({"changed": {"attention.causal": 1}}, "attention.causal must be true or false, and is 1"),
    "turned": ({"changed": {"rope.dimension_count": 3}}, r"rope\.dimension_count is 3: it must be even"),
    "axes": ({"changed": {"rope.dimension_sections": [0, 0, 0, 4]}}, "which is for time, must not be 0"),
    "keys": ({"changed": {"attention.key_length": 16}}, "keys of 16 numbers and values of 8"),
    "heads": ({"changed": {"attention.head_count_kv": 3}}, "impossible sizes: 4 attention heads, 3 heads for keys"),
    "no heads": ({"changed": {"attention.head_count": 0}}, "impossible sizes: 0 attention heads"),
    "layers of its own": ({"changed": {"block_count": 0}}, "block_count is 0, and must be from 1"),
    "DeepSeek-V4": ({"changed": {"hyper_connection.count": 2}}, "DeepSeek-V4's own kind of DSpark"),
    "some by the target's matrix": (
        {"tokens": range(20), "without": ["output.weight", "token_embd.weight"]},
        "drafts 20 tokens with the target's output",
    ),
    "more by the target's matrix": (
        {"vocabulary": WORDS.padded(7), "without": ["output.weight", "token_embd.weight"]},
        "with the target's output matrix",
    ),
    "chain without a size": ({"kind": "dspark", "changed": {"block_size": None}}, "block_size must be a number"),
    "anchor": ({"kind": "dspark", "changed": {"sample_from_anchor": 1}}, "sample_from_anchor must be true or false"),
    "one half of a chain": ({"kind": "dspark", "without": ["markov_w2.weight"]}, "not found"),
    "two chains": ({"kind": "dflash2", "more": "dspark"}, "the chains of both DSpark and DFlash2"),
    "no candidates": ({"kind": "dflash2", "changed": {"selector_top_k": 0}}, "selector_top_k is 0: it must be from 1"),
    "many candidates": ({"kind": "dflash2", "changed": {"selector_top_k": 9**4}}, "selector_top_k is 6561: it must be"),
    "candidates that find no room": ({"kind": "dflash2", "changed": {"selector_top_k": 6}}, "too small for the sel"),
    "groups": ({"kind": "dflash2", "changed": {"conv_group_size": 5}}, "must be divisible by conv_group_size"),
    "rank": ({"kind": "dflash2", "changed": {"selector_rank": 9}}, "has wrong shape"),
    "no kernel": ({"kind": "dflash2", "changed": {"conv_kernel_size": 0}}, "missing conv/selector metadata"),
}


@pytest.fixture(scope="module")
def attempt(tiny_files: TinyFiles) -> Iterator[Callable[[Path], str]]:
    """What comes of a head in a child process: "ok", an error, a signal or a wrong text."""
    with uses.started(tiny_files.deep, tiny_files.deep_block) as child:
        yield lambda head: child.outcome("open", {"draft_model": str(head), **EXACT_CACHE})


def changed_head(path: Path, change: dict[str, Any]) -> Path:
    change = {"kind": "dflash", "vocabulary": WORDS, "without": [], "n_embd": 32, **change}
    kind, vocabulary, without = (change.pop(name) for name in ("kind", "vocabulary", "without"))
    n_embd = change.pop("n_embd")
    weights = weights_of(kind, vocabulary, 5, n_embd=n_embd)
    if more := change.pop("more", None):
        weights = {**weights_of(more, vocabulary, 5, n_embd=n_embd), **weights}
    if "tokens" in change:
        weights["output.weight"] = weights["output.weight"][: len(change["tokens"])]
    kept = {name: matrix for name, matrix in weights.items() if name not in without}
    return write_block_head(path, kind, vocabulary, kept, **change)


@pytest.mark.sampled(12)
@forks
@pytest.mark.parametrize("name", MISFITS)
def test_a_head_that_does_not_fit(attempt: Callable[[Path], str], tmp_path: Path, name: str) -> None:
    """On most of them llama.cpp would end the process."""
    change, why = MISFITS[name]
    found = attempt(changed_head(tmp_path / "head.gguf", change))
    assert re.match(f"(UnusableFile|Value)Error: .*{why}", found), found


@forks
@pytest.mark.parametrize("kind", KINDS)
def test_heads_with_random_weights(attempt: Callable[[Path], str], tmp_path: Path, kind: str) -> None:
    assert attempt(changed_head(tmp_path / "head.gguf", {"kind": kind})).startswith("ok")


@pytest.mark.parametrize("kind", KINDS)
def test_weights_that_are_no_numbers(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """The draft is left out for the rest of the text, which says so."""
    weights = weights_of(kind, WORDS, 5, n_embd=32)
    weights["fc.weight"] *= np.nan
    head = write_block_head(tmp_path / "head.gguf", kind, WORDS, weights)
    plain, llm = make_llama(tiny_files.deep, **EXACT_CACHE), make_llama(tiny_files.deep, head, **EXACT_CACHE)
    with pytest.warns(specllama.FallbackWarning, match="every logit is -inf or NaN"):
        assert text_of(llm) == text_of(plain)
    assert llm.stats.num_draft_tokens == 0


@pytest.mark.long
@forks
def test_flipped_bytes_end_no_process(attempt: Callable[[Path], str], tmp_path: Path) -> None:
    """Anywhere in the header but in the tokens' texts, which `test_opening.py` flips."""
    rng = random.Random(3)
    whole = [changed_head(tmp_path / "whole.gguf", {"kind": kind}).read_bytes() for kind in KINDS]
    found = []
    for i in range(NUM_FLIPS):
        data = bytearray(whole[i % len(whole)])
        begin = data.find(b"tokenizer.ggml.bos_token_id")
        end = data.find(b"token_embd.weight", begin) + 3000
        data[rng.choice([*range(4, 400), *range(begin, end)])] ^= 1 << rng.randrange(8)
        (tmp_path / "flipped.gguf").write_bytes(data)
        found.append(attempt(tmp_path / "flipped.gguf"))
    kinds = {what.partition(":")[0] for what in found}
    assert kinds <= {"ok", "ValueError", "UnusableFileError"}, found


def test_a_release_without_such_heads() -> None:
    class Params:
        """Those of a release before."""

        n_batch = n_ubatch = 512

    with pytest.raises(ValueError, match=r"heads need llama-cpp-python 0\.3\.36 or later"):
        Hidden((), target=1).make_with(Params())
