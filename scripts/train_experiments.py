"""How should a draft learn? The same text, the same states, and one choice changed at a time.

    python scripts/train_experiments.py MODEL --tokens 20000 --only muon,adamw --record NAME
    python scripts/train_experiments.py MODEL --draft SMALL --tokens 20000 --record NAME [--kind pard]

The second one trains a small model; with --kind pard it becomes a parallel draft. The text is that of
`specllama train-draft`. States are kept in specllama's cache, for further choices. `--record` adds to a file of
docs/data, from which `scripts/tables.py` makes the tables of docs/make-your-own-draft.md. The seconds are those of the
processor, on one thread: other work on the machine hardly changes them.
"""

from __future__ import annotations

import argparse
import dataclasses
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
from specllama.engine.hidden import FINAL
from specllama.models import catalog
from specllama.models.head_kinds import OF_A_SMALL_MODEL, PARALLEL, SIBLING, TRAINED
from specllama.training.fit import SIBLINGS, Recipe, fit
from specllama.training.optimizer import Muon
from specllama.training.parallel import read_parallel
from specllama.training.plan import num_rows
from specllama.training.progress import SILENT
from specllama.training.shards import write_shards
from specllama.training.sibling import SiblingStart, read_sibling
from specllama.training.target import Target, read_target
from specllama.training.text import Text, Writer, read_texts
from specllama.training.torch_here import use_threads
from specllama.training.train import Budget, counted_rows
from specllama.training.work import Work

if TYPE_CHECKING:
    from specllama.training.batches import Batch
    from specllama.training.head import AnyHead

N_CTX = 1024
LEAST = 1e-6  # of a probability whose logarithm is taken


def blended(
    head: AnyHead, batch: Batch, *, forward: float = 0.0, reverse: float = 0.0, overlap: float = 0.0
) -> torch.Tensor:
    """A sum of losses, each with its weight. All see the target's distribution at its most likely tokens only.

    Args:
        head: the head that learns.
        batch: the batch.
        forward: the weight of the cross-entropy, which has the gradient of the forward KL divergence.
        reverse: the weight of the reverse KL divergence. All tokens besides the most likely ones count as one token.
        overlap: the weight of minus the logarithm of the acceptance (LK, arXiv 2602.23881).
    """
    total = batch.embedded.new_zeros(())
    for step, multiplied in enumerate(head.drafted(batch, head.learned_steps)):
        learned = head.learned(batch, step)
        logits, shares = head.logits(multiplied[learned]).float(), batch.shares[learned]
        log_q = torch.gather(logits.log_softmax(-1), -1, batch.likely[learned])
        q = log_q.exp()
        if forward:
            total = total - forward * (shares * log_q).sum(-1).mean()
        if reverse:
            rest_q, rest = ((1.0 - one.sum(-1)).clamp_min(LEAST) for one in (q, shares))
            found = (q * (log_q - shares.clamp_min(LEAST).log())).sum(-1) + rest_q * (rest_q / rest).log()
            total = total + reverse * found.mean()
        if overlap:
            total = total - overlap * torch.minimum(q, shares).sum(-1).clamp_min(LEAST).log().mean()
    return total / head.learned_steps


def adamw(weights: list[torch.Tensor], lr: float) -> torch.optim.Optimizer:
    """AdamW with the usual betas of language models."""
    return torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95), weight_decay=0.01)


LK = functools.partial(blended, overlap=1.0)
HALF_LK = functools.partial(blended, forward=0.5, overlap=0.5)
RECIPES: dict[str, Recipe] = {
    "muon 0.02": Recipe(optimizer=Muon, lr=0.02),
    "muon 0.02 2 passes": Recipe(optimizer=Muon, lr=0.02, epochs=2),
    "muon 0.02 8 passes": Recipe(optimizer=Muon, lr=0.02, epochs=8),
    "muon 0.02 half LK": Recipe(optimizer=Muon, lr=0.02, loss=HALF_LK),
    "muon 0.005": Recipe(optimizer=Muon, lr=0.005),
    "adamw 3e-4": Recipe(optimizer=adamw, lr=3e-4),
    "adamw 1e-3": Recipe(optimizer=adamw, lr=1e-3),
    "adamw 3e-3": Recipe(optimizer=adamw, lr=3e-3),
    "adamw 1e-3 LK": Recipe(optimizer=adamw, lr=1e-3, loss=LK),
    "adamw 1e-3 half LK": Recipe(optimizer=adamw, lr=1e-3, loss=HALF_LK),
    "adamw 1e-3 8 passes": Recipe(optimizer=adamw, lr=1e-3, epochs=8),
}

ONCE = dataclasses.replace(SIBLINGS, epochs=1)
OF_SIBLINGS: dict[str, Recipe] = {
    "forward KL": ONCE,
    "reverse KL": dataclasses.replace(ONCE, loss=functools.partial(blended, reverse=1.0)),
    "LK": dataclasses.replace(ONCE, loss=LK),
    "half LK": dataclasses.replace(ONCE, loss=HALF_LK),
}


def prepared(
    target: Target, work: Work, tokens: int, *, all_held_out: bool
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Make text and states as `specllama train-draft` does. Returns the tokens that the heads can draft [n_rows].

    `all_held_out`: whether all texts of the cache that are held out are measured, and not only the first ones.
    """
    work.folder.mkdir(parents=True, exist_ok=True)
    if sum(text.size for text in read_texts(work.texts)) < tokens:
        llm = Llama(target.path, n_ctx=N_CTX, n_threads=1, n_threads_batch=1, max_parallel=16, verbose=False)
        Writer(llm, work.texts).write(lambda size: size >= tokens, 16, lambda *_: None)
        llm.close()
    texts = _first(read_texts(work.texts), tokens, all_held_out)
    rows = counted_rows(texts, target.n_vocab, num_rows)
    with Engine.open(target.path, n_ctx=N_CTX, n_threads=1, shown_layers=target.layers or (FINAL,)) as engine:
        write_shards(engine, texts, rows, len(target.layers), work.states, lambda _: False, lambda *_: None)
    return rows


def _first(texts: list[Text], tokens: int, all_held_out: bool) -> list[Text]:
    """The first texts. With all that are held out, heads of more or less text can be compared."""
    sizes = np.cumsum([text.size for text in texts])
    count = int(np.searchsorted(sizes, tokens)) + 1
    return [text for i, text in enumerate(texts) if i < count or (all_held_out and text.is_held_out)]


def tried(
    target: Target,
    work: Work,
    rows: np.ndarray[tuple[int], np.dtype[np.int64]],
    start: SiblingStart | None,
    kind: str,
    name: str,
    recipe: Recipe,
) -> dict[str, object]:
    """Train with one recipe, and return the results."""
    for left in (work.checkpoint, work.best, work.folder / "cells.json"):
        left.unlink(missing_ok=True)
    begun = time.process_time()
    _, found = fit(
        work, target, rows, start=start, kind=kind, device="cpu", seconds=1e9, progress=SILENT, recipe=recipe
    )
    (_, greedy, sampled), *_ = torch.load(work.checkpoint, weights_only=True)["curve"]
    return {
        "recipe": name,
        "before": {"greedy": [round(one, 4) for one in greedy], "sampled": [round(one, 4) for one in sampled]},
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
    parser.add_argument("--draft", metavar="SMALL", help="a small model, which learns in place of a new head")
    parser.add_argument("--kind", choices=OF_A_SMALL_MODEL, default=SIBLING, help="what the small model becomes")
    parser.add_argument("--only", help="names of recipes, with commas; by default all of them")
    parser.add_argument("--record", metavar="NAME", help="a file of docs/data, without its ending")
    arguments = parser.parse_args()
    use_threads(1)
    target = read_target(catalog.resolve(arguments.model))
    recipes, start, kind = RECIPES, None, TRAINED[0]
    if arguments.draft is not None:
        recipes, kind = OF_SIBLINGS, arguments.kind
        start = (read_parallel if kind == PARALLEL else read_sibling)(catalog.resolve(arguments.draft), target)
        target = dataclasses.replace(target, layers=start.layers)
    asked = {"experiments": arguments.tokens, "small": arguments.draft}
    work = Work(target.weights, {"text": [], "answer": Budget(tokens=1).answer}, asked)
    with work.alone():
        rows = prepared(target, work, arguments.tokens, all_held_out=start is None)
        for name in arguments.only.split(",") if arguments.only else recipes:
            found = tried(target, work, rows, start, kind, name, recipes[name])
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
