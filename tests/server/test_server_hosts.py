"""Whom the server answers to: not to pages of other names, even if they resolve to this machine."""

from __future__ import annotations

import asyncio
import json
import shutil
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import CHROMIUM, imported, missing

imported("fastapi")

import httpx
from served import Served, serving  # needs the extra

from specllama import cli, server

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

BODY = {"prompt": "a dog", "max_tokens": 2}
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ANSWERED = [
    *("localhost", "LOCALHOST:8000", "localhost.", "mine.localhost:80", "127.0.0.1", "127.3.2.1:9", "[::1]:8000"),
    *("::1", "0:0:0:0:0:0:0:1"),
]
REFUSED = [
    *(
        "evil.test",
        "evil.test:8000",
        "127.0.0.1.evil.test",
        "localhost.evil.test",
        "notlocalhost",
        "10.0.0.1",
        "x@localhost",
    ),
    *("localhost/x", "localhost:8000:1", "[::2]", "[localhost", "localhost evil.test", "0.0.0.0", "*"),
]


@pytest.fixture
def served(make_llama: MakeLlama) -> Iterator[Served]:
    with serving(make_llama()) as running:
        yield running


def status(served: Served, host: str, origin: str | None = None) -> int:
    headers = {"Host": host} if origin is None else {"Host": host, "Origin": origin}
    replies = [
        served.client.get("/health", headers=headers),
        served.client.get("/", headers=headers),
        served.client.post("/v1/completions", json=BODY, headers=headers),
    ]
    (found,) = {reply.status_code for reply in replies}
    if found == 403:
        assert "allowed-host" in replies[2].json()["error"]["message"]
    return found


@pytest.mark.parametrize("host", ANSWERED)
def test_loopback_names_are_answered(served: Served, host: str) -> None:
    host = host if host.count(":") < 2 or host.startswith("[") else f"[{host}]"
    assert status(served, host) == 200


def test_other_names_are_not(served: Served) -> None:
    assert {host: status(served, host) for host in REFUSED} == dict.fromkeys(REFUSED, 403)
    assert served.app.state.worker.outcomes.total() == 0


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("http://localhost:80/health", 200),
        ("HTTP://LOCALHOST/", 200),
        ("http://localhost", 200),
        ("http://evil.test/health", 403),
        ("http:///health", 403),
        ("http://localhost/http://localhost/health", 404),
    ],
)
def test_a_target_that_names_the_server(served: Served, target: str, expected: int) -> None:
    """It counts, and not the header beside it."""
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": target, "raw_path": target.encode()}
    scope |= {"query_string": b"", "headers": [(b"host", b"localhost")], "scheme": "http", "server": ("localhost", 80)}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b""}

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(served.app(scope, receive, send))
    assert sent[0]["status"] == expected


def test_names_that_were_allowed(make_llama: MakeLlama) -> None:
    with serving(make_llama(), allowed_hosts=["LLM.example.com", "10.0.0.1"]) as served:
        hosts = {"llm.example.com": 200, "llm.example.com:443": 200, "10.0.0.1:8000": 200, "localhost": 200}
        refused = {"10.0.0.2": 403, "x.llm.example.com": 403, "example.com": 403}
        assert {host: status(served, host) for host in {**hosts, **refused}} == {**hosts, **refused}
        assert status(served, "localhost", "https://llm.example.com") == 200


def test_an_unspecified_address_allows_addresses_and_no_names(make_llama: MakeLlama) -> None:
    for unspecified in ("0.0.0.0", "::"):
        with serving(make_llama(), allowed_hosts=[unspecified]) as served:
            hosts = {"10.0.0.1": 200, "[fe80::1]:8000": 200, "evil.test": 403, "localhost": 200}
            assert {host: status(served, host) for host in hosts} == hosts


def test_all_may_be_allowed(make_llama: MakeLlama) -> None:
    with serving(make_llama(), allowed_hosts=["*"]) as served:
        assert status(served, "evil.test", "http://other.test") == 200


def test_a_page_of_another_origin_may_not_ask(served: Served) -> None:
    host = served.url.removeprefix("http://")
    port = host.rpartition(":")[2]
    assert status(served, host, served.url) == 200
    assert status(served, f"localhost:{port}", f"http://localhost:{port}") == 200
    others = ["http://evil.test", f"http://localhost:{port}", "http://127.0.0.1:1", "null", "file://", "", "x"]
    assert {origin: status(served, host, origin) for origin in others} == dict.fromkeys(others, 403)


ELSEWHERE = "http://app.example.com"
BEFORE = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, authorization"}


@pytest.mark.parametrize("allowed", ["app.example.com", "*"])
@pytest.mark.parametrize("key", [None, "sesame"])
def test_an_allowed_page_of_elsewhere_may_read_answers(make_llama: MakeLlama, allowed: str, key: str | None) -> None:
    with serving(make_llama(), allowed_hosts=[allowed], api_key=key) as served:
        asked = served.client.options("/v1/completions", headers={"Origin": ELSEWHERE, **BEFORE})
        assert asked.status_code == 204  # a browser sends no key with it
        assert asked.headers["access-control-allow-origin"] == ELSEWHERE
        assert asked.headers["access-control-allow-headers"] == BEFORE["Access-Control-Request-Headers"]
        assert {"GET", "POST"} <= {*asked.headers["access-control-allow-methods"].split(", ")}
        sent = {"Origin": ELSEWHERE, **({"Authorization": f"Bearer {key}"} if key else {})}
        stream = {**BODY, "stream": True}
        replies = [served.client.post("/v1/completions", json=body, headers=sent) for body in (BODY, stream, {"x": 1})]
        replies.append(served.client.get("/health", headers=sent))
        assert [reply.status_code for reply in replies] == [200, 200, 400, 200]
        without_key = served.client.get("/health", headers={"Origin": ELSEWHERE})
        assert without_key.status_code == (401 if key else 200)
        for reply in (*replies, without_key):
            assert reply.headers["access-control-allow-origin"] == ELSEWHERE
            assert reply.headers["vary"] == "Origin"


def test_nobody_else_is_told_to_read(make_llama: MakeLlama) -> None:
    with serving(make_llama(), allowed_hosts=["app.example.com"]) as served:
        for origin in ("http://other.example.com", "http://x.app.example.com", "null", "http://localhost:1"):
            for reply in (
                served.client.options("/v1/completions", headers={"Origin": origin, **BEFORE}),
                served.client.post("/v1/completions", json=BODY, headers={"Origin": origin}),
            ):
                assert reply.status_code == 403
                assert not [name for name in reply.headers if name.startswith("access-control")]
        own = served.client.get("/health", headers={"Origin": served.url})
        assert own.status_code == 200 and "access-control-allow-origin" not in own.headers
        assert served.client.options("/health").status_code == 405


def test_where_it_listens_is_no_page(make_llama: MakeLlama) -> None:
    """Whatever else this machine serves is of another origin."""
    with serving(make_llama(), host="10.0.0.1") as served:
        assert status(served, "10.0.0.1:8000", "http://10.0.0.1:8000") == 200
        assert status(served, "10.0.0.1:8000", "http://10.0.0.1:9000") == 403
    with serving(make_llama(), host="0.0.0.0") as served:
        assert (status(served, "10.0.0.1:8000"), status(served, "evil.test")) == (200, 403)
        assert status(served, "10.0.0.1:8000", "http://10.0.0.1:9000") == 403


def test_a_request_that_no_browser_sends(served: Served) -> None:
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(b"GET /health HTTP/1.0\r\n\r\n")
        assert b" 200 " in connection.recv(1 << 16)


def test_a_body_without_a_content_type_is_refused(served: Served) -> None:
    """A browser sends it to any address without asking first."""
    for path in ("/v1/completions", "/v1/chat/completions", "/extras/tokenize"):
        for headers in ({}, {"Content-Type": "text/plain"}, {"Content-Type": ""}):
            body = json.dumps({**BODY, "input": "x", "messages": [{"role": "user", "content": "hi"}]})
            assert served.client.post(path, content=body.encode(), headers=headers).status_code == 400
    assert served.app.state.worker.outcomes.total() == 0


def test_a_key_does_not_change_it(make_llama: MakeLlama) -> None:
    with serving(make_llama(), api_key="sesame") as served:
        headers = {"Host": "evil.test", "Authorization": "Bearer sesame"}
        assert served.client.get("/health", headers=headers).status_code == 403


@pytest.mark.parametrize("name", ["", "http://x", "x/y", "a b", "x:1:2"])
def test_what_is_no_host(make_llama: MakeLlama, name: str) -> None:
    with pytest.raises(ValueError, match="neither a name nor an address"):
        server.create_app(make_llama(), name="tiny", allowed_hosts=[name])


def test_the_commands_options(tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    create = server.create_app
    monkeypatch.setattr(server, "create_app", lambda llm, **options: given.append(options) or create(llm, **options))
    monkeypatch.setattr(server, "serve", lambda *_: None)
    options = ["--host", "localhost", "--allowed-host", "a.test", "--allowed-host", "b.test", "--alias", "mine"]
    assert cli.main(["serve", "-m", str(tiny_files.target), "--port", "0", *options]) == 0
    assert (given[0]["host"], given[0]["allowed_hosts"]) == ("localhost", ["a.test", "b.test"])
    assert given[0]["name"] == "mine"
    assert cli.main(["serve", "-m", str(tiny_files.target), "--port", "0", "--allowed-host", "http://a.test"]) == 1


ASK = """async (url) => {
  const headers = { "Content-Type": "application/json" };
  const options = { method: "POST", headers, body: '{"prompt": "a", "max_tokens": 1}' };
  try { return (await fetch(url + "/v1/completions", options)).status; } catch (error) { return "blocked"; }
}"""
BLOB = """async (url) => {
  await fetch(url + "/v1/completions", { method: "POST", mode: "no-cors", body: new Blob(['{"prompt": "a"}']) });
}"""


@pytest.mark.long
def test_a_rebound_name_in_a_browser(served: Served) -> None:
    """evil.test resolves to this machine, so that the browser takes its page and the server for one origin."""
    if BROWSER is None:
        missing("there is no Chromium on PATH (Debian: apt-get install chromium)", CHROMIUM)
    playwright = imported("playwright.sync_api")
    port = served.url.rpartition(":")[2]
    rules = "--host-resolver-rules=MAP evil.test 127.0.0.1"
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking", rules]
        )
        page = browser.new_page()
        loaded = page.goto(f"http://evil.test:{port}/")
        assert loaded.status == 403
        assert page.evaluate(ASK, f"http://evil.test:{port}") == 403
        assert page.evaluate(ASK, served.url) == "blocked"
        page.evaluate(BLOB, served.url)
        assert page.goto(served.url).status == 200
        assert page.evaluate(ASK, served.url) == 200
        browser.close()
    outcomes = served.app.state.worker.outcomes
    assert (outcomes["completed"], outcomes.total()) == (1, 1)
    assert httpx.get(served.url + "/health").status_code == 200
