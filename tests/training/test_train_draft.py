"""`specllama train-draft`: what ends it, what it goes on from, and what it refuses."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import pytest
import tiny_models as tiny
from needed import imported

imported("torch")
import psutil
from training_driver import BUDGET, Heard

from specllama import Llama, cli
from specllama.engine.drafts.automatic import chosen_of
from specllama.evidence.draft_pays import Gain
from specllama.models.eagle3_file import Eagle3File
from specllama.models.found_drafts import survey
from specllama.models.gguf_values import read_whole_header
from specllama.models.heads import read_head
from specllama.training.fit import Recipe
from specllama.training.plan import Rates, plan_of
from specllama.training.target import read_target
from specllama.training.text import read_texts
from specllama.training.train import Budget, Trained, trained

if TYPE_CHECKING:
    from conftest import TinyFiles

DRIVER = Path(__file__).parents[1] / "helpers" / "training_driver.py"
STEPS = ("text", "states", "training")
OPTIONS = ("--tokens", "700", "-n", "32", "-t", "1", "--parallel", "2", "--kind", "eagle3")


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path) -> Path:
    """In a folder of its own."""
    path = tmp_path / "model.gguf"
    shutil.copyfile(tiny_files.deep, path)
    return path


@pytest.fixture(scope="module")
def made(tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A draft for the model, trained once for several tests."""
    folder = tmp_path_factory.mktemp("made")
    model = shutil.copyfile(tiny_files.deep, folder / "model.gguf")
    with pytest.MonkeyPatch.context() as patch, trained_in(patch, folder / "cache", model) as found:
        heads = {kind: Path(shutil.copyfile(path, folder / path.name)) for kind, path in found.heads.items()}
    return dataclasses.replace(found, heads=heads)


@contextlib.contextmanager
def trained_in(patch: pytest.MonkeyPatch, cache: Path, model: Path) -> Iterator[Trained]:
    patch.setenv("SPECLLAMA_CACHE", str(cache))
    with trained(model, BUDGET, threads=1) as found:
        yield found


@pytest.fixture
def already_trained(model: Path, made: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    """`train-draft` has its draft at once: the tests are of what follows."""

    @contextlib.contextmanager
    def at_once(*_: Any, output: Path | None = None, **__: Any) -> Iterator[Trained]:
        yield dataclasses.replace(made, target=str(model), output=output or model.with_name("eagle3-model.gguf"))

    monkeypatch.setattr("specllama.training.train.trained", at_once)


def texts_of(cache: Path) -> list[Any]:
    """In their own order: in the file they stand as they were finished."""
    (path,) = (cache / "training").glob("*.jsonl")
    return sorted(read_texts(path), key=lambda text: text.index)


def assert_is_a_head(path: Path) -> None:
    assert isinstance(read_head(path), Eagle3File)


class Interrupting(Heard):
    """Ctrl-C in the middle of a step."""

    def done(self, step: str, done: int, total: int) -> None:
        end, self.end = self.end, ""
        super().done(step, done, total)
        self.end = end
        if step.split()[0] == end and done >= 0.6 * total:
            raise KeyboardInterrupt


@pytest.mark.long
def test_it_goes_on_where_it_was(model: Path, cache: Path) -> None:
    """Ctrl-C in each step: what was done is not done again, and in the end there is a head and nothing else."""
    before: list[Any] = []
    for step in STEPS:
        with pytest.raises(KeyboardInterrupt), trained(model, BUDGET, threads=1, progress=Interrupting(step)):
            pass
        now = texts_of(cache)
        assert {text.index: text for text in now}.items() >= {text.index: text for text in before}.items()
        before = now
    last = Heard("never")
    with pytest.raises(KeyboardInterrupt), trained(model, BUDGET, threads=1, progress=last) as made:
        raise KeyboardInterrupt  # while it is compared
    assert "text" not in last.first
    assert "states" not in last.first
    assert last.first["training"] >= 0.4
    assert all(path.is_file() for path in made.heads.values())
    nothing = Heard("never")
    with trained(model, BUDGET, threads=1, progress=nothing) as made:
        path = made.keep("Q4_0")
    assert nothing.first == {}
    assert path == model.with_name("eagle3-model.gguf")
    assert_is_a_head(path)
    left = [name for name in faults.files_below(cache / "training") if not name.endswith(".jsonl")]
    assert left == [f"{made.weights}.lock"]
    assert sorted(os.listdir(model.parent)) == ["cache", "eagle3-model.gguf", "model.gguf"]


@pytest.mark.long
@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_killed_in_each_step(model: Path, cache: Path) -> None:
    """The same of ``kill -9``: the process has no last word."""

    def run(step: str) -> subprocess.CompletedProcess[str]:
        return faults.finished([sys.executable, str(DRIVER), str(model), step])

    num_texts = 0
    for step in (*STEPS, "behind"):
        assert run(step).returncode == -signal.SIGKILL
        texts = texts_of(cache)
        assert len(texts) >= num_texts
        num_texts = len(texts)
    done = run("never")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {}
    assert_is_a_head(model.with_name("eagle3-model.gguf"))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
@pytest.mark.parametrize("size", [4_000, pytest.param(60_000, marks=pytest.mark.long)])
def test_a_disk_that_becomes_full(model: Path, cache: Path, size: int) -> None:
    """One line says so, and with room the same command goes on."""
    line = ("train-draft", str(model), *OPTIONS)
    env = {**os.environ, "SPECLLAMA_KERNELS": "off"}
    faults.assert_one_line_error(faults.run(*line, under=faults.full_after(size), env=env))
    done = faults.run(*line, env=env)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{model.with_name('eagle3-model.gguf')}\n"


def gain_here(monkeypatch: pytest.MonkeyPatch, ratio: float) -> None:
    """The draft makes its target so many times as fast, and lookup 1.1 times."""

    def gain_of(llm: Llama, *_: object) -> Gain:
        return Gain(1.1 if llm.draft_model == "lookup" else ratio, 0.02, 0.5, 1.0)

    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", gain_of)


@pytest.mark.long
def test_the_command(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a GGUF alone to a head that drafts for it, and what it gives."""
    gain_here(monkeypatch, 2.0)
    assert cli.main(["train-draft", str(model), *OPTIONS]) == 0
    out, err = capsys.readouterr()
    head = model.with_name("eagle3-model.gguf")
    assert out == f"{head}\n"
    assert read_whole_header(head)[0]["general.name"] == b"eagle3-model"
    for said in ("700 tokens of text", "GB of disk", "right on text it has not seen", ", and by auto"):
        assert said in err
    assert cli.main(["train-draft", str(model), *OPTIONS]) == 1
    assert "exists: name another file with --output" in capsys.readouterr().err
    assert cli.main(["generate", "-m", str(model), "-md", "auto", "-p", "the cat", "-n", "8", "-t", "1"]) == 0
    assert capsys.readouterr().out


@pytest.mark.usefixtures("already_trained")
@pytest.mark.parametrize("ratio", [2.0, 1.11, 1.05, 0.5])
def test_what_it_gives(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, ratio: float
) -> None:
    """What does not pay is not taken by auto, nor what pays less than lookup."""
    gain_here(monkeypatch, ratio)
    assert cli.main(["train-draft", str(model), *OPTIONS]) == 0
    err, head = capsys.readouterr().err, model.with_name("eagle3-model.gguf")
    assert (", and by auto" in err) == (chosen_of(survey(str(model))).draft_model == str(head)) == (ratio == 2.0)
    assert ("; auto is lookup here" in err) == (ratio < 2.0)
    assert ("the draft adds nothing to that" in err) == (1.0 < ratio < 2.0)
    assert f"{ratio:.2f} times as fast as plain decoding" in err
    assert "With lookup alone, which needs no draft, they are 1.10 times as fast" in err
    assert ("train it longer" in err) == (ratio < 1.0)


@pytest.mark.parametrize(
    ("line", "has_instructions", "kind"),
    [([], True, "hydra"), ([], False, "eagle3"), (["--from"], True, "eagle3"), (["--kind", "medusa"], False, "medusa")],
)
def test_the_usual_kind(
    model: Path, monkeypatch: pytest.MonkeyPatch, line: list[str], has_instructions: bool, kind: str
) -> None:
    """Hydra where our kernels compute it: elsewhere it would be slow."""
    heard = []

    def trained(*_: Any, kind: str, **__: Any) -> None:
        heard.append(kind)
        raise KeyboardInterrupt

    monkeypatch.setattr("specllama.training.train.trained", trained)
    monkeypatch.setattr("specllama.backend.kernels.has_instructions", lambda: has_instructions)
    given = [*line, str(model)] if line == ["--from"] else line
    assert cli.main(["train-draft", str(model), *given]) == 130
    assert heard == [kind]


@pytest.mark.long
def test_ctrl_c_says_how_to_go_on(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So does the same command. Where the result is written may change meanwhile; what it is made of does not."""

    def gain_of(*_: object) -> Gain:
        raise KeyboardInterrupt

    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", gain_of)
    assert cli.main(["train-draft", str(model), *OPTIONS]) == 130
    err = capsys.readouterr().err
    assert "specllama: the same command goes on where it was" in err
    assert "going on with the training that was begun before" not in err
    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", lambda *_: Gain(2.0, 0.02, 0.5, 1.0))
    other = model.with_name("other.gguf")
    assert cli.main(["train-draft", str(model), *OPTIONS, "-o", str(other)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{other}\n"
    assert "going on with the training that was begun before: 700 tokens of text" in err
    assert "measuring how fast" not in err
    assert_is_a_head(other)

    monkeypatch.setattr("specllama.commands.drafts.remember_gains", gain_of)
    assert cli.main(["train-draft", str(model), *OPTIONS, "-o", str(other), "--force"]) == 130
    assert "the same command goes on" not in capsys.readouterr().err
    assert_is_a_head(other)


@pytest.mark.usefixtures("already_trained")
@pytest.mark.parametrize("fails", ["gain_of", "fastest_type", "survey", "remember", "a loop of links"])
def test_what_follows_the_training_ends_no_command(
    model: Path,
    cache: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fails: str,
) -> None:
    """The head is kept and its path printed, and what could not be done is said."""

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("there is no more room")

    places = {"gain_of": "evidence.draft_pays", "fastest_type": "evidence.draft_pays", "survey": "models.found_drafts"}
    gain_here(monkeypatch, 2.0)
    if fails == "a loop of links":
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "loop").symlink_to("loop")
        monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "other"))
    else:
        monkeypatch.setattr(f"specllama.{places.get(fails, 'engine.drafts.automatic')}.{fails}", fail)
    assert cli.main(["train-draft", str(model), *OPTIONS]) == 0
    out, err = capsys.readouterr()
    head = model.with_name("eagle3-model.gguf")
    assert out == f"{head}\n"
    assert_is_a_head(head)
    assert ("there is no more room" in err) == (fails != "a loop of links")
    assert ("cannot be compared with plain decoding" in err) == (fails in ("gain_of", "fastest_type"))
    assert ("cannot be kept for -md auto" in err) == (fails in ("survey", "remember"))
    assert (", and by auto" in err) == (fails in ("remember", "a loop of links"))


@pytest.mark.long
def test_trainings_that_did_not_end_are_named(model: Path, cache: Path) -> None:
    with pytest.raises(KeyboardInterrupt), trained(model, BUDGET, threads=1, progress=Interrupting("states")):
        pass
    (left,) = (path for path in (cache / "training").iterdir() if path.is_dir())
    heard = Heard("never")
    with trained(model, dataclasses.replace(BUDGET, answer=24), threads=1, progress=heard) as made:
        made.keep("Q4_0")
    (note,) = (note for note in heard.notes if note.startswith("unfinished trainings of this model"))
    assert f": {left}. Delete" in note


def test_text_of_the_users_own(model: Path, cache: Path, tmp_path: Path) -> None:
    """Prompts are answered, and other text is learned as it is, both before anything else."""
    prompts, words = tmp_path / "prompts.jsonl", tmp_path / "words.txt"
    prompts.write_text('{"prompt": "the cat"}\n{"prompt": "the dog"}\n', encoding="utf-8")
    words.write_text("the cat sat on the dog and " * 90, encoding="utf-8")
    given = [str(prompts), str(words)]
    with (
        pytest.raises(KeyboardInterrupt),
        trained(model, BUDGET, text=given, threads=1, progress=Interrupting("states")),
    ):
        pass
    (plan,) = (cache / "training").glob("*/plan.json")
    assert json.loads(plan.read_text())["rates"]["written"] < 1e5, "what nobody writes says nothing of how fast it is"
    texts = texts_of(cache)
    asis = [text for text in texts if text.start == 0]
    assert collections.Counter(len(text.tokens) == 512 for text in asis[:-1]) == {True: len(asis) - 1}
    assert [text.index for text in asis] == list(range(1, len(asis) + 1)), "the first text is held out"
    assert sum(len(text.tokens) for text in asis) > 400
    assert texts[0].start > 0
    assert texts[len(asis) + 1].start > 0


@pytest.mark.parametrize("count", [4, 900])
def test_little_is_learned_at_least(model: Path, cache: Path, tmp_path: Path, count: int) -> None:
    """One short text of the user's, or a budget that is smaller than the first text."""
    words = tmp_path / "words.txt"
    words.write_text("the cat sat on the dog and " * count, encoding="utf-8")
    budget = Budget(tokens=5, answer=32, parallel=2)
    with trained(model, budget, text=[str(words)], threads=1) as made:
        assert made.num_tokens > 0
    assert {text.is_held_out for text in texts_of(cache)} == {True, False}


def test_without_any_text_to_learn(model: Path, cache: Path) -> None:
    """As of a training that an earlier version began."""
    with pytest.raises(KeyboardInterrupt), trained(model, BUDGET, threads=1, progress=Interrupting("states")):
        pass
    (path,) = (cache / "training").glob("*.jsonl")
    path.write_bytes(path.read_bytes().lstrip().split(b"\n")[0] + b"\n")
    with (
        pytest.raises(ValueError, match="too little text to learn from: give a larger budget"),
        trained(model, BUDGET, threads=1),
    ):
        pass


def test_lines_that_are_no_prompts_are_told(
    model: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_training(*_: object, **__: object) -> Any:
        raise ValueError("no training")

    monkeypatch.setattr("specllama.training.train.trained", no_training)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "the cat"}\n{"prompt"\n', encoding="utf-8")
    assert cli.main(["train-draft", str(model), *OPTIONS, "--text", str(prompts)]) == 1
    assert capsys.readouterr().err.count(f"skipped {prompts}:2: not JSON") == 1
    prompts.write_text("{", encoding="utf-8")
    assert cli.main(["train-draft", str(model), *OPTIONS, "--text", str(prompts)]) == 2
    words = tmp_path / "words.txt"
    words.write_bytes(b"the \xff cat")
    assert cli.main(["train-draft", str(model), *OPTIONS, "--text", str(words)]) == 2
    assert f"cannot read text from {words}: byte 4 is not UTF-8" in capsys.readouterr().err


def test_nothing_that_it_reads_is_replaced(
    model: Path, cache: Path, tmp_path: Path, tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    small, words = tmp_path / "small.gguf", tmp_path / "words.txt"
    shutil.copyfile(tiny_files.good, small)
    words.write_text("the cat", encoding="utf-8")
    (tmp_path / "parts").mkdir()
    first = tiny.split(model, tmp_path / "parts")
    second = first.with_name(first.name.replace("00001-of", "00002-of"))
    options = (*OPTIONS, "--force", "--kind", "sibling", "--draft", str(small), "--text", str(words))
    for target, output in ((model, model), (model, small), (model, words), (first, first), (first, second)):
        before = output.read_bytes()
        assert cli.main(["train-draft", str(target), *options, "-o", str(output)]) == 1
        assert f"the output {output} is the input" in capsys.readouterr().err
        assert output.read_bytes() == before


@pytest.mark.parametrize("force", [(), ("--force",)])
def test_what_is_no_file_is_not_replaced(
    model: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], force: tuple[str, ...]
) -> None:
    for output in (str(tmp_path), ""):
        assert cli.main(["train-draft", str(model), *OPTIONS, *force, "-o", output]) == 1
        assert "is a folder: name a file in it" in capsys.readouterr().err
    assert cli.main(["train-draft", str(model), *OPTIONS, *force, "-o", os.devnull]) == 1
    assert "is no file: name another one with --output" in capsys.readouterr().err


@pytest.mark.parametrize("draft", [False, True])
@pytest.mark.parametrize(
    ("size", "why"),
    [
        (None, "does not exist"),
        (0, "it is empty"),
        (2000, "truncated or damaged"),
        (-5000, "truncated or damaged: it has"),
    ],
)
def test_damaged_files(
    model: Path, cache: Path, capsys: pytest.CaptureFixture[str], draft: bool, size: int | None, why: str
) -> None:
    """The model, or the small model: as when it is opened to generate."""
    damaged = model.with_name("damaged.gguf")
    if size is not None:
        damaged.write_bytes(model.read_bytes()[:size])
    more = ("--kind", "sibling", "--draft", str(damaged)) if draft else ()
    assert cli.main(["train-draft", str(model if draft else damaged), *OPTIONS, *more]) == 1
    said = capsys.readouterr().err
    assert str(damaged) in said
    assert why in said


@pytest.mark.long
def test_a_full_disk_at_the_end(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched, trained(model, BUDGET, threads=1) as made:
        patched.setattr(shutil, "copyfile", full)
        with pytest.raises(
            OSError, match=r"eagle3-model.gguf cannot be written: .*Mend that, .*: the same command goes on"
        ):
            made.keep("Q8_0")
        patched.undo()
        assert_is_a_head(made.keep("Q8_0"))


def test_layers_for_mtp_are_not_counted(tiny_files: TinyFiles, tmp_path: Path) -> None:
    found = read_target(str(tiny_files.mtp))
    assert found.n_layer == 2
    assert max(found.layers) < 2
    words = tiny.word_vocabulary()
    path = tiny.write_mtp(tmp_path / "one.gguf", words, tiny.mtp_weights(words, 1), count=2, n_layer=3)
    with pytest.raises(ValueError, match="it needs tokens, and two layers"):
        read_target(str(path))


@pytest.mark.long
def test_another_budget_goes_on_with_the_text(model: Path, cache: Path) -> None:
    """What an earlier training had written is not written again, and of too much of it a part is taken."""
    sizes = []
    for tokens in (600, 900, 600):
        before = texts_of(cache) if sizes else []
        with trained(model, Budget(tokens=tokens, answer=32, parallel=2), threads=1, force=True) as made:
            made.keep("Q8_0")
        now = texts_of(cache)
        assert {text.index: text for text in now}.items() >= {text.index: text for text in before}.items()
        sizes.append(made.num_tokens)
    assert sizes[0] < 0.8 * sizes[1]
    assert sizes[2] == pytest.approx(sizes[0], abs=64)


def test_a_head_is_trained_further(model: Path, made: Trained, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """From its file, in any type; the result is for the same layers and says the same tokens."""
    first, more = made.heads["Q4_0"], model.with_name("more.gguf")
    assert cli.main(["train-draft", str(model), *OPTIONS, "--from", str(first), "-o", str(more)]) == 0
    one, other = read_head(first), read_head(more)
    assert isinstance(one, Eagle3File)
    assert isinstance(other, Eagle3File)
    assert other.layers == one.layers
    assert other.tensors.keys() == one.tensors.keys()
    capsys.readouterr()
    for given, said in ((model, "is no EAGLE-3 head"), (model.with_name("none.gguf"), "there is no such file")):
        assert cli.main(["train-draft", str(model), *OPTIONS, "--from", str(given)]) != 0
        assert said in capsys.readouterr().err


def test_two_at_once_are_refused(model: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Second(Heard):
        code = 0

        def done(self, step: str, done: int, total: int) -> None:
            self.code = cli.main(["train-draft", str(model), "--tokens", "800"])
            raise KeyboardInterrupt

    second = Second("never")
    with pytest.raises(KeyboardInterrupt), trained(model, BUDGET, threads=1, progress=second):
        pass
    assert second.code == 1
    assert "is being trained already" in capsys.readouterr().err


def test_a_cache_that_cannot_be_written(model: Path, cache: Path) -> None:
    cache.write_text("in the way")
    with pytest.raises(OSError, match=r"the training cannot be written: .*Set SPECLLAMA_CACHE"), trained(model, BUDGET):
        pass


def test_too_little_disk_is_said_first(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = collections.namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**12, 10**12, 10**6))
    with (
        pytest.raises(OSError, match=r"needs 0\.\d GB of disk, and 0\.0 GB are free"),
        trained(model, BUDGET, threads=1),
    ):
        pass


def test_too_little_disk_for_the_head_is_said_first(
    model: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another disk than that of the training. A training that goes on looks, too."""
    usage, real = collections.namedtuple("usage", "total used free"), shutil.disk_usage
    (other := tmp_path / "other").mkdir()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 0) if Path(path) == other else real(path))
    for output, progress in (
        (other / "h.gguf", Heard("never")),
        (None, Interrupting("states")),
        (other / "h.gguf", Heard("never")),
    ):
        expected = OSError if output else KeyboardInterrupt
        with (
            pytest.raises(expected, match="making h.gguf needs .* name a file on another disk" if output else None),
            trained(model, BUDGET, threads=1, output=output, progress=progress),
        ):
            pass
        assert "training" not in progress.first


def test_too_little_memory_is_said_first(model: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = collections.namedtuple("memory", "available total")
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory(10**6, 10**9))
    with pytest.raises(MemoryError, match=r"needs 0\.\d GB of memory"), trained(model, BUDGET, threads=1):
        pass


@pytest.mark.parametrize("wrong", [{"hours": 1.0, "tokens": 5}, {}, {"hours": 0.0}, {"tokens": -1}])
def test_a_budget_that_is_none(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"hours|tokens"):
        Budget(**wrong)


def test_hours_that_are_not_enough(model: Path, cache: Path) -> None:
    with (
        pytest.raises(ValueError, match="hours are enough for 0 tokens"),
        trained(model, Budget(hours=1e-6, answer=32), threads=1),
    ):
        pass


def test_what_is_no_model_is_refused(tmp_path: Path, cache: Path) -> None:
    lora = tiny.write_lora(tmp_path / "lora.gguf", tiny.llama_weights(tiny.word_vocabulary(), 1), 1)
    with pytest.raises(ValueError, match="it is a LoRA adapter and not a model"), trained(lora, BUDGET):
        pass


def test_without_pytorch_one_line_says_what_to_install(model: Path, cache: Path) -> None:
    script = "import sys; sys.modules['torch'] = None\nfrom specllama import cli\nraise SystemExit(cli.main())"
    done = faults.finished([sys.executable, "-c", script, "train-draft", str(model)])
    faults.assert_one_line_error(done, "pip install 'specllama[train]'")


def test_the_hours_are_divided() -> None:
    """By what each step costs for a token of text, of which the head learns from some alone."""
    rates = Rates(written=100.0, read=200.0, trained=50.0, step=0.0, share=0.5)
    plan = plan_of(rates, hours=2.0, tokens=None, recipe=Recipe())
    assert plan.hours == pytest.approx(2.0, rel=1e-3)
    written, read, learned = plan.seconds
    assert read == pytest.approx(written)
    assert learned == pytest.approx(8 * written)
    assert plan.num_tokens == pytest.approx(100.0 * written)
    assert plan_of(rates, hours=None, tokens=1000, recipe=Recipe()).seconds == pytest.approx((10.0, 10.0, 80.0))
    slower = dataclasses.replace(rates, step=6.0)  # of each batch
    assert plan_of(slower, hours=2.0, tokens=None, recipe=Recipe()).num_tokens < 0.8 * plan.num_tokens
    assert plan_of(slower, hours=2.0, tokens=None, recipe=Recipe()).hours == pytest.approx(2.0, rel=1e-2)


def test_hours_that_are_said_are_enough() -> None:
    """What measuring takes counts, and nothing is rounded down."""
    rates = Rates(written=1e4, read=1e4, trained=1e4, step=0.0, share=1.0)
    with pytest.raises(ValueError, match=r"give 0\.02 hours \(--hours\)"):
        plan_of(rates, hours=1e-4, spent=0.01, tokens=None, recipe=Recipe())
    assert plan_of(rates, hours=0.02, spent=0.01, tokens=None, recipe=Recipe()).num_tokens >= 500


@pytest.mark.long
def test_hours(model: Path, cache: Path) -> None:
    """What is measured in the first moments says how much text there is, and all of it is used."""
    with trained(model, Budget(hours=0.004, answer=32, parallel=2), threads=1) as made:
        assert made.num_tokens >= 400
        assert_is_a_head(made.keep("Q8_0"))
