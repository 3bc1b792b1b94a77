"""``python -m specllama`` runs the command, also if its script is not on the PATH."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command line, as ``specllama.cli.main`` does. Ctrl-C has the same effect while ``cli`` is imported."""
    try:
        from .cli import main as run

        return run()
    except KeyboardInterrupt:
        print("specllama: interrupted", file=sys.stderr)  # noqa: T201  # as cli.py does
        return 130


if __name__ == "__main__":
    sys.exit(main())
