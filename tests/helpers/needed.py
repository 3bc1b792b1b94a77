"""What a machine may lack: a test that needs it is skipped, or fails where a variable says that it must be there."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from typing import Any, NoReturn

import pytest

MODELS = "SPECLLAMA_REQUIRE_MODELS"
PACKAGES = "SPECLLAMA_REQUIRE_PACKAGES"
CHROMIUM = "SPECLLAMA_REQUIRE_CHROMIUM"
EMULATOR = "SPECLLAMA_REQUIRE_EMULATOR"


def missing(what: str, variable: str) -> NoReturn:
    """Says what is missing, in the one way or the other."""
    __tracebackhide__ = True  # the place that is reported is the test's
    if os.environ.get(variable) == "1":
        pytest.fail(f"{what} ({variable}=1)")
    pytest.skip(what, allow_module_level=True)


def imported(name: str) -> Any:
    """A module of a package that not everybody has, whatever it warns of. One that is here has to import."""
    __tracebackhide__ = True
    package = name.partition(".")[0]
    if importlib.util.find_spec(package) is None:
        extras = "specllama[test,plugins-test,train]"
        missing(f'{package} is not installed: it comes with `pip install "{extras}"`', PACKAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return importlib.import_module(name)
