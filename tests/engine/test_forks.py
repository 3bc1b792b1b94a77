"""Forked children: what would wait for the parent's threads is refused, and the rest works."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import llama_cpp
import pytest

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

SCRIPT = """
import os, signal, sys, threading, warnings
import specllama
warnings.simplefilter("ignore")
path, num_threads = {path!r}, {num_threads}
def opened(**more):
    return specllama.Llama(path, n_ctx=256, n_threads=num_threads, n_threads_batch=num_threads, verbose=False, **more)
def texts(llm):
    return [outcome.text for outcome in llm.create_completions(["the cat", "a dog", "no"], max_tokens=5, seed=1)]
def text(llm):
    return llm.create_completion("the cat", max_tokens=5, seed=1)["choices"][0]["text"]
llm = opened()
{before}
if os.fork() == 0:
    signal.alarm(20)
    try:
        print({child})
    except RuntimeError as error:
        print(type(error).__name__, error)
    sys.stdout.flush()
    {end}
print(*map(os.waitstatus_to_exitcode, [os.wait()[1]]))
"""
REFUSED = "RuntimeError this process is a fork, and would wait for threads that only its parent has: fork before"


def said(
    tiny_files: TinyFiles, before: str, child: str, num_threads: int = 1, end: str = "os._exit(0)"
) -> tuple[str, str]:
    """What a child says, and how it ends; "-14" is one that waited."""
    script = SCRIPT.format(path=str(tiny_files.target), before=before, child=child, num_threads=num_threads, end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    *lines, code = done.stdout.splitlines() or [""]
    return "\n".join(lines), code if done.returncode == 0 else done.stderr


ONE_TEXT = "expected = text(llm)"
MANY = "expected = texts(llm)"
STREAM = "stream = llm.create_completions(['the cat'] * 40, max_tokens=200, stream=True); next(stream)"


def test_many_texts_after_many_texts(tiny_files: TinyFiles) -> None:
    assert said(tiny_files, MANY, "texts(llm) == expected") == ("True", "0")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("before", [MANY, STREAM])
@pytest.mark.parametrize("child", ["llm.close()", "None"])
def test_a_child_can_end(tiny_files: TinyFiles, before: str, child: str) -> None:
    assert said(tiny_files, before, child, end="sys.exit(0)") == ("None", "0")


@pytest.mark.parametrize("child", ["next(stream)", "texts(llm)"])
def test_texts_that_the_parent_has_under_way(tiny_files: TinyFiles, child: str) -> None:
    text, code = said(tiny_files, STREAM, child)
    assert text.startswith(REFUSED)
    assert code == "0"


def test_one_text_beside_them(tiny_files: TinyFiles) -> None:
    assert said(tiny_files, STREAM, "len(text(llm)) > 0") == ("True", "0")


@pytest.mark.skipif(b"OPENMP = 1" not in llama_cpp.llama_print_system_info(), reason="needs OpenMP")
@pytest.mark.parametrize("child", ["text(llm)", "text(opened())", "llm.eval([5])"])
def test_threads_of_openmp(tiny_files: TinyFiles, child: str) -> None:
    """llama.cpp's own Llama waits for them forever."""
    text, code = said(tiny_files, ONE_TEXT, child, num_threads=2)
    assert text.startswith(REFUSED)
    assert code == "0"


@pytest.mark.parametrize("child", ["len(texts(llm)) == 3", "llm.close() is None"])
def test_what_needs_none_of_them(tiny_files: TinyFiles, child: str) -> None:
    assert said(tiny_files, ONE_TEXT, child, num_threads=2) == ("True", "0")


def test_one_thread_is_enough(tiny_files: TinyFiles) -> None:
    assert said(tiny_files, ONE_TEXT, "text(llm) == expected") == ("True", "0")


@pytest.mark.parametrize("child", ["text(llm)", "texts(llm)", "llm.eval([5])", "opened()"])
def test_the_gpu_of_the_parent(tiny_files: TinyFiles, child: str) -> None:
    """CUDA refuses a child, and llama.cpp ends the process. Without a GPU here a build for one is pretended."""
    pretended = "import llama_cpp; llama_cpp.llama_supports_gpu_offload = lambda: True; "
    pretended += "llama_cpp.llama_supports_rpc = lambda: False"
    text, code = said(tiny_files, f"{ONE_TEXT}; {pretended}", child)
    assert text.startswith("RuntimeError this process is a fork, and a GPU works for its parent only: start the child")
    assert code == "0"


def test_a_text_that_another_thread_generates(tiny_files: TinyFiles) -> None:
    before = """
begun, go_on = threading.Event(), threading.Event()
def hold(ids, scores):
    begun.set(); go_on.wait(20)
    return scores
thread = threading.Thread(target=llm.create_completion, args=("the",), kwargs={"logits_processor": [hold]}, daemon=True)
thread.start(); begun.wait(20)
"""
    text, code = said(tiny_files, before, "text(llm)")
    assert text.startswith(REFUSED)
    assert code == "0"


def test_a_reader_of_the_vocabulary_does_not_keep_a_child_from_closing(tiny_files: TinyFiles) -> None:
    before = """
begun = threading.Event()
llm.tokenizer_.tokenize = lambda *_: (begun.set(), threading.Event().wait(20))
threading.Thread(target=llm.tokenize, args=(b"the",), daemon=True).start(); begun.wait(20)
"""
    assert said(tiny_files, before + "llm.tokenizer_ = None", "llm.close()", end="os._exit(0)") == ("None", "0")
