"""The process that executes a model's code: what passes, what ends it, and what it cannot pretend."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from specllama.evidence.eval import Limits, sandbox

if not hasattr(os, "fork"):
    pytest.skip("limits of POSIX", allow_module_level=True)

TEST = """
def check(candidate):
    assert candidate(2) == 4
    assert candidate(3) == 9
"""
RIGHT = "def square(x):\n    return x * x\n"
LINUX = sys.platform == "linux"
QUICK = Limits(seconds=1.0)


def run(code: str, limits: Limits | None = None, test: str = TEST) -> sandbox.Outcome:
    return sandbox.run_tests([textwrap.dedent(code), test], "square", limits or Limits())


def ends_soon(process: int) -> bool:
    """Whether a process is gone, or only waits for its parent to notice."""
    for _ in range(100):
        try:
            os.kill(process, 0)
            if LINUX and Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.05)
    return False


def test_right_code_passes() -> None:
    assert run(RIGHT) == sandbox.Outcome("passed", "", "")
    assert run("from __future__ import annotations\n" + RIGHT).passed
    helpers = "from dataclasses import dataclass\n@dataclass\nclass Box:\n    x: 'int'\n"
    assert run(helpers + "def square(x): return Box(x).x ** 2").passed


@pytest.mark.parametrize(
    ("code", "outcome", "detail"),
    [
        ("def square(x): return x + 2", "failed", "AssertionError"),
        ("def square(x): return unknown", "error", "NameError: name 'unknown' is not defined"),
        ("def square(x): return x[0]", "error", "TypeError"),
        ("def square(x) return x", "error", "SyntaxError"),
        ("def square(x):\n    return square(x)", "error", "RecursionError"),
        ("def cube(x): return x", "error", "KeyError: 'square'"),
        ("\0", "error", "null bytes"),
        ("x = '\ud800'\n" + RIGHT, "error", "surrogates"),
        ("import numpy\n" + RIGHT, "error", "ModuleNotFoundError"),
        ("def square(x): raise KeyboardInterrupt", "error", "KeyboardInterrupt"),
        ("def square(x): raise SystemExit(0)", "error", "SystemExit"),
        ("import sys\nsys.exit(0)", "error", "SystemExit: 0"),
        ("import os\nos._exit(0)", "error", "ended with status 0 before its tests were done"),
        ("import os\ndef square(x): os._exit(0)", "error", "ended with status 0 before"),
        ("import os\nos._exit(3)", "error", "ended with status 3 before"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)", "error", "killed by SIGSEGV"),
        ("import os\nos.closerange(0, 100)\n" + RIGHT, "error", ""),
    ],
)
def test_wrong_code_does_not(code: str, outcome: str, detail: str) -> None:
    found = run(code)
    assert found.outcome == outcome
    assert detail in found.detail
    assert not found.passed


def test_a_test_without_check() -> None:
    assert run(RIGHT, test="").detail == "KeyError: 'check'"


def test_pretending_to_pass() -> None:
    pretence = """
        import json, os
        for fd in range(64):
            try:
                os.write(fd, json.dumps({"outcome": "passed", "detail": "", "token": "0" * 32}).encode() + b"\\n")
            except OSError:
                pass
        os._exit(0)
    """
    found = run(pretence)
    assert not found.passed
    assert found.outcome == "error"


def test_the_token_is_out_of_sight() -> None:
    # Collects every string that a frame or a living object leads to, while the answer runs.
    search = """
        import gc, re, sys
        found = set()
        frame = sys._getframe()
        values = list(gc.get_objects())
        while frame is not None:
            values += [*frame.f_locals.values(), *frame.f_globals.values()]
            frame = frame.f_back
        for value in values:
            inner = value.values() if isinstance(value, dict) else value
            for item in inner if isinstance(value, (dict, list, tuple, set)) else [value]:
                item = item.decode("latin-1") if isinstance(item, bytes) else item
                if isinstance(item, str) and re.fullmatch("[0-9a-f]{32}", item):
                    found.add(item)
        import os
        tokens = [value for value in [*os.environ.values(), *sys.argv] if re.fullmatch("[0-9a-f]{32}", value)]
        def square(x):
            assert not found and not tokens, (found, tokens)
            return x * x
    """
    assert run(search) == sandbox.Outcome("passed", "", "")


def test_a_loop_is_ended() -> None:
    found = run("while True: pass", QUICK)
    assert (found.outcome, found.detail) == ("timeout", "not done after 1 s")
    deaf = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\ntime.sleep(60)"
    assert run(deaf, QUICK).outcome == "timeout"


@pytest.mark.long
@pytest.mark.parametrize("ending", ["while True: pass", "os._exit(0)", RIGHT])
def test_its_children_are_ended_too(ending: str) -> None:
    # They inherit all that the program has open, and outlive it.
    code = """
        import os, sys, time
        child = os.fork()
        if child == 0:
            while True: time.sleep(60)
        print(child, flush=True)
    """
    found = run(textwrap.dedent(code) + ending, Limits(seconds=10.0 if ending == RIGHT else 3.0, processes=None))
    assert found.outcome == ("passed" if ending == RIGHT else "timeout")
    assert ends_soon(int(found.output))


@pytest.mark.skipif(not LINUX, reason="macOS does not enforce the limit")
def test_memory_is_limited() -> None:
    found = run("x = bytearray(1 << 30)\n" + RIGHT, Limits(memory=256 << 20))
    assert (found.outcome, found.detail) == ("error", "MemoryError")
    assert run("x = bytearray(100 << 20)\n" + RIGHT, Limits(memory=256 << 20)).passed


def test_output_is_cut() -> None:
    found = run("print('line\\n' * 100_000)\n" + RIGHT)
    assert found.passed
    assert len(found.output) == 10_000
    too_much = run("while True: print('x' * 10_000)", Limits(file_size=1 << 20))
    assert too_much.outcome == "error"
    assert "File too large" in too_much.detail


def test_output_explains_a_crash() -> None:
    found = run("import os, sys\nprint('about to crash', file=sys.stderr, flush=True)\nos.abort()")
    assert found.detail == "killed by SIGABRT: about to crash"


def test_files_stay_in_a_folder_that_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = """
        import os, pathlib, tempfile
        pathlib.Path("relative.txt").write_text("x")
        (pathlib.Path.home() / "home.txt").write_text("x")
        with tempfile.NamedTemporaryFile(delete=False) as file: pass
        os.mkdir("locked")
        os.chmod("locked", 0)
        print(os.getcwd(), sorted(os.listdir()), os.path.dirname(file.name))
    """
    found = run("import sys\n" + textwrap.dedent(code) + RIGHT)
    assert found.passed, found
    folder, rest = found.output.split(maxsplit=1)
    assert "home.txt" in rest
    assert "relative.txt" in rest
    assert rest.split()[-1] == folder
    assert not Path(folder).exists()
    assert list(tmp_path.iterdir()) == []


def test_stdin_and_environment_are_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "42")
    found = run("import os, sys\nassert sys.stdin.read() == ''\nprint(sorted(os.environ))\n" + RIGHT)
    assert found.passed, found
    assert "MY_SECRET" not in found.output
    assert "'HOME'" in found.output


def test_limits_hold_in_the_program() -> None:
    code = """
        import resource
        for name in ("AS", "CPU", "FSIZE", "CORE", "NPROC"):
            print(name, *resource.getrlimit(getattr(resource, "RLIMIT_" + name)))
    """
    found = run(textwrap.dedent(code) + RIGHT, Limits(seconds=2.5, memory=512 << 20, file_size=1000))
    assert found.passed, found
    held = {name: {int(x) for x in rest} for name, *rest in map(str.split, found.output.splitlines())}
    expected = {"CPU": {4}, "FSIZE": {1000}, "CORE": {0}, "NPROC": {0}}
    assert {name: held[name] for name in expected} == expected
    if LINUX:  # macOS may refuse it
        assert held["AS"] == {512 << 20}


@pytest.mark.parametrize("name", ["seconds", "memory", "file_size"])
def test_bad_limits(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: .* above 0"):
        Limits(**{name: 0})


def test_a_system_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match="no code is executed: use Linux or macOS"):
        run(RIGHT)


def test_ctrl_c_ends_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    popen = sandbox.subprocess.Popen

    def remembered(*args: object, **kwargs: object) -> object:
        process = popen(*args, **kwargs)  # type: ignore[call-overload]
        started.append(process.pid)
        return process

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sandbox.subprocess, "Popen", remembered)
    monkeypatch.setattr(sandbox, "_received", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("while True: pass")
    assert len(started) == 1
    assert ends_soon(started[0])
