"""/v1/embeddings, as OpenAI's client asks for it."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
import tiny_models as tiny
from needed import imported

imported("fastapi")
openai = imported("openai")

from served import Served, send, serving  # needs the extra

import specllama
from specllama import cli, server
from specllama.commands import serve

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

TEXTS = ["the cat sat on the dog", "no fox", "a dog and a cat"]


def vectors(response: Any) -> npt.NDArray[np.float32]:
    assert response.status_code == 200, response.text
    body = response.json()
    assert [one["index"] for one in body["data"]] == list(range(len(body["data"])))
    openai.types.CreateEmbeddingResponse.model_validate(body)
    return np.array([one["embedding"] for one in body["data"]], dtype=np.float32)


@pytest.fixture(params=["second", "own", "generative"])
def served(request: pytest.FixtureRequest, make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    """A second model made for it, the target's own, and a second one that was made to generate."""
    if request.param == "own":
        with serving(make_llama(embedding=True, pooling_type=1, n_batch=256)) as running:
            yield running
        return
    file = tiny_files.embedding if request.param == "second" else tiny_files.target
    with (
        server.open_embedder(str(file), n_ctx=256, n_batch=256, n_threads=1, verbose=False) as embedder,
        serving(make_llama(draft=tiny_files.good), embedder=embedder) as running,
    ):
        yield running


def test_vectors(served: Served) -> None:
    found = vectors(served.post("/v1/embeddings", input=TEXTS))
    assert np.allclose(np.linalg.norm(found, axis=1), 1.0, atol=1e-5)
    assert len({one.tobytes() for one in found}) == len(TEXTS)
    for text, expected in zip(TEXTS, found, strict=True):
        assert np.allclose(vectors(served.post("/v1/embeddings", input=text))[0], expected, atol=1e-4)
        assert np.allclose(
            vectors(served.post("/embeddings", input=[text], user="me", model=None))[0], expected, atol=1e-4
        )
    assert served.complete("the cat", max_tokens=3)["usage"]["completion_tokens"] <= 3


def test_openais_client(served: Served) -> None:
    """It asks for base64."""
    expected = vectors(served.post("/v1/embeddings", input=TEXTS))
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none") as client:
        found = client.embeddings.create(model="tiny", input=TEXTS)
    assert np.allclose([one.embedding for one in found.data], expected, atol=1e-6)
    assert found.usage.prompt_tokens > 0
    raw = served.post("/v1/embeddings", input=TEXTS[0], encoding_format="base64").json()["data"][0]["embedding"]
    assert np.allclose(np.frombuffer(base64.b64decode(raw), dtype="<f4"), expected[0], atol=1e-4)


def test_token_ids(served: Served) -> None:
    tokens = [[5, 6, 7, 8], [9, 10]]
    found = vectors(served.post("/v1/embeddings", input=tokens))
    assert np.allclose(vectors(served.post("/v1/embeddings", input=tokens[1]))[0], found[1], atol=1e-4)
    assert len(vectors(served.post("/v1/embeddings", input=[[5] * 200] * 100))) == 100
    assert len(served.post("/embedding", content=[[5] * 200] * 100).json()) == 100


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input is empty"),
    ({"input": "the cat " * 300}, "n_batch=256"),
    ({"input": "x" * 100_000}, "context"),
    ({"input": [2**40]}, "vocabulary"),
    ({"input": "a", "dimensions": 3}, "dimensions=3"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
    ({"input": "a", "temperature": 1}, "temperature"),
    ({}, "input"),
]


def test_what_is_refused(served: Served) -> None:
    for body, message in REFUSED:
        response = served.post("/v1/embeddings", **body)
        assert response.status_code == 400, response.text
        told = response.json()["error"]["message"]
        assert message in told
        assert "(-c)" not in told  # a client cannot do that, and a second model has limits of its own
    assert len(vectors(served.post("/v1/embeddings", input="the cat"))) == 1


def test_beside_texts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Many of both at once: each gets what it gets alone."""
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=4)
    with (
        server.open_embedder(str(tiny_files.embedding), n_ctx=256, n_batch=256, n_threads=1, verbose=False) as embedder,
        serving(llm, embedder=embedder, max_waiting=64, max_parallel=2) as served,
        ThreadPoolExecutor(8) as pool,
    ):
        alone, text = vectors(served.post("/v1/embeddings", input=TEXTS)), served.complete()["choices"][0]["text"]
        asked = [pool.submit(served.post, "/v1/embeddings", input=TEXTS) for _ in range(20)]
        texts = [pool.submit(served.complete) for _ in range(10)]
        for future in asked:
            assert np.allclose(vectors(future.result()), alone, atol=1e-4)
        assert {future.result()["choices"][0]["text"] for future in texts} == {text}


@pytest.mark.parametrize("how", ["the client leaves", "the server ends"])
def test_embeddings_stop_within_a_batch(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    begun, go_on, num_batches = threading.Event(), threading.Event(), 0
    real = specllama.llama.embeddings

    def held(*arguments: Any) -> Any:
        nonlocal num_batches
        num_batches += 1
        begun.set()
        assert go_on.wait(30)
        return real(*arguments)

    monkeypatch.setattr(specllama.llama, "embeddings", held)
    with (
        server.open_embedder(str(tiny_files.embedding), n_ctx=256, n_batch=256, n_threads=1, verbose=False) as embedder,
        serving(make_llama(draft=tiny_files.good), embedder=embedder) as served,
    ):
        worker = served.app.state.embedding_worker
        connection = send(served, "/v1/embeddings", json.dumps({"input": [TEXTS[0]] * 3000}).encode())
        assert begun.wait(30)
        (job,) = worker._jobs
        if how == "the client leaves":
            connection.close()
        else:
            worker.shut_down()  # as the server's end does
        served.wait_until(lambda: job._watch._stopped)
        go_on.set()
        served.wait_until(lambda: worker.num_running == 0)
        assert num_batches == 1
        assert worker.outcomes["stopped"] == 1
        if how == "the client leaves":
            assert len(vectors(served.post("/v1/embeddings", input=TEXTS))) == 3
        else:
            assert connection.recv(1 << 16).startswith(b"HTTP/1.1 503")
            connection.close()


def test_a_server_without(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served:
        response = served.post("/v1/embeddings", input="a")
    assert response.status_code == 400
    assert "start it with --embedding-model FILE" in response.json()["error"]["message"]


def test_a_vector_that_is_not_finite_is_an_error(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("llama_cpp.llama_get_embeddings_seq", lambda *_: [float("nan")] * 1000)
    llm = make_llama(tiny_files.embedding, embedding=True)
    with serving(llm) as served:
        response = served.post("/v1/embeddings", input="a")
    assert response.status_code == 500
    assert "computes NaN" in response.json()["error"]["message"]


def test_embedders_that_make_no_vector_of_a_text(make_llama: MakeLlama, tmp_path: Path) -> None:
    """No embedding=True, a vector for each token, a score, and a model on which llama.cpp would end the process."""
    llm = make_llama()
    for options in ({}, {"embedding": True}):
        with pytest.raises(ValueError, match=r"create the Llama with embedding=True, and if .* pooling_type="):
            server.create_app(llm, name="tiny", embedder=make_llama(**options))
    ranks = tiny.write_embedding_model(tmp_path / "reranker.gguf", 1, num_scores=1)
    with pytest.raises(ValueError, match="this model ranks, and makes no embeddings"):
        server.create_app(llm, name="tiny", embedder=make_llama(ranks, embedding=True))
    with pytest.raises(ValueError, match="this model ranks, and makes no embeddings"):
        server.open_embedder(str(ranks), n_ctx=64, verbose=False)
    with serving(make_llama(ranks, embedding=True)) as served:
        assert served.post("/v1/embeddings", input="a").status_code == 400
    with pytest.raises(ValueError, match="has an encoder and a decoder"):
        server.create_app(llm, name="tiny", embedder=make_llama(tiny.write_t5(tmp_path / "t5.gguf", 1), embedding=True))


@pytest.mark.parametrize("name", ["llm", "embedder"])
def test_what_is_no_llama_of_ours(make_llama: MakeLlama, make_base: MakeBase, name: str) -> None:
    for other, kind in ((make_base(embedding=True), "llama_cpp.llama.Llama"), ("nomic.gguf", "builtins.str")):
        given: dict[str, Any] = {"llm": make_llama(), name: other}
        with pytest.raises(TypeError, match=f"^{name} is a {kind}: open it with specllama.Llama$"):
            server.create_app(given.pop("llm"), name="tiny", **given)


def test_the_same_llama_answers_and_embeds(make_llama: MakeLlama) -> None:
    """A request waits for the other kind, too."""
    llm = make_llama(embedding=True, pooling_type=1, n_batch=256)
    with serving(llm, embedder=llm, max_waiting=64) as served, ThreadPoolExecutor(8) as pool:
        assert served.app.state.embedding_worker is served.app.state.worker
        asked = [pool.submit(served.post, "/v1/embeddings", input=TEXTS) for _ in range(10)]
        texts = [pool.submit(served.complete) for _ in range(5)]
        assert {vectors(future.result()).shape[0] for future in asked} == {3}
        assert len({future.result()["choices"][0]["text"] for future in texts}) == 1


@pytest.mark.parametrize(("asked", "expected"), [(0, 2048), (600, 600), (8192, 8192), (60_000, 8192)])
def test_the_size_of_a_second_model(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, asked: int, expected: int
) -> None:
    """It reads a text in one batch, for which the chat's context can be far too large."""
    opened: list[dict[str, Any]] = []
    monkeypatch.setattr(server, "open_embedder", lambda path, **options: opened.append(options))
    trained = {"bert.context_length": 100_000}
    for values, most in ((trained, expected), ({"bert.context_length": 512}, 512), ({}, expected)):
        values = {"general.architecture": b"bert", **values}
        monkeypatch.setattr(
            "specllama.models.header_checks.read_without_texts", lambda path, found=values: (found, None)
        )
        arguments = cli.build_parser().parse_args(
            ["serve", "-m", "x.gguf", "-c", str(asked), "--embedding-model", str(tiny_files.embedding)]
        )
        serve._opened_embedder(arguments)
        assert (opened[-1]["n_ctx"], opened[-1]["n_batch"]) == (most, most)


def test_the_option(tiny_files: TinyFiles) -> None:
    import re

    import httpx

    command = [
        sys.executable,
        "-m",
        "specllama.cli",
        "serve",
        "-m",
        str(tiny_files.target),
        "-c",
        "70000",
        "--port",
        "0",
    ]
    command += ["--embedding-model", str(tiny_files.embedding)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            url = next(found[0] for line in process.stderr if (found := re.search(r"http://[\d.:]+", line)))
            assert vectors(httpx.post(f"{url}/v1/embeddings", json={"input": "the cat"}, timeout=60)).shape[0] == 1
        finally:
            process.terminate()
    assert process.returncode == 0
