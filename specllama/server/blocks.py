"""Splits the stream of a chat into blocks: thoughts, texts and calls. Each block ends before the next one begins."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from .job import Item

Kind = Literal["thought", "text", "call"]
_KINDS: dict[str, Kind] = {"reasoning_content": "thought", "content": "text"}
READ = {"stream": True, "stream_options": {"include_usage": True}, "timings_per_token": True, "return_origins": True}
"""Fields that a chat request must have so that ``Blocks`` can read its answer."""
_OTHER_FIELDS = ("timings", "usage", "warnings", "stopping_word")


@dataclasses.dataclass
class Block:
    """A part of an answer.

    Attributes:
        kind: thought, text or call.
        index: how many blocks come before it.
        text: the text so far; for a call, its arguments.
        name: the name of the called tool.
        known_as: the id of the call.
        logprobs: the log-probabilities of a text's tokens, in the form of chats, if they were asked for.
    """

    kind: Kind
    index: int
    text: str = ""
    name: str = ""
    known_as: str = ""
    logprobs: list[Any] = dataclasses.field(default_factory=list)


Step = tuple[Literal["begin", "more", "end"], Block, str, list[Any]]
"""A change of a block: begin, more (text) or end; the block; the new text; and its tokens' log-probabilities."""


class Blocks:
    """Reads the chunks of a stream.

    Attributes:
        all: the blocks so far.
        num_thought: number of tokens in thoughts.
        is_cut_off: whether the answer reached its maximum length.
        other_fields: the latest ``timings``, ``usage``, ``warnings`` and ``stopping_word`` of the chunks.
    """

    def __init__(self) -> None:
        self.all: list[Block] = []
        self.num_thought = 0
        self.is_cut_off = False
        self.other_fields: Item = {}
        self._calls = -1  # the index of the latest call
        self._call: Block | None = None  # the block of the latest call

    def read(self, chunk: Item) -> Iterator[Step]:
        """Yields the steps that a chunk makes."""
        self.other_fields.update({name: chunk[name] for name in _OTHER_FIELDS if name in chunk})
        for choice in chunk["choices"]:  # the chunk with the usage has no choices
            delta = choice["delta"]
            self.is_cut_off = self.is_cut_off or choice["finish_reason"] == "length"
            if delta.get("reasoning_content"):
                self.num_thought += len(chunk.get("tokens", ()))
            calls = delta.get("tool_calls") or ()
            # A delta does not say the order of its parts. It must be: the rest of the call that has begun, then text,
            # then further calls.
            begun = self._calls
            for call in calls:
                if call["index"] == begun:
                    yield from self._called(call)
            for field, kind in _KINDS.items():
                if delta.get(field):
                    yield from self._more(kind, delta[field], choice["logprobs"])
            for call in calls:
                if call["index"] != begun:
                    yield from self._called(call)

    def end(self) -> Iterator[Step]:
        """Ends the last block at the end of the stream."""
        if self.all:
            yield "end", self.all[-1], "", []

    def _more(self, kind: Kind, text: str, logprobs: Any) -> Iterator[Step]:
        if not self.all or self.all[-1].kind != kind:
            yield from self._begin(Block(kind, len(self.all)))
        scores = logprobs["content"] if logprobs and kind == "text" else []
        block = self.all[-1]
        block.text += text
        block.logprobs += scores
        yield "more", block, text, scores

    def _called(self, call: Any) -> Iterator[Step]:
        function = call["function"]
        if self._call is None or call["index"] != self._calls:
            self._calls = call["index"]
            self._call = Block("call", len(self.all), name=function["name"], known_as=call["id"])
            yield from self._begin(self._call)
        if function["arguments"]:
            self._call.text += function["arguments"]
            yield "more", self._call, function["arguments"], []

    def _begin(self, block: Block) -> Iterator[Step]:
        yield from self.end()
        self.all.append(block)
        yield "begin", block, "", []
