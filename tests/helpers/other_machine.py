"""As on a machine with AMX: a program that opens models where one of ggml's buffer types is suspected like AMX.

`other_machine.py REPORT SUSPECT MODEL...` opens each model by `specllama.Llama`, generates, and writes a report as
JSON. CPU_REPACK can stand for AMX wherever a processor lacks that: it is offered and taken in the same way.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["SPECLLAMA_KERNELS"] = "off"  # they come before AMX, and would get the weights

from llama_cpp import llama_cpp as bindings

import specllama
from specllama import _core
from specllama.backend import amx
from specllama.backend import prepare as backend
from specllama.backend.ggml import CpuBackend
from specllama.backend.kernels import addresses_of_functions
from specllama.evidence.machine import describe_machine
from specllama.evidence.tables import machine_text

PROMPT = "the cat sat on the dog and the fox sat on the cat and the dog"


def text_of(llm: Any) -> str:
    """A completion of a prompt of several tokens."""
    return str(llm.create_completion(PROMPT, max_tokens=12, temperature=0.0)["choices"][0]["text"])


def suspect(name: str) -> None:
    """Have a buffer type be tried as AMX is, whatever this processor is."""
    cpu = CpuBackend(bindings._lib)
    if "AMX" in cpu.extra_buffer_types():  # the real one would get the weights first
        _core.give_no_weights(addresses_of_functions(cpu), cpu.registry, cpu.extra_buffer_types()["AMX"])
    amx._NAME = name  # type: ignore[misc]
    amx.cpu_flags = lambda: frozenset({"amx_int8"})  # type: ignore[assignment]
    amx._SECONDS = 5.0  # type: ignore[misc]


def report(models: list[str], **options: Any) -> dict[str, Any]:
    """What is said, and what the models say."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        llms = [specllama.Llama(model, n_ctx=256, n_threads=1, n_threads_batch=1, **options) for model in models]
    return {
        "warnings": [str(one.message) for one in caught],
        "warned_in": [one.filename for one in caught],
        "notes": list(backend.prepare_backend().notes),
        "texts": [text_of(llm) for llm in llms],
        "stats": [llm.stats.to_dict()["backend_notes"] for llm in llms],
        "total_stats": str(llms[0].total_stats),
        "machine": machine_text(describe_machine(llms[0])),
    }


if __name__ == "__main__":
    suspect(sys.argv[2])
    Path(sys.argv[1]).write_text(json.dumps(report(sys.argv[3:])), encoding="utf-8")
