"""Several texts of one request: answers to several prompts, or several answers to one."""

from __future__ import annotations

import contextlib
import itertools
import math
import queue
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any

from specllama import Llama
from specllama.drop_in import Call, Watch
from specllama.engine import Stopped

from .answers import Answers, timings_field, usage
from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Item, Work

Request = CompletionRequest | ChatRequest
Lend = Callable[[Any, Watch], contextlib.AbstractContextManager[Call]]
"""Lends what generates a text, for the length of a block. It may have to wait."""

_Arrived = queue.Queue[tuple[int, Item] | Exception | None]
_LOOKING = 0.1  # seconds between two checks whether the request was stopped


def answering(llm: Llama, request: Request, texts: Sequence[Request], lend: Lend, at_once: int = 1) -> Work:
    """Returns the work that answers a request.

    Args:
        llm: the model.
        request: the whole request.
        texts: a request for each text, from ``request.texts()``.
        lend: lends a slot for each text.
        at_once: how many texts to generate at once.
    """
    if len(texts) == 1:
        return lambda watch: _answers(llm, texts[0], lend, watch)
    return _Several(llm, request, texts, lend, min(at_once, len(texts)))


def _answers(llm: Llama, text: Request, lend: Lend, watch: Watch) -> Generator[Item, None, None]:
    with lend(text, watch) as call:
        yield from Answers(llm, text)(watch, call)


class _Several:
    """The work of a request for several texts: one response, or the chunks of one stream."""

    def __init__(self, llm: Llama, request: Request, texts: Sequence[Request], lend: Lend, at_once: int) -> None:
        self._llm = llm
        self._request = request
        self._texts = texts
        self._lend = lend
        self._at_once = at_once

    def __call__(self, watch: Watch) -> Generator[Item, None, None]:
        """Generates the items, in a thread of the worker and in threads of its own."""
        watches = [Watch(watch) for _ in self._texts]
        try:
            with contextlib.closing(self._items(watch, watches)) as items:
                if self._request.stream:
                    yield from self._chunks(items, watches)
                else:
                    yield self._response([item for _, item in sorted(items, key=lambda each: each[0])], watches)
        finally:
            for each in watches:  # all of them have ended by now
                watch.end(each.tally())

    # The items, each with the number of its text

    def _items(self, watch: Watch, watches: list[Watch]) -> Generator[tuple[int, Item], None, None]:
        if self._at_once > 1:
            yield from self._items_of_threads(watch, watches)
            return
        for number, text in enumerate(self._texts):
            for item in _answers(self._llm, text, self._lend, watches[number]):
                yield number, item

    def _items_of_threads(self, watch: Watch, watches: list[Watch]) -> Generator[tuple[int, Item], None, None]:
        arrived: _Arrived = queue.Queue(2 * self._at_once)  # a client that does not read pauses the texts
        numbers = itertools.count()  # next() on it is atomic

        def work() -> None:
            with contextlib.suppress(Stopped):  # nobody asks any more
                try:
                    while (number := next(numbers)) < len(self._texts):
                        for item in _answers(self._llm, self._texts[number], self._lend, watches[number]):
                            _put(arrived, (number, item), watches[number])
                    _put(arrived, None, watches[0])
                except Stopped:
                    raise
                except Exception as error:
                    _put(arrived, error, watches[0])

        threads = [threading.Thread(target=work, name=f"specllama-part-{each}") for each in range(self._at_once)]
        try:
            for thread in threads:
                thread.start()
            yield from _taken(arrived, len(threads), watch)
        finally:
            for each in watches:
                each.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()

    # The answer that is made of the items

    def _chunks(self, items: Iterator[tuple[int, Item]], watches: list[Watch]) -> Generator[Item, None, None]:
        head: Item = {}
        for number, item in items:
            head = head or {name: item[name] for name in ("id", "created")}
            choices = [{**choice, "index": number} for choice in item["choices"]]
            last = {**item, **head}
            yield {**last, "choices": choices}
        options = self._request.stream_options
        if options is not None and options.include_usage:
            names = ("id", "created", "object", "model")
            done = {"usage": usage(self._request, watches), **timings_field(watches)}
            yield {**{name: last[name] for name in names}, "choices": [], **done}

    def _response(self, responses: list[Item], watches: list[Watch]) -> Item:
        num_candidates, num_choices = self._request.num_candidates, self._request.num_choices
        keeps = self._request.logprobs is not None and self._request.logprobs is not False  # 0 asks for logprobs, too
        choices: list[Item] = []
        for first in range(0, len(responses), num_candidates):
            those = responses[first : first + num_candidates]
            if num_candidates > num_choices:
                those = sorted(those, key=_likelihood, reverse=True)[:num_choices]
            choices += [_choice(each, keeps_logprobs=keeps) for each in those]
        numbered = [{**choice, "index": number} for number, choice in enumerate(choices)]
        whole = {name: value for name, value in responses[0].items() if name != "tokens"}
        return {**whole, "choices": numbered, "usage": usage(self._request, watches), **timings_field(watches)}


def _put(arrived: _Arrived, given: tuple[int, Item] | Exception | None, watch: Watch) -> None:
    """Hands something over, as soon as there is room.

    Raises:
        Stopped: the client has left, or another text has failed.
    """
    while True:
        try:
            return arrived.put(given, timeout=_LOOKING)
        except queue.Full:
            watch.poll()


def _taken(arrived: _Arrived, num_threads: int, watch: Watch) -> Generator[tuple[int, Item], None, None]:
    """Yields the items that arrive, until all threads have ended.

    Raises:
        Exception: the error of one of the threads.
        Stopped: the client has left.
    """
    while num_threads:
        try:
            item = arrived.get(timeout=_LOOKING)
        except queue.Empty:
            watch.poll()
            continue
        if isinstance(item, Exception):
            raise item
        if item is None:
            num_threads -= 1
        else:
            yield item


def _choice(response: Item, *, keeps_logprobs: bool) -> Item:
    """The choice of a response, with its tokens."""
    [choice] = response["choices"]
    tokens = {"tokens": response["tokens"]} if "tokens" in response else {}
    return {**choice, "logprobs": choice["logprobs"] if keeps_logprobs else None, **tokens}


def _likelihood(response: Item) -> float:
    """The mean log-probability of an answer's tokens."""
    count = response["usage"]["completion_tokens"]
    scores = response["choices"][0]["logprobs"]["token_logprobs"][-count:] if count else []
    return math.fsum(scores) / count if scores else -math.inf
