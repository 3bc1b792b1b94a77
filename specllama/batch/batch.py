"""One run of a batch: it answers the lines that have no answer yet, many at once."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

from specllama import Llama
from specllama.drop_in import Watch
from specllama.engine import Slot
from specllama.many import Job, Outcome, Outcomes, takes_the_model_alone
from specllama.stats import Stats, Tally
from specllama.warn import warn

from . import plain
from .answers import Answers
from .line import Line, lines_of

Progress = Callable[[Iterator[Outcome]], Generator[Outcome, None, None]]
"""A function that passes outcomes on, and shows the progress."""


class Batch:
    """Answers the lines of an input that the output has no answer to.

    Args:
        llm: answers the lines.
        source: the input.
        answers: the output.
        defaults: the arguments of every text. A line may replace them by its own.
        name: the model's name in answers in OpenAI's format.

    Attributes:
        num_texts: the number of answers that this run has added, errors included.
        num_errors: the number of errors among them.
    """

    def __init__(self, llm: Llama, source: Path, answers: Answers, *, defaults: dict[str, Any], name: str) -> None:
        self._llm = llm
        self._source = source
        self._answers = answers
        self._defaults = defaults
        self._name = name
        self._under_way: dict[int, Line] = {}
        self._tallies: dict[int, Tally] = {}
        self._total = Tally()
        self._started = time.monotonic()
        self.num_texts = self.num_errors = 0

    def run(self, count: int, progress: Progress | None = None) -> None:
        """Add all answers that are missing.

        Args:
            count: how many texts to generate at once. If recurrent states cannot be copied, texts are generated one
                after the other, with a warning.
            progress: shows the outcomes, such as a progress bar.

        Raises:
            ValueError, MemoryError: the model cannot generate `count` texts at once.
            OSError: the input cannot be read, or the output not be written.
        """
        self._started = time.monotonic()
        with contextlib.closing(self._jobs()) as jobs:
            if (possible := self._llm.engine.texts.open(count)) < count:
                warn(f"one text after the other instead of {count} at once: this llama-cpp-python cannot copy states")
            with Outcomes(self._llm, possible, jobs) as outcomes:
                watched = progress(outcomes) if progress else (outcome for outcome in outcomes)
                with contextlib.closing(watched):
                    for outcome in watched:
                        self._add(outcome)

    @property
    def stats(self) -> Stats:
        """The statistics of this run's texts, also of interrupted ones. ``total_seconds`` is the time of the run."""
        seconds = time.monotonic() - self._started
        stats = sum(self._tallies.values(), self._total).stats()
        speed = stats.num_tokens / seconds if seconds > 0 else 0.0
        return dataclasses.replace(stats, total_seconds=seconds, tokens_per_second=speed)

    def _jobs(self) -> Generator[Job, None, None]:
        """Yield a job for each line without an answer. Only one thread at a time may ask for the next job."""
        with contextlib.closing(lines_of(self._source)) as lines:
            missing = (line for line in lines if bytes.fromhex(line.key) not in self._answers.keys)
            for number, line in enumerate(missing):
                self._under_way[number] = line
                yield self._job(number, line)

    def _job(self, number: int, line: Line) -> Job:
        generated, is_alone = self._answering(line)

        def generate(slot: Slot, watch: Watch) -> dict[str, Any]:
            try:
                return generated(slot, watch)
            finally:
                self._tallies[number] = watch.tally()

        return Job(generate, is_alone)

    def _answering(self, line: Line) -> tuple[Callable[[Slot, Watch], dict[str, Any]], bool]:
        """The function that generates the response to a line, and whether it needs the Llama's own context."""
        try:
            if line.problem is not None:
                raise line.problem
            if line.is_request:
                from . import openai

                body = openai.body_of(line, self._defaults)
                return functools.partial(openai.generate, self._llm, body=body, name=self._name), openai.is_alone(body)
        except Exception as error:  # the error is the outcome of this line, and the batch goes on
            return functools.partial(_raise, error), False
        is_alone = takes_the_model_alone({**self._defaults, **line.content})
        return functools.partial(plain.generate, self._llm, line=line, defaults=self._defaults), is_alone

    def _add(self, outcome: Outcome) -> None:
        line = self._under_way.pop(outcome.index)
        if line.is_request:
            from . import openai

            answer = openai.answer(line, outcome)
        else:
            answer = plain.answer(line, outcome)
        self._answers.add(answer)
        self.num_texts += 1
        self.num_errors += outcome.error is not None
        self._total = self._total + self._tallies.pop(outcome.index, Tally())


def _raise(error: Exception, *_: object) -> dict[str, Any]:
    raise error
