"""Threads that are in native code, and objects that are open, when the interpreter ends: nobody hears of them.

In child processes, which would be ended by it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinyFiles

BEGIN = """
import sys, threading, time
import llama_cpp, numpy as np, specllama

target, draft = sys.argv[1:]
O = dict(n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
A = dict(max_tokens=200, temperature=1.0)

def for_ever(step):
    begun = threading.Event()
    def work():
        while True:
            step()
            begun.set()
    threading.Thread(target=work, daemon=True).start()
    assert begun.wait(60)
    time.sleep(0.05)
"""
OPEN = BEGIN + "llm = specllama.Llama(target, draft_model=draft, **O)\n"
WAYS = {
    "plain": BEGIN + "llm = specllama.Llama(target, **O)\nfor_ever(lambda: llm.create_completion('a', **A))",
    "drafted": OPEN + "for_ever(lambda: llm.create_completion('a', **A))",
    "stream": OPEN + "for_ever(lambda: list(llm.create_completion('a', stream=True, **A)))",
    "several": OPEN + "for_ever(lambda: llm.create_completions(['a'] * 12, progress=False, **A))",
    "processor": OPEN
    + "def slow(ids, scores):\n    sum(range(2000))\n    return scores\n"
    + "for_ever(lambda: llm.create_completion('a', logits_processor=llama_cpp.LogitsProcessorList([slow]), **A))",
    "function": BEGIN
    + "class Five:\n    def __call__(self, ids, **_):\n        return np.full(3, sum(range(999)) % 7 + 3, np.intc)\n"
    + "llm = specllama.Llama(target, draft_model=Five(), **O)\n"
    + "for_ever(lambda: llm.create_completion('a', **A))",
    "grammar": OPEN
    + "grammar = llama_cpp.LlamaGrammar.from_string('root ::= [a-z ]+', verbose=False)\n"
    + "for_ever(lambda: llm.create_completion('a', grammar=grammar, **A))",
    "schema": OPEN
    + "form = {'type': 'json_object', 'schema': {'type': 'object', 'properties': {'a': {'type': 'string'}}}}\n"
    + "for_ever(lambda: llm.create_chat_completion([{'role': 'user', 'content': 'a'}], response_format=form, **A))",
    "loading": BEGIN + "for_ever(lambda: specllama.Llama(target, **O))",
    "loading aloud": BEGIN
    + "O['verbose'] = True\nimport io\nsys.stderr = io.StringIO()\nfor_ever(lambda: specllama.Llama(target, **O))",
    "loading a draft": BEGIN
    + "llm = specllama.Llama(target, **O)\nfor_ever(lambda: setattr(llm, 'draft_model', draft))",
    "engine": BEGIN
    + "engine = specllama.Engine.open(target, draft=draft, n_ctx=256, n_threads=1)\n"
    + "for_ever(lambda: list(engine.generate([1, 2, 3], max_tokens=200)))",
    "eval": OPEN + "for_ever(lambda: (llm.reset(), llm.eval([5] * 200)))",
    "states": OPEN + "for_ever(lambda: (llm.create_completion('a', max_tokens=2), llm.load_state(llm.save_state())))",
    "server": OPEN
    + """
import json, urllib.request, uvicorn
from specllama import server
app, bound = server.create_app(llm, name="tiny"), server.bound_socket("127.0.0.1", 0)
running = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
threading.Thread(target=running.run, kwargs={"sockets": [bound]}, daemon=True).start()
while not running.started:
    time.sleep(0.01)
def ask():
    body = json.dumps({"prompt": "a", "max_tokens": 200, "stream": True}).encode()
    url = f"http://127.0.0.1:{bound.getsockname()[1]}/v1/completions"
    urllib.request.urlopen(urllib.request.Request(url, body, {"content-type": "application/json"})).read()
for_ever(ask)
""",
}
HELD = "import ssl\nssl.holds = lambda: None  # a library, and with it the names of this module\n"


def assert_ends_silently(tiny_files: TinyFiles, script: str) -> None:
    """The exit code is 0, and nothing is on stderr."""
    command = [sys.executable, "-c", script, str(tiny_files.target), str(tiny_files.good)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("way", WAYS)
def test_a_daemon_thread_that_is_at_work(tiny_files: TinyFiles, way: str) -> None:
    """Before, the process aborted in 23 of 24 runs: Python unwinds the thread, and destructors took the GIL back."""
    assert_ends_silently(tiny_files, WAYS[way])


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_the_same_many_times(tiny_files: TinyFiles, way: str) -> None:
    for _ in range(int(os.environ.get("SPECLLAMA_ROUNDS", "3"))):
        assert_ends_silently(tiny_files, WAYS[way])


@pytest.mark.parametrize("closes", [True, False])
def test_what_goes_when_the_names_of_modules_are_gone(tiny_files: TinyFiles, closes: bool) -> None:
    script = """
engine = specllama.Engine.open(target, draft=draft, n_ctx=256, n_threads=1)
generation = engine.generate([1, 2, 3], max_tokens=50)
next(iter(generation))
stream = llm.create_completion("a", max_tokens=50, stream=True)
next(stream)
tokens = llm.generate_tokens("a", max_tokens=50)
many = specllama.Llama(target, **O)
outcomes = many.create_completions(["a"] * 30, max_tokens=50, stream=True)
next(outcomes)
"""
    ending = "llm.close()\n" if closes else script
    assert_ends_silently(tiny_files, HELD + OPEN + ending)


def test_an_error_of_a_close_is_still_seen_while_python_runs(tiny_files: TinyFiles) -> None:
    script = """
import gc
from specllama.engine.engine import Engine
said = []
sys.unraisablehook = lambda unraisable: said.append(unraisable.exc_type)
class Failing(Engine):
    def close(self):
        raise ZeroDivisionError
Failing.__new__(Failing)
gc.collect()
assert said == [ZeroDivisionError], said
"""
    assert_ends_silently(tiny_files, BEGIN + script)
