"""Models that are opened, closed and given drafts in several threads at once, and objects over them.

In a child process: it could end it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from conftest import TinyFiles

ROUNDS = int(os.environ.get("SPECLLAMA_ROUNDS", "160"))  # of all threads together; more on demand: 1,000 take 5 seconds

OPEN_AND_CLOSE = """
import random, sys, threading
import specllama

target, draft, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
settings = dict(n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False, seed=1)
expected = specllama.Llama(target, **settings)("the cat", max_tokens=3, temperature=0)["choices"][0]["text"]
wrong = []

def work(number):
    rng, llm = random.Random(number), None
    for _ in range(rounds // 8):
        try:
            if llm is None:
                llm = specllama.Llama(target, draft_model=rng.choice([None, draft]), **settings)
            what = rng.randrange(5)
            if what == 0:
                llm.draft_model = draft
            elif what == 1:
                llm.draft_model = None
            elif what == 2:
                specllama.Llama(target + "nowhere", **settings)
            elif what == 3:
                assert llm("the cat", max_tokens=3, temperature=0)["choices"][0]["text"] == expected
            else:
                llm.close()
                llm = None
        except specllama.ModelNotFoundError:
            assert what == 2
        except BaseException as error:
            wrong.append(repr(error))
            raise

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all is well" if not wrong else wrong)
print("and so is stderr", file=sys.stderr)
"""

GRAMMARS = """
import sys, threading
import specllama
from specllama import _core
from specllama.backend.libllama import API
from specllama.grammars.gbnf_matcher import GbnfVocabulary
from specllama.drop_in.lending import lent

llm = specllama.Llama(sys.argv[1], n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False)
vocab = lent(llm).vocab
grammars = GbnfVocabulary(vocab)

sys.setswitchinterval(1e-6)

def work():
    for _ in range(3000):
        grammars.constraint('root ::= "a"', "root")
        _core.TokenTexts(API, vocab)

threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("all is well")
"""

PLACES = """
import sys, specllama

llm = specllama.Llama(sys.argv[1], draft_model=sys.argv[2] or None, n_threads=1, n_threads_batch=1, verbose=False,
                      **eval(sys.argv[3]))
prompts = [f"the cat {number}" for number in range(llm.max_parallel)]
outcomes = llm.create_completions(prompts, max_tokens=4, seed=3)
llm.max_parallel = 1
alone = [llm.create_completion(prompt, max_tokens=4, seed=3) for prompt in prompts]
texts = [outcome.response["choices"][0]["text"] for outcome in outcomes]
assert texts == [response["choices"][0]["text"] for response in alone]
print("all is well")
"""


def said_by(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "GGML_NO_BACKTRACE": "1"},
    )


@pytest.mark.parametrize("kernels", ["auto", "off"])
def test_loading_in_eight_threads(tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, kernels: str) -> None:
    monkeypatch.setenv("SPECLLAMA_KERNELS", kernels)
    done = said_by(OPEN_AND_CLOSE, str(tiny_files.target), str(tiny_files.good), str(ROUNDS))
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr
    assert done.stderr.endswith("and so is stderr\n"), "llama_cpp exchanges it while it loads"


def test_grammars_of_eight_threads(tiny_files: TinyFiles) -> None:
    """They once entered pybind11's table of objects without the GIL. On two cores most runs showed it."""
    done = said_by(GRAMMARS, str(tiny_files.target))
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("draft", "settings"),
    [
        (False, {"n_batch": 4}),
        (False, {"n_batch": 1}),
        (False, {"n_ctx": 3}),
        (False, {"n_ctx": 100, "max_parallel": 256}),
        (False, {"n_ctx": 100, "max_parallel": 256, "cache_tokens": 256, "n_batch": 1}),
        (True, {"draft_kwargs": {"n_batch": 1}}),
        (True, {"draft_kwargs": {"n_ctx": 1}}),
        (True, {"n_ctx": 1, "n_batch": 1}),
    ],
)
def test_more_texts_than_a_batch_of_one_text_holds(
    tiny_files: TinyFiles, draft: bool, settings: dict[str, object]
) -> None:
    done = said_by(PLACES, str(tiny_files.target), str(tiny_files.good) if draft else "", repr(settings))
    assert (done.returncode, done.stdout) == (0, "all is well\n"), done.stderr
