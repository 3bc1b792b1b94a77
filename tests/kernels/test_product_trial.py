"""The trial of a buffer type by small products: what it says of types that are right, wrong, or not there."""

from __future__ import annotations

import array
import ctypes
import sys
from collections.abc import Iterator

import pytest
from llama_cpp import _logger
from llama_cpp import llama_cpp as bindings

from specllama.backend import _product_trial as products
from specllama.backend.ggml import CpuBackend
from specllama.backend.trial import Trial, tried

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="AMX is looked for on Linux only")

LIBRARY = bindings._lib._name


@pytest.fixture(autouse=True)
def _heard_again() -> Iterator[None]:
    """Behind a trial in this very process, ggml speaks to llama_cpp again."""
    yield
    bindings.llama_log_set(_logger.llama_log_callback, ctypes.c_void_p(0))


@pytest.fixture
def buffer_type() -> str:
    """One that is right here: repacked weights, as most processors have them."""
    types = CpuBackend(bindings._lib).extra_buffer_types()
    if "CPU_REPACK" not in types:
        pytest.skip(f"this llama.cpp repacks no weights: it has {list(types)}")
    return "CPU_REPACK"


def test_one_that_is_right(buffer_type: str) -> None:
    assert products.main(LIBRARY, buffer_type) == ""


def test_it_is_one_in_a_child(buffer_type: str) -> None:
    assert tried("backend._product_trial", [LIBRARY, buffer_type], key={"test": "right"}) == Trial(True, "")


def test_one_that_is_not_there() -> None:
    found = tried("backend._product_trial", [LIBRARY, "NONE_SUCH"], key={"test": "not there"})
    assert found == Trial(False, "ggml has no buffer type NONE_SUCH here")


def test_no_library() -> None:
    found = tried("backend._product_trial", ["/nowhere/libllama.so", "AMX"], key={"test": "no library"})
    assert not found.ok and found.reason.startswith("it ended with exit code 1: OSError")


class Wrong(products.Products):
    """Every product by a buffer type is changed."""

    factor, addend = 1.0, 0.0

    def of(self, kind: int, columns: int, buffer_type: int | None) -> array.array[float] | None:
        found = super().of(kind, columns, buffer_type)
        if found is None or buffer_type is None:
            return found
        return array.array("f", [x * self.factor + self.addend for x in found])


@pytest.mark.parametrize(
    ("factor", "addend", "reason"),
    [
        (1.0001, 0.0, ""),
        (0.0, 0.0, "are off by 1 of their size"),
        (-1.0, 0.0, "are off by 2 of their size"),
        (float("nan"), 0.0, "are off by nan of their size"),
        (1.0, float("inf"), "are off by inf of their size"),
        (1.2, 0.0, "are off by 0.2 of their size"),
    ],
)
def test_one_that_is_wrong(
    buffer_type: str, factor: float, addend: float, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Wrong, "factor", factor)
    monkeypatch.setattr(Wrong, "addend", addend)
    monkeypatch.setattr(products, "Products", Wrong)
    found = products.main(LIBRARY, buffer_type)
    assert found.endswith(reason) and bool(found) == bool(reason)


def test_one_that_takes_nothing(buffer_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_TYPES", {"IQ1_S": 19})
    assert products.main(LIBRARY, buffer_type) == "the buffer type CPU_REPACK takes none of IQ1_S"
