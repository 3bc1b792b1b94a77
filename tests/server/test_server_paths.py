"""What clients are told never says where files lie on the server's machine: that tells names of users and projects."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import imported

imported("fastapi")
imported("openai")

from images import Pictures
from served import Served, serving  # needs the extra
from test_server_faults import GARBAGE
from test_server_images import CAT
from test_server_recorded import REQUESTS as RECORDED
from test_server_same_requests import REQUESTS
from test_tool_calls import TOOLS

from specllama.drop_in.images import give_image_handler

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
BEGUN = [*HI, {"role": "assistant", "content": "One"}]

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that nobody else is to hear of."""
    folder = tmp_path / "home of somebody"
    folder.mkdir()
    return folder


def assert_silent(served: Served, folder: Path, requests: list[tuple[str, Any]]) -> list[str]:
    """Asks all of it; gives the errors that were answered."""
    told = []
    for path, body in requests:
        if body is None:
            reply = served.client.get(path)
        elif isinstance(body, bytes):
            reply = served.client.post(path, content=body, headers={"Content-Type": "application/json"})
        else:
            reply = served.client.post(path, json=body)
        assert folder.name not in reply.text and folder.name not in str(reply.headers), (path, body, reply.text)
        if reply.is_error:
            told.append(reply.text)
    return told


def test_requests_of_all_kinds(make_llama: MakeLlama, tiny_files: TinyFiles, folder: Path) -> None:
    """A model that fills no gap, with tools that its template does not teach, for what clients send and for garbage."""
    target, draft = (shutil.copy(path, folder) for path in (tiny_files.target, tiny_files.good))
    requests: list[tuple[str, Any]] = [(each["path"], each.get("body")) for each in REQUESTS]
    requests += [*RECORDED.values(), *((path, body) for path, body in GARBAGE if len(body) < 10_000)]
    requests += [(TEXT, {"prompt": "a", "suffix": "b"}), ("/", None), ("/openapi.json", None), ("/health", None)]
    with serving(make_llama(target, draft, n_ctx=1024)) as served:
        told = assert_silent(served, folder, requests)
    assert any("target.gguf has no tokens for filling a gap" in text for text in told)


def test_a_template_that_cannot_be_read(make_llama: MakeLlama, folder: Path) -> None:
    words = dataclasses.replace(tiny.word_vocabulary(), chat_template="{{ .System }}")
    path = tiny.write_llama(folder / "broken.gguf", words, tiny.llama_weights(words, seed=1))
    with serving(make_llama(path)) as served:
        told = assert_silent(served, folder, [(CHAT, {"messages": HI}), ("/apply-template", {"messages": HI})])
    assert len(told) == 2 and all("the chat template of broken.gguf cannot be read" in text for text in told)


def test_chat_handlers(make_llama: MakeLlama, tiny_files: TinyFiles, folder: Path) -> None:
    """Those that decode by themselves, ours for images among them."""
    target, clip = shutil.copy(tiny_files.target, folder), tiny.write_clip(folder / "mmproj.gguf", seed=1)
    asked: dict[str, Any] = {"messages": HI, "max_tokens": 2}
    requests: list[tuple[str, Any]] = [
        (CHAT, asked),
        (CHAT, {**asked, "messages": CAT}),
        (CHAT, {**asked, "messages": [*CAT, BEGUN[1]], "continue_final_message": True}),
        (CHAT, {**asked, "tools": TOOLS, "tool_choice": "required"}),
        ("/apply-template", {"messages": CAT}),
        (f"{CHAT}/input_tokens", {"messages": CAT}),
        ("/v1/messages/count_tokens", asked),
    ]
    for handler in (None, Pictures()):
        llm = make_llama(target, n_ctx=1024)
        if handler is None:
            give_image_handler(llm, clip)
        else:
            llm.chat_handler = handler
        with serving(llm) as served:
            told = assert_silent(served, folder, requests)
        assert len(told) >= 3 and any("target.gguf" in text for text in told)


def test_an_error_of_ours(
    make_llama: MakeLlama, tiny_files: TinyFiles, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Whatever it says: the operator sees it whole."""
    llm = make_llama(tiny_files.target)

    def fail(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(2, "No such file or directory", str(folder / "costs.json"))

    with serving(llm) as served:
        with monkeypatch.context() as patch:
            patch.setattr(llm, "create_completion", fail)
            [told] = assert_silent(served, folder, [(TEXT, {"prompt": "a"})])
        assert served.complete()["choices"]
    assert "No such file or directory" in told and "costs.json" in told
    assert str(folder) in caplog.text
