"""Medusa, Hydra and blockwise heads that `specllama train-draft` makes: each step on a tiny model."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import faults
import gguf
import numpy as np
import pytest
import tiny_models as tiny
from engine import Engine
from needed import imported

imported("torch")  # first: else what is missing is said by another import
from state_heads import KINDS
from test_heads import LETTERS, VOCAB
from test_state_heads import Headed
from test_train_draft import OPTIONS, Interrupting, texts_of
from training import Steps, drafted, steps
from training_driver import BUDGET, Heard
from transcribed import forward

import specllama
from specllama import cli
from specllama.models.state_head_file import read_state_head
from specllama.training.train import trained

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TinyFiles

GAMMA = 3


@pytest.fixture(scope="module")
def letters() -> tiny.Weights:
    return tiny.llama_weights(tiny.letter_vocabulary(VOCAB), 1, **LETTERS)


@pytest.fixture(scope="module", params=KINDS)
def made(request: pytest.FixtureRequest, tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """A head of each kind for the model of letters, that says all but two of them."""
    folder = tmp_path_factory.mktemp("training")
    return steps(tiny_files.letters_deep, folder, 3000, lambda *_: VOCAB - 2, kind=request.param)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    """In a folder of its own."""
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny_files.deep, path)
    return path


def test_it_is_right_more_often_than_before(made: Steps) -> None:
    print(made.before, made.after)
    assert made.after.greedy[0] > made.before.greedy[0] + 0.2
    assert made.after.sampled[0] > made.before.sampled[0] + 0.1
    assert made.after.length > made.before.length + 0.2


@pytest.mark.parametrize("first_alone", [True])
def test_the_engine_drafts_what_the_trainer_computes(
    tiny_files: TinyFiles, made: Steps, letters: tiny.Weights, first_alone: bool
) -> None:
    """Of the file: states, tokens and places as in training, also behind rejections."""

    def draft(history: list[int], count: int) -> list[int]:
        final = forward(letters, history[:-1])[1][-1]
        return drafted(made.head, made.rows, letters["token_embd.weight"], final, history, count)

    engine, oracle = Headed(tiny_files.letters_deep, made.path), Engine(tiny_files.letters_deep)
    oracle.draft_by(draft)
    found, expected = (loop.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone) for loop in (engine, oracle))
    engine.close()
    oracle.close()
    assert found == expected
    print({accepted for accepted, _ in found})
    assert {accepted for accepted, _ in found} >= {0, 1, 2}


def test_its_states_are_the_final_ones_alone(made: Steps) -> None:
    batch = next(iter(made.batches.held_out()))
    assert batch.states.shape[-1] == LETTERS["n_embd"]
