"""When the bytes of a stream come: its head at once, pings while nothing else comes, and no more than are read."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from needed import imported

imported("fastapi")
openai = imported("openai")

from served import Served, send, serving  # needs the extra
from test_server_faults import held
from test_server_sizes import timed

import specllama
from specllama.server import connections, job, prompt_progress

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

HI: list[Any] = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"temperature": 0.0, "stream": True}
STREAMS: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the cat", "max_tokens": 3},
    "/v1/chat/completions": {"messages": HI, "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
    "/v1/messages": {"messages": HI, "max_tokens": 3},
    "/completion": {"prompt": "the cat", "n_predict": 3},
}
PINGS = dict.fromkeys(STREAMS, b": ping\n\n") | {"/v1/messages": b'event: ping\ndata: {"type":"ping"}\n\n'}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def llm(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good, n_ctx=1024)


@pytest.fixture
def served(llm: specllama.Llama) -> Iterator[Served]:
    with serving(llm) as running:
        yield running


def read_until(connection: socket.socket, wanted: bytes, received: bytes = b"") -> bytes:
    connection.settimeout(30)
    while wanted not in received:
        part = connection.recv(1 << 16)
        assert part, received
        received += part
    return received


def objects(raw: bytes) -> list[Any]:
    """The objects of the events in the bytes of an answer."""
    lines = [line for line in raw.decode().splitlines() if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


# The head and pings


@pytest.mark.parametrize("path", STREAMS)
def test_a_stream_is_alive_before_its_first_token(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Both one that is read, and one that waits in line; and the pings change nothing."""
    monkeypatch.setattr(prompt_progress, "_PING", 0.05)
    body = {**GREEDY, **STREAMS[path]}
    plain = served.client.post(path, json=body).text
    with held(llm, monkeypatch) as go_on, contextlib.ExitStack() as open_ones:
        content = json.dumps(body).encode()
        both = [open_ones.enter_context(contextlib.closing(send(served, path, content))) for _ in range(2)]
        received = [read_until(one, PINGS[path]) for one in both]
        assert all(each.startswith(b"HTTP/1.1 200") and b"text/event-stream" in each for each in received)
        assert served.app.state.worker.num_waiting == 1
        go_on.set()
        received = [read_until(one, b"0\r\n\r\n", each) for one, each in zip(both, received, strict=True)]
    for each in received:
        texts = [text_of(found) for found in objects(each) if found.get("type") != "ping"]
        assert "".join(texts) == "".join(map(text_of, objects(plain.encode()))) != ""


@pytest.mark.parametrize("path", STREAMS)
def test_a_prompt_is_tokenized_once(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Whether a request can begin is seen before the head goes out; what was prepared for it is then answered."""
    tokenized: list[bytes] = []
    tokenize = specllama.Llama.tokenize

    def noting(self: specllama.Llama, text: bytes, *args: Any, **options: Any) -> list[int]:
        tokenized.append(text)
        return tokenize(self, text, *args, **options)

    body = json.loads(json.dumps({**GREEDY, **STREAMS[path]}).replace("hi", "a dog").replace("the cat", "a dog"))
    served.client.post(path, json=STREAMS[path])  # now it is known what the template reads
    monkeypatch.setattr(specllama.Llama, "tokenize", noting)
    assert served.client.post(path, json=body).status_code == 200
    assert sum(b"a dog" in text for text in tokenized) == 1


def text_of(found: Any) -> str:
    """The text that an event adds, in any dialect."""
    for choice in found.get("choices", ()):
        return choice.get("text") or choice.get("delta", {}).get("content") or ""
    delta = found.get("delta", "")
    return found.get("content") or (delta if isinstance(delta, str) else delta.get("text", ""))


def test_the_progress_and_pings(served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_progress, "_PING", 0.05)
    body = {**GREEDY, **STREAMS["/v1/completions"], "return_progress": True}
    with (
        held(llm, monkeypatch) as go_on,
        contextlib.closing(send(served, "/v1/completions", json.dumps(body).encode())) as one,
    ):
        received = read_until(one, PINGS["/v1/completions"])
        go_on.set()
        assert b"[DONE]" in read_until(one, b"0\r\n\r\n", received)


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/completions", {"prompt": "a " * 3000}, "exceed context window"),
    ("/v1/completions", {"prompt": [10**6]}, "out of range"),
    ("/v1/completions", {"prompt": ["a", [10**6]]}, "out of range"),
    ("/v1/completions", {"prompt": "a", "temperature": float("nan")}, "temperature"),
    ("/v1/completions", {"prompt": "a", "grammar": "root ::= x"}, "grammar"),
    ("/v1/completions", {"prompt": "a", "logit_bias": {"123456": 1}}, "logit_bias"),
    ("/v1/completions", {"prompt": "a", "num_draft_tokens": -1}, "num_draft_tokens"),
    ("/v1/completions", {"prompt": "a", "suffix": "b"}, "suffix"),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a " * 3000}]}, "exceed context window"),
    ("/v1/chat/completions", {"messages": HI, "tool_choice": "required"}, "there are no tools"),
    ("/v1/chat/completions", {"messages": [{**HI[0], "nme": "x"}]}, "did you mean name?"),
    ("/v1/responses", {"input": "a " * 3000}, "exceed context window"),
    (
        "/v1/messages",
        {"messages": [{"role": "user", "content": "a " * 3000}], "max_tokens": 1},
        "exceed context window",
    ),
]


def test_a_wrong_request_has_its_status_and_does_not_wait(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(llm, monkeypatch) as go_on, contextlib.closing(send(served, "/v1/completions", b'{"prompt": "a"}')):
        served.wait_until(lambda: served.app.state.worker.num_running == 1)
        for path, fields, why in WRONG:
            content = json.dumps({**GREEDY, **fields})
            reply = served.client.post(path, content=content, headers={"Content-Type": "application/json"}, timeout=30)
            assert (reply.status_code, why in reply.text) == (400, True), (path, why, reply.text)
        assert served.app.state.worker.num_waiting == 0
        go_on.set()


def test_what_decodes_by_itself_is_not_tried(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A handler of the user's that asks for a completion before its stream begins, and reads a prompt itself."""

    def asking(llama: Any, messages: Any, **_: Any) -> Any:
        word = llama.create_completion("the", max_tokens=1, temperature=0.0)["choices"][0]["text"]
        llama.reset()
        llama.eval(llama.tokenize(b"the"))
        return iter(
            [
                {
                    "id": "x",
                    "created": 1,
                    "model": "m",
                    "choices": [{"index": 0, "delta": {"content": word}, "finish_reason": "stop", "logprobs": None}],
                }
            ]
        )

    with held(llm, monkeypatch) as go_on, contextlib.closing(send(served, "/v1/completions", b'{"prompt": "a"}')):
        served.wait_until(lambda: served.app.state.worker.num_running == 1)
        llm.chat_handler = asking
        with contextlib.closing(
            send(served, "/v1/chat/completions", json.dumps({"messages": HI, "stream": True}).encode())
        ) as one:
            read_until(one, b"200")
            go_on.set()
            assert b'"content":"' in read_until(one, b"[DONE]")


def test_an_error_behind_the_head_is_an_event(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the dialect of the route; and OpenAI's client raises it."""

    def none(_: Any, __: Any) -> Any:
        raise RuntimeError("out of order")

    monkeypatch.setattr(type(llm.engine.slot.loop), "step", none, raising=False)
    for path, fields in STREAMS.items():
        raw = served.client.post(path, json={**GREEDY, **fields})
        assert raw.status_code == 200
        last = objects(raw.content)[-1]
        assert "error" in last and "out of order" in json.dumps(last)
        assert "[DONE]" not in raw.text
    client = openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0)
    with client, pytest.raises(openai.APIError, match="out of order"):
        list(client.chat.completions.create(model="m", messages=HI, stream=True))


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
def test_openais_client_passes_over_pings(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(prompt_progress, "_PING", 0.02)
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="x", max_retries=0) as client,
        held(llm, monkeypatch) as go_on,
    ):
        timer = threading.Timer(0.3, go_on.set)
        timer.start()
        if path == "/v1/responses":
            events = list(client.responses.create(model="m", input="hi", max_output_tokens=3, stream=True))
            assert events[-1].response.usage.output_tokens == 3
        else:
            chunks = list(client.chat.completions.create(model="m", messages=HI, max_tokens=3, stream=True))
            assert chunks[-1].choices[0].finish_reason == "length"
        timer.join()


def test_anthropics_client_passes_over_pings(
    served: Served, llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch
) -> None:
    anthropic = imported("anthropic")
    monkeypatch.setattr(prompt_progress, "_PING", 0.02)
    with (
        anthropic.Anthropic(base_url=served.url, api_key="x", max_retries=0) as client,
        held(llm, monkeypatch) as go_on,
    ):
        timer = threading.Timer(0.3, go_on.set)
        timer.start()
        with client.messages.stream(model="m", messages=HI, max_tokens=3) as stream:
            message = stream.get_final_message()
        assert message.usage.output_tokens == 3 and message.content[0].text
        timer.join()


# Clients that do not read


MANY: dict[str, Any] = {
    **{"prompt": "the cat", "n": 16, "max_tokens": 400, "logprobs": 20, "ignore_eos": True, "stream": True, "seed": 1},
}


@pytest.mark.parametrize("max_parallel", [1, 4])
@pytest.mark.long
def test_what_nobody_reads_is_bounded(llm: specllama.Llama, monkeypatch: pytest.MonkeyPatch, max_parallel: int) -> None:
    """It took all the memory that all its texts take: gigabytes. Others are answered, before or behind it."""
    monkeypatch.setattr(job, "_MOST_UNREAD", 200_000)
    monkeypatch.setattr(job, "_PATIENCE", 1.0)
    with serving(llm, max_parallel=max_parallel) as served:
        worker = served.app.state.worker
        with contextlib.closing(send(served, "/v1/completions", json.dumps(MANY).encode())):
            served.wait_until(lambda: worker.num_running == 1)
            (unread,) = worker._jobs
            most = 0
            while worker.outcomes["stopped"] == 0:
                most = max(most, unread._unread)
                time.sleep(0.01)
            assert 200_000 <= most < 250_000
            assert served.complete()["usage"]["completion_tokens"] == 24
    assert worker.outcomes["completed"] == 1


@pytest.mark.long
def test_others_go_on_while_a_text_waits_for_its_reader(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """And who reads after all gets all of it."""
    monkeypatch.setattr(job, "_MOST_UNREAD", 100_000)
    monkeypatch.setattr(job, "_PATIENCE", 60.0)
    body = {**MANY, "n": 3, "max_tokens": 3000}
    with serving(make_llama(n_ctx=4096), max_parallel=4) as served:
        whole = served.client.post("/v1/completions", json=body)
        with contextlib.closing(send(served, "/v1/completions", json.dumps(body).encode())) as slow:
            served.wait_until(lambda: served.app.state.worker.num_running == 1)
            (unread,) = served.app.state.worker._jobs
            served.wait_until(lambda: unread._unread >= 100_000)
            assert served.complete()["usage"]["completion_tokens"] == 24
            received = read_until(slow, b"[DONE]")

    def texts(raw: bytes) -> dict[int, str]:
        found: dict[int, str] = {}
        for line in raw.split(b"data: ")[1:]:
            if line.startswith(b"{"):
                [choice] = json.loads(line.split(b"\n")[0])["choices"]
                found[choice["index"]] = found.get(choice["index"], "") + choice["text"]
        return found

    assert texts(received) == texts(whole.content) and len(texts(received)) == 3


@pytest.mark.long
def test_a_connection_that_nobody_reads_is_closed(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the command configures the server: a stream that has ended keeps nothing, either."""
    monkeypatch.setattr(connections, "SECONDS_TO_READ", 0.5)
    body = json.dumps({**MANY, "n": 64}).encode()
    with timed(make_llama) as (host, port), socket.create_connection((host, port), timeout=30) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)
        deadline, stopped = time.monotonic() + 60, 0.0
        while not stopped and time.monotonic() < deadline:
            text = httpx.get(f"http://{host}:{port}/metrics").text
            stopped = float(text.split('specllama_generations_total{outcome="stopped"} ')[1].split("\n")[0])
            time.sleep(0.05)
        assert stopped == 1.0
