"""llama.cpp's AMX code: tried before a model is loaded, and turned off for this process if it does not survive.

Where there is no AMX, CPU_REPACK stands for it in a process of its own, and its trial's end is simulated.
"""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from faults import trial_that_ends
from llama_cpp import llama_cpp as bindings
from quantized import quantized_model

from specllama.backend import amx
from specllama.backend import prepare as backend
from specllama.backend.cpu import cpu_flags
from specllama.backend.ggml import CpuBackend
from specllama.backend.prepare import Backend
from specllama.models.quantize import quantize
from specllama.stats import Tally

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

HELPERS = Path(__file__).parents[1] / "helpers"
on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="AMX is looked for on Linux only")


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose weights llama.cpp repacks, and would give to AMX."""
    return quantized_model(tmp_path_factory.mktemp("quantized"), "Q4_0")


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a program on such a machine."""

    report: dict[str, Any]
    log: str


Run = Callable[..., Outcome]


@pytest.fixture
def run(tmp_path: Path, quantized: Path) -> Run:
    """Opens models in a process of its own whose trial ends as it is told."""
    if "CPU_REPACK" not in CpuBackend(bindings._lib).extra_buffer_types():
        pytest.skip("this llama.cpp repacks no weights, so that nothing can stand for AMX")

    def start(end: str, *models: Path, suspect: str = "CPU_REPACK", **variables: str) -> Outcome:
        report = tmp_path / "report.json"
        models = models or (quantized,)
        command = [sys.executable, str(HELPERS / "other_machine.py"), str(report), suspect, *map(str, models)]
        ending = trial_that_ends("backend._product_trial", end)
        environment = {**os.environ, **ending, "SPECLLAMA_CACHE": str(tmp_path / "cache"), **variables}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        return Outcome(json.loads(report.read_text(encoding="utf-8")), done.stderr)

    return start


REASONS = {
    "SIGSEGV": "it was ended by SIGSEGV",
    "exit 3": "it ended with exit code 3: what it said last",
    "hang": "it did not end within 5 seconds",
    "silent": "it ended without an answer",
    "refuse products of Q8_0 weights are off": "products of Q8_0 weights are off",
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("end", REASONS)
@on_linux
def test_what_follows_from_the_end_of_the_trial(run: Run, end: str) -> None:
    found = run(end)
    (warning,) = found.report["warnings"]
    assert warning.startswith("AMX is off: ") and f"({REASONS[end]})" in warning
    assert f"llama-cpp-python=={llama_cpp.__version__}" in warning and "-mno-amx-tile" in warning
    assert found.report["warned_in"] == [str(HELPERS / "other_machine.py")]
    note = f"AMX off: {REASONS[end]}"
    assert found.report["notes"] == [note]
    assert found.report["stats"] == [[note]]
    assert found.report["total_stats"].endswith(f"\n{note}")
    assert f"\n- {note}\n" in found.report["machine"]
    assert "CPU_REPACK model buffer" not in found.log


@on_linux
def test_nothing_follows_where_it_ends_well(run: Run) -> None:
    found = run("well")
    assert found.report["warnings"] == found.report["notes"] == []
    assert found.report["stats"] == [[]]
    assert "AMX" not in found.report["total_stats"] + found.report["machine"].replace("AMX_INT8", "")
    assert "CPU_REPACK model buffer" in found.log


@on_linux
def test_the_answer_is_remembered_for_the_next_process(run: Run, tmp_path: Path) -> None:
    first, second = run("SIGSEGV"), run("well")  # nobody runs the second trial
    assert second.report["notes"] == first.report["notes"] != []
    (kept,) = (tmp_path / "cache" / "trials").iterdir()
    kept.unlink()
    assert run("well").report["notes"] == []


@on_linux
def test_a_cache_that_cannot_be_written_does_not_matter(run: Run, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert run("SIGSEGV").report["notes"] == ["AMX off: it was ended by SIGSEGV"]


@on_linux
def test_it_is_said_once_for_all_models(run: Run, quantized: Path) -> None:
    found = run("SIGSEGV", quantized, quantized)
    assert len(found.report["warnings"]) == 1
    assert len(found.report["stats"]) == 2 and found.report["stats"][0] == found.report["stats"][1] != []
    assert "CPU_REPACK model buffer" not in found.log


@on_linux
def test_where_the_type_is_not_offered_nothing_is_tried(run: Run, tmp_path: Path) -> None:
    found = run("SIGSEGV", suspect="NONE_SUCH")
    assert found.report["warnings"] == found.report["notes"] == []
    assert not (tmp_path / "cache" / "trials").exists()


def test_where_the_processor_lacks_it_nothing_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise AssertionError("this costs something")

    for name in ("CpuBackend", "tried", "_is_built_in"):
        monkeypatch.setattr(amx, name, forbidden)
    monkeypatch.setattr(amx, "cpu_flags", lambda: frozenset({"avx2", "amx_bf16"}))
    assert amx.why_amx_is_off() is None


def python(script: str, *arguments: str) -> str:
    """What a script prints, in a process of its own, in which modules of the tests are found."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HELPERS), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-c", script, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


SUSPECTED = """
import sys, warnings
warnings.simplefilter("ignore")
import llama_cpp, specllama
from specllama.backend import amx
from specllama.backend import prepare as backend
from specllama.backend.trial import Trial
import other_machine
other_machine.suspect("CPU_REPACK")
amx.tried = lambda *_, **__: Trial(False, "as it happens")
SETTINGS = dict(n_ctx=256, n_threads=1, n_threads_batch=1)
"""


@on_linux
def test_where_it_cannot_be_turned_off_no_type_is_used(quantized: Path) -> None:
    taken_off = python(
        SUSPECTED + "print('text:', other_machine.text_of(specllama.Llama(sys.argv[1], **SETTINGS)))", str(quantized)
    )
    script = (
        f"{SUSPECTED}def unknown(*_):\n    raise RuntimeError('this llama.cpp is built otherwise')\n"
        "amx._core.give_no_weights = unknown\n"
        "llm = specllama.Llama(sys.argv[1], **SETTINGS)\n"
        "assert not llm.model_params.use_extra_bufts\n"
        "assert backend.prepare_backend().notes == ('AMX off: as it happens',)\n"
        "assert not llama_cpp.Llama(sys.argv[1], **SETTINGS).model_params.use_extra_bufts\n"
        "print('text:', other_machine.text_of(llm))\n"
    )
    found = python(script, str(quantized))
    assert "CPU_REPACK model buffer" not in found
    assert text_line(found) == text_line(taken_off)


def text_line(output: str) -> str:
    (line,) = (line for line in output.splitlines() if line.startswith("text:"))
    return line


@on_linux
def test_a_model_that_was_opened_before_goes_on(quantized: Path) -> None:
    script = (
        f"{SUSPECTED}plain = llama_cpp.Llama(sys.argv[1], **SETTINGS)\n"
        "before = other_machine.text_of(plain)\n"
        "plain.reset()\n"
        "llm = specllama.Llama(sys.argv[1], **SETTINGS)\n"
        "assert backend.prepare_backend().notes\n"
        "other_machine.text_of(llm)\n"
        "assert other_machine.text_of(plain) == before\n"
    )
    assert python(script, str(quantized)).count("CPU_REPACK model buffer") == 1


@on_linux
def test_a_draft_of_its_own_uses_none_either(quantized: Path) -> None:
    script = (
        f"{SUSPECTED}llm = specllama.Llama(sys.argv[1], draft_model=sys.argv[1], num_draft_tokens=4, **SETTINGS)\n"
        "other_machine.text_of(llm)\n"
        "assert llm.stats.num_accepted_tokens\n"
    )
    found = python(script, str(quantized))
    assert "CPU model buffer" in found and "CPU_REPACK model buffer" not in found


def test_where_warnings_are_errors_the_next_model_loads(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_decided", None)
    monkeypatch.setattr(backend, "why_amx_is_off", lambda: "as it happens")
    with pytest.raises(UserWarning, match="AMX is off"):
        make_llama()
    assert make_llama().create_completion("the", max_tokens=2)["choices"]
    assert backend.prepare_backend().amx_off == "as it happens"


def test_nothing_is_decided_for_a_file_that_is_none(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_decided", None)
    with pytest.raises(FileNotFoundError):
        make_llama(tmp_path / "missing.gguf")
    assert backend._decided is None


def test_the_quantizing_process_is_prepared(quantized: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from specllama.models import _quantize_worker as worker\n"
        "calls = []\n"
        "worker.prepare_backend = lambda: calls.append('prepared')\n"
        "original = worker.llama_cpp.llama_model_quantize\n"
        "worker.llama_cpp.llama_model_quantize = lambda *given: calls.append('begun') or original(*given)\n"
        "assert worker.main([sys.argv[1], sys.argv[2], 'Q8_0', '1']) == 0\n"
        "print('calls:', *calls)\n"
    )
    found = python(script, str(quantized.with_name("wide.gguf")), str(tmp_path / "out.gguf"))
    assert "calls: prepared begun\n" in found


OF_LLAMA_CPP, OF_BASE_CLASS = "llama_cpp.llama_model_load_from_file", "super().__init__"
"""How the sources load a model: by the one, handed on to its caller. A `ContextParams` does it by the other."""


def _loads(node: ast.AST, path: Path) -> bool:
    if isinstance(node, ast.Attribute):
        return ast.unparse(node) == OF_LLAMA_CPP
    is_call = isinstance(node, ast.Call) and ast.unparse(node.func) == OF_BASE_CLASS
    return is_call and path.name == "context_params.py"


def test_whoever_loads_a_model_does_so_where_the_backend_is_prepared() -> None:
    found = 0
    for path in sorted((HELPERS.parents[1] / "specllama").glob("**/*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        wrapped = {
            id(node)
            for block in ast.walk(tree)
            if isinstance(block, ast.With) and ast.unparse(block.items[0].context_expr).startswith("checked_loading(")
            for node in ast.walk(block)
        }
        for node in ast.walk(tree):
            if _loads(node, path):
                found += 1
                assert id(node) in wrapped, f"{path.name}:{node.lineno} loads a model outside of `checked_loading`"
    assert found == 3


def test_notes_outlive_a_sum() -> None:
    noted, plain = Tally(backend_notes=("AMX off: x",)), Tally()
    assert (noted + plain).stats().backend_notes == (plain + noted).stats().backend_notes == ("AMX off: x",)
    assert plain.stats().backend_notes == ()


def test_what_batches_cost_without_it_is_kept_apart(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    from specllama.engine import costs as cost_key

    llm = make_llama()
    keys = []
    for decided in (Backend(), Backend(amx_off="as it happens")):
        monkeypatch.setattr(backend, "_decided", decided)
        cost_key.machine.cache_clear()
        keys.append(cost_key.cost_key(llm.engine.model, "target"))
    cost_key.machine.cache_clear()
    assert keys[0].get("backend_notes") is None
    assert keys[1] == {**keys[0], "backend_notes": ["AMX off: as it happens"]}


@pytest.mark.parametrize("file_type", ["Q8_0", "Q4_0"])
@on_linux
def test_the_real_thing(tiny_files: TinyFiles, tmp_path: Path, file_type: str) -> None:
    """On a machine that has AMX: whatever the compiler made of it, our process lives, and says if theirs would not."""
    if "amx_int8" not in cpu_flags():
        pytest.skip("this processor has no AMX")
    if "AMX" not in CpuBackend(bindings._lib).extra_buffer_types():
        pytest.skip("llama.cpp was built without AMX here, as `make install` does where the compiler gets it wrong")
    model = quantize(tiny_files.target, file_type, output=tmp_path / "tiny.gguf")
    opened = "Llama(sys.argv[1], n_ctx=256, n_threads=2, n_threads_batch=2)\n"
    ours = f"import sys, specllama, other_machine\nllm = specllama.{opened}"
    shown = "print('text:', other_machine.text_of(llm)); print('notes:', llm.stats.backend_notes)"
    found = python(ours + shown, str(model))
    assert text_line(found)
    turned_off = "notes: ('AMX off" in found
    assert turned_off or "notes: ()" in found
    assert not (turned_off and "AMX model buffer" in found)
    theirs = f"import sys, llama_cpp\nllama_cpp.{opened[:-1]}.eval(list(range(5, 40)))"
    plain = subprocess.run([sys.executable, "-c", theirs, str(model)], capture_output=True, check=False, timeout=120)
    assert turned_off or plain.returncode == 0
