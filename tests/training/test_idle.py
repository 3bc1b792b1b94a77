"""A head learns while nobody needs the machine, and makes way within a second."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import kept_texts
import psutil
import pytest

import specllama
from specllama.commands import arguments
from specllama.engine import forget, learn_dir, learned_head, measured_gain
from specllama.training import idle
from specllama.training.idle import IdleLearner, Load, in_its_place, learning_meanwhile, on_battery
from specllama.training.target import read_target

if TYPE_CHECKING:
    from conftest import TinyFiles

WEIGHTS = "0123456789abcdef"
WAITS = [sys.executable, "-c", "import os, time; os.write(1, b'begun'); time.sleep(60)"]
"""A command in the place of ``specllama learn``."""


def ending_with(code: int, words: str = "") -> list[str]:
    return [sys.executable, "-c", f"import sys; print({words!r}); sys.exit({code})"]


class Machine:
    """A machine whose load and battery are as the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.share, self.battery = 0.0, False
        monkeypatch.setattr(Load, "look", lambda *_: self.share)
        monkeypatch.setattr(idle, "on_battery", lambda: self.battery)
        monkeypatch.setattr(idle, "_POLL", 0.02)
        monkeypatch.setattr(idle, "_REST", 0.02)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(monkeypatch)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with enough kept texts."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("specllama.engine.learned.FIRST", 100)
    made = learn_dir(WEIGHTS)
    kept_texts.write_some(made, 12)
    return made


@pytest.fixture
def learner(machine: Machine, folder: Path) -> Iterator[IdleLearner]:
    made = IdleLearner("model.gguf", WEIGHTS, quiet=0.5, command=WAITS)
    with learning_meanwhile(made):
        yield made
    assert not made.is_learning


def comes(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_running(command: list[str] = WAITS) -> bool:
    """Whether this process has such a child."""
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.Error):
            if child.cmdline() == command and child.status() != psutil.STATUS_ZOMBIE:
                return True
    return False


def use(folder: Path) -> None:
    (folder / "used").touch()


def test_it_begins_when_nobody_has_asked_for_a_while(learner: IdleLearner, folder: Path) -> None:
    assert comes(lambda: learner.is_learning and is_running())
    use(folder)
    assert comes(lambda: not learner.is_learning and not is_running(), 1.0)
    begun = time.monotonic()
    assert comes(lambda: learner.is_learning)
    assert time.monotonic() - begun > 0.4


def test_it_makes_way_for_other_programs_and_on_battery(learner: IdleLearner, machine: Machine) -> None:
    assert comes(lambda: learner.is_learning)
    for name, value, calm in (("share", 0.6, 0.1), ("battery", True, False)):
        setattr(machine, name, value)
        assert comes(lambda: not learner.is_learning, 1.0)
        assert not comes(lambda: learner.is_learning, 0.3)
        setattr(machine, name, calm)
        assert comes(lambda: learner.is_learning)


def test_not_on_a_busy_machine(machine: Machine, folder: Path) -> None:
    machine.share = 0.3
    with learning_meanwhile(made := IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=WAITS)):
        assert not comes(lambda: made.is_learning, 0.5)


def test_a_head_learns_and_is_measured(
    machine: Machine, tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the command itself, in a process of its own."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    model, said = str(tiny_files.target), list[str]()
    target = read_target(model)
    kept_texts.write_some(learn_dir(target.weights), 60, size=400, width=target.n_embd)
    with learning_meanwhile(learner := IdleLearner(model, target.weights, quiet=0.0, on_failure=said.append)):
        assert comes(lambda: learner.is_learning)
        assert comes(lambda: not learner.is_learning, 200.0)
    assert said == []
    head = learned_head(target.weights)
    assert head is not None
    assert 20_000 < head.num_tokens < 24_000
    assert measured_gain(model, str(head.path)) is not None
    forget()  # what was measured: that is what is lacking now
    with learning_meanwhile(learner := IdleLearner(model, target.weights, quiet=0.0, on_failure=said.append)):
        assert comes(lambda: learner.is_learning)
        assert comes(lambda: not learner.is_learning, 200.0)
        assert not comes(lambda: learner.is_learning, 0.5)
    assert learned_head(target.weights) == head
    assert measured_gain(model, str(head.path)) is not None


def test_nothing_new_is_not_learned_again(machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.engine.learned.FIRST", 10**6)
    looked: list[int] = []
    monkeypatch.setattr(idle, "fresh_texts", lambda *given: looked.append(1) or specllama.engine.fresh_texts(*given))
    with learning_meanwhile(made := IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=WAITS)):
        assert not comes(lambda: made.is_learning, 0.5)
        assert len(looked) == 1
        kept_texts.write_some(folder, 1, first=100)
        assert comes(lambda: len(looked) == 2)


def test_a_failure_is_told_and_tried_again_later(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle, "_AGAIN", 0.5)
    said: list[str] = []
    command = ending_with(3, "the disk is full")
    with learning_meanwhile(IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=command, on_failure=said.append)):
        assert comes(lambda: len(said) == 1)
        assert "the disk is full" in said[0]
        assert "learner.log" in said[0]
        assert not comes(lambda: len(said) == 2, 0.3)


def test_what_cannot_be_begun_is_told(machine: Machine, folder: Path) -> None:
    """The thread goes on."""
    said: list[str] = []
    made = IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=[str(folder / "nothing")], on_failure=said.append)
    with learning_meanwhile(made):
        assert comes(lambda: len(said) == 1)
        assert any(thread.name == "idle-learner" for thread in threading.enumerate())
    assert "nothing" in said[0]


def test_it_ends_where_memory_lacks(learner: IdleLearner, monkeypatch: pytest.MonkeyPatch) -> None:
    assert comes(lambda: learner.is_learning)
    monkeypatch.setattr(idle, "free_memory", lambda: 1 << 27)
    assert comes(lambda: not learner.is_learning, 1.0)
    assert not comes(lambda: learner.is_learning, 0.7)


def test_a_user_who_has_it_learn_now_comes_first(learner: IdleLearner) -> None:
    assert comes(lambda: learner.is_learning)
    with in_its_place(WEIGHTS):
        assert not learner.is_learning
        assert not comes(lambda: learner.is_learning, 1.0)
    assert comes(lambda: learner.is_learning, 90.0)


@pytest.mark.parametrize("has_torch", [True, False])
def test_commands_that_stay_have_it_learn(
    machine: Machine,
    tiny_files: TinyFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    has_torch: bool,
) -> None:
    """`chat` and `serve`. Without PyTorch they say what learning needs."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    monkeypatch.setattr(idle, "can_learn", lambda: has_torch)
    with specllama.Llama(str(tiny_files.target), n_ctx=256, n_threads=1, verbose=False, learn=True) as llm:
        with arguments.learning_meanwhile(llm):
            assert any(thread.name == "idle-learner" for thread in threading.enumerate()) == has_torch
        assert all(thread.name != "idle-learner" for thread in threading.enumerate())
    said = 'a draft does not learn from it by itself: that needs pip install "specllama[train]"'
    assert (said in capsys.readouterr().err) == (not has_torch)


def test_the_battery_of_a_mouse(tmp_path: Path) -> None:
    mouse, own = tmp_path / "hidpp_battery_0", tmp_path / "BAT0"
    for supply, scope in ((mouse, "Device"), (own, "System")):
        supply.mkdir()
        (supply / "type").write_text("Battery\n")
        (supply / "scope").write_text(f"{scope}\n")
        assert idle._has_battery(tmp_path) == (scope == "System")


def test_one_of_two_programs_has_it_learn(machine: Machine, folder: Path) -> None:
    one, other = (IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=WAITS) for _ in range(2))
    with learning_meanwhile(one):
        assert comes(lambda: one.is_learning)
        with learning_meanwhile(other):
            assert not comes(lambda: other.is_learning, 0.5)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_it_ends_with_the_program_that_began_it(machine: Machine, folder: Path, tmp_path: Path) -> None:
    """Also if that is killed: the learner's input ends then."""
    told = tmp_path / "pid"
    script = (
        "import os, sys, time\n"
        "from pathlib import Path\n"
        "from specllama.training.idle import make_way\n"
        "make_way()\n"
        f"Path({str(told)!r}).write_text(f'{{os.getpid()}} {{os.nice(0)}}')\n"
        "time.sleep(60)\n"
    )
    parent = os.fork()
    if parent == 0:
        try:
            made = IdleLearner("model.gguf", WEIGHTS, quiet=0.0, command=[sys.executable, "-c", script])
            made.look()
            threading.Event().wait(60)
        finally:
            os._exit(0)
    try:
        assert comes(lambda: told.exists() and bool(told.read_text()))
        pid, niceness = map(int, told.read_text().split())
        assert niceness == 19
        assert psutil.pid_exists(pid)
    finally:
        os.kill(parent, 9)
        os.waitpid(parent, 0)
    assert comes(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_the_share_that_others_use() -> None:
    load = Load()
    assert load.share == 1.0
    assert 0.0 <= load.look(psutil.Process()) <= 1.0
    assert isinstance(on_battery(), bool)


def test_a_text_marks_the_use(tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of requests of which nothing is kept, too."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    monkeypatch.setattr("specllama.engine.examples.store._PAUSE", 0.0)
    with specllama.Llama(str(tiny_files.target), n_ctx=256, n_threads=1, verbose=False, learn=True) as llm:
        llm.create_completion("the cat", max_tokens=20)
        llm.engine.account.examples.flush()  # type: ignore[union-attr]
        mark = Path(llm.learn_dir or "", "used")
        marks = []
        for learns in (True, False):
            llm.create_completion("the cat", max_tokens=20, learn=learns)
            marks.append(mark.stat().st_mtime_ns)
            time.sleep(0.02)
        assert marks[0] < marks[1]
