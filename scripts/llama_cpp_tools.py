"""Compares "auto" with llama.cpp's own llama-speculative-simple and llama-lookup, prompt by prompt, by turns.

Run it where specllama is installed: ``python scripts/llama_cpp_tools.py FOLDER TARGET DRAFT``. FOLDER has the two
programs, best built from the llama.cpp that is in llama-cpp-python's sdist (``vendor/llama.cpp``: ``cmake -B build``,
``cmake --build build --target llama-speculative-simple llama-lookup``; they are then in ``build/bin``). Nothing else
should use the machine. Greedy decoding; each program runs as it is and with 7 drafted tokens, the number its README
gives. All figures are generated tokens per second without the prompt.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import time
from pathlib import Path

import recorded

import specllama
from specllama.backend.cpu import default_threads
from specllama.chat import chat_prompt
from specllama.evidence.machine import describe_machine
from specllama.models.catalog import resolve
from specllama.prompts import Prompt, builtin_prompts, limited, read_prompts

OURS = "auto"
THEIRS = ["llama-speculative-simple", "llama-lookup", "llama-speculative-simple 7", "llama-lookup 7"]
WAYS = [OURS, *THEIRS]
N_CTX = 2048
PAUSE = 0.5  # seconds, until the threads of the program before have stopped spinning


def run_tool(command: list[str], num_prompt_tokens: int) -> float:
    """Tokens per second of one of their programs, which must have understood the prompt as we do."""
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=True)
    output = done.stdout + done.stderr
    encoded = re.search(r"encoded +(\d+) tokens in", output)
    decoded = re.search(r"decoded +(\d+) tokens in +([\d.]+) seconds", output)
    if encoded is None or decoded is None:
        raise RuntimeError(f"{command[0]} does not say what it decoded:\n{output[-2000:]}")
    if int(encoded[1]) != num_prompt_tokens:
        raise RuntimeError(f"{command[0]} made {encoded[1]} tokens of a prompt of {num_prompt_tokens}")
    return int(decoded[1]) / float(decoded[2])


def their_command(way: str, given: argparse.Namespace, text: str) -> list[str]:
    """The command line of one of their programs."""
    tool, _, drafted = way.partition(" ")
    n = str(default_threads())
    command = [str(given.folder / tool), "-m", resolve(given.target), "-p", text, "--no-escape"]
    command += ["-n", str(given.max_tokens), "-c", str(N_CTX), "-t", n, "-tb", n, "--temp", "0", "--top-k", "1"]
    if tool == "llama-speculative-simple":
        command += ["-md", resolve(given.draft), "-td", n, "-tbd", n, "--spec-type", "draft-simple"]
    return [*command, "--color", "off", *(["--spec-draft-n-max", drafted] if drafted else [])]


def our_rates(llm: specllama.Llama, prompt: Prompt, max_tokens: int) -> dict[str, float]:
    """Tokens per second of plain decoding and of "auto"."""
    runs = specllama.bench.run(llm, [prompt], modes=["plain", "auto"], max_tokens=max_tokens).runs
    return {run.mode: run.stats.tokens_per_second for run in runs}


def compare(llm: specllama.Llama, prompt: Prompt, given: argparse.Namespace, forwards: bool) -> dict[str, float]:
    """Tokens per second of each way, for one prompt."""
    call = chat_prompt(llm, [{"role": "user", "content": prompt.text}])
    if call.text is None:
        raise ValueError(f"{given.target} has no chat template whose text could be given to llama.cpp's tools")
    found: dict[str, float] = {}
    for way in WAYS if forwards else reversed(WAYS):
        time.sleep(PAUSE)
        if way == OURS:
            found |= our_rates(llm, prompt, given.max_tokens)
        else:
            found[way] = run_tool(their_command(way, given, call.text), len(call.tokens))
    return found


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = recorded.parser(__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("target")
    parser.add_argument("draft")
    parser.add_argument("--prompts", type=Path, action="append", default=[], help="as for specllama bench")
    parser.add_argument("--limit", type=int, default=1, help="prompts of each category, default 1")
    parser.add_argument("-n", "--max-tokens", type=int, default=128)
    given = parser.parse_args()
    prompts = [prompt for path in given.prompts for prompt in read_prompts(path)[0]] or builtin_prompts()
    n = default_threads()
    llm = specllama.Llama(
        given.target, draft_model=given.draft, n_ctx=N_CTX, n_threads=n, n_threads_batch=n, verbose=False
    )
    names = ["plain", *WAYS]
    print(f"| prompt | {' | '.join(names)} | auto / best of theirs |")
    print("|---|" + "---:|" * (len(names) + 1))
    ratios, rows = [], []
    for number, prompt in enumerate(limited(prompts, given.limit)):
        found = compare(llm, prompt, given, forwards=number % 2 == 0)
        rows.append({"prompt_id": prompt.id, "category": prompt.category, "rates": found})
        ratios.append(found[OURS] / max(found[way] for way in THEIRS))
        rates = " | ".join(f"{found[name]:.2f}" for name in names)
        print(f"| {prompt.category} ({prompt.id}) | {rates} | {ratios[-1]:.2f} |", flush=True)
    print(f"mean {statistics.mean(ratios):.2f}, least {min(ratios):.2f}")
    if given.record:
        recorded.keep(given.record, {"machine": describe_machine(llm), "max_tokens": given.max_tokens, "prompts": rows})
    llm.close()


if __name__ == "__main__":
    main()
