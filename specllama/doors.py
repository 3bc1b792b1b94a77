"""Doors: the names that a folder exports. A module is imported when one of its names is first used.

So the command line has limits and rules without loading libllama, which takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any


def opened(package: str, exports: Mapping[str, Iterable[str]]) -> Callable[[str], Any]:
    """The function ``__getattr__`` of a package.

    Args:
        package: its name.
        exports: by the names of its modules, the names that they export.
    """
    where = {name: module for module, names in exports.items() for name in names}

    def found(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f".{where[name]}", package), name)

    return found
