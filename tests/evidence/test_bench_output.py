"""What bench writes: tables to paste, data to compute with, and nothing private."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import os
import platform
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import synthetic_bench

from specllama.backend import cpu
from specllama.evidence import machine as machines
from specllama.evidence.bench import BenchResult, Row
from specllama.evidence.bench.report import FORMATS, to_csv, to_json, to_jsonl, to_markdown
from specllama.evidence.tables import curves_table, table

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MODEL = {
    "name": "Some Model",
    "file": "some.gguf",
    "description": "qwen2 1.5B F16",
    "file_type": "1",
    "size": 3 << 30,
    "parameters": 1_543_714_304,
    "n_ctx": 4096,
    "n_gpu_layers": 0,
    "kernels": "AVX2, 950 MiB of weights",
    "batch_invariant": False,
    "n_threads": 2,
    "n_threads_batch": 2,
}
MACHINE = {
    "specllama": "0.1.0",
    "llama_cpp_python": "0.3.36",
    "python": "3.11.2",
    "os": "Linux",
    "cpu": "A CPU",
    "logical_cores": 2,
    "backends": ["CPU"],
    "gpu_offload": False,
    "system_info": "CPU : AVX = 1",
    "backend_notes": [],
    "target": MODEL,
    "draft": {**MODEL, "file": "small.gguf", "size": 98 << 20, "parameters": 134_515_008},
}
SETTINGS = {
    "command": "specllama bench -m some.gguf -md small.gguf",
    "modes": ["plain", "auto"],
    "repeat": 2,
    "max_tokens": 128,
    "temperature": 0.0,
    "seed": None,
    "sampling": {"top_p": 0.9},
    "drafter": "draft.gguf",
    "num_draft_tokens": 5,
    "verify": "auto",
    "prompts": {"code": 2, "story": 1},
    "num_runs": 12,
}


@pytest.fixture
def result() -> BenchResult:
    runs = synthetic_bench.bench_runs(modes=("plain", "auto"), categories=("code", "story"))
    made = synthetic_bench.bench_result(runs)
    return dataclasses.replace(made, machine=MACHINE, settings=SETTINGS, notes=["first note", "second note"])


def cells(text: str) -> list[list[str]]:
    """Every line of a Markdown table."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def test_tables_are_aligned_as_text_too() -> None:
    text = table(["mode", "t/s"], [["plain", "1.0"], ["a|b\nc", "10.25"]], left=["mode"])
    assert text.splitlines() == [
        "| mode   |   t/s |",
        "| ------ | ----: |",
        "| plain  |   1.0 |",
        "| a\\|b c | 10.25 |",
    ]


def test_markdown_has_all_that_others_need(result: BenchResult) -> None:
    text = to_markdown(result)
    for wanted in ("specllama 0.1.0", "llama-cpp-python 0.3.36", "Python 3.11.2", "A CPU", "2 logical cores"):
        assert wanted in text
    assert "backend CPU (no GPU offload): CPU : AVX = 1" in text
    assert f"```sh\n{SETTINGS['command']}\n```" in text
    assert "greedy, top_p 0.9, no seed; up to 128 tokens for 3 prompts (code 2, story 1), 2 times each" in text
    assert "the mode auto drafts 5 tokens a round, and its rule is block" in text
    assert text.endswith("Notes:\n- first note\n- second note")
    models = {row[0]: row[1:] for row in cells(text)[:4]}
    threads = ["0", "4096", "2", "2"]
    assert models["target"] == ["Some Model", "some.gguf", "qwen2 1.5B F16", "3.00 GiB", "1.54 B", *threads]
    assert models["draft"] == ["Some Model", "small.gguf", "qwen2 1.5B F16", "98.00 MiB", "134.52 M", *threads]


def test_the_same_bits_are_said_and_an_older_result_does_not_know(result: BenchResult) -> None:
    def report(**known: bool) -> str:
        target = {name: value for name, value in MODEL.items() if name != "batch_invariant"} | known
        return to_markdown(dataclasses.replace(result, machine={**MACHINE, "target": target}))

    assert "the same bits in every batch" in report(batch_invariant=True)
    assert "the same bits in every batch" not in report(batch_invariant=False)
    assert report() == report(batch_invariant=False)


def test_markdown_summary(result: BenchResult) -> None:
    found = [row for row in cells(to_markdown(result)) if row[0] in ("mode", "plain", "auto")]
    header, *rows = found
    assert [row[:2] for row in rows] == [[row.mode, row.category] for row in result.summary]
    wanted = result.summary[-1]
    last = dict(zip(header, rows[-1], strict=True))
    shares = [f"{share * 100:.0f}" for share in (wanted.draft_share, wanted.verify_share, wanted.sample_share)]
    assert last == {
        "mode": "auto",
        "category": "all",
        "prompts": "4",
        "tokens": "512",
        "t/s": f"{wanted.tokens_per_second:.2f}",
        "speedup": f"{wanted.speedup_mean:.2f}x [{wanted.speedup_low:.2f}, {wanted.speedup_high:.2f}]",
        "median": f"{wanted.speedup_median:.2f}x",
        "end to end": f"{wanted.end_to_end_mean:.2f}x",
        "accepted": f"{wanted.acceptance_rate:.1%}",
        "mean length": f"{wanted.mean_acceptance_length:.2f}",
        "draft/verify/sample": "/".join(shares),
        "worst": f"{wanted.worst_speedup:.2f}x {wanted.worst_prompt}",
    }
    assert rows[-2][5] == "1.00x"


def test_one_prompt_has_no_interval(result: BenchResult) -> None:
    row = dataclasses.replace(result.summary[-1], num_prompts=1)
    text = to_markdown(dataclasses.replace(result, summary=[row], curves={}))
    assert cells(text)[-1][5] == f"{row.speedup_mean:.2f}x"


def test_curves_are_a_table(result: BenchResult) -> None:
    rows = cells(curves_table(result.curves))
    assert len(rows) == 2 + 16
    assert rows[0][:4] == ["n", "target ms", "target quartiles", "target T(n)/T(1)"]
    target = result.curves["target"]
    low, high = (value * 1e3 for value in target.spread(4))
    ms = f"{target.seconds(4) * 1e3:.2f}"
    assert rows[2 + 3][:4] == ["4", ms, f"{low:.2f} - {high:.2f}", f"{target.relative(4):.2f}"]
    assert "costs behind 128 others" in to_markdown(result)
    assert "costs behind" not in to_markdown(dataclasses.replace(result, curves={}))


def test_data_to_compute_with(result: BenchResult) -> None:
    """JSON is everything, JSON lines are the runs, and CSV is the summary."""
    found = json.loads(to_json(result), parse_constant=pytest.fail)
    assert set(found) == {"runs", "summary", "machine", "settings", "curves", "notes"}
    assert found == json.loads(json.dumps(result.to_dict()))
    wanted = "prompt_id category mode repeat speedup end_to_end_speedup text_equal_to_plain stats"
    assert set(wanted.split()) == set(found["runs"][0])
    assert found["settings"]["interrupted"] is False
    assert set(found["curves"]) == {"target", "draft"}
    assert [json.loads(line) for line in to_jsonl(result).split("\n")] == found["runs"]
    rows = list(csv.DictReader(io.StringIO(to_csv(result))))
    assert len(rows) == len(result.summary) == 6
    for of_csv, row in zip(rows, result.summary, strict=True):
        assert list(of_csv) == [field.name for field in dataclasses.fields(Row)]
        assert of_csv["category"] == row.category
        assert float(of_csv["speedup_mean"]) == row.speedup_mean


def test_numbers_that_are_none_are_refused(result: BenchResult) -> None:
    broken = dataclasses.replace(result, runs=[dataclasses.replace(result.runs[0], speedup=float("nan"))])
    for write in (to_json, to_jsonl):
        with pytest.raises(ValueError, match="not JSON compliant"):
            write(broken)


@pytest.mark.parametrize("name", FORMATS)
def test_nothing_measured_is_written_too(result: BenchResult, name: str) -> None:
    empty = dataclasses.replace(result, runs=[], summary=[], curves={})
    assert isinstance(FORMATS[name](empty), str)


# --- the machine -----------------------------------------------------------------------------------------------------


def test_a_machine_is_described(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(draft=tiny_files.good, draft_kwargs={"n_ctx": 256, "n_threads_batch": 2})
    found = machines.describe_machine(llm)
    assert set(found) == set(MACHINE)
    assert found["llama_cpp_python"] == llama_cpp.__version__
    assert found["logical_cores"] == os.cpu_count()
    assert found["backends"][-1] == "CPU"
    assert found["cpu"]
    assert set(found["target"]) == set(MODEL)
    assert found["target"]["file"] == "target.gguf"
    assert found["target"]["parameters"] == llm._model.n_params()
    assert (found["target"]["n_ctx"], found["draft"]["n_ctx"]) == (512, 256)
    assert (found["target"]["n_threads_batch"], found["draft"]["n_threads_batch"]) == (1, 2)
    assert str(tiny_files.target.parent) not in json.dumps(found)
    assert machines.describe_machine(make_llama())["draft"] is None


def test_the_home_folder_is_not_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    inside = os.path.join(tmp_path, "models", "x.gguf")
    assert machines.without_home(f"skipped {inside}:3") == f"skipped {os.path.join('~', 'models', 'x.gguf')}:3"
    assert machines.without_home(f"{tmp_path}er{os.sep}x") == f"{tmp_path}er{os.sep}x"
    monkeypatch.setenv("HOME", os.sep)
    monkeypatch.setenv("USERPROFILE", os.sep)
    assert machines.without_home("/models/x.gguf") == "/models/x.gguf"


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel\t\t: 17\nmodel name\t: A  CPU @ 3 GHz\n\nmodel name\t: second\n", "A  CPU @ 3 GHz"),
        ("processor: 0\nBogoMIPS: 108.00\n\nModel: Raspberry Pi 5 Model B Rev 1.0\n", "Raspberry Pi 5 Model B Rev 1.0"),
        ("processor: 0\ncpu: POWER9\n", "POWER9"),
        ("", "x86_64"),
        (None, "x86_64"),
    ],
)
def test_cpu_names_of_linux(cpuinfo: str | None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_text(*_: Any, **__: Any) -> str:
        if cpuinfo is None:
            raise OSError("not here")
        return cpuinfo

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(Path, "read_text", read_text)
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    assert cpu.cpu_name() == " ".join(name.split())


def test_backends() -> None:
    assert machines.backends_of("CUDA : ARCHS = 890 | USE_GRAPHS = 1 | CPU : AVX = 1") == ["CUDA", "CPU"]
    assert machines.backends_of("AVX = 1 | AVX2 = 1") == []
