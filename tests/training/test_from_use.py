"""A head that learns from what was kept while its model was used, and the command that shows and forgets this."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("torch")
import numpy as np
import torch
from test_train_draft import Interrupting
from training_driver import Heard

import specllama
from specllama import cli
from specllama.engine import KeptFile, kept_files, learn_dir, learned_head, num_kept, read_kept
from specllama.models.heads import read_head
from specllama.models.state_head_file import StateHeadFile
from specllama.training import from_use
from specllama.training.from_use import Used
from specllama.training.learn import Continued, learn
from specllama.training.shards import examples, shard_paths, write_examples
from specllama.training.target import read_target
from specllama.training.text import held_out, read_texts
from specllama.training.train import Budget, trained

if TYPE_CHECKING:
    from conftest import TinyFiles

WORDS = ("the", "a", "dog", "fox", "cat", "it", "is", "in", "of", "on")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECLLAMA_CACHE", str(folder))
    return folder


def kept_of(model: Path) -> list[KeptFile]:
    return kept_files(learn_dir(read_target(str(model)).weights))


def use(model: Path, numbers: range) -> None:
    """Conversations of two turns, with ``learn=True``."""
    with specllama.Llama(str(model), n_ctx=512, n_threads=1, n_threads_batch=1, learn=True, verbose=False) as llm:
        for number in numbers:
            text = f"{WORDS[number % 10]} quick {WORDS[number // 10 % 10]} fox"
            for _ in range(2):
                text += llm.create_completion(text, max_tokens=30, temperature=0.8, seed=number)["choices"][0]["text"]


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path, cache: Path) -> Path:
    """In a folder of its own, after 30 conversations."""
    path = Path(shutil.copyfile(tiny_files.deep, tmp_path / "model.gguf"))
    use(path, range(30))
    return path


def test_it_learns_from_what_was_kept_and_nothing_is_written(model: Path, cache: Path) -> None:
    count = num_kept(kept_of(model))
    assert count > 1500
    heard = Heard("never")
    with trained(model, Budget(tokens=count), kind="hydra", from_use=True, threads=1, progress=heard) as made:
        path = made.keep("Q8_0")
    assert "text" not in heard.first
    assert "states" not in heard.first
    assert not [*(cache / "training").glob("*.jsonl")]
    assert isinstance(read_head(path), StateHeadFile)
    assert made.num_tokens > 0.7 * count
    assert made.greedy[0] > 0.05  # of words that are guessed, 1 in 300 is right
    assert num_kept(kept_of(model)) == count
    with specllama.Llama(str(model), draft_model=str(path), n_ctx=512, learn=True, verbose=False) as llm:
        llm.create_completion("the quick dog", max_tokens=40)
        assert llm.stats.num_draft_tokens > 0


def test_the_model_writes_what_lacks(model: Path, cache: Path) -> None:
    count = num_kept(kept_of(model))
    budget = Budget(tokens=count + 300, answer=32, parallel=2)
    with trained(model, budget, kind="medusa", from_use=True, threads=1) as made:
        assert made.num_tokens > 0.7 * count
    (written,) = (cache / "training").glob("*.jsonl")
    assert sum(text.size for text in read_texts(written)) >= 300


def test_what_is_learned_is_what_was_kept(model: Path, tmp_path: Path) -> None:
    """Turns of a conversation are held out together. A token that the head cannot draft has no share."""
    target = read_target(str(model))
    used = Used(tmp_path / "used")
    used.copy(kept_of(model))
    used.copy(kept_of(model))
    files = kept_of(model)
    texts = used.texts()
    assert len(texts) == len(files) == 60
    by_conversation: dict[str, set[bool]] = {}
    for file, text in zip(files, texts, strict=True):
        by_conversation.setdefault(file.name.conversation, set()).add(held_out(text.index))
    assert len(by_conversation) == 30
    assert all(len(found) == 1 for found in by_conversation.values())
    assert {held_out(text.index) for text in texts} == {True, False}
    rows = np.arange(0, target.n_vocab, 2)
    write_examples(used.examples(rows, target.n_vocab), tmp_path / "shards")
    write_examples(used.examples(rows, target.n_vocab), tmp_path / "shards")
    found = dict(example for path in shard_paths(tmp_path / "shards") for example in examples(path))
    assert found.keys() == {text.index for text in texts}
    for file, text in zip(files, texts, strict=True):
        kept, example = read_kept(file.path), found[text.index]
        assert kept is not None
        assert example.tokens.tolist() == text.tokens[text.start - 1 :][: len(example.tokens)]
        assert np.array_equal(example.states[:, 0], kept.states)
        can_draft = kept.likely % 2 == 0
        assert np.array_equal(rows[example.likely][can_draft], kept.likely[can_draft])
        assert np.array_equal(example.shares, np.where(can_draft, kept.shares, 0))
        assert np.array_equal(example.best, np.where(can_draft[:, 0], kept.likely[:, 0] // 2, -1))


def test_a_copy_that_is_repeated_has_no_text_twice(model: Path, tmp_path: Path) -> None:
    """Though the oldest text is gone meanwhile, and others came."""
    used, files = Used(tmp_path / "used"), kept_of(model)
    used.copy(files[:40])
    used.copy(files[1:])
    assert len(used.texts()) == len(used.names()) == 60


def test_other_kinds_and_other_models_do_not(model: Path, tiny_files: TinyFiles) -> None:
    message = r"--from-use has the final states .* of the kind eagle3"
    with pytest.raises(ValueError, match=message), trained(model, Budget(tokens=500), from_use=True):
        pass
    assert num_kept(kept_of(tiny_files.target)) == 0
    assert cli.main(["train-draft", str(tiny_files.target), "--from-use"]) == 2


def test_copies_where_there_are_no_links(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(from_use.os, "link", refused)
    used = Used(tmp_path / "used")
    used.copy(kept_of(model))
    assert len(used.texts()) == 60


# Learning now


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A head is learned from few tokens."""
    monkeypatch.setattr("specllama.engine.learned.FIRST", 1000)
    monkeypatch.setattr("specllama.engine.learned.NEXT", 300)


def weights_of(model: Path) -> str:
    return read_target(str(model)).weights


@pytest.mark.usefixtures("soon")
def test_a_head_goes_on_learning(model: Path, cache: Path) -> None:
    assert learned_head(weights_of(model)) is None
    first = learn(model)
    assert learned_head(weights_of(model)) == first
    assert isinstance(read_head(first.path), StateHeadFile)
    assert first.num_tokens == num_kept(one for one in kept_of(model) if not one.name.is_held_out)
    with pytest.raises(ValueError, match="0 tokens to learn were kept since the last time, and 300 are needed"):
        learn(model)
    use(model, range(30, 50))
    second = learn(model)
    assert second.path == first.path
    assert second.num_tokens == num_kept(one for one in kept_of(model) if not one.name.is_held_out)
    assert second.texts == {one.name.text for one in kept_of(model)}
    assert second.at > first.at
    with specllama.Llama(str(model), draft_model=str(second.path), n_ctx=512, verbose=False) as llm:
        llm.create_completion("the quick dog", max_tokens=40)
        assert llm.stats.num_draft_tokens > 0
    assert second.greedy[0] > 0.05  # of words that are guessed, 1 in 300 is right
    assert [path.name for path in (cache / "training").iterdir() if path.is_dir()] == []


@pytest.mark.usefixtures("soon")
def test_it_goes_on_from_the_head_and_keeps_it_where_it_is_better(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With learning rates that ruin it, the head stays as it was. (Huge ones may find the most frequent word.)"""
    learn(model)
    before = torch.load(learn_dir(weights_of(model)) / "head.pt", weights_only=True)
    monkeypatch.setattr(Continued, "rate", float("nan"))
    use(model, range(30, 50))
    learn(model)
    after = torch.load(learn_dir(weights_of(model)) / "head.pt", weights_only=True)
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.usefixtures("soon")
def test_an_interrupted_one_goes_on_with_its_texts(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyboardInterrupt):
        learn(model, progress=Interrupting("training"))
    assert learned_head(weights_of(model)) is None
    had = {one.name.text for one in kept_of(model)}
    use(model, range(30, 50))
    assert learn(model).texts == had


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("left", ["session.json", "checkpoint.pt", "states", "used"])
def test_what_a_killed_one_has_left_in_part(model: Path, cache: Path, left: str) -> None:
    """While it deleted what it had learned from: that is nothing to go on with."""
    with pytest.raises(KeyboardInterrupt):
        learn(model, progress=Interrupting("training"))
    (work,) = (path for path in (cache / "training").iterdir() if path.is_dir())
    for path in work.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    use(model, range(30, 50))
    assert learn(model).texts == {one.name.text for one in kept_of(model)}


@pytest.mark.usefixtures("soon")
def test_forgetting_in_the_midst_of_learning(model: Path, cache: Path) -> None:
    """Copies and what was learned from them go, too, and what killed processes have not written to the end."""
    with pytest.raises(KeyboardInterrupt):
        learn(model, progress=Interrupting("training"))
    folder = learn_dir(weights_of(model))
    (folder / ".head.pt.1-ab.partial").touch()
    assert cli.main(["learn", str(model), "--forget"]) == 0
    assert [path.name for path in (cache / "training").iterdir() if path.is_dir()] == []
    assert {path.name for path in folder.iterdir()} <= {"learner.lock"}


@pytest.mark.usefixtures("soon")
def test_a_damaged_record_is_no_head(model: Path) -> None:
    learn(model)
    about = learn_dir(weights_of(model)) / "head.json"
    whole = json.loads(about.read_text())
    for changed in ({"greedy": 1}, {"path": "gone"}, {"version": 0}, {"texts": None}):
        about.write_text(json.dumps({**whole, **changed}))
        assert learned_head(weights_of(model)) is None
    for damaged in ("", "[]", "{}"):
        about.write_text(damaged)
        assert learned_head(weights_of(model)) is None
    about.write_text(json.dumps(whole))
    weights = about.with_name("head.pt")
    weights.write_bytes(weights.read_bytes()[:1000])
    heard = Heard("never")
    assert learn(model, progress=heard).num_tokens == whole["num_tokens"]
    assert any("a new head begins" in note for note in heard.notes)


def test_too_little_is_said(model: Path) -> None:
    with pytest.raises(ValueError, match="tokens to learn were kept so far, and 20000 are needed"):
        learn(model)


# The command


def shown(model: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    assert cli.main(["learn", str(model), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_learn_shows_and_forgets(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = shown(model, capsys)
    assert found["num_answers"] == 60
    assert found["num_tokens"] == num_kept(kept_of(model))
    first = found["conversations"][0]
    assert (first["num_answers"], first["begins"][:13]) == (2, "the quick the")
    assert cli.main(["learn", str(model)]) == 0
    table = capsys.readouterr().out.splitlines()
    assert len(table) == 32
    assert first["name"] in table[1] and "the quick the" in table[1]
    assert cli.main(["learn", str(model), "--forget", first["name"]]) == 0
    assert "deleted 2 answers" in capsys.readouterr().err
    assert [one["name"] for one in shown(model, capsys)["conversations"]] == [
        one["name"] for one in found["conversations"][1:]
    ]
    assert cli.main(["learn", str(model), "--forget", first["name"]]) == 2
    assert "no kept conversation" in capsys.readouterr().err
    assert cli.main(["learn", str(model), "--forget"]) == 0
    assert shown(model, capsys)["conversations"] == []
    assert cli.main(["learn", str(model)]) == 0
    assert "nothing is kept" in capsys.readouterr().err


@pytest.mark.usefixtures("soon")
def test_learn_now(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(model, capsys)["draft"] is None
    assert cli.main(["learn", str(model), "--now"]) == 0
    out, err = capsys.readouterr()
    path = Path(out.strip())
    assert isinstance(read_head(path), StateHeadFile)
    assert "a draft has learned from" in err
    assert shown(model, capsys)["draft"]["path"] == str(path)
    assert cli.main(["learn", str(model)]) == 0
    assert f"It is used by draft_model={str(path)!r}" in capsys.readouterr().err
    assert cli.main(["learn", str(model), "--now"]) == 1
    assert cli.main(["learn", str(model), "--forget"]) == 0
    assert [one.name for one in path.parent.iterdir()] == ["learner.lock"]


def test_generate_learns(tiny_files: TinyFiles, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["generate", "-m", str(tiny_files.deep), "-p", "the quick fox", "-n", "20", "-t", "1", "-c", "512"]
    assert cli.main([*command, "--learn"]) == 0
    said, folder = capsys.readouterr().err, learn_dir(read_target(str(tiny_files.deep)).weights)
    assert f"what a draft can learn from the answers is kept in {folder}" in said
    assert len(kept_files(folder)) == 1
    assert cli.main([*command, "--learn-disk", "1"]) == 2
    assert cli.main([*command, "--learn", "--learn-disk", "0"]) == 2
    assert "must be above 0" in capsys.readouterr().err
