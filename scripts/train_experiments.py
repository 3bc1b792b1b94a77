"""How should a head learn? The same text, the same states, and one choice changed at a time.

    python scripts/train_experiments.py MODEL --tokens 20000 --only muon,adamw --record NAME

Text and states are kept in specllama's cache, for further choices. `--record` adds to a file of docs/data, from which
`scripts/tables.py` makes the table of docs/make-your-own-draft.md. The seconds are those of the processor, on one
thread: other work on the machine hardly changes them.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import recorded
import torch

from specllama import Engine, Llama
from specllama.backend.cpu import cpu_name
from specllama.models import catalog
from specllama.training.acceptance import STEPS
from specllama.training.fit import Recipe, fit
from specllama.training.loss import loss_of
from specllama.training.optimizer import Muon
from specllama.training.plan import num_rows
from specllama.training.progress import SILENT
from specllama.training.shards import write_shards
from specllama.training.target import Target, read_target
from specllama.training.text import Text, Writer, read_texts
from specllama.training.train import counted_rows
from specllama.training.work import Work

if TYPE_CHECKING:
    from specllama.training.batches import Batch
    from specllama.training.head import Head

N_CTX = 1024


def overlap_loss(head: Head, batch: Batch, share: float = 1.0) -> torch.Tensor:
    """LK: minus the logarithm of the acceptance (arXiv 2602.23881), with the usual loss for the rest of 1."""
    total = batch.embedded.new_zeros(())
    for step, multiplied in enumerate(head(batch.embedded, head.read(batch.states), STEPS)):
        learned = batch.learned.clone()
        learned[:, :step] = False
        q = torch.gather(head.logits(multiplied[learned]).float().softmax(-1), -1, batch.likely[learned])
        accepted = torch.minimum(q, batch.shares[learned]).sum(-1)
        total = total - accepted.clamp_min(1e-6).log().mean()
    found = share * total / STEPS
    return found if share == 1.0 else found + (1.0 - share) * loss_of(head, batch)


def adamw(weights: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    """With the usual betas of language models."""
    return torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


RECIPES: dict[str, Recipe] = {
    "muon 0.02": Recipe(optimizer=Muon, lr=0.02),
    "muon 0.02 half LK": Recipe(optimizer=Muon, lr=0.02, loss=functools.partial(overlap_loss, share=0.5)),
    "muon 0.005": Recipe(optimizer=Muon, lr=0.005),
    "adamw 3e-4": Recipe(optimizer=adamw, lr=3e-4),
    "adamw 1e-3": Recipe(optimizer=adamw, lr=1e-3),
    "adamw 3e-3": Recipe(optimizer=adamw, lr=3e-3),
    "adamw 1e-3 LK": Recipe(optimizer=adamw, lr=1e-3, loss=overlap_loss),
    "adamw 1e-3 half LK": Recipe(optimizer=adamw, lr=1e-3, loss=functools.partial(overlap_loss, share=0.5)),
    "adamw 1e-3 8 passes": Recipe(optimizer=adamw, lr=1e-3, epochs=8),
}


def prepared(target: Target, work: Work, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Text and states, as `specllama train-draft` makes them. Returns the tokens that the heads say."""
    work.folder.mkdir(parents=True, exist_ok=True)
    if sum(text.size for text in read_texts(work.texts)) < tokens:
        llm = Llama(target.path, n_ctx=N_CTX, n_threads=1, n_threads_batch=1, max_parallel=8, verbose=False)
        Writer(llm, work.texts).write(lambda size: size >= tokens, 8, lambda *_: None)
        llm.close()
    texts = _first(read_texts(work.texts), tokens)
    rows = counted_rows(texts, target.n_vocab, num_rows)
    with Engine.open(target.path, n_ctx=N_CTX, n_threads=1, shown_layers=target.layers) as engine:
        write_shards(engine, texts, rows, len(target.layers), work.states, lambda _: False, lambda *_: None)
    return rows


def _first(texts: list[Text], tokens: int) -> list[Text]:
    sizes = np.cumsum([text.size for text in texts])
    return texts[: int(np.searchsorted(sizes, tokens)) + 1]


def tried(target: Target, work: Work, rows: np.ndarray[tuple[int], np.dtype[np.int64]], name: str) -> dict[str, object]:
    """One training."""
    for left in (work.checkpoint, work.best, work.folder / "cells.json"):
        left.unlink(missing_ok=True)
    begun = time.process_time()
    _, found = fit(work, target, rows, device="cpu", seconds=1e9, progress=SILENT, recipe=RECIPES[name])
    return {
        "recipe": name,
        "greedy": [round(one, 4) for one in found.greedy],
        "sampled": [round(one, 4) for one in found.sampled],
        "length": round(found.length, 4),
        "places": found.places,
        "seconds": round(time.process_time() - begun),
    }


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--only", default=",".join(RECIPES), help="names of recipes, with commas")
    parser.add_argument("--record", metavar="NAME", help="a file of docs/data, without its ending")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    target = read_target(catalog.resolve(arguments.model))
    work = Work(target.weights, {"experiments": 1}, {"tokens": arguments.tokens})
    with work.alone():
        rows = prepared(target, work, arguments.tokens)
        for name in arguments.only.split(","):
            found = tried(target, work, rows, name)
            sys.stdout.write(json.dumps(found) + "\n")
            sys.stdout.flush()
            if arguments.record:
                _record(arguments.record, target, arguments.tokens, found)
    return 0


def _record(name: str, target: Target, tokens: int, found: dict[str, object]) -> None:
    path = recorded.DATA / recorded.MACHINE / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = [run for run in before if (run["recipe"], run["tokens"]) != (found["recipe"], tokens)]
    machine = {"cpu": cpu_name()}
    recorded.keep(
        name,
        {"machine": machine, "model": Path(target.path).name, "runs": [*runs, {"tokens": tokens, **found}]},
    )


if __name__ == "__main__":
    raise SystemExit(main())
