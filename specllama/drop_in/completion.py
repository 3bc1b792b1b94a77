"""``create_completion``: makes text, stop strings and log-probabilities of a generation's tokens.

The base class's method detokenizes the whole answer at every token, needs ``logits_all`` for log-probabilities, and has
a few faults with stop strings and offsets. The responses here have the same form, without these faults.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

from specllama.engine.generation import Generation
from specllama.engine.model import token_ids
from specllama.engine.options import checked_index
from specllama.engine.position import only_tokens
from specllama.engine.request import Request, checked_bias
from specllama.token import Origin, Token
from specllama.warn import warn

from .arguments import checked_stops
from .echo import Echo, echo_of_text, echo_of_tokens
from .lending import lent
from .logprobs import LogprobLog, prompt_logprobs
from .prediction import prediction_usage
from .prompt_tokens import checked_prompt, leading_tokens, place_of_prompt, prompt_tokens_of
from .requests import request_of
from .saved_state import StateError
from .seeds import seed_for_completion
from .text import TextAssembler, has_own_tokenizer
from .view import Call, EngineLlama

_Known = tuple[Origin, float | None, float | None]
"""The fields of a `Token` that are kept until its text is known: origin, logprob, acceptance_probability."""


class Completion:
    """One call of ``create_completion``.

    Args:
        llama: the Llama that was called.
        call: the options of the call besides the method's arguments.
        arguments: the base method's arguments, by name.

    Raises:
        TypeError, ValueError: an argument cannot be used, or the prompt leaves no room in the context.
    """

    def __init__(self, llama: EngineLlama, call: Call, arguments: dict[str, Any]) -> None:
        self._llama = llama
        self._call = call
        self._model = lent(llama)
        self._prompt = checked_prompt(arguments["prompt"])
        self._echo: bool = arguments["echo"]
        self._num_logprobs = _checked_logprobs(arguments["logprobs"], llama.n_vocab())
        self._id = f"cmpl-{uuid.uuid4()}"
        self._created = int(time.time())
        self._model_name = llama.model_path if arguments["model"] is None else arguments["model"]
        self._suffix = arguments["suffix"]
        self._prompt_tokens = call.prompt_tokens or prompt_tokens_of(llama, self._prompt, self._suffix)
        self._warn_double_bos()
        self._max_tokens = self._room_for(arguments["max_tokens"])
        stops = [text.encode("utf-8") for text in checked_stops(arguments["stop"])]
        self._read_tokens = only_tokens(self._prompt_tokens)
        whole = None
        if not has_own_tokenizer(llama):
            whole = functools.partial(llama.detokenize, prev_tokens=self._read_tokens)
        shown_tokens: frozenset[int] = frozenset()
        self._is_over: Callable[[bytes], bool] | None = None
        if call.chat is not None:
            shown_tokens = call.chat.shown_tokens
            grammar = call.chat.begins_behind(self._model, self._prompt_tokens, arguments["grammar"])
            arguments = {**arguments, "grammar": grammar}
            self._is_over = call.chat.follow()
        self._shown_tokens = shown_tokens
        self._assembler = TextAssembler(
            self._model, stops, at_start=not self._prompt, whole=whole, shown_tokens=shown_tokens
        )
        self._log, self._prompt_log = self._new_log(), self._new_log()
        self._generation = Generation(call.slot, self._request(arguments))
        self._watch = call.watch
        self._origins: list[Origin] = []  # the origins of the assembler's tokens, if a watch or a prediction needs them
        self._num_shown = 0  # tokens that were reported to the watch
        self._finish_reason = "length"

    def _new_log(self) -> LogprobLog | None:
        if self._num_logprobs is None:
            return None
        chat = self._call.chat
        return LogprobLog(self._model, self._num_logprobs, None if chat is None else chat.token_bytes)

    def _request(self, arguments: dict[str, Any]) -> Request:
        llama = self._llama
        return request_of(
            llama,
            self._call,
            arguments,
            seed_for_completion(llama, arguments["seed"]),
            logit_bias=checked_bias(arguments["logit_bias"] or {}, llama.n_vocab()),
            tokens=self._prompt_tokens,
            max_tokens=self._max_tokens,
            wants_logits=self._log is not None,
        )

    def response(self) -> dict[str, Any]:
        """The response with the whole text."""
        self._load_cached_state()
        for _ in self._generate():
            pass
        self._save_cached_state()
        return self._response()

    def tokens(self) -> Iterator[Token]:
        """The tokens one by one. Their texts, put together, are the text of the completion."""
        self._load_cached_state()
        assembler, generation = self._assembler, self._generation
        waiting: collections.deque[_Known] = collections.deque()
        for _ in self._generate():
            logprob = None if self._log is None else self._log.logprob(-1)
            waiting.append((generation.origin, logprob, generation.acceptance_probability()))
            if assembler.num_tokens == 1:
                yield from self._echoed_tokens()
            yield from self._text_tokens(waiting, final=False)
        if not assembler.num_tokens:
            yield from self._echoed_tokens()
        yield from self._text_tokens(waiting, final=True)
        # The remaining tokens have no text: they are parts of an unfinished character, or of a stop string.
        for token in assembler.tokens[assembler.num_taken :]:
            yield Token(token, "", *waiting.popleft())
        self._save_cached_state()

    # The loop

    def _generate(self) -> Iterator[None]:
        """Feed tokens to the assembler until the completion ends. Yields after each token."""
        llama, assembler = self._llama, self._assembler
        if self._watch is not None:
            self._watch.num_prompt_tokens += len(self._prompt_tokens)
        if self._echo and self._prompt_log is not None:
            self._call.slot.require_alone("echo with logprobs")
            entries = prompt_logprobs(llama.engine, self._prompt_tokens, self._num_logprobs, self._call.listener)
            tokens = self._echoed.tokens
            self._prompt_log.add_prompt(tokens, entries[len(entries) - len(tokens) :])
        ends_text = llama.engine.model.ends_text
        try:
            if self._call.is_prompt_only:
                return
            for token in self._generation:
                if ends_text(token):
                    self._finish_reason = "stop"
                    return
                if self._log is not None:
                    self._log.add(token, self._generation.logits())
                if self._watch is not None or self._call.prediction is not None:
                    self._origins.append(self._generation.origin)
                stopped = assembler.add(token) or self._ends_answer(token)
                yield
                if stopped:
                    self._finish_reason = "stop"
                    return
                if assembler.num_tokens >= self._max_tokens:
                    return
            if self._generation.stopped_by_criteria:
                self._finish_reason = "stop"
        finally:
            self._generation.close()
            if self._call.chat is not None:
                self._call.chat.completed(self._finish_reason)
            if self._watch is not None:
                self._watch.stopped_by = assembler.stopped_by

    def _ends_answer(self, token: int) -> bool:
        """Whether this token ends the answer of the chat, so that later text would be left out."""
        return self._is_over is not None and self._is_over(
            self._model.piece(token, special=token in self._shown_tokens)
        )

    def chunks(self) -> Iterator[dict[str, Any]]:
        """The response in chunks, as ``stream=True`` returns it."""
        self._load_cached_state()
        for _ in self._generate():
            # Nothing is sent before the first token, so that a server can answer an error until then by its status.
            if self._assembler.num_tokens == 1:
                yield from self._echoed_chunk()
            yield from self._text_chunks(final=False)
        if not self._assembler.num_tokens:
            yield from self._echoed_chunk()
        yield from self._text_chunks(final=True)
        # The remaining tokens have no text: they are parts of an unfinished character, or of a stop string.
        first, end = self._assembler.num_taken, self._assembler.num_tokens
        self._show(end)
        yield self._chunk("", self._logprobs(first, end) if first < end else None, self._finish_reason)
        self._save_cached_state()

    def _echoed_chunk(self) -> Iterator[dict[str, Any]]:
        if self._echo and (self._prompt_text or self._prompt_log is not None):
            yield self._chunk(self._prompt_text, self._prompt_logprobs(), None)

    def _echoed_tokens(self) -> Iterator[Token]:
        if not self._echo:
            return
        for index, (token, text) in enumerate(zip(self._echoed.tokens, self._echoed.pieces(), strict=True)):
            logprob = None if self._prompt_log is None else self._prompt_log.logprob(index)
            yield Token(token, text, "prompt", logprob)

    def _text_chunks(self, final: bool) -> Iterator[dict[str, Any]]:
        for text, first, count in self._assembler.take(final):
            self._show(first + count)
            yield self._chunk(text, self._logprobs(first, first + count), None)

    def _show(self, end: int) -> None:
        """Report the new tokens before `end`, whose text is handed out now, to the watch."""
        if self._watch is not None:
            start, self._num_shown = self._num_shown, end
            self._watch.show(zip(self._assembler.tokens[start:end], self._origins[start:end], strict=True))

    def _text_tokens(self, waiting: collections.deque[_Known], final: bool) -> Iterator[Token]:
        for text, first, count in self._assembler.take(final):
            *without_text, last = self._assembler.tokens[first : first + count]
            for token in without_text:
                yield Token(token, "", *waiting.popleft())
            yield Token(last, text, *waiting.popleft())

    # Responses

    def _chunk(self, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
        choice = {"text": text, "index": 0, "logprobs": logprobs, "finish_reason": finish_reason}
        return {**self._head(), "choices": [choice]}

    def _response(self) -> dict[str, Any]:
        num_prompt, num_generated = len(self._prompt_tokens), self._assembler.num_tokens
        text = self._assembler.text()
        self._show(num_generated)
        logprobs = self._logprobs(0, num_generated)
        if self._echo:
            text = self._prompt_text + text
            of_prompt = self._prompt_logprobs()
            if logprobs is not None and of_prompt is not None:
                logprobs = {name: of_prompt[name] + logprobs[name] for name in logprobs}
        return {
            **self._chunk(text, logprobs, self._finish_reason),
            "usage": {
                "prompt_tokens": num_prompt,
                "completion_tokens": num_generated,
                "total_tokens": num_prompt + num_generated,
                **self._prediction_usage(),
            },
        }

    def _prediction_usage(self) -> dict[str, Any]:
        if self._call.prediction is None or not self._generation.has_begun:
            return {}
        return prediction_usage(self._generation.tally().stats(), self._origins.count("lookup"))

    def _head(self) -> dict[str, Any]:
        return {"id": self._id, "object": "text_completion", "created": self._created, "model": self._model_name}

    def _logprobs(self, first: int, end: int) -> dict[str, Any] | None:
        if self._log is None:
            return None
        # Tokens that belong to a stop string have the end of the text as their offset.
        most = len(self._assembler.text()) if self._finish_reason == "stop" else None
        offsets = [offset if most is None else min(offset, most) for offset in self._assembler.offsets[first:end]]
        return self._log.entries(first, end, [len(self._prompt_text) + offset for offset in offsets])

    def _prompt_logprobs(self) -> dict[str, Any] | None:
        log = self._prompt_log
        return None if log is None else log.entries(0, len(log), self._echoed.offsets)

    @functools.cached_property
    def _prompt_text(self) -> str:
        if isinstance(self._prompt, str):
            return self._prompt
        return self._llama.detokenize(self._read_tokens, special=True).decode("utf-8", errors="ignore")

    @functools.cached_property
    def _echoed(self) -> Echo:
        """The prompt as ``echo`` repeats it. If the prompt was given as text, a BOS put before it is left out."""
        tokens = token_ids(self._read_tokens, "the prompt", self._model.n_vocab).tolist()
        if isinstance(self._prompt, str):
            place = place_of_prompt(self._llama, self._prompt, self._suffix, len(tokens))
            echo = echo_of_text(self._model, self._prompt, tokens[place])
            return echo.between(tokens[len(leading_tokens(self._llama)) : place.start], tokens[place.stop :])
        if has_own_tokenizer(self._llama):
            return echo_of_tokens(self._model, tokens)
        return echo_of_text(self._model, self._prompt_text, tokens)

    # Limits and caches

    def _room_for(self, max_tokens: int | None) -> int:
        room = self._llama.n_ctx() - len(self._prompt_tokens)
        if room <= 0:
            raise ValueError(
                f"Requested tokens ({len(self._prompt_tokens)}) exceed context window of {self._llama.n_ctx()}: "
                "shorten the prompt, or create the Llama with a larger n_ctx (-c)"
            )
        wanted = _checked_max_tokens(max_tokens)
        return min(wanted, room) if wanted > 0 else room

    def _warn_double_bos(self) -> None:
        bos = self._llama.token_bos()
        if self._prompt_tokens[:2] == [bos, bos]:
            text = self._model.piece(bos, special=True).decode("utf-8", errors="replace")
            warn(
                f'Detected duplicate leading "{text}" in prompt, this will likely reduce response quality, '
                "consider removing it...",
                RuntimeWarning,
            )

    def _load_cached_state(self) -> None:
        llama = self._llama
        if not llama.cache or not self._call.slot.is_alone:
            return
        try:
            state = llama.cache[self._prompt_tokens]
        except KeyError:
            return
        of_cache = llama.longest_token_prefix(state.input_ids[: state.n_tokens].tolist(), self._prompt_tokens)
        if of_cache > llama.longest_token_prefix(llama._input_ids.tolist(), self._prompt_tokens):
            seed = llama._seed  # load_state() sets the seed of the saved text, which this text must not get
            # A state in a cache on disk may come from another library. Such a state is ignored.
            with contextlib.suppress(StateError):
                llama.load_state(state)
            llama._seed = seed

    def _save_cached_state(self) -> None:
        # A cache finds a state by its tokens. Images have no tokens, so states of prompts with images are not saved.
        is_found = len(self._read_tokens) == len(self._prompt_tokens)
        if self._llama.cache and is_found and self._call.slot.is_alone and not self._call.is_prompt_only:
            self._llama.cache[self._prompt_tokens + self._assembler.tokens] = self._llama.save_state()


def _checked_max_tokens(value: Any) -> int:
    """The limit as an int; 0 for as many tokens as fit. As in llama_cpp, it may be a float with an integer value."""
    if value is None:
        return 0
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return checked_index("max_tokens", value, "an int, or None for as many as fit")


def _checked_logprobs(value: Any, n_vocab: int) -> int | None:
    """How many alternatives to give for each token, at most n_vocab; None for no log-probabilities."""
    if value is None or isinstance(value, bool):  # chats give a bool, which llama_cpp takes as a number
        return None if value is None else int(value)
    return min(
        n_vocab, checked_index("logprobs", value, "a whole number: how many alternatives to give for each token")
    )
