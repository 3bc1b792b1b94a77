"""The parts of a message, some of which are text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TEXTS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
"""OpenAI's types of text parts, and for each the field that has the text."""


def text_of(part: Any) -> str | None:
    """The text of a part; None if the part is no text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get(TEXTS[kind]) if isinstance(kind, str) and kind in TEXTS else None
    return text if isinstance(text, str) else None


def other_parts(messages: Any) -> Iterator[str]:
    """The types of all parts that are no text. The messages may be malformed."""
    for message in messages if isinstance(messages, (list, tuple)) else ():
        content = message.get("content") if isinstance(message, Mapping) else None
        for part in content if isinstance(content, (list, tuple)) else ():
            if text_of(part) is None:
                yield str(part.get("type") if isinstance(part, Mapping) else part)
