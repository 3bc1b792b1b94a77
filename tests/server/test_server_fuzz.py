"""What schemathesis makes of the server's own OpenAPI document: no request ends in a 500, or the server."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from needed import imported

imported("fastapi")
imported("schemathesis")

from test_serve_command import process

if TYPE_CHECKING:
    from conftest import TinyFiles

SCRIPT = Path(__file__).parents[2] / "scripts" / "fuzz_server.py"
NUM_REQUESTS = 400  # scripts/fuzz_server.py -n 10000 sends more


@pytest.mark.long
@pytest.mark.parametrize("target", ["target", "no_bos"])
def test_fuzzed_requests(tiny_files: TinyFiles, target: str) -> None:
    with process(dataclasses.replace(tiny_files, target=getattr(tiny_files, target))) as (running, url):
        said = running.stderr
        assert said is not None
        reader = threading.Thread(target=lambda: [None for _ in said])  # llama.cpp says much of wrong grammars
        reader.start()
        try:
            command = [sys.executable, str(SCRIPT), url, "-n", str(NUM_REQUESTS), "--seed", "1"]
            fuzzed = subprocess.run(command, capture_output=True, text=True, timeout=600)
        finally:
            running.kill()
            reader.join()
    assert fuzzed.returncode == 0, fuzzed.stdout + fuzzed.stderr
    statuses = {int(status): int(number) for status, number in re.findall(r"^  (\d+): (\d+)$", fuzzed.stdout, re.M)}
    assert sum(statuses.values()) > 0.8 * NUM_REQUESTS
    assert statuses[200] > 20 and statuses[400] > 20, statuses


def test_a_server_that_fails_is_found() -> None:
    """One that answers every POST with 500."""
    code = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
schema = {"type": "object", "properties": {"a": {"type": "string"}}}
body = {"required": True, "content": {"application/json": {"schema": schema}}}
post = {"requestBody": body, "responses": {"200": {"description": "done"}}}
document = {"openapi": "3.1.0", "info": {"title": "t", "version": "1"}, "paths": {
    "/a": {"post": post}, "/health": {"get": {"responses": {"200": {"description": "ok"}}}}}}
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_): pass
    def do_GET(self): self.reply(200)
    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.reply(500)
    def reply(self, status):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(document).encode())
server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as bad:
        assert bad.stdout is not None
        url = f"http://127.0.0.1:{bad.stdout.readline().strip()}"
        fuzzed = subprocess.run([sys.executable, str(SCRIPT), url, "-n", "10"], capture_output=True, text=True)
        bad.kill()
    assert fuzzed.returncode == 1
    assert "500" in fuzzed.stdout, fuzzed.stderr
