"""What clients do wrong, and when they leave: the model stays usable, and nobody else notices."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import re
import socket
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from llama_cpp.llama_chat_format import Jinja2ChatFormatter
from needed import imported

imported("fastapi")

from served import Served, send, serving  # needs the extra

import specllama
from specllama import server
from specllama.server.worker import Worker

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    from specllama.drop_in import Watch
    from specllama.server.job import Item, Job

PROMPT = "the cat sat on the dog and"
LONG: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 900, "temperature": 1.0, "seed": 1, "logit_bias": {"2": -100}}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good, n_ctx=1024)


@pytest.fixture
def served(llm: specllama.Llama) -> Iterator[Served]:
    with serving(llm) as running:
        yield running


@contextlib.contextmanager
def held(llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Rounds of `llm` wait until the event is set: a generation that is under way for sure."""
    go_on = threading.Event()
    step = type(llm.engine.slot.loop).step

    class Held:
        def __init__(self, engine: Any) -> None:
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._engine, name)

        def step(self, most: int) -> Any:
            assert go_on.wait(30)
            return step(self._engine, most)

    with monkeypatch.context() as patch:
        patch.setattr(llm.engine.slot, "_loop", Held(llm.engine.slot.loop))
        try:
            yield go_on
        finally:
            go_on.set()


class _Body:
    """A large body of a request."""


def test_a_request_that_is_over_is_let_go() -> None:
    """A client that leaves while it waits, and one that was answered: no queue and no cycle keeps what it sent."""

    async def run() -> None:
        worker, go = Worker(max_waiting=4), threading.Event()

        def long_work(_: Watch) -> Iterator[Item]:
            go.wait()
            yield {}

        def started() -> tuple[Job, weakref.ref[_Body]]:
            body = _Body()

            def work(_: Watch, body: _Body = body) -> Iterator[Item]:
                yield {"of": id(body)}

            return worker.start(work), weakref.ref(body)

        gc.disable()
        try:
            running = worker.start(long_work)
            (left, of_left), (answered, of_answered) = started(), started()
            left.stop()
            assert of_left() is None
            go.set()
            assert [item async for item in running] == [{}]
            assert len([item async for item in answered]) == 1
            assert of_answered() is None
        finally:
            gc.enable()
            go.set()
            worker.shut_down()
            worker.close()

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_client_that_leaves_stops_its_generation(served: Served, stream: bool, path: str) -> None:
    expected = served.complete()["choices"]
    body = {**LONG, "stream": stream, "messages": [{"role": "user", "content": "hi"}]}
    connection = send(served, path, json.dumps(body).encode())
    if stream:
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 200")
    served.wait_until(lambda: not served.llm.engine.slot.is_idle and served.llm.stats.num_tokens > 0)
    connection.close()
    served.wait_until_idle()
    assert served.app.state.worker.outcomes["stopped"] == 1
    assert served.llm.stats.num_tokens < 900
    assert served.complete()["choices"] == expected


def test_a_client_that_leaves_is_noticed_within_a_round(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(llm, monkeypatch) as go_on:
        connection = send(served, "/v1/completions", json.dumps(LONG).encode())
        served.wait_until(lambda: not llm.engine.slot.is_idle)
        connection.close()
        job = next(iter(served.app.state.worker._jobs))
        served.wait_until(lambda: job._watch._stopped)
        go_on.set()
        served.wait_until_idle()
    assert llm.stats.num_drafts <= 1


def test_a_client_that_leaves_the_line(served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = served.app.state.worker
    with held(llm, monkeypatch) as go_on:
        first = send(served, "/v1/completions", json.dumps({**LONG, "max_tokens": 9}).encode())
        served.wait_until(lambda: worker.num_running == 1)
        second = send(served, "/v1/completions", json.dumps(LONG).encode())
        served.wait_until(lambda: worker.num_waiting == 1)
        second.close()
        served.wait_until(lambda: worker.num_waiting == 0)
        go_on.set()
        assert first.recv(1 << 16).startswith(b"HTTP/1.1 200")
        first.close()
    served.wait_until_idle()
    assert worker.outcomes == {"completed": 1, "stopped": 1, "failed": 0, "refused": 0}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_a_request_that_its_program_cancels_stops_its_generation(
    llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, path: str, stream: bool
) -> None:
    """There is no connection then, whose end would tell; and who cancels hears of it."""
    app = server.create_app(llm, name="tiny")
    body = {**LONG, "stream": stream}
    if path == "/v1/messages":
        body = {**body, "messages": [{"role": "user", "content": body.pop("prompt")}]}

    async def cancelled() -> None:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(client.post(path, json=body), 0.5)
            for _ in range(1000):
                go_on.set()
                if (await client.get("/health")).json()["running"] == 0:
                    break
                await asyncio.sleep(0.01)

    with held(llm, monkeypatch) as go_on:
        asyncio.run(cancelled())
    assert app.state.worker.outcomes == {"completed": 0, "failed": 0, "stopped": 1, "refused": 0}


def test_requests_wait_for_each_other(served: Served) -> None:
    bodies = [{**LONG, "max_tokens": 30, "seed": seed} for seed in range(6)]
    alone = [served.post("/v1/completions", **body).json()["choices"] for body in bodies]
    with ThreadPoolExecutor(6) as clients:
        together = list(clients.map(lambda body: served.post("/v1/completions", **body).json()["choices"], bodies))
    assert together == alone


@pytest.mark.parametrize("max_waiting", [0, 1])
@pytest.mark.parametrize("stream", [False, True])
def test_a_full_line_is_a_503(
    llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, max_waiting: int, stream: bool
) -> None:
    with serving(llm, max_waiting=max_waiting) as served:
        worker = served.app.state.worker
        for _ in range(5):  # one after the other is never refused
            served.complete(max_tokens=1)
        with held(llm, monkeypatch) as go_on, ThreadPoolExecutor(2) as clients:
            body = {**LONG, "max_tokens": 9}
            accepted = []
            for number in range(1 + max_waiting):
                accepted.append(clients.submit(served.post, "/v1/completions", **body))
                served.wait_until(lambda: worker.num_running + worker.num_waiting > number)  # noqa: B023
            refused = served.post("/v1/completions", **body, stream=stream)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert "try again" in refused.json()["error"]["message"]
            assert served.client.get("/health").status_code == 200
            assert served.metrics()["specllama_waiting"] == max_waiting
            go_on.set()
            assert [one.result().status_code for one in accepted] == [200] * (1 + max_waiting)
        assert worker.outcomes["refused"] == 1


GARBAGE: list[tuple[str, bytes]] = (
    [
        ("/v1/completions", body)
        for body in (
            b"",
            b"{",
            b"\xff\xfe\x00",
            b"[]",
            b"null",
            b'"text"',
            b"[" * 5000,
            b'{"prompt": {}}',
            b'{"prompt": ["a", true]}',
            b'{"prompt": ["a", {}]}',
            b'{"prompt": [1, -5]}',
            b'{"prompt": [1, 99999999999999]}',
            b'{"prompt": []}',
            b'{"prompt": "a", "max_tokens": "many"}',
            b'{"prompt": "a", "max_tokens": -3}',
            b'{"prompt": "a", "temperature": NaN}',
            b'{"prompt": "a", "temperature": Infinity, "top_p": 7}',
            b'{"prompt": "a", "n": 129}',
            b'{"prompt": "a", "n": 3, "best_of": 2}',
            b'{"prompt": "a", "verify": "trust"}',
            b'{"prompt": "a", "num_draft_tokens": -1}',
            b'{"prompt": "a", "num_draft_tokens": 100000}',
            b'{"prompt": "a", "num_draft_tokens": "some"}',
            b'{"prompt": "a", "seed": "x"}',
            b'{"prompt": "a", "seed": 1e40}',
            b'{"prompt": "a", "logit_bias": {"x": "y"}}',
            b'{"prompt": "a", "logit_bias": {"123456": 1}}',
            b'{"prompt": "a", "logit_bias": {"-1": 1}, "grammar": "root ::= \\"a\\""}',
            b'{"prompt": "a", "logit_bias": {"3": NaN}}',
            b'{"prompt": "a", "grammar": "no grammar"}',
            b'{"prompt": "a", "grammar": "root ::= root"}',
            b'{"prompt": "a", "grammar": "root ::= \\u0000"}',
            b'{"prompt": "a", "grammar": "root ::= ' + b"(" * 100_000 + b'"}',
            b'{"prompt": "a", "grammar": "root ::= \\"a\\"{1000000000}"}',
            b'{"prompt": "a", "grammar": "root ::= \\"a\\"{2,1}"}',
            b'{"prompt": "a", "logprobs": -1}',
            b'{"prompt": "a", "logprobs": 200000}',
            b'{"prompt": "a", "stop": 7}',
            b'{"prompt": "a", "mirostat_mode": 9}',
            b'{"prompt": "a", "stream": true, "grammar": "root ::= x"}',
            b'{"prompt": "' + b"a " * 3000 + b'"}',
        )
    ]
    + [
        ("/v1/chat/completions", body)
        for body in (
            b"{}",
            b'{"messages": []}',
            b'{"messages": "hi"}',
            b'{"messages": [{"role": "wizard", "content": "hi"}]}',
            b'{"messages": [{"role": "user", "content": 7}]}',
            b'{"messages": [{"role": "user", "content": ["hi"]}]}',
            b'{"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}',
            b'{"messages": [{"role": "user", "content": "hi"}], "tools": "hammer"}',
            b'{"messages": [{"role": "user", "content": "hi"}], "tools": [], "tool_choice": "required"}',
            b'{"messages": [{"role": "user", "content": "hi"}], "tools": [3], "tool_choice": "required"}',
            b'{"messages": [{"role": "user", "content": "hi"}], "tool_choice": {"type": "function", "function": '
            b'{"name": "g"}}, "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}',
            b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_schema"}}',
            b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "poem"}}',
            b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object", "schema": '
            b'{"type": "array", "items": {"type": "null"}, "minItems": 1000000000}}}',
            b'{"messages": [{"role": "user", "content": "hi"}], "response_format": {"type": "json_object", "schema": '
            b'{"type": "string", "maxLength": 5000, "not": {"const": "a"}}}}',
            b'{"messages": [{"role": "user", "content": "hi"}], "top_logprobs": -1}',
            b'{"messages": [{"role": "user", "content": "hi"}], "logprobs": true, "top_logprobs": 21}',
            b'{"messages": [{"role": "user", "content": "hi", "tool_calls": 5}]}',
            b'{"messages": [{"role": "user", "content": "hi", "tool_calls": ["f"]}]}',
        )
    ]
    + [
        ("/extras/detokenize", b'{"tokens": [5000000]}'),
        ("/extras/detokenize", b'{"tokens": [-1]}'),
        ("/extras/tokenize", b"{}"),
    ]
)


def test_garbage_is_answered_by_what_is_wrong_with_it(served: Served) -> None:
    expected = served.complete()["choices"]
    for path, body in GARBAGE:
        reply = served.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= reply.status_code < 500, (path, body[:200], reply.text)
        assert set(reply.json()["error"]) == {"message", "type", "param", "code"}
        assert len(reply.json()["error"]["message"]) < 1000
    assert served.complete()["choices"] == expected
    assert served.app.state.worker.outcomes["stopped"] == 0


def test_a_schema_that_llama_cpps_parser_might_crash_on(served: Served) -> None:
    """Its grammar has 5,000 rules, each within the one before. It is followed as far as it says something."""
    schema = {"type": "string", "maxLength": 5000, "not": {"const": "x"}}  # which llguidance does not take as a schema
    body = {
        "messages": [{"role": "user", "content": "hi"}],
        "max_tokens": 8,
        "response_format": {"type": "json_object", "schema": schema, "strict": False},
    }
    answer = served.post("/v1/chat/completions", **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"].startswith('"')
    assert "not" in answer.json()["warnings"][0]
    assert served.complete()["choices"]


TEMPLATE = """{% for m in messages %}{{ m.role }}: {{ m.content }}
{% for part in m.parts %}{{ part.size + 1 }}{% endfor %}{% endfor %}"""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("parts", "status", "why"),
    [
        ([{"size": 3}], 200, ""),
        (5, 400, "not iterable"),
        ([{"size": "x"}], 400, "can only concatenate"),
        ([{}], 400, "has no attribute"),
    ],
)
def test_messages_that_the_chat_template_cannot_render(
    served: Served, llm: specllama.Llama, stream: bool, parts: Any, status: int, why: str
) -> None:
    render = Jinja2ChatFormatter(TEMPLATE, eos_token="</s>", bos_token="<s>")
    llm.chat_handler = render.to_chat_handler()
    message = {"role": "user", "content": "hi", "parts": parts}
    reply = served.post("/v1/chat/completions", messages=[message], max_tokens=2, stream=stream)
    assert reply.status_code == status
    if status == 400:
        error = reply.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "the model's chat template cannot render these messages: " in error["message"]
        assert why in error["message"]


def test_the_limit_of_logprobs_is_said(served: Served) -> None:
    for path, name in (("/v1/completions", "logprobs"), ("/v1/chat/completions", "top_logprobs")):
        body = {"prompt": "a", "messages": [{"role": "user", "content": "a"}], "max_tokens": 1, "logprobs": 1}
        assert served.post(path, **{**body, name: 20}).status_code == 200
        assert f"{name}: Input should be less than or equal to 20" in served.post(path, **{**body, name: 21}).text


def test_what_is_no_request_at_all(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    for text in (b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST /v1/completions HTTP/1.1\r\nContent-"):
        with socket.create_connection((host, int(port))) as connection:
            connection.sendall(text)
    body = b'{"prompt": "a dog", "max_tokens": 4}'
    send(served, "/v1/completions", body[:9]).close()
    assert served.client.get("/v1/completions").status_code == 405
    assert served.client.post("/v1/completions", content=body, headers={"Content-Type": "text/plain"}).is_error
    assert served.complete()["usage"]["completion_tokens"] == 24


def test_a_prompt_that_is_too_long_has_openais_code(served: Served) -> None:
    reply = served.post("/v1/completions", prompt="a " * 3000)
    assert (reply.status_code, reply.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_prompt_of_too_many_ids_is_counted_in_tokens(served: Served) -> None:
    for path in ("/v1/completions", "/completion", "/tokenize"):
        error = served.post(path, **{"content" if path == "/tokenize" else "prompt": [5] * 3000}).json()["error"]
        assert "Requested tokens (3000) exceed context window of 1024" in error["message"]


HALVES = {
    "/v1/completions": [
        {"prompt": "\ud83d", "model": "\ud83d"},
        {"prompt": ["a \ud83d", 5]},
        {"prompt": "a", "stop": ["\udfff"]},
        {"prompt": "a", "grammar": 'root ::= "\ud83d"'},
        {"prompt": "a", "dry_multiplier": 1, "dry_sequence_breakers": ["\ud83d"]},
        {"prompt": "a", "prediction": "\ud83d"},
    ],
    "/v1/chat/completions": [{"messages": [{"role": "user", "content": "\ud83d"}]}],
    "/apply-template": [{"messages": [{"role": "user", "content": "\ud83d"}]}],
}


@pytest.mark.parametrize("path", HALVES)
def test_half_a_surrogate_pair_is_read_as_the_replacement_character(served: Served, path: str) -> None:
    """A client may cut a text in two within a character."""

    def sent(body: str) -> Any:
        reply = served.client.post(path, content=body.encode(), headers={"Content-Type": "application/json"})
        assert reply.status_code == 200, reply.text
        found = reply.json()
        return found.get("prompt") or (found["model"], [{**each, "logprobs": None} for each in found["choices"]])

    for body in HALVES[path]:
        text = json.dumps({**body, "max_tokens": 3, "temperature": 0.0})
        assert sent(text) == sent(re.sub(r"\\ud83d|\\udfff", r"\\ufffd", text))
    whole = served.post("/tokenize", content="\U0001f999 \\ud83d").json()["tokens"]
    assert served.post("/detokenize", tokens=whole).json()["content"].strip() == "\U0001f999 \\ud83d"


def test_an_error_of_ours_is_a_500_and_is_logged(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("the roof is on fire")

    with monkeypatch.context() as patch:
        patch.setattr(llm, "create_completion", fail)
        reply = served.post("/v1/completions", prompt="a")
    assert (reply.status_code, reply.json()["error"]["type"]) == (500, "server_error")
    assert "the roof is on fire" in caplog.text
    served.complete()


def test_an_error_in_the_middle_of_a_stream_is_its_last_event(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = llm.create_completion

    def fail_later(**arguments: Any) -> Iterator[Any]:
        yield next(iter(create(**arguments)))
        raise RuntimeError("no more")

    with monkeypatch.context() as patch:
        patch.setattr(llm, "create_completion", fail_later)
        lines = served.post("/v1/completions", prompt="a", stream=True).text.split("\n\n")
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["message"] == "no more"
    assert "[DONE]" not in lines
    served.complete()


def test_a_slow_reader_keeps_nobody_waiting(served: Served) -> None:
    slow = send(served, "/v1/completions", json.dumps({**LONG, "stream": True, "timings_per_token": True}).encode())
    served.wait_until(lambda: served.app.state.worker.num_running == 1)
    served.wait_until_idle()
    assert served.app.state.worker.outcomes["completed"] == 1
    served.complete()
    received = b""
    while b"[DONE]" not in received[-100:]:
        received += slow.recv(1 << 16)
    slow.close()
