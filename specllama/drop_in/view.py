"""A call: what it asks for besides llama_cpp's arguments, and how that passes through llama_cpp's chat handlers."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from specllama.engine.engine import Engine
from specllama.engine.listener import SILENT, Listener
from specllama.engine.model import Model
from specllama.engine.options import Options
from specllama.engine.position import Position
from specllama.engine.slot import Slot
from specllama.grammars.schema import SchemaGrammar

from .base_class import BaseLlama
from .watch import Watch

_Item = TypeVar("_Item")


class Answer(Protocol):
    """Reads the answer of a chat: ``chat_answers.ChatAnswer``."""

    shown: frozenset[int]

    def begins_behind(self, model: Model, prompt: Sequence[int], grammar: Any) -> Any:
        """Look at the prompt. Returns the grammar of the answer."""

    def completed(self, reason: str) -> None:
        """A completion has ended for this reason: ``stop`` or ``length``."""

    def follow(self) -> Callable[[bytes], bool] | None:
        """A function that is given each piece of the text and returns whether it ends the answer; None if none can."""


class Prompt(Protocol):
    """Makes the prompt of a chat: ``chat_prompt.ChatPrompt``."""

    @property
    def handler(self) -> Callable[..., Any]:
        """The chat handler."""

    def tokens(self, llama: BaseLlama, rendered: bytes, add_bos: bool, special: bool) -> list[int]:
        """The tokens of what the handler has rendered."""


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call of a Llama's generating methods asks for: their argument ``call``. `call_on` makes one.

    Attributes:
        slot: the slot that decodes its texts.
        options: how to speculate.
        watch: is told of its texts, and can stop them.
        schemas: our grammars of tools, by the text of the grammar that llama_cpp makes for each of them.
        is_prompt_only: nothing is to be generated. (In llama_cpp, ``max_tokens=0`` means no limit.)
        penalty_last_n: how many of the last tokens the penalties see; None for the Llama's ``last_n_tokens_size``.
        knows_what_is_ignored: the user was told already which parts of a chat have no effect.
        token_bytes: a dict to fill with the bytes of tokens, by their texts in log-probabilities.
        min_tokens: the least number of tokens in each text.
        prediction: the text that is expected.
        asked: arguments of a chat that its handler may not pass on to the completion.
        answer: reads the answer of a chat.
        prompt: makes the prompt of a chat; None outside of chats.
        keeps_thoughts: thoughts stay in the text of a chat's answer.
    """

    slot: Slot
    options: Options
    watch: Watch | None = None
    schemas: Mapping[str, SchemaGrammar] = dataclasses.field(default_factory=dict)
    is_prompt_only: bool = False
    penalty_last_n: int | None = None
    knows_what_is_ignored: bool = False
    token_bytes: dict[str, bytes] | None = None
    min_tokens: int = 0
    prediction: str | None = None
    asked: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    answer: Answer | None = None
    prompt: Prompt | None = None
    keeps_thoughts: bool = False

    @property
    def listener(self) -> Listener:
        """The watch, or a listener that does nothing."""
        return self.watch or SILENT


class EngineLlama(BaseLlama):
    """A ``llama_cpp.Llama`` over an engine, with the attributes that this folder needs.

    Attributes:
        engine: the engine that generates.
        position: the state of the text in the Llama's own context.
    """

    engine: Engine
    position: Position

    @property
    def _call(self) -> Call:
        """The call of a method that was given none."""
        return Call(self.engine.slot, self.engine.account.options)


class View:
    """A stand-in for a Llama in one of llama_cpp's chat handlers.

    It carries a ``call``, which a handler cannot pass on.

    All methods and attributes are the Llama's. The methods run with the view as ``self``.
    """

    __slots__ = ("__weakref__", "_call", "_llama")
    _llama: Any
    _call: Any

    def __init__(self, llama: EngineLlama, call: Call) -> None:
        object.__setattr__(self, "_llama", llama)
        object.__setattr__(self, "_call", call)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._llama, name)
        if isinstance(found, types.MethodType) and found.__self__ is self._llama:
            return types.MethodType(found.__func__, self)
        return found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._llama, name, value)

    @property
    def chat_handler(self) -> Any:
        """The handler that makes the prompt of a chat."""
        prompt = self._call.prompt
        return self._llama.chat_handler if prompt is None else prompt.handler

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Tokenize as the Llama does. A handler tokenizes its prompt here."""
        prompt = self._call.prompt
        tokens: list[int] = (
            self._llama.tokenize(text, add_bos, special)
            if prompt is None
            else prompt.tokens(self._llama, text, add_bos, special)
        )
        return tokens

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that `super()` and `isinstance` treat the view as the Llama
        return type(self._llama)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the Llama, with the view as ``self``."""
        return self._llama.__call__.__func__(self, *args, **kwargs)


def llama_of(given: Any) -> Any:
    """The Llama behind a view; any other object unchanged."""
    return object.__getattribute__(given, "_llama") if issubclass(type(given), View) else given


def call_on(llama: EngineLlama, **changes: Any) -> Call:
    """A call that differs from the Llama's or view's own one.

    Args:
        llama: a Llama or a view.
        changes: the fields of ``Call`` that differ.
    """
    return dataclasses.replace(llama._call, **changes)


def run(llama: EngineLlama, slot: Slot, generate: Callable[[], Any]) -> Any:
    """Generate at a Llama's slot while no other thread uses it.

    Args:
        llama: the Llama.
        slot: the slot.
        generate: the function to call. If it returns an iterator, each of its items is made alone at the slot, too.

    Raises:
        BusyError: another thread is generating at this slot.
    """
    with slot.exclusive():
        result = generate()
    return _exclusively(llama, slot, result) if isinstance(result, Iterator) else result


def _exclusively(llama: EngineLlama, slot: Slot, items: Iterator[_Item]) -> Iterator[_Item]:
    """The items of a stream, each made while no other thread uses the slot.

    `llama` keeps the Llama alive: the stream may drop the last other reference, and the Llama cannot be closed while
    its slot is in use.
    """
    try:
        while True:
            with slot.exclusive():
                try:
                    item = next(items)
                except StopIteration:
                    return
            yield item
    finally:
        getattr(items, "close", lambda: None)()
