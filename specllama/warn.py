"""Warnings that name the line of the user's code that led to them."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from pathlib import Path

import llama_cpp

_PACKAGES = (Path(__file__).parent, Path(llama_cpp.__file__).parent)
# contextlib is skipped, too: it stands between a `with` statement and our functions.
_INSIDE = (*(str(folder) + os.sep for folder in _PACKAGES), contextlib.__file__)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn at the line of the user's code that led here. Lines of this package and of llama_cpp are skipped."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_INSIDE):
        frame, level = frame.f_back, level + 1
    with contextlib.suppress(ValueError):  # stderr is closed
        warnings.warn(message, category, stacklevel=level)
