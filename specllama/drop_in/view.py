"""What one call asks for beside llama_cpp's arguments, and a Llama that knows it, for llama_cpp's chat handlers."""

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
    """How the answer of a chat is read: ``chat_answers.ChatAnswer``."""

    shown: frozenset[int]

    def begins_behind(self, model: Model, prompt: Sequence[int], grammar: Any) -> Any:
        """Looks at the prompt, and gives the grammar of what comes behind it."""

    def follow(self) -> Callable[[bytes], bool] | None:
        """What is told each piece of the text, and says whether the answer is over; None if nothing in it ends it."""


@dataclasses.dataclass(frozen=True)
class Call:
    """What one call asks for: the argument ``call`` of Llama's methods that generate. `call_on` makes one.

    Attributes:
        slot: where its texts are.
        options: how to speculate.
        watch: who hears of its texts, and may stop them.
        schemas: of tools, by the text of the grammar that llama_cpp makes of one.
        is_prompt_only: nothing is to be generated, to which ``max_tokens=0`` would mean no limit.
        penalty_last_n: how many last tokens the penalties see; None for the Llama's ``last_n_tokens_size``.
        knows_what_is_ignored: the user has been told what of a chat cannot be enforced, or has no effect.
        token_bytes: where the bytes of tokens are noted by the texts that stand for them in log-probabilities.
        min_tokens: how many tokens each text has at least.
        prediction: what each text is expected to be.
        asked: arguments of a chat, which its handler may leave out when it asks for a completion.
        answer: how the answer of a chat is read.
        chat_handler: what makes the prompt of a chat; None: the Llama's own.
        keeps_thoughts: thoughts stay in the text of a chat's answer.
        continued: puts what the answer of a chat begins with behind its prompt.
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
    chat_handler: Callable[..., Any] | None = None
    keeps_thoughts: bool = False
    continued: Callable[[bytes], bytes] | None = None

    @property
    def listener(self) -> Listener:
        """The watch, or nobody."""
        return self.watch or SILENT


class EngineLlama(BaseLlama):
    """A llama_cpp.Llama over an engine, as far as this room needs to know it.

    Attributes:
        engine: what generates.
        position: where the text of its own context is.
    """

    engine: Engine
    position: Position

    @property
    def _call(self) -> Call:
        """What a call asks for, where none is under way."""
        return Call(self.engine.own, self.engine.account.options)


class View:
    """Stands for a Llama in a chat handler of llama_cpp's, which can be given no ``call``.

    It knows no more than the Llama's methods: these run with it as ``self``.
    """

    __slots__ = ("__weakref__", "_call", "_llama")
    _llama: Any
    _call: Any

    def __init__(self, llama: EngineLlama, call: Call | None) -> None:
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
        """What makes the prompt of a chat."""
        return self._call.chat_handler or self._llama.chat_handler

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """As the Llama does. Chat handlers have their prompts tokenized."""
        continued = None if self._call is None else self._call.continued
        tokens: list[int] = self._llama.tokenize(text if continued is None else continued(text), add_bos, special)
        return tokens

    @property  # type: ignore[misc]
    def __class__(self) -> type:  # so that `super()` and `isinstance` take it for the Llama
        return type(self._llama)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the Llama is called."""
        return self._llama.__call__.__func__(self, *args, **kwargs)


def llama_of(given: Any) -> Any:
    """The Llama that a view stands for; anything else as it is."""
    return object.__getattribute__(given, "_llama") if issubclass(type(given), View) else given


def call_on(llama: EngineLlama, **changes: Any) -> Call:
    """What a call asks for that differs from that of the Llama, or of the view.

    Args:
        llama: one of them.
        changes: fields of ``Call``.
    """
    return dataclasses.replace(llama._call, **changes)


def run(llama: EngineLlama, slot: Slot, generate: Callable[[], Any]) -> Any:
    """What a function generates at a Llama's slot, with nobody else there. A stream is read likewise.

    Raises:
        BusyError: another thread is generating there.
    """
    with slot.exclusive():
        result = generate()
    return _exclusively(llama, slot, result) if isinstance(result, Iterator) else result


def _exclusively(llama: EngineLlama, slot: Slot, items: Iterator[_Item]) -> Iterator[_Item]:
    """Reads a stream, with nobody else at the Llama's slot while it makes an item.

    It holds the Llama: the stream may drop the last other name for it, and freed in here it could not be closed.
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
        close = getattr(items, "close", None)
        if close is not None:
            close()
