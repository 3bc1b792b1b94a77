"""Our kernels within llama.cpp: which weights get them, what a text is with them, and when they stay off."""

from __future__ import annotations

import copy
import functools
import json
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from faults import trial_that_ends
from quantized import KERNELS, needs_kernels, quantized_model

import specllama
from specllama import _core, cli
from specllama.backend import kernels
from specllama.backend.prepare import Backend, prepare_backend
from specllama.drop_in.lending import lent
from specllama.engine.costs import cost_key
from specllama.evidence.machine import describe_machine
from specllama.evidence.tables import machine_text
from specllama.models.gguf_values import read_whole_header

if TYPE_CHECKING:
    from conftest import TinyFiles

PROMPT = "the cat sat on the dog and the fox sat on the cat and the dog"
OFFERED = KERNELS.instruction_set
TYPES = ("Q4_0", "Q5_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "Q3_K_M", "Q2_K", "IQ4_XS", "IQ4_NL")
PURE_TYPES = ("F16", "BF16", "NVFP4", "Q1_0", "Q2_0", "TQ1_0", "TQ2_0", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS")
PURE_TYPES += ("IQ3_S",)


def test_they_are_on_where_they_should_be() -> None:
    """Kernels that are off by mistake would pass every other test."""
    if _core.instruction_sets() == ["plain"]:
        pytest.skip("this processor has neither AVX2 nor NEON's dot products")
    if kernels.has_gpu():
        pytest.skip("this llama.cpp is built for a GPU")
    if os.environ.get(kernels.ENVIRONMENT, "auto") == "off":
        pytest.skip(f"{kernels.ENVIRONMENT}=off")
    assert prepare_backend().kernels == kernels.Kernels(_core.instruction_sets()[0], updates_states=True)


@pytest.fixture(scope="session")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.partial(quantized_model, tmp_path_factory.mktemp("wide"))


def opened(path: Path, **options: Any) -> specllama.Llama:
    return specllama.Llama(str(path), n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False, **options)


def logits_of(llm: specllama.Llama, sizes: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """The logits of a text's last tokens, decoded in batches of these sizes after the tokens before."""
    tokens = llm.tokenize(PROMPT.encode())
    context = llm._ctx.ctx
    llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
    rows: list[npt.NDArray[np.float32]] = []
    position = 0
    for size in (len(tokens) - sum(sizes), *sizes):
        batch = llama_cpp.llama_batch_init(size, 0, 1)
        batch.n_tokens = size
        for i in range(size):
            batch.token[i], batch.pos[i], batch.logits[i] = tokens[position + i], position + i, True
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
        assert llama_cpp.llama_decode(context, batch) == 0
        found = (llama_cpp.llama_get_logits_ith(context, i) for i in range(size))
        rows += [np.ctypeslib.as_array(row, (llm.n_vocab(),)).copy() for row in found]
        llama_cpp.llama_batch_free(batch)
        position += size
    return np.array(rows[len(tokens) - sum(sizes) :])


@needs_kernels
@pytest.mark.parametrize("kind", TYPES + PURE_TYPES)
def test_the_model_is_the_same_but_for_rounding(quantized: Callable[[str], Path], kind: str) -> None:
    path = quantized(kind)
    with_ours, without = opened(path), opened(path, kernels="off")
    assert lent(with_ours).settings.kernels.num_bytes > 0
    assert lent(without).settings.kernels.num_bytes == 0
    ours, theirs = logits_of(with_ours, (5,)), logits_of(without, (5,))
    spread = theirs.std()
    assert spread > 0.5
    assert np.abs(ours - theirs).mean() < 0.05 * spread


@needs_kernels
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "IQ4_NL"])
def test_a_quantized_cache_changes_no_more_than_with_llama_cpp(quantized: Callable[[str], Path], kind: str) -> None:
    """Beside one of float32. llama.cpp rounds queries to bytes, too."""
    path, of_cache, changed = quantized("Q8_0"), getattr(llama_cpp, f"GGML_TYPE_{kind}"), []
    for ways in ("auto", "off"):
        of_bytes, of_floats = (
            logits_of(opened(path, flash_attn=True, type_k=of, type_v=of, kernels=ways), (5,))
            for of in (of_cache, llama_cpp.GGML_TYPE_F32)
        )
        changed.append(np.abs(of_bytes - of_floats).mean() / of_floats.std())
    ours, theirs = changed
    assert 0 < ours < 1.5 * theirs
    assert theirs < (0.05 if kind == "Q8_0" else 0.5)


@needs_kernels
@pytest.mark.parametrize("kind", ["Q4_K_M", "Q8_0", "Q5_0", *PURE_TYPES])
def test_rows_are_the_same_bits_in_batches_of_several_sizes(quantized: Callable[[str], Path], kind: str) -> None:
    llm = opened(quantized(kind), flash_attn=True)
    together = logits_of(llm, (6,))
    for sizes in ((2, 4), (3, 3), (1, 5), (1, 1, 1, 1, 1, 1)):
        assert np.array_equal(logits_of(llm, sizes), together), sizes


@needs_kernels
@pytest.mark.parametrize("mmap", [True, False])
def test_mapped_and_read_files_give_the_same_text(quantized: Callable[[str], Path], mmap: bool) -> None:
    expected = opened(quantized("Q4_K_M"))(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"]
    llm = opened(quantized("Q4_K_M"), use_mmap=mmap)
    assert llm(PROMPT, max_tokens=12, temperature=0)["choices"][0]["text"] == expected


@needs_kernels
def test_a_draft_has_them_as_its_target_does(quantized: Callable[[str], Path]) -> None:
    path = quantized("Q4_0")
    llm = opened(path, draft_model=str(path))
    assert lent(llm.draft_model).settings.kernels.instruction_set == OFFERED
    llm = opened(path, draft_model=str(path), kernels="off")
    assert not lent(llm.draft_model).settings.kernels.instruction_set
    llm = opened(path, draft_model=str(path), draft_kwargs={"kernels": "off"})
    assert lent(llm).settings.kernels.instruction_set == OFFERED
    assert str(lent(llm.draft_model).settings.kernels) == "off: the model was opened with kernels='off'"


def state_of(llm: specllama.Llama) -> llama_cpp.LlamaState:
    llm.eval(llm.tokenize(PROMPT.encode()))
    return llm.save_state()


@needs_kernels
@pytest.mark.skipif(not hasattr(llama_cpp, "LLAMA_FLASH_ATTN_TYPE_AUTO"), reason="this llama.cpp has no such type")
def test_flash_attention_is_on_where_they_are(quantized: Callable[[str], Path]) -> None:
    path = quantized("Q4_0")
    floats = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    state, of_floats = (state_of(opened(path, flash_attn=True, **types)) for types in ({}, floats))

    def attends_in_one_step(llm: llama_cpp.Llama, state: llama_cpp.LlamaState = state) -> bool:
        """A cache is laid out otherwise for it: whoever has it can load the state of one that has it."""
        try:
            llm.load_state(state)
        except RuntimeError:
            return False
        return True

    drafted = opened(path, draft_model=str(path))
    assert attends_in_one_step(drafted)
    assert attends_in_one_step(drafted.draft_model)
    assert attends_in_one_step(pickle.loads(pickle.dumps(drafted)))
    assert pickle.loads(pickle.dumps(drafted.draft_model)).model_path == str(path)
    assert drafted.has_flash_attention
    before = drafted.kernels
    assert not attends_in_one_step(opened(path, kernels="off"))
    assert not opened(path, embedding=True).has_flash_attention
    assert drafted.kernels == before
    told = opened(path, draft_model=str(path), flash_attn=False)
    assert not attends_in_one_step(told)
    assert not attends_in_one_step(told.draft_model)
    assert attends_in_one_step(opened(path, flash_attn=True, **floats), of_floats)
    assert not attends_in_one_step(opened(path, **floats), of_floats)
    assert not attends_in_one_step(opened(path, draft_model=str(path), draft_kwargs={"kernels": "off"}).draft_model)


@needs_kernels
def test_what_they_multiply_is_said(quantized: Callable[[str], Path], tiny_files: TinyFiles) -> None:
    llm = opened(quantized("Q4_K_M"))
    llm(PROMPT, max_tokens=4)
    assert llm.kernels == llm.stats.kernels == llm.total_stats.kernels
    assert llm.kernels.startswith(f"{OFFERED}, ")
    assert f"kernels {OFFERED}, " in str(llm.stats)
    assert f"- kernels of the target: {OFFERED}, " in machine_text(describe_machine(llm))
    floats = opened(tiny_files.target)
    assert floats.kernels == "off: none of its weights are of a type that they multiply"
    assert cost_key(llm.engine.model, "target")["kernels"].startswith(OFFERED)
    assert "kernels" not in cost_key(opened(quantized("Q4_K_M"), kernels="off").engine.model, "target")


@needs_kernels
def test_products_are_as_exact_as_those_of_llama_cpp() -> None:
    """Both round activations to 8 bits, and differ in the order of sums and in the precision of a block's scale."""
    script = Path(__file__).parents[2] / "scripts" / "accuracy.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line.partition(":")[0] for line in lines] == sorted(_core.quantized_types())
    for line in lines:
        found = re.fullmatch(r"\w+: llama\.cpp ([\d.]+)% ([\d.]+)%; .*ours ([\d.]+)% ([\d.]+)%", line)
        assert found, line
        alone, together, our_alone, our_together = map(float, found.groups())
        least = -1.0 if line.startswith(("F16:", "BF16:")) else 0.1  # no activations are rounded
        assert least < our_alone <= 1.005 * alone, line
        assert least < our_together <= 1.005 * together, line


@needs_kernels
def test_memory_is_the_weights_and_little_more(quantized: Callable[[str], Path]) -> None:
    for kind in TYPES + PURE_TYPES:
        llm = opened(quantized(kind))
        tensors = read_whole_header(llm.model_path)[1]
        matrices = [name for name, tensor in tensors.items() if len(tensor.shape) > 1 and name != "token_embd.weight"]
        weights = sum(tensors[name].num_bytes for name in matrices)
        assert weights <= lent(llm).settings.kernels.num_bytes <= 1.04 * weights


@needs_kernels
def test_tune_shows_what_they_gain(
    quantized: Callable[[str], Path], tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["tune", "-t", "1", "-c", "256", "--max-draft-tokens", "3", "-o", "json", "-m"]
    assert cli.main([*line, str(quantized("Q4_0"))]) == 0
    curves = json.loads(capsys.readouterr().out)["curves"]
    ours, theirs = curves["target"], curves["target, kernels off"]
    assert [point["n"] for point in ours["points"]] == [point["n"] for point in theirs["points"]] == [1, 2, 3, 4]
    assert cli.main([*line, str(tiny_files.target)]) == 0
    assert list(json.loads(capsys.readouterr().out)["curves"]) == ["target"]


@needs_kernels
@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt(), 130), (MemoryError("no room"), 0)])
def test_tune_shows_what_is_done_if_the_comparison_fails(
    quantized: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    error: BaseException,
    code: int,
) -> None:
    monkeypatch.setattr("specllama.commands.tune._with_llama_cpps_kernels", mock.Mock(side_effect=error))
    line = ["tune", "-t", "1", "-c", "256", "--max-draft-tokens", "3", "-o", "json", "-m", str(quantized("Q4_0"))]
    assert cli.main(line) == code
    out, err = capsys.readouterr()
    assert list(json.loads(out)["curves"]) == ["target"]
    assert err.splitlines()[-1].startswith("specllama: ")


@needs_kernels
def test_a_llama_of_llama_cpp_is_left_alone(quantized: Callable[[str], Path]) -> None:
    before = _core.KernelBufferType.bytes_loaded()
    plain = llama_cpp.Llama(str(quantized("Q4_0")), n_ctx=64, verbose=False)
    assert _core.KernelBufferType.bytes_loaded() == before
    assert lent(plain).settings.kernels.why_not == "it was opened by llama_cpp"


@needs_kernels
def test_a_load_that_fails_leaves_them_off_for_others(quantized: Callable[[str], Path], tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(quantized("Q4_0").read_bytes()[:-1000])
    with pytest.raises(ValueError, match="cannot load"):
        opened(damaged)
    before = _core.KernelBufferType.bytes_loaded()
    llama_cpp.Llama(str(quantized("Q4_0")), n_ctx=64, verbose=False)
    assert _core.KernelBufferType.bytes_loaded() == before


def test_a_copy_has_the_same_choice(quantized: Callable[[str], Path]) -> None:
    llm = opened(quantized("Q4_0"), kernels="off")
    assert copy.copy(llm).kernels == "off: the model was opened with kernels='off'"


def test_an_unknown_choice_is_refused(quantized: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="kernels='fast' is unknown: choose 'auto' or 'off'"):
        opened(quantized("Q4_0"), kernels="fast")
    with pytest.raises(ValueError, match="kernels=1 is unknown"):
        opened(quantized("Q4_0"), draft_model=str(quantized("Q4_0")), draft_kwargs={"kernels": 1})


# Guards, each in a process of its own: what is decided holds for a process.

SHOW = (
    "import sys, warnings, specllama; warnings.simplefilter('always'); "
    "llm = specllama.Llama(sys.argv[1], n_ctx=128, verbose=False); "
    "print(llm.kernels); print(llm('the cat', max_tokens=3, temperature=0)['choices'][0]['text'] != '')"
)


def shown(path: Path, first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """What a process says of its kernels, on stdout, and its warnings, on stderr."""
    return subprocess.run(
        [sys.executable, "-c", first + SHOW, str(path)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@needs_kernels
@pytest.mark.parametrize(
    ("end", "why"),
    [
        ("SIGSEGV", "it was ended by SIGSEGV"),
        ("exit 3", "it ended with exit code 3"),
        ("refuse products of Q4_K are off by 3", "products of Q4_K are off by 3"),
    ],
)
def test_a_trial_that_fails_turns_them_off(
    quantized: Callable[[str], Path], tmp_path: Path, end: str, why: str
) -> None:
    found = shown(quantized("Q4_0"), **trial_that_ends("backend._kernel_trial", end), SPECLLAMA_CACHE=str(tmp_path))
    assert found.returncode == 0, found.stderr
    failed = f"their products were tried in a process of their own, and failed: {why}"
    assert found.stdout.splitlines()[0].startswith(f"off: {failed}")
    assert found.stdout.splitlines()[1] == "True"
    assert found.stderr.count("specllama's kernels are off") == 1
    assert "SPECLLAMA_KERNELS=off ends this warning" in found.stderr


@needs_kernels
def test_the_environment_turns_them_off_or_chooses(quantized: Callable[[str], Path]) -> None:
    found = shown(quantized("Q4_0"), SPECLLAMA_KERNELS="off")
    assert found.stdout.startswith("off: SPECLLAMA_KERNELS says so")
    assert "kernels are off" not in found.stderr
    found = shown(quantized("Q4_0"), SPECLLAMA_KERNELS="PLAIN")
    assert found.stdout.startswith("plain, ")
    found = shown(quantized("Q4_0"), SPECLLAMA_KERNELS="MMX")
    assert "SPECLLAMA_KERNELS='MMX' is unknown: choose auto, off, " in found.stderr


@needs_kernels
@pytest.mark.parametrize(
    ("patch", "why"),
    [
        (
            "import ctypes; from specllama.backend.ggml import CpuBackend; "
            "ctypes.c_int.from_address(CpuBackend(llama_cpp.llama_cpp._lib).registry).value = 99",
            "this llama.cpp is built otherwise than is known here: its backends' interface has the version 99",
        ),
        (
            "from specllama.backend.ggml import CpuBackend; CpuBackend.extra_buffer_types = lambda self: {}",
            "this llama.cpp is built without CPU_REPACK",
        ),
    ],
)
def test_a_library_that_does_not_fit_turns_them_off(quantized: Callable[[str], Path], patch: str, why: str) -> None:
    found = shown(quantized("Q4_0"), f"import llama_cpp, specllama; {patch}; ")
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"off: {why}")
    assert found.stderr.count("specllama's kernels are off") == 1


@needs_kernels
def test_an_answer_that_cannot_be_kept_is_found_again(quantized: Callable[[str], Path], tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    found = shown(quantized("Q4_0"), SPECLLAMA_CACHE=str(blocked))
    assert found.stdout.startswith(OFFERED)


def test_what_is_no_build_of_theirs_is_no_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.ENVIRONMENT, raising=False)
    if kernels._unsuitable():
        return
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(llama_cpp, "llama_supports_rpc", lambda: False)
    assert kernels.decide() == kernels.Kernels(why_not="this llama.cpp is built for a GPU")


def test_a_build_that_reaches_other_machines_is_none_for_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp with RPC says that it can offload, though there be no machine to take anything."""
    expected = kernels._unsuitable()
    monkeypatch.setattr(llama_cpp, "llama_supports_gpu_offload", lambda: True)
    monkeypatch.setattr(llama_cpp, "llama_supports_rpc", lambda: True)
    assert kernels._unsuitable() == expected


def test_a_backend_says_what_it_has() -> None:
    assert Backend().kernels == kernels.Kernels()
