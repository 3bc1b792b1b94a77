"""`specllama serve`: a process that answers, says where, and ends cleanly."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

import httpx  # comes with the extras of the tests

from specllama import cli, server

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

LONG: dict[str, Any] = {"prompt": "the cat", "max_tokens": 1000, "temperature": 1.0, "logit_bias": {"2": -100}}

has_signals = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals to send")


@contextlib.contextmanager
def process(tiny_files: TinyFiles, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and its URL."""
    command = [sys.executable, "-m", "specllama.cli", "serve", "-m", str(tiny_files.target), "--port", "0"]
    command += ["-md", str(tiny_files.good), "-t", "1", "-c", "1024", "--num-draft-tokens", "4", *options]
    running = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"}
    )
    assert running.stderr is not None
    try:
        line = running.stderr.readline()
        assert line.startswith(f"serving {tiny_files.target.name} on http://127.0.0.1:")
        yield running, line.split()[-1]
    finally:
        running.kill()
        running.communicate()


def health(url: str, **options: Any) -> httpx.Response:
    """The health of a server. It has said that it listens."""
    return httpx.get(url + "/health", **options)


@has_signals
def test_it_listens_when_it_says_so(make_llama: MakeLlama) -> None:
    """Whoever reads the line may connect at once."""
    connected = threading.Event()
    app = server.create_app(make_llama(), name="tiny")
    with contextlib.closing(server.bound_socket("127.0.0.1", 0)) as bound:

        def begun() -> None:
            socket.create_connection(bound.getsockname()).close()
            connected.set()
            signal.raise_signal(signal.SIGTERM)

        server.serve(app, bound, begun=begun)
    assert connected.is_set()


@pytest.mark.parametrize("which", [1, 2])
@has_signals
def test_ctrl_c_as_it_begins_to_listen_to_signals(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], which: int
) -> None:
    """Each time that a handler is set: the server ends as it does later."""
    given, heard = signal.signal, 0

    def late(number: int, handler: Any) -> Any:
        nonlocal heard
        before = given(number, handler)
        heard += number == signal.SIGINT
        if number == signal.SIGINT and heard == which:
            signal.raise_signal(number)
        return before

    monkeypatch.setattr(signal, "signal", late)
    app = server.create_app(make_llama(), name="tiny")
    with contextlib.closing(server.bound_socket("127.0.0.1", 0)) as bound, pytest.raises(KeyboardInterrupt):
        server.serve(app, bound)
    assert capfd.readouterr().err == ""


@contextlib.contextmanager
def unfinished(url: str) -> Iterator[socket.socket]:
    """A request that has sent one byte of its body, and is being read."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: 100\r\nExpect: 100-continue\r\n\r\n".encode())
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 100")  # so it has begun to read
        connection.sendall(b"{")
        yield connection


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("sent", "status"), [(signal.SIGTERM, 0), (signal.SIGINT, cli.INTERRUPTED)])
@has_signals
def test_a_signal_during_generation_ends_it_cleanly(tiny_files: TinyFiles, sent: int, status: int) -> None:
    with process(tiny_files) as (running, url):
        assert health(url).json() == {"status": "ok", "running": 0, "waiting": 0, "max_parallel": 1}
        with httpx.stream("POST", url + "/v1/completions", json={**LONG, "stream": True}, timeout=60) as response:
            lines = response.iter_lines()
            assert "text" in json.loads(next(lines).removeprefix("data: "))["choices"][0]
            running.send_signal(sent)
            events = [line.removeprefix("data: ") for line in lines if line]
        assert json.loads(events[-1])["error"]["message"] == "the server is shutting down"
        output, errors = running.communicate(timeout=60)
        assert running.returncode == status
        assert output == ""
        assert errors.splitlines() == [
            "ending: 1 answers under way are stopped, 0 waiting requests get 503",
            "ended; requests: 0 completed, 0 failed, 1 stopped, 0 refused",
            *(["specllama: interrupted"] if sent == signal.SIGINT else []),
        ]
    with process(tiny_files) as (running, url):  # nothing is left behind that the next one trips over
        assert health(url).status_code == 200


@has_signals
def test_a_chat_goes_on_after_a_restart(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """With a folder of earlier texts, which the server has written when it ends."""
    chat: list[Any] = [{"role": "user", "content": "the cat sat on the dog and in of a it is " * 9}]
    sizes = []
    for turn in ("and the fox", "a dog"):
        with process(tiny_files, "--cache-dir", str(tmp_path / "kept"), "--cache-disk", "0.1") as (running, url):
            asked = {"messages": chat, "max_tokens": 12, "temperature": 0.0}
            answer = httpx.post(url + "/v1/chat/completions", json=asked, timeout=60).json()
            sizes.append((answer["usage"]["prompt_tokens"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]))
            chat += [answer["choices"][0]["message"], {"role": "user", "content": turn}]
            running.terminate()
            assert running.wait(60) == 0
    (first, none), (second, cached) = sizes
    assert none == 0
    assert first - 5 < cached < second


@pytest.mark.long
@has_signals
def test_a_request_without_a_stream_is_told_too(tiny_files: TinyFiles) -> None:
    with process(tiny_files) as (running, url):
        replies: list[httpx.Response] = []
        client = threading.Thread(target=lambda: replies.append(httpx.post(url + "/v1/completions", json=LONG)))
        client.start()
        while "specllama_running 1.0" not in httpx.get(url + "/metrics").text:
            pass
        running.terminate()
        client.join(60)
        assert running.wait(60) == 0
    assert (replies[0].status_code, replies[0].headers["retry-after"]) == (503, "1")


@pytest.mark.long  # it waits for ten seconds
@has_signals
def test_an_upload_that_is_not_finished(tiny_files: TinyFiles) -> None:
    with process(tiny_files, "--log") as (running, url), unfinished(url) as upload:
        running.terminate()
        assert upload.recv(1 << 16).startswith(b"HTTP/1.1 503")
        _, errors = running.communicate(timeout=60)
    assert running.returncode == 0
    assert "Traceback" not in errors
    (line,) = [line for line in errors.splitlines() if "path=/v1/completions" in line]
    assert "status=503" in line


@has_signals
def test_an_upload_that_is_not_finished_at_the_second_ctrl_c(tiny_files: TinyFiles) -> None:
    with process(tiny_files, "--log") as (running, url), unfinished(url):
        running.send_signal(signal.SIGINT)
        assert running.stderr is not None
        while not running.stderr.readline().startswith("ending: "):
            pass
        time.sleep(1.0)
        running.send_signal(signal.SIGINT)
        _, errors = running.communicate(timeout=60)
    assert running.returncode == cli.INTERRUPTED
    assert "Traceback" not in errors
    assert len([line for line in errors.splitlines() if "path=/v1/completions" in line]) == 1


def test_an_option_without_effect(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["serve", "-m", str(tiny_files.target), "--cache-tokens", "10"]) == 2
    assert "--cache-tokens is for several requests at once: give --parallel, too" in capsys.readouterr().err


@pytest.mark.long
def test_the_key_from_the_environment(tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_API_KEY", "sesame")
    with process(tiny_files) as (_, url):
        assert health(url).status_code == 401
        assert health(url, headers={"Authorization": "Bearer sesame"}).status_code == 200
    with process(tiny_files, "--api-key", "other") as (_, url):
        assert health(url, headers={"Authorization": "Bearer sesame"}).status_code == 401


def test_an_address_that_cannot_be_had(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.closing(server.bound_socket("127.0.0.1", 0)) as bound:
        bound.listen()
        port = str(bound.getsockname()[1])
        assert cli.main(["serve", "-m", str(tiny_files.target), "--port", port]) == 1
    assert f"cannot serve on 127.0.0.1 port {port}" in capsys.readouterr().err
    assert cli.main(["serve", "-m", str(tiny_files.target), "--port", "70000"]) == 2
    assert "--port: 70000 is too large" in capsys.readouterr().err
    with pytest.raises(OSError, match="port 70000"):
        server.bound_socket("127.0.0.1", 70000)


def test_the_server_extra_is_named(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("specllama.server")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("specllama.server")
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["serve", "-m", str(tiny_files.target)]) == 1
    assert 'the server needs uvicorn: pip install "specllama[server]"' in capsys.readouterr().err


def test_serving_everybody_without_a_key_is_pointed_out(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(server, "serve", lambda app, bound, say, begun: begun())
    for options, warned in (
        (["--host", "0.0.0.0"], True),
        ([], False),
        (["--host", "0.0.0.0", "--api-key", "x"], False),
    ):
        assert cli.main(["serve", "-m", str(tiny_files.target), "--port", "0", *options]) == 0
        assert ("give --api-key" in capsys.readouterr().err) == warned
