"""Benchmarks without a model: runs whose acceptance and times follow from given costs, and curves of the same costs."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from specllama.cost_curve import CostCurve
from specllama.evidence.bench.runs import BenchResult, Run, summarise
from specllama.stats import Stats

CATEGORIES = (
    "writing roleplay reasoning math coding extraction stem humanities translation summarization qa rag math_reasoning"
).split()
MODES = ("plain", "auto", "rejection:4", "block:4", "coupled:8")
TARGET_MS = (218, 233, 255, 249, 255, 266, 310, 355, 380, 400, 420, 438, 455, 470, 490, 510)
DRAFT_MS = (30, 47, 59, 51, 77, 91, 96, 87, 107, 115, 120, 126, 133, 138, 143, 144)


def curve(name: str, milliseconds: Sequence[float], noise: float = 0.03) -> CostCurve:
    rng = random.Random(name)
    spread = [1 - noise, 1 - noise / 2, 1.0, 1 + noise / 2, 1 + noise]
    samples = {
        n: tuple(rng.sample([ms / 1000 * factor for factor in spread], len(spread)))
        for n, ms in enumerate(milliseconds, start=1)
    }
    return CostCurve(name, 128, samples)


def generation(mode: str, acceptance: float, rng: random.Random, num_tokens: int = 128) -> Stats:
    """The statistics of one answer."""
    gamma = next(iter(map(int, re.findall(r"\d+", mode))), 0 if mode == "plain" else 5)
    done = num_drafts = 0
    seconds = {"draft": 0.0, "verify": 0.0}
    drafted, accepted, by_gamma = [0] * gamma, [0] * gamma, [0] * (gamma + 1)
    while done < num_tokens:
        size = min(gamma, num_tokens - done - 1)
        length = 0
        while length < size and rng.random() < acceptance:
            length += 1
        for i in range(size):
            drafted[i] += 1
            accepted[i] += i < length
        num_drafts += size > 0
        by_gamma[size] += 1
        done += length + 1
        seconds["draft"] += size * DRAFT_MS[0] / 1000 * rng.uniform(0.97, 1.05)
        seconds["verify"] += TARGET_MS[min(size, 15)] / 1000 * rng.uniform(0.97, 1.05)
    rest = {"sample_seconds": 0.004 * num_tokens, "rollback_seconds": 0.0004 * num_drafts, "prompt_seconds": 2.0}
    total = 2.0 + sum(seconds.values()) + rest["sample_seconds"] + rest["rollback_seconds"] + 0.0006 * num_tokens
    return Stats(
        num_prompt_tokens=100,
        num_tokens=num_tokens,
        num_drafts=num_drafts,
        num_draft_tokens=sum(drafted),
        num_accepted_tokens=sum(accepted),
        num_draft_tokens_per_pos=tuple(drafted),
        num_rounds_per_gamma=tuple(by_gamma),
        num_accepted_tokens_per_pos=tuple(accepted),
        acceptance_rate=sum(accepted) / max(1, sum(drafted)),
        mean_acceptance_length=1 + sum(accepted) / max(1, num_drafts),
        draft_seconds=seconds["draft"],
        verify_seconds=seconds["verify"],
        total_seconds=total,
        tokens_per_second=num_tokens / (total - 2.0),
        **rest,
    )


def bench_runs(
    modes: Sequence[str] = MODES, categories: Sequence[str] = CATEGORIES, prompts: int = 2, num_tokens: int = 128
) -> list[Run]:
    """One run for each mode and prompt, `prompts` of each category. Plain must be the first mode."""
    rng = random.Random(1)
    runs = []
    for i, category in enumerate(categories):
        for number in range(prompts):
            acceptance = 0.5 + 0.45 * ((i * 5) % 13) / 13
            plain = generation("plain", 0.0, rng, num_tokens)
            for mode in modes:
                stats = plain if mode == "plain" else generation(mode, acceptance, rng, num_tokens)
                runs.append(_run(f"{category}/{number}", category, mode, stats, plain))
    return runs


def bench_result(
    runs: list[Run], *, curves: bool = True, interrupted: bool = False, notes: Sequence[str] = ()
) -> BenchResult:
    """A result over these runs."""
    model = {"name": "Qwen2.5 Coder 1.5B Instruct", "file": "target-f16.gguf", "description": "qwen2 1.5B F16"}
    return BenchResult(
        runs=runs,
        summary=summarise(runs),
        machine={"specllama": "0.1.0", "cpu": 'A CPU <fast> & "quoted"', "target": {**model, "size": 3 << 30}},
        settings={
            "command": "specllama bench -m target-f16.gguf -md draft.gguf --modes plain,block:4",
            "max_tokens": 128,
            "seed": None,
        },
        curves={"target": curve("target", TARGET_MS), "draft": curve("draft", DRAFT_MS)} if curves else {},
        notes=list(notes),
        interrupted=interrupted,
    )


def _run(prompt_id: str, category: str, mode: str, stats: Stats, plain: Stats) -> Run:
    return Run(
        prompt_id=prompt_id,
        category=category,
        mode=mode,
        repeat=0,
        speedup=stats.tokens_per_second / plain.tokens_per_second,
        end_to_end_speedup=plain.total_seconds / stats.total_seconds,
        text_equal_to_plain=True,
        stats=stats,
    )
