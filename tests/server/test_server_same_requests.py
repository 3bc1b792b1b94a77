"""Requests that llama-server answers: they are answered here, too, with the fields that its clients read.

``scripts/same_requests.py`` sends them to two servers; with the llama-server of the wheel xllamacpp
2026.10.11549 all but those marked as refused were answered by both.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import imported
from test_tool_calls import CALLS, HERMES, TOOLS

imported("fastapi")
imported("openai")

from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response
from served import Served, serving  # needs the extra

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying, TinyFiles

FILE = Path(__file__).parents[1] / "data" / "llama_server_requests.jsonl"
REQUESTS = [json.loads(line) for line in FILE.read_text(encoding="utf-8").splitlines()]
FIM = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
TYPES: dict[str, Any] = {
    "/v1/chat/completions": ChatCompletion,
    "/v1/completions": Completion,
    "/v1/responses": Response,
    "/v1/embeddings": CreateEmbeddingResponse,
}
READ: dict[str, set[str]] = {
    "/v1/chat/completions": {"id", "created", "model", "object", "choices", "usage", "timings"},
    "/v1/completions": {"id", "created", "model", "object", "choices", "usage", "timings"},
    "/v1/messages": {"id", "type", "role", "content", "model", "stop_reason", "usage"},
    "/v1/messages/count_tokens": {"input_tokens"},
    "/v1/chat/completions/input_tokens": {"object", "input_tokens"},
    "/v1/responses/input_tokens": {"object", "input_tokens"},
    "/completion": {
        *("index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated"),
        *("generation_settings", "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached"),
        "timings",
    },
    "/tokenize": {"tokens"},
    "/detokenize": {"content"},
    "/apply-template": {"prompt"},
    "/health": {"status"},
    "/models": {"object", "data"},
    "/props": {
        *("default_generation_settings", "total_slots", "model_alias", "model_path", "modalities", "chat_template"),
        "build_info",
    },
}
"""The fields of an answer that is no stream, by the path with /v1."""

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture(scope="module")
def served(tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A model that calls tools and fills gaps, and one that embeds."""
    options: dict[str, Any] = {"n_ctx": 2048, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    path = tiny.write_saying(tmp_path_factory.mktemp("same") / "saying.gguf", [*CALLS, *FIM], HERMES, FIM)
    with (
        specllama.Llama(str(path), draft_model="lookup", **options) as llm,
        specllama.Llama(str(tiny_files.embedding), embedding=True, **{**options, "n_ctx": 256}) as embedder,
        serving(llm, embedder=embedder) as running,
    ):
        yield running


@pytest.mark.parametrize("request_of_client", REQUESTS, ids=lambda each: each["name"])
def test_it_is_answered(served: Served, request_of_client: dict[str, Any]) -> None:
    path, body = request_of_client["path"], request_of_client.get("body")
    reply = served.client.get(path) if body is None else served.client.post(path, json=body)
    if "refused" in request_of_client:
        assert reply.status_code == 400 and request_of_client["refused"] in reply.text
        return
    assert reply.status_code == 200, reply.text
    if path == "/metrics":
        assert "specllama_requests_total" in reply.text
    elif body is not None and body.get("stream"):
        assert_stream(path, reply.text)
    else:
        assert_answer(path, body or {}, reply.json())


def assert_stream(path: str, text: str) -> None:
    events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    parts = [json.loads(event) for event in events if event != "[DONE]"]
    assert parts and not any("error" in part for part in parts), text
    if "chat" in path:
        for part in parts:
            ChatCompletionChunk.model_validate(part)
    if path == "/completion":
        assert all({"index", "content", "tokens", "stop"} <= part.keys() for part in parts[:-1])
        assert parts[-1]["stop"] and READ[path] <= parts[-1].keys()


def assert_answer(path: str, body: dict[str, Any], answer: Any) -> None:
    known_as = path if path in ("/props", "/slots", "/completion", "/infill") or path in READ else f"/v1{path}"
    known_as = known_as.removeprefix("/v1") if known_as in ("/v1/health", "/v1/models") else known_as
    is_theirs = path == "/embedding" or "content" in body
    if (
        known_as in TYPES and not is_theirs and not (body.get("echo") and "logprobs" in body)
    ):  # whose first score is null
        TYPES[known_as].model_validate(answer)
    for each in answer if isinstance(answer, list) else [answer]:
        wanted = {"content", "timings/predicted_n"} if body.get("response_fields") else READ.get(known_as, set())
        assert wanted <= each.keys() or path == "/infill", each
    if "chat" in path and "messages" in body and "choices" in answer:
        assert len(answer["choices"]) == (body.get("n") or 1)
    if is_theirs and "embedding" in path:
        assert [(each["index"], len(each["embedding"])) for each in answer] == [(0, 1)]
    if path == "/slots":
        assert [(slot["id"], slot["is_processing"]) for slot in answer] == [(0, False)]


def test_alternatives_of_completions_are_llama_servers(served: Served) -> None:
    asked: dict[str, Any] = {"prompt": "the", "n_predict": 3, "temperature": 0, "n_probs": 2}
    whole = served.post("/completion", **asked).json()
    assert len(whole["completion_probabilities"]) == len(whole["tokens"]) == 3
    for token, entry in zip(whole["tokens"], whole["completion_probabilities"], strict=True):
        assert entry["id"] == token == entry["top_logprobs"][0]["id"]
        assert entry["logprob"] == entry["top_logprobs"][0]["logprob"] and len(entry["top_logprobs"]) == 2
        assert bytes(entry["bytes"]).decode("utf-8", "replace") == entry["token"]
    assert b"".join(bytes(each["bytes"]) for each in whole["completion_probabilities"]).decode() == whole["content"]
    parts = served.client.post("/completion", json={**asked, "stream": True}).text.splitlines()
    parts = [json.loads(part.removeprefix("data: ")) for part in parts if part]
    told = [each for part in parts for each in part.get("completion_probabilities", ())]
    assert told == whole["completion_probabilities"]


def test_several_texts_are_a_list(served: Served) -> None:
    asked: dict[str, Any] = {"n_predict": 4, "temperature": 0}
    first, second = served.post("/completion", prompt=["the", [5, 6, 7]], **asked).json()
    alone = served.post("/completion", prompt="the", **asked).json()
    assert (first["index"], second["index"]) == (0, 1)
    assert [first[name] for name in ("content", "tokens", "prompt", "tokens_evaluated")] == [
        alone[name] for name in ("content", "tokens", "prompt", "tokens_evaluated")
    ]
    assert second["tokens_evaluated"] == 3
    none = served.post("/completion", prompt="the", n_predict=0).json()
    assert (none["tokens_evaluated"], none["tokens_predicted"]) == (alone["tokens_evaluated"], 0)


def test_ids_and_texts_in_one_prompt(served: Served) -> None:
    ids = served.post("/tokenize", content=[5, "the cat", 6]).json()["tokens"]
    assert ids[0] == 5 and ids[-1] == 6 and len(ids) > 2
    asked: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
    mixed = served.post("/v1/completions", prompt=[5, "the cat", 6], **asked).json()
    of_ids = served.post("/v1/completions", prompt=ids, **asked).json()
    assert mixed["choices"] == of_ids["choices"]
    assert mixed["usage"]["prompt_tokens"] == of_ids["usage"]["prompt_tokens"] == len(ids)


def test_samplers_that_are_not_named_do_nothing(served: Served) -> None:
    asked: dict[str, Any] = {"prompt": "the cat", "max_tokens": 12, "seed": 3, "temperature": 1.5}
    off = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, "repeat_penalty": 1.0}
    strong = {"top_p": 0.01, "min_p": 0.9, "repeat_penalty": 1.9, "dry_multiplier": 5.0, "xtc_probability": 1.0}
    named = served.post("/v1/completions", samplers=["temperature"], **asked, **strong).json()
    assert named["choices"] == served.post("/v1/completions", **asked, **off).json()["choices"]
    short = served.post("/v1/completions", samplers="t", **asked, **strong).json()
    assert short["choices"] == named["choices"] and "warnings" not in short


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["top_k", "temperature"], ["top_k", "temperature"]),
        ("kt", ["top_k", "temperature"]),
        (["temp"], ["temperature"]),
        ([], []),
    ],
)
def test_samplers_are_told_as_they_were_asked_for(served: Served, given: Any, told: Any) -> None:
    settings = served.post("/completion", prompt="a", n_predict=1, samplers=given).json()["generation_settings"]
    assert settings["samplers"] == told


def test_schemas_of_completions(served: Served) -> None:
    asked: dict[str, Any] = {"prompt": "the", "temperature": 0, "json_schema": {"enum": ["yes", "no"]}}
    text = served.post("/v1/completions", max_tokens=20, **asked).json()["choices"][0]["text"]
    assert json.loads(text) in ("yes", "no")
    assert served.post("/completion", n_predict=20, **asked).json()["content"] == text
    refused = served.post("/v1/completions", **{**asked, "json_schema": {"not": {"type": "string"}}})
    assert refused.status_code == 400 and "json_schema cannot be enforced" in refused.text


def test_texts_in_logit_bias_stand_for_their_tokens(served: Served) -> None:
    ids = served.post("/tokenize", content="cat").json()["tokens"]
    asked: dict[str, Any] = {"prompt": "the", "max_tokens": 6, "temperature": 0}
    by_text = served.post("/v1/completions", logit_bias=[["cat", 100]], **asked).json()
    by_id = served.post("/v1/completions", logit_bias={str(token): 100 for token in ids}, **asked).json()
    assert by_text["choices"] == by_id["choices"]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lora": [{"id": 0, "scale": 1.0}]}, "adapters are given when the model is opened"),
        ({"min_keep": 2}, "min_keep"),
        ({"t_max_predict_ms": 10}, "set max_tokens"),
        ({"adaptive_target": 0.5}, "adaptive_target"),
        ({"samplers": ["top_k", "mystery"]}, "'mystery'"),
        ({"samplers": 3}, "must be a list of names"),
        ({"json_schema": {}, "grammar": 'root ::= "a"'}, "each say what the answer must be"),
        ({"prompt": {"prompt_string": "a", "multimodal_data": ["AAAA"]}}, "multimodal_data is not supported"),
        ({"prompt": ["a", {"b": 1}]}, "it must be a text"),
    ],
)
def test_what_would_change_the_answer_is_refused(served: Served, fields: dict[str, Any], message: str) -> None:
    reply = served.post("/v1/completions", **{"prompt": "the", "max_tokens": 1, **fields})
    assert reply.status_code == 400 and message in reply.json()["error"]["message"]


def test_what_a_prompt_counts_is_what_a_chat_reads(served: Served) -> None:
    messages = [{"role": "user", "content": "the cat"}]
    counted = served.post("/v1/chat/completions/input_tokens", messages=messages).json()["input_tokens"]
    assert (
        counted == served.post("/v1/chat/completions", messages=messages, max_tokens=1).json()["usage"]["prompt_tokens"]
    )
    assert counted == served.post("/responses/input_tokens", input="the cat").json()["input_tokens"]


READS = (
    "{{ tools }}{{ functions }}{{ function_call }}{{ tool_choice }}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
FUNCTION = TOOLS[0]["function"]


@pytest.mark.parametrize("template", [READS, READS + HERMES, "chatml-function-calling"])
def test_prompts_with_tools_are_those_of_the_chat(saying: Saying, template: str) -> None:
    named = {"chat_format": template} if template == "chatml-function-calling" else {}
    llm = saying(["So"], HERMES if named else template, n_ctx=1024, **named)
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
    with serving(llm) as running:
        for fields in (
            {"tools": TOOLS[:1], "tool_choice": "required"},
            {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "look"}}},
            {"functions": [FUNCTION]},
            {"functions": [FUNCTION], "function_call": {"name": "look"}},
        ):
            answer = running.post("/v1/chat/completions", **asked, **fields)
            assert answer.status_code == 200, answer.text
            size = answer.json()["usage"]["prompt_tokens"]
            counted = running.post("/v1/chat/completions/input_tokens", **asked, **fields)
            assert counted.json()["input_tokens"] == size
            prompt = running.post("/apply-template", **asked, **fields).json()["prompt"]
            assert len(llm.tokenize(prompt.encode(), add_bos=bool(named), special=True)) == size


@pytest.mark.parametrize("path", ["/v1/chat/completions/input_tokens", "/apply-template"])
def test_an_error_of_a_chat_handler_is_told_in_json(make_llama: MakeLlama, path: str) -> None:
    with serving(make_llama(chat_format="functionary-v2")) as running:
        reply = running.post(path, messages=[{"role": "user", "content": "hi"}])
    assert reply.status_code == 500 and "hf_tokenizer_path" in reply.json()["error"]["message"]
