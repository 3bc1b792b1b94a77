"""Trials in child processes: however a child ends, the answer says so, and is remembered where that is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from specllama.backend import trial
from specllama.backend.cache import cache_dir
from specllama.backend.trial import Trial, tried
from specllama.backend.trial_key import trial_key

KEY = {"library": "libexample.so, 12 bytes", "cpu": "Example 3000"}
COUNTED = "_counted_trial"

on_posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows ends no process by a signal")


@pytest.fixture(autouse=True)
def _nothing_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in another process, which knows only what was kept."""
    monkeypatch.setattr(trial, "_KNOWN", {})


Program = Callable[[str], str]


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Program:
    """Writes a module of specllama outside of it, on the tests' own sys.path, which notes each run in `runs`."""
    folder = tmp_path / "path" / "specllama"
    folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(folder.parent)

    def write(source: str) -> str:
        noting = f"import sys\nopen({str(tmp_path / 'runs')!r}, 'a').write('+')\n"
        (folder / f"{COUNTED}.py").write_text(noting + source, encoding="utf-8")
        return COUNTED

    return write


@pytest.fixture
def runs(tmp_path: Path) -> Callable[[], int]:
    """How often the program has run."""
    return lambda: len((tmp_path / "runs").read_text()) if (tmp_path / "runs").exists() else 0


def the_file() -> Path:
    (path,) = (cache_dir() / "trials").iterdir()
    return path


def test_it_finds_the_package_that_this_process_has(program: Program) -> None:
    from specllama import _core

    found = tried(program("from specllama import _core\nsys.exit(_core.__file__)"), [], key=KEY)
    assert found.reason == _core.__file__[:300]


def test_a_working_directory_has_no_say(program: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("json", "specllama", "runpy"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('the wrong one')")
    monkeypatch.chdir(tmp_path)
    assert tried(program("import json"), [], key=KEY).ok


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("", ""),
        ("sys.exit('the results differ\\n by 0.3')", "the results differ by 0.3"),
        ("sys.exit(repr(sys.argv[1:]))", "['a b', 'é', '']"),
        ("sys.exit(7)", "it ended with exit code 7"),
        ("print('to stdout'); sys.exit(7)", "it ended with exit code 7: to stdout"),
        ("raise ValueError('so \\x1b it is')", "it ended with exit code 1: ValueError: so it is"),
        ("import os; os._exit(0)", "it ended without an answer"),
        ('import os; os.write(1, b\'{"reason": ""}\'); os._exit(0)', 'it ended without an answer: {"reason": ""}'),
    ],
)
def test_how_one_ends(program: Program, source: str, reason: str) -> None:
    assert tried(program(source), ["a b", "é", ""], key=KEY) == Trial(not reason, reason)


@pytest.mark.parametrize("end", ["SIGSEGV", "SIGILL", "SIGABRT", "SIGKILL"])
@on_posix
def test_one_that_crashes(program: Program, end: str) -> None:
    assert tried(program(ended_by(end)), [], key=KEY) == Trial(False, f"it was ended by {end}")


def ended_by(name: str) -> str:
    """Source that ends its process by a signal: a sanitizer, where there is one, is not to make an exit code of it."""
    default = "" if name == "SIGKILL" else f"signal.signal(signal.{name}, signal.SIG_DFL)\n"
    return f"import os, signal\n{default}os.kill(os.getpid(), signal.{name})\n"


@on_posix
def test_one_that_really_crashes(program: Program) -> None:
    # A sanitizer, where there is one, is not to make an exit code of it.
    source = "import ctypes, signal\nsignal.signal(signal.SIGSEGV, signal.SIG_DFL)\nprint('so far', flush=True)\n"
    found = tried(program(f"{source}ctypes.string_at(0)"), [], key=KEY)
    assert found == Trial(False, "it was ended by SIGSEGV: so far")


@on_posix
def test_what_a_hanging_one_has_started_ends_with_it(program: Program, tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    source = f"import os, time\nif not os.fork(): open({str(noted)!r}, 'w').write(str(os.getpid()))\ntime.sleep(600)"
    assert not tried(program(source), [], key=KEY, seconds=3).ok
    deadline = time.monotonic() + 30
    while is_alive(int(noted.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(int(noted.read_text()))


def is_alive(process: int) -> bool:
    """Not a zombie either, which nobody may wait for in a container."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    status = Path("/proc", str(process), "stat")
    return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"


def test_one_that_hangs(program: Program) -> None:
    begun = time.monotonic()
    assert tried(program("import time; time.sleep(600)"), [], key=KEY, seconds=1) == Trial(
        False, "it did not end within 1 seconds"
    )
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("source", ["", "sys.exit('no')", "sys.exit(3)"])
def test_it_runs_once(program: Program, runs: Callable[[], int], source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = program(source)
    first = tried(name, ["x"], key=KEY)
    assert tried(name, ["x"], key=dict(reversed(KEY.items()))) == first
    the_file().unlink()
    assert tried(name, ["x"], key=KEY) == first  # this process remembers by itself
    assert runs() == 1
    forget(monkeypatch)
    assert tried(name, ["x"], key=KEY) == first
    forget(monkeypatch)
    assert tried(name, ["x"], key=KEY) == first  # from the file
    assert runs() == 2


def test_threads_wait_for_one_run(program: Program, runs: Callable[[], int]) -> None:
    name = program("import time; time.sleep(0.3)")
    threads = [threading.Thread(target=tried, args=(name, []), kwargs={"key": KEY}) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert runs() == 1


@pytest.mark.parametrize(
    ("arguments", "key"), [(["y"], KEY), (["x"], {**KEY, "cpu": "Example 3001"}), (["x"], {**KEY, "more": ""})]
)
def test_another_question_is_asked(
    program: Program, runs: Callable[[], int], arguments: list[str], key: dict[str, str]
) -> None:
    name = program("")
    tried(name, ["x"], key=KEY)
    tried(name, arguments, key=key)
    assert runs() == 2


DAMAGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "another format": lambda found: {**found, "format": 2},
    "another key": lambda found: {**found, "key": {}},
    "another name": lambda found: {**found, "name": "_other"},
    "other arguments": lambda found: {**found, "arguments": ["y"]},
    "a list": lambda found: [found],
    "no answer": lambda found: {**found, "ok": None},
    "a number for an answer": lambda found: {**found, "ok": 1},
    "well, and a reason": lambda found: {**found, "reason": "why"},
    "not well, without a reason": lambda found: {**found, "ok": False},
    "a reason that is none": lambda found: {**found, "ok": False, "reason": ["why"]},
    "a reason of several lines": lambda found: {**found, "ok": False, "reason": "why\nand why"},
    "a reason without end": lambda found: {**found, "ok": False, "reason": "why " * 1000},
    "no time": lambda found: {**found, "tried": None},
    "a time in words": lambda found: {**found, "until": "tomorrow"},
    "tried in the future": lambda found: {**found, "tried": time.time() + 1000},
    "too old": lambda found: {**found, "until": time.time() - 1},
    "for ever": lambda found: {**found, "until": time.time() + 400 * 86_400},
    "not a number": lambda found: {**found, "until": float("nan")},
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_cannot_be_true_is_not_believed(
    program: Program, runs: Callable[[], int], damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = program("")
    tried(name, ["x"], key=KEY)
    path = the_file()
    path.write_text(json.dumps(DAMAGES[damage](json.loads(path.read_text(encoding="ascii")))), encoding="ascii")
    for _ in range(2):  # the second time from the file, which was replaced
        forget(monkeypatch)
        assert tried(name, ["x"], key=KEY) == Trial(True, "")
    assert runs() == 2


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 60_000, b"null"])
def test_anything_may_be_in_a_file(
    program: Program, runs: Callable[[], int], content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = program("")
    tried(name, [], key=KEY)
    the_file().write_bytes(content)
    forget(monkeypatch)
    assert tried(name, [], key=KEY).ok
    assert runs() == 2


def test_a_cache_that_cannot_be_written(
    program: Program, runs: Callable[[], int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    name = program("")
    assert tried(name, [], key=KEY).ok
    assert tried(name, [], key=KEY).ok
    assert runs() == 1
    forget(monkeypatch)
    assert tried(name, [], key=KEY).ok
    assert runs() == 2


def test_a_home_that_is_unknown(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", "~nobody-of-this-name/cache")
    assert tried(program(""), [], key=KEY).ok


def test_what_a_busy_machine_may_have_caused_is_believed_for_a_day(program: Program) -> None:
    tried(program("sys.exit(3)"), [], key=KEY)
    found = json.loads(the_file().read_text(encoding="ascii"))
    assert found["until"] - found["tried"] == 86_400
    assert abs(found["tried"] - time.time()) < 60


@on_posix
def test_what_somebody_else_ended_is_not_kept(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not tried(program(ended_by("SIGKILL")), [], key=KEY).ok
    assert not (cache_dir() / "trials").exists()
    forget(monkeypatch)
    assert tried(program(""), [], key=KEY).ok


@pytest.mark.parametrize("executable", [None, "", "/nowhere/python"])
def test_without_a_python(program: Program, executable: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    found = tried(program(""), [], key=KEY)
    assert not found.ok and "to try it" in found.reason
    assert not (cache_dir() / "trials").exists()


def test_a_frozen_program_does_not_start_itself(
    program: Program, runs: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    assert not tried(program(""), [], key=KEY).ok
    assert runs() == 0


def test_a_trial_that_asks_for_itself_comes_to_an_end(program: Program) -> None:
    source = f"from specllama.backend.trial import tried\ntried({COUNTED!r}, [], key={{}})"
    found = tried(program(source), [], key={})
    assert not found.ok and "asks for itself" in found.reason


@on_posix
def test_a_crash_leaves_no_core(program: Program) -> None:
    source = "import resource; sys.exit(str(resource.getrlimit(resource.RLIMIT_CORE)[0]))"
    assert tried(program(source), [], key=KEY).reason == "0"


@on_posix
def test_ctrl_c_of_the_terminal_does_not_reach_it(program: Program) -> None:
    found = tried(program("import os; sys.exit(str(os.getpgid(0) == os.getpid()))"), [], key=KEY)
    assert found.reason == "True"


@on_posix
def test_an_interrupted_one_is_ended(program: Program, tmp_path: Path) -> None:
    name = program("import os, time; open(sys.argv[1], 'w').write(str(os.getpid()) + ' '); time.sleep(600)")
    noted = tmp_path / "pid"
    path = [str(tmp_path / "path"), *sys.path]
    asking = f"import signal, sys; sys.path[:] = {path!r}\nfrom specllama.backend.trial import tried\n"
    asking += "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background job ignores it
    asking += f"tried({name!r}, {[str(noted)]!r}, key={{}})"
    with subprocess.Popen([sys.executable, "-c", asking], stderr=subprocess.PIPE) as parent:
        deadline = time.monotonic() + 60
        while not (noted.exists() and noted.read_text().endswith(" ")) and time.monotonic() < deadline:
            time.sleep(0.05)
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=60)
    assert b"KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):  # whoever takes over a process that has ended may need a moment to see it
        while time.monotonic() < deadline + 60:
            os.kill(int(noted.read_text()), 0)
            time.sleep(0.05)


def test_the_key_tells_builds_and_machines_apart(tmp_path: Path) -> None:
    library = tmp_path / "libexample.so"
    library.write_bytes(b"one")
    os.utime(library, (1000, 1000))
    first = trial_key([library])
    assert trial_key([str(library)]) == first
    assert all(isinstance(value, str) and value for value in first.values())
    assert {"cpu", "cpu_flags", "llama_cpp_python", "specllama", "system"} < first.keys()
    os.utime(library, (1001, 1001))
    assert trial_key([library]) != first
    library.write_bytes(b"another")
    os.utime(library, (1000, 1000))
    assert trial_key([library]) != first
    assert trial_key([tmp_path / "missing.so"]) != first


def test_the_key_follows_links(tmp_path: Path) -> None:
    for name in ("one.so", "other.so"):
        (tmp_path / name).write_text(name)
    link = tmp_path / "link.so"
    try:
        link.symlink_to("one.so")
    except OSError:
        pytest.skip("this system lets nobody make links")
    assert trial_key([link]) == trial_key([tmp_path / "one.so"])
