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
MACHINE = os.environ.get("MACHINE", "")  # a folder of docs/data/: a second machine's, beside that of most figures
DIGITS = 5  # of a number: more is noise, and makes files large
KEPT = (
    *("num_prompt_tokens", "num_tokens", "total_seconds", "tokens_per_second"),
    *("acceptance_rate", "mean_acceptance_length", "per_drafter"),
)  # of a run's statistics
MEASURED = ("cpp", "specllama", "scripts", "CMakeLists.txt")  # a change there is another program than the commit's


def keep(name: str, found: Mapping[str, Any]) -> None:
    """Write a measurement, which has its ``machine``, as JSON.

    Args:
        name: of the file, without its ending.
        found: ready for JSON.
    """
    if "machine" not in found:
        raise ValueError(f"{name} does not say on which machine it was measured")
    folder = DATA / MACHINE
    folder.mkdir(parents=True, exist_ok=True)
    content = {"commit": commit(), **_rounded(_shortened(found))}
    (folder / f"{name}.json").write_text(json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def commit() -> str:
    """What the sources are, as git names it; with a ``+`` if they were changed since."""
    name = _git("rev-parse", "--short=12", "HEAD").stdout.strip()
    return name + "+" * bool(_git("diff", "--quiet", "HEAD", "--", *MEASURED).returncode)


def _git(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)


def _shortened(found: Mapping[str, Any]) -> dict[str, Any]:
    """With few statistics of each run: all of them are most of a file, and no table shows them."""
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
    """Keep what comes on stdin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="of the file in docs/data/, without .json")
    keep(parser.parse_args().name, json.load(sys.stdin))


if __name__ == "__main__":
    main()
