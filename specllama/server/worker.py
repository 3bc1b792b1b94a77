"""The model's one thread, and the line of requests before it."""

from __future__ import annotations

import collections
import concurrent.futures
import math
import time

from .errors import LineFullError, ShuttingDownError
from .job import Job, Work

_LONGEST_RETRY = 60


class Worker:
    """Runs one job at a time, first come first served. All methods are for the event loop's thread.

    A thread of its own, because each thread that decodes would get OpenMP threads of its own.

    Args:
        max_waiting: how many jobs may wait behind the one that runs.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._thread = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="specllama")
        self._jobs: dict[Job, float] = {}  # and when each began to wait
        self._closing = False
        self._mean_seconds = 0.0
        self.outcomes = collections.Counter({"completed": 0, "failed": 0, "stopped": 0, "refused": 0})
        """How many jobs ended in which way."""

    @property
    def num_running(self) -> int:
        """Jobs that have the model: 0 or 1."""
        return min(1, len(self._jobs))

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for it."""
        return max(0, len(self._jobs) - 1)

    @property
    def closing(self) -> bool:
        """Whether no job is taken any more."""
        return self._closing

    def start(self, work: Work) -> Job:
        """Queue some work.

        Raises:
            LineFullError: as many jobs wait as may.
            ShuttingDownError: `shut_down` was called.
        """
        if self._closing:
            self.outcomes["refused"] += 1
            raise ShuttingDownError
        if len(self._jobs) > self._max_waiting:
            self.outcomes["refused"] += 1
            raise LineFullError(self.num_waiting, self._retry_after())
        job = Job(work)
        self._jobs[job] = time.monotonic()
        job.submit_to(self._thread, self._ended)
        return job

    def shut_down(self) -> None:
        """Stop all jobs, the running one within a round, and take no other."""
        self._closing = True
        for job in list(self._jobs):
            job.stop(ShuttingDownError())

    def close(self) -> None:
        """Shut down, and wait until the model is free."""
        self.shut_down()
        self._thread.shutdown()

    def _ended(self, job: Job) -> None:
        self.outcomes[job.outcome] += 1  # first: once the model is free, it has been counted
        seconds = time.monotonic() - self._jobs.pop(job)
        if job.outcome == "completed":
            self._mean_seconds = 0.8 * self._mean_seconds + 0.2 * seconds if self._mean_seconds else seconds

    def _retry_after(self) -> int:
        """Seconds. The time that jobs took, waiting included, is about the time until the line is as long again."""
        return max(1, min(_LONGEST_RETRY, math.ceil(self._mean_seconds)))
