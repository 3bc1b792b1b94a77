"""Random conversations over a store of prefixes, with every kind of memory and draft: no text changes."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import conversations
import differential
import llama_cpp
import pytest

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

CASES = int(os.environ.get("SPECLLAMA_CASES", "60"))
KINDS = sorted(
    name
    for name in differential.KINDS
    if hasattr(llama_cpp.llama_context_default_params(), "ctx_other") or not name.startswith(("head", "mtp"))
)
END = 2  # a control token, as ends messages


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::UserWarning")  # of drafts that are no good
def test_texts_are_those_of_a_fresh_object_without_a_store(
    tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However conversations are edited, branched, abandoned and restarted, and several are under way."""
    paths = {field.name: getattr(tiny_files, field.name) for field in dataclasses.fields(tiny_files)}
    (tmp_path / "heads").mkdir()
    files = differential.written(tmp_path / "heads", paths)
    chance = random.Random(int(os.environ.get("SPECLLAMA_SEED", "1")))
    num_recalled = 0
    for number in range(CASES):
        case = conversations.drawn(chance, KINDS)
        said, count = conversations.difference(files, case, tmp_path / str(number))
        assert not said, (case, said)
        num_recalled += count
    assert num_recalled > 50 * CASES


@pytest.mark.parametrize("kind", ["recurrent", "hybrid", "sliding"])
@pytest.mark.parametrize("options", [{}, {"cache_ram": 64}], ids=["context", "store"])
def test_thoughts_that_a_template_drops(
    make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, options: dict[str, Any]
) -> None:
    """A memory that cannot be cut goes back to the end of the message before."""
    drafts = {"recurrent": "recurrent_good", "hybrid": "hybrid_good", "sliding": "sliding_draft"}
    more: dict[str, Any] = {"n_ctx": 512, "n_batch": 64, "num_draft_tokens": 3, "swa_full": False, **options}
    llm = make_llama(getattr(tiny_files, kind), getattr(tiny_files, drafts[kind]), **more)
    plain = make_llama(getattr(tiny_files, kind), **more)
    num_before, told = 0, [1, *range(260, 330), END, *range(270, 300)]
    for turn in range(5):
        asked = {"max_tokens": 90, "temperature": 0.9, "seed": turn, "verify": "coupled"}
        prompt = [*told, END, 265]  # the last token begins a thought
        thought = list(llm.engine.generate(prompt, **asked))
        assert thought == list(plain.engine.generate(prompt, **asked))
        read = llm.stats.num_prompt_tokens - llm.stats.num_prompt_tokens_reused
        assert read <= len(prompt) - num_before, turn
        num_before = len(told)
        told += [END, 280, 281, END, *range(300, 320)]


@pytest.mark.parametrize("kind", ["hybrid", "sliding"])
def test_a_message_that_other_chats_begin_with(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, kind: str
) -> None:
    """A memory that cannot be cut is also copied behind the first message of a chat that has many."""
    system = [1, *range(260, 330), END]
    turns = [token for turn in range(6) for token in (*range(260 + turn, 290 + turn), END)]
    for prompt, expected in (([*system, *turns, 265], 0), ([*system, *range(300, 325), END, 265], len(system) - 1)):
        llm = make_llama(getattr(tiny_files, kind), n_ctx=512, n_batch=64, swa_full=False, cache_dir=tmp_path)
        list(llm.engine.generate(prompt, max_tokens=4, temperature=0.0))
        assert llm.stats.num_prompt_tokens_from_disk >= expected
        assert (llm.stats.num_prompt_tokens_from_disk > 0) == (expected > 0)
        llm.close()
