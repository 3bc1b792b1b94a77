"""The subcommands, one module for each. `add_parser` declares the arguments, and `run` returns the exit code.

These modules import nothing slow at their top, so that `specllama --help` answers at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
