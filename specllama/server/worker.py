"""The threads that answer requests, and the line before them."""

from __future__ import annotations

import collections
import math
import time

from .errors import LineFullError, ShuttingDownError
from .job import Job, Work
from .threads import Threads

OUTCOMES = ("completed", "failed", "stopped", "refused")
"""How a request's work can end."""
_LONGEST_RETRY = 60


class Worker:
    """Runs jobs in the order in which they come. All methods but `close` are for the event loop's thread.

    In threads of its own: one that decodes gets OpenMP threads of its own. Of several texts at once none does, since
    their scheduler has a thread for that.

    Args:
        max_waiting: how many jobs may wait behind those that run.
        max_running: how many run at once.
    """

    def __init__(self, max_waiting: int, max_running: int = 1) -> None:
        self._max_waiting = max_waiting
        self.max_running = max_running
        self._threads = Threads(max_running, "specllama")
        self._jobs: dict[Job, float] = {}  # and when each began to wait
        self.closing = False
        """Whether no job is taken any more."""
        self._mean_seconds = 0.0
        self.outcomes = collections.Counter(dict.fromkeys(OUTCOMES, 0))
        """How many jobs ended in which way."""

    @property
    def num_running(self) -> int:
        """Jobs that have the model, or a slot of it."""
        return min(self.max_running, len(self._jobs))

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for it."""
        return max(0, len(self._jobs) - self.max_running)

    def start(self, work: Work) -> Job:
        """Queue some work.

        Raises:
            LineFullError: as many jobs wait as may.
            ShuttingDownError: `shut_down` was called.
        """
        if self.closing:
            self.outcomes["refused"] += 1
            raise ShuttingDownError
        if len(self._jobs) >= self.max_running + self._max_waiting:
            self.outcomes["refused"] += 1
            raise LineFullError(self.num_waiting, self._retry_after())
        job = Job(work)
        self._jobs[job] = time.monotonic()
        job.submit_to(self._threads, self._ended)
        return job

    def shut_down(self) -> None:
        """Stop all jobs, those that run within a round, and take no other."""
        self.closing = True
        for job in list(self._jobs):
            job.stop(ShuttingDownError())

    def close(self) -> None:
        """Wait until the model is free, after `shut_down`."""
        self._threads.shutdown()

    def _ended(self, job: Job) -> None:
        self.outcomes[job.outcome] += 1  # first: once the model is free, it has been counted
        seconds = time.monotonic() - self._jobs.pop(job)
        if job.outcome == "completed":
            self._mean_seconds = 0.8 * self._mean_seconds + 0.2 * seconds if self._mean_seconds else seconds

    def _retry_after(self) -> int:
        """Seconds. The time that jobs took, waiting included, is about the time until the line is as long again."""
        return max(1, min(_LONGEST_RETRY, math.ceil(self._mean_seconds)))
