"""Ctrl-C at every place of closing, exchanging and opening every kind of draft, and among texts (see `Interruption`).

Each runs in a child: a context that is freed twice ends the process. ``SPECLLAMA_ROUNDS=1000000`` takes all places.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tiny_models as tiny
from heads import fitted_head, fitted_mtp
from interrupted_uses import interrupted
from state_heads import fitted_state_head, write_state_head

ROUNDS = int(os.environ.get("SPECLLAMA_ROUNDS", "0"))
_FEW = 25  # of the thousands of places of opening
_KINDS = ("none", "lookup", "model", "staged", "head", "mtp", "hydra", "list")


class _Case(NamedTuple):
    target: Path
    options: dict[str, Any]


def written(folder: Path) -> dict[str, _Case]:
    """A target with each kind of draft."""
    words = tiny.word_vocabulary()
    weights = tiny.llama_weights(words, seed=1, n_layer=4, n_embd=64, n_ff=96)
    target, model, smaller, mtp = (folder / f"{name}.gguf" for name in ("target", "model", "smaller", "mtp"))
    head, hydra = (folder / f"{name}.gguf" for name in ("head", "hydra"))
    tiny.write_llama(target, words, weights)
    tiny.write_llama(model, words, tiny.noisy(weights, 0.06, seed=2))
    tiny.write_llama(smaller, words, tiny.noisy(weights, 0.2, seed=11))
    tiny.write_mtp(mtp, words, fitted_mtp(words, 1))
    tiny.write_head(head, words, fitted_head(words, weights, n_embd=64, first=259), n_target=64)
    write_state_head(hydra, "hydra", words, fitted_state_head("hydra", words, weights, first=259))
    options: dict[str, dict[str, Any]] = {
        "none": {},
        "lookup": {"draft_model": "lookup"},
        "model": {"draft_model": str(model)},
        "staged": {"draft_model": str(model), "draft_kwargs": {"draft_model": str(smaller)}},
        "head": {"draft_model": str(head)},
        "mtp": {"draft_model": "mtp"},
        "hydra": {"draft_model": str(hydra)},
        "list": {"draft_model": [str(hydra), str(model)]},
    }
    return {kind: _Case(mtp if kind == "mtp" else target, given) for kind, given in options.items()}


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, _Case]:
    return written(tmp_path_factory.mktemp("drafts"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("use", ["close", "close and drop", "exchange"])
@pytest.mark.parametrize("kind", _KINDS)
def test_ctrl_c_at_each_place(cases: dict[str, _Case], kind: str, use: str) -> None:
    """The Llama is used and closed again, writes the text of a fresh one, and nothing is lost."""
    assert interrupted(use, cases[kind].target, ROUNDS or 1_000, **cases[kind].options) > 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("model", "put"),
        ("lookup", "put"),
        *((kind, "open") for kind in _KINDS),
        ("none", "engine"),
        ("model", "engine"),
    ],
)
def test_ctrl_c_while_it_opens(cases: dict[str, _Case], kind: str, use: str) -> None:
    """What was opened before is freed."""
    assert interrupted(use, cases[kind].target, ROUNDS or _FEW, **cases[kind].options) > 20


@pytest.mark.sampled(2)
@pytest.mark.parametrize("use", ["texts", "texts in a row"])
@pytest.mark.parametrize("kind", ["none", "model"])
def test_ctrl_c_among_texts(cases: dict[str, _Case], kind: str, use: str) -> None:
    """It stays a KeyboardInterrupt, and the Llama is usable at once."""
    assert interrupted(use, cases[kind].target, ROUNDS or _FEW, **cases[kind].options) > 10
