"""Processes of ours find the modules that their parent has found, wherever it was started, and no others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import specllama
from specllama.evidence.eval import sandbox
from specllama.models.quantize import quantize

if TYPE_CHECKING:
    from conftest import TinyFiles

USES = {
    "quantize": "from specllama.models.quantize import quantize\nquantize(model, 'Q8_0', output='q.gguf')",
    "trial": "from specllama.backend.trial import tried\n"
    "found = tried('_product_trial', [], key={'where': here})\nassert 'random' not in found.reason, found",
    "bench": "from specllama.evidence.bench import against\n"
    "for name in ('llama_cpp', 'specllama'):\n"
    "    with against._Side(name, {'model_path': model, 'n_ctx': 64, 'n_threads': 1}):\n        pass",
    "eval": "from specllama.evidence.eval.sandbox import run_tests\n"
    "assert run_tests(['def f(): return 1', 'def check(f): assert f() == 1'], 'f').outcome == 'passed'",
}


def run_in(folder: Path, tiny_files: TinyFiles, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script that lies elsewhere, in a working directory."""
    file = folder.with_name("script.py")
    file.write_text(f"model, here = {str(tiny_files.target)!r}, {str(folder)!r}\n{script}\n", encoding="utf-8")
    return subprocess.run(
        [sys.executable, str(file)], cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("use", USES)
def test_a_file_of_the_working_directory_is_no_module(tiny_files: TinyFiles, tmp_path: Path, use: str) -> None:
    """Before, ``python -m`` took modules from there first: a file ``random.py`` ran in the place of Python's."""
    folder = tmp_path / "work"
    folder.mkdir()
    for name in ("random", "json", "signal", "llama_cpp", "specllama"):
        (folder / f"{name}.py").write_text("raise SystemExit('a file of the working directory')", encoding="utf-8")
    done = run_in(folder, tiny_files, USES[use])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("use", "worker"), [("quantize", "models/_quantize"), ("bench", "evidence/bench/_side")])
def test_a_package_that_only_sys_path_knows(tiny_files: TinyFiles, tmp_path: Path, use: str, worker: str) -> None:
    folder, copy, seen = tmp_path / "work", tmp_path / "copy" / "specllama", tmp_path / "seen"
    folder.mkdir()
    shutil.copytree(Path(specllama.__file__).parent, copy)
    file = copy / f"{worker}_worker.py"
    says_where = f"\nimport specllama\nopen({str(seen)!r}, 'w').write(specllama.__file__)\nimport os\n"
    file.write_text(file.read_text(encoding="utf-8").replace("\nimport os\n", says_where), encoding="utf-8")
    done = run_in(folder, tiny_files, f"import sys\nsys.path.insert(0, {str(copy.parent)!r})\n{USES[use]}")
    assert (done.returncode, done.stderr, seen.read_text()) == (0, "", str(copy / "__init__.py"))


def test_a_frozen_program_is_told(tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is its own ``sys.executable``, and would start itself, and so on."""
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    for start in (
        lambda: quantize(tiny_files.target, "Q8_0", output=tmp_path / "q.gguf"),
        lambda: sandbox.run_tests(["x = 1", "def check(f): pass"], "x"),
    ):
        with pytest.raises(RuntimeError, match=r"there is no Python program.*run this by an installed Python"):
            start()
    assert list(tmp_path.iterdir()) == []
