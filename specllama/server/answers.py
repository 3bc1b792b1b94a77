"""Answers of the model, with timings and origins added to what llama_cpp's methods return."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from specllama import Llama
from specllama.drop_in.view import calling
from specllama.drop_in.watch import Watch

from .job import Item
from .requests import ChatRequest, CompletionRequest
from .timings import timings


class Answers:
    """The work of one request: one response, or the chunks of a stream.

    ``timings`` is in the response, or in the chunk that has the finish_reason. With ``return_origins`` a ``tokens``
    field lists ``{"id", "origin"}`` of the tokens whose text it carries.
    """

    def __init__(self, llm: Llama, request: CompletionRequest | ChatRequest) -> None:
        self._llm = llm
        self._request = request

    def __call__(self, watch: Watch) -> Generator[Item, None, None]:
        """Runs in a thread of the worker's."""
        watch.heed()
        given = self._request.begin(calling(self._llm, watch=watch))
        if self._request.stream:
            yield from self._chunks(given, watch)
        else:
            yield {**_ended(given, watch), **self._tokens(watch), **self._warnings(), "timings": timings(watch.stats())}

    def _chunks(self, chunks: Any, watch: Watch) -> Generator[Item, None, None]:
        held: Item | None = None  # until everything has ended, and the timings are complete
        for chunk in chunks:
            choice = chunk["choices"][0]
            if choice["finish_reason"] is not None:
                held = chunk
                continue
            more = self._tokens(watch) if _carries_text(choice) else {}
            if self._request.timings_per_token:
                more["timings"] = timings(watch.stats())
            yield {**chunk, **more}
        if held is None:
            return
        done = {"timings": timings(watch.stats())}
        yield {**_ended(held, watch), **self._tokens(watch), **self._warnings(), **done}
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield {**held, "choices": [], "usage": _usage(watch), **done}

    def _warnings(self) -> Item:
        warnings = self._request.warnings()
        return {"warnings": warnings} if warnings else {}

    def _tokens(self, watch: Watch) -> Item:
        shown = watch.take_shown()
        if not self._request.return_origins:
            return {}
        return {"tokens": [{"id": token, "origin": origin} for token, origin in shown]}


def _ended(item: Item, watch: Watch) -> Item:
    """A call of a tool that was cut off says so, as OpenAI's does: llama_cpp calls every one complete."""
    choice = item["choices"][0]
    if choice["finish_reason"] not in ("tool_calls", "function_call") or watch.finish_reason != "length":
        return item
    return {**item, "choices": [{**choice, "finish_reason": "length"}]}


def _carries_text(choice: Any) -> bool:
    """Not the chunk that only says who speaks: the tokens belong to the one behind it."""
    if "delta" not in choice:
        return True
    delta = choice["delta"]
    return any(delta.get(name) is not None for name in ("content", "tool_calls", "function_call"))


def _usage(watch: Watch) -> dict[str, int]:
    num_prompt, num_generated = watch.num_prompt_tokens, watch.num_shown
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
    }
