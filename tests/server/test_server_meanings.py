"""What a request asks for is done, or refused by name; what was accepted and does nothing is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")

from kept_texts import kept_of
from served import Served, serving  # needs the extra
from tiny_models import llama_weights, word_vocabulary, write_llama

from specllama.engine import Learned, remember
from specllama.engine.learned import learned_path
from specllama.models import survey

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"
MESSAGES = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "minLength": 30}}, "required": ["a"]}
TOOLS = {
    "tools": [{"type": "function", "function": {"name": "pick", "parameters": SCHEMA}}],
    "tool_choice": {"type": "function", "function": {"name": "pick"}},
}
PATHS = ["/v1/completions", "/v1/chat/completions"]

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good)) as running:
        yield running


def ask(served: Served, path: str, **fields: Any) -> Any:
    what: dict[str, Any] = {"prompt": PROMPT} if path == "/v1/completions" else {"messages": MESSAGES}
    return served.post(path, **{**what, "max_tokens": 8, "temperature": 0.0, **fields})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("max_tokens", "reason"), [(0, "length"), (5, "length"), (200, "tool_calls")])
def test_a_tool_call_that_is_cut_off_says_so(served: Served, stream: bool, max_tokens: int, reason: str) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"], "additionalProperties": False}
    tools = json.loads(json.dumps(TOOLS))
    if reason == "tool_calls":
        tools["tools"][0]["function"]["parameters"] = schema
    body = {"messages": MESSAGES, "max_tokens": max_tokens, "temperature": 0.0, **tools}
    if stream:
        found = served.events("/v1/chat/completions", **body)[-1]
    else:
        found = served.post("/v1/chat/completions", **body).json()
    assert found["choices"][0]["finish_reason"] == reason


@pytest.mark.parametrize("path", PATHS)
def test_no_tokens_are_none(served: Served, path: str) -> None:
    reply = ask(served, path, max_tokens=0).json()
    choice = reply["choices"][0]
    assert (choice["text"] if "text" in choice else choice["message"]["content"]) == ""
    assert choice["finish_reason"] == "length"
    assert reply["usage"]["completion_tokens"] == 0 and reply["usage"]["prompt_tokens"] > 0
    assert served.llm.total_stats.num_tokens == 0
    events = served.events(path, prompt=PROMPT, messages=MESSAGES, max_tokens=0)
    assert events[-1]["choices"][0]["finish_reason"] == "length"
    assert ask(served, path, max_tokens=3).json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("max_tokens", [0, 2])
def test_a_stream_says_what_it_used(served: Served, path: str, max_tokens: int) -> None:
    expected = ask(served, path, max_tokens=max_tokens).json()["usage"]
    options = {"temperature": 0.0, "max_tokens": max_tokens, "stream_options": {"include_usage": True}}
    what = {"prompt": PROMPT} if path == PATHS[0] else {"messages": MESSAGES}
    found = served.events(path, **what, **options)[-1]["usage"]
    for usage in (found, expected):
        assert 0 <= usage.pop("prompt_tokens_details")["cached_tokens"] < usage["prompt_tokens"]
    assert found == expected
    assert expected["prompt_tokens"] > 2


def test_no_tokens_of_a_chat_by_the_newer_name(served: Served) -> None:
    reply = ask(served, PATHS[1], max_tokens=5, max_completion_tokens=0).json()
    assert reply["usage"]["completion_tokens"] == 0


def test_a_prompt_is_scored(served: Served) -> None:
    """As OpenAI's legacy completions did: what evaluation harnesses ask for."""
    reply = ask(served, PATHS[0], max_tokens=0, echo=True, logprobs=2).json()
    choice = reply["choices"][0]
    assert choice["text"].strip() == PROMPT
    scores = choice["logprobs"]["token_logprobs"]
    assert scores[0] is None and len(scores) == reply["usage"]["prompt_tokens"] - 1 and max(scores[1:]) < 0
    longer = ask(served, PATHS[0], max_tokens=4, echo=True, logprobs=2).json()["choices"][0]["logprobs"]
    assert longer["token_logprobs"][: len(scores)] == pytest.approx(scores)


@pytest.mark.parametrize("max_tokens", [0, 3])
@pytest.mark.parametrize("logprobs", [None, 1])
def test_a_prompt_is_repeated_in_a_stream(served: Served, max_tokens: int, logprobs: int | None) -> None:
    options = {"temperature": 0.0, "max_tokens": max_tokens, "echo": True, "logprobs": logprobs}
    whole = ask(served, PATHS[0], **options).json()["choices"][0]
    choices = [event["choices"][0] for event in served.events(PATHS[0], prompt=PROMPT, **options)]
    assert choices[0]["text"] == PROMPT
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    if logprobs is not None:
        scores = [score for choice in choices if choice["logprobs"] for score in choice["logprobs"]["token_logprobs"]]
        assert scores == pytest.approx(whole["logprobs"]["token_logprobs"], abs=1e-4)


def test_the_text_of_long_tokens(make_llama: MakeLlama, tmp_path: Path) -> None:
    """Over every endpoint that has texts: llama_cpp gives up at 32 bytes."""
    vocabulary = word_vocabulary()
    long = dataclasses.replace(vocabulary, tokens=[*vocabulary.tokens, "-" * 80])
    long = dataclasses.replace(long, scores=[*long.scores, -1000.0], types=[*long.types, 1])
    token = len(vocabulary)
    with serving(make_llama(write_llama(tmp_path / "long.gguf", long, llama_weights(long, 1)))) as served:
        assert served.post("/extras/detokenize", tokens=[token, token]).json()["text"] == "-" * 160
        options = {"max_tokens": 1, "logit_bias": {str(token): 90}, "return_origins": True, "temperature": 0.0}
        reply = served.post(PATHS[0], prompt="the", **options).json()
        assert reply["choices"][0]["text"] == "-" * 80 and reply["tokens"][0]["id"] == token
        asked = {"messages": MESSAGES, "logprobs": True, "top_logprobs": 1, **options}
        [entry] = served.post(PATHS[1], **asked).json()["choices"][0]["logprobs"]["content"]
        assert entry["token"] == "-" * 80 and entry["bytes"] == [45] * 80
        events = served.events(PATHS[0], prompt="the", stop="--", **options)
        assert {event["choices"][0]["text"] for event in events} == {""}
        assert events[-1]["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("path", PATHS)
def test_typical_p_works(served: Served, path: str) -> None:
    options: dict[str, Any] = {"temperature": 1.5, "seed": 3, "max_tokens": 30, "top_k": 0, "min_p": 0.0, "top_p": 1.0}
    texts = [ask(served, path, **options, **more).json()["choices"] for more in ({}, {"typical_p": 0.2})]
    assert texts[0] != texts[1]
    assert ask(served, path, typical_p=2.0).status_code == 400


FUNCTION = {"name": "pick", "parameters": {"type": "object"}}
PICK = {"tools": [{"type": "function", "function": FUNCTION}]}
JSON = {"response_format": {"type": "json_object"}}
NOT_IGNORED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a choice without tools": (
        PATHS[1],
        {"tool_choice": {"type": "function", "function": {"name": "pick"}}},
        "tool_choice names the function 'pick', and there are no tools",
    ),
    "a choice and a schema": (PATHS[1], {**PICK, **JSON, "tool_choice": "required"}, "tool_choice and response_format"),
    "a choice and a grammar": (PATHS[1], {**PICK, "grammar": "root ::= x", "tool_choice": "required"}, "and grammar"),
    "a schema and a grammar": (PATHS[1], {**JSON, "grammar": 'root ::= "x"'}, "response_format and grammar both say"),
    "functions and tools": (PATHS[1], {**PICK, "functions": [FUNCTION]}, "tools and functions mean the same"),
    "alternatives": (PATHS[1], {"top_logprobs": 3}, "top_logprobs=3 needs logprobs=True"),
    "options of a stream": (PATHS[1], {"stream_options": {"include_usage": True}}, '"stream_options" is for streams'),
    "an option of a stream": (PATHS[1], {"stream": True, "stream_options": {"include_usag": 1}}, "include_usage?"),
    "a field of a message": (PATHS[1], {"messages": [{"role": "user", "contents": "a"}]}, "did you mean content?"),
    "a field of a function": (PATHS[1], {"functions": [{"name": "a", "paramters": {}}]}, "did you mean parameters?"),
    "a field of a tool": (PATHS[1], {"tools": [{"type": "function", "functions": FUNCTION}]}, "did you mean function?"),
    "a field of a schema": (
        PATHS[1],
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schemas": {}}}},
        "json_schema has no field 'schemas': did you mean schema?",
    ),
    "a suffix that the model cannot see": (PATHS[0], {"suffix": "return"}, "has no tokens for filling a gap (FIM)"),
    "the least tokens of a grammar": (
        PATHS[0],
        {"grammar": 'root ::= "x"', "min_tokens": 3},
        "min_tokens=3 and a grammar",
    ),
    "no role": (PATHS[1], {"messages": [{"content": "a"}]}, "messages.0.role: Field required"),
    "a schema of a text": (PATHS[0], JSON, '"response_format" is for /v1/chat/completions'),
    "tools of a text": (PATHS[0], PICK, '"tools" is for /v1/chat/completions'),
}


@pytest.mark.parametrize("what", NOT_IGNORED)
def test_nothing_is_ignored(served: Served, what: str) -> None:
    path, fields, why = NOT_IGNORED[what]
    own = {"prompt": "a"} if path == PATHS[0] else {"messages": [{"role": "user", "content": "a"}]}
    reply = served.post(path, **{"max_tokens": 1, **own, **fields})
    assert (reply.status_code, why in reply.json()["error"]["message"]) == (400, True), reply.text


@pytest.mark.parametrize(
    "headers",
    [{"Content-Encoding": "gzip"}, {"Content-Type": "application/json; charset=latin-1"}],
)
def test_a_body_in_another_form(served: Served, headers: dict[str, str]) -> None:
    given = {"Content-Type": "application/json", **headers}
    reply = served.client.post(PATHS[0], content=b'{"prompt": "a", "max_tokens": 1}', headers=given)
    assert (reply.status_code, "the body has the" in reply.json()["error"]["message"]) == (415, True), reply.text


@pytest.mark.parametrize("charset", ["utf-8", '"UTF-8"', "us-ascii"])
def test_a_charset_that_is_right(served: Served, charset: str) -> None:
    headers = {"Content-Type": f"application/json; charset={charset}", "Content-Encoding": "identity"}
    body = b'{"prompt": "a", "max_tokens": 1}'
    assert served.client.post(PATHS[0], content=body, headers=headers).status_code == 200


@pytest.mark.parametrize("path", PATHS)
def test_unknown_fields_are_refused_by_name(served: Served, path: str) -> None:
    for name, hint in (
        ("temprature", "did you mean temperature?"),
        ("max_token", "did you mean max_tokens?"),
        ("num_draft", "did you mean num_draft_tokens?"),
        ("zzz", "/openapi.json lists all fields"),
        ("x" * 5000, "/openapi.json"),
    ):
        reply = ask(served, path, **{name: 1})
        message = reply.json()["error"]["message"]
        assert reply.status_code == 400 and f'there is no field "{name[:60]}"' in message and hint in message
        assert len(message) < 300


@pytest.mark.parametrize("path", PATHS)
def test_openais_fields_without_effect_are_named(served: Served, path: str) -> None:
    fields = {"store": True, "metadata": {"a": "b"}, "service_tier": None}
    warnings = ["metadata has no effect here", "store has no effect here"]
    assert ask(served, path, **fields).json()["warnings"] == warnings
    what: dict[str, Any] = {"prompt": PROMPT} if path == PATHS[0] else {"messages": MESSAGES}
    assert served.events(path, max_tokens=3, **what, **fields)[-1]["warnings"] == warnings
    both = ask(served, path, **fields, prompt=PROMPT, messages=MESSAGES).json()["warnings"]
    assert len(both) == 3 and set(warnings) < set(both)  # that of the other endpoint
    assert "warnings" not in ask(served, path, user="me", n=1).json()


def test_what_a_draft_can_learn_is_kept_unless_the_client_says_no(
    make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    llm = make_llama(learn=True)
    answers: list[tuple[str, dict[str, Any]]] = [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 20}),
        ("/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 20}),
        ("/v1/responses", {"input": PROMPT, "max_output_tokens": 20}),
        ("/completion", {"prompt": PROMPT, "n_predict": 20}),
    ]
    with serving(llm) as served:
        for path, what in answers:
            assert served.post(path, store=False, seed=1, **what).status_code == 200
        assert kept_of(llm) == []
        for number, (path, what) in enumerate(answers):
            assert served.post(path, seed=number, **what).status_code == 200
        assert len(kept_of(llm)) == 4


def test_what_has_been_learned_is_said(
    served: Served, make_llama: MakeLlama, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    assert served.client.get("/props").json()["learning"] is None
    llm = make_llama(learn=True)
    with serving(llm) as learning:
        assert learning.client.get("/props").json()["learning"] == {"draft": None}
        path = learned_path(Path(llm.learn_dir or "").name)
        path.parent.mkdir(parents=True)
        path.touch()
        Learned(path, (0.5, 0.25), 30_000, 1e9, frozenset({"a"})).write()
        said = {"greedy": [0.5, 0.25], "num_tokens": 30_000, "at": 1e9}
        assert learning.client.get("/props").json()["learning"] == {"draft": {**said, "gain": None}}
        remember(survey(llm.model_path), {str(path): (1.5, 0.1)})
        assert learning.client.get("/props").json()["learning"] == {"draft": {**said, "gain": 1.5}}


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({"top_k": 2**31}, "top_k"),
    ({"top_k": 2**70}, "top_k"),
    ({"mirostat_mode": 3}, "mirostat_mode"),
    ({"dry_allowed_length": 2**40, "dry_multiplier": 1.0}, "dry_allowed_length"),
    ({"logit_bias": {"x": 1.0}}, "'x' is no token id"),
    ({"logit_bias": {str(i): -1e9 for i in range(332)}}, "token"),
    ({"logit_bias": {str(i): float("-inf") for i in range(332)}}, "no token can be sampled"),
    ({"grammar": "root ::= ["}, "grammar"),
    ({"seed": 2**100}, ""),
    ({"num_draft_tokens": 2**40}, "num_draft_tokens"),
    ({"n": -1}, "n: Input should be greater than or equal to 1"),
    ({"n": 1000}, "n: Input should be less than or equal to 128"),
    ({"model": "a\0b"}, ""),
    ({"stop": ["\0"]}, ""),
    ({"user": "a\0b"}, ""),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors_of_the_client_are_not_the_servers(served: Served, path: str, number: int) -> None:
    fields, why = ERRORS[number]
    body = json.dumps({"prompt": PROMPT, "messages": MESSAGES, "max_tokens": 4, "temperature": 0.5, **fields})
    reply = served.client.post(path, content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code < 500, reply.text
    if reply.status_code >= 400:
        message = reply.json()["error"]["message"]
        assert why in message and len(message) < 400 and "stderr" not in message and "self: " not in message


def test_a_null_character_in_a_name(served: Served) -> None:
    tools = json.loads(json.dumps(TOOLS).replace('"pick"', '"a\\u0000b"'))
    for fields in (tools, {"response_format": {"type": "json_object", "schema": {"const": "a\0b"}}}):
        assert ask(served, PATHS[1], **fields).status_code < 500
    message = {"role": "user", "content": "a\0b", "name": "\0"}
    assert served.post(PATHS[1], messages=[message], max_tokens=2).status_code < 500


def test_nothing_to_score(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """An empty prompt of a model without BOS: no token, and no probability."""
    with serving(make_llama(tiny_files.no_bos)) as served:
        reply = served.post("/v1/completions", prompt="", echo=True, logprobs=1, max_tokens=0)
        assert reply.status_code == 200, reply.text
        [choice] = reply.json()["choices"]
        assert choice["text"] == ""
        assert choice["logprobs"]["tokens"] == choice["logprobs"]["token_logprobs"] == []
        refused = served.post("/v1/completions", prompt="", echo=True, logprobs=1, max_tokens=2)
        assert refused.status_code == 400
        assert "the prompt is empty" in refused.text
