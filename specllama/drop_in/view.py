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

from .base_class import BaseLlama
from .watch import Watch

_Item = TypeVar("_Item")


class ChatReader(Protocol):
    """What a chat makes of a completion: ``specllama.chat.answers.ChatAnswer``.

    Attributes:
        shown_tokens: the special tokens whose names are in the text that is read.
        token_bytes: is filled with the bytes of tokens, by their texts in log-probabilities.
    """

    shown_tokens: frozenset[int]
    token_bytes: dict[str, bytes]

    def completed_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a completion that a chat handler asks for, with those that it has not passed on."""

    def begins_behind(self, model: Model, prompt: Sequence[int], grammar: Any) -> Any:
        """Look at the prompt. Returns the grammar of the answer."""

    def completed(self, reason: str) -> None:
        """A completion has ended for this reason: ``stop`` or ``length``."""

    def follow(self) -> Callable[[bytes], bool] | None:
        """A function that is given each piece of the text and returns whether it ends the answer; None if none can."""


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call of a Llama's generating methods asks for: their argument ``call``. `call_on` makes one.

    Attributes:
        slot: the slot that decodes its texts.
        options: how to speculate.
        watch: is told of its texts, and can stop them.
        is_prompt_only: nothing is to be generated. (In llama_cpp, ``max_tokens=0`` means no limit.)
        penalty_last_n: how many of the last tokens the penalties see; None for the Llama's ``last_n_tokens_size``.
        knows_what_is_ignored: the user was told already which arguments have no effect.
        min_tokens: the least number of tokens in each text.
        prediction: the text that is expected.
        chat: reads the answer of a chat; None outside of chats.
        prompt_tokens: the prompt's tokens, if they are known already.
    """

    slot: Slot
    options: Options
    watch: Watch | None = None
    is_prompt_only: bool = False
    penalty_last_n: int | None = None
    knows_what_is_ignored: bool = False
    min_tokens: int = 0
    prediction: str | None = None
    chat: ChatReader | None = None
    prompt_tokens: list[int] | None = None

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


def exclusively(llama: EngineLlama, slot: Slot, items: Iterator[_Item]) -> Iterator[_Item]:
    """The items of a stream, each made while no other thread uses the slot.

    `llama` keeps the Llama alive: the stream may drop the last other reference, and the Llama cannot be closed while
    its slot is in use.

    Raises:
        BusyError: another thread is generating at this slot.
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
