"""Many texts of a Llama at once: threads that use the engine's slots, and the outcome of each text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .outcomes import Outcome, Outcomes, arguments_of, takes_the_model_alone
    from .progress import progress_bar
    from .runner import Job, Runner
    from .threads import Line

__all__ = ["Job", "Line", "Outcome", "Outcomes", "Runner", "arguments_of", "progress_bar", "takes_the_model_alone"]

_EXPORTS = {
    "outcomes": ("Outcome", "Outcomes", "arguments_of", "takes_the_model_alone"),
    "progress": ("progress_bar",),
    "runner": ("Job", "Runner"),
    "threads": ("Line",),
}
_WHERE = {name: module for module, names in _EXPORTS.items() for name in names}


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used: the server needs no progress bar.
    from importlib import import_module

    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_WHERE[name]}", __name__), name)
