"""Sends a running server requests that schemathesis makes from its own OpenAPI document, and prints what came of them.

``python scripts/fuzz_server.py http://127.0.0.1:8000 -n 10000``, with the test extra installed; a tiny model will do.
Requests are valid and invalid by turns. It ends with 1 if one of them got a status of 5xx but 503, no answer at all, or
if the server was gone at the end. Meanwhile another process asks for /health; how long that took is printed, too, and
means something only where nothing else uses the machine.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import statistics
import sys
import time
import warnings
from typing import Any

import hypothesis
import requests
import schemathesis
from latencies import latencies

_SECONDS = 60  # the most for an answer
_MOST_SHOWN = 20


class Fuzzer:
    """Sends requests, and remembers what came of them."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = requests.Session()
        self.statuses: collections.Counter[int] = collections.Counter()
        self.failures: list[str] = []

    def send(self, case: Any) -> None:
        """Send one request."""
        start = time.monotonic()
        try:
            response = case.call(base_url=self._url, session=self._session, timeout=_SECONDS)
        except Exception as error:  # any of them means that there was no answer
            self.failures.append(f"{type(error).__name__} after {time.monotonic() - start:.1f} s: {_shown(case)}")
            return
        self.statuses[response.status_code] += 1
        if response.status_code >= 500 and response.status_code != 503:
            self.failures.append(f"{response.status_code} {response.text[:300]}: {_shown(case)}")


def fuzz(url: str, count: int, seed: int) -> Fuzzer:
    """Send about `count` requests."""
    fuzzer = Fuzzer(url)
    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [result.ok() for result in schema.get_all_operations()]
    modes = list(schemathesis.GenerationMode)
    with_body = [operation for operation in operations if operation.body]
    for operation in operations:
        share = count * 0.95 / len(with_body) if operation.body else count * 0.05 / (len(operations) - len(with_body))
        for mode in modes if operation.body else modes[:1]:
            _fuzz(fuzzer, operation, mode, max(1, round(share / (2 if operation.body else 1))), seed)
    return fuzzer


def _fuzz(fuzzer: Fuzzer, operation: Any, mode: Any, count: int, seed: int) -> None:
    settings = hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )

    @hypothesis.seed(seed)
    @settings
    @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
    def run(case: Any) -> None:
        fuzzer.send(case)

    run()


def _shown(case: Any) -> str:
    with contextlib.suppress(TypeError, ValueError):
        return f"{case.method} {case.path} {json.dumps(case.body)[:500]}"
    return f"{case.method} {case.path} {case.body!r:.500}"


def main() -> int:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("-n", type=int, default=10_000, help="about how many requests")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start = time.monotonic()
    with latencies(arguments.url) as seconds:
        fuzzer = fuzz(arguments.url, arguments.n, arguments.seed)
    print(f"{fuzzer.statuses.total()} answers in {time.monotonic() - start:.0f} s")
    for status, number in sorted(fuzzer.statuses.items()):
        print(f"  {status}: {number}")
    late = sum(one > 0.1 for one in seconds)
    print(
        f"/health: {len(seconds)} times, median {1e3 * statistics.median(seconds):.1f} ms, "
        f"longest {1e3 * max(seconds):.0f} ms, {late} of them more than 100 ms"
    )
    for failure in fuzzer.failures[:_MOST_SHOWN]:
        print(failure)
    alive = requests.get(f"{arguments.url}/health", timeout=_SECONDS).status_code == 200
    return 0 if alive and not fuzzer.failures else 1


if __name__ == "__main__":
    sys.exit(main())
