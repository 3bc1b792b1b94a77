"""Answers of the model: the results of llama_cpp's methods, with timings and origins added."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Sequence
from typing import Any

from specllama import Llama
from specllama.drop_in import Call, Watch, checked_stops, prediction_usage
from specllama.stats import Stats, Tally

from .chats import ChatRequest
from .completions import CompletionRequest
from .job import Item
from .timings import timings


class Answers:
    """The work of one request: one response, or the chunks of a stream.

    ``timings`` is in the response, or in the chunk that has the finish_reason. With ``return_origins``, a ``tokens``
    field lists ``{"id", "origin"}`` of the tokens whose text the response or chunk has.
    """

    def __init__(self, llm: Llama, request: CompletionRequest | ChatRequest) -> None:
        self._llm = llm
        self._request = request

    def __call__(self, watch: Watch, call: Call) -> Generator[Item, None, None]:
        """Generates the response or the chunks, in a thread of the worker."""
        watch.poll()
        watch.is_decoded_outside = self._request.decodes_by_itself(self._llm)
        given = self._request.begin(self._llm, dataclasses.replace(call, watch=watch))
        if self._request.stream:
            yield from self._chunks(given, watch)
        else:
            usage_of_it = {**given["usage"], **_cached([watch])}
            yield {**given, "usage": usage_of_it, **self._tokens(watch), **self._more(watch), **timings_field([watch])}

    def _chunks(self, chunks: Any, watch: Watch) -> Generator[Item, None, None]:
        held: Item | None = None  # the last chunk, held back until the timings are complete
        for chunk in chunks:
            choice = chunk["choices"][0]
            if choice["finish_reason"] is not None:
                held = chunk
                continue
            tokens = self._tokens(watch) if _carries_text(choice) else {}
            yield {**chunk, **tokens, **(timings_field([watch]) if self._request.timings_per_token else {})}
        if held is None:
            return
        done = timings_field([watch])
        yield {**held, **self._tokens(watch), **self._more(watch), **done}
        options = self._request.stream_options
        if options is not None and options.include_usage:
            yield {**held, "choices": [], "usage": usage(self._request, [watch]), **done}

    def _more(self, watch: Watch) -> Item:
        """llama-server's ``warnings``, of fields without effect, and ``stopping_word``, the stop string met."""
        warnings = self._request.warnings(self._llm)
        is_theirs = watch.stopped_by in checked_stops(self._request.stop)  # not a stop string of the chat format
        stopped = {"stopping_word": watch.stopped_by} if is_theirs else {}
        return {**({"warnings": warnings} if warnings else {}), **stopped}

    def _tokens(self, watch: Watch) -> Item:
        """The field ``tokens`` of a response or chunk; none without ``return_origins``."""
        tokens = [{"id": token, "origin": origin} for token, origin in watch.take_shown()]
        return {"tokens": tokens} if self._request.return_origins else {}


def usage(request: CompletionRequest | ChatRequest, watches: Sequence[Watch]) -> Item:
    """The usage of a request, from the watches of its texts. A prompt counts once, however many answers it gets."""
    firsts = watches[:: request.num_candidates]
    num_prompt, num_generated = sum(w.num_prompt_tokens for w in firsts), sum(w.num_shown for w in watches)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_generated,
        "total_tokens": num_prompt + num_generated,
        **_cached(firsts),
        **(prediction_usage(_stats(watches), sum(w.num_looked_up for w in watches)) if request.prediction else {}),
    }


def timings_field(watches: Sequence[Watch]) -> Item:
    """The field ``timings`` for all texts that these watches have followed."""
    return {"timings": timings(_stats(watches))}


def _stats(watches: Sequence[Watch]) -> Stats:
    return sum((watch.tally() for watch in watches), Tally()).stats()


def _cached(watches: Sequence[Watch]) -> Item:
    """The part of ``usage`` that counts the prompt tokens that were not decoded. The last one always is."""
    reused = [(watch, watch.stats().num_prompt_tokens_reused) for watch in watches]
    count = sum(min(watch.num_held, most) if watch.is_decoded_outside else most for watch, most in reused)
    return {"prompt_tokens_details": {"cached_tokens": count}}


def _carries_text(choice: Any) -> bool:
    """Whether a choice has text. The first chunk of a chat has only the role, so tokens belong to the next chunk."""
    if "delta" not in choice:
        return True
    delta = choice["delta"]
    return any(delta.get(name) is not None for name in ("content", "reasoning_content", "tool_calls", "function_call"))
