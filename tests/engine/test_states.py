"""Teacher forcing: what the target computes for a text that is there already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tiny_models as tiny
from transcribed import forward

from specllama import ContextFullError, Engine
from specllama.engine import Listener, Stopped

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TinyFiles

SMALL: dict[str, Any] = {"n_ctx": 512, "n_threads": 1}
VOCAB = 8
LAYERS = (1, 3)
WEIGHTS: dict[str, Any] = {"n_embd": 32, "n_ff": 32, "n_layer": 4, "sharpness": 1.5, "flat_bias": True}


@pytest.fixture
def target(tmp_path: Path) -> tuple[Path, tiny.Weights]:
    letters = tiny.letter_vocabulary(VOCAB)
    weights = tiny.llama_weights(letters, 3, **WEIGHTS)
    return tiny.write_llama(tmp_path / "target.gguf", letters, weights), weights


def text(count: int) -> list[int]:
    return [1, *np.random.default_rng(count).integers(3, VOCAB, count - 1).tolist()]


@pytest.mark.parametrize("n_batch", [512, 16])
@pytest.mark.parametrize(("count", "first"), [(1, 0), (200, 0), (200, 131), (200, 200), (130, 7)])
def test_they_are_those_of_a_forward_pass(
    target: tuple[Path, tiny.Weights], count: int, first: int, n_batch: int
) -> None:
    """States of every place, and logits of the rows and places that were asked for, in parts that join."""
    path, weights = target
    tokens, rows = text(count), [7, 2, 3]
    logits, states = forward(weights, tokens)
    with Engine.open(path, n_batch=n_batch, shown_layers=LAYERS, **SMALL) as engine:
        parts = list(engine.states(tokens, rows=rows, first_logits=first))
    assert [part.start for part in parts] == np.cumsum([0, *(len(part.hidden) for part in parts)]).tolist()[:-1]
    hidden = np.concatenate([part.hidden for part in parts])
    assert hidden.shape == (count, len(LAYERS), WEIGHTS["n_embd"])
    np.testing.assert_allclose(hidden, np.stack([states[layer] for layer in LAYERS], 1), atol=2e-2)
    places = np.concatenate([np.arange(part.first_logits, part.first_logits + len(part.logits)) for part in parts])
    assert places.tolist() == list(range(first, count))
    np.testing.assert_allclose(np.concatenate([part.logits for part in parts]), logits[first:][:, rows], atol=2e-2)
    whole = np.log(np.exp(logits[first:]).sum(1))
    np.testing.assert_allclose(np.concatenate([part.logsumexp for part in parts]), whole, atol=2e-2)
    best = np.concatenate([part.best for part in parts])
    assert (logits[range(first, count), best] >= logits[first:].max(1, initial=-np.inf) - 4e-2).all()


def test_a_head_has_the_target_show_them(tiny_files: TinyFiles) -> None:
    with Engine.open(tiny_files.letters_deep, tiny_files.letters_head, **SMALL) as engine:
        (part,) = engine.states([1, 3, 4, 5])
        assert part.hidden.shape[:2] == (4, len(tiny.HEAD_LAYERS))
        assert part.logits.shape == (4, 0)


def test_the_memory_is_used_on(tiny_files: TinyFiles) -> None:
    """What was read is in the cache, as after `score`, and a text that begins alike goes on from there."""
    with Engine.open(tiny_files.target, shown_layers=(1,), **SMALL) as engine:
        tokens = engine.tokenize("the cat sat on the dog and")
        expected = list(engine.generate(tokens, max_tokens=8, temperature=0.0))
        list(engine.states([*tokens, 300, 301]))
        assert list(engine.generate(tokens, max_tokens=8, temperature=0.0)) == expected
        assert engine.stats.num_prompt_tokens_reused == len(tokens) - 1


@pytest.mark.parametrize("layers", [(0,), (2,), (1, -2)])
def test_layers_that_are_not_there_are_refused(tiny_files: TinyFiles, layers: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="of the layers 1 to 1"):
        Engine.open(tiny_files.target, shown_layers=layers, **SMALL)


def test_layers_beside_a_head_are_refused(tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="cannot be had beside a head"):
        Engine.open(tiny_files.letters_deep, tiny_files.letters_head, shown_layers=(1,), **SMALL)


def test_a_target_that_shows_nothing_says_so(tiny_files: TinyFiles) -> None:
    with Engine.open(tiny_files.target, **SMALL) as engine, pytest.raises(ValueError, match="shows no states"):
        list(engine.states([1, 300]))


@pytest.mark.parametrize("wrong", [{"tokens": [1, 99_999]}, {"tokens": [1], "rows": [-1]}])
def test_what_is_no_token_is_refused(tiny_files: TinyFiles, wrong: dict[str, Any]) -> None:
    with (
        Engine.open(tiny_files.target, shown_layers=(1,), **SMALL) as engine,
        pytest.raises(ValueError, match="is out of range"),
    ):
        list(engine.states(**wrong))


def test_a_listener_ends_it(tiny_files: TinyFiles) -> None:
    class Second(Listener):
        heard = 0

        def poll(self) -> None:
            self.heard += 1
            if self.heard == 2:
                raise Stopped

    with Engine.open(tiny_files.target, shown_layers=(1,), **SMALL) as engine:
        parts = engine.states([300] * 300, listener=Second())
        assert next(parts).start == 0
        with pytest.raises(Stopped):
            next(parts)
        assert len(list(engine.generate([300] * 5, max_tokens=3))) == 3


def test_a_text_longer_than_the_context_is_refused(tiny_files: TinyFiles) -> None:
    with Engine.open(tiny_files.target, shown_layers=(1,), **SMALL) as engine:
        parts = engine.states([300] * 600)
        with pytest.raises(ContextFullError, match="context is full"):
            list(parts)
