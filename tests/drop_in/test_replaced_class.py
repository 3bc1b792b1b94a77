"""specllama.Llama in the place of llama_cpp.Llama, under an application that knows nothing of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from conftest import TinyFiles

ITSELF = "llama_cpp.Llama = specllama.Llama"
WITH_A_DRAFT = """
class Drafting(specllama.Llama):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, draft_model=DRAFT, num_draft_tokens=4, **kwargs)


llama_cpp.Llama = Drafting
"""
BOTH_NAMES = WITH_A_DRAFT + "import llama_cpp.llama\nllama_cpp.llama.Llama = Drafting\n"

APPLICATION = """
from llama_cpp import Llama

llm = Llama(TARGET, n_ctx=256, n_threads=1, verbose=False)
settings = {"max_tokens": 12, "temperature": 0.0}
messages = [{"role": "user", "content": "the cat"}]
found = {
    "completion": llm.create_completion("the cat sat", **settings)["choices"][0]["text"],
    "stream": "".join(chunk["choices"][0]["text"] for chunk in llm("the cat sat", stream=True, **settings)),
    "chat": llm.create_chat_completion(messages, **settings)["choices"][0]["message"]["content"],
    "class": type(llm).__name__,
}
if hasattr(llm, "total_stats"):
    found["drafted"] = llm.total_stats.num_draft_tokens
    found["draft"] = type(llm.draft_model).__module__
print(json.dumps(found))
llm.close()
"""


def run(tiny_files: TinyFiles, replacement: str, application: str = APPLICATION) -> dict[str, Any]:
    """What the application says in a process of its own, in which the class was replaced before."""
    names = f"TARGET, DRAFT = {str(tiny_files.target)!r}, {str(tiny_files.good)!r}\n"
    script = f"import json\nimport llama_cpp\nimport specllama\n{names}{replacement}\n{textwrap.dedent(application)}"
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, env=os.environ)
    assert done.returncode == 0, done.stderr[-2000:]
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def theirs(tiny_files: TinyFiles) -> dict[str, Any]:
    """What llama_cpp's own class says."""
    return run(tiny_files, "")


@pytest.mark.parametrize("replacement", [ITSELF, WITH_A_DRAFT, BOTH_NAMES], ids=["itself", "draft", "both names"])
def test_an_application_gets_the_same_text(tiny_files: TinyFiles, theirs: dict[str, Any], replacement: str) -> None:
    ours = run(tiny_files, replacement)
    texts = ("completion", "stream", "chat")
    assert {name: ours[name] for name in texts} == {name: theirs[name] for name in texts}
    assert theirs["class"] == "Llama"
    assert "drafted" not in theirs
    if replacement == ITSELF:
        assert (ours["drafted"], ours["draft"]) == (0, "builtins")
    else:
        assert ours["class"] == "Drafting"
        assert ours["drafted"] > 0
        assert ours["draft"] == "specllama.drop_in.draft_loading", (
            "the draft of a draft would have one, too, without an end"
        )


def test_what_comes_with_specllama_works_with_it(tiny_files: TinyFiles) -> None:
    """Parts that are imported later must not take the class that stands there then for the one that was extended."""
    application = """
        llm = llama_cpp.Llama(TARGET, n_ctx=256, n_threads=1, verbose=False)
        tuned = specllama.tune.run(llm, repeats=1, n_past=8)
        bench = specllama.bench.run(llm, ["the cat"], modes=["auto"], max_tokens=4, curve=True)
        answer = list(specllama.Conversation(llm, max_tokens=4, temperature=0.0).say("the cat"))
        found = {"models": sorted(tuned.curves), "curves": sorted(bench.curves), "draft": bench.machine["draft"]}
        print(json.dumps({**found, "draft": bool(found["draft"]), "tokens": len(answer)}))
        llm.close()
    """
    both = ["draft", "target"]
    assert run(tiny_files, WITH_A_DRAFT, application) == {"models": both, "curves": both, "draft": True, "tokens": 4}
