"""A house may be taken away: the core needs no server and its kind, no measuring and training, and no kernels."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

import specllama
from specllama import _core

HOUSES = {
    "serve": ("batch", "chat", "conversation.py", "llm_plugin.py", "ray.py", "server"),
    "lab": ("cli.py", "commands", "evidence", "prompts", "training"),
    "kernels": (),  # they are a part of the extension, so they are switched off
}
CORE = (
    *("engine/test_engine.py", "engine/test_prefixes.py", "loop/test_memory_kinds.py", "many/test_many_prompts.py"),
    *("drafts/test_head_and_model.py", "drop_in/test_saved_states.py", "grammars/test_gbnf.py"),
)
"""Some of the core's tests, of each of its rooms."""
WITHOUT_CHATS = "not chat"


@pytest.fixture(params=HOUSES)
def core(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a copy of the package in which a house is missing. Nothing is found in the installed package."""
    package = tmp_path / "specllama"
    shutil.copytree(Path(specllama.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(_core.__file__, package)
    for name in HOUSES[request.param]:
        path = package / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if request.param == "kernels":
        monkeypatch.setenv("SPECLLAMA_KERNELS", "off")
    start = package / "__init__.py"
    text = start.read_text(encoding="utf-8")
    assert "__path__ = extend_path(__path__, __name__)\n" in text
    start.write_text(text.replace("__path__ = extend_path(__path__, __name__)\n", ""), encoding="utf-8")
    return tmp_path


@pytest.mark.long
def test_the_cores_tests_pass_without_a_house(core: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-pno:cacheprovider", "-m", "not long", "-k", WITHOUT_CHATS]
        + [str(ROOT / "tests" / name) for name in CORE],
        cwd=core,
        env={**os.environ, "PYTHONPATH": str(core), "SPECLLAMA_MOST_CASES": "2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.findall(r"(\d+) passed", done.stdout)[-1]) > 50
