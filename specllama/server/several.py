"""Several texts of one request: answers to several prompts, or several answers to one prompt."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

from specllama import Llama
from specllama.drop_in import Watch, call_on
from specllama.engine import Slot
from specllama.many import Job, Runner

from .answers import Answers, timings_field, usage
from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Item, Work

Request = CompletionRequest | ChatRequest
Lend = Callable[[Job], contextlib.AbstractContextManager[Slot]]
"""Lends a slot to a job for the length of a block. Entering the block may wait until a slot is free."""
_Numbered = tuple[int, Item]
"""The index of a text in its request, and an item of this text."""


def answering(
    llm: Llama, request: Request, texts: Sequence[Request], lend: Lend, at_once: int = 1, *, is_alone: bool = False
) -> Work:
    """Returns the work that answers a request.

    Args:
        llm: the model.
        request: the whole request.
        texts: a request for each text, from ``request.texts()``.
        lend: lends a slot for each text.
        at_once: how many texts to generate at once.
        is_alone: whether each text needs the model's own context.
    """

    def job(text: Request, watch: Watch) -> Job:
        return Job(functools.partial(_answer, llm, text), is_alone, text.text(), watch)

    def work(watch: Watch) -> Generator[Item, None, None]:
        if len(texts) == 1:
            only = job(texts[0], watch)
            with lend(only) as slot:
                yield from only.run(slot, watch)
            return
        watches = [Watch(watch) for _ in texts]
        try:
            jobs = map(job, texts, watches)
            with contextlib.closing(_items(watch, jobs, lend, min(at_once, len(texts)))) as items:
                if request.stream:
                    yield from _chunks(request, items, watches)
                else:
                    yield _response(request, [item for _, item in sorted(items, key=lambda each: each[0])], watches)
        finally:
            for each in watches:  # all texts have ended by now: the whole request's watch gets their numbers
                watch.end(each.tally())

    return work


def _answer(llm: Llama, text: Request, slot: Slot, watch: Watch) -> Generator[Item, None, None]:
    return Answers(llm, text)(watch, call_on(llm, slot=slot))


def _given(lend: Lend, number: int, job: Job) -> Generator[_Numbered, None, None]:
    with lend(job) as slot, contextlib.closing(job.run(slot, job.watch)) as items:
        for item in items:
            yield number, item


def _items(watch: Watch, jobs: Iterable[Job], lend: Lend, at_once: int) -> Generator[_Numbered, None, None]:
    """The items of all texts, as they come.

    Raises:
        Exception: the error of one of the texts.
        Stopped: the client has left.
    """
    if at_once == 1:
        for number, job in enumerate(jobs):
            yield from _given(lend, number, job)
        return
    with Runner(at_once, jobs, functools.partial(_given, lend)) as items:
        yield from items
    watch.poll()  # raises Stopped if the client has left: the texts themselves have then ended without an error


def _chunks(request: Request, items: Iterator[_Numbered], watches: list[Watch]) -> Generator[Item, None, None]:
    head: Item = {}
    for number, item in items:
        head = head or {name: item[name] for name in ("id", "created")}
        choices = [{**choice, "index": number} for choice in item["choices"]]
        last = {**item, **head}
        yield {**last, "choices": choices}
    options = request.stream_options
    if options is not None and options.include_usage:
        names = ("id", "created", "object", "model")
        done = {"usage": usage(request, watches), **timings_field(watches)}
        yield {**{name: last[name] for name in names}, "choices": [], **done}


def _response(request: Request, responses: list[Item], watches: list[Watch]) -> Item:
    num_candidates, num_choices = request.num_candidates, request.num_choices
    keeps = request.logprobs is not None and request.logprobs is not False  # 0 asks for logprobs, too
    choices: list[Item] = []
    for first in range(0, len(responses), num_candidates):
        those = responses[first : first + num_candidates]
        if num_candidates > num_choices:
            those = sorted(those, key=_likelihood, reverse=True)[:num_choices]
        choices += [_choice(each, keeps_logprobs=keeps) for each in those]
    numbered = [{**choice, "index": number} for number, choice in enumerate(choices)]
    whole = {name: value for name, value in responses[0].items() if name != "tokens"}
    return {**whole, "choices": numbered, "usage": usage(request, watches), **timings_field(watches)}


def _choice(response: Item, *, keeps_logprobs: bool) -> Item:
    """The choice of a response, with the response's field ``tokens``."""
    [choice] = response["choices"]
    tokens = {"tokens": response["tokens"]} if "tokens" in response else {}
    return {**choice, "logprobs": choice["logprobs"] if keeps_logprobs else None, **tokens}


def _likelihood(response: Item) -> float:
    """The mean log-probability of an answer's tokens."""
    count = response["usage"]["completion_tokens"]
    scores = response["choices"][0]["logprobs"]["token_logprobs"][-count:] if count else []
    return math.fsum(scores) / count if scores else -math.inf
