"""Compares many texts at once with llama.cpp's own llama-server: the same prompts, greedily, by turns.

Run it where specllama is installed: ``python scripts/llama_server.py FOLDER TARGET DRAFT``. FOLDER has the program,
best built from the llama.cpp that is in llama-cpp-python's sdist (``vendor/llama.cpp``: ``cmake -B build``, ``cmake
--build build --target llama-server``; it is then in ``build/bin``). Nothing else should use the machine. Both get
the prompts as tokens. The server has as many slots and clients as there are texts at once, and runs without a draft, as
it is with one, and with 4 drafted tokens. All figures are tokens per second, the prompts' time included.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
from many_texts import N_CTX, add_texts, chosen, close, run
from pair import add_pair, opened

import specllama
from specllama.models.catalog import resolve

DRAFTED = ["--spec-type", "draft-simple"]
THEIRS: dict[str, list[str]] = {
    "llama-server": [],
    "llama-server, draft": DRAFTED,
    "llama-server, draft of 4": [*DRAFTED, "--spec-draft-n-max", "4"],
}
OURS: dict[str, int | str] = {"specllama": 0, "specllama, auto": "auto"}
START_SECONDS = 120
PAUSE = 0.5  # seconds, until the threads of the program before have stopped spinning


def free_port() -> int:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def arguments(given: argparse.Namespace, way: str, num_slots: int) -> list[str]:
    """The arguments of the server."""
    n = str(given.threads)
    found = ["-m", resolve(given.target), "-np", str(num_slots)]
    found += ["-c", str(N_CTX * num_slots), "-t", n, "-tb", n, "-cram", "0"]
    found += ["-fa", {None: "auto", True: "on", False: "off"}[given.flash_attn]]
    if THEIRS[way]:
        found += ["-md", resolve(given.draft), "-td", n, "-tbd", n, *THEIRS[way]]
    return found


@contextlib.contextmanager
def serving(folder: Path, options: Sequence[str]) -> Iterator[httpx.Client]:
    """A context manager that starts a server and gives its client. If it does not start, its output is raised."""
    port = free_port()
    command = [str(folder / "llama-server"), "--port", str(port), "--no-ui", *options]
    # The server closes a connection that was idle, perhaps just when the next request is on its way.
    limits, url = httpx.Limits(max_keepalive_connections=0), f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile("w+") as log, httpx.Client(base_url=url, timeout=None, limits=limits) as client:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + START_SECONDS
            while not answers(client):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise RuntimeError(f"llama-server does not start:\n{log.read()[-2000:]}")
                time.sleep(0.2)
            yield client
        finally:
            process.terminate()
            process.wait()


def answers(client: httpx.Client) -> bool:
    """Whether the server has loaded its models."""
    try:
        return client.get("/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def their_rate(given: argparse.Namespace, prompts: list[list[int]], way: str, num_slots: int) -> dict[str, Any]:
    """The tokens and seconds of llama-server in one way, with `num_slots` slots."""

    def ask(tokens: list[int]) -> int:
        body = {"prompt": tokens, "n_predict": given.max_tokens, "temperature": 0.0, "cache_prompt": True}
        reply = client.post("/completion", json=body).raise_for_status().json()
        if reply["tokens_evaluated"] != len(tokens):
            raise RuntimeError(f"llama-server made {reply['tokens_evaluated']} tokens of {len(tokens)}")
        return int(reply["tokens_predicted"])

    with serving(given.folder, arguments(given, way, num_slots)) as client, ThreadPoolExecutor(num_slots) as clients:
        ask(prompts[-1][:4])  # a warm-up, which allocates memory
        start = time.perf_counter()
        tokens = sum(clients.map(ask, prompts))
        return {"tokens": tokens, "seconds": time.perf_counter() - start}


def our_rate(llm: specllama.Llama, given: argparse.Namespace, prompts: list[Any], way: str, n: int) -> dict[str, Any]:
    """The tokens and seconds of specllama in one way, with `n` texts at once."""
    found = run(llm, prompts, n, max_tokens=given.max_tokens, temperature=0.0, num_draft_tokens=OURS[way])
    return {"tokens": found["tokens"], "seconds": found["seconds"]}


def main() -> None:
    """Print the table, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    add_pair(parser)
    parser.add_argument("--kernels", default="auto", help="ours, or off: llama.cpp's own on both sides")
    add_texts(parser, [1, 4, 8])
    given = parser.parse_args()
    llm = opened(given, n_ctx=N_CTX, kernels=given.kernels)
    prompts = chosen(llm, given)
    ways = [*OURS, *THEIRS]
    runs: list[dict[str, Any]] = []
    print(f"| at once | {' | '.join(ways)} |\n|---:|{'---:|' * len(ways)}", flush=True)
    for row, num_texts in enumerate(given.parallel):
        rates = dict.fromkeys(ways, 0.0)
        for way in ways if row % 2 == 0 else reversed(ways):
            time.sleep(PAUSE)
            if way in OURS:
                found = our_rate(llm, given, prompts, way, num_texts)
            else:
                found = their_rate(given, prompts, way, num_texts)
            runs.append({"at_once": num_texts, "way": way, **found})
            rates[way] = found["tokens"] / found["seconds"]
        print(f"| {num_texts} | {' | '.join(f'{rates[way]:.1f}' for way in ways)} |", flush=True)
    close(llm, given, runs)


if __name__ == "__main__":
    main()
