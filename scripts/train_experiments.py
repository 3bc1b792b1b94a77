"""How should a draft learn? The same text, the same states, and one choice changed at a time.

    python scripts/train_experiments.py MODEL --tokens 20000 --only muon,adamw --record NAME
    python scripts/train_experiments.py MODEL --draft SMALL --tokens 20000 --record NAME
    python scripts/train_experiments.py MODEL --draft SMALL --kinds hydra,sibling --files DIR --record NAME

The second one trains a small model. The third one trains drafts of several kinds as `specllama train-draft` does, and
keeps their files in DIR. The text is that of `specllama train-draft`. States are kept in specllama's cache, for further
choices. `--record` adds to a file of docs/data, from which `scripts/tables.py` makes the tables of
docs/make-your-own-draft.md. The seconds are those of the processor, on one thread: other work on the machine hardly
changes them.
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
from specllama.engine import FINAL
from specllama.models import EAGLE3, OF_A_SMALL_MODEL, SIBLING, TRAINED, resolve
from specllama.training.file import write_head
from specllama.training.fit import SIBLINGS, Recipe, fit, recipe_of
from specllama.training.optimizer import Muon
from specllama.training.plan import num_rows
from specllama.training.progress import SILENT
from specllama.training.shards import write_shards
from specllama.training.target import Target, read_target
from specllama.training.text import Text, Writer, read_texts
from specllama.training.torch_here import use_threads
from specllama.training.train import Budget, begun_for, counted_rows, require_usable
from specllama.training.work import Work

if TYPE_CHECKING:
    from collections.abc import Iterator

    from specllama.training.batches import Batch
    from specllama.training.head import Learner

N_CTX = 1024
LEAST = 1e-6  # of a probability whose logarithm is taken


def blended(
    head: Learner, batch: Batch, *, forward: float = 0.0, reverse: float = 0.0, overlap: float = 0.0
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
) -> tuple[np.ndarray[tuple[int], np.dtype[np.int64]], int]:
    """Make text and states as `specllama train-draft` does.

    Args:
        target: the target.
        work: the folder of the training.
        tokens: how many tokens of text are wanted.
        all_held_out: whether all texts of the cache that are held out are measured, and not only the first ones.

    Returns:
        The tokens that the heads can draft [n_rows], and how many tokens they learn from.
    """
    work.folder.mkdir(parents=True, exist_ok=True)
    if sum(text.size for text in read_texts(work.texts)) < tokens:
        llm = Llama(target.path, n_ctx=N_CTX, n_threads=1, n_threads_batch=1, max_parallel=16, verbose=False)
        Writer(llm, work.texts).write(lambda size: size >= tokens, 16, lambda *_: None)
        llm.close()
    texts = _first(read_texts(work.texts), tokens, all_held_out)
    kept = work.folder / "rows.npy"
    if not kept.exists():
        np.save(kept, counted_rows(texts, target.n_vocab, num_rows))
    rows = np.load(kept)
    with Engine.open(target.path, n_ctx=N_CTX, n_threads=1, shown_layers=target.layers or (FINAL,)) as engine:
        write_shards(engine, texts, rows, len(target.layers), work.states, lambda _: False, lambda *_: None)
    return rows, sum(text.size for text in texts if not text.is_held_out)


def _first(texts: list[Text], tokens: int, all_held_out: bool) -> list[Text]:
    """The first texts. With all that are held out, heads of more or less text can be compared."""
    sizes = np.cumsum([text.size for text in texts])
    count = int(np.searchsorted(sizes, tokens)) + 1
    return [text for i, text in enumerate(texts) if i < count or (all_held_out and text.is_held_out)]


@dataclasses.dataclass
class Experiment:
    """A draft that is trained several times, or once, on one text.

    Args:
        model: a GGUF file, or a name of the catalog.
        kind: one of `TRAINED`.
        small: the small model that learns, for the kinds that need one.
        tokens: how many tokens of text there are.
        all_held_out: whether all texts of the cache that are held out are measured, and not only those of this text.
    """

    model: str
    kind: str
    small: str | None
    tokens: int
    all_held_out: bool

    def __post_init__(self) -> None:
        """Read the model, and the small model."""
        small = resolve(self.small) if self.small and self.kind in OF_A_SMALL_MODEL else None
        require_usable(self.kind, None, small)
        self.start = begun_for(read_target(resolve(self.model)), None, small, self.kind)
        self.target = self.start.target
        states = "none" if self.kind in OF_A_SMALL_MODEL else ",".join(map(str, self.target.layers))
        asked = {"experiments": self.tokens, "states": states}
        self.work = Work(self.target.weights, {"text": [], "answer": Budget(tokens=1).answer}, asked)

    def tried(self, name: str, recipe: Recipe, files: str | None = None) -> dict[str, object]:
        """Train with one recipe. Returns the results.

        Args:
            name: the recipe's name in the results.
            recipe: the recipe.
            files: the folder for the draft's files; None to keep none.
        """
        with self.work.locked():
            rows, learned = prepared(self.target, self.work, self.tokens, all_held_out=self.all_held_out)
            for left in (self.work.checkpoint, self.work.best, self.work.folder / "cells.json"):
                left.unlink(missing_ok=True)
            begun = time.process_time()
            head, found = fit(
                self.work,
                self.start,
                rows,
                device="cpu",
                seconds=1e9,
                progress=SILENT,
                recipe=recipe,
            )
            seconds = time.process_time() - begun
            curve = torch.load(self.work.checkpoint, weights_only=True)["curve"]
        (_, greedy, sampled), (_, last, _) = curve[0], curve[-1]
        sizes = {}
        for weights in ("Q8_0", "Q4_0") if files is not None else ():
            path = Path(files) / f"{self.kind}-{self.model}-{weights}.gguf"
            write_head(path, self.target, head, rows, weights, acceptance=found, num_tokens=learned)
            sizes[weights] = path.stat().st_size
        return {
            "recipe": name,
            "before": {"greedy": [round(one, 4) for one in greedy], "sampled": [round(one, 4) for one in sampled]},
            "greedy": [round(one, 4) for one in found.greedy],
            "sampled": [round(one, 4) for one in found.sampled],
            "length": round(found.length, 4),
            "last": [round(one, 4) for one in last],
            "places": found.places,
            "learned": learned,
            "seconds": round(seconds),
            "bytes": sizes,
        }


def trials(arguments: argparse.Namespace) -> Iterator[dict[str, object]]:
    """Do what the command line asks for. Yields the results of each training."""
    if arguments.kinds:
        for kind in arguments.kinds.split(","):
            experiment = Experiment(arguments.model, kind, arguments.draft, arguments.tokens, all_held_out=False)
            yield experiment.tried(kind, recipe_of(kind), arguments.files)
        return
    kind, recipes = (EAGLE3, RECIPES) if arguments.draft is None else (SIBLING, OF_SIBLINGS)
    heads = arguments.draft is None
    experiment = Experiment(arguments.model, kind, arguments.draft, arguments.tokens, all_held_out=heads)
    for name in arguments.only.split(",") if arguments.only else recipes:
        yield experiment.tried(name, recipes[name])


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--draft", metavar="SMALL", help="a small model, which learns in place of a new head")
    parser.add_argument("--kinds", metavar="KIND,...", help=f"kinds of drafts, of {', '.join(TRAINED)}")
    parser.add_argument("--files", metavar="DIR", help="with --kinds: the folder for the drafts")
    parser.add_argument("--only", help="names of recipes, with commas; by default all of them")
    parser.add_argument("--record", metavar="NAME", help="a file of docs/data, without its ending")
    arguments = parser.parse_args()
    use_threads(1)
    for found in trials(arguments):
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()
        if arguments.record:
            _record(arguments.record, arguments.model, arguments.tokens, found)
    return 0


def _record(name: str, model: str, tokens: int, found: dict[str, object]) -> None:
    path = recorded.DATA / recorded.MACHINE / f"{name}.json"
    before = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
    runs = [run for run in before if (run["recipe"], run["tokens"]) != (found["recipe"], tokens)]
    machine = {"cpu": cpu_name()}
    recorded.keep(
        name,
        {"machine": machine, "model": Path(resolve(model)).name, "runs": [*runs, {"tokens": tokens, **found}]},
    )


if __name__ == "__main__":
    raise SystemExit(main())
