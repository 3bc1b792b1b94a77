"""What a Llama has kept for a head to learn from."""

from __future__ import annotations

from pathlib import Path

import specllama
from specllama.engine import Kept, kept_files, read_kept


def kept_of(llm: specllama.Llama) -> list[Kept]:
    """What a Llama has kept, the oldest first, when all is written."""
    assert llm.learn_dir is not None
    assert llm.engine.account.examples is not None
    llm.engine.account.examples.flush()
    found = [read_kept(one.path) for one in kept_files(Path(llm.learn_dir))]
    return [kept for kept in found if kept is not None]
