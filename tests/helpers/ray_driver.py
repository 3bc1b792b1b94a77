"""A program over a local Ray cluster: one of two workers dies over its rows, and the page's examples run.

A process of its own: Ray takes over the handling of signals, and starts threads that stay.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pages

WORKERS = 2
PATIENCE = 120.0
"""Seconds until both workers are there."""
PAGE = "past-one-machine.md"


def examples(folder: Path) -> list[str]:
    """The Python of the page, with its models and prompts in this folder."""
    blocks = [block for block in pages.blocks_in("python") if block.page.name == PAGE]
    return [block.code.replace("/shared", str(folder)) for block in blocks]


def answered_by_mortals(folder: Path, deadly: int, options: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows of rows.json, each with the process that answered it. Who first gets `deadly` dies over its batch."""
    import pyarrow
    import ray

    from specllama.ray import Completions

    class Mortal(Completions):  # of this process: Ray hands over its code
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            (folder / f"worker-{os.getpid()}").touch()
            create = self._create
            self._threads = create.__self__.n_threads
            self._create = lambda items, **common: create(until_death(items) if self._dies else items, **common)

        def __call__(self, batch: Any) -> Any:
            end = time.monotonic() + PATIENCE
            while len(list(folder.glob("worker-*"))) < WORKERS and time.monotonic() < end:
                time.sleep(0.05)
            self._dies = deadly in batch["number"].to_pylist() and not (folder / "died").exists()
            answers = super().__call__(batch)
            for name, value in (("pid", os.getpid()), ("threads", self._threads)):
                answers = answers.append_column(name, pyarrow.array([value] * len(answers)))
            return answers

    def until_death(items: list[Any]) -> Iterator[Any]:
        yield from items[:-1]
        (folder / "died").write_text(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGKILL)

    rows = ray.data.from_items(json.loads((folder / "rows.json").read_text()), override_num_blocks=8)
    answers = rows.map_batches(
        Mortal,
        fn_constructor_kwargs=options,
        compute=ray.data.ActorPoolStrategy(size=WORKERS),
        num_cpus=1,
        batch_size=5,
        batch_format="pyarrow",
    )
    return [{name: row[name] for name in row} for row in answers.take_all()]


def answered_by_servers(code: str, bodies: Iterable[dict[str, Any]], port: int) -> list[dict[str, Any]]:
    """What the page's Ray Serve answers."""
    from ray import serve

    serve.start(http_options={"port": port})
    exec(compile(code, PAGE, "exec"), {})
    answers = []
    for body in bodies:
        data = json.dumps(body).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/completions", data, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answers.append(json.load(response))
    serve.shutdown()
    return answers


def main() -> None:
    import ray

    asked = json.loads(sys.argv[1])
    folder = Path(asked["folder"])
    ray.init(
        address="local",
        num_cpus=4,  # of two workers, and of what reads and writes
        include_dashboard=False,
        object_store_memory=80 * 2**20,
        log_to_driver=False,
        _temp_dir=asked["short_folder"],
    )
    try:
        rows = answered_by_mortals(folder, asked["deadly"], asked["options"])
        data, server, _ = examples(folder)
        exec(compile(data, PAGE, "exec"), {})
        written = [json.loads(line) for path in (folder / "answers").iterdir() for line in path.open()]
        served = answered_by_servers(server, asked["bodies"], asked["port"])
    finally:
        ray.shutdown()
    (folder / "found.json").write_text(json.dumps({"rows": rows, "written": written, "served": served}))


if __name__ == "__main__":
    main()
