"""A `Call`: the options of a call that llama_cpp has no arguments for. A `View` takes them past its chat handlers."""

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
    """Turns a completion into a chat's answer: ``specllama.chat.answers.ChatAnswer`` does.

    Attributes:
        shown_tokens: the special tokens whose names are shown in the text that the chat reads.
        token_bytes: a dict that the completion fills: the bytes of tokens, by their labels in log-probabilities.
    """

    shown_tokens: frozenset[int]
    token_bytes: dict[str, bytes]

    def completed_options(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments that a chat handler gives ``create_completion``, and those that it was given but dropped."""

    def begins_behind(self, model: Model, prompt: Sequence[int], grammar: Any) -> Any:
        """Note whether the prompt's end has begun a thought. Returns the grammar of the answer, or None."""

    def completed(self, reason: str) -> None:
        """A completion has ended for this reason: ``stop`` or ``length``."""

    def follow(self) -> Callable[[bytes], bool] | None:
        """A function that gets each piece of text and returns whether the answer is over; None if no text ends it."""


@dataclasses.dataclass(frozen=True)
class Call:
    """Options of one call of a Llama's generating methods: their internal argument ``call``. `call_on` makes one.

    Attributes:
        slot: the slot that decodes the call's texts.
        options: how to speculate.
        watch: is told of the call's texts, and can stop them.
        is_prompt_only: nothing is to be generated. (In llama_cpp, ``max_tokens=0`` means no limit.)
        penalty_last_n: how many of the last tokens the penalties see; None for the Llama's ``last_n_tokens_size``.
        knows_what_is_ignored: the user was told already which arguments have no effect.
        min_tokens: the least number of tokens in each text.
        learns: whether a head may learn from the texts, if the Llama keeps what it can.
        prediction: the text that the caller expects, in which drafts are looked up; None for none.
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
    learns: bool = True
    prediction: str | None = None
    chat: ChatReader | None = None
    prompt_tokens: list[int] | None = None

    @property
    def listener(self) -> Listener:
        """The watch, or a listener that does nothing."""
        return self.watch or SILENT


class EngineLlama(BaseLlama):
    """A ``llama_cpp.Llama`` over an engine, with the attributes that `drop_in` needs: the base of `specllama.Llama`.

    Attributes:
        engine: the engine that generates.
        position: the state of the text in the Llama's own context.
    """

    engine: Engine
    position: Position

    @property
    def _call(self) -> Call:
        """The `Call` of a method that was not given one."""
        return Call(self.engine.slot, self.engine.account.options)


class View:
    """A stand-in for a Llama that is given to one of llama_cpp's chat handlers.

    It carries the ``call``, because the handler cannot pass a ``call`` on to the Llama's methods.

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
    """The Llama of a view; any other object is returned unchanged."""
    return object.__getattribute__(given, "_llama") if issubclass(type(given), View) else given


def call_on(llama: EngineLlama, **changes: Any) -> Call:
    """The call of a Llama or a view, with some fields changed.

    Args:
        llama: a Llama or a view.
        changes: the fields of ``Call`` that differ.
    """
    return dataclasses.replace(llama._call, **changes)


def exclusively(llama: EngineLlama, slot: Slot, items: Iterator[_Item]) -> Iterator[_Item]:
    """The items of a stream, each made while no other thread uses the slot.

    The argument `llama` keeps the Llama alive: the stream may drop the last other reference to it, and a Llama cannot
    be closed while its slot is in use.

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
