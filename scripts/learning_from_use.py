"""How fast a head learns from a model's answers: a stream of questions, and how right it is after every so many tokens.

    python scripts/learning_from_use.py MODEL FOLDER answer --prompts spec_bench.jsonl
    python scripts/learning_from_use.py MODEL FOLDER learn
    python scripts/learning_from_use.py MODEL FOLDER measure --draft SMALL --record NAME

`answer` has the model answer questions of two domains, those of a file and edits of this repository's code
(scripts/edits_of_history.py), and keeps what a head can learn, as ``learn=True`` does. Every eighth question is for
measuring alone. `learn` gives the answers to ``specllama learn --now`` in steps of 10,000 tokens, in two orders: both
domains mixed, and one after the other. `measure` says how right each head is on the questions for measuring, and times
whole calls with some of them. Each step goes on where it was ended. FOLDER keeps all.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import itertools
import json
import os
import random
import shutil
import statistics
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import recorded
import torch
from edits_of_history import edits

import specllama
from specllama.backend.cpu import default_threads
from specllama.engine import FINAL, KeptFile, kept_files, learn_dir, num_rows_of
from specllama.evidence.machine import describe_machine
from specllama.models import HYDRA, resolve
from specllama.training.acceptance import Acceptance, acceptance
from specllama.training.batches import Batches
from specllama.training.from_use import Used
from specllama.training.learn import Continued, learn
from specllama.training.shards import write_examples
from specllama.training.target import Target, read_target
from specllama.training.text import HELD_OUT
from specllama.training.torch_here import use_threads

QUESTIONS, EDITS = DOMAINS = ("questions", "edits")
LENGTH = 200  # tokens of an answer
MEASURED = 8  # every so many questions are for measuring alone
STEP = 10_000  # tokens
TOGETHER = 8  # texts
LONGEST = 4000  # letters of a question
TEMPERATURE = 0.7
ORDERS = ("mixed", "parted")


@contextlib.contextmanager
def cache(folder: Path) -> Iterator[None]:
    """A context manager in which specllama's cache is a folder."""
    before = os.environ.get("SPECLLAMA_CACHE")
    os.environ["SPECLLAMA_CACHE"] = str(folder)
    try:
        yield
    finally:
        os.environ.pop("SPECLLAMA_CACHE") if before is None else os.environ.update(SPECLLAMA_CACHE=before)


def asked(prompts: Path, count: int) -> dict[str, list[str]]:
    """The questions of each domain."""
    lines = prompts.read_text(encoding="utf-8").splitlines()
    questions = [json.loads(line)["turns"][0][:LONGEST] for line in lines]
    random.Random(1).shuffle(questions)
    return {QUESTIONS: questions, EDITS: edits(count)}


def answer(given: argparse.Namespace, folder: Path) -> None:
    """Have the model answer all questions, those to learn and those for measuring."""
    for domain, questions in asked(given.prompts, given.edits).items():
        for part, some in {
            "learned": [one for i, one in enumerate(questions) if i % MEASURED],
            "measured": questions[::MEASURED],
        }.items():
            with cache(folder / f"{domain}-{part}"):
                answer_all(given, some, 0.0 if part == "measured" else TEMPERATURE)


def answer_all(given: argparse.Namespace, questions: Sequence[str], temperature: float) -> None:
    """Answer questions, some at once. What was answered before is not answered again."""
    done = Path(os.environ["SPECLLAMA_CACHE"], "answered.json")
    at = json.loads(done.read_text()) if done.exists() else 0
    llm = specllama.Llama(
        given.model, n_ctx=2048, n_threads=given.threads, learn=True, max_parallel=TOGETHER, verbose=False
    )
    for first in range(at, len(questions), 3 * TOGETHER):
        chats = [[{"role": "user", "content": one}] for one in questions[first : first + 3 * TOGETHER]]
        list(llm.create_chat_completions(chats, max_tokens=LENGTH, temperature=temperature, seed=first, progress=False))
        llm.engine.account.examples.flush()
        done.write_text(json.dumps(first + len(chats)))
        print(done.parent.name, first + len(chats), "of", len(questions), flush=True)
    llm.close()


def kept(folder: Path, weights: str, domain: str, part: str = "learned") -> list[KeptFile]:
    """The kept answers, the oldest first."""
    with cache(folder / f"{domain}-{part}"):
        return kept_files(learn_dir(weights))


def stream(folder: Path, weights: str, order: str) -> list[KeptFile]:
    """All answers in an order."""
    parts = [kept(folder, weights, domain) for domain in DOMAINS]
    found = [*itertools.chain(*parts)]
    if order == "mixed":
        random.Random(1).shuffle(found)
    return found


def steps(files: Sequence[KeptFile]) -> list[list[KeptFile]]:
    """The files of each step: as many as have so many tokens to learn."""
    found: list[list[KeptFile]] = [[]]
    size = 0
    for one in files:
        found[-1].append(one)
        size += 0 if one.name.is_held_out else num_rows_of(one.path)
        if size >= STEP:
            found.append([])
            size = 0
    return [one for one in found if sum(num_rows_of(file.path) for file in one) >= STEP]


def learn_all(given: argparse.Namespace, folder: Path) -> None:
    """Have a head learn each step, in all orders, and once all at once."""
    target = target_of(given)
    for order in ORDERS:
        parts = steps(stream(folder, target.weights, order))
        learn_steps(given, folder / f"learned-{order}", target, [[*parts[0], *parts[1]], *parts[2:]], 2)
    learn_steps(given, folder / "learned-at-once", target, [stream(folder, target.weights, "mixed")], 1)


def learn_steps(
    given: argparse.Namespace, folder: Path, target: Target, parts: Sequence[Sequence[KeptFile]], first: int
) -> None:
    """Have one head learn parts, one after the other. A copy of each head stays."""
    for number, files in enumerate(parts, first):
        stage = folder / f"stage-{number:02}"
        if (stage / "about.json").exists():
            continue
        with cache(folder):
            there = learn_dir(target.weights)
            there.mkdir(parents=True, exist_ok=True)
            for one in files:
                shutil.copy2(one.path, there)
            begun = time.monotonic()
            found = learn(given.model, threads=given.threads)
            seconds = time.monotonic() - begun
            stage.mkdir(exist_ok=True)
            shutil.copy(found.path, stage / "head.gguf")
            shutil.copy(there / "head.pt", stage / "head.pt")
        about = {"num_tokens": found.num_tokens, "greedy": found.greedy, "seconds": seconds}
        (stage / "about.json").write_text(json.dumps(about))
        print(folder.name, number, about, flush=True)


def target_of(given: argparse.Namespace) -> Target:
    """The model, which shows its final state."""
    return dataclasses.replace(read_target(given.model), layers=(FINAL,))


def how_right(target: Target, stage: Path, files: Sequence[KeptFile]) -> Acceptance:
    """How right a head is on kept answers that it has not learned from."""
    tensors = {one.name: one.data for one in gguf.GGUFReader(stage / "head.gguf").tensors}
    rows = np.array(tensors.get("d2t", np.arange(target.n_vocab)), np.int64)
    weights = torch.load(stage / "head.pt", "cpu", weights_only=True)
    work = stage / "measured"
    shutil.rmtree(work, ignore_errors=True)
    used = Used(work / "used")
    work.mkdir()
    used.copy(files)
    examples = (one for _, one in used.examples(rows, target.n_vocab))
    write_examples(((HELD_OUT * i, one) for i, one in enumerate(examples)), work / "states")
    batches = Batches(target, rows, work / "states", "cpu")
    head = Continued(target, HYDRA, weights).build(rows, batches.sizes(), batches.size_of_token())
    head.eval()
    found = acceptance(head, batches.held_out())
    shutil.rmtree(work)
    return found


def calls(given: argparse.Namespace, ways: dict[str, Any]) -> tuple[Any, dict[str, list[dict[str, Any]]]]:
    """The machine, and statistics of whole calls with questions for measuring, at temperature 0, all ways by turns."""
    opened = {
        way: specllama.Llama(
            given.model,
            draft_model=draft,
            n_ctx=2048,
            n_threads=given.threads,
            n_threads_batch=given.threads,
            verbose=False,
        )
        for way, draft in ways.items()
    }
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    questions = asked(given.prompts, given.edits)
    for number in range(given.calls + 1):
        for domain in DOMAINS:
            content = questions[domain][number * MEASURED]
            texts = set()
            for way in opened if number % 2 else reversed(opened):
                llm = opened[way]
                llm.reset()
                begun = time.perf_counter()
                said = llm.create_chat_completion(
                    [{"role": "user", "content": content}], max_tokens=LENGTH, temperature=0.0
                )
                seconds = time.perf_counter() - begun
                texts.add(said["choices"][0]["message"]["content"])
                if number:  # the first ones only warm up
                    about = {"domain": domain, "seconds": seconds, "num_tokens": llm.stats.num_tokens}
                    found[way].append({**about, "acceptance_rate": llm.stats.acceptance_rate})
            if len(texts) != 1:
                raise RuntimeError(f"{len(texts)} different texts for {content!r}")
    return describe_machine(opened["lookup"]), found


def measure(given: argparse.Namespace, folder: Path) -> None:
    """Say how right each head is, and time whole calls."""
    target = target_of(given)
    heads = []
    for stage in sorted(folder.glob("learned-*/stage-*")):
        about = json.loads((stage / "about.json").read_text())
        found = stage / "right.json"
        if not found.exists():
            files = {domain: kept(folder, target.weights, domain, "measured") for domain in DOMAINS}
            found.write_text(json.dumps({domain: how_right(target, stage, files[domain]).greedy for domain in DOMAINS}))
        right = json.loads(found.read_text())
        heads.append(
            {"order": stage.parent.name.removeprefix("learned-"), "stage": stage.name, **about, "right": right}
        )
        print(heads[-1], flush=True)
    result: dict[str, Any] = {"model": Path(given.model).name, "heads": heads}
    if given.calls:
        ways: dict[str, Any] = {"plain": None, "lookup": "lookup"}
        for stage in sorted(folder.glob("learned-mixed/stage-*"))[:: given.every]:
            ways[stage.name] = str(stage / "head.gguf")
        ways["at once"] = str(folder / "learned-at-once" / "stage-01" / "head.gguf")
        ways |= {"draft": resolve(given.draft)} if given.draft else {}
        result["machine"], result["calls"] = calls(given, ways)
        plain = result["calls"]["plain"]
        for way, several in result["calls"].items():
            gains = {
                domain: [
                    one["seconds"] / other["seconds"]
                    for one, other in zip(plain, several, strict=True)
                    if one["domain"] == domain
                ]
                for domain in DOMAINS
            }
            told = (
                f"{domain} {statistics.median(some):.2f} ({min(some):.2f}-{max(some):.2f})"
                for domain, some in gains.items()
            )
            print(way, *told, flush=True)
    if given.record:
        recorded.keep(given.record, result)


def main() -> None:
    """Do one step."""
    parser = recorded.parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("folder", type=Path)
    parser.add_argument("step", choices=["answer", "learn", "measure"])
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's questions, as JSONL")
    parser.add_argument("--edits", type=int, default=290, help="how many edits are asked for")
    parser.add_argument("--calls", type=int, default=10, help="whole calls of each domain")
    parser.add_argument("--every", type=int, default=1, help="every so many heads are timed")
    parser.add_argument("--draft", help="a small model to compare with")
    parser.add_argument("-t", "--threads", type=int, default=default_threads())
    given = parser.parse_args()
    given.model = str(resolve(given.model))
    use_threads(given.threads)
    {"answer": answer, "learn": learn_all, "measure": measure}[given.step](given, given.folder.resolve())


if __name__ == "__main__":
    main()
