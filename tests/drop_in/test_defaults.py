"""What is not given means the same, whoever is asked: one request of the engine's for every door."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

from specllama import Conversation, cli
from specllama.engine.engine import Engine
from specllama.engine.generation import Generation
from specllama.engine.request import Request
from specllama.engine.samplers import CHAIN, DEFAULTS

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat"
MESSAGES: Any = [{"role": "user", "content": "hi"}]
OF_CHATS = 0.2  # the temperature of llama_cpp.Llama.create_chat_completion
Heard = list[Request]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    """The requests that come to the engine."""
    requests: Heard = []
    begin = Generation.__init__

    def heard_begin(self: Generation, slot: Any, request: Request, *args: Any, **kwargs: Any) -> None:
        requests.append(request)
        begin(self, slot, request, *args, **kwargs)

    monkeypatch.setattr(Generation, "__init__", heard_begin)
    return requests


def settings_of(request: Request) -> dict[str, Any]:
    """All that decides how a text is sampled."""
    chain = {**CHAIN, **request.sampling}
    return {
        **{name: chain[name] for name in CHAIN},
        **request.options.samplers.values,
        "verify": request.options.verify,
        "rule": request.rule(),
        "seed_given": request.seed_given,
        "num_draft_tokens": request.options.num_draft_tokens,
        "max_draft_tokens": request.options.max_draft_tokens,
        "changes": (dict(request.logit_bias), request.logits_processor or None),
        "constraint": request.constraint,
        "chooser": request.chooser,
    }


def expected(temperature: float) -> dict[str, Any]:
    own = {"verify": "auto", "rule": "block", "seed_given": False, "num_draft_tokens": "auto", "max_draft_tokens": 64}
    none = {"changes": ({}, None), "constraint": None, "chooser": None}
    return {**CHAIN, **DEFAULTS, **own, **none, "temperature": temperature}


TEXTS: dict[str, Callable[[Any], Any]] = {
    "generate": lambda llm: next(llm.generate(llm.tokenize(PROMPT.encode()))),
    "create_completion": lambda llm: llm.create_completion(PROMPT),
    "a stream": lambda llm: list(llm.create_completion(PROMPT, stream=True)),
    "a call": lambda llm: llm(PROMPT),
    "generate_tokens": lambda llm: list(llm.generate_tokens(PROMPT)),
    "create_completions": lambda llm: llm.create_completions([PROMPT, PROMPT]),
}
CHATS: dict[str, Callable[[Any], Any]] = {
    "create_chat_completion": lambda llm: llm.create_chat_completion(MESSAGES),
    "a stream": lambda llm: list(llm.create_chat_completion(MESSAGES, stream=True)),
    "create_chat_completions": lambda llm: llm.create_chat_completions([MESSAGES, MESSAGES]),
    "Conversation": lambda llm: list(Conversation(llm).say("hi")),
}


@pytest.mark.parametrize("door", TEXTS)
def test_methods_for_texts(make_llama: MakeLlama, heard: Heard, door: str) -> None:
    TEXTS[door](make_llama(num_draft_tokens="auto"))
    assert heard
    assert all(settings_of(request) == expected(CHAIN["temperature"]) for request in heard)


@pytest.mark.parametrize("door", CHATS)
def test_methods_for_chats(make_llama: MakeLlama, heard: Heard, door: str) -> None:
    CHATS[door](make_llama(num_draft_tokens="auto"))
    assert heard
    assert all(settings_of(request) == expected(OF_CHATS) for request in heard)


def test_the_engine(tiny_files: TinyFiles, heard: Heard) -> None:
    with Engine.open(tiny_files.target, n_ctx=512) as engine:
        list(engine.generate([1, 2, 3], max_tokens=2))
    assert settings_of(heard[0]) == expected(CHAIN["temperature"])


@pytest.mark.parametrize("nulls", [False, True])
@pytest.mark.parametrize("parallel", [1, 2])
def test_the_server(make_llama: MakeLlama, heard: Heard, parallel: int, nulls: bool) -> None:
    imported("fastapi")
    from served import serving

    more: dict[str, Any] = dict.fromkeys((*CHAIN.keys() - {"penalty_last_n"}, *DEFAULTS)) if nulls else {}
    with serving(make_llama(num_draft_tokens="auto"), max_parallel=parallel) as served:
        for path, what, temperature in (
            ("/v1/completions", {"prompt": PROMPT}, CHAIN["temperature"]),
            ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4}, OF_CHATS),
        ):
            for stream in (False, True):
                reply = served.post(path, **what, **more, stream=stream)
                assert reply.status_code == 200, reply.text
                assert settings_of(heard[-1]) == expected(temperature)
                heard.clear()  # a stream's request is begun once before, to see whether it can
        for path, what, temperature in (
            ("/v1/responses", {"input": "hi", "max_output_tokens": 4}, OF_CHATS),
            ("/v1/messages", {"messages": MESSAGES, "max_tokens": 4}, OF_CHATS),
            ("/completion", {"prompt": PROMPT}, CHAIN["temperature"]),
        ):
            reply = served.post(path, **what)
            assert reply.status_code == 200, reply.text
            assert settings_of(heard.pop()) == expected(temperature)
    assert not heard


def run_batch(tiny_files: TinyFiles, folder: Path, lines: list[dict[str, Any]], *options: str) -> list[dict[str, Any]]:
    """The answers of a batch, in the order of the lines."""
    source, output = folder / "in.jsonl", folder / "out.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = ["-m", str(tiny_files.target), "--input", str(source), "--output", str(output), "-c", "512", "-q"]
    assert cli.main(["batch", *files, *options]) == 0
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    return sorted(answers, key=lambda answer: answer.get("id", answer.get("custom_id")) or "")


def in_both_forms(name: str, url: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"id": f"{name} plain", **body}, {"custom_id": f"{name} openai", "url": url, "body": body}]


def text_of(answer: dict[str, Any]) -> str:
    if "text" in answer:
        return str(answer["text"])
    [choice] = answer["response"]["body"]["choices"]
    return str(choice["text"] if "text" in choice else choice["message"]["content"])


def test_a_batch_answers_a_request_in_both_forms_alike(tiny_files: TinyFiles, tmp_path: Path, heard: Heard) -> None:
    imported("fastapi")
    nulls = {"temperature": None, "top_p": None, "repeat_penalty": None, "stop": None}
    lines = [
        *in_both_forms("a text", "/v1/completions", {"prompt": PROMPT, "seed": 3, "max_tokens": 24}),
        *in_both_forms("a chat", "/v1/chat/completions", {"messages": MESSAGES, "seed": 3, "max_tokens": 24}),
        *in_both_forms("b text", "/v1/completions", {"prompt": PROMPT, "seed": 3, "max_tokens": 24, **nulls}),
    ]
    answers = run_batch(tiny_files, tmp_path, lines)
    assert len(answers) == 6
    texts = {answer.get("id", ""): text_of(answer) for answer in answers if "text" in answer}
    others = {answer["custom_id"]: text_of(answer) for answer in answers if "text" not in answer}
    for name in ("a text", "a chat", "b text"):
        assert texts[f"{name} plain"] == others[f"{name} openai"]
    assert len(heard) == 6
    found = sorted(settings_of(request)["temperature"] for request in heard)
    assert found == [OF_CHATS, OF_CHATS, *[CHAIN["temperature"]] * 4]
    for request in heard:
        wanted = {**expected(settings_of(request)["temperature"]), "seed_given": True, "rule": "coupled"}
        assert settings_of(request) == wanted


def test_a_request_for_several_texts_in_a_batch(tiny_files: TinyFiles, tmp_path: Path) -> None:
    imported("fastapi")
    body = {"prompt": [PROMPT, "a dog"], "n": 2, "seed": 3, "max_tokens": 8, "ignore_eos": True}
    lines = [
        {"custom_id": "all", "url": "/v1/completions", "body": body},
        {"custom_id": "one", "url": "/v1/completions", "body": {**body, "prompt": "a dog", "n": 1}},
    ]
    all_of_them, one = (answer["response"]["body"] for answer in run_batch(tiny_files, tmp_path, lines))
    assert [choice["index"] for choice in all_of_them["choices"]] == [0, 1, 2, 3]
    assert all_of_them["choices"][2]["text"] == one["choices"][0]["text"]
    assert all_of_them["usage"]["completion_tokens"] == all_of_them["timings"]["predicted_n"] == 32


def test_minus_one_is_all_in_both_forms_of_a_batch(tiny_files: TinyFiles, tmp_path: Path) -> None:
    imported("fastapi")
    body = {"prompt": PROMPT, "seed": 3, "max_tokens": 24}
    plain, other = run_batch(tiny_files, tmp_path, in_both_forms("a", "/v1/completions", body), "--top-k", "-1")
    assert text_of(plain) == text_of(other)


@pytest.mark.parametrize(
    ("command", "temperature"), [(["generate", "-p", PROMPT], CHAIN["temperature"]), (["chat"], OF_CHATS)]
)
def test_the_commands(
    tiny_files: TinyFiles, heard: Heard, monkeypatch: pytest.MonkeyPatch, command: list[str], temperature: float
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n"))
    cli.main([command[0], "-m", str(tiny_files.target), "-c", "512", "-n", "4", *command[1:]])
    assert heard
    assert all(settings_of(request) == expected(temperature) for request in heard)


def test_the_plug_in_for_llm(tiny_files: TinyFiles, heard: Heard) -> None:
    llm = imported("llm")
    from specllama.llm_plugin import SpecllamaModel

    prompt = SpecllamaModel().prompt("hi", target=str(tiny_files.target), n_ctx=512, max_tokens=4)
    assert isinstance(prompt, llm.Response) and isinstance(prompt.text(), str)
    assert settings_of(heard[0]) == expected(OF_CHATS)


def test_ray_gives_a_seed_and_nothing_else(tiny_files: TinyFiles, heard: Heard) -> None:
    imported("ray")
    pyarrow = imported("pyarrow")
    from specllama.ray import Completions

    for chat, column, temperature in ((False, PROMPT, CHAIN["temperature"]), (True, MESSAGES, OF_CHATS)):
        complete = Completions(str(tiny_files.target), chat=chat, n_ctx=512, arguments={"max_tokens": 4})
        complete(pyarrow.table({"messages" if chat else "prompt": [column]}))
        wanted = {**expected(temperature), "seed_given": True, "rule": "coupled"}  # Ray may compute a row again
        assert settings_of(heard.pop()) == wanted
