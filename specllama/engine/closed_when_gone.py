"""A base class for objects that close themselves when they are deleted, also while the interpreter ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


class ClosedWhenGone:
    """Closes itself when it is deleted.

    While the interpreter ends, the names of modules may be gone, so closing may fail. Such errors are dropped: the end
    of the process frees what was not freed.
    """

    def __del__(self: _Closable, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """Close the object."""
        try:
            self.close()
        except BaseException:
            if not ends():
                raise
