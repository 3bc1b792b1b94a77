"""The subcommands, one module each: `add_parser` says what one takes, `run` does it and returns the exit code.

Nothing heavy is imported at the top of these modules, so that `specllama --help` answers at once.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]
