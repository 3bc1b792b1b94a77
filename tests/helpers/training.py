"""A training on a tiny model, step by step: what it makes, with all that is between."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tiny_models as tiny

from specllama import Engine, Llama
from specllama.training.acceptance import Acceptance, acceptance
from specllama.training.batches import Batches
from specllama.training.file import write_head
from specllama.training.fit import Recipe, fit, learner_of
from specllama.training.progress import SILENT
from specllama.training.shards import write_shards
from specllama.training.target import Target, read_target
from specllama.training.text import Text, Writer, read_texts
from specllama.training.torch_here import use_threads
from specllama.training.train import begun_for, counted_rows
from specllama.training.work import Work


@dataclasses.dataclass(frozen=True)
class Steps:
    """What each step has made."""

    target: Target
    texts: list[Text]
    rows: np.ndarray[Any, np.dtype[np.int64]]
    batches: Batches
    head: Any
    path: Path
    before: Acceptance
    after: Acceptance


def steps(
    model: Path,
    folder: Path,
    count: int,
    num_rows: Callable[[int, int], int],
    given: tuple[str, ...] = (),
    epochs: int = 8,
    kind: str = "eagle3",
) -> Steps:
    """Train on `count` tokens."""
    start = begun_for(read_target(str(model)), None, None, kind)
    target = start.target
    work = Work(target.weights, {"folder": str(folder)}, {})
    work.folder.mkdir(parents=True, exist_ok=True)
    llm = Llama(str(model), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    Writer(llm, work.texts, given, 64).write(lambda size: size >= count, 4, lambda *_: None)
    llm.close()
    texts = read_texts(work.texts)
    rows = counted_rows(texts, target.n_vocab, num_rows)
    with Engine.open(model, n_ctx=512, n_threads=1, shown_layers=target.layers) as engine:
        write_shards(engine, texts, rows, len(target.layers), work.states, lambda _: False, lambda *_: None)
    use_threads(1)
    batches = Batches(target, rows, work.states, "cpu")
    before = acceptance(learner_of(start, rows, batches, "cpu"), batches.held_out())
    head, after = fit(work, start, rows, device="cpu", seconds=600.0, progress=SILENT, recipe=Recipe(epochs=epochs))
    path = write_head(folder / "head.gguf", target, head, rows, "F32", acceptance=after, num_tokens=count)
    return Steps(target, texts, rows, batches, head, path, before, after)


def drafted(head: Any, rows: Any, embeddings: Any, states: Any, text: list[int], count: int) -> list[int]:
    """The best `count` tokens behind a text by the trainer's own forward pass.

    Args:
        head: the module.
        rows: the tokens that it says.
        embeddings: of all tokens [n_vocab, n_embd].
        states: of the target, that it reads, of all tokens but the last [n, num_read * n_embd].
        text: the tokens.
        count: how many.
    """
    import torch

    tokens = text[1:]
    with torch.no_grad():
        for step in range(count):
            read = head.read(torch.from_numpy(states).float()[None])
            read = torch.nn.functional.pad(read, (0, 0, 0, step))  # what nobody has computed yet
            embedded = torch.from_numpy(embeddings[tokens])[None]
            said = head.logits(head(embedded, read, step + 1)[step][0, -1])
            tokens = [*tokens, int(rows[int(said.argmax())])]
    return tokens[len(text) - 1 :]


def pattern(path: Path, vocabulary: tiny.Vocabulary) -> Path:
    """A file of text that is easy to guess."""
    words = "".join(vocabulary.tokens[3:])
    path.write_text(words * 200, encoding="utf-8")
    return path
