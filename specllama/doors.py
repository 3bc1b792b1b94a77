"""Doors: the names that a folder exports. A module is imported when one of its names is first used.

So the command line can import limits and names of rules without loading libllama, which takes most of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any


def opened(
    package: str, exports: Mapping[str, Iterable[str]], renamed: Mapping[str, tuple[str, str]] = MappingProxyType({})
) -> Callable[[str], Any]:
    """Make the function ``__getattr__`` of a package.

    Args:
        package: the package's name.
        exports: the names that each module of the package exports, by the module's name.
        renamed: further names that the package exports, each with its module and its name in that module.
    """
    where = {name: (module, name) for module, names in exports.items() for name in names} | dict(renamed)

    def found(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, original = where[name]
        return getattr(import_module(f".{module}", package), original)

    return found
