"""Trains a head: text, states, training, and the files. This is all of ``specllama train-draft`` but the comparison."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama.backend.cpu import default_threads
from specllama.backend.replacing import replacing
from specllama.engine import FINAL, kept_files, learn_dir
from specllama.models import (
    EAGLE3,
    HEADER_ROOM,
    OF_A_SMALL_MODEL,
    OF_THE_FINAL_STATE,
    PARALLEL,
    TRAINED,
    head_beside,
    make_folder,
    require_free_place,
    require_room,
    resolve,
    size_of,
)

from .from_use import Used
from .progress import SILENT, Progress
from .start import Start, read_further
from .target import Target, read_target
from .text import Text, Writer, has_both, read_texts
from .torch_here import device_of_training, require_gguf_package, require_torch, use_threads
from .work import Work

if TYPE_CHECKING:
    from specllama.llama import Llama

    from .head import Shape
    from .plan import Rates

_N_CTX, _LONGEST_PROMPT = 1024, 2048
_TRIED = 4096  # the most tokens of text that are written to measure the speed
_MEASURED = 60.0  # the most seconds for each measurement of the speed
_LATE = 1.3  # a step ends after this many times its planned seconds, even if it is not complete
_TYPES = ("Q8_0", "Q4_0")
_KNOWN = {
    kind: f"of a 1.5B, a head of this kind that was trained so was right at {known}. Fewer tokens and smaller models "
    "give less. "
    for kind, known in (
        ("eagle3", "42 % of the places after 54,000 tokens, and at 61 % after 400,000"),
        ("hydra", "54 % of the places after 54,000 tokens, and at 61 % after 230,000"),
        ("blockwise", "45 % of the places after 54,000 tokens"),
        ("medusa", "42 % of the places after 54,000 tokens"),
    )
}
"""How often trained drafts of each kind were right. The numbers are those of docs/make-your-own-draft.md."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        target: the path of the target.
        weights: the `Digest` of the target's weights.
        n_ctx: the size of the context, in tokens, in which the heads are compared.
        heads: the files of the head, by the type of their weights. The files are deleted at the end of the training.
        output: the path that the head will have.
        greedy: the measured `Acceptance.greedy`.
        sampled: the measured `Acceptance.sampled`.
        num_tokens: how many tokens of text the head has learned from.
    """

    target: str
    weights: str
    n_ctx: int
    heads: Mapping[str, Path]
    output: Path
    greedy: tuple[float, ...]
    sampled: tuple[float, ...]
    num_tokens: int

    def keep(self, kind: str) -> Path:
        """Copy the head with one type of weights to `output`.

        Raises:
            OSError: the disk is full, or cannot be written.
        """
        try:
            with replacing(self.output, durable=True) as temporary:
                shutil.copyfile(self.heads[kind], temporary)
        except OSError as error:
            raise OSError(
                f"the draft is trained, and {self.output} cannot be written: {error}. Mend that, or name another file "
                "with --output: the same command goes on where it was"
            ) from error
        return self.output


@dataclasses.dataclass(frozen=True)
class Budget:
    """The limits of a training. Either `hours` or `tokens` must be given.

    Attributes:
        hours: the time for all steps together.
        tokens: the number of tokens of text.
        answer: the most tokens in one answer.
        parallel: how many texts are written at once.
    """

    hours: float | None = None
    tokens: int | None = None
    answer: int = 256
    parallel: int = 16

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            ValueError: neither or both of `hours` and `tokens` were given, or a limit is not positive.
        """
        if (self.hours is None) == (self.tokens is None):
            raise ValueError("give either hours or tokens (--hours, --tokens)")
        for name in ("hours", "tokens", "answer", "parallel"):
            if (value := getattr(self, name)) is not None and not value > 0:
                raise ValueError(f"{name}={value} must be more than 0")


@contextlib.contextmanager
def trained(
    model: str | os.PathLike[str],
    budget: Budget,
    *,
    kind: str = EAGLE3,
    output: str | os.PathLike[str] | None = None,
    text: Sequence[str] = (),
    start: str | os.PathLike[str] | None = None,
    small: str | os.PathLike[str] | None = None,
    threads: int | None = None,
    force: bool = False,
    from_use: bool = False,
    progress: Progress = SILENT,
) -> Iterator[Trained]:
    """Train a head for a model. Steps that an earlier call with equal arguments has completed are not repeated.

    It is a context manager. When its block ends without an error, the training is over, and its files are removed.

    Args:
        model: a GGUF file, or a name of the catalog.
        budget: the limits of the training.
        kind: one of `head_kinds.TRAINED`.
        output: the path for the head; None for a file beside the model, such as ``eagle3-NAME.gguf``.
        text: files of the user's with prompts or text, as for `Writer`.
        start: an EAGLE-3 head for this model, which is trained further; None for a new head.
        small: for the kinds ``"sibling"`` and ``"pard"``: the small model, a GGUF file or a name of the catalog.
        threads: the number of threads for everything; None for the usual number on this machine.
        force: whether an existing head is replaced.
        from_use: whether the head learns first from what was kept while the model was used (``learn=True``). Then the
            model writes only what lacks of the budget.
        progress: is told the progress.

    Yields:
        The result. Call its `keep` within the block.

    Raises:
        ImportError: PyTorch or gguf is not installed.
        ModelNotFoundError: there is no such model.
        ValueError: no head can be trained for this model or from this text, the head to start from or the small model
            cannot be used, there is no such kind, or the output is one of the files that are read, or no file.
        FileExistsError: there is a head already.
        AlreadyTrainingError: another process is training a head for this model.
        OSError: the disk is too small, or cannot be written.
        MemoryError: the free memory is too small.
    """
    require_usable(kind, start, small, from_use=from_use)
    require_torch(), require_gguf_package()
    path = resolve(os.fspath(model))
    small = None if small is None else resolve(os.fspath(small))
    models = [path] if small is None else [path, small]
    if small is not None and os.path.realpath(small) == os.path.realpath(path):
        raise ValueError(f"--draft {small} is the model itself: name a smaller one, of at most a third of its size")
    destination = Path(head_beside(path, kind)) if output is None else Path(output)
    require_free_place(destination, [*models, *text])
    for one in models:
        _require_sound(one)
    begun = begun_for(read_target(path), start, small, kind)
    texts = {"text": [_named(name) for name in text], "answer": budget.answer}
    asked: dict[str, Any] = {"budget": dataclasses.asdict(budget)}
    if start is not None:
        asked["start"] = _named(os.fspath(start))
    if kind != EAGLE3:
        asked["kind"] = kind
    if small is not None:
        asked["small"] = _named(small)
    if from_use:
        asked["from_use"] = True
    work = Work(begun.target.weights, texts, asked)
    output_of = {"file": str(destination.absolute())}
    if destination.exists() and not force and work.read("output") != output_of:
        raise FileExistsError(f"{destination} exists: name another file with --output, or replace it with --force")
    make_folder(destination.parent)
    with work.locked():
        work.write("output", output_of)
        copied, threads = 0 if small is None else size_of(small), threads or default_threads()
        use_threads(threads)
        used = Used(work.used) if from_use else None
        yield _Training(begun, budget, work, text, destination, copied, threads, progress, used).run()
        work.remove()
        if left := work.unfinished():
            names = ", ".join(map(str, left))
            progress.note(f"unfinished trainings of this model: {names}. Delete those that you will not continue")


def require_usable(kind: str, start: object, small: object, *, from_use: bool = False) -> None:
    """Check that a kind of draft can be trained from the head or small model that was given.

    Args:
        kind: the kind.
        start: the head that is trained further, or None.
        small: the small model that learns, or None.
        from_use: whether the draft learns from what was kept while the model was used.

    Raises:
        ValueError: there is no such kind, or it is not trained from these.
    """
    if kind not in TRAINED:
        raise ValueError(f"--kind {kind} is none of {', '.join(TRAINED)}")
    if start is not None and kind != EAGLE3:
        raise ValueError(f"only an EAGLE-3 head can be trained further, and none of the kind {kind}: leave out --from")
    if kind in OF_A_SMALL_MODEL and small is None:
        raise ValueError(f"--kind {kind} trains a small model: name it with --draft")
    if from_use and kind not in OF_THE_FINAL_STATE:
        raise ValueError(
            f"--from-use has the final states of the model alone, which a draft of the kind {kind} does not read: give "
            f"--kind {', '.join(OF_THE_FINAL_STATE)}, or leave out --from-use"
        )
    if kind not in OF_A_SMALL_MODEL and small is not None:
        kinds = " and ".join(f"--kind {one}" for one in OF_A_SMALL_MODEL)
        raise ValueError(f"--draft is the small model for {kinds}: leave it out, or give one of these")


def _require_sound(model: str) -> None:
    """Check a model's file: let llama.cpp open it without its weights.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: the file is no model, or is damaged.
    """
    import specllama

    specllama.Llama(model, vocab_only=True, verbose=False).close()


def begun_for(target: Target, start: str | os.PathLike[str] | None, small: str | None, kind: str) -> Start:
    """The start of a training. Its target names the layers that a draft of this kind reads.

    Args:
        target: the target.
        start: the head that is trained further; None for none.
        small: the path of the small model that learns; None for none.
        kind: one of `TRAINED`.
    """
    if small is not None:
        from .parallel import read_parallel
        from .sibling import read_sibling

        return (read_parallel if kind == PARALLEL else read_sibling)(small, target)
    if start is not None:
        return read_further(os.fspath(start), target)
    layers = (FINAL,) if kind in OF_THE_FINAL_STATE else target.layers
    return Start(dataclasses.replace(target, layers=layers), kind)


@dataclasses.dataclass(frozen=True)
class _Training:
    """One training. `run` does its steps.

    Attributes:
        start: what the training starts from.
        budget: the training's limits.
        work: the training's folder.
        given: the user's files.
        destination: the path that the draft will have.
        copied: the size in bytes of the small model that learns, most of which is copied into the draft; 0 for none.
        threads: the number of threads for everything.
        progress: is told the progress.
        used: what was kept while the model was used; None if the head does not learn from it.
    """

    start: Start
    budget: Budget
    work: Work
    given: Sequence[str]
    destination: Path
    copied: int
    threads: int
    progress: Progress
    used: Used | None = None

    @property
    def target(self) -> Target:
        """The target, with the layers whose inputs are read."""
        return self.start.target

    def run(self) -> Trained:
        """Do all steps that are not done yet."""
        plan = self.work.read("plan")
        if plan is None:
            if self.used is not None:
                self.used.copy(kept_files(learn_dir(self.target.weights)))
            plan = self._planned()
        else:
            self.progress.note(f"going on with the training that was begun before: {plan['num_tokens']} tokens of text")
            self._require_room_for_output(plan["num_tokens"])
        if self.work.read("written") is None and self._num_lacking(plan) > 0:
            self._write(plan)
        texts = self._texts(plan)
        rows = self._rows(texts)
        head = self.work.read("head")
        if head is None:
            if self.work.read("read") is None:
                self._read(plan, texts, rows)
            head = self._fit(plan, texts, rows)
        heads = {kind: self._head_path(kind) for kind in _TYPES}
        rates = {name: tuple(float(one) for one in head[name]) for name in ("greedy", "sampled")}
        n_ctx = min(_LONGEST_PROMPT, self.target.n_ctx_train)
        return Trained(
            self.target.path,
            self.target.weights,
            n_ctx,
            heads,
            self.destination,
            num_tokens=int(head["num_tokens"]),
            **rates,
        )

    def _most_seconds(self, plan: Mapping[str, Any], step: int) -> float:
        """The seconds after which a step ends, even if it is not complete. A budget in tokens sets no limit."""
        return float("inf") if self.budget.hours is None else _LATE * plan["seconds"][step] + _MEASURED

    # Text

    @contextlib.contextmanager
    def _writer(self) -> Iterator[Writer]:
        with contextlib.closing(self._llama()) as llm:
            yield Writer(llm, self.work.texts, self.given, self.budget.answer)

    def _llama(self) -> Llama:
        import specllama

        return specllama.Llama(
            self.target.path,
            n_ctx=min(_N_CTX, self.target.n_ctx_train),
            n_threads=self.threads,
            n_threads_batch=self.threads,
            max_parallel=self.budget.parallel,
            verbose=False,
        )

    @functools.cached_property
    def _used_texts(self) -> list[Text]:
        return [] if self.used is None else self.used.texts()

    def _num_lacking(self, plan: Mapping[str, Any]) -> int:
        """How many tokens of text the model is to write: those that were not kept while it was used."""
        found = plan["num_tokens"] - sum(text.size for text in self._used_texts)
        return int(found) if has_both(text.index for text in self._used_texts) else max(1, found)

    def _write(self, plan: dict[str, Any]) -> None:
        self.progress.note("the model writes what its draft will learn from")
        begun, wanted = time.monotonic(), self._num_lacking(plan)

        def enough(size: int) -> bool:
            return size >= wanted or time.monotonic() - begun > self._most_seconds(plan, 0)

        with self._writer() as writer:
            writer.write(
                enough, self.budget.parallel, lambda size, _: self.progress.done("text", min(size, wanted), wanted)
            )
        self.work.write("written", {})

    def _texts(self, plan: Mapping[str, Any]) -> list[Text]:
        """The planned part of the text. An earlier training may have left more text.

        Raises:
            ValueError: no text is learned, or none is held out.
        """
        found, size = list[Text](), 0
        for text in [*self._used_texts, *read_texts(self.work.texts)]:
            if size >= plan["num_tokens"] and has_both(one.index for one in found):
                break
            found.append(text)
            size += text.size
        if not has_both(one.index for one in found):
            raise ValueError("there is too little text to learn from: give a larger budget (--tokens, --hours)")
        return found

    def _rows(self, texts: Sequence[Text]) -> npt.NDArray[np.int64]:
        """The tokens that the head can draft. They are chosen once, and then kept in a file."""
        kept = self.work.folder / "rows.npy"
        if kept.exists():
            found: npt.NDArray[np.int64] = np.load(kept)
            return found
        rows = self._chosen_rows(texts)
        with replacing(kept, durable=True) as temporary, open(temporary, "wb") as file:
            np.save(file, rows)
        return rows

    def _chosen_rows(self, texts: Sequence[Text]) -> npt.NDArray[np.int64]:
        """The tokens of the head that is trained further, or the tokens that the target writes most."""
        from .plan import num_rows

        rows = self.start.rows
        return counted_rows(texts, self.start.n_vocab, num_rows) if rows is None else rows

    # States

    def _read(self, plan: dict[str, Any], texts: Sequence[Text], rows: npt.NDArray[np.int64]) -> None:
        from .shards import write_examples, write_shards

        self.progress.note(f"the model reads {sum(len(text.tokens) for text in texts)} tokens, and shows its states")
        begun = time.monotonic()
        if self.used is not None:
            wanted = {text.index for text in texts}
            found = self.used.examples(rows, self.target.n_vocab)
            write_examples((one for one in found if one[0] in wanted), self.work.states)

        def enough(_: int) -> bool:
            return time.monotonic() - begun > self._most_seconds(plan, 1)

        with self._engine() as engine:
            write_shards(
                engine,
                texts,
                rows,
                len(self.target.layers),
                self.work.states,
                enough,
                lambda _, done: self.progress.done("states", min(done, len(texts)), len(texts)),
            )
        self.work.write("read", {})

    def _engine(self) -> Any:
        from specllama.engine import Engine

        return Engine.open(
            self.target.path,
            n_ctx=min(_N_CTX, self.target.n_ctx_train),
            n_threads=self.threads,
            shown_layers=self.target.layers or (FINAL,),
        )

    # The head

    def _fit(self, plan: dict[str, Any], texts: Sequence[Text], rows: npt.NDArray[np.int64]) -> dict[str, Any]:
        from .file import write_head
        from .fit import fit

        device, seconds = device_of_training(), self._most_seconds(plan, 2)
        self.progress.note(f"training on {device}")
        head, acceptance = fit(self.work, self.start, rows, device=device, seconds=seconds, progress=self.progress)
        num_tokens = sum(text.size for text in texts if not text.is_held_out)
        self.progress.note(f"right on text it has not seen, at steps 1, 2 and 3: {acceptance}")
        for kind in _TYPES:
            write_head(
                self._head_path(kind),
                self.target,
                head,
                rows,
                kind,
                acceptance=acceptance,
                num_tokens=num_tokens,
                name=self.destination.stem,
            )
        found = {**dataclasses.asdict(acceptance), "num_tokens": num_tokens}
        self.work.write("head", found)
        shutil.rmtree(self.work.states, ignore_errors=True)
        return found

    def _head_path(self, kind: str) -> Path:
        return self.work.folder / f"head-{kind}.gguf"

    # The plan

    def _planned(self) -> dict[str, Any]:
        """Measure for a minute or two, tell the user what to expect, and check that the budget suffices.

        Raises:
            ValueError, OSError, MemoryError: time, disk or memory is too small.
        """
        from .fit import recipe_of
        from .plan import plan_of, require_room_to_train

        self.progress.note("measuring how fast the model writes, reads and learns here")
        begun = time.monotonic()
        rates, have = self._rates()
        budget, spent, recipe = self.budget, (time.monotonic() - begun) / 3600.0, recipe_of(self.start.kind)
        plan = plan_of(rates, hours=budget.hours, spent=spent, tokens=budget.tokens, have=have, recipe=recipe)
        free = self.work.free()
        shape = self._shape(plan.num_tokens)
        disk, memory = require_room_to_train(shape, self.target.n_vocab, plan, rates.share, free, recipe.most_cells)
        self._require_room_for_output(plan.num_tokens)
        write, read, fit = (f"{one:.0f} s" if one < 90.0 else f"{one / 60.0:.0f} min" for one in plan.seconds)
        self.progress.note(
            f"{plan.num_tokens} tokens of text: about {write} of writing ({rates.written:.0f} tokens/s), "
            f"{read} of states ({rates.read:.0f} tokens/s), {fit} of training; {plan.hours:.1f} h in all, "
            f"{disk / 1e9:.1f} GB of disk and {memory / 1e9:.1f} GB of memory"
        )
        known = _KNOWN.get(self.start.kind, "")
        self.progress.note(
            f"what to expect: {known}Nothing {'else ' if known else ''}is known before the training. It says how right "
            "it is as it goes"
        )
        found = {"num_tokens": plan.num_tokens, "seconds": list(plan.seconds), "rates": dataclasses.asdict(rates)}
        self.work.write("plan", found)
        return found

    def _require_room_for_output(self, num_tokens: int) -> None:
        """Check that the draft fits onto the disk of its output. The training itself may use another disk.

        Raises:
            OSError: the draft does not fit.
        """
        shape = self._shape(num_tokens)
        weights = shape.num_trained + shape.num_frozen + shape.n_rows * shape.n_embd
        require_room(self.destination, self.copied + weights * 17 // 16 + HEADER_ROOM)  # 8.5 bits a number: Q8_0

    def _shape(self, num_tokens: int) -> Shape:
        from .plan import num_rows

        return self.start.shape(num_rows(self.target.n_vocab, num_tokens))

    def _rates(self) -> tuple[Rates, int]:
        """The measured speeds, and the number of tokens of text that exist after measuring."""
        from .plan import Rates
        from .speed import speed_of_training

        budget = (self.budget.hours or 1.0) * 3600.0
        allowed = min(_MEASURED, budget / 30)
        is_enough = self.budget.tokens is not None and self._num_lacking({"num_tokens": self.budget.tokens}) <= 0
        rate = 1.0 if is_enough else self._rate_of_writing(allowed)
        texts = [*self._used_texts, *read_texts(self.work.texts)]
        rows = self._chosen_rows(texts)
        with self._engine() as engine:
            most = engine.model.n_ctx
            some = [text.end(most) for text in texts]
            read, learned, step = speed_of_training(engine, self.start, some, rows, device_of_training(), allowed)
        have = sum(text.size for text in texts)
        share = have / max(1, sum(len(text.tokens) for text in texts))
        return Rates(rate, read, learned, step, share), have

    def _rate_of_writing(self, allowed: float) -> float:
        """How many tokens per second the model writes, measured for so many seconds."""
        before = read_texts(self.work.texts)
        wanted = min((self.budget.tokens or 1 << 60) // 4, _TRIED)
        with self._writer() as writer:
            begun, known = time.monotonic(), max(sum(text.size for text in before), writer.size_as_it_is)

            def enough(size: int) -> bool:
                return size > known and (size >= known + wanted or time.monotonic() - begun > allowed)

            writer.write(enough, self.budget.parallel, lambda *_: None)
        seconds = time.monotonic() - begun
        written = sum(text.size for text in read_texts(self.work.texts)) - known
        return max(written, 1) / max(seconds, 1e-6)


def counted_rows(texts: Sequence[Text], n_vocab: int, num_rows: Any) -> npt.NDArray[np.int64]:
    """The tokens that the target writes most in learned text, in ascending order of their ids.

    Args:
        texts: the texts.
        n_vocab: how many tokens are counted, from the first one of the vocabulary.
        num_rows: a function that returns how many tokens are wanted, from `n_vocab` and the number of learned tokens.
    """
    counts = np.zeros(n_vocab, np.int64)
    for text in texts:
        if text.is_held_out:  # else acceptance on held-out texts would be measured too high
            continue
        said = np.asarray(text.tokens[text.start :], np.int64)
        np.add.at(counts, said[said < n_vocab], 1)
    count = num_rows(n_vocab, int(counts.sum()))
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def _named(name: str) -> list[Any]:
    """A file of the user's with its size and time, which identify its content."""
    found = os.stat(name)
    return [os.path.abspath(name), found.st_size, found.st_mtime_ns]
