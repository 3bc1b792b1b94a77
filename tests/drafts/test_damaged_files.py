"""Damaged files beside a good model: the model opens, "auto" decides at once, and the file is named."""

from __future__ import annotations

import os
import random
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import damages
import pytest
import tiny_models as tiny
from block_heads import fitted_block_head, write_block_head
from damaged import beside
from heads import fitted_mtp
from state_heads import KINDS, fitted_state_head, write_state_head

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = [
    pytest.mark.usefixtures("home"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="each file is tried in a forked child"),
]
NUM_FILES = int(os.environ.get("SPECLLAMA_DAMAGED", "25"))
"""How many damaged files of each kind are tried. There are 14 kinds."""
SECONDS = 1.0
WORDS = tiny.word_vocabulary()
DRAFTS = ("model", "other tokenizer", "eagle3", "mtp", "dflash", "dspark", "dflash2", *KINDS)


def whole(tmp_path: Path, tiny_files: TinyFiles, kind: str) -> Path:
    """A file of each kind that is looked at, which could draft for `deep`, or lie beside it."""
    path, weights = tmp_path / "whole.gguf", tiny.llama_weights(WORDS, seed=1, n_layer=4)
    if kind in KINDS:
        return write_state_head(path, kind, WORDS, fitted_state_head(kind, WORDS, weights, first=259))
    if kind == "mtp":
        return tiny.write_mtp(path, WORDS, fitted_mtp(WORDS, 1))
    if kind in ("dflash", "dspark", "dflash2"):
        return write_block_head(path, kind, WORDS, fitted_block_head(kind, WORDS, weights, first=259))
    if kind == "images":
        return tiny.write_clip(path, 1, n_out=64)
    known = {"model": "bad", "other tokenizer": "foreign", "eagle3": "deep_head", "adapter": "lora"}
    known |= {"embedding": "embedding", "target": "deep"}
    return Path(shutil.copy(getattr(tiny_files, known[kind]), path))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [*DRAFTS, "images", "adapter", "embedding", "target"])
def test_the_model_opens_and_auto_decides(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    made, data = random.Random(kind), whole(tmp_path, tiny_files, kind).read_bytes()
    (folder := tmp_path / "models").mkdir()
    target = Path(shutil.copy(tiny_files.deep, folder / "target.gguf"))
    with target.open("ab") as file:  # a draft must be smaller
        file.truncate(4 * len(data) + target.stat().st_size)
    labels, files = [], []
    for number in range(NUM_FILES):
        label, content = damages.damaged(data, made)
        labels.append(label)
        files.append(tmp_path / f"{number}.gguf")
        files[-1].write_bytes(content)
    name = f"{kind}-target.gguf" if kind in ("eagle3", "mtp", "dflash", "dspark", *KINDS) else "other.gguf"
    found = beside(target, name, files)
    assert len(found) == 2 * NUM_FILES
    for label, auto, named in zip(labels, found[::2], found[1::2], strict=True):
        assert auto["what"] == "ok", (label, auto)
        of_auto = [said for said in auto["warnings"] if "'auto'" in said]  # others are of a draft that can be used
        assert all(name in said for said in of_auto), (label, auto)
        assert len(of_auto) <= 1, (label, auto)
        assert named["what"].partition(":")[0] in ("ok", "ValueError", "UnusableFileError"), (label, named)
        assert max(auto["seconds"], named["seconds"]) < SECONDS, (label, auto, named)
