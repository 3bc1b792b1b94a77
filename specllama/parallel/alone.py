"""Which texts take the model alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def takes_the_model_alone(arguments: Mapping[str, Any]) -> bool:
    """Whether a place would refuse the text, see ``Session.require_alone``.

    Args:
        arguments: those of ``create_completion`` or ``create_chat_completion``. They may be wrong.
    """
    scores_prompt = arguments.get("echo") and arguments.get("logprobs") is not None
    return bool(arguments.get("mirostat_mode") or scores_prompt)
