"""The packages that specllama serves as a plug-in or as their Llama."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import pytest


def imported(name: str) -> Any:
    """A module of such a package, whatever it warns of; the test is skipped where the package is missing."""
    package = name.partition(".")[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip(package, reason=f"{package} is not installed: it is in the extra plugins-test")
        return importlib.import_module(name)
