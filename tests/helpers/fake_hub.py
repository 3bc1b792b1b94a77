"""A hub on this machine, with one model that may come in pieces, and repositories of files."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
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

    repositories: dict[str, dict[str, bytes]]
    """Of ORG/NAME the files."""
    token: str | None = None
    """Only who sends it gets something of the repositories."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def log_message(self, *args: object) -> None:
        pass

    def _answer_of_repositories(self, repo: str, body: bool) -> None:
        if self.token is not None and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.send_error(401)
            return
        files = self.repositories[repo]
        if self.path.startswith("/api/"):
            entries = [{"type": "file", "path": name, "size": len(data), "oid": "0"} for name, data in files.items()]
            data, kind = json.dumps(entries).encode(), "application/json"
        else:
            data, kind = files[self.path.partition("/resolve/main/")[2]], "application/octet-stream"
        self.requests.append(f"{self.command} {self.path}")
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def _answer(self, body: bool) -> None:
        for repo in self.repositories:
            if f"/{repo}/" in self.path:
                self._answer_of_repositories(repo, body)
                return
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
    handler = type("Hub", (Hub,), {"requests": [], "repositories": {}})
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
