"""A real server in a thread of the test's process, on a port of its own."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import uvicorn

import specllama
from specllama import server


class Served:
    """A running server, and a client of it."""

    def __init__(self, url: str, app: Any, llm: specllama.Llama) -> None:
        self.url = url
        self.app = app
        self.llm = llm
        self.client = httpx.Client(base_url=url, timeout=60)

    def post(self, path: str, **body: Any) -> httpx.Response:
        """POST a JSON object."""
        return self.client.post(path, json=body)

    def complete(self, prompt: str = "the cat sat on the dog and", **body: Any) -> Any:
        """The response of /v1/completions, which must succeed."""
        body = {"prompt": prompt, "max_tokens": 24, "temperature": 0.0, **body}
        response = self.post("/v1/completions", **body)
        assert response.status_code == 200, response.text
        return response.json()

    def events(self, path: str, **body: Any) -> list[Any]:
        """The objects of a stream that ends as it should."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            data = [line.removeprefix("data: ") for line in response.iter_lines() if line]
        assert data[-1] == "[DONE]"
        return [json.loads(event) for event in data[:-1]]

    def named_events(self, path: str, **body: Any) -> list[Any]:
        """The objects of a stream whose events have names."""
        with self.client.stream("POST", path, json={"stream": True, **body}) as response:
            assert response.status_code == 200, response.read()
            lines = [line for line in response.iter_lines() if line]
        events = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
        assert lines[::2] == [f"event: {event['type']}" for event in events]
        return events

    def metrics(self) -> dict[str, float]:
        """The samples of /metrics."""
        lines = [line for line in self.client.get("/metrics").text.splitlines() if not line.startswith("#")]
        return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Waits for something that the server does on its own; fails after a while."""
        deadline = time.monotonic() + 30
        while not condition():
            assert time.monotonic() < deadline, "it did not happen"
            time.sleep(0.002)

    def wait_until_idle(self) -> None:
        """Waits until nobody has the model."""
        self.wait_until(lambda: self.app.state.worker.num_running == 0)


def send(served: Served, path: str, body: bytes, content_type: str = "application/json") -> socket.socket:
    """Sends a request, and leaves the answer unread."""
    host, port = served.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)))
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    connection.sendall(head.encode() + body)
    return connection


@contextlib.contextmanager
def serving(llm: specllama.Llama, **options: Any) -> Iterator[Served]:
    """Serve `llm` with these options of `create_app`."""
    app = server.create_app(llm, **{"name": "tiny", **options})
    bound = server.bound_socket("127.0.0.1", 0)
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    served = Served(f"http://127.0.0.1:{bound.getsockname()[1]}", app, llm)
    try:
        served.wait_until(lambda: running.started)
        yield served
    finally:
        served.client.close()
        running.should_exit = True
        thread.join(30)
        bound.close()
    assert not thread.is_alive()
