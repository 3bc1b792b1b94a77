"""A training in a process of its own, which ends itself in the middle of a step.

`training_driver.py MODEL STEP [KIND]`: while STEP (``text``, ``states``, ``training``, ``behind``) is under way it gets
SIGKILL. With ``never`` it ends by itself. It prints what it heard as JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys

from specllama.training.train import Budget, trained

BUDGET = Budget(tokens=900, answer=32, parallel=2)
MIDDLE = 0.6


class Heard:
    """Hears of the steps, and ends the process in one of them."""

    def __init__(self, end: str) -> None:
        self.end = end
        self.first: dict[str, float] = {}
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        """Keep what is said."""
        self.notes.append(text)

    def done(self, step: str, done: int, total: int) -> None:
        """How far each step was when it began here."""
        name = step.split()[0]
        self.first.setdefault(name, done / total)
        if name == self.end and done >= MIDDLE * total:
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    heard = Heard(sys.argv[2])
    with trained(sys.argv[1], BUDGET, kind=(*sys.argv, "eagle3")[3], threads=1, progress=heard) as made:
        if heard.end == "behind":
            os.kill(os.getpid(), signal.SIGKILL)
        made.keep("Q8_0")
    sys.stdout.write(json.dumps(heard.first))
