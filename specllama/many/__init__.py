"""Many texts of a Llama at once: threads that use the engine's slots, and the outcome of each text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specllama.doors import opened

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
__getattr__ = opened(__name__, _EXPORTS)
