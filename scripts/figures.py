"""Makes the tables and figures of the pages from measurements. tables.py calls one function for each.

Each function takes the folder of a machine's measurements: docs/data/, or a folder in it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

TYPES = {"q4_k_m": "Q4_K_M", "q8_0": "Q8_0", "f16": "F16"}
WAYS = {"ours": "our kernels", "theirs": "llama.cpp's"}
TARGETS = {"q4_k_m": "1.5B, Q4_K_M", "q8_0": "1.5B, Q8_0", "7b": "at a 7B's cost, Q4_K_M"}
SETS = {"kinds": "eight kinds of text", "humaneval": "HumanEval", "spec-bench": "Spec-Bench"}
METHODS = {
    "lookup": "lookup in the text",
    "lookahead": "lookahead",
    "model": "0.5B and lookup",
    "staged": "0.5B, which looks up too, and lookup",
    "head": "a head of `train-draft`, and lookup",
    "both": "this head, 0.5B and lookup",
    "eagle3": "a head that has learned from less, and lookup",
    "hydra": "a Hydra head, and lookup",
    "hydra-long": "a Hydra head that has learned from more, and lookup",
    "medusa": "a Medusa head, and lookup",
    "blockwise": "a blockwise head, and lookup",
    "sibling": "the 0.5B after learning, and lookup",
    "pard": "the 0.5B as a parallel draft, and lookup",
    "foreign": "SmolLM2-135M (another tokenizer), and lookup",
    "auto": 'what `"auto"` takes',
}
INSTRUCTION_SETS = ("avx-512-vnni", "avx-vnni", "avx2")
SIZES = (2, 3, 4, 6, 8, 12, 16)
MIB = 2**20

Json = dict[str, Any]


class MissingError(LookupError):
    """A measurement has not been made. The message is the name of its part of scripts/measure.sh."""


def load(data: Path, name: str) -> Json:
    """Read the measurement `name` from a folder.

    Raises:
        MissingError: the folder has no such file.
    """
    path = data / f"{name}.json"
    if not path.is_file():
        raise MissingError(name)
    found: Json = json.loads(path.read_text(encoding="utf-8"))
    return found


def present(data: Path, names: Iterable[str]) -> dict[str, Json]:
    """Read the measurements among `names` that exist, by name.

    Raises:
        MissingError: none exists.
    """
    wanted = list(names)
    found = {name: load(data, name) for name in wanted if (data / f"{name}.json").is_file()}
    if not found:
        raise MissingError(" ".join(wanted))
    return found


def table(titles: Sequence[str], rows: Iterable[Sequence[str]], num_left: int = 1) -> str:
    """A table in Markdown. The first `num_left` columns are aligned to the left, all others to the right."""
    rule = ["---" if i < num_left else "---:" for i in range(len(titles))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (titles, rule, *rows))


def _summaries(data: Path, kind: str) -> dict[tuple[str, str], Json]:
    """The benchmark of a set of prompts by (type, way); F16 has no kernels of ours."""
    names = {f"{kind}-{weights}-{way}": (weights, way) for weights in TYPES for way in WAYS}
    return {names[name]: found for name, found in present(data, names).items()}


def _row(rows: Sequence[Json], mode: str = "auto", category: str = "all") -> Json:
    """The row of a benchmark's summary, or of its gains, for a mode."""
    return next(row for row in rows if row["mode"] == mode and row["category"] == category)


def _title(weights: str, way: str) -> str:
    return TYPES[weights] if weights == "f16" else f"{TYPES[weights]}, {WAYS[way]}"


def _median(samples: Sequence[float]) -> float:
    return statistics.median(samples)


def _whole(data: Path) -> dict[tuple[str, str], Json]:
    """Whole calls against llama_cpp.Llama, by (set of prompts, target)."""
    names = {f"whole-{kind}-{target}": (kind, target) for target in TARGETS for kind in SETS}
    return {names[name]: found for name, found in present(data, names).items()}


def whole_calls(data: Path) -> str:
    """The gain of replacing llama_cpp.Llama, and the parts that the kernels and the draft have in it."""
    rows = []
    for (kind, target), result in _whole(data).items():
        both, kernels = (_row(result["gains"], mode) for mode in ("auto", "plain"))
        rows.append(
            [
                TARGETS[target],
                f"{SETS[kind]}, {both['num_prompts']} prompts",
                f"{both['their_tokens_per_second']:.1f}",
                f"{both['tokens_per_second']:.1f}",
                f"**{both['mean']:.2f}** ({both['low']:.2f} - {both['high']:.2f})",
                f"{both['least']:.2f}",
                f"{kernels['mean']:.2f}",
                f"{both['over_plain']:.2f}",
            ]
        )
    titles = "target|prompts|llama_cpp, t/s|specllama, t/s|gain|least|kernels alone|draft on top"
    return table(titles.split("|"), rows, 2)


def whole_headline(data: Path) -> str:
    """The gains of whole calls in words."""
    found = _whole(data)
    code, texts = (
        [_row(found[kind, target]["gains"])["mean"] for target in TARGETS if (kind, target) in found]
        for kind in ("humaneval", "spec-bench")
    )

    def times(gains: list[float]) -> str:
        least, most = f"{min(gains):.1f}", f"{max(gains):.1f}"
        return least if least == most else f"{least} to {most}"

    return f"{times(code)} times as many for code, {times(texts)} times as many on average over 13 kinds of text"


def whole_categories(data: Path) -> str:
    """The gain by category of Spec-Bench."""
    found = {target: result for (kind, target), result in _whole(data).items() if kind == "spec-bench"}
    of = {
        target: {row["category"]: row["mean"] for row in result["gains"] if row["mode"] == "auto"}
        for target, result in found.items()
    }
    first = next(iter(of.values()), {})
    names = sorted(first.keys() - {"all"}, key=first.__getitem__, reverse=True)
    rows = [[name, *(f"{each[name]:.2f}" for each in of.values())] for name in names]
    return table(["", *(TARGETS[target] for target in of)], rows)


def limits(data: Path) -> str:
    """How near decoding and prompts come to what the machine can do."""
    found = load(data, "limits")
    rows = []
    for weights, costs in _costs(data).items():
        need = found["models"][weights]
        one = _median(costs["batches"]["ours"]["1"])
        prompt = _median(costs["prompts"]["ours"]["512"])
        read, done = need["bytes"] / one * 1e-9, 512 * need["products"] / prompt * 1e-9
        eight = _median(costs["batches"]["ours"]["8"]) / one
        cells = [weights, f"{read:.1f} GB/s", f"{read / found['bytes']:.0%}"]
        most = found["products"][_instruction_set(costs["machine"])]
        rows.append([*cells, f"{done:.0f}", f"{done / most:.0%}", f"{eight:.2f}"])
    titles = ["weights", "one token reads", "of the memory's speed", "products of a prompt, 10⁹ a second"]
    return table([*titles, "of the processor's", "T(8)/T(1)"], rows)


def instruction_sets(data: Path) -> str:
    """What batches and prompts cost with each instruction set of one machine, and how near that is to its limits."""
    found = load(data, "limits")
    names = {f"costs-{name}-{weights}": weights for weights in TYPES for name in INSTRUCTION_SETS}
    rows = []
    for name, costs in present(data, names).items():
        kernels, need = _instruction_set(costs["machine"]), found["models"][TYPES[names[name]]]
        most = found["products"][kernels] * 1e9
        times = {int(n): _median(samples) for n, samples in costs["batches"]["ours"].items()}
        prompt = 512 / _median(costs["prompts"]["ours"]["512"])
        eight = 8 * (need["products"] + need["output_products"]) / times[8]
        rows.append(
            [
                TYPES[names[name]],
                kernels,
                f"{times[1] * 1e3:.1f} ms",
                f"{need['bytes'] / times[1] / (found['bytes'] * 1e9):.0%}",
                *(f"{times[n] / times[1]:.2f}" for n in (2, 4, 8, 16)),
                f"{eight / most:.0%}",
                f"{prompt:.0f}",
                f"{prompt * need['products'] / most:.0%}",
            ]
        )
    titles = "weights|kernels|T(1)|of the memory|T(2)|T(4)|T(8)|T(16)|T(8), of the processor|prompt of 512, t/s"
    return table([*titles.split("|"), "prompt, of the processor"], rows, 2)


def tools(data: Path) -> str:
    """Tokens per second beside llama.cpp's own tools."""
    rows = []
    ratios = []
    for one in load(data, "tools-q4_k_m")["prompts"]:
        rates = dict(one["rates"])
        ours, plain = rates.pop("auto"), rates.pop("plain")
        best = max(rates, key=rates.__getitem__)
        ratios.append(ours / rates[best])
        cells = [f"{one['category']} ({one['prompt_id']})", f"{plain:.1f}", f"{ours:.1f}", f"{rates[best]:.1f}"]
        rows.append([*cells, best.removeprefix("llama-"), f"{ratios[-1]:.2f}"])
    rows.append(["mean", "", "", "", "", f"**{statistics.mean(ratios):.2f}**"])
    titles = ["prompt", "plain, t/s", "auto, t/s", "best of theirs, t/s", "which", "auto over it"]
    return table(titles, rows)


def speedups(data: Path) -> str:
    """The speedup of auto for each set of prompts, with its interval."""
    found = {kind: _summaries(data, kind) for kind in SETS if any(data.glob(f"{kind}-*.json"))}
    if not found:
        raise MissingError(" ".join(f"{kind}-{weights}-{way}" for kind in SETS for weights in TYPES for way in WAYS))
    columns = [(t, w) for t in TYPES for w in WAYS if any((t, w) in of for of in found.values())]
    rows = []
    for kind, of in found.items():
        first = _row(next(iter(of.values()))["summary"])
        cells = [f"{SETS[kind]}, {first['num_prompts']} prompts"]
        for column in columns:
            row = _row(of[column]["summary"]) if column in of else None
            text = "**{speedup_mean:.2f}** ({speedup_low:.2f} - {speedup_high:.2f})"
            cells.append(text.format(**row) if row else "")
        rows.append(cells)
    return table(["prompts", *(_title(*column) for column in columns)], rows)


def methods(data: Path) -> str:
    """The gain of each kind of draft over plain decoding in whole calls."""
    return _methods(data, "q4_k_m")


def methods_at_7b(data: Path) -> str:
    """The same for a target that has the function of the 1.5B and the cost of a 7B."""
    return _methods(data, "7b")


def _methods(data: Path, weights: str) -> str:
    rows = []
    for (name, kind), found in _of_methods(data, weights).items():
        runs = _whole_gains(found)
        row = _row(found["summary"])
        rows.append(
            [
                METHODS[name],
                f"{SETS[kind]}, {len(runs)} prompts",
                f"**{statistics.mean(runs):.2f}** ({min(runs):.2f} - {max(runs):.2f})",
                f"{row['speedup_mean']:.2f}",
                f"{row['acceptance_rate']:.0%}" if row["acceptance_rate"] is not None else "",
                f"{row['mean_acceptance_length']:.2f}",
            ]
        )
    titles = "draft|prompts|whole calls over plain|without the prompt|accepted|tokens a round"
    return table(titles.split("|"), rows, 2)


def _of_methods(data: Path, weights: str) -> dict[tuple[str, str], Json]:
    """The measurements of METHODS that exist, by the names of the method and of the prompts."""
    names = {f"method-{name}-{kind}-{weights}": (name, kind) for name in METHODS for kind in SETS}
    return {names[key]: found for key, found in present(data, names).items()}


def _whole_gains(found: Json) -> list[float]:
    """The gain of a draft over plain decoding in whole calls, for each prompt."""
    return [run["end_to_end_speedup"] for run in found["runs"] if run["mode"] == "auto"]


def recipes(data: Path) -> str:
    """The acceptance that each recipe of train-draft gave, for one text."""
    return _trainings("recipe", load(data, "training-smollm2")["runs"])


def sibling_losses(data: Path) -> str:
    """The acceptance of a small model before it learned, and after it learned with each loss, for one text."""
    runs = load(data, "training-siblings")["runs"]
    return _trainings("loss", [{"recipe": "before", **runs[0]["before"]}, *runs])


def kinds_of_drafts(data: Path) -> str:
    """What each kind of train-draft gave for the same text, and Hydra for more of it, too."""
    gains = {
        names: f"{statistics.mean(_whole_gains(found)):.2f}" for names, found in _of_methods(data, "q4_k_m").items()
    }
    rows = [
        [
            f"`{run['recipe']}`",
            f"{run['learned']:,}",
            f"{run['bytes']['Q4_0'] / MIB:.0f} MiB" if run["bytes"] else "",
            f"{run['seconds'] / 60:.0f} min",
            *(" / ".join(f"{share:.0%}" for share in run[name]) for name in ("greedy", "sampled")),
            *(gains.get((run.get("calls", run["recipe"]), prompts), "") for prompts in ("humaneval", "spec-bench")),
        ]
        for run in load(data, "training-kinds")["runs"]
    ]
    titles = "kind|learned tokens|file|processor time|right at steps 1, 2, 3|accepted at temperature 1"
    return table([*titles.split("|"), "HumanEval", "Spec-Bench"], rows)


def _trainings(title: str, runs: list[dict[str, Any]]) -> str:
    """A row for each training. A run without a time is a draft before its training."""
    rows = [
        [
            run["recipe"],
            *(" / ".join(f"{share:.1%}" for share in run[name]) for name in ("greedy", "sampled")),
            f"{run['length']:.3f}" if "length" in run else "",
            f"{run['seconds']} s" if "seconds" in run else "",
        ]
        for run in runs
    ]
    titles = "right at steps 1, 2, 3|accepted at temperature 1|tokens of a draft of three|processor time"
    return table([title, *titles.split("|")], rows)


def details(data: Path) -> str:
    """Further figures of the benchmarks."""
    rows = []
    for kind in SETS:
        if not any(data.glob(f"{kind}-*.json")):
            continue
        for (weights, way), result in _summaries(data, kind).items():
            row, plain = (_row(result["summary"], mode) for mode in ("auto", "plain"))
            rows.append(
                [
                    SETS[kind],
                    _title(weights, way),
                    f"{plain['tokens_per_second']:.1f}",
                    f"{row['tokens_per_second']:.1f}",
                    f"{row['speedup_median']:.2f}",
                    f"{row['worst_speedup']:.2f}",
                    f"{row['end_to_end_mean']:.2f}",
                    f"{row['acceptance_rate']:.0%}",
                    f"{row['num_texts_equal']} of {row['num_texts_compared']}",
                ]
            )
    if not rows:
        raise MissingError("kinds-q4_k_m-ours")
    titles = "prompts|target|plain, t/s|auto, t/s|median|worst|with the prompt|accepted|equal texts"
    return table(titles.split("|"), rows, 2)


def sources(data: Path) -> str:
    """The shares of tokens that lookup, the draft model and the target itself gave."""
    rows = []
    for kind in ("humaneval", "spec-bench"):
        for (weights, way), result in _summaries(data, kind).items():
            counts: dict[str, int] = {}
            for run in result["runs"]:
                if run["mode"] == "auto":
                    stats = run["stats"]
                    counts["all"] = counts.get("all", 0) + stats["num_tokens"]
                    for name, one in stats["per_drafter"].items():
                        counts[name] = counts.get(name, 0) + one["num_accepted_tokens"]
            total = counts.pop("all")
            cells = [f"{counts.get(name, 0) / total:.0%}" for name in ("lookup", "model")]
            rows.append([SETS[kind], _title(weights, way), *cells, f"{1 - sum(counts.values()) / total:.0%}"])
    return table(["prompts", "target", "lookup", "draft model", "target itself"], rows, 2)


def categories(data: Path) -> str:
    """The speedup by category of Spec-Bench, the best first."""
    found = _summaries(data, "spec-bench")
    first = next(iter(found.values()))
    names = [row["category"] for row in first["summary"] if row["mode"] == "auto" and row["category"] != "all"]
    names.sort(key=lambda name: -_row(first["summary"], category=name)["speedup_mean"])
    rows = [
        [name, *("{speedup_mean:.2f}".format(**_row(result["summary"], category=name)) for result in found.values())]
        for name in names
    ]
    return table(["", *(_title(*key) for key in found)], rows)


def _costs(data: Path) -> dict[str, Json]:
    names = {f"costs-{weights}": name for weights, name in TYPES.items()}
    return {names[key]: found for key, found in present(data, names).items()}


def batches(data: Path) -> str:
    """T(1), T(n) in units of it, and prompts, with llama.cpp's kernels and with ours."""
    rows = []
    for weights, found in _costs(data).items():
        for way, samples in found["batches"].items():
            one = _median(samples["1"])
            cells = [weights, "our kernels" if way == "ours" else "llama.cpp's", f"{one * 1e3:.0f} ms"]
            cells += [f"{_median(samples[str(n)]) / one:.2f}" for n in SIZES]
            cells += [f"{int(n) / _median(each):.0f}" for n, each in found["prompts"][way].items()]
            rows.append(cells)
    prompts = [f"prompt of {n}, t/s" for n in next(iter(_costs(data).values()))["prompts"]["ours"]]
    return table(["weights", "kernels", "T(1)", *(f"T({n})" for n in SIZES), *prompts], rows, 2)


def behind_2000(data: Path) -> str:
    """What batches cost behind 2,000 tokens, and prompts, with flash attention and without."""
    rows = []
    for key, flash in {"costs-2000-q4_k_m": "off", "costs-2000-flash-q4_k_m": "on"}.items():
        found = load(data, key)
        for way, samples in found["batches"].items():
            cells = ["our kernels" if way == "ours" else "llama.cpp's", flash]
            cells += [f"{_median(samples[str(n)]) * 1e3:.0f} ms" for n in (1, *SIZES)]
            rows.append([*cells, f"{512 / _median(found['prompts'][way]['512']):.0f}"])
    titles = [*(f"T({n})" for n in (1, *SIZES)), "prompt of 512, t/s"]
    return table(["kernels", "flash attention", *titles], rows, 2)


def long_contexts(data: Path) -> str:
    """What one token, a batch of eight and a part of a prompt cost behind long texts, with both kernels."""
    rows, first = [], dict[tuple[str, str], float]()
    for row in load(data, "long-contexts-q4_k_m")["rows"]:
        for way in ("llama.cpp", "ours"):
            cells = [f"{row['behind']:,}", "our kernels" if way == "ours" else "llama.cpp's"]
            for size, samples in row["batches"][way].items():
                seconds = _median(samples)
                share = 1 - first.setdefault((way, size), seconds) / seconds
                cells += [f"{seconds * 1e3:.0f} ms", f"{max(0.0, share):.0%}"]
            count, seconds = row["part"][way]
            rows.append([*cells, f"{count / seconds:.0f}"])
    titles = [title for n in (1, 8) for title in (f"T({n})", f"T({n}), attention")]
    return table(["tokens before", "kernels", *titles, "prompt, t/s"], rows, 2)


def gains(data: Path) -> str:
    """Time of llama.cpp's kernels over ours."""
    return _gains(_costs(data))


SHAPES = {
    "qwen3-4b-q4_k": "Qwen3-4B (dense)",
    "gemma-3-4b-q4_k": "Gemma 3 4B (windows)",
    "qwen3.5-4b-q4_k": "Qwen3.5-4B (delta nets)",
    "lfm2-2.6b-q4_k": "LFM2-2.6B (short convolutions)",
    "granite-4.0-h-micro-q4_k": "Granite 4.0 H Micro (Mamba-2)",
    "qwen3-30b-a3b-q4_k": "Qwen3-30B-A3B (experts)",
    "qwen3-30b-a3b-mxfp4": "Qwen3-30B-A3B, MXFP4",
    "qwen3.5-35b-a3b-q4_k": "Qwen3.5-35B-A3B (delta nets, experts)",
    "gpt-oss-20b-mxfp4": "gpt-oss-20b, MXFP4 (windows, experts)",
}  # the models with random weights of scripts/random_model.py


def _of_shapes(data: Path, what: str) -> dict[str, Json]:
    names = {f"{what}-{name}": title for name, title in SHAPES.items()}
    return {names[key]: found for key, found in present(data, names).items()}


def shapes(data: Path) -> str:
    """Time of llama.cpp's kernels over ours, for models with random weights in the shapes of real ones."""
    return _gains(_of_shapes(data, "costs"))


def rounds(data: Path) -> str:
    """What a draft that is right as often as given gains, and which part of what its batches allow that is."""
    rows = []
    for title, found in _of_shapes(data, "rounds").items():
        plain = _median([run["seconds"] for run in found["rounds"]["0"]])
        cells = [title, f"{_median(found['costs']['1']) * 1e3:.0f} ms"]
        for runs in list(found["rounds"].values())[1:]:
            gain = plain / _median([run["seconds"] for run in runs])
            cells += [f"{gain:.2f}", f"{_median([run['allowed'] / run['seconds'] for run in runs]):.2f}"]
        rows.append(cells)
    titles = [title for size in list(found["rounds"])[1:] for title in (f"{size} drafted", "of what is allowed")]
    return table(["shapes of", "T(1)", *titles], rows)


def texts_of_shapes(data: Path) -> str:
    """What several texts at once gain with models of random weights, against a dense one."""
    rows, dense = [], 0.0
    for title, found in _of_shapes(data, "texts").items():
        one, *others = (run["tokens"] / run["seconds"] for run in found["runs"])
        gain = others[-1] / one
        dense = dense or gain
        equal = f"{found['runs'][-1]['equal']} of {found['texts']}"
        rows.append([title, f"{one:.1f}", f"{others[-1]:.1f}", f"{gain:.2f}", f"{gain / dense:.2f}", equal])
    count = found["runs"][-1]["max_parallel"]
    return table(
        ["shapes of", "one by one, t/s", f"{count} at once", "ratio", "of the dense one's", "equal texts"], rows
    )


def _gains(costs: Mapping[str, Json]) -> str:
    rows = []
    for weights, found in costs.items():
        theirs, ours = (found["batches"][way] for way in ("llama.cpp", "ours"))
        cells = [weights, *(f"{_median(theirs[str(n)]) / _median(ours[str(n)]):.2f}" for n in (1, *SIZES))]
        theirs, ours = (found["prompts"][way] for way in ("llama.cpp", "ours"))
        rows.append([*cells, *(f"{_median(theirs[n]) / _median(ours[n]):.2f}" for n in ours)])
    prompts = [f"prompt of {n}" for n in next(iter(costs.values()))["prompts"]["ours"]]
    return table(["llama.cpp's time over ours", *(f"n = {n}" for n in (1, *SIZES)), *prompts], rows)


def ceilings(data: Path) -> str:
    """The ceilings and the best fixed settings of scripts/ceiling.py, by category."""
    names = {f"ceiling-{weights}-{way}": (weights, way) for weights in TYPES for way in WAYS}
    found = {names[key]: {row["category"]: row for row in one["rows"]} for key, one in present(data, names).items()}
    kinds = list(next(iter(found.values())))
    titles = [title for key in found for title in (f"{_title(*key)}: ceiling", "best fixed")]
    cells = "{ceiling:.2f}|{fixed}, {speedup:.2f}"
    rows = [[kind, *(c for of in found.values() for c in cells.format(**of[kind]).split("|"))] for kind in kinds]
    return table(["", *titles], rows)


def types(data: Path) -> str:
    """What products of each type of weights take, by llama.cpp's kernels over ours."""
    found = load(data, "types")
    *batches, prompt = found["columns"]
    rows = []
    for kind, of in found["types"].items():
        ratios = (f"{theirs / ours:.2f}" for ours, theirs in zip(of["ours"], of["theirs"], strict=True))
        rows.append([kind, f"{of['ours'][0]:.0f} ms", f"{of['ours'][-2] / of['ours'][0]:.2f}", *ratios])
    titles = ["weights", "a GB, ours, n = 1", "n = 8, in units of it", *(f"n = {n}" for n in batches), f"n = {prompt}"]
    return table(titles, rows)


def arm_estimate(data: Path) -> str:
    """What products would take on ARM processors, by llama.cpp's kernels over ours (scripts/arm_estimate.py)."""
    found = load(data, "arm-estimate")
    processors = list(next(iter(found["types"].values())))
    rows = [
        [kind, *(", ".join(f"{theirs / ours:.2f}" for ours, theirs in of[name]) for name in processors)]
        for kind, of in found["types"].items()
    ]
    return table(["weights", *processors], rows)


def accuracy(data: Path) -> str:
    """The errors of products."""
    found = load(data, "accuracy")
    ways = {"llama.cpp": "llama.cpp's", "ours": "ours"}
    titles = [f"{n} token{'s' * (n > 1)}, {name}" for n in found["columns"] for name in ways.values()]
    rows = [
        [
            kind,
            *(f"{of[way][i]:.3%}" for i in range(len(found["columns"])) for way in ways),
            f"{found['apart'][kind]:.1e}",
        ]
        for kind, of in found["errors"].items()
    ]
    return table(["weights", *titles, "both apart"], rows)


def perplexity(data: Path) -> str:
    """The perplexity of a text with both kernels."""
    names = {f"perplexity-{weights}": name for weights, name in TYPES.items() if weights != "f16"}
    rows = [
        [
            names[key],
            f"{one['theirs']:.4f}",
            f"{one['ours']:.4f}",
            f"{one['ratio']:+.3%}",
            f"{one['standard_error']:.3%}",
        ]
        for key, one in present(data, names).items()
    ]
    titles = ["weights", "llama.cpp's kernels", "our kernels", "difference", "its standard error"]
    return table(titles, rows)


def loading(data: Path) -> str:
    """The time and the memory of loading a model."""
    names = {f"loading-{weights}": name for weights, name in TYPES.items() if weights != "f16"}
    rows = []
    for key, found in present(data, names).items():
        for way, of in found["loads"].items():
            sizes = (f"{of[name] / MIB:.0f}" for name in ("weights", "anonymous_used", "mapped_used", "peak"))
            kernels = "our kernels" if way == "ours" else "llama.cpp's"
            seconds = (f"{of[name]:.2f} s" for name in ("seconds", "processor_seconds"))
            rows.append([names[key], kernels, *seconds, *sizes])
    titles = ["weights", "kernels", "loading", "processor time"]
    titles += [f"{name}, MiB" for name in ("weights", "own memory", "mapped file", "peak")]
    return table(titles, rows, 2)


def splits(data: Path) -> str:
    """How many texts with a draft differ from the texts without one."""
    names = {f"splits-{weights}-{way}": (weights, way) for weights in TYPES for way in WAYS}
    rows = []
    for key, found in present(data, names).items():
        cells = [_title(*names[key])]
        for way in ("greedy", "coupled"):
            of = [text for text in found["texts"] if text["way"] == way]
            cells.append(f"{sum(text['split'] is not None for text in of)} of {len(of)}")
        rows.append(cells)
    return table(["target", "greedy texts that differ", "texts with a seed that differ"], rows)


def many_texts(data: Path) -> str:
    """Tokens per second of many texts at once."""
    kinds = {
        "many-texts-q4_k_m": "short",
        "many-texts-humaneval-q4_k_m": "HumanEval",
        "many-texts-spec-bench-q4_k_m": "Spec-Bench",
    }
    rows = []
    for name, found in present(data, kinds).items():
        one = found["runs"][0]["tokens"] / found["runs"][0]["seconds"]
        for run in found["runs"]:
            rate = run["tokens"] / run["seconds"]
            rows.append(
                [
                    kinds[name],
                    str(run["max_parallel"]),
                    "auto" if run["num_draft_tokens"] == "auto" else "none",
                    f"{rate:.1f}",
                    f"{rate / one:.2f}",
                    f"{run['equal']} of {found['texts']}",
                ]
            )
    return table(["prompts", "texts at once", "drafts", "tokens/s", "ratio", "equal texts"], rows, 3)


def text_memory(data: Path) -> str:
    """The memory that each text takes among others, without its KV cache."""
    runs = load(data, "text-memory")["runs"]
    first = runs[0]
    more = [
        (run["anonymous"] - first["anonymous"] - run["cache"] + first["cache"]) / (run["parallel"] - first["parallel"])
        for run in runs[1:]
    ]
    return f"{min(more) / MIB:.0f} to {max(more) / MIB:.0f} MiB"


def llama_server(data: Path) -> str:
    """Tokens per second of many texts at once, and llama-server's."""
    runs = [run for found in present(data, ["llama-server-q4_k_m"]).values() for run in found["runs"]]
    ways = list(dict.fromkeys(run["way"] for run in sorted(runs, key=lambda run: run["at_once"])))
    rates = {(run["at_once"], run["way"]): run["tokens"] / run["seconds"] for run in runs}
    counts = sorted({count for count, _ in rates})
    return table(["texts at once", *ways], [[str(n), *(f"{rates[n, way]:.1f}" for way in ways)] for n in counts])


def agent_prompts(data: Path) -> str:
    """How many tokens of an agent's prompts were decoded, and how long the first token took."""
    found = load(data, "agent-prompts-q4_k_m")
    prompts, of = found["prompts"], dict[str, list[list[Json]]]()
    for replay in found["replays"]:
        of.setdefault(replay["way"], []).append(replay["turns"])
    rows = []
    for way, replays in of.items():
        over = [turn["num_decoded"] - prompt["new"] for turn, prompt in zip(replays[0], prompts, strict=True)]
        counts = (sum(turn["num_decoded"] for turn in replays[0]), sum(over), max(over))
        seconds: dict[bool, list[float]] = {False: [], True: []}
        for turns in replays:
            for prompt, turn in [*zip(prompts, turns, strict=True)][1:]:
                seconds[prompt["after_restart"]].append(turn["seconds"])
        whole = _median([sum(turn["seconds"] for turn in turns) for turns in replays])
        rows.append([way, *(f"{count:,}" for count in counts), *map(_spread, seconds.values()), f"{whole:.0f}"])
    titles = "|decoded|more than distinct|of one prompt at most|first token, s|after a restart, s|all first tokens, s"
    return table(titles.split("|"), rows)


def _spread(seconds: Sequence[float]) -> str:
    return f"{_median(seconds):.2f} ({min(seconds):.2f} - {max(seconds):.2f})"


def agent_prompts_sent(data: Path) -> str:
    """What the prompts of the agent come to."""
    prompts = load(data, "agent-prompts-q4_k_m")["prompts"]
    whole, distinct = (sum(prompt[name] for prompt in prompts) for name in ("tokens", "new"))
    return f"{len(prompts)} prompts have {whole:,} tokens, of which {distinct:,} are distinct"


def after_restart(data: Path) -> str:
    """The time to the first token after a restart, and what copying as many bytes takes."""
    rows = []
    for row in load(data, "after-restart-q4_k_m")["rows"]:
        seconds = {way: [one["seconds"] for one in found] for way, found in row.items() if isinstance(found, list)}
        read, back, copied = (seconds[way] for way in ("read", "put back", "copied"))
        server = (seconds.get(f"llama-server, {way}") for way in ("read", "slot restored"))
        ratios = (f"{_median(read) / _median(back):.0f}", f"{_median(back) / _median(copied):.2f}")
        cells = (*map(_spread, (read, back, copied)), *ratios, *(_spread(each) if each else "" for each in server))
        rows.append([f"{row['behind']:,}", *cells])
    times = "read, s|put back, s|copied, s|read / put back|put back / copied"
    return table(["tokens", *times.split("|"), "llama-server reads, s", "it restores a slot, s"], rows)


def keeping_cost(data: Path, name: str = "keeping-cost") -> str:
    """What keeping a short call in a folder costs."""
    rows = []
    for row in load(data, name)["rows"]:
        cells = [f"{row['tokens']}"]
        for place in (0, 1):  # the time, and that of all processors
            pairs = zip(row["with"], row["without"], strict=True)
            ratios = [100 * (one[place] / other[place] - 1) for one, other in pairs]
            cells.append(f"{_median(ratios):+.1f} % ({min(ratios):+.1f} - {max(ratios):+.1f})")
        rows.append(cells)
    return table(["tokens of an answer", "time", "processor time"], rows)


def learning_cost(data: Path) -> str:
    """What keeping what a draft can learn costs."""
    return keeping_cost(data, "learning-cost")


def learned_from_use(data: Path) -> str:
    """How right a head is after so many tokens of answers, on answers that it has not learned from."""
    heads = load(data, "learning-from-use")["heads"]
    by_order = {
        order: {one["stage"]: one for one in heads if one["order"] == order} for order in ("mixed", "parted", "at-once")
    }
    rows = []
    for stage, one in by_order["mixed"].items():
        rows.append([f"{one['num_tokens']:,}", *_how_right(one), *_how_right(by_order["parted"].get(stage))])
    rows += [[f"{one['num_tokens']:,}, at once", *_how_right(one), "", ""] for one in by_order["at-once"].values()]
    titles = ["learned tokens", "questions", "edits", "first questions, then edits: questions", "edits"]
    return table(titles, rows)


def _how_right(head: Json | None) -> list[str]:
    if head is None:
        return ["", ""]
    return [" / ".join(f"{100 * one:.0f}" for one in head["right"][domain]) + " %" for domain in ("questions", "edits")]


def calls_learned_from_use(data: Path) -> str:
    """Whole calls with heads that have learned from use, over plain decoding."""
    found = load(data, "learning-from-use")
    learned = {one["stage"]: one["num_tokens"] for one in found["heads"] if one["order"] == "mixed"}
    names = {
        "lookup": "lookup",
        "draft": "the 0.5B, and lookup",
        "at once": "a head that learned all at once, and lookup",
    }
    rows = []
    for way, several in found["calls"].items():
        if way == "plain":
            continue
        name = names[way] if way in names else f"a head after {learned[way]:,} tokens, and lookup"
        cells = []
        for domain in ("questions", "edits"):
            pairs = zip(found["calls"]["plain"], several, strict=True)
            ratios = [plain["seconds"] / one["seconds"] for plain, one in pairs if one["domain"] == domain]
            cells.append(f"{statistics.mean(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})")
        rows.append([name, *cells])
    return table(["draft", "questions", "edits"], rows)


def overhead(data: Path) -> str:
    """What a call costs outside the loop."""
    rows = load(data, "overhead")["rows"]
    lengths = list(rows[0]["us"])
    cells = [
        [
            f"{row['drafted']} draft tokens" if row["drafted"] else "plain",
            "stream" if row["stream"] else "no stream",
            row["with"],
            *(f"{row['us'][n]:.0f}" for n in lengths),
        ]
        for row in rows
    ]
    return table(["", "", "with", *(f"{n} tokens" for n in lengths)], cells, 3)


def earlier_texts(data: Path) -> str:
    """Tokens of a round of lookup, and what a pool of earlier answers adds."""
    rows = []
    for kind, found in load(data, "earlier-texts")["kinds"].items():
        alone, *pools = found["up to 8"].values()
        gains = (f"{100 * (one['tokens_per_round'] / alone['tokens_per_round'] - 1):+.1f} %" for one in pools)
        shares = (f"{100 * one['accepted']:.0f} %" for one in (alone, *pools))
        rows.append((kind, f"{alone['tokens_per_round']:.2f}", *gains, ", ".join(shares)))
    head = ("answers", "in the text alone", "pool, matches from 2 on", "from 4 on", "from 8 on", "accepted of each")
    return table(head, rows)


def lookup_cost(data: Path) -> str:
    """What the lookup's index costs."""
    rows = [
        [f"{row['text']}, {row['tokens']:,} tokens", *(f"{us:.2f}" for us in row["us"]), f"{row['bytes']:.1f}"]
        for row in load(data, "lookup-cost")["rows"]
    ]
    titles = [
        "text",
        "append, µs",
        "append and look up, µs",
        "the same, not in the processor's caches",
        "bytes a token",
    ]
    return table(titles, rows)


def json_schemas(data: Path) -> str:
    """The speedup of answers in JSON."""
    names = {f"json-schemas-{weights}": name for weights, name in TYPES.items()}
    rows = []
    for key, found in present(data, names).items():
        for row in found["rows"]:
            ratios = row["ratios"]
            speedup = f"{statistics.mean(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f})"
            accepted = f"{row['accepted'] / max(1, row['reached']):.0%}"
            guided = "with the schema" if row["guided"] else "without"
            rows.append([names[key], guided, str(row["num_draft_tokens"]), speedup, accepted])
    return table(["target", "", "draft tokens", "speedup", "accepted"], rows, 3)


def ik_llama_cpp(data: Path) -> str:
    """Another project's curves, as it published them."""
    rows = []
    for curve in load(data, "ik-llama-cpp")["curves"]:
        seconds = curve["seconds"]  # for `tokens` tokens of each of n texts
        sizes = (f"{seconds[str(n)] / seconds['1']:.2f}" if str(n) in seconds else "" for n in SIZES)
        rows.append([curve["program"], curve["weights"], f"{seconds['1'] / curve['tokens'] * 1e3:.0f} ms", *sizes])
    return table(["program", "weights", "T(1)", *(f"T({n})" for n in SIZES)], rows, 2)


def ik_llama_cpp_prompts(data: Path) -> str:
    """Another project's prompts, as it published them."""
    rows = [
        [row["weights"], f"{row['llama.cpp']:.0f}", f"{row['ik_llama.cpp']:.0f}", f"{row['ratio']:.2f}"]
        for row in load(data, "ik-llama-cpp")["prompts"]
    ]
    return table(["weights", "llama.cpp, t/s", "ik_llama.cpp, t/s", "ratio"], rows)


def _library(one: Json) -> str:
    return f"b{one['llama_cpp'].partition('.')[0]}" if "llama_cpp" in one else str(one["llama_cpp_python"])


def compatibility(data: Path) -> str:
    """The llama.cpp that were tried, and the tests of specllama that pass with each."""
    found = load(data, "compatibility")["libraries"]
    rows = []
    for one in found:
        under = f"llama.cpp {_library(one)}, under " if "llama_cpp" in one else ""
        tests = [
            f"{group['passed']} pass" + (f", {len(group['failed'])} fail" if group["failed"] else "")
            for group in one["tests"].values()
        ]
        name = f"{under}llama-cpp-python {one['llama_cpp_python']}"
        rows.append([name, one["ggml"], str(one["interface"]), one["kernels"], *tests])
    groups = [f"tests of {group}" for group in found[0]["tests"]]
    return table(["library", "ggml", "its interface", "kernels", *groups], rows, 4)


def states(data: Path) -> str:
    """Which library's saved states another one loads."""
    found = load(data, "compatibility")
    names = {one["name"]: _library(one) for one in found["libraries"]}
    ends = {(one["saved"], one["loaded"]): one["end"] for one in found["states"]}
    rows = [[names[saved], *(ends[saved, loaded] for loaded in names)] for saved in names]
    return table(["saved by", *(f"by {name}" for name in names.values())], rows, len(names) + 1)


def machines(data: Path) -> str:
    """What the figures were measured on, and of which commits."""
    files = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(data.glob("*.json"))]
    files = [one for one in files if "machine" in one]
    if not files:
        raise MissingError("all")
    processors = sorted({one["machine"]["cpu"] for one in files})
    machines = [one["machine"] for one in files]
    releases = sorted({f"llama-cpp-python {one['llama_cpp_python']}" for one in machines if "llama_cpp_python" in one})
    kernels = sorted({_instruction_set(one["machine"]) for one in files} - {""})
    commits = sorted({one["commit"] for one in files})
    parts = (*processors, *releases, f"kernels for {' and '.join(kernels)}", f"commit {', '.join(commits)}")
    return "; ".join(parts)


def _instruction_set(machine: Json) -> str:
    kernels = machine.get("kernels") or (machine.get("target") or {}).get("kernels", "off")
    return "" if kernels.startswith("off") else kernels.partition(", ")[0]


TABLES = {
    function.__name__.replace("_", "-"): function
    for function in (
        whole_headline, whole_calls, whole_categories, limits, instruction_sets, tools, speedups, methods,
        methods_at_7b, sources, recipes, sibling_losses, kinds_of_drafts, details, categories, batches, behind_2000,
        long_contexts, gains, shapes, rounds, texts_of_shapes, ceilings, types, arm_estimate, accuracy, perplexity,
        loading, splits, many_texts, text_memory, learning_cost, earlier_texts,
        learned_from_use, calls_learned_from_use,
        llama_server, agent_prompts, agent_prompts_sent, after_restart, keeping_cost, overhead,
        lookup_cost, json_schemas, ik_llama_cpp, ik_llama_cpp_prompts, compatibility, states, machines,
    )
}  # fmt: skip
"""The functions, by the names in the pages."""
