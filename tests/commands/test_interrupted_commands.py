"""Ctrl-C at many places of commands, of a server and of a training (see `Interruption`).

Each runs in a child. ``SPECLLAMA_ROUNDS=1000000`` takes all places, ``SPECLLAMA_SEED=2`` others.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
from interrupted_commands import interrupted
from needed import imported

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
ROUNDS = int(os.environ.get("SPECLLAMA_ROUNDS", "15"))
_PACKAGES = {"server": ("fastapi", "prometheus_client"), "training": ("torch",)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", ["generate", "chat", "bench", "drafts", "batch", "quantize", "server", "training"])
def test_ctrl_c_at_each_place(tiny_files: TinyFiles, use: str) -> None:
    """It ends with 130 or goes on, no file is left half, nothing is lost, and the same command then does all."""
    for package in _PACKAGES.get(use, ()):
        imported(package)
    assert interrupted(use, [tiny_files.target, tiny_files.good, tiny_files.deep], ROUNDS) >= ROUNDS // 2
