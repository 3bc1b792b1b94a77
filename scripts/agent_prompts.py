"""Counts what is read again of an agent's prompts, and measures the time to the first token, with restarts.

``python scripts/agent_prompts.py MODEL`` replays the prompts of scripts/transcripts.py: 6,000 tokens of a system
message and tools, 12 turns that grow, two sub-agents with the same beginning, and three restarts. specllama runs
without a store, with ``cache_ram``, with ``cache_dir``, and with both; ``--draft FILE`` adds the same with a draft.
``--server FOLDER`` is a folder that has llama-server (see scripts/llama_server.py): it runs as it is, with copies in
memory, and with a slot for each agent that is saved before a restart. All run by turns. The counts are exact; for the
times nothing else should use the machine.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import recorded
from programs import Program, ours, theirs, tokens_of
from transcripts import Prompt, Sizes, num_new, written

import specllama
from specllama.backend.cpu import default_threads
from specllama.evidence.machine import describe_machine

OURS = {"no store": (), "cache_ram": ("ram",), "cache_dir": ("dir",), "both": ("ram", "dir")}
THEIRS = {"llama-server": False, "llama-server, slots saved": True}
WITH_DRAFT = ", draft"
RAM = 4096  # MiB
ANSWER = 8  # tokens, so that a draft reads the prompt, too
DRAFTED = 4
BLOCK = 256


def ways_of(given: argparse.Namespace) -> list[str]:
    """The names of all ways that can be measured."""
    found = list(OURS) + ([way + WITH_DRAFT for way in OURS] if given.draft else [])
    return found + (list(THEIRS) if given.server else [])


@contextlib.contextmanager
def started(given: argparse.Namespace, way: str, n_ctx: int, folder: Path) -> Iterator[Program]:
    """A context manager that has a program run in one of the ways. Its files lie in the folder."""
    n = given.threads
    if way in THEIRS:
        slots = {"slots": folder, "num_agents": 3} if THEIRS[way] else {}
        with theirs(given.server, given.model, n_ctx, n, **slots) as server:
            yield server
        return
    options: dict[str, Any] = {"model_path": given.model, "n_ctx": n_ctx, "n_threads": n, "n_threads_batch": n}
    if way.endswith(WITH_DRAFT):
        options |= {"draft_model": given.draft, "num_draft_tokens": DRAFTED}
    stores = OURS[way.removesuffix(WITH_DRAFT)]
    options |= {"cache_ram": RAM} if "ram" in stores else {}
    options |= {"cache_dir": folder} if "dir" in stores else {}
    with ours(**options) as llm:
        yield llm


def replayed(given: argparse.Namespace, way: str, prompts: Sequence[Prompt], n_ctx: int) -> list[dict[str, Any]]:
    """What each prompt took in one way."""
    turns = []
    with tempfile.TemporaryDirectory() as folder:
        for life in _lives(prompts):
            with started(given, way, n_ctx, Path(folder)) as program:
                for prompt in life:
                    reply = program.ask(prompt.agent, prompt.tokens, ANSWER)
                    turns.append(reply._asdict())
    return turns


def _lives(prompts: Sequence[Prompt]) -> list[list[Prompt]]:
    """The prompts between restarts."""
    lives: list[list[Prompt]] = []
    for prompt in prompts:
        if prompt.after_restart or not lives:
            lives.append([])
        lives[-1].append(prompt)
    return lives


def told(way: str, prompts: Sequence[Prompt], turns: Sequence[dict[str, Any]], new: Sequence[int]) -> str:
    """A line about a replay."""
    decoded = sum(turn["num_decoded"] for turn in turns)
    most = max(turn["num_decoded"] - count for turn, count in zip(turns, new, strict=True))
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for prompt, turn in zip(prompts[1:], turns[1:], strict=True):
        seconds[prompt.after_restart].append(turn["seconds"])
    usual, first = map(statistics.median, seconds.values())
    counts = f"{decoded} decoded, {sum(new)} distinct, {most} too many at most"
    return f"{way}: {counts}; {usual:.3f} s, {first:.3f} s after a restart"


def transcript(llm: specllama.Llama, seed: int, sizes: Sizes) -> tuple[list[Prompt], dict[str, Any]]:
    """The prompts as a model's tokens, and the description of the machine. It runs in the process of specllama."""
    prompts = written(partial(tokens_of, llm), llm.token_eos(), seed, sizes)
    return prompts, describe_machine(llm)


def add_sizes(parser: argparse.ArgumentParser) -> None:
    """Adds an argument for each size of a transcript."""
    for field in dataclasses.fields(Sizes):
        name = field.name.replace("_", "-")
        parser.add_argument(f"--{name}", type=int, default=field.default, help=f"tokens (default: {field.default})")


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay, tell and write."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--draft")
    parser.add_argument("--server", type=Path)
    parser.add_argument("--ways", nargs="+", help="only these")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    add_sizes(parser)
    given = parser.parse_args(arguments)
    ways = given.ways or ways_of(given)
    sizes = Sizes(**{field.name: getattr(given, field.name) for field in dataclasses.fields(Sizes)})
    with ours(model_path=given.model, n_ctx=512) as llm:
        prompts, machine = llm.call(transcript, given.seed, sizes)
    new = num_new([prompt.tokens for prompt in prompts])
    n_ctx = (max(len(prompt.tokens) for prompt in prompts) + ANSWER) // BLOCK * BLOCK + 2 * BLOCK
    replays = []
    for repeat in range(given.repeats):
        for way in ways if repeat % 2 == 0 else reversed(ways):
            turns = replayed(given, way, prompts, n_ctx)
            replays.append({"way": way, "turns": turns})
            print(told(way, prompts, turns, new), flush=True)
    if given.record:
        sent = [
            {"agent": prompt.agent, "tokens": len(prompt.tokens), "new": count, "after_restart": prompt.after_restart}
            for prompt, count in zip(prompts, new, strict=True)
        ]
        recorded.keep(given.record, {"machine": machine, "n_ctx": n_ctx, "prompts": sent, "replays": replays})


if __name__ == "__main__":
    main()
