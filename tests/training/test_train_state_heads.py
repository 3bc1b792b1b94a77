"""Medusa, Hydra and blockwise heads that `specllama train-draft` makes: each step on a tiny model."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
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
from test_state_heads import headed
from test_train_draft import DRIVER, OPTIONS, Interrupting, texts_of
from training import Steps, drafted, steps
from training_driver import BUDGET, Heard
from transcribed import forward

import specllama
from specllama import cli
from specllama.evidence.draft_pays import Gain
from specllama.models.heads import read_head
from specllama.models.state_head_file import StateHeadFile
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
    return steps(tiny_files.letters_deep, folder, 2000, lambda *_: VOCAB - 2, epochs=6, kind=request.param)


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    """In a folder of its own."""
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny_files.deep, path)
    return path


def test_it_is_right_more_often_than_before(made: Steps) -> None:
    assert made.after.greedy[0] > made.before.greedy[0] + 0.2
    assert made.after.sampled[0] > made.before.sampled[0] + 0.1
    assert made.after.length > made.before.length + 0.2


def test_the_engine_drafts_what_the_trainer_computes(tiny_files: TinyFiles, made: Steps, letters: tiny.Weights) -> None:
    """Of the file: states, tokens and places as in training, also behind rejections.

    Where the memory has the whole prompt, the head begins one round later: so the first token comes alone.
    """

    def draft(history: list[int], count: int) -> list[int]:
        final = forward(letters, history[:-1])[1][-1]
        return drafted(made.head, made.rows, letters["token_embd.weight"], final, history, count)

    engine, oracle = headed(tiny_files.letters_deep, made.path), Engine(tiny_files.letters_deep)
    oracle.draft_by(draft)
    found, expected = (loop.greedy_rounds(VOCAB, GAMMA, 4, first_alone=True) for loop in (engine, oracle))
    engine.close()
    oracle.close()
    assert found == expected
    assert {accepted for accepted, _ in found} >= {0, 1, 2}


def test_the_file_says_for_whom_it_is(made: Steps) -> None:
    reader = gguf.GGUFReader(made.path)
    said = {name: field.contents() for name, field in reader.fields.items()}
    assert said["specllama.target.vocabulary"] == made.target.vocabulary
    assert said["specllama.target.weights"] == made.target.weights
    assert said["specllama.acceptance.greedy"] == pytest.approx(made.after.greedy)
    head = read_head(made.path)
    assert isinstance(head, StateHeadFile)
    assert said["general.architecture"] == f"specllama-{head.kind}"
    assert (head.num_places, head.hidden_size) == (3, LETTERS["n_embd"])
    assert head.tokens().tolist() == made.rows.tolist()
    output = next(tensor.data for tensor in reader.tensors if tensor.name == "output.weight")
    np.testing.assert_allclose(output, made.target.output_rows(made.rows), atol=1e-6)


def test_what_is_stored_of_a_token_is_the_final_state_alone(made: Steps) -> None:
    batch = next(iter(made.batches.held_out()))
    assert batch.states.shape[-1] == LETTERS["n_embd"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("kind", KINDS)
def test_the_command(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """From a GGUF alone to a head beside it that ``auto`` takes if it is faster. The texts stay those of the model."""

    def gain_of(llm: specllama.Llama, *_: object) -> Gain:
        return Gain(1.1 if llm.draft_model == "lookup" else 2.0, 0.02, 0.5, 1.0)

    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", gain_of)
    assert cli.main(["train-draft", str(model), *OPTIONS, "--kind", kind]) == 0
    out, err = capsys.readouterr()
    head = model.with_name(f"{kind}-model.gguf")
    assert out == f"{head}\n"
    assert "right on text it has not seen" in err
    assert "times as fast as plain decoding" in err
    settings = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    found = []
    for draft in ("auto", None):
        llm = specllama.Llama(str(model), draft_model=draft, **settings)
        assert llm.draft_model == (str(head) if draft else None)
        found.append(
            llm.create_completion("the cat", max_tokens=40, temperature=0.0, num_draft_tokens=3 if draft else 0)
        )
        if draft:
            assert llm.stats.per_drafter["state_head"].num_accepted_tokens > 0
        llm.close()
    assert found[0]["choices"][0]["text"] == found[1]["choices"][0]["text"]


def test_kinds_of_one_model_do_not_spoil_each_other(model: Path, cache: Path) -> None:
    """The text is written once for all. One that was interrupted goes on behind another one, where it was."""
    with (
        pytest.raises(KeyboardInterrupt),
        trained(model, BUDGET, kind="hydra", threads=1, progress=Interrupting("training")),
    ):
        pass
    texts = texts_of(cache)
    heard = Heard("never")
    with trained(model, BUDGET, kind="medusa", threads=1, progress=heard) as other:
        other.keep("Q8_0")
    assert heard.first["states"] < 0.5, "it reads states of its own"
    now = texts_of(cache)
    assert {text.index: text for text in now}.items() >= {text.index: text for text in texts}.items()
    heard = Heard("never")
    with trained(model, BUDGET, kind="hydra", threads=1, progress=heard) as made:
        made.keep("Q4_0")
    assert "text" not in heard.first
    assert "states" not in heard.first
    assert heard.first["training"] >= 0.3
    for kind in ("hydra", "medusa"):
        head = read_head(model.with_name(f"{kind}-model.gguf"))
        assert isinstance(head, StateHeadFile)
        assert head.kind == kind
    left = [name for name in faults.files_below(cache / "training") if not name.endswith(".jsonl")]
    assert left == [f"{made.weights}.lock"]


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_killed_while_it_trains(model: Path, cache: Path) -> None:
    """The process has no last word, and the next one goes on with its text and its states."""

    def run(step: str) -> subprocess.CompletedProcess[str]:
        return faults.finished([sys.executable, str(DRIVER), str(model), step, "hydra"])

    assert run("training").returncode == -signal.SIGKILL
    done = run("never")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout).keys() == {"training"}
    head = read_head(model.with_name("hydra-model.gguf"))
    assert isinstance(head, StateHeadFile)
    assert head.kind == "hydra"


def test_an_output_that_both_kinds_were_asked_for(model: Path, cache: Path, tmp_path: Path) -> None:
    """Another kind is another training, whatever else is alike."""
    path = tmp_path / "head.gguf"
    for kind in ("medusa", "blockwise"):
        with (
            pytest.raises(KeyboardInterrupt),
            trained(model, BUDGET, kind=kind, output=path, threads=1, progress=Interrupting("states")),
        ):
            pass
    assert len([*(cache / "training").glob("*/states")]) == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (["--kind", "medusa", "--from", "MODEL"], "only an EAGLE-3 head can be trained further"),
        (["--kind", "x"], "invalid choice"),
    ],
)
def test_what_cannot_be_asked_for(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], wrong: list[str], said: str
) -> None:
    line = [str(model) if one == "MODEL" else one for one in wrong]
    try:
        code = cli.main(["train-draft", str(model), *OPTIONS, *line])
    except SystemExit as error:
        code = error.code
    assert code
    assert said in capsys.readouterr().err


def test_a_kind_that_there_is_not(model: Path, cache: Path) -> None:
    with (
        pytest.raises(ValueError, match="--kind tree is none of eagle3, medusa, hydra, blockwise"),
        trained(model, BUDGET, kind="tree"),
    ):
        pass
