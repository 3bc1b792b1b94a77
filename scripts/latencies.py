"""Measures how long a server takes to answer /health, while it has other requests."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

_ASK = (
    "import sys, time, httpx\nclient = httpx.Client(base_url=sys.argv[1], timeout=600)\nclient.get('/health')\n"
    "while True:\n    start = time.perf_counter(); client.get('/health')\n"
    "    print(time.perf_counter() - start, flush=True); time.sleep(0.005)\n"
)


@contextlib.contextmanager
def latencies(url: str) -> Iterator[list[float]]:
    """A context manager that gives a list: the seconds of each request for /health, which another process sends."""
    asking = subprocess.Popen([sys.executable, "-c", _ASK, url], stdout=subprocess.PIPE, text=True)
    found: list[float] = []
    assert asking.stdout is not None
    lines = asking.stdout
    found.append(float(lines.readline()))
    reader = threading.Thread(target=lambda: found.extend(map(float, lines)))
    reader.start()
    try:
        yield found
    finally:
        asking.kill()
        reader.join()
        lines.close()
        asking.wait()
