"""Writes what an extension module has, with its types, for mypy and editors: ``stubs.py FOLDER MODULE``.

CMake calls it for each module that it has built in FOLDER; the stub is FOLDER/specllama/MODULE.pyi.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pybind11_stubgen


def main() -> None:
    """Write the stub."""
    folder, module = sys.argv[1:]
    package = types.ModuleType("specllama")  # the extension alone: what the package imports may not be installed yet
    package.__path__ = [folder]
    sys.modules["specllama"] = package
    # NumPy is not needed for a build.
    pybind11_stubgen.main([f"specllama.{module}", "--output-dir", folder, "--ignore-unresolved-names", "^numpy"])
    path = Path(folder, "specllama", f"{module}.pyi")
    stub = path.read_text(encoding="utf-8")
    stub = stub.replace("import collections.abc\n", "import collections.abc\nimport numpy\nimport numpy.typing\n", 1)
    # The tool takes the class Sequence for that of typing, which pybind11 never writes.
    stub = stub.replace("typing.Sequence", "Sequence")
    # A mapping takes keys of one type: a dict[int, float] is none of "what can be made an int".
    path.write_text(stub.replace("Mapping[typing.SupportsInt | typing.SupportsIndex", "Mapping[int"), encoding="utf-8")


if __name__ == "__main__":
    main()
