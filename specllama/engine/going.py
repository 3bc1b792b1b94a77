"""What happens to an object that is closed when it goes, where it goes because the interpreter ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Protocol


class _Closable(Protocol):
    def close(self) -> None: ...


class ClosedWhenGone:
    """Closes itself when nobody holds it any more.

    While the interpreter ends, the names of modules are gone, and nobody reads what an error says. Then the process
    frees what could not be.
    """

    def __del__(self: _Closable, ends: Callable[[], bool] = sys.is_finalizing) -> None:
        """As if it were closed."""
        try:
            self.close()
        except BaseException:
            if not ends():
                raise
