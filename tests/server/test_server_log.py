"""A line for each request, and the histograms of ``/metrics``."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

from served import Served, send, serving  # needs the extra

from specllama.engine.generation import Generation
from specllama.server.prompt_progress import Progress

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good, num_draft_tokens=4), max_parallel=2) as served:
        yield served


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Any:
    caplog.set_level(logging.INFO, "specllama.requests")
    return lambda: [
        dict(fact.split("=", 1) for fact in record.getMessage().split(" "))
        for record in caplog.records
        if record.name == "specllama.requests"
    ]


ASKED: dict[str, Any] = {"prompt": "the cat sat on", "max_tokens": 12, "temperature": 0.0, "logit_bias": {"2": -100}}


def test_what_a_line_says(served: Served, lines: Any, caplog: pytest.LogCaptureFixture) -> None:
    usage = served.complete(**ASKED)["usage"]
    streamed = served.events("/v1/completions", **ASKED)
    assert served.post("/v1/completions", prompt=3.5, max_tokens=2).status_code == 400
    assert served.client.get("/v1/models/no%0Asuch").status_code == 404
    served.wait_until(lambda: len(lines()) == 4)
    whole, stream, refused, missing = lines()
    for line in (whole, stream):
        assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", "200")
        assert (line["outcome"], line["tokens"]) == ("completed", "12")
        assert line["prompt"] == str(usage["prompt_tokens"])
        assert 0.0 <= float(line["first_seconds"]) <= float(line["seconds"])
        assert float(line["tokens_per_second"]) > 0
        assert 0 <= int(line["accepted"]) <= int(line["drafted"])
    assert int(stream["reused"]) == usage["prompt_tokens"] - 1
    assert len(streamed) > 1
    assert (refused["status"], "outcome" in refused) == ("400", False)
    assert (missing["path"], missing["status"]) == ("/v1/models/no%0Asuch", "404")
    assert [int(line["id"]) for line in lines()] == [1, 2, 3, 4]
    assert "cat" not in caplog.text


def test_several_texts_and_clients_that_leave(served: Served, lines: Any) -> None:
    served.complete(**ASKED, n=3)
    with served.client.stream("POST", "/v1/completions", json={**ASKED, "max_tokens": 200, "stream": True}) as response:
        next(response.iter_lines())
    served.wait_until(lambda: len(lines()) == 2)
    several, left = lines()
    assert (several["tokens"], several["outcome"]) == ("36", "completed")
    assert float(several["first_seconds"]) <= float(several["seconds"])
    assert left["outcome"] == "stopped"
    assert int(left["tokens"]) < 200


def test_a_client_that_leaves_while_its_prompt_is_read(
    served: Served, lines: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also one that waits for the progress: it leaves before the first chunk."""
    go_on, look = threading.Event(), Generation._look_at_loop

    def held(generation: Generation) -> None:
        look(generation)
        assert go_on.wait(30)

    monkeypatch.setattr(Generation, "_look_at_loop", held)
    monkeypatch.setattr(Progress, "__call__", lambda _: None)
    for more in ({}, {"return_progress": True}):
        go_on.clear()
        with send(served, "/v1/completions", json.dumps({**ASKED, "stream": True, **more}).encode()):
            served.wait_until(lambda: served.app.state.worker.num_running == 1)
            (job,) = served.app.state.worker._jobs
        served.wait_until(lambda: job._watch._stopped)  # noqa: B023
        go_on.set()
        served.wait_until_idle()
    served.wait_until(lambda: len(lines()) == 2)
    assert [line["status"] for line in lines()] == ["200", "200"]  # sent before
    assert [line["outcome"] for line in lines()] == ["stopped", "stopped"]
    assert "Exception" not in caplog.text


def test_histograms(served: Served) -> None:
    for _ in range(3):
        served.complete(**ASKED)
    served.post("/v1/completions", prompt=3.5)
    metrics = served.metrics()
    assert metrics["specllama_first_token_seconds_count"] == metrics["specllama_token_seconds_count"] == 3
    assert metrics['specllama_first_token_seconds_bucket{le="+Inf"}'] == 3
    assert 0 < metrics["specllama_first_token_seconds_sum"] < 60


def test_the_option(tiny_files: TinyFiles) -> None:
    import httpx

    command = [sys.executable, "-m", "specllama.cli", "serve", "-m", str(tiny_files.target), "-c", "256"]
    with subprocess.Popen([*command, "--port", "0", "--log"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
            assert httpx.get(f"{url}/health").status_code == 200
            line = next(line for line in process.stderr if "path=" in line)
        finally:
            process.terminate()
    assert re.fullmatch(r"[\d-]+ [\d:,]+ id=1 method=GET path=/health status=200 seconds=[\d.]+\n", line)
