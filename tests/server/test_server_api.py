"""The server's endpoints, over a real connection: they answer as llama_cpp's methods do, and say what it cost."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

import specllama
from specllama.engine.samplers import SAMPLERS

imported("fastapi")

from served import Served, serving  # needs the extra

from specllama.server.sampler_fields import SamplerFields

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good)) as running:
        yield running


def test_a_completion_is_the_llamas(served: Served, make_llama: MakeLlama) -> None:
    response = served.complete(logprobs=2)
    options: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0}
    expected = make_llama().create_completion(PROMPT, logprobs=2, **options)
    assert response["choices"][0]["text"] == expected["choices"][0]["text"]
    assert response["choices"][0]["logprobs"]["tokens"] == expected["choices"][0]["logprobs"]["tokens"]
    assert response["usage"] == {**expected["usage"], "prompt_tokens_details": {"cached_tokens": 0}}
    assert response["object"] == "text_completion"
    assert response["model"] == "tiny"
    assert served.complete(model="gpt-4o")["model"] == "gpt-4o"


def test_a_stream_is_the_same_text(served: Served) -> None:
    whole = served.complete()
    events = served.events("/v1/completions", prompt=PROMPT, max_tokens=24, temperature=0.0)
    assert "".join(event["choices"][0]["text"] for event in events) == whole["choices"][0]["text"]
    assert [event["choices"][0]["finish_reason"] for event in events[:-1]] == [None] * (len(events) - 1)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert all("timings" not in event and "tokens" not in event for event in events[:-1])


def test_a_chat_and_its_stream(served: Served, make_llama: MakeLlama) -> None:
    options: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0}
    whole = served.post("/v1/chat/completions", messages=MESSAGES, **options).json()
    expected = make_llama().create_chat_completion(MESSAGES, **options)
    assert whole["choices"] == expected["choices"]
    events = served.events("/v1/chat/completions", messages=MESSAGES, **options)
    assert events[0]["choices"][0]["delta"] == {"role": "assistant"}
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == whole["choices"][0]["message"]["content"]
    assert events[-1]["timings"]["predicted_n"] == 20


def test_a_prompt_may_be_tokens(served: Served) -> None:
    tokens = served.post("/extras/tokenize", input=PROMPT).json()["tokens"]
    assert tokens[0] == served.llm.token_bos()
    assert served.post("/extras/tokenize/count", input=PROMPT).json() == {"count": len(tokens)}
    assert served.post("/extras/detokenize", tokens=tokens).json()["text"].strip() == PROMPT
    assert served.complete(tokens)["choices"] == served.complete([PROMPT])["choices"] == served.complete()["choices"]


def test_timings_have_llama_servers_names_and_add_up(served: Served) -> None:
    first, second = served.complete()["timings"], served.complete()["timings"]
    assert first["prompt_n"] == 8 and first["cache_n"] == 0
    assert second["prompt_n"] == 1 and second["cache_n"] == 7
    assert first["predicted_n"] == 24
    assert first["predicted_per_second"] == pytest.approx(24e3 / first["predicted_ms"])
    assert first["prompt_per_token_ms"] == pytest.approx(first["prompt_ms"] / 8)
    assert first["acceptance_rate"] == first["draft_n_accepted"] / first["draft_n"] > 0
    assert sum(first["draft_n_per_pos"]) == first["draft_n"]
    assert sum(first["draft_n_accepted_per_pos"]) == first["draft_n_accepted"]
    assert first["mean_acceptance_length"] == 1 + first["draft_n_accepted"] / first["draft_n_per_pos"][0]
    assert first["speedup"] is None and first["fallback_reason"] is None
    paced = served.complete(num_draft_tokens="auto")["timings"]
    assert paced["plain_per_second"] > 0 and paced["speedup"] > 0


def test_timings_and_usage_of_a_stream(served: Served) -> None:
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0.0}
    events = served.events("/v1/completions", **body, timings_per_token=True, stream_options={"include_usage": True})
    counts = [event["timings"]["predicted_n"] for event in events]
    assert counts == sorted(counts) and counts[-1] == 24
    assert events[-1]["choices"] == []
    details = events[-1]["usage"].pop("prompt_tokens_details")
    again = served.complete()["usage"]
    assert (details, again.pop("prompt_tokens_details")) == ({"cached_tokens": 0}, {"cached_tokens": 7})
    assert events[-1]["usage"] == again
    assert events[-2]["choices"][0]["finish_reason"] == "length"


def test_options_of_one_request(served: Served) -> None:
    plain = served.complete(num_draft_tokens=0, seed=5, temperature=1.0)
    assert plain["timings"]["draft_n"] == 0
    drafted = served.complete(num_draft_tokens=2, seed=5, temperature=1.0)
    assert len(drafted["timings"]["draft_n_per_pos"]) == 2
    assert drafted["timings"]["verify"] == plain["timings"]["verify"] == "coupled"
    assert drafted["choices"] == plain["choices"]
    assert served.complete(seed=6, temperature=1.0)["choices"] != plain["choices"]
    assert served.complete(verify="rejection", seed=5)["timings"]["verify"] == "rejection"
    assert served.complete()["timings"]["verify"] == "block"


def test_llama_servers_samplers(served: Served, make_llama: MakeLlama) -> None:
    assert set(SamplerFields.model_fields) == set(SAMPLERS)
    settings: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 24}
    plain = served.complete(**settings)["choices"][0]["text"]
    dry = {"dry_multiplier": 3.0, "dry_allowed_length": 0, "dry_sequence_breakers": ["."], "dry_penalty_last_n": 100}
    for sampler in (dry, {"xtc_probability": 0.9}, {"top_n_sigma": 0.3}, {"dynatemp_range": 0.9}):
        text = served.complete(**settings, **sampler)["choices"][0]["text"]
        assert text != plain
        assert text == make_llama().create_completion(PROMPT, **settings, **sampler)["choices"][0]["text"]
    refused = served.post("/v1/completions", prompt=PROMPT, xtc_probability=3.0)
    assert refused.status_code == 400
    assert "xtc_probability=3" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_origins_come_with_their_text(served: Served, path: str) -> None:
    what: dict[str, Any] = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": MESSAGES}
    options: dict[str, Any] = {**what, "max_tokens": 60, "temperature": 0.0, "return_origins": True}
    events = served.events(path, **options)
    tokens = [token for event in events for token in event.get("tokens", [])]
    timings = events[-1]["timings"]
    assert len(tokens) == timings["predicted_n"] == 60
    assert sum(token["origin"] == "draft" for token in tokens) == timings["draft_n_accepted"] > 0
    for event in events:
        choice = event["choices"][0]
        text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
        ids = [token["id"] for token in event.get("tokens", [])]
        if text and len(ids) == 1:
            assert served.llm.detokenize(ids).decode() == text
        assert bool(text) <= bool(ids)
    assert served.post(path, **options).json()["tokens"] == tokens


def test_text_held_back_for_a_stop_string_keeps_its_origins(served: Served) -> None:
    whole = served.complete(max_tokens=40)["choices"][0]["text"]
    body: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 40, "temperature": 0.0, "return_origins": True}
    events = served.events("/v1/completions", **body, stop=[whole[10:16] + "#", whole[20:26]])
    assert "".join(event["choices"][0]["text"] for event in events) == whole[:20]
    for event in events[:-1]:
        ids = [token["id"] for token in event["tokens"]]
        assert served.llm.detokenize(ids).decode("utf-8", "ignore").startswith(event["choices"][0]["text"])


def test_json_schemas_and_tools(served: Served) -> None:
    options: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 200, "temperature": 0.0, "seed": 1}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    for response_format in (wanted, {"type": "json_object", "schema": SCHEMA}):
        response = served.post("/v1/chat/completions", response_format=response_format, **options).json()
        assert json.loads(response["choices"][0]["message"]["content"])["a"] in ("x", "y")
    for choice in ("required", {"type": "function", "function": {"name": "pick"}}):
        response = served.post("/v1/chat/completions", tools=[TOOL], tool_choice=choice, **options).json()
        call = response["choices"][0]["message"]["tool_calls"][0]["function"]
        assert call["name"] == "pick" and json.loads(call["arguments"])["a"] in ("x", "y")
        assert response["timings"]["predicted_n"] > 0
        events = served.events("/v1/chat/completions", tools=[TOOL], tool_choice=choice, **options)
        deltas = [event["choices"][0]["delta"].get("tool_calls") for event in events]
        assert "".join(delta[0]["function"]["arguments"] for delta in deltas if delta) == call["arguments"]
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls" and "timings" in events[-1]


def test_grammar_bias_and_min_tokens(served: Served) -> None:
    text = served.complete(grammar='root ::= ("cat" | "dog") " " root')["choices"][0]["text"]
    assert set(text.split()[:-1]) <= {"cat", "dog"}
    cat = served.llm.tokenize(b"cat", add_bos=False)  # SentencePiece puts the space before it
    by_id = served.complete(logit_bias={str(token): 100.0 for token in cat})
    assert by_id["choices"][0]["text"].split() == ["cat"] * 24
    by_text = served.complete(logit_bias={"cat": 100.0}, logit_bias_type="tokens")
    assert by_text["choices"] == by_id["choices"]
    eos = str(served.llm.token_eos())
    assert served.complete(logit_bias={eos: 50.0})["usage"]["completion_tokens"] == 0
    assert served.complete(logit_bias={eos: 50.0}, min_tokens=4)["usage"]["completion_tokens"] >= 3


def test_messages_of_newer_clients(served: Served) -> None:
    options: dict[str, Any] = {"max_completion_tokens": 9, "temperature": 0.0}
    plain = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "hi\nyou"}]
    parts = [{"type": "text", "text": "hi"}, {"type": "text", "text": "you"}]
    newer = [{"role": "developer", "content": "be kind"}, {"role": "user", "content": parts}]
    responses = [served.post("/v1/chat/completions", messages=m, **options).json() for m in (plain, newer)]
    assert responses[0]["choices"] == responses[1]["choices"]
    assert responses[0]["usage"]["completion_tokens"] == 9
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]}
    answered = {"role": "tool", "tool_call_id": "1", "content": "42"}
    assert served.post("/v1/chat/completions", messages=[*plain, called, answered], **options).status_code == 200


def test_a_tool_may_have_no_parameters(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "pick"}}
    body: dict[str, Any] = {"messages": MESSAGES, "tools": [tool], "max_tokens": 20, "temperature": 0.0, "seed": 1}
    called = served.post("/v1/chat/completions", **body, tool_choice="required")
    assert called.status_code == 200, called.text
    function = called.json()["choices"][0]["message"]["tool_calls"][0]["function"]
    assert function["name"] == "pick" and json.loads(function["arguments"]) == {}
    assert served.post("/v1/chat/completions", **body).status_code == 200


def test_a_choice_that_is_left_to_the_model_is_text(served: Served) -> None:
    """llama_cpp calls only a tool that is named: what the docs say."""
    body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 20, "temperature": 0.0}
    without = served.post("/v1/chat/completions", **body).json()["choices"]
    for choice in ({}, {"tool_choice": "auto"}, {"tool_choice": "none"}):
        answered = served.post("/v1/chat/completions", **body, tools=[TOOL], **choice).json()["choices"]
        assert answered == without  # the template has no tools


def test_logprobs_of_a_chat(served: Served) -> None:
    for top, wanted in ((None, 1), (3, 3)):
        body: dict[str, Any] = {"messages": MESSAGES, "max_tokens": 5, "temperature": 0.0, "logprobs": True}
        response = served.post("/v1/chat/completions", **body, top_logprobs=top).json()
        content = response["choices"][0]["logprobs"]["content"]
        assert len(content) == 5
        assert all(len(entry["top_logprobs"]) == wanted and entry["logprob"] <= 0 for entry in content)


def test_models_health_and_the_page(served: Served) -> None:
    (model,) = served.client.get("/v1/models").json()["data"]
    assert model["id"] == "tiny"
    assert model["created"] > 1_700_000_000
    assert served.client.get("/v1/models/tiny").json() == model
    with serving(served.llm, name="org/name") as other:
        for path in ("/v1/models/org/name", "/v1/models/org%2Fname", "/models/org/name"):
            assert other.client.get(path).json()["id"] == "org/name"
    missing = served.client.get("/v1/models/gpt-4")
    assert missing.status_code == 404
    assert "there is no model 'gpt-4' here" in missing.json()["error"]["message"]
    assert served.client.get("/health").json() == {
        "status": "ok",
        "running": 0,
        "waiting": 0,
        "max_parallel": 1,
    }
    page = served.client.get("/")
    assert page.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert "/v1/completions" in served.client.get("/openapi.json").json()["paths"]
    assert served.client.get("/docs").status_code == 404  # it would load scripts from elsewhere


def test_metrics_add_up(served: Served) -> None:
    responses = [served.complete(), served.complete(num_draft_tokens=2), served.complete("a dog", num_draft_tokens=0)]
    responses.append(served.events("/v1/chat/completions", messages=MESSAGES, max_tokens=9)[-1])
    assert served.post("/v1/completions", prompt="a", temperature="warm").status_code == 400
    assert served.client.get("/nowhere").status_code == 404
    served.wait_until_idle()
    metrics = served.metrics()

    def total(name: str) -> float:
        return sum(response["timings"][name] for response in responses)

    assert metrics["specllama_prompt_tokens_total"] == total("prompt_n")
    assert metrics["specllama_prompt_tokens_reused_total"] == total("cache_n") > 0
    assert metrics["specllama_generated_tokens_total"] == total("predicted_n")
    assert metrics["specllama_draft_tokens_total"] == total("draft_n")
    assert metrics["specllama_accepted_tokens_total"] == total("draft_n_accepted")
    for name, key in (("draft", "draft_n_per_pos"), ("accepted", "draft_n_accepted_per_pos")):
        for position in range(4):
            expected = sum(dict(enumerate(response["timings"][key])).get(position, 0) for response in responses)
            assert metrics[f'specllama_{name}_tokens_per_position_total{{position="{position}"}}'] == expected
    for phase in ("prompt", "draft", "verify", "sample", "rollback"):
        seconds = metrics[f'specllama_seconds_total{{phase="{phase}"}}']
        assert seconds * 1e3 == pytest.approx(total(f"{phase}_ms"))
    assert metrics['specllama_generations_total{outcome="completed"}'] == 4
    assert metrics['specllama_requests_total{endpoint="/v1/completions",status="200"}'] == 3
    assert metrics['specllama_requests_total{endpoint="/v1/completions",status="400"}'] == 1
    assert metrics['specllama_requests_total{endpoint="other",status="404"}'] == 1
    assert metrics["specllama_running"] == metrics["specllama_waiting"] == 0
    assert metrics["specllama_max_parallel"] == 1


def test_nobody_else_is_watched(served: Served) -> None:
    text = served.llm.create_completion(PROMPT, max_tokens=5, temperature=0.0)["choices"][0]["text"]
    assert served.complete(max_tokens=5)["choices"][0]["text"] == text
    assert isinstance(served.llm.stats, specllama.Stats)
