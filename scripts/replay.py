"""Prints what "auto" would gain on recorded texts, machine by machine, as it is and with each of its constants changed.

Run it where specllama is installed: ``python scripts/replay.py`` from the repository. ``--parallel`` adds a table of
several texts at once, ``--constants`` the one of constants, which takes some minutes. No model is needed, and no quiet
machine: the decisions are those of the real pace, what would be accepted was recorded (scripts/record_traces.py), and
what a batch takes is a table below.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests" / "helpers"))
from parallel_simulation import ParallelSimulation  # noqa: E402
from simulation import Curve, Machine, Simulation, Text, curve  # noqa: E402

from specllama import _core_test as _test  # noqa: E402

TRACES = sorted((ROOT / "docs" / "data").glob("traces-*.json"))
MOST = 64  # what "auto" drafts at most
SEEDS = range(4)  # of the random times of batches

# T(n) with two threads: DRAFTS in units of T(1), TARGETS in milliseconds, with T(1) of the draft before them. Beyond
# 16 tokens batches cost what prompts do.
EPYC, ZEN3, XEON, OLDER = "EPYC (Zen 4)", "EPYC (Zen 3)", "Xeon (Sapphire Rapids)", "older Xeon"
DRAFTS: dict[str, Curve] = {
    "kernels": curve(1.0, {1: 1, 2: 1.25, 3: 1.37, 4: 1.58, 6: 1.7, 9: 2.15, 16: 3.8, 24: 4.9, 66: 12, 512: 95}),
    "llama.cpp": curve(
        1.0, {1: 1, 2: 1.56, 3: 1.98, 4: 1.7, 5: 2.56, 6: 3, 8: 2.9, 12: 4.2, 16: 4.8, 32: 9.3, 512: 139}
    ),
}
TARGETS: dict[str, tuple[str, float, dict[int, float]]] = {
    # These costs were learned among several texts: the kernels take eight rows at a time.
    f"Q4_K_M, kernels, {ZEN3}": (
        "kernels",
        15,
        {
            1: 53,
            2: 56,
            3: 68,
            4: 78,
            5: 85,
            6: 95,
            8: 110,
            9: 164,
            12: 182,
            14: 219,
            16: 250,
            24: 340,
            32: 460,
            65: 810,
        },
    ),
    f"Q4_K_M, kernels, {EPYC}": ("kernels", 15, {1: 43, 2: 46, 3: 51, 4: 57, 6: 78, 8: 92, 12: 140, 16: 168, 65: 620}),
    f"Q8_0, kernels, {EPYC}": ("kernels", 15, {1: 55, 2: 54, 3: 63, 4: 74, 6: 100, 8: 123, 12: 189, 16: 234, 65: 910}),
    f"Q4_K_M, kernels, {XEON}": (
        "kernels",
        30,
        {1: 77, 2: 87, 3: 93, 4: 104, 5: 109, 6: 118, 8: 129, 12: 174, 16: 209, 65: 797},
    ),
    f"Q8_0, kernels, {XEON}": (
        "kernels",
        30,
        {1: 119, 2: 130, 3: 140, 4: 139, 5: 149, 6: 156, 8: 177, 12: 223, 16: 246, 65: 868},
    ),
    f"Q4_K_M, llama.cpp, {EPYC}": (
        "llama.cpp",
        15,
        {1: 44, 2: 76, 3: 104, 4: 117, 6: 175, 8: 277, 12: 350, 16: 360, 65: 1340},
    ),
    f"Q8_0, llama.cpp, {EPYC}": (
        "llama.cpp",
        15,
        {1: 66, 2: 90, 3: 149, 4: 143, 6: 185, 8: 235, 12: 327, 16: 424, 65: 1600},
    ),
    f"Q4_K_M, llama.cpp, {XEON}": (
        "llama.cpp",
        30,
        {1: 77, 2: 126, 3: 164, 4: 134, 5: 168, 6: 203, 8: 244, 12: 324, 16: 322, 65: 1112},
    ),
    f"Q8_0, llama.cpp, {XEON}": (
        "llama.cpp",
        30,
        {1: 119, 2: 127, 3: 152, 4: 193, 5: 271, 6: 263, 8: 321, 12: 444, 16: 472, 65: 2050},
    ),
    f"F16, llama.cpp, {XEON}": (
        "llama.cpp",
        30,
        {1: 235, 2: 235, 3: 240, 4: 249, 5: 270, 6: 287, 8: 360, 12: 454, 16: 580, 65: 2100},
    ),
    f"F16, llama.cpp, {OLDER}": (
        "llama.cpp",
        30,
        {1: 218, 2: 233, 3: 255, 4: 249, 5: 255, 6: 266, 8: 355, 12: 438, 16: 510, 32: 940, 65: 1900},
    ),
    f"Q4_K_M, llama.cpp, {OLDER}": (
        "llama.cpp",
        30,
        {1: 87, 2: 142, 3: 189, 4: 147, 5: 231, 6: 280, 8: 344, 16: 449, 32: 914, 65: 1860},
    ),
}


def machine(name: str) -> Machine:
    """The machine of an entry of TARGETS."""
    kernels, draft, target = TARGETS[name]
    return Machine(
        lambda n: float(np.interp(n, list(target), list(target.values()))) / 1e3,
        lambda n: draft / 1e3 * DRAFTS[kernels](n),
    )


@dataclasses.dataclass(frozen=True)
class Trace:
    """A recorded text.

    Attributes:
        category: what kind of text it is.
        length: the number of tokens.
        text: what is known of each place.
        agrees: for each place, whether the draft's token is the first wrong one that was looked up.
    """

    category: str
    length: int
    text: Text
    agrees: list[bool]

    @classmethod
    def of(cls, recorded: Mapping[str, Any]) -> Trace:
        """Read a text as the file has it."""

        def column(key: str, kind: type) -> Any:
            return np.array([*map(int, recorded[key]), *[0] * (MOST + 1)]).astype(kind)

        text = Text(
            column("model", np.bool_),
            column("sure", np.float64) / 1e4,
            column("match", np.int64),
            column("right", np.int64),
            column("disputed", np.bool_),
            recorded["prompt"],
        )
        return cls(recorded["category"], len(recorded["model"]), text, [one == "1" for one in recorded["agrees"]])


def read_traces(paths: Iterable[Path]) -> dict[str, list[Trace]]:
    """All texts of files, by set. The name of a set has the file and the kind of its prompts."""
    found: dict[str, list[Trace]] = {}
    for path in paths:
        for recorded in json.loads(path.read_text())["texts"]:
            kind = recorded["category"] if recorded["category"] in ("humaneval", "long-edit") else "spec-bench"
            name = {"humaneval": "HumanEval", "long-edit": "edits", "spec-bench": "Spec-Bench"}[kind]
            key = f"{path.stem.removeprefix('traces-')}: {name}"
            found.setdefault(key, []).append(Trace.of(recorded))
    return found


def speedups(
    name: str,
    traces: list[Trace],
    constants: Mapping[str, float] | None = None,
    *,
    most: int = MOST,
    simulation: type[Simulation] = Simulation,
) -> list[tuple[float, float]]:
    """Speedups of texts, one after the other, over plain decoding: without the draft's prompt, and with it."""
    mean = np.zeros((len(traces), 2))
    for seed in SEEDS:
        on = machine(name)
        pace = on.known(constants or {})
        order = np.random.default_rng(seed).permutation(len(traces))
        for i in order:
            trace = traces[i]
            run = simulation(trace.text, on, trace.length, int(1000 * seed + i), most=most)
            seconds = sum(done.seconds for done in run.paced(pace))
            plain = trace.length * on.target(1)
            mean[i] += plain / seconds, plain / (seconds + run.prompt_seconds)
    return [(float(a), float(b)) for a, b in mean / len(SEEDS)]


def gain_together(name: str, traces: list[Trace], max_parallel: int, seed: int, most: int = MOST) -> float:
    """The speedup of several texts at once over as many without drafts, with the draft's prompts."""
    on = machine(name)
    order = np.random.default_rng(seed).permutation(len(traces)).tolist()

    def seconds(on: Machine, most: int) -> float:
        texts = [Simulation(traces[i].text, on, traces[i].length, 1000 * seed + i, most=most) for i in order]
        return ParallelSimulation(on, max_parallel, seed).seconds(texts)

    return seconds(dataclasses.replace(on, draft=None), 0) / seconds(on, most)


def together(sets: Mapping[str, list[Trace]], max_parallel: Iterable[int], most: int) -> list[str]:
    """For each machine and set what drafts gain among several texts, each twice, as Markdown."""
    sizes = list(max_parallel)
    rows = [f"| | texts | {' | '.join(map(str, sizes))} |", "|---|---:|" + "---:|" * len(sizes)]
    for name in TARGETS:
        for key, traces in sets.items():
            gains = [statistics.mean(gain_together(name, 2 * traces, n, seed, most) for seed in SEEDS) for n in sizes]
            rows.append(f"| {name}; {key} | {2 * len(traces)} | {' | '.join(f'{gain:.2f}' for gain in gains)} |")
    return rows


def oracle(name: str, trace: Trace) -> float:
    """The speedup if it were known what will be accepted: only that is drafted, and as much of it as is best.

    A token that can be looked up costs nothing. One that only the model knows costs one decode (dynamic programming).
    """
    on = machine(name)
    assert on.draft is not None
    target = [on.target(n) for n in range(MOST + 2)]
    price = [
        0.0 if right > 0 else on.draft(1) if model else float("inf")
        for right, model in zip(trace.text.right, trace.text.model, strict=True)
    ]
    best = [0.0] * (trace.length + 1)  # seconds from a place to the end
    for place in reversed(range(trace.length)):
        paid, least = 0.0, float("inf")
        for n in range(min(MOST, trace.length - place - 1) + 1):
            least = min(least, paid + target[n + 1] + best[place + n + 1])
            paid += price[place + n]
        best[place] = least
    return trace.length * on.target(1) / best[0]


def overview(sets: Mapping[str, list[Trace]], most: int) -> list[str]:
    """For each machine and set the mean speedup, the worst text's, and the oracle's, as Markdown."""
    rows = ["| | texts | auto | worst | with the prompt | oracle |", "|---|---:|---:|---:|---:|---:|"]
    for name in TARGETS:
        for key, traces in sets.items():
            found = speedups(name, traces, most=most)
            without, with_prompt = zip(*found, strict=True)
            known = statistics.mean(oracle(name, trace) for trace in traces)
            rows.append(
                f"| {name}; {key} | {len(traces)} | {statistics.mean(without):.2f} | {min(without):.2f} "
                f"| {statistics.mean(with_prompt):.2f} | {known:.2f} |"
            )
    return rows


def by_machine(sets: Mapping[str, list[Trace]], constants: Mapping[str, float]) -> dict[str, float]:
    """The logarithm of the speedup on each machine, in percent, with the draft's prompt: the mean over all texts."""
    found = {}
    for name in TARGETS:
        found[name] = 100.0 * statistics.mean(
            float(np.log(one)) for traces in sets.values() for _, one in speedups(name, traces, constants)
        )
    return found


def sensitivity(sets: Mapping[str, list[Trace]], names: Iterable[str]) -> list[str]:
    """By how many percent the mean speedup changes if a constant is halved or doubled, as Markdown."""
    usual = by_machine(sets, {})
    flat = [name for name in TARGETS if ", kernels" in name]
    rows = [
        "| | value | halved: kernels | llama.cpp | doubled: kernels | llama.cpp |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for constant in names:
        value = _test.Pace.constants()[constant]
        cells = []
        for factor in (0.5, 2.0):
            changed = by_machine(sets, {constant: value * factor})
            for some in (flat, [name for name in TARGETS if name not in flat]):
                gain = statistics.mean(changed[name] - usual[name] for name in some)
                cells += [f"{gain:+.2f}"]
        rows.append(f"| {constant} | {value:g} | " + " | ".join(cells) + " |")
        print(rows[-1], file=sys.stderr)
    return rows


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path, default=TRACES, help="files of record_traces.py")
    parser.add_argument("--most", type=int, default=MOST, help="max_draft_tokens")
    parser.add_argument("--constants", nargs="*", metavar="NAME", help="what halving and doubling these does, or all")
    parser.add_argument("--parallel", type=int, nargs="+", default=[], help="so many texts at once, each number")
    given = parser.parse_args()
    sets = read_traces(given.traces)
    print(*overview(sets, given.most), sep="\n")
    if given.parallel:
        print(*together(sets, given.parallel, given.most), sep="\n")
    if given.constants is not None:
        print(*sensitivity(sets, given.constants or _test.Pace.constants()), sep="\n")


if __name__ == "__main__":
    main()
