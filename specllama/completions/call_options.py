"""``num_draft_tokens``, ``verify`` and the samplers of one call, on their way through methods of the base class."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from specllama.engine.options import NumDraftTokens, Options
from specllama.engine.session import Session
from specllama.samplers import taken_from

_Item = TypeVar("_Item")

# The create_completion call that runs now, or whose stream is being read: of which Llama, and with which options.
_of_call: contextvars.ContextVar[tuple[Session, Options] | None] = contextvars.ContextVar(
    "specllama_options", default=None
)


def options_of_call(session: Session) -> Options:
    """The options of the Llama's call under way, or else its own. Within that call another Llama may be called."""
    call = _of_call.get()
    return call[1] if call is not None and call[0] is session else session.options


def call_with_options(
    session: Session,
    method: Callable[..., Any],
    num_draft_tokens: NumDraftTokens | None,
    verify: str | None,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Call a method of the base class that ends up in ``_create_completion``, which reads the options.

    Chat handlers in between have fixed signatures, and some only call it when their stream is read.
    """
    options = options_of_call(session).overridden(num_draft_tokens, verify, taken_from(kwargs))
    context = contextvars.copy_context()
    context.run(_of_call.set, (session, options))
    with session.exclusive():
        result = context.run(method, *args, **kwargs)
    return exclusively(session, result, context) if isinstance(result, Iterator) else result


def exclusively(
    session: Session, items: Iterator[_Item], context: contextvars.Context | None = None
) -> Iterator[_Item]:
    """Reads a stream, with nobody else at the Llama while it makes an item.

    Args:
        session: that of the Llama.
        items: the stream.
        context: in which it was created.
    """
    run = (context or contextvars.copy_context()).run
    try:
        while True:
            with session.exclusive():
                try:
                    item = run(next, items)
                except StopIteration:
                    return
            yield item
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            run(close)
