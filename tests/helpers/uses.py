"""Uses of a Llama that may end the process: each in a child of its own.

As a program it reads cases from standard input, a line of JSON each, and answers with what came of each.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

_MOST_SECONDS = 60
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 12}


class Uses:
    """A process that has imported specllama, and has a child for each case."""

    def __init__(self, target: Path, draft: Path, files: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(target), str(draft), json.dumps(dict(files))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "GGML_NO_BACKTRACE": "1"},
        )

    def outcome(self, kind: str, case: Any) -> str:
        """What came of it: "ok" and what it says, an error's type and message, or the signal that ended it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([kind, case]) + "\n")
        self._process.stdin.flush()
        return str(json.loads(self._process.stdout.readline()))

    def imports(self, name: str) -> None:
        """Import a module, with all that it takes long to import, once for all children."""
        self.outcome("import", name)

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


@contextlib.contextmanager
def started(target: Path, draft: Path, files: Mapping[str, str] | None = None) -> Iterator[Uses]:
    """For a test; `files` are those of `differential.written`."""
    uses = Uses(target, draft, files or {})
    try:
        yield uses
    finally:
        uses.close()


def in_child(work: Callable[[], str]) -> str:
    """What a forked child says, or the signal that ended it; 14 is one that waits."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(_MOST_SECONDS)
        try:
            said = work()
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode("utf-8", "backslashreplace")[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode("utf-8", "replace")
    _, status = os.waitpid(child, 0)
    return f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else said


def _opened(target: str, **kwargs: Any) -> Any:
    import specllama

    return specllama.Llama(target, **{"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **kwargs})


def _text(llm: Any) -> str:
    return str(llm.create_completion("the cat", **GREEDY)["choices"][0]["text"])


def _open(target: str, draft: str, kwargs: dict[str, Any]) -> str:
    """A text with the draft, and one without."""
    given = {"draft_model": draft, **kwargs}
    llm = _opened(target, **given)
    drafted = _text(llm)
    llm.draft_model = None
    llm.reset()
    return "ok" if drafted == _text(llm) else f"{drafted!r} instead of {_text(llm)!r}"


def _detokenize(target: str, _draft: str, given: list[Any]) -> str:
    """By each method that takes tokens; what is refused leaves the object as it was."""
    llm, (name, tokens, more) = _opened(target), given
    before = _text(llm)
    try:
        if name == "detokenize":
            said = llm.detokenize(tokens, **more)
        elif name == "tokenizer":
            said = llm.tokenizer().decode(tokens)
        elif name == "eval":
            said = llm.eval(tokens)
        else:
            said = llm.create_completion(tokens, **GREEDY)["choices"][0]["text"]
    finally:
        assert _text(llm) == before
    return f"ok {said!r}"


def _fork(target: str, draft: str, case: list[Any]) -> str:
    """A child of one that has done something, after which both do more."""
    drafts, before, child, after = case
    llm = _opened(target, max_parallel=3, **({"draft_model": draft} if drafts else {}))
    streams: list[Any] = []

    def do(action: str) -> str:
        if action == "text":
            return _text(llm)
        if action == "texts":
            return " | ".join(one.text for one in llm.create_completions(["the cat", "a dog"], **GREEDY))
        if action == "stream":
            streams.append(llm.create_completion("the cat", **{**GREEDY, "max_tokens": 40}, stream=True))
            return str(next(streams[-1])["choices"][0]["text"])
        if action == "streams":
            streams.append(llm.create_completions(["the cat"] * 9, **{**GREEDY, "max_tokens": 60}, stream=True))
            return str(next(streams[-1]).text)
        if action == "next":
            return str(bool(next(streams[-1]))) if streams else ""
        if action == "end":
            streams.clear()
        if action == "state":
            llm.load_state(llm.save_state())
        if action == "reset":
            llm.reset()
        return ""

    def tried(actions: list[str]) -> list[str]:
        said = []
        for action in actions:
            try:
                said.append(f"{action}={do(action)}")
            except Exception as error:
                said.append(f"{action}!{type(error).__name__}: {error}")
        return said

    first = tried(before)
    in_it = in_child(lambda: json.dumps(tried(child)))
    return json.dumps([first, in_it, tried(after)])


def _differ(_target: str, _draft: str, case: dict[str, Any]) -> str:
    """What differs from a fresh object without a draft."""
    return "ok" + differential.difference(json.loads(sys.argv[3]), case)


def _store(_target: str, _draft: str, case: dict[str, Any]) -> str:
    """What is answered over a store of prefixes, and the warnings."""
    return stores.said(case)


def _kill(_target: str, _draft: str, case: dict[str, Any]) -> str:
    """How a process ended that was killed while it used a store."""
    return stores.killed(case)


def _learn(target: str, _draft: str, case: dict[str, Any]) -> str:
    """What came of learning from use, or of answering, which may have been killed."""
    return learners.done(target, case)


def _look(target: str, _draft: str, case: dict[str, Any]) -> str:
    """What a reader finds after that."""
    return learners.looked_at(target, case["weights"], case["cache"])


KINDS = {"differ": _differ, "open": _open, "tokens": _detokenize, "fork": _fork, "store": _store, "kill": _kill}
KINDS |= {"learn": _learn, "look": _look}

if __name__ == "__main__":
    import differential  # with all that it imports: once, for all children
    import learners
    import stores

    import specllama

    specllama.Llama  # noqa: B018 - it is imported when it is asked for, and a child would do it anew

    for line in sys.stdin:
        kind, case = json.loads(line)
        if kind == "import":
            importlib.import_module(case)
            answer = "ok"
        else:
            answer = in_child(lambda: KINDS[kind](sys.argv[1], sys.argv[2], case))  # noqa: B023
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
