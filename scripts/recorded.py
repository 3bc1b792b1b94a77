"""Keeps what a measurement found under docs/data/, with the machine and the commit, for scripts/tables.py.

The other scripts use it with ``--record NAME``. For what a command prints as JSON:
``specllama bench ... -o json | python scripts/recorded.py NAME``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "docs" / "data"
MACHINE = os.environ.get("MACHINE", "")  # a folder in docs/data/ for the figures of another machine
DIGITS = 5  # significant digits of a number: more are noise, and make files large
KEPT = (
    *("num_prompt_tokens", "num_tokens", "total_seconds", "tokens_per_second"),
    *("acceptance_rate", "mean_acceptance_length", "per_drafter"),
)  # the statistics of a run that are kept
MEASURED = ("cpp", "specllama", "scripts", "CMakeLists.txt")  # changes here make another program than the commit's


def parser(description: str | None) -> argparse.ArgumentParser:
    """The parser of a script's arguments, with ``--record``."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--record", metavar="NAME", help="also write docs/data/NAME.json")
    return made


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Write a measurement as JSON.

    Args:
        name: the name of the file, without its ending.
        found: the measurement, ready for JSON. It has a ``machine``; otherwise a ValueError is raised.
    """
    if "machine" not in found:
        raise ValueError(f"{name} does not say on which machine it was measured")
    folder = DATA / MACHINE
    folder.mkdir(parents=True, exist_ok=True)
    content = {"commit": commit(), **_rounded(_shortened(found))}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def commit() -> str:
    """The short hash of the commit, with a ``+`` if the sources were changed since."""
    name = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
    return name + "+" * bool(_git("diff", "--quiet", "HEAD", "--", *MEASURED).returncode)


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def _shortened(found: Mapping[str, Any]) -> dict[str, Any]:
    """Keep only the statistics of runs that a table shows. All of them would be most of a file."""
    runs = [
        {**run, "stats": {name: value for name, value in run["stats"].items() if name in KEPT}}
        if "stats" in run
        else run
        for run in found.get("runs", [])
    ]
    return {**found, **({"runs": runs} if runs else {})}


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(one) for key, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list | tuple) else value


def main() -> None:
    """Keep the JSON that comes on stdin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the file in docs/data/, without .json")
    keep(parser.parse_args().name, json.load(sys.stdin))


if __name__ == "__main__":
    main()
