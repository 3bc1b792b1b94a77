"""Heads whose files are damaged, and heads where something goes wrong: no process ends, and no text is another."""

from __future__ import annotations

import os
import random
import re
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
import uses
from exact import EXACT_CACHE
from fresh import text_of

import specllama

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
Kind = gguf.GGMLQuantizationType
NUMPYS = {Kind.I8: np.int8, Kind.I32: np.int32, Kind.I64: np.int64, Kind.F64: np.float64}
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
    "odd heads": (
        {"changed": {"rope.dimension_count": 10, "attention.key_length": 9}},
        r"rope\.dimension_count is 10: it must be even, and from 2 to 9",
    ),
    "factors": (
        {"weights": {**WHOLE, "rope_freqs.weight": np.ones(4)}, "kinds": {"rope_freqs.weight": Kind.F16}},
        r"rope_freqs\.weight has type 1: vectors must be F32",
    ),
    **{
        f"{name} of {kind.name}": ({"kinds": {f"{name}.weight": kind}}, f"{name}.weight has type {kind.value}: ")
        for name, kind in [
            ("output_norm", Kind.Q8_0),
            ("blk.0.attn_norm_2", Kind.BF16),
            ("token_embd", Kind.I32),
            ("output", Kind.I8),
            ("fc", Kind.F64),
            ("blk.0.attn_q", Kind.I64),
        ]
    },
    "some by the target's matrix": ({"weights": BARE, "tokens": range(20)}, "says 20 tokens by the target's output"),
    "more by the target's matrix": ({"weights": BARE, **padding(7)}, "by the target's output matrix"),
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
    assert re.match(f"ValueError: .*{why}", found), found


@forks
def test_tokens_that_the_heads_own_vocabulary_lacks(attempt: Callable[[Path], str], tmp_path: Path) -> None:
    """Those are padding of the target's."""
    rows = {name: WHOLE[name][:2] if name == "output.weight" else WHOLE[name] for name in WHOLE}
    head = tiny.write_head(tmp_path / "head.gguf", WORDS, rows, tokens=[300, len(WORDS)])
    assert f"says tokens from 300 to {len(WORDS)}" in attempt(head)


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
    assert kinds == {"ok", "ValueError"}, found
