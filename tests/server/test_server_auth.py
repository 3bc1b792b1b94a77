"""With an API key nothing answers without it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from needed import imported

imported("fastapi")

from served import Served, serving  # needs the extra

from specllama import server

if TYPE_CHECKING:
    from conftest import MakeLlama

KEY = "a kéy"
PATHS = ["/", "/health", "/metrics", "/v1/models", "/openapi.json", "/nowhere"]
POSTS = ["/v1/completions", "/v1/chat/completions", "/extras/tokenize", "/extras/tokenize/count", "/extras/detokenize"]
UTF_8 = KEY.encode().decode("latin-1")


@pytest.fixture
def locked(make_llama: MakeLlama) -> Iterator[Served]:
    with serving(make_llama(), api_key=KEY) as running:
        yield running


@pytest.mark.parametrize("header", [None, "", "Bearer", "Bearer x", f"Bearer {UTF_8}x", "Basic !", "Basic YTpi"])
def test_nothing_answers_without_the_key(locked: Served, header: str | None) -> None:
    headers = {} if header is None else {"Authorization": header.encode("latin-1")}
    replies = [locked.client.get(path, headers=headers) for path in PATHS]
    replies += [locked.client.post(path, headers=headers, content=b"{}") for path in POSTS]
    for reply in replies:
        assert reply.status_code == 401
        assert "API key" in reply.json()["error"]["message"]
        assert reply.headers["www-authenticate"].startswith("Basic")
    assert locked.app.state.worker.outcomes.total() == 0


def test_everything_answers_with_it(locked: Served) -> None:
    for options in ({"headers": {"Authorization": f"bearer {UTF_8}".encode("latin-1")}}, {"auth": ("me", KEY)}):
        assert [locked.client.get(path, **options).status_code for path in PATHS] == [200] * 5 + [404]
        body = {"prompt": "a dog", "max_tokens": 2}
        assert locked.client.post("/v1/completions", json=body, **options).status_code == 200
    metrics = locked.client.get("/metrics", auth=("", KEY)).text
    assert 'specllama_requests_total{endpoint="/v1/completions",status="200"} 2.0' in metrics


@pytest.mark.parametrize("key", ["k\n", " k ", "k à"])
def test_white_space_around_the_key(make_llama: MakeLlama, key: str) -> None:
    """A header's ends have none, and the file that a key was read from has a newline."""
    bearer = f"Bearer {key.strip()}".encode()
    with serving(make_llama(), api_key=key) as served:
        for options in (
            {"headers": {"Authorization": bearer}},
            {"headers": {"X-Api-Key": bearer[7:]}},
            {"auth": ("me", key)},
        ):
            assert served.client.get("/health", **options).status_code == 200
        assert served.client.get("/health", headers={"Authorization": bearer + b"x"}).status_code == 401


def test_an_empty_key_is_refused(make_llama: MakeLlama) -> None:
    with pytest.raises(ValueError, match="API key is empty"):
        server.create_app(make_llama(), name="tiny", api_key=" ")
    with pytest.raises(ValueError, match="max_waiting=-1"):
        server.create_app(make_llama(), name="tiny", max_waiting=-1)
