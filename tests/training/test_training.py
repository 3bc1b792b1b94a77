"""`specllama.training`: each step on a tiny model, and what the engine makes of the head."""

from __future__ import annotations

import dataclasses
import os
import types
from typing import TYPE_CHECKING, Any, cast

import gguf
import numpy as np
import pytest
import tiny_models as tiny
from engine import Engine
from needed import imported

imported("torch")  # first: else what is missing is said by another import
import torch
from heads import Headed
from test_heads import LETTERS, VOCAB
from training import Steps, drafted, steps
from transcribed import Eagle, forward

import specllama
from specllama import _core
from specllama.models.eagle3_file import Eagle3File
from specllama.models.heads import head_beside, read_head
from specllama.training.batches import Batch
from specllama.training.file import write_head
from specllama.training.head import EagleHead
from specllama.training.loss import loss_of
from specllama.training.optimizer import Muon
from specllama.training.start import read_further
from specllama.training.target import read_target
from specllama.training.torch_here import use_threads

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import TinyFiles

    from specllama.training.head import Learner

GAMMA = 3
N_CTX: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


@pytest.fixture(scope="module")
def letters() -> tiny.Weights:
    return tiny.llama_weights(tiny.letter_vocabulary(VOCAB), 1, **LETTERS)


@pytest.fixture(scope="module")
def trained(tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Steps:
    """A head for the model of letters that says all but two of them."""
    return steps(tiny_files.letters_deep, tmp_path_factory.mktemp("training"), 3000, lambda *_: VOCAB - 2)


def test_it_is_right_more_often_than_before(trained: Steps) -> None:
    assert trained.after.greedy[0] > trained.before.greedy[0] + 0.2
    assert trained.after.sampled[0] > trained.before.sampled[0] + 0.1
    assert trained.after.places > 100
    assert 0.0 < trained.after.length < 3.0


@pytest.mark.parametrize("first_alone", [False, True])
def test_the_engine_drafts_what_the_trainer_computes(
    tiny_files: TinyFiles, trained: Steps, letters: tiny.Weights, first_alone: bool
) -> None:
    """Of the file: tokens, states and places as in training, also in the steps with the head's own states."""

    def draft(history: list[int], count: int) -> list[int]:
        states = forward(letters, history[:-1])[1]
        read = np.concatenate([states[layer] for layer in trained.target.layers], -1)
        return drafted(trained.head, trained.rows, letters["token_embd.weight"], read, history, count)

    engine, oracle = Headed(tiny_files.letters_deep, trained.path, _core.Drafter.head), Engine(tiny_files.letters_deep)
    oracle.draft_by(draft)
    found, expected = (loop.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone) for loop in (engine, oracle))
    engine.close()
    oracle.close()
    assert found == expected
    assert {accepted for accepted, _ in found} == {0, 1, 2, 3}


def test_its_logits_are_those_of_the_paper(trained: Steps, letters: tiny.Weights) -> None:
    """The module against a transcription in NumPy, which is llama.cpp's graph by another test."""
    reader = gguf.GGUFReader(trained.path)
    weights = {
        tensor.name: np.array(tensor.data).reshape(tensor.shape[::-1])
        for tensor in reader.tensors
        if tensor.name != "d2t"
    }
    weights["token_embd.weight"] = letters["token_embd.weight"]
    tokens = [1, *np.random.default_rng(5).integers(3, VOCAB, 40).tolist()]
    states = forward(letters, tokens)[1]
    eagle = Eagle(weights, trained.target.layers)
    expected = eagle(tokens[1:], eagle.read(states)[:-1])[0]
    read = np.concatenate([states[layer] for layer in trained.target.layers], -1)[:-1]
    with torch.no_grad():
        embedded = torch.from_numpy(letters["token_embd.weight"][tokens[1:]])[None]
        found = trained.head.logits(
            trained.head(embedded, trained.head.read(torch.from_numpy(read).float()[None]), 1)[0]
        )
    np.testing.assert_allclose(found[0].numpy(), expected, atol=2e-3)


def test_what_it_says_was_counted(trained: Steps) -> None:
    """The tokens that the target writes most, by the target's numbers."""
    counts = np.bincount([token for text in trained.texts for token in text.tokens[text.start :]], minlength=VOCAB)
    left_out = sorted({*range(VOCAB)} - {*trained.rows.tolist()})
    assert counts[left_out].max() <= counts[trained.rows].min()
    head = read_head(trained.path)
    assert isinstance(head, Eagle3File)
    assert head.tensors["d2t"].shape == (VOCAB - 2,)
    assert head.layers == trained.target.layers == (1, 2, 3)


def test_the_file_says_for_whom_it_is(trained: Steps) -> None:
    fields = gguf.GGUFReader(trained.path).fields
    said = {name: field.contents() for name, field in fields.items() if name.startswith("specllama.")}
    assert said["specllama.target.vocabulary"] == trained.target.vocabulary
    assert said["specllama.target.weights"] == trained.target.weights
    assert said["specllama.target.block_count"] == LETTERS["n_layer"]
    assert said["specllama.acceptance.greedy"] == pytest.approx(trained.after.greedy)
    assert "train-draft" in fields["general.author"].contents()


def test_held_out_texts_are_greedy(tiny_files: TinyFiles, trained: Steps) -> None:
    """And a text is what the target wrote, token by token."""
    with specllama.Engine.open(tiny_files.letters_deep, n_ctx=512, n_threads=1) as engine:
        held_out = [text for text in trained.texts if text.is_held_out]
        for text in held_out[:3]:
            expected = list(engine.generate(text.tokens[: text.start], max_tokens=text.size, temperature=0.0))
            assert text.tokens[text.start :] == expected[: text.size]
        assert held_out


@pytest.mark.parametrize("norm_before_residual", [False, True])
def test_what_it_starts_from_is_what_the_file_has(
    tiny_files: TinyFiles, trained: Steps, tmp_path: Path, norm_before_residual: bool
) -> None:
    """Sizes, tokens and weights: the head that comes out of the file again says the same."""
    if norm_before_residual:
        shape = dataclasses.replace(trained.head.shape, norm_before_residual=True)
        head = EagleHead(shape, trained.head.sizes, trained.head.output)
        head.load_state_dict(trained.head.state_dict())
    else:
        head = trained.head
    path = write_head(
        tmp_path / "head.gguf", trained.target, head, trained.rows, "F32", acceptance=trained.after, num_tokens=1
    )
    start = read_further(str(path), trained.target)
    assert start.target.layers == trained.target.layers
    assert start.rows.tolist() == trained.rows.tolist()
    again = start.build(trained.rows, torch.full_like(head.sizes, 3.0), 1.0)
    batch = next(iter(trained.batches.held_out()))
    with torch.no_grad():
        found, expected = (
            [one.logits(x) for x in one(batch.embedded, one.read(batch.states), 3)] for one in (again, head)
        )
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-3)
        if norm_before_residual:
            plain = trained.head(batch.embedded, trained.head.read(batch.states), 1)[0]
            assert not np.allclose(trained.head.logits(plain), expected[0], atol=2e-2)


@pytest.mark.parametrize(
    ("changed", "n_embd", "without", "said"),
    [
        ({"norm_before_fc": 1}, 32, ["token_embd.weight"], "norms the states"),
        ({"rope.dimension_count": 4}, 32, ["token_embd.weight"], "scaled or partial RoPE"),
        ({}, 32, [], "token embeddings of its own"),
        ({}, 64, [], "token embeddings of its own"),
        ({}, 64, ["token_embd.weight"], "for another target"),
        ({}, 32, ["token_embd.weight", "blk.0.attn_q.weight"], "damaged"),
    ],
)
def test_heads_that_cannot_be_trained_further(
    tiny_files: TinyFiles, tmp_path: Path, changed: dict[str, int], n_embd: int, without: list[str], said: str
) -> None:
    """What the trainer would compute otherwise than llama.cpp is refused."""
    words = tiny.word_vocabulary()
    weights = tiny.head_weights(words, 1, n_target=32, n_embd=n_embd)
    path = tiny.write_head(
        tmp_path / "head.gguf",
        words,
        {name: weight for name, weight in weights.items() if name not in without},
        changed=changed,
    )
    with pytest.raises(ValueError, match=said):
        read_further(str(path), read_target(str(tiny_files.deep)))


def test_auto_finds_it(tiny_files: TinyFiles, trained: Steps, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(tiny_files.letters_deep.read_bytes())
    llm = specllama.Llama(str(target), draft_model="auto", **N_CTX)
    assert llm.draft_model == "lookup"
    llm.close()
    head = tmp_path / "eagle3-model.gguf"
    head.write_bytes(trained.path.read_bytes())
    llm = specllama.Llama(str(target), draft_model="auto", **N_CTX)
    assert llm.draft_model == str(head)
    llm.create_completion([1, 3, 4], max_tokens=40, temperature=0.0, num_draft_tokens=2)
    assert llm.stats.per_drafter["head"].num_accepted_tokens > 0
    llm.close()


@pytest.mark.parametrize("kind", ["dflash-", "dspark-", "mtp-"])
def test_auto_finds_other_heads_first(tiny_files: TinyFiles, tmp_path: Path, kind: str) -> None:
    """In the order in which llama.cpp looks for them."""
    target = tmp_path / "model.gguf"
    target.write_bytes(tiny_files.deep.read_bytes())
    for name in ("eagle3-", kind):
        (tmp_path / f"{name}model.gguf").write_bytes(tiny_files.deep_block.read_bytes())
    llm = specllama.Llama(str(target), draft_model="auto", **N_CTX)
    assert llm.draft_model == str(tmp_path / f"{kind}model.gguf")
    llm.close()


def test_auto_leaves_out_a_head_for_another_model(tiny_files: TinyFiles, trained: Steps, tmp_path: Path) -> None:
    target = tmp_path / "model.gguf"
    target.write_bytes(tiny_files.deep.read_bytes())
    (tmp_path / "eagle3-model.gguf").write_bytes(trained.path.read_bytes())
    with pytest.warns(UserWarning, match=r"'auto' leaves eagle3-model\.gguf out: the head .* is for another target"):
        llm = specllama.Llama(str(target), draft_model="auto", **N_CTX)
    assert llm.draft_model == "lookup"
    llm.close()
    llm = specllama.Llama(str(target), draft_model="auto", **N_CTX)  # said once
    assert llm.draft_model == "lookup"
    llm.close()


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_a_target_is_read_from_its_file(tmp_path: Path, kind: str) -> None:
    """Embeddings and rows of the output matrix, in any type, and of a model in several files."""
    vocabulary = tiny.word_vocabulary()
    weights = tiny.llama_weights(vocabulary, 4, n_layer=8)
    names = ("token_embd.weight", "output.weight")
    whole = tiny.write_llama(tmp_path / "model.gguf", vocabulary, weights, dict.fromkeys(names, kind))
    tokens = np.array([300, 5, 300, 0])
    for path in (whole, tiny.split(whole, tmp_path)):
        target = read_target(str(path))
        found = (target.embeddings(tokens), target.output_rows(tokens))
        for name, rows in zip(names, found, strict=True):
            np.testing.assert_allclose(rows, weights[name][tokens], atol=0.05)
        assert target.layers == (2, 4, 5)
        assert (target.n_head, target.n_head_kv, target.head_size) == (4, 2, 8)
        assert target.vocabulary == read_target(str(whole)).vocabulary


def test_where_a_head_is_looked_for() -> None:
    """By the name that llama.cpp looks for."""
    assert head_beside(os.path.join("models", "one.gguf")) == os.path.join("models", "eagle3-one.gguf")
    assert head_beside("one-00001-of-00003.gguf") == "eagle3-one.gguf"


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize("shape", [(24, 24), (24, 34), (24, 40), (24, 96), (40, 24), (96, 24)])
def test_muon_has_all_directions_learn_alike(
    shape: tuple[int, int], low: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One step moves a matrix by nearly an orthogonal one, whatever its gradient and its shape."""
    monkeypatch.setattr("specllama.training.optimizer.computes_bfloat16", lambda _: low)
    rng = torch.Generator().manual_seed(1)
    weight = torch.nn.Parameter(torch.zeros(shape))
    rows, columns = (torch.linalg.qr(torch.randn(size, size, generator=rng))[0][:, :24] for size in shape)
    weight.grad = rows * torch.logspace(0, -1.5, 24) @ columns.T
    Muon([weight], lr=0.1, weight_decay=0.0).step()
    moved = -weight.detach() / 0.1 / max(1.0, shape[0] / shape[1]) ** 0.5
    sizes = torch.linalg.svdvals(moved)
    assert 0.3 < sizes.min() <= sizes.max() < 1.3
    along = (rows * (moved @ columns)).sum(0)
    # in the gradient's directions
    assert torch.allclose(along.sort().values, sizes.sort().values, atol=3e-2 if low else 1e-3)


@pytest.mark.parametrize("places", [1, 40, 700])
def test_the_loss_and_its_gradient_are_those_of_the_cross_entropy(places: int) -> None:
    """Against autograd of the definition, for fewer places than are computed together, and for more."""
    rng = torch.Generator().manual_seed(places)
    n_rows, n_embd, k = 50, 8, 4
    output = torch.randn(n_rows, n_embd, generator=rng)
    likely = torch.rand(1, places, n_rows, generator=rng).topk(k).indices
    shares = torch.rand(1, places, k, generator=rng) / k
    states = [torch.randn(1, places, n_embd, generator=rng, requires_grad=True) for _ in range(2)]
    learned = torch.rand(1, places, generator=rng) < 0.8
    unused = torch.zeros(1, places)

    def by_step(_: Batch, step: int) -> torch.Tensor:
        return learned & (torch.arange(places) >= step)

    head = types.SimpleNamespace(output=output, learned_steps=2, drafted=lambda *_: states, learned=by_step)
    batch = Batch(unused, unused, unused, likely, shares, unused, unused, learned)
    expected = torch.zeros(())
    for step, state in enumerate(states):
        counted = by_step(batch, step)
        logits = (state @ output.T).log_softmax(-1).gather(-1, likely)
        expected = expected - (shares * logits).sum(-1)[counted].sum() / max(1, int(counted.sum())) / 2
    wanted = torch.autograd.grad(expected, states)
    found = loss_of(cast("Learner", head), batch)
    assert found.item() == pytest.approx(expected.item(), abs=1e-5)
    for one, other in zip(torch.autograd.grad(found, states), wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(("limit", "expected"), [("1", 1), ("2", 2), ("8", 3), ("", 3)])
def test_threads_are_at_most_those_that_openmp_gives(
    limit: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more of them PyTorch would leave parts of its products as they were in memory."""
    before = torch.get_num_threads()
    monkeypatch.setenv("OMP_THREAD_LIMIT", limit)
    try:
        use_threads(3)
        assert torch.get_num_threads() == expected
    finally:
        torch.set_num_threads(before)
