"""Prints how long a model takes to load and how much memory it holds, with llama.cpp's kernels and with ours (Linux).

Run it where specllama is installed: ``python scripts/loading.py MODEL`` (a path or a name). Nothing else should use the
machine. Each load is in a process of its own, by turns, and the file is in the system's cache. *Anonymous* memory is
the process's own. *Mapped* is the part of the model's file that the process has mapped and touched: the system shares
it with its cache, and takes it back when it needs memory. *Peak* is the most that the whole process has held until the
model was loaded.
"""

from __future__ import annotations

import json
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import recorded

import specllama
from specllama.backend.cpu import default_threads
from specllama.backend.prepare import prepare_backend
from specllama.evidence.machine import describe_machine
from specllama.models.catalog import resolve

WAYS = {"llama.cpp": "off", "ours": "auto"}
NO_NUMBERS = ("kernels", "machine")


def memory(file: str) -> dict[str, int]:
    """Bytes of this process: its own ones, and the bytes of a file that it has mapped and touched, or only mapped."""
    found = {"anonymous": 0, "mapped": 0, "mapped_range": 0}
    inside = False
    for line in Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines():
        name, *words = line.split()
        if not name.endswith(":"):
            inside = line.endswith(file)
        elif name == "Anonymous:":
            found["anonymous"] += 1024 * int(words[0])
        elif inside and name in ("Rss:", "Size:"):
            found["mapped" if name == "Rss:" else "mapped_range"] += 1024 * int(words[0])
    return found


def loaded(model: str, kernels: str) -> dict[str, Any]:
    """Load a model once. Returns the times, and the memory after loading and after a prompt with 4 tokens."""
    prepare_backend()  # the trial of the kernels is not part of the loading
    n = default_threads()
    before, start, processor = memory(resolve(model)), time.perf_counter(), time.process_time()
    options = {"n_ctx": 512, "n_threads": n, "n_threads_batch": n, "verbose": False}
    llm = specllama.Llama(model, kernels=kernels, **options)
    times = {"seconds": time.perf_counter() - start, "processor_seconds": time.process_time() - processor}
    peak = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    after = memory(resolve(model))
    llm.create_completion(list(range(1000, 1064)), max_tokens=4, temperature=0.0)
    used = memory(resolve(model))
    found = {
        "kernels": llm.kernels,
        "machine": describe_machine(llm),
        "weights": llm._model.size(),
        "peak": peak,
        **times,
    }
    for name in before:
        found[name], found[f"{name}_used"] = after[name] - before[name], used[name] - before[name]
    llm.close()
    return found


def main() -> None:
    """Print a row for each way."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kernels", help="load once in this process, and print the result as JSON")
    given = parser.parse_args()
    if given.kernels:
        print(json.dumps(loaded(given.model, given.kernels)))
        return
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for repeat in range(given.repeats + 1):
        for way, kernels in WAYS.items():
            command = [sys.executable, __file__, given.model, "--kernels", kernels]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            if repeat:  # the first one brings the file into the system's cache
                found[way].append(json.loads(re.findall(r"^\{.*\}$", done.stdout, re.M)[-1]))
    rows = {}
    for way, loads in found.items():
        middle = {key: statistics.median(one[key] for one in loads) for key in loads[0] if key not in NO_NUMBERS}
        rows[way] = {"kernels": loads[0]["kernels"], **middle}
        sizes = ", ".join(f"{key} {value / 2**20:.0f}" for key, value in middle.items() if "seconds" not in key)
        seconds = f"{middle['seconds']:.2f} s, {middle['processor_seconds']:.2f} s of processor time"
        print(f"{way}: {seconds}; MiB: {sizes} ({loads[0]['kernels']})")
    if given.record:
        recorded.keep(given.record, {"machine": found["ours"][0]["machine"], "loads": rows})


if __name__ == "__main__":
    main()
