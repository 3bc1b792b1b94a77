"""SIGTERM and Ctrl-C in the middle of things: what was said is there, nothing is lost, and the next start works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import faults
import pytest
from faults import files_below

from specllama import cli
from specllama.commands import pull, steps
from specllama.engine import costs as cost_cache

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")

ENDINGS = [(signal.SIGTERM, 143, "terminated"), (signal.SIGINT, 130, "interrupted")]


@pytest.fixture
def models(tiny_files: TinyFiles) -> list[str]:
    return ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "2048"]


def ended(process: subprocess.Popen[str], sent: int) -> tuple[str, str]:
    """Send the signal. What the process had printed, and prints then."""
    try:
        process.send_signal(sent)
        return process.communicate(timeout=60)
    finally:
        process.kill()


def assert_costs_are_whole(cache: Path) -> None:
    """Nothing temporary is left, and every file can be read: what batches cost, and what trials have shown."""
    for name in files_below(cache):
        assert name.endswith(".json")
        content = json.loads((cache / name).read_bytes())
        if not name.startswith("trials"):
            assert cost_cache.read(content["key"])


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("sent", "code", "word"), ENDINGS)
@pytest.mark.parametrize("command", ["generate", "compare"])
def test_the_text_so_far_is_there(
    models: list[str], cache: Path, command: str, sent: int, code: int, word: str
) -> None:
    line = [command, *models, "-p", "the cat", "--temp", "0"]
    with faults.started(*line, "-n", "30000", "-c", "32768") as process:
        assert process.stdout is not None
        assert command == "generate" or "plain decoding" in process.stdout.readline()
        begin = process.stdout.read(4)
        rest, err = ended(process, sent)
    assert process.returncode == code, err
    assert err.splitlines()[-1] == f"specllama: {word}"
    assert "Traceback" not in err
    text = begin + rest
    assert text.strip()
    if command == "generate":
        assert " tokens/s after a prompt of 3" in err
        assert text.endswith("\n")
        again = faults.run(*line, "-n", "8")
        assert again.returncode == 0
        assert text.startswith(again.stdout[:4])
    assert_costs_are_whole(cache)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("seconds", [0.3, 0.6, 0.9, 1.2])
def test_at_any_time(models: list[str], cache: Path, seconds: float) -> None:
    """While Python starts, modules are imported, models are loaded, or text comes: it is not lost."""
    with faults.started("generate", *models, "-p", "the cat", "--temp", "0", "-n", "30000", "-c", "32768") as process:
        time.sleep(seconds)
        _, err = ended(process, signal.SIGTERM)
    assert process.returncode in (143, -signal.SIGTERM)  # the latter before the command has begun
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert_costs_are_whole(cache)


_DROPS_ONE = """
import os, signal, sys, time
from specllama import cli
from specllama.commands import generate

def run(arguments):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(30)
    except SystemExit:
        print("dropped", flush=True)
    time.sleep(30)
    return 0

generate.run = run
sys.exit(cli.main(["generate", "-m", "none.gguf", "-p", "x"]))
"""


@pytest.mark.long
def test_a_signal_that_somebody_drops_comes_again() -> None:
    done = subprocess.run([sys.executable, "-c", _DROPS_ONE], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "dropped\n"
    assert (done.returncode, done.stderr) == (143, "specllama: terminated\n")


def test_a_script_of_messages(models: list[str], cache: Path) -> None:
    """SIGTERM ends the chat, not the answer only."""
    options: dict[str, Any] = {"stdin": subprocess.PIPE}
    with faults.started("chat", *models, "--temp", "0", "-c", "32768", **options) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("the cat\n/stats\n")
        process.stdin.flush()
        begin = process.stdout.read(4)
        rest, err = ended(process, signal.SIGTERM)
    assert process.returncode == 143
    assert err.splitlines()[-1] == "specllama: terminated"
    assert len((begin + rest).splitlines()) == 1
    assert_costs_are_whole(cache)


MEASUREMENTS = {
    "bench --repeat 100000 -o json -n 8 --prompts": "runs",
    "verify --samples 4000 --json -n 8 --prompts": "texts",
    "eval multiply --count 4000 --json -n 4": "records",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("sent", "code", "word"), ENDINGS)
@pytest.mark.parametrize("line", MEASUREMENTS)
def test_measurements_print_what_is_there(
    models: list[str], cache: Path, tmp_path: Path, line: str, sent: int, code: int, word: str
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("the cat")
    with faults.started(*line.split(), *([str(prompts)] if "--prompts" in line else []), *models) as process:
        assert process.stderr is not None
        read = ""
        while " left" not in read:  # a part is done
            read = process.stderr.readline()
            assert read, "it ended too early"
        out, err = ended(process, sent)
    assert process.returncode == code, err
    assert err.splitlines()[-1] == f"specllama: {word}"
    assert "Traceback" not in err
    assert json.loads(out)[MEASUREMENTS[line]]
    assert_costs_are_whole(cache)


@pytest.mark.parametrize(("sent", "code", "word"), ENDINGS)
def test_tune(
    models: list[str],
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    sent: int,
    code: int,
    word: str,
) -> None:
    """When the target is measured, and the draft is half measured."""
    done = steps.Steps.done

    def disturbed(self: steps.Steps, name: str, number: int, *rest: Any) -> None:
        done(self, name, number, *rest)
        if name == "batches of the draft" and number == 20:
            signal.raise_signal(sent)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(steps.Steps, "done", disturbed)
    try:
        assert cli.main(["tune", *models]) == code
    finally:
        signal.signal(signal.SIGINT, before)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1] == f"specllama: {word}"
    assert len(files_below(cache)) == 1
    assert_costs_are_whole(cache)


def quantize_that_gets(sent: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The command, which sends itself a signal when it hears of the first tensor."""
    script = (
        "import os\n"
        "from specllama import cli\n"
        "from specllama.commands.steps import Steps\n"
        f"Steps.done = lambda *step: os.kill(os.getpid(), {int(sent)})\n"
        "raise SystemExit(cli.main())\n"
    )
    return faults.finished([sys.executable, faults.__file__, faults.HEALTHY, "-c", script, "quantize", *arguments])


@pytest.mark.parametrize(("sent", "code", "word"), ENDINGS)
def test_quantize_takes_its_process_with_it(
    tiny_files: TinyFiles, tmp_path: Path, sent: int, code: int, word: str
) -> None:
    done = quantize_that_gets(sent, str(tiny_files.target), "Q8_0", "-o", str(tmp_path / "small.gguf"))
    said = done.stderr.splitlines()
    assert (done.returncode, done.stdout, said[-1]) == (code, "", f"specllama: {word}")
    assert all("tensors of" in line for line in said[:-1]), "what it makes, and nothing else"
    assert list(tmp_path.iterdir()) == []


def test_a_killed_quantize_leaves_no_model(tiny_files: TinyFiles, tmp_path: Path) -> None:
    line = [str(tiny_files.target), "Q8_0", "-o", str(tmp_path / "small.gguf")]
    assert quantize_that_gets(signal.SIGKILL, *line).returncode == -signal.SIGKILL
    assert [path for path in tmp_path.iterdir() if path.suffix == ".gguf"] == []
    assert faults.run("quantize", *line).returncode == 0
    assert faults.run("generate", "-m", str(tmp_path / "small.gguf"), "-p", "x", "-n", "2", "-t", "1").returncode == 0


def test_a_worker_whose_parent_was_killed_removes_its_file(tiny_files: TinyFiles, tmp_path: Path) -> None:
    unfinished = tmp_path / ".small.gguf.partial"
    worker = [
        sys.executable,
        "-c",
        "import sys; from specllama.models._quantize_worker import main; sys.exit(main(sys.argv[1:]))",
        str(tiny_files.target),
        str(unfinished),
        "Q8_0",
        "1",
    ]
    reading, writing = os.pipe()
    os.close(reading)  # nobody hears it
    done = subprocess.run(worker, stdout=writing, stderr=subprocess.PIPE, check=False, timeout=60)
    os.close(writing)
    assert done.returncode == 1
    assert not unfinished.exists()


# --- the mechanism ---------------------------------------------------------------------------------------------------


@pytest.fixture
def listed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """What `specllama pull --list` does instead."""

    def do(action: Any) -> int:
        monkeypatch.setattr(pull, "_list", action)
        return cli.main(["pull", "--list"])

    return do


def test_the_second_signal_does_not_disturb_the_end(listed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    done = []

    def work() -> None:
        try:
            assert callable(signal.getsignal(signal.SIGTERM))
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            done.append(True)

    assert listed(work) == 143
    assert done == [True]
    assert capsys.readouterr() == ("", "specllama: terminated\n")
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


@pytest.mark.parametrize("handler", [signal.SIG_IGN, lambda *_: None])
def test_who_handles_the_signal_or_ignores_it_goes_on(listed: Any, handler: Any) -> None:
    before = signal.signal(signal.SIGTERM, handler)
    try:
        assert listed(lambda: signal.raise_signal(signal.SIGTERM)) == 0
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread(listed: Any) -> None:
    import threading

    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(listed(lambda: time.sleep(0))))
    thread.start()
    thread.join()
    assert codes == [0]


@pytest.mark.parametrize("module", ["specllama.cli", "specllama.commands.chat", "importlib.metadata"])
def test_ctrl_c_while_the_command_is_imported(module: str) -> None:
    """It ends as Ctrl-C does later, without a traceback."""
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        f"sys.modules.pop({module!r}, None)\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from specllama.__main__ import main\n"
        "sys.exit(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", script, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "specllama: interrupted\n")
