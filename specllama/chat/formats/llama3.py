"""Calls as ``{"name": ..., "parameters": {...}}``, alone or after ``<|python_tag|>``: Llama 3.1 to 3.3.

`BARE` has no such tag, and ``arguments`` in place of ``parameters``. It is the form for forced calls of models whose
chat template teaches no form.
"""

from __future__ import annotations

from .format import Format, Written
from .json_calls import begun_object, call_object
from .reading import Parsing, Reading, closing

_TAG = "<|python_tag|>"


def _objects(reading: Reading, *, known_only: bool) -> Parsing[str | None]:
    """Read calls with semicolons between them.

    Returns the text that was read if the first one is no call, else None.
    """
    at = reading.at
    text = yield from call_object(reading, known_only=known_only)
    while text is None:
        at = reading.at
        if not (yield from closing(reading, ";")):
            return None
        if (yield from call_object(reading, known_only=known_only)) is not None:
            reading.content(reading.since(at))
            return None
    return text


def _tagged(reading: Reading, mark: str) -> Parsing[None]:
    text = yield from _objects(reading, known_only=False)
    if text is not None:
        reading.content(mark + text)


def _at_start(reading: Reading) -> Parsing[None]:
    text = yield from _objects(reading, known_only=True)
    if text is not None:
        reading.content(text)


def _before(name: str) -> str:
    return begun_object(name, "parameters")


LLAMA3 = Format(
    "llama3",
    lambda template: '"parameters": dictionary of argument name' in template,
    {_TAG: _tagged},
    at_start=_at_start,
    written=Written(lambda name: (_before(name),), ("}",), between=None, bare=_before, bare_behind=(_TAG,)),
)
BARE_WRITTEN = Written(lambda name: (begun_object(name),), ("}",), between=None)
BARE = Format("bare", lambda template: False, {}, at_start=_at_start, written=BARE_WRITTEN)
