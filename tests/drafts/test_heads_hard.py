"""Heads whose files are damaged, and heads where something goes wrong: no process ends, and no text is another."""

from __future__ import annotations

import concurrent.futures
import itertools
import os
import pickle
import random
import re
import types
from typing import TYPE_CHECKING, Any

import block_heads as blocks
import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
import uses
from exact import EXACT_CACHE
from fresh import PROMPT, text_of
from interrupts import seconds_until_interrupted
from test_decode_failures import aborting

import specllama
from specllama.engine.drafts.decoding import DecodingDraft
from specllama.stats import DrafterStats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = [
    pytest.mark.skipif(
        not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
    ),
]
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="each file is tried in a forked child")
NUM_FLIPS = int(os.environ.get("SPECLLAMA_FLIPS", "45"))

WORDS = tiny.word_vocabulary()
WHOLE = tiny.head_weights(WORDS, 5, n_target=32, n_embd=32)
BARE = {name: matrix for name, matrix in WHOLE.items() if name not in ("token_embd.weight", "output.weight")}
NUMPYS = {"I8": np.int8, "I32": np.int32, "I64": np.int64, "F64": np.float64}
"""Types that no weights have, which the writer takes from arrays."""


def padding(count: int) -> dict[str, Any]:
    """Of a head for a vocabulary with more tokens."""
    return {"vocabulary": WORDS.padded(count)}


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"turned {n}": (
            {"changed": {"rope.dimension_count": n}},
            rf"rope\.dimension_count is {n}: it must be even, and",
        )
        for n in (0, 3, 16, 2**24 + 8)
    },
    "many heads": ({"changed": {"attention.head_count": 2**29 + 4}}, "impossible sizes: 536870916 attention heads"),
    "many of keys": ({"changed": {"attention.head_count_kv": 2**29 + 2}}, "attention heads, 536870914 heads for keys"),
    "odd heads": (
        {"changed": {"rope.dimension_count": 10, "attention.key_length": 9}},
        r"rope\.dimension_count is 10: it must be even, and from 2 to 9",
    ),
    "factors": (
        {"weights": {**WHOLE, "rope_freqs.weight": np.ones(32)}, "kinds": {"rope_freqs.weight": "F16"}},
        r"rope_freqs\.weight has type 1: vectors must be F32",
    ),
    **{
        f"{name} of {kind}": (
            {"kinds": {f"{name}.weight": kind}},
            f"{name}.weight has type {gguf.GGMLQuantizationType[kind].value}: ",
        )
        for name, kind in [
            ("output_norm", "Q8_0"),
            ("blk.0.attn_norm_2", "BF16"),
            ("token_embd", "I32"),
            ("output", "I8"),
            ("fc", "F64"),
            ("blk.0.attn_q", "I64"),
        ]
    },
    "some by the target's matrix": ({"weights": BARE, "tokens": range(20)}, "drafts 20 tokens with the target's"),
    "more by the target's matrix": ({"weights": BARE, **padding(7)}, "with the target's output matrix"),
    "size": ({"text": ("eagle3.embedding_length", "many")}, "embedding_length must be a number, and is b'many'"),
    "target's": ({"text": ("eagle3.target_hidden_size", "32")}, "target_hidden_size must be a number, and is b'32'"),
    "experts": ({"text": ("eagle3.expert_count", "4")}, "expert_count has wrong type str"),
}


@pytest.fixture(scope="module")
def attempt(tiny_files: TinyFiles) -> Iterator[Callable[[Path], str]]:
    """What comes of a head in a child process: "ok", an error, a signal or a wrong text."""
    with uses.started(tiny_files.deep, tiny_files.deep_head) as child:
        yield lambda head: child.outcome("open", {"draft_model": str(head), **EXACT_CACHE})


def written(path: Path, change: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Path:
    change = {"weights": WHOLE, "vocabulary": WORDS, **change}
    text, kinds, finish = change.pop("text", None), change.pop("kinds", {}), tiny._finish
    others = {name: NUMPYS[kind] for name, kind in kinds.items() if kind in NUMPYS}

    def finished(writer: gguf.GGUFWriter, tensors: Any) -> None:
        if text is not None:
            writer.kv_data[0].pop(text[0], None)
            writer.add_string(*text)
        for name in others:
            writer.add_tensor(name, tensors[name].astype(others[name]))
        finish(writer, {name: matrix for name, matrix in tensors.items() if name not in others}, kinds)

    with monkeypatch.context() as patch:
        patch.setattr(tiny, "_finish", finished)
        return tiny.write_head(path, **change)


@pytest.mark.sampled(3)
@forks
@pytest.mark.parametrize("name", DAMAGED)
def test_what_would_end_the_process(
    attempt: Callable[[Path], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    change, why = DAMAGED[name]
    found = attempt(written(tmp_path / "head.gguf", change, monkeypatch))
    assert re.match(f"(UnusableFile|Value)Error: .*{why}", found), found


@forks
def test_tokens_that_the_heads_own_vocabulary_lacks(attempt: Callable[[Path], str], tmp_path: Path) -> None:
    """Those are padding of the target's."""
    rows = {name: WHOLE[name][:2] if name == "output.weight" else WHOLE[name] for name in WHOLE}
    head = tiny.write_head(tmp_path / "head.gguf", WORDS, rows, tokens=[300, len(WORDS)])
    assert f"drafts tokens from 300 to {len(WORDS)}" in attempt(head)


def test_weights_that_are_no_numbers(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """The draft is left out for the rest of the text, which says so."""
    head = tiny.write_head(tmp_path / "head.gguf", WORDS, {**WHOLE, "fc.weight": WHOLE["fc.weight"] * np.nan})
    plain, llm = make_llama(tiny_files.deep, **EXACT_CACHE), make_llama(tiny_files.deep, head, **EXACT_CACHE)
    with pytest.warns(specllama.FallbackWarning, match="every logit is -inf or NaN"):
        assert text_of(llm) == text_of(plain)
    assert llm.stats.num_draft_tokens == 0


@pytest.mark.long
@forks
def test_flipped_bytes_end_no_process(attempt: Callable[[Path], str], tmp_path: Path) -> None:
    """Anywhere in the header but in the tokens' texts, which `test_opening.py` flips."""
    rng = random.Random(3)
    head = tiny.write_head(tmp_path / "whole.gguf", WORDS, WHOLE).read_bytes()
    bare = tiny.write_head(tmp_path / "bare.gguf", WORDS, BARE).read_bytes()
    found = []
    for i in range(NUM_FLIPS):
        data = bytearray((head, bare)[i % 2])
        places = [*range(4, 400), *range(data.find(b"tokenizer.ggml.bos_token_id"), 8800)]
        data[rng.choice(places)] ^= 1 << rng.randrange(8)
        (tmp_path / "flipped.gguf").write_bytes(data)
        found.append(attempt(tmp_path / "flipped.gguf"))
    kinds = {what.partition(":")[0] for what in found}
    assert kinds <= {"ok", "ValueError", "UnusableFileError"}, found


def test_a_head_that_llama_cpp_has_opened(tiny_files: TinyFiles) -> None:
    """As if it were a model."""
    opened = llama_cpp.Llama(str(tiny_files.deep_head), n_ctx=64, verbose=False)
    with pytest.raises(ValueError, match="is a head, and no model: give its path"):
        specllama.Llama(str(tiny_files.deep), draft_model=opened, verbose=False)
    opened.close()


def test_a_target_without_weights(tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="vocab_only=True: it has no weights"):
        specllama.Llama(str(tiny_files.deep), draft_model=str(tiny_files.deep_head), vocab_only=True, verbose=False)


@pytest.fixture(params=["deep_head", "deep_block"])
def head(request: pytest.FixtureRequest, tiny_files: TinyFiles) -> Path:
    return getattr(tiny_files, request.param)  # type: ignore[no-any-return]


def by_head(stats: specllama.Stats) -> DrafterStats:
    """What the head has drafted, of whatever kind it is."""
    (found,) = (drafted for name, drafted in stats.per_drafter.items() if name in ("head", "block_head"))
    return found


def assert_like_plain(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The next texts, also behind each other, are those of plain decoding, and the head drafts."""
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    for prompt in (PROMPT, PROMPT + " no fox", "a dog"):
        assert text_of(llm, prompt) == text_of(plain, prompt)
        assert llm.stats.fallback_reason is None
        assert by_head(llm.stats).num_draft_tokens > 0


def test_decodes_that_fail(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    """The target's, in its prompt and later, and the head's."""
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    with aborting(llm), pytest.raises(specllama.DecodeError, match="returned 2 on the target"):
        text_of(llm)
    assert_like_plain(llm, make_llama, tiny_files)
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    assert len(list(itertools.islice(tokens, 7))) == 7
    with aborting(llm), pytest.raises(specllama.DecodeError, match="returned 2 on the target"):
        list(tokens)
    assert_like_plain(llm, make_llama, tiny_files)


def test_a_heads_decodes_that_fail_cost_no_text(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    """In its prompt, and in the middle of a text."""
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    draft = llm.engine.slot.draft
    assert isinstance(draft, DecodingDraft)
    own: Any = types.SimpleNamespace(_ctx=types.SimpleNamespace(ctx=draft.model.context))
    for first in (0, 7):
        tokens = plain.tokenize(PROMPT.encode())
        whole = list(itertools.islice(plain.generate(tokens, temp=0.0), 40))
        rest = llm.generate(tokens, temp=0.0)
        found = list(itertools.islice(rest, first))
        with aborting(own), pytest.warns(specllama.FallbackWarning, match="returned 2 on the draft"):
            found += itertools.islice(rest, 40 - first)
        rest.close()
        assert found == whole
        assert_like_plain(llm, make_llama, tiny_files)
        llm.reset()


def test_ctrl_c(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    llm = make_llama(tiny_files.deep, head, n_ctx=8192, **EXACT_CACHE)
    assert seconds_until_interrupted(lambda: text_of(llm, PROMPT, max_tokens=8000)) < 1
    assert_like_plain(llm, make_llama, tiny_files)
    assert seconds_until_interrupted(lambda: text_of(llm, PROMPT * 700)) < 1
    assert_like_plain(llm, make_llama, tiny_files)


@pytest.mark.parametrize("n_batch", [1, 2, 3, 8])
def test_small_batches_and_contexts(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path, n_batch: int) -> None:
    """Of the target and of the head, whose context is shorter than the prompt."""
    long = "the cat sat on the dog and " * 30
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, n_ctx=512, **EXACT_CACHE)
    least = blocks.SIZE if head == tiny_files.deep_block else 1
    for own, window in ((1, None), (n_batch, 1), (64, 3)):
        llm = make_llama(
            tiny_files.deep,
            head,
            n_ctx=512,
            n_batch=n_batch,
            draft_kwargs={"n_batch": max(own, least), "n_ctx": 32},
            draft_window=window,
            **EXACT_CACHE,
        )
        for prompt in (long, "a dog", long + "a dog"):
            assert text_of(llm, prompt) == text_of(plain, prompt)
            assert llm.stats.fallback_reason is None
        if n_batch > 1:
            assert by_head(llm.total_stats).num_draft_tokens > 0


def test_the_window_moves_beyond_the_states_that_are_kept(
    make_llama: MakeLlama, tiny_files: TinyFiles, head: Path
) -> None:
    """Those are of some hundred tokens: what the head holds begins with the first of them, and with nothing before."""
    llm = make_llama(tiny_files.deep, head, n_ctx=1400, draft_window=1200, **EXACT_CACHE)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, n_ctx=1400, **EXACT_CACHE)
    tokens = plain.engine.tokenize("the cat sat on the dog and " * 300)[:1190]
    found, expected = (list(one.engine.generate(tokens, max_tokens=60, temperature=0.0)) for one in (llm, plain))
    assert found == expected
    assert by_head(llm.stats).num_draft_tokens > 0
    draft = llm.engine.slot.draft
    assert isinstance(draft, DecodingDraft)
    assert 60 < draft.sequence.num_tokens < 512 + 60


def test_a_head_is_exchanged(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    """For none, for another draft and back; the text goes on, and states of the target are lacking for a part of it."""
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    text = PROMPT
    for draft in (None, "lookup", str(head), None, str(head)):
        llm.draft_model = draft
        found = text_of(llm, text)
        assert found == text_of(plain, text)
        text += found
        llm.load_state(llm.save_state())
    assert_like_plain(llm, make_llama, tiny_files)


def test_two_in_two_threads(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    expected = [text_of(plain, f"the cat {i}", seed=i) for i in range(12)]
    two = [make_llama(tiny_files.deep, head, **EXACT_CACHE) for _ in range(2)]

    def texts(llm: specllama.Llama) -> list[str]:
        return [text_of(llm, f"the cat {i}", seed=i) for i in range(12)]

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        assert list(pool.map(texts, two)) == [expected, expected]


@forks
def test_forks(tiny_files: TinyFiles, head: Path) -> None:
    with uses.started(tiny_files.deep, head) as child:
        for before in (["text"], ["stream", "next"], ["texts"], ["streams"]):
            found = child.outcome("fork", [True, before, ["text", "texts"], ["text", "state", "texts"]])
            assert "signal" not in found, (before, found)


def test_pickled(make_llama: MakeLlama, tiny_files: TinyFiles, head: Path) -> None:
    llm = make_llama(tiny_files.deep, head, **EXACT_CACHE)
    other = pickle.loads(pickle.dumps(llm))
    assert_like_plain(other, make_llama, tiny_files)
    other.close()
