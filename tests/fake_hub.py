"""A hub on this machine, with one model that may come in pieces."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import threading
from collections.abc import Iterator

from specllama.models.catalog import Model


class Hub(http.server.BaseHTTPRequestHandler):
    """As much of the hub as its library needs for one public file."""

    content = b""
    requests: list[str]
    cut_once = False
    """The connection ends in the middle of the file, once."""
    stall: threading.Event | None = None
    """The file stops to come in its middle, once, until this is set."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer(self, body: bool) -> None:
        if "someone/fake-GGUF/resolve/main/fake-q4_0.gguf" not in self.path:
            self.send_error(404)
            return
        self.requests.append(f"{self.command} {self.headers.get('Range', '')}".strip())
        begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").split("-")[0])
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.content) - begin))
        self.send_header("ETag", f'"{hashlib.sha256(self.content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Accept-Ranges", "bytes")
        if begin:
            self.send_header("Content-Range", f"bytes {begin}-{len(self.content) - 1}/{len(self.content)}")
        self.end_headers()
        if body and (self.cut_once or self.stall):
            self.wfile.write(self.content[begin : begin + (11 << 20)])
            self.close_connection = True
            if self.stall is not None:
                self.stall.wait(60)
            type(self).cut_once, type(self).stall = False, None
        elif body:
            self.wfile.write(self.content[begin:])


@contextlib.contextmanager
def serving_hub() -> Iterator[tuple[type[Hub], str]]:
    """A hub, and its URL."""
    handler = type("Hub", (Hub,), {"requests": []})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield handler, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def hub_model(content: bytes, repo: str = "someone/fake-GGUF") -> Model:
    """A model of that content, for the catalog."""
    found = hashlib.sha256(content).hexdigest()
    return Model("fake-model", "Fake", "fake-q4_0.gguf", "Q4_0", len(content), found, "MIT", repo)
