"""Chats with images by the server: those that are sent with their images, if it can read them."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import imported

imported("fastapi")

import httpx
from exact import EXACT_CACHE
from images import asked, image, png
from served import Served, serving  # needs the extra
from test_serve_command import process

import specllama
from specllama import cli
from specllama.drop_in.images import give_image_handler

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

CHAT = "/v1/chat/completions"
OPTIONS: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0, "repeat_penalty": 1.0}
CAT, DOG = (asked("the cat sat on", image(png(seed)), " and the dog") for seed in (1, 2))


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that reads images for `tiny_files.target`."""
    return tiny.write_clip(tmp_path_factory.mktemp("clip") / "mmproj.gguf", seed=1)


@pytest.fixture(scope="module")
def reading_images(tiny_files: TinyFiles, clip: Path) -> Iterator[Served]:
    options: dict[str, Any] = {"n_ctx": 1024, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    with specllama.Llama(str(tiny_files.target), draft_model=str(tiny_files.good), **options) as llm:
        give_image_handler(llm, clip)
        with serving(llm) as running:
            yield running


@pytest.fixture(params=[1, 3], ids=["one", "several"])
def served(request: Any, make_llama: MakeLlama, tiny_files: TinyFiles, clip: Path) -> Iterator[Served]:
    llm = make_llama(draft=tiny_files.good, n_ctx=1024, **EXACT_CACHE)
    give_image_handler(llm, clip)
    with serving(llm, max_parallel=request.param) as running:
        yield running


def test_images_are_read(served: Served, make_llama: MakeLlama, clip: Path) -> None:
    llm = make_llama(n_ctx=1024, **EXACT_CACHE)
    give_image_handler(llm, clip)
    texts, cached, sizes = [], [], []
    for messages in (CAT, CAT, DOG, [{"role": "user", "content": "the cat"}], CAT):
        response = served.post(CHAT, messages=messages, **OPTIONS)
        assert response.status_code == 200, response.text
        texts.append(response.json()["choices"][0]["message"]["content"])
        expected: Any = llm.create_chat_completion(messages, **OPTIONS)  # type: ignore[arg-type]
        assert texts[-1] == expected["choices"][0]["message"]["content"]
        usage = response.json()["usage"]
        cached.append(usage.pop("prompt_tokens_details")["cached_tokens"])
        sizes.append(usage["prompt_tokens"])
        assert usage == expected["usage"]
    assert texts[0] == texts[1] != texts[2]
    assert cached[:2] == [0, sizes[1] - 1]
    assert 0 < cached[2] < sizes[2] - 1, "what stands before the image"
    chunks = served.events(CHAT, messages=DOG, **OPTIONS)
    assert "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks) == texts[2]
    assert served.complete()["choices"][0]["text"]


def test_chats_without_images_are_those_of_a_model_without_the_handler(
    reading_images: Served, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    """Nothing is read twice, prompts are counted, and answers are continued."""
    messages = [{"role": "user", "content": "the cat sat on the dog and the cat"}]
    with serving(make_llama(draft=tiny_files.good, n_ctx=1024)) as other:
        assert reading_images.post(CHAT, messages=CAT, **OPTIONS).status_code == 200
        for turn in range(3):
            first, second = (one.post(CHAT, messages=messages, **OPTIONS).json() for one in (reading_images, other))
            said = first["choices"][0]["message"]
            assert said == second["choices"][0]["message"]
            if turn:
                assert first["usage"] == second["usage"]
                assert first["usage"]["prompt_tokens_details"]["cached_tokens"] > 10
            for path in (f"{CHAT}/input_tokens", "/apply-template"):
                assert reading_images.post(path, messages=messages).json() == other.post(path, messages=messages).json()
            messages += [said, {"role": "user", "content": "the dog"}]
        begun = [*messages, {"role": "assistant", "content": "the cat"}]
        first, second = (
            one.post(CHAT, messages=begun, continue_final_message=True, **OPTIONS).json()
            for one in (reading_images, other)
        )
        assert first["choices"] == second["choices"]
    refused = reading_images.post(f"{CHAT}/input_tokens", messages=CAT)
    assert refused.status_code == 400
    assert "whose usage says how many tokens it has" in refused.json()["error"]["message"]


DETAILED = {"type": "image_url", "image_url": {"url": png(1), "detail": "low"}}
BASE64 = png(1).partition(",")[2]
SOURCE = {"type": "base64", "media_type": "image/png", "data": BASE64}
SAME: dict[str, tuple[str, dict[str, Any]]] = {
    "one": (CHAT, {}),
    "a stream": (CHAT, {"stream": True, "stream_options": {"include_usage": True}}),
    "n = 2": (CHAT, {"n": 2}),
    "two images": (CHAT, {"messages": asked("a", image(png(1)), "dog", image(png(2)))}),
    "turns": (
        CHAT,
        {"messages": [*CAT, {"role": "assistant", "content": "a dog"}, {"role": "user", "content": "and"}]},
    ),
    "logprobs": (CHAT, {"logprobs": True, "top_logprobs": 2}),
    "detail": (CHAT, {"messages": asked(DETAILED, "what")}),
    "nulls": (CHAT, {"top_p": None, "stop": None, "tools": None}),
    "messages": (
        "/v1/messages",
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": SOURCE}, {"type": "text", "text": "a"}]}
            ]
        },
    ),
    "responses": (
        "/v1/responses",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": png(1), "detail": "auto"}]}]},
    ),
}
"""Requests with images that the llama-server of the wheel xllamacpp 2026.10.11549 answered, too."""
READ = {
    CHAT: {"id", "object", "created", "model", "choices", "usage", "timings"},
    "/v1/messages": {"id", "type", "role", "content", "model", "stop_reason", "usage"},
    "/v1/responses": {"id", "object", "created_at", "model", "output", "status", "usage"},
}
"""The fields of both servers' answers that clients read."""


@pytest.mark.parametrize("name", SAME)
def test_what_llama_server_answers(reading_images: Served, name: str) -> None:
    path, body = SAME[name]
    asks = {CHAT: {"messages": CAT, "max_tokens": 8}, "/v1/messages": {"max_tokens": 8}}
    body = {**asks.get(path, {"max_output_tokens": 8}), "temperature": 0.0, **body}
    if body.get("stream"):
        last = reading_images.events(path, **{name: value for name, value in body.items() if name != "stream"})[-1]
        assert READ[path] <= last.keys() and last["usage"]["completion_tokens"] > 0
        return
    response = reading_images.post(path, **body)
    assert response.status_code == 200, response.text
    answer = response.json()
    assert READ[path] <= answer.keys() and "warnings" not in answer
    if path == CHAT:
        assert len(answer["choices"]) == body.get("n", 1) and answer["usage"]["completion_tokens"] > 0
        assert all(choice["message"]["content"] for choice in answer["choices"])


def data(content: bytes, kind: str = "png") -> str:
    """The address of an image that has itself in it."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


HUGE = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + (60_000).to_bytes(4, "big") * 2 + b"\x08\x02\0\0\0"
JPEG = b"\xff\xd8\xff\xe0\0\x04ab\xff\xff\xc0\0\x11\x08\xff\xff\xff\xff\x03"


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("http://127.0.0.1:1/cat.png", "the server fetches no image from 'http://127.0.0.1:1/cat.png'"),
        ("HTTPS://example.com/cat.png", "the server fetches no image from"),
        ("file:///etc/passwd", "the server fetches no image from"),
        ("/etc/passwd", "begins with '/etc/passwd'"),
        ("", "begins with ''"),
        (7, "an image needs its address"),
        ("data:text/plain;base64,YQ==", "begins with"),
        ("data:image/png;base64,!!!", "no base64"),
        (data(b"a cat"), "send PNG, JPEG or GIF"),
        (data(HUGE[:17]), "ends before it says how large it is"),
        (data(HUGE[:8] + b"\0\0\0\x08CgBI" + b"\0\0\0\x08" * 2 + HUGE[8:]), "begins with its header (IHDR)"),
        (data(HUGE), "more than 33554432 pixels"),
        (data(JPEG, "jpeg"), "more than 33554432 pixels"),
        (data(JPEG[:12], "jpeg"), "ends before it says how large it is"),
        (data(b"GIF89a" + b"\xff" * 8, "gif"), "more than 33554432 pixels"),
        (data(HUGE[:16] + b"\0\0\0\x04" * 2 + HUGE[24:]), "image"),
    ],
)
def test_what_is_no_image_is_refused(served: Served, address: Any, reason: str) -> None:
    response = served.post(CHAT, messages=asked("what is", image(address)), **OPTIONS)
    assert response.status_code == 400, response.text
    assert reason in response.json()["error"]["message"]
    assert served.post(CHAT, messages=CAT, **OPTIONS).status_code == 200


def test_only_users_send_images(served: Served) -> None:
    messages = [{**CAT[0], "role": "system"}, *CAT]
    response = served.post(CHAT, messages=messages, **OPTIONS)
    assert response.status_code == 400
    assert "only messages of the user may have images" in response.json()["error"]["message"]


def test_without_the_part_that_sees_images_are_refused(make_llama: MakeLlama) -> None:
    with serving(make_llama()) as served:
        response = served.post(CHAT, messages=CAT, **OPTIONS)
        assert response.status_code == 400
        assert "start the server with --mmproj" in response.json()["error"]["message"]


def test_the_command(tiny_files: TinyFiles, clip: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with process(tiny_files, "--mmproj", str(clip)) as (_, url):
        response = httpx.post(url + CHAT, json={"messages": CAT, **OPTIONS}, timeout=60)
        assert response.status_code == 200, response.text
        assert response.json()["choices"][0]["message"]["content"]
    assert cli.main(["serve", "-m", str(tiny_files.target), "--mmproj", str(tiny_files.target), "--port", "0"]) != 0
    assert "reads no images" in capsys.readouterr().err
