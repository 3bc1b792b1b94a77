"""Counts the lines of an input, and the lines that have an answer already."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from .answers import Answers
from .line import lines_of


@dataclasses.dataclass(frozen=True)
class Survey:
    """The work of a batch. It is known before a model is loaded."""

    num_lines: int
    """The number of lines that are not blank."""
    num_done: int
    """The number of lines that have an answer."""
    has_requests: bool
    """Whether a line without an answer is in OpenAI's format."""

    @classmethod
    def of(cls, path: Path, answers: Answers) -> Survey:
        """Read the input once.

        Raises:
            OSError: the input cannot be read.
            ValueError: the input has no line, or lacks a line that is answered.
        """
        others = dict(answers.keys)
        num_lines = num_done = 0
        has_requests = False
        first_problem: ValueError | None = None
        is_readable = False
        for line in lines_of(path):
            num_lines += 1
            first_problem = first_problem or line.problem
            is_readable = is_readable or line.problem is None
            if others.pop(bytes.fromhex(line.key), None) is not None:
                num_done += 1
            else:
                has_requests = has_requests or line.is_request
        if others:
            raise ValueError(
                f"{len(others)} of {len(answers.keys)} answers in the output, the first in its line "
                f"{min(others.values())}, are to lines that {path} does not have: give another --output, or the input "
                "as it was (lines may be added)"
            )
        if not num_lines:
            raise ValueError(f"{path} has no line: give a prompt, a chat or a request on each")
        if not is_readable:
            raise ValueError(
                f"none of the {num_lines} lines of {path} can be answered, the first because it is {first_problem}: "
                "give a JSON object with a prompt, a chat or a request on each"
            )
        return cls(num_lines, num_done, has_requests)
