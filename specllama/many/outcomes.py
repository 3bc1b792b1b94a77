"""The outcomes of many texts of a Llama, as they end."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Generator, Iterable, Mapping
from typing import Any

from specllama.drop_in.view import EngineLlama
from specllama.engine.listener import Stopped
from specllama.engine.model import closed
from specllama.stats import Stats

from .runner import Job, Runner


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The outcome of one text: a response or an error."""

    index: int
    """The index of the prompt."""
    response: dict[str, Any] | None
    """What ``create_completion`` or ``create_chat_completion`` returns; None after an error."""
    error: Exception | None
    """The error of this text; None if it did not fail. An error does not affect other texts."""
    stats: Stats
    """Statistics of this text alone. Each text of a batch has an equal part of the batch's time."""

    @property
    def text(self) -> str:
        """The text of the answer.

        Raises:
            Exception: the error, if there is one.
        """
        if self.error is not None:
            raise self.error
        choice = (self.response or {})["choices"][0]
        return str(choice["message"]["content"] or "" if "message" in choice else choice["text"])


class Outcomes(Runner[Outcome]):
    """An iterator over the outcomes, in the order in which texts end. About two outcomes for each slot wait unread.

    Read it to its end, close it, or drop it: the texts under way then end. ``close`` may be called from any thread. An
    exception in the source of the jobs is raised here once, after the outcomes of the jobs before it.

    Args:
        llama: generates the texts.
        count: how many texts run at once, as ``engine.texts.open`` has returned.
        jobs: the texts. A job's ``run`` returns the response.
    """

    def __init__(self, llama: EngineLlama, count: int, jobs: Iterable[Job]) -> None:
        # The partial function keeps a reference to the Llama.
        super().__init__(count, jobs, functools.partial(_one_outcome, llama, count))


def _one_outcome(llama: EngineLlama, count: int, number: int, job: Job) -> Generator[Outcome, None, None]:
    yield _outcome(llama, count, number, job)


def _outcome(llama: EngineLlama, count: int, number: int, job: Job) -> Outcome:
    try:
        with job.take(llama.engine, count) as slot:
            return Outcome(number, job.run(slot, job.watch), None, job.watch.stats())
    except Stopped:
        return Outcome(number, None, closed(), job.watch.stats())  # texts are stopped when the Llama is closed
    except Exception as error:
        return Outcome(number, None, error, job.watch.stats())


def arguments_of(item: Any, name: str, common: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of one call: those that all calls share, and those of an item.

    Args:
        item: the value of the argument `name`; or a mapping of arguments, which take precedence over the common ones.
        name: ``prompt`` or ``messages``.
        common: arguments of every call.

    Raises:
        ValueError: a mapping without `name`, or one that asks for a stream.
        TypeError: an argument that only our own code can give.
    """
    given = dict(item) if isinstance(item, Mapping) else {name: item}
    if name not in given:
        raise ValueError(f"a mapping must have {name!r}, and may have other arguments: {sorted(given)!r:.100} has not")
    arguments = {**common, **given}
    for ours in ("self", "call"):
        if ours in arguments:
            raise TypeError(f"got an unexpected keyword argument {ours!r}")  # as for any unknown argument
    if arguments.pop("stream", False):
        raise ValueError("stream=True is for all texts together: their outcomes come as they end")
    return arguments


def takes_the_model_alone(arguments: Mapping[str, Any]) -> bool:
    """Whether only the Llama's own context can generate the text (see ``Slot.require_alone``).

    Args:
        arguments: the arguments of ``create_completion`` or ``create_chat_completion``. They need not be valid.
    """
    scores_prompt = arguments.get("echo") and arguments.get("logprobs") is not None
    return bool(arguments.get("mirostat_mode") or scores_prompt)
