"""Measures the limits of decoding and prompts: ``python scripts/limits.py MODEL [MODEL ...] --record limits``.

One token reads every weight once, so the memory's speed limits it. A prompt of hundreds of tokens multiplies every
weight with each of them, so the products of 8-bit integers limit it. limits.c measures both numbers, the latter for
each instruction set that our kernels can use here; it needs a C compiler with OpenMP. What the models need of either is
read from their files, which needs the package gguf (the extra ``test``). Nothing else should use the machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import gguf
import recorded

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine
from specllama.models.catalog import resolve

_FLAGS = ("-O3", "-fopenmp")


def measured_limits() -> dict[str, Any]:
    """Bytes read and products done in a nanosecond, by all threads together."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "limits"
        source = Path(__file__).with_name("limits.c")
        subprocess.run([os.environ.get("CC", "cc"), *_FLAGS, str(source), "-o", str(program)], check=True)
        threads = {"OMP_NUM_THREADS": str(default_threads())}
        done = subprocess.run([str(program)], env={**os.environ, **threads}, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def needed(path: str) -> dict[str, int]:
    """What one token takes: the bytes that it reads, the products with the layers, and those with the output matrix.

    Only the last token of a prompt is multiplied with the output matrix. Embeddings are looked up; a model without an
    output matrix uses the matrix of embeddings.
    """
    matrices = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors if len(tensor.shape) > 1}
    output = "output.weight" if "output.weight" in matrices else "token_embd.weight"
    layers = [tensor for name, tensor in matrices.items() if name.startswith("blk.")]
    return {
        "bytes": sum(int(tensor.n_bytes) for tensor in [*layers, matrices[output]]),
        "products": sum(int(tensor.n_elements) for tensor in layers),
        "output_products": int(matrices[output].n_elements),
    }


def main() -> None:
    """Print both limits, and what each model needs."""
    parser = recorded.parser(__doc__)
    parser.add_argument("models", nargs="+")
    given = parser.parse_args()
    limits = measured_limits()
    products = ", ".join(f"{name} {found:.0f}" for name, found in limits["products"].items())
    print(f"memory {limits['bytes']:.1f} GB/s; thousand million products a second: {products}")
    models = {}
    for model in given.models:
        models[model.rpartition(":")[2]] = of_model = needed(resolve(model))
        print(f"{model}: {of_model['bytes'] / 1e9:.2f} GB a token, {of_model['products'] / 1e9:.2f} G products")
    if given.record:
        with contextlib.closing(specllama.Llama(given.models[0], n_ctx=64, verbose=False)) as llm:
            recorded.keep(given.record, {"machine": describe_machine(llm), **limits, "models": models})


if __name__ == "__main__":
    main()
