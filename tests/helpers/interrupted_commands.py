"""Ctrl-C at many places of a command, a server or a training: it ends as it should, and the next one works.

As a program it runs in a child, as `interrupted_uses` does. Places where modules are imported are met before it begins.
"""

from __future__ import annotations

import contextlib
import gc
import http.client
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from interrupted_uses import interrupt_each
from interrupts import Interruption

_INTERRUPTED = 130
_PROMPTS = ("the cat", "a dog and", "on the mat", "the cat")
_SMALL = ("-t", "1", "-c", "256")
_KEPT = 2_000_000  # bytes that caches of other modules may take. An open Llama takes 25 million
_KEPT_BY_PYTORCH = 20_000_000
_SECONDS = 60.0  # of waiting for a server, on a machine that has other work


def interrupted(use: str, models: list[Path], rounds: int) -> int:
    """Interrupt a use in a child process, at so many places. Returns how often; fails if the child does.

    Args:
        use: one of the ``uses`` in `_main`.
        models: the target, its draft, and a target with four layers.
        rounds: the most interruptions.
    """
    given = json.dumps([use, list(map(str, models)), rounds])
    done = subprocess.run([sys.executable, __file__, given], capture_output=True, text=True, check=False, timeout=7000)
    assert done.returncode == 0, (done.returncode, done.stdout[-500:], done.stderr[-3000:])
    return int(done.stdout.split()[-1])


def _main(use: str, models: list[str], rounds: int) -> int:
    target, draft, deep = models
    pair = ("-m", target, "-md", draft, *_SMALL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        uses: dict[str, Callable[[], int]] = {
            "generate": lambda: _command(["generate", *pair, "-p", "the cat", "-n", "8", "--temp", "0"], rounds),
            "chat": lambda: _command(
                ["chat", *pair, "-n", "8", "--temp", "0"], rounds, typed="the cat\n/help\nthe dog\n", goes_on=True
            ),
            "bench": lambda: _command(
                ["bench", *pair, "--limit", "1", "-n", "4", "--modes", "auto"], rounds, is_timed=True
            ),
            "drafts": lambda: _command(["drafts", target], rounds),
            "batch": lambda: _batch(folder, pair, rounds),
            "quantize": lambda: _quantize(folder, target, rounds),
            "server": lambda: _server(pair, rounds),
            "training": lambda: _training(folder, deep, rounds),
        }
        return uses[use]()


def _said(line: list[str], typed: str = "") -> tuple[Callable[[], int], Callable[[], tuple[str, str]]]:
    """A call of the command, and what it has written to stdout and stderr since this was asked last."""
    from specllama.__main__ import main

    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        sys.argv = ["specllama", *line]
        sys.stdin = io.StringIO(typed)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            return main()

    def said() -> tuple[str, str]:
        found = out.getvalue(), err.getvalue()
        for stream in (out, err):
            stream.seek(0)
            stream.truncate()
        return found

    return call, said


def _ended(call: Callable[[], int], interruption: Interruption, *, goes_on: bool = False) -> Callable[[], None]:
    """The call, but Ctrl-C comes out of it as KeyboardInterrupt."""

    def run() -> None:
        code = call()
        if code == _INTERRUPTED or (goes_on and code == 0 and interruption.where is not None):
            raise KeyboardInterrupt
        assert code == 0, code

    return run


def _command(line: list[str], rounds: int, *, typed: str = "", goes_on: bool = False, is_timed: bool = False) -> int:
    """A command that leaves no file.

    Args:
        line: its arguments.
        rounds: the most interruptions.
        typed: what stdin has.
        goes_on: whether Ctrl-C may end a part of it only.
        is_timed: whether it prints times.
    """
    call, said = _said(line, typed)
    assert call() == 0, said()
    expected = said()[0]

    def run(interruption: Interruption) -> bool:
        was = interruption.of(_ended(call, interruption, goes_on=goes_on))
        _, err = said()
        assert "Traceback" not in err, err
        assert "Exception ignored" not in err, err
        assert call() == 0, said()
        assert is_timed or said()[0] == expected
        return was

    return interrupt_each(run, rounds, kept=_KEPT)


def _batch(folder: Path, pair: tuple[str, ...], rounds: int) -> int:
    """The same command goes on, and no line is answered twice."""
    source, output = folder / "prompts.jsonl", folder / "answers.jsonl"
    source.write_text("".join(json.dumps({"prompt": one, "temperature": 0.0}) + "\n" for one in _PROMPTS))
    files = ["--input", str(source), "--output", str(output)]
    call, said = _said(["batch", *pair, *files, "--parallel", "2", "-n", "8"])

    def answers() -> dict[int, str]:
        found = [json.loads(each) for each in output.read_bytes().splitlines()]
        output.unlink()
        assert len(found) == len(_PROMPTS)
        assert {path.name for path in folder.iterdir()} <= {source.name, f"{output.name}.lock"}
        return {each["index"]: each["text"] for each in found}

    assert call() == 0, said()
    expected = answers()

    def run(interruption: Interruption) -> bool:
        was = interruption.of(_ended(call, interruption))
        assert "Traceback" not in said()[1]
        assert call() == 0, said()
        assert answers() == expected
        return was

    return interrupt_each(run, rounds, kept=_KEPT)


def _quantize(folder: Path, target: str, rounds: int) -> int:
    """The file is whole, or not there."""
    output = folder / "made.gguf"
    call, said = _said(["quantize", target, "Q8_0", "-o", str(output), "-t", "1"])
    assert call() == 0, said()
    expected = output.read_bytes()

    def run(interruption: Interruption) -> bool:
        output.unlink(missing_ok=True)
        was = interruption.of(_ended(call, interruption))
        assert "Traceback" not in said()[1]
        assert [path.name for path in folder.iterdir()] in ([], [output.name])
        if output.exists():
            assert output.read_bytes() == expected
        return was

    return interrupt_each(run, rounds, kept=_KEPT)


def _server(pair: tuple[str, ...], rounds: int) -> int:
    """It starts, answers a request and a stream, and ends. The signal comes in its thread, which is the main one."""
    import specllama
    from specllama.__main__ import main

    expected: list[str] = []

    def run(interruption: Interruption) -> bool:
        err, texts = io.StringIO(), list[str]()
        sys.argv = ["specllama", "serve", *pair, "--port", "0"]
        ended = threading.Event()
        client = threading.Thread(target=_ask, args=(err, texts, ended))

        def serve() -> int:
            with contextlib.redirect_stderr(err), contextlib.redirect_stdout(err):
                return main()

        client.start()
        was = interruption.of(_ended(serve, interruption))
        for llm in [one for one in gc.get_objects() if type(one) is specllama.Llama]:
            llm.close()  # FastAPI's caches keep it, and Ctrl-C may have come while it was closed: the process would end
        ended.set()
        client.join(_SECONDS)
        assert not client.is_alive()
        said = err.getvalue()
        assert "Traceback" not in said, said
        if not was:
            assert len(texts) == 2, (texts, said)
            expected[:] = expected or texts
        assert all(text in ("", whole) for text, whole in zip(texts, expected, strict=False)), (texts, expected)
        return was

    return interrupt_each(run, rounds, kept=_KEPT)


def _ask(err: io.StringIO, texts: list[str], ended: threading.Event) -> None:
    """The client: what it was answered, whole, goes to `texts`. Then it ends the server as `kill` does."""
    found, last = None, time.monotonic() + _SECONDS
    while found is None and not ended.is_set() and time.monotonic() < last:
        found = re.search(r"on http://([\d.]+):(\d+)", err.getvalue())
        time.sleep(0.001)
    for stream in (False, True) if found is not None else ():
        body = {"prompt": "the cat", "max_tokens": 8, "temperature": 0.0, "stream": stream}
        with contextlib.suppress(OSError, http.client.HTTPException), _connected(found) as connection:
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = answer.read().decode()
            if answer.status == 200:
                texts.append(_whole(said) if stream else json.loads(said)["choices"][0]["text"])
    if not ended.is_set():
        os.kill(os.getpid(), signal.SIGTERM)


@contextlib.contextmanager
def _connected(found: re.Match[str]) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(found[1], int(found[2]), timeout=_SECONDS)
    with contextlib.closing(connection):
        yield connection


def _whole(said: str) -> str:
    """The text of a stream; empty if it was stopped."""
    if "[DONE]" not in said or '"error"' in said:
        return ""
    events = [json.loads(line[6:]) for line in said.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event["choices"])


def _training(folder: Path, target: str, rounds: int) -> int:
    """The same call goes on, and makes a head. Places of PyTorch's own do not count."""
    import specllama
    from specllama.models import read_head
    from specllama.training.train import Budget, trained

    model = folder / "models" / "model.gguf"
    model.parent.mkdir()
    shutil.copyfile(target, model)
    cache = Path(os.environ["SPECLLAMA_CACHE"])

    def train() -> None:
        with trained(str(model), Budget(tokens=60, answer=16, parallel=2), kind="medusa", threads=1) as made:
            made.keep("Q8_0")

    def check() -> None:
        head = model.with_name("medusa-model.gguf")
        assert sorted(path.name for path in model.parent.iterdir()) == [head.name, model.name]
        read_head(head)
        with specllama.Llama(str(model), draft_model=str(head), n_ctx=256, n_threads=1, verbose=False) as llm:
            llm.create_completion("the cat", max_tokens=4)
        head.unlink()
        shutil.rmtree(cache / "training")

    def run(interruption: Interruption) -> bool:
        was = interruption.of(train)
        if was:
            assert {path.name for path in model.parent.iterdir()} <= {model.name, "medusa-model.gguf"}
            model.with_name("medusa-model.gguf").unlink(missing_ok=True)
            train()
        check()
        return was

    within = str(Path(specllama.__file__).parent)
    return interrupt_each(run, rounds, within=within, kept=_KEPT_BY_PYTORCH)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as cache:
        os.environ["SPECLLAMA_CACHE"] = os.environ["HOME"] = cache
        sys.stdout.write(f"{_main(*json.loads(sys.argv[1]))}\n")
