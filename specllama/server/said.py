"""Logs which parts of clients' requests are left out here. Each part is logged once."""

from __future__ import annotations

import logging

_log = logging.getLogger("specllama.server")
_MOST = 100  # lines in all; clients could send any number of different names
_said: set[str] = set()


def say_once(text: str) -> None:
    """Writes a line, unless it was written before."""
    if text not in _said and len(_said) < _MOST:
        _said.add(text)
        _log.warning("%s", text)
