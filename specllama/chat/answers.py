"""Reads the answers of chats: separates thoughts and calls of tools, in the chat template's form, from the text.

Reading does not change which tokens are generated.
"""

from __future__ import annotations

import codecs
import functools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.logprobs import add_bytes
from specllama.engine.model import Model
from specllama.engine.vocabulary import Gbnf
from specllama.grammars.schema import SchemaGrammar

from .arguments import CHOICES, left_out_by_handlers, with_left_out
from .forced_calls import ForcedCalls, begun_calls, free_calls, special_token, tools_of
from .formats.format import Format
from .formats.kinds import read_answer, taught_by
from .formats.reading import Delta, Reader, Reading
from .formats.thinking import is_closed, is_open
from .messages import template_of
from .prescribed import Prescribed, free_behind

_LAST = 8  # tokens at the end of a prompt, in which the marks that begin or end a thought are looked for


class ChatAnswer:
    """Reads the answer of one chat.

    Args:
        llama: the Llama that answers.
        chat: the arguments of ``create_chat_completion``.
        forced: the calls that the answer must consist of; None if no call is forced.
        parallel: whether the answer may have more than one call.
        keeps_thoughts: whether thoughts stay in the text.
        may_think: whether the model may begin a thought by itself, if a grammar prescribes the answer.
        schemas: our grammars of tools. Each replaces a grammar of llama_cpp's chat handlers, whose text is the key.

    Attributes:
        shown_tokens: the special tokens whose names must be in the completion's text: they mark calls or thoughts.
        token_bytes: the bytes of tokens, by their labels in log-probabilities.
    """

    def __init__(
        self,
        llama: BaseLlama,
        chat: Mapping[str, Any],
        forced: ForcedCalls | None,
        *,
        parallel: bool = True,
        keeps_thoughts: bool = False,
        may_think: bool = True,
        schemas: Mapping[str, SchemaGrammar] | None = None,
    ) -> None:
        form, self._thoughts = taught_by(template_of(llama))
        self._tools = tools_of(chat) if chat.get("tool_choice") != "none" else {}
        self._form = form if form is not None and (self._tools or form.thoughts) else None
        if forced is not None:
            self._form, self._thoughts = forced.form, forced.thoughts
        self._llama = llama
        self._begun = begun_calls(llama, chat, self._form, parallel=parallel)
        self._calls = forced.calls if forced is not None else free_calls(llama, chat, self._form, parallel=parallel)
        self._must_call = forced is not None
        choices = chat.get("tool_choice"), chat.get("function_call")
        self._is_of_handler = forced is None and any(choice not in CHOICES for choice in choices)
        self._may_think = may_think
        self._parallel = parallel
        self._keeps_thoughts = keeps_thoughts
        self._is_free = True
        self._is_thinking = False
        self._is_cut_off = False
        self._left_out = left_out_by_handlers(llama, chat)
        self._schemas = schemas or {}
        self.shown_tokens = special_tokens(llama, self._form, self._thoughts)
        self.token_bytes: dict[str, bytes] = {}

    @property
    def is_read(self) -> bool:
        """Whether the answer may contain calls or thoughts, so that its text has to be read."""
        return self._form is not None or self._thoughts is not None

    def completed_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a chat handler gives ``create_completion``, with those it dropped, and our own grammar."""
        options = with_left_out(options, self._left_out)
        grammar = options.get("grammar")
        return {**options, "grammar": self._schemas.get(getattr(grammar, "_grammar", ""), grammar)}

    def begins_behind(self, model: Model, prompt: Sequence[int], grammar: Any) -> Any:
        """Note whether the end of the prompt has begun a thought, and make the answer's grammar for this beginning.

        Args:
            model: the model, for the text of its tokens.
            prompt: the prompt's tokens. Ids below 0 stand for images.
            grammar: the grammar of the answer, or None.

        Returns:
            The grammar or the constraint of the text after this prompt, or None.
        """
        last = b"".join(model.piece(token, special=True) for token in prompt[-_LAST:] if token >= 0)
        end, thoughts, form = last.decode("utf-8", "replace"), self._thoughts, self._form
        self._is_thinking = thoughts is not None and is_open(end, thoughts)
        if grammar is None:
            marks = None if form is None or form.thoughts else thoughts
            return self._begun and free_behind(self._begun, marks, is_thinking=self._is_thinking)
        self._is_free = self._must_call
        if self._is_of_handler:  # llama_cpp's handler treats the whole text as the arguments of a call
            return grammar
        if thoughts is not None and not self._is_thinking and (is_closed(end, thoughts) or not self._may_think):
            thoughts = None
        rule = Prescribed(() if form is None else form.answer, self._calls, self._must_call, thoughts)
        whole = rule.behind(grammar, functools.partial(special_token, self._llama), is_thinking=self._is_thinking)
        if isinstance(whole, Gbnf):
            # The user's grammar is parsed by itself first: if it is wrong, the error quotes the user's own text.
            Gbnf(grammar._grammar, grammar._root).over(model)
        return whole

    def completed(self, reason: str) -> None:
        """Note why a completion has ended: ``stop`` or ``length``."""
        self._is_cut_off = self._is_cut_off or reason == "length"

    def follow(self) -> Callable[[bytes], bool] | None:
        """A function that gets each piece of the text and returns whether the answer is over.

        If the answer may have only one call, it is over after this call.

        Returns:
            None if nothing in the text ends the answer.
        """
        if self._parallel or self._form is None or not self._tools or not self._is_free:
            return None
        reader, decoder = self._reader(), codecs.getincrementaldecoder("utf-8")(errors="ignore")

        def is_over(piece: bytes) -> bool:
            reader.feed(decoder.decode(piece))
            return reader.is_over

        return is_over

    def read(self, answer: Any) -> Any:
        """A chat's response or chunks, with thoughts and calls moved out of the text into their own fields."""
        if isinstance(answer, Iterator):
            return self._chunks(answer)
        add_bytes(answer, self.token_bytes)
        for choice in _choices(answer):
            self._tell_cut_off(choice)
        return self._response(answer) if self.is_read else answer

    def _tell_cut_off(self, choice: Any) -> None:
        """Give a call that was cut off the finish reason ``length``, as OpenAI does and llama_cpp's handlers do not."""
        if self._is_cut_off and choice.get("finish_reason") in ("tool_calls", "function_call"):
            choice["finish_reason"] = "length"

    def _reader(self) -> Reader:
        reading = Reading(self._tools, parallel=self._parallel, has_calls=self._form is not None)
        thoughts = None if self._keeps_thoughts else self._thoughts
        is_thinking = self._is_thinking and not self._keeps_thoughts
        # If a thought stays in the text, the reader does not look for its end, so a call may begin anywhere.
        is_free = self._is_free or (self._keeps_thoughts and self._calls is not None)
        parsing = read_answer(reading, self._form, thoughts, is_thinking=is_thinking, is_free=is_free)
        return Reader(reading, parsing)

    def _response(self, response: Any) -> Any:
        choices = []
        for choice in response["choices"]:
            message = choice["message"]
            if isinstance(message.get("content"), str) and not message.get("tool_calls"):
                reader = self._reader()
                found = _joined(reader.feed(message["content"]), reader.end())
                calls = [
                    {name: value for name, value in call.items() if name != "index"}
                    for call in found.pop("tool_calls", ())
                ]
                content = found.get("content") or (None if calls else "")
                message = {**message, **found, "content": content, **({"tool_calls": calls} if calls else {})}
                choice = {**choice, "message": message, "finish_reason": _reason(choice, bool(calls))}
            choices.append(choice)
        return {**response, "choices": choices}

    def _chunks(self, chunks: Iterator[Any]) -> Generator[Any, None, None]:
        """The chunks. Only the first part of a call has the call's id, type and name, as OpenAI's clients expect.

        llama_cpp's handlers repeat id, type and name in each part, and OpenAI's clients would join the repeated texts.
        """
        named: set[Any] = set()
        read = _Chunks(self._reader()).read if self.is_read else lambda chunk: [chunk]
        try:
            for chunk in chunks:
                add_bytes(chunk, self.token_bytes)
                for choice in _choices(chunk):
                    _name_once(choice, named)
                    self._tell_cut_off(choice)
                yield from read(chunk)
        finally:
            getattr(chunks, "close", lambda: None)()


class _Chunks:
    """Reads the chunks of one answer.

    Args:
        reader: reads the text of the chunks.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._has_calls = False
        self._held: Any = None  # log-probabilities of text that is held back

    def read(self, chunk: Any) -> Iterator[Any]:
        """The chunks to send in place of this one."""
        choice = chunk["choices"][0]
        delta = choice["delta"]
        is_last = choice["finish_reason"] is not None
        if not is_last and not isinstance(delta.get("content"), str):
            yield chunk
            return
        found = self._reader.feed(delta.get("content") or "")
        found = _joined(found, self._reader.end()) if is_last else found
        self._has_calls = self._has_calls or "tool_calls" in found
        self._held = _with_logprobs_of(self._held, choice["logprobs"])
        if found:
            yield _chunk(chunk, found, self._held, None)
            self._held = None
        if is_last:
            yield _chunk(chunk, {}, self._held, _reason(choice, self._has_calls))


def special_tokens(llama: BaseLlama, form: Format | None, thoughts: Any) -> frozenset[int]:
    """The special tokens that mark calls or thoughts."""
    marks = [] if form is None else [*form.openings, *form.marks]
    marks += [piece for pieces in thoughts or () for piece in pieces]
    found = (special_token(llama, mark) for mark in marks)
    return frozenset(token for token in found if token is not None)


def _reason(choice: Any, has_calls: bool) -> Any:
    reason = choice["finish_reason"]
    return "tool_calls" if has_calls and reason == "stop" else reason


def _joined(first: Delta, last: Delta) -> Delta:
    """Join two deltas of a message into one."""
    joined = {**first}
    for name in ("reasoning_content", "content"):
        if name in last:
            joined[name] = first.get(name, "") + last[name]
    if "tool_calls" in last:
        calls = [*first.get("tool_calls", ())]
        for call in last["tool_calls"]:
            if calls and "id" not in call:
                function = calls[-1]["function"]
                function["arguments"] += call["function"]["arguments"]
            else:
                calls.append(call)
        joined["tool_calls"] = calls
    return joined


def _choices(item: Any) -> Any:
    """The choices of a response or a chunk; none if a handler that the user has written gives anything else."""
    return item.get("choices", ()) if isinstance(item, dict) else ()


def _name_once(choice: Any, named: set[Any]) -> None:
    """Remove the id, type and name from further parts of calls. The calls whose first part has come are in `named`."""
    delta = choice.get("delta") or {}
    older = delta.get("function_call")
    for call in (*(delta.get("tool_calls") or ()), *([{"function": older}] if older else [])):
        place = choice.get("index"), call.get("index"), call.get("id")
        if place in named:
            for part, name in ((call, "id"), (call, "type"), (call["function"], "name")):
                part.pop(name, None)
        named.add(place)


def _with_logprobs_of(held: Any, new: Any) -> Any:
    """Join the log-probabilities of tokens whose text was held back with those of the next tokens."""
    if held is None or new is None:
        return held or new
    return {**new, "content": [*held["content"], *new["content"]]}


def _chunk(chunk: Any, delta: Delta, logprobs: Any, reason: Any) -> Any:
    choice = {**chunk["choices"][0], "delta": delta, "logprobs": logprobs, "finish_reason": reason}
    return {**chunk, "choices": [choice]}
