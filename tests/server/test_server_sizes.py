"""Requests that are too large, and clients that ask nothing: refused in time, and nobody else waits for them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import json
import socket
import statistics
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

import httpx
import uvicorn
from latencies import latencies
from served import Served, serving  # needs the extra
from test_serve_command import process

from specllama import server
from specllama.server import connections
from specllama.server.serving import configured

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

N_CTX = 512
JSON = {"Content-Type": "application/json"}
HI = [{"role": "user", "content": "hi"}]


@pytest.fixture
def served(make_llama: MakeLlama) -> Iterator[Served]:
    with serving(make_llama(n_ctx=N_CTX)) as running:
        yield running


def body(**fields: Any) -> bytes:
    return json.dumps({"max_tokens": 1, **fields}).encode()


def says(text: str) -> bytes:
    return body(messages=[{"role": "user", "content": text}])


LONG_TEXTS = {
    "commas": says("," * 8_000_000),
    "escapes": says("\n," * 2_700_000),
    "escaped quotes": says('",' * 2_700_000),
    "a text without an end": says("[" * 8_000_000)[:-20],
}
LONG_INPUT = json.dumps({"input": "a " * 4_000_000}).encode()
HUGE: dict[str, tuple[str, bytes, int, str]] = {
    **{what: ("/v1/chat/completions", content, 400, "") for what, content in LONG_TEXTS.items()},
    "a text": ("/v1/completions", body(prompt="a " * 4_000_000), 400, "exceed context window of 512"),
    "a suffix": ("/v1/completions", body(prompt="a", suffix="a " * 4_000_000), 400, "exceed context window of 512"),
    "a bias": ("/v1/completions", body(prompt="a", logit_bias={"a " * 100_000: -1}), 400, "shorten the logit_bias"),
    "a bias of a number": (
        "/v1/completions",
        body(prompt="a", logit_bias={"1" * 100_000: -1}, logit_bias_type="tokens"),
        400,
        "shorten the logit_bias",
    ),
    "a stop": ("/v1/completions", body(prompt="a", stop="a " * 4_000_000), 400, "shorten the stop"),
    "stops of texts": ("/v1/chat/completions", body(messages=HI, stop=["a" * 99] * 16_000), 400, "shorten the stop"),
    "a name": (
        "/infill",
        body(input_prefix="a", input_suffix="b", input_extra=[{"text": "a", "filename": "a " * 4_000_000}]),
        400,
        "exceed context window of 512",
    ),
    "ids": ("/v1/completions", body(prompt=[1] * 1_000_000), 413, "more than 131072 values"),
    "fewer ids": ("/v1/completions", body(prompt=[1] * 100_000), 400, "exceed context window of 512"),
    "ids and a text": ("/v1/completions", body(prompt=[1] * 100_000 + ["a"]), 400, "exceed context window of 512"),
    "lists": ("/v1/completions", b'{"prompt": [' + b"[]," * 2_000_000 + b"[]]}", 413, "more than 131072 values"),
    "texts": ("/v1/completions", b'{"prompt": [' + b'"",' * 2_000_000 + b'""]}', 413, "more than 131072 values"),
    "stops": ("/v1/completions", body(prompt="a", stop=[1] * 100_000), 413, "more than 16384 values"),
    "messages": ("/v1/chat/completions", body(messages=HI * 5_000), 400, "5000 messages exceed context window"),
    "a message": (
        "/v1/chat/completions",
        body(messages=[{"role": "user", "content": "a " * 99_999}]),
        400,
        "exceed context window",
    ),
    "parts": (
        "/v1/chat/completions",
        body(messages=[{"role": "user", "content": [{"type": "text", "text": "a" * 20_000}] * 10}]),
        400,
        "exceed context window",
    ),
    "tools": ("/v1/chat/completions", body(messages=HI, tools=[{}] * 20_000), 413, "more than 16384 values"),
    "items": ("/v1/responses", body(input=HI * 10_000), 413, "more than 16384 values"),
    "digits": (
        *("/v1/completions", b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", 400),
        "a number has more than 4300 digits: send a smaller one",
    ),
    "depth": ("/v1/completions", b"[" * 100_000, 400, "nested too deeply"),
    "to tokenize": ("/extras/tokenize", LONG_INPUT, 400, "exceed context window of 512"),
    "to count": ("/extras/tokenize/count", LONG_INPUT, 400, "exceed context window of 512"),
    "to detokenize": ("/extras/detokenize", json.dumps({"tokens": ["x"] * 100_000}).encode(), 400, "whole numbers"),
}


def nested(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def of_calls(schema: Any) -> list[Any]:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": schema}
    result = {"type": "tool_result", "tool_use_id": "t", "content": "y"}
    return [*HI, {"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


ONE_TOKEN: dict[str, Any] = {"messages": HI, "max_tokens": 1}
DEEP: dict[str, tuple[str, Callable[[Any], dict[str, Any]]]] = {
    **{
        path: (
            path,
            lambda it: {**ONE_TOKEN, "tools": [{"type": "function", "function": {"name": "f", "parameters": it}}]},
        )
        for path in ("/v1/chat/completions", "/v1/chat/completions/input_tokens", "/apply-template")
    },
    "/v1/responses": (
        "/v1/responses",
        lambda it: {
            "input": "x",
            "max_output_tokens": 1,
            "tools": [{"type": "function", "name": "f", "parameters": it}],
        },
    ),
    "metadata": ("/v1/responses", lambda it: {"input": "x", "max_output_tokens": 1, "metadata": it}),
    "/v1/messages": ("/v1/messages", lambda it: {**ONE_TOKEN, "tools": [{"name": "f", "input_schema": it}]}),
    "a call": ("/v1/messages", lambda it: {"max_tokens": 1, "messages": of_calls(it)}),
    "count": ("/v1/messages/count_tokens", lambda it: {"messages": HI, "tools": [{"name": "f", "input_schema": it}]}),
    "the template's": ("/v1/chat/completions", lambda it: {**ONE_TOKEN, "chat_template_kwargs": {"a": it}}),
    "/completion": ("/completion", lambda it: {"prompt": "x", "n_predict": 1, "json_schema": it}),
}


@pytest.mark.parametrize("levels", [20, 55, 62, 120, 200, 300, 450])
def test_what_is_nested_too_deeply_is_refused(make_llama: MakeLlama, levels: int) -> None:
    """Whatever would read it calls itself for each level."""
    with serving(make_llama(n_ctx=4096)) as served:
        for what, (path, asked) in DEEP.items():
            reply = served.post(path, **asked(nested(levels)))
            assert reply.status_code in ((200, 400) if 20 < levels < 63 else (200 if levels == 20 else 400,)), what
            if levels > 63:
                assert "the body is nested too deeply: it may have 128 levels" in reply.text


@pytest.mark.parametrize("what", HUGE)
def test_what_is_too_large_is_refused(served: Served, what: str) -> None:
    path, content, status, why = HUGE[what]
    start = time.monotonic()
    reply = served.client.post(path, content=content, headers=JSON)
    assert time.monotonic() - start < 10
    assert (reply.status_code, why in reply.json()["error"]["message"]) == (status, True), reply.text[:300]
    assert len(reply.json()["error"]["message"]) < 1000
    if "exceed context window" in why and "extras" not in path:
        assert reply.json()["error"]["code"] == "context_length_exceeded"
    assert served.app.state.worker.outcomes.total() == 0  # it has not come to the model


def test_health_answers_meanwhile(served: Served) -> None:
    """The machine of the tests may be busy: nobody is kept out, by the median, and nobody waits long."""
    with latencies(served.url) as seconds:
        for path, content, _, _ in HUGE.values():
            served.client.post(path, content=content, headers=JSON)
    assert statistics.median(seconds) < 0.1
    assert max(seconds) < 1.0


@pytest.mark.parametrize("what", LONG_TEXTS)
def test_a_long_text_takes_little_memory(served: Served, what: str) -> None:
    """How many values a body has is asked before it is parsed, and took 100 bytes for each of its characters."""
    tracemalloc.start()
    try:
        reply = served.client.post("/v1/chat/completions", content=LONG_TEXTS[what], headers=JSON)
        assert reply.status_code == 400
        assert tracemalloc.get_traced_memory()[1] < 15 * len(LONG_TEXTS[what])
    finally:
        tracemalloc.stop()


def test_values_are_counted_outside_of_texts(served: Served) -> None:
    """However a text ends: values behind it count, and those in it do not."""
    for end, inside in (('"', ""), ('\\\\"', ""), ('\\""', '"'), ('\\\\\\""', '"')):
        text = '"' + "," * 20_000 + end
        assert json.loads(text).endswith(inside)
        for more, status in (("", 400), (', "stop": [' + "1," * 20_000 + "1]", 413)):
            content = f'{{"prompt": {text}{more}}}'
            assert served.client.post("/v1/completions", content=content, headers=JSON).status_code == status


@pytest.mark.long
def test_a_body_has_a_limit(make_llama: MakeLlama) -> None:
    def in_parts(size: int) -> Iterator[bytes]:
        for _ in range(size // 1000):
            yield b" " * 1000
        yield b'{"prompt": "a", "max_tokens": 1}'

    with serving(make_llama(n_ctx=N_CTX), max_body=10_000) as served:
        for path in ("/v1/completions", "/v1/chat/completions", "/extras/tokenize", "/extras/detokenize"):
            for content in (b" " * 10_001, in_parts(12_000), in_parts(50_000_000)):
                reply = served.client.post(path, content=content, headers=JSON)
                assert (reply.status_code, "10000 bytes" in reply.text) == (413, True)
        assert served.client.post("/v1/completions", content=in_parts(9000), headers=JSON).status_code == 200
    with pytest.raises(ValueError, match="max_body=0 must be 1 or more"):
        server.create_app(make_llama(), name="tiny", max_body=0)


def test_only_some_large_bodies_are_in_memory(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specllama.server.request_limits._SECONDS_TO_SEND", 30)
    go_on, sent = threading.Event(), threading.Semaphore(0)

    def slowly() -> Iterator[bytes]:
        yield b" " * 100_000
        sent.release()
        assert go_on.wait(30)
        yield body(prompt="a")

    def post(content: Any) -> int:
        return httpx.post(f"{served.url}/v1/completions", content=content, headers=JSON, timeout=60).status_code

    with concurrent.futures.ThreadPoolExecutor(5) as clients:
        slow = [clients.submit(post, slowly()) for _ in range(4)]
        assert all(sent.acquire(timeout=30) for _ in slow)
        time.sleep(0.3)  # until the server has read so far
        waits = clients.submit(post, body(prompt="a").ljust(100_000))
        assert post(body(prompt="a")) == 200  # a small one does not wait
        time.sleep(0.3)
        assert not waits.done()
        go_on.set()
        assert [one.result(60) for one in [*slow, waits]] == [200] * 5


def test_who_sends_slowly_keeps_nobody_waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """They announce 8 MB, send 70 KB, and nothing more, or a byte now and then."""
    monkeypatch.setattr("specllama.server.request_limits._PATIENCE", 0.5)
    host, port = served.url.removeprefix("http://").split(":")
    done = threading.Event()
    replies: list[bytes] = []

    def send_slowly(again: bool) -> None:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(head.encode() + b"Content-Length: 8000000\r\n\r\n" + b" " * 70_000)
            connection.settimeout(0.05)
            while not done.is_set():
                try:
                    if again:
                        connection.sendall(b" ")
                    replies.append(connection.recv(1 << 16))
                    break
                except TimeoutError:
                    pass
                except OSError:
                    break

    slow = [threading.Thread(target=send_slowly, args=(number % 2 == 0,)) for number in range(8)]
    for thread in slow:
        thread.start()
    try:
        time.sleep(0.3)
        start = time.monotonic()
        content = body(prompt="a").ljust(100_000)
        reply = served.client.post("/v1/completions", content=content, headers=JSON, timeout=60)
        assert reply.status_code == 200
        assert time.monotonic() - start < 8
    finally:
        done.set()
        for thread in slow:
            thread.join()
    assert any(b" 408 " in reply and b"slower than 32768 bytes a second" in reply for reply in replies)


def test_what_is_no_json_is_said(served: Served) -> None:
    for content, why in (
        (b"{", "not JSON: Expecting property name"),
        (b"\xff", "not JSON: 'utf-8'"),
        (b"3", "must be a JSON object"),
    ):
        reply = served.client.post("/v1/completions", content=content, headers=JSON)
        assert (reply.status_code, why in reply.text) == (400, True), reply.text
    media = {
        "application/json; charset=utf-8": 200,
        "application/x+json": 200,
        "text/json": 400,
        "application/jsonx": 400,
    }
    for name, status in media.items():
        reply = served.client.post("/v1/completions", content=body(prompt="a"), headers={"Content-Type": name})
        assert reply.status_code == status


def test_the_fields_of_bodies_are_documented(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    for path, name in (("/v1/completions", "CompletionRequest"), ("/extras/detokenize", "DetokenizeRequest")):
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema == {"$ref": f"#/components/schemas/{name}"}
        assert document["components"]["schemas"][name]["properties"]
    text = json.dumps(document)
    used = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert used <= document["components"]["schemas"].keys()


@contextlib.contextmanager
def timed(make_llama: MakeLlama) -> Iterator[tuple[str, int]]:
    """A server as the command configures it."""
    app = server.create_app(make_llama(), name="tiny")
    bound = server.bound_socket("127.0.0.1", 0)
    running = uvicorn.Server(configured(app))
    thread = threading.Thread(target=running.run, kwargs={"sockets": [bound]})
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield bound.getsockname()[:2]
    finally:
        running.should_exit = True
        thread.join(30)
        bound.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health HT", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"]
)
def test_a_connection_on_which_nothing_is_asked_is_closed(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.3)
    more = b"Content-Type: application/json\r\n\r\n{" if sent.startswith(b"POST") else b""
    with timed(make_llama) as address, socket.create_connection(address, timeout=30) as connection:
        connection.sendall(sent + more)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                received += part
        assert b" 200 " not in received
        assert httpx.get(f"http://{address[0]}:{address[1]}/health").status_code == 200


def test_a_long_answer_is_not_cut_off(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "SECONDS_TO_ASK", 0.02)
    request = {"prompt": "the cat", "max_tokens": 400, "logit_bias": {"2": -100}}
    with timed(make_llama) as (host, port):
        reply = httpx.post(f"http://{host}:{port}/v1/completions", json=request, timeout=60)
        assert reply.json()["usage"]["completion_tokens"] == 400


@pytest.mark.long
def test_five_hundred_idle_connections_lock_nobody_out(tiny_files: TinyFiles) -> None:
    with process(tiny_files) as (_, url), contextlib.ExitStack() as open_ones:
        host, port = url.removeprefix("http://").split(":")
        for _ in range(500):
            open_ones.enter_context(socket.create_connection((host, int(port)), timeout=30))
        with latencies(url) as seconds:
            reply = httpx.post(url + "/v1/completions", json={"prompt": "a", "max_tokens": 4}, timeout=60)
            assert reply.status_code == 200
        assert statistics.median(seconds) < 0.1
