"""The threads that answer requests, and the queue before them."""

from __future__ import annotations

import collections
import math
import time

from specllama.many import Line

from .errors import LineFullError, ShuttingDownError
from .job import Job, Work

OUTCOMES = ("completed", "failed", "stopped", "refused")
"""How the work of a request can end."""
_LONGEST_RETRY = 60  # seconds: the most that Retry-After says


class Worker:
    """Runs jobs in the order in which they arrive. All methods but `close` are for the event loop's thread.

    Jobs run in threads of the worker, because a thread that decodes keeps OpenMP threads of its own. If several texts
    run at once, none of these threads decodes: the texts' scheduler has a thread that decodes for all.

    Args:
        max_waiting: how many jobs may wait besides the running ones.
        max_running: how many jobs run at once.
    """

    def __init__(self, max_waiting: int, max_running: int = 1) -> None:
        self._max_waiting = max_waiting
        self.max_running = max_running
        self._line = Line(max_running, "specllama")
        self._jobs: dict[Job, float] = {}  # for each job, when it began to wait
        self.closing = False
        """Whether further jobs are refused."""
        self._mean_seconds = 0.0  # a moving average over completed jobs, from their queueing to their end
        self.outcomes = collections.Counter(dict.fromkeys(OUTCOMES, 0))
        """How many jobs ended in each way."""

    @property
    def num_running(self) -> int:
        """Jobs that have the model, or a slot of it."""
        return min(self.max_running, len(self._jobs))

    @property
    def num_waiting(self) -> int:
        """Jobs that wait for the model, or for a slot of it."""
        return max(0, len(self._jobs) - self.max_running)

    def start(self, work: Work) -> Job:
        """Queues some work.

        Raises:
            LineFullError: the queue is full.
            ShuttingDownError: `shut_down` was called.
        """
        if self.closing:
            self.outcomes["refused"] += 1
            raise ShuttingDownError
        if len(self._jobs) >= self.max_running + self._max_waiting:
            self.outcomes["refused"] += 1
            raise LineFullError(self.num_waiting, self._retry_after())
        job = Job(work, self._ended)
        self._line.put(job.run)
        self._jobs[job] = time.monotonic()
        return job

    def shut_down(self) -> None:
        """Stops all jobs, running ones within a round, and refuses further ones."""
        self.closing = True
        for job in list(self._jobs):
            job.stop(ShuttingDownError())

    def close(self) -> None:
        """Waits until the model is free. Call it after `shut_down`."""
        self._line.close()

    def _ended(self, job: Job) -> None:
        self.outcomes[job.outcome] += 1  # counted before the client sees the end
        seconds = time.monotonic() - self._jobs.pop(job)
        if job.outcome == "completed":
            self._mean_seconds = 0.8 * self._mean_seconds + 0.2 * seconds if self._mean_seconds else seconds

    def _retry_after(self) -> int:
        """Seconds until a retry makes sense: the mean time of a job, its wait included."""
        return max(1, min(_LONGEST_RETRY, math.ceil(self._mean_seconds)))
