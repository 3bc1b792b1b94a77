"""``python -m specllama``: the command, for whoever does not have its script on the PATH."""

from __future__ import annotations

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
