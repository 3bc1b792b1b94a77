"""What learns from use and what answers are killed at any time: texts stay as they are, and all files can be read."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import kept_texts
import pytest
import uses

from specllama.engine import learn_dir
from specllama.training.target import read_target

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")]

CASES = int(os.environ.get("SPECLLAMA_CASES", "60"))


def test_killed_at_any_time(tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    target, chance = read_target(str(tiny_files.target)), random.Random(1)
    ends = set()
    with uses.started(tiny_files.target, tiny_files.good) as process:

        def done(kind: str, **case: Any) -> str:
            return process.outcome(kind, {"cache": str(tmp_path), "weights": target.weights, **case})

        process.imports("torch")
        process.imports("specllama.training.learn")
        expected = done("look")
        assert expected.startswith("ok ")
        for number in range(CASES):
            kept_texts.write_some(learn_dir(target.weights), 8, first=8 * number, width=target.n_embd)
            kept_texts.forget_oldest(learn_dir(target.weights), 40)
            what = chance.choice(["learn", "learn", "answer"])
            seconds = chance.uniform(0.0, 1.2 if what == "learn" else 0.12)  # about as long as it takes
            ends.add(done("learn", do=what, seconds=seconds).partition(" ")[0])
            assert done("look") == expected, number
        assert "signal" in ends
        kept_texts.write_some(learn_dir(target.weights), 24, first=8 * CASES, width=target.n_embd)  # enough in any case
        assert done("learn", do="learn", seconds=None).startswith("learned")
