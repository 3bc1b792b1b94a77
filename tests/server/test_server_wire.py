"""What clients send on the wire: nulls, other servers' names, lists of prompts, fields that ask for nothing."""

from __future__ import annotations

import contextlib
import json
import threading
import typing
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")
openai = imported("openai")

from openai.types import Completion
from openai.types import completion_create_params as of_texts
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ChatCompletionStreamOptionsParam
from openai.types.chat import completion_create_params as of_chats
from served import Served, serving  # needs the extra

from specllama.engine.generation import Generation
from specllama.server import prompt_progress
from specllama.server.chats import ChatRequest
from specllama.server.completions import CompletionRequest
from specllama.server.fields import StreamOptions
from specllama.server.wire import REFUSED, WITHOUT_EFFECT

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying, TinyFiles

PROMPT = "the cat sat on the dog and"
MESSAGES: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
TEXTS, CHATS = PATHS = ["/v1/completions", "/v1/chat/completions"]
RANDOM: dict[str, Any] = {"temperature": 1.5, "max_tokens": 8, "seed": 5}
ONE: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in ("a", "b")]

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def served(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good)) as running:
        yield running


def own(path: str) -> dict[str, Any]:
    return {"prompt": PROMPT} if path == TEXTS else {"messages": MESSAGES}


def ask(served: Served, path: str, **fields: Any) -> Any:
    reply = served.post(path, **{**own(path), "max_tokens": 8, "temperature": 0.0, **fields})
    assert reply.status_code == 200, reply.text
    answer = reply.json()
    if not fields.get("echo"):  # whose first log-probability is null, which OpenAI's types do not know
        (ChatCompletion if "chat" in path else Completion).model_validate(answer)
    return answer


def refused(served: Served, path: str, **fields: Any) -> str:
    reply = served.post(path, **{**own(path), "max_tokens": 1, **fields})
    assert reply.status_code == 400, reply.text
    message: str = reply.json()["error"]["message"]
    return message


def texts_of(answer: Any) -> list[str]:
    return [choice["text"] if "text" in choice else choice["message"]["content"] for choice in answer["choices"]]


# Which fields there are


@pytest.mark.parametrize(("params", "request_type"), [(of_chats, ChatRequest), (of_texts, CompletionRequest)])
def test_every_field_of_openais_is_done_or_ignored_or_refused(params: Any, request_type: Any) -> None:
    streaming = params.CompletionCreateParamsStreaming.__annotations__
    fields = {*params.CompletionCreateParamsBase.__annotations__, *streaming}
    assert len(fields) > 15
    done = request_type.model_fields.keys()
    assert fields <= {*done, *WITHOUT_EFFECT, *REFUSED}
    assert not (done & WITHOUT_EFFECT) and not REFUSED.keys() & {*done, *WITHOUT_EFFECT}
    assert typing.get_type_hints(ChatCompletionStreamOptionsParam).keys() <= StreamOptions.model_fields.keys()


@pytest.mark.parametrize("path", PATHS)
def test_what_has_no_effect_is_taken_and_named(served: Served, path: str) -> None:
    plain = ask(served, path)
    given: dict[str, Any] = {name: {"x": 1} for name in WITHOUT_EFFECT} | {"modalities": ["text"]}
    answer = ask(served, path, **given)
    assert answer["choices"] == plain["choices"]
    assert answer["warnings"] == [f"{name} has no effect here" for name in sorted(WITHOUT_EFFECT)]


@pytest.mark.parametrize("path", PATHS)
def test_what_would_change_the_answer_is_refused(served: Served, path: str) -> None:
    for name in REFUSED:
        assert f'"{name}" is not supported' in refused(served, path, **{name: {}})
        ask(served, path, **{name: None})
    assert '"modalities" must be ["text"]' in refused(served, path, modalities=["text", "audio"])
    message = refused(served, path, draft_model="x")
    assert 'there is no field "draft_model"' in message and "did you mean" not in message
    assert "did you mean temperature?" in refused(served, path, temprature=1)


@pytest.mark.parametrize(("path", "request_type"), [(TEXTS, CompletionRequest), (CHATS, ChatRequest)])
def test_null_is_the_default(served: Served, path: str, request_type: Any) -> None:
    plain = served.post(path, **own(path), seed=3)
    nulls = dict.fromkeys({*request_type.model_fields, *WITHOUT_EFFECT} - {"prompt", "messages"})
    for name in nulls:  # each alone
        ask(served, path, **{"max_tokens": 1, name: None})
    reply = served.post(path, **{**nulls, **own(path), "seed": 3})
    assert reply.status_code == 200, reply.text
    assert reply.json()["choices"] == plain.json()["choices"]
    events = served.events(path, **{**own(path), "max_tokens": 1, "stream_options": {"include_usage": None}})
    assert events[-1]["choices"]


def test_the_document_allows_null(served: Served) -> None:
    schemas = served.client.get("/openapi.json").json()["components"]["schemas"]
    for name in ("CompletionRequest", "ChatRequest"):
        fields = schemas[name]["properties"]
        optional = [field for field in fields if field not in schemas[name].get("required", ())]
        assert len(optional) > 30
        assert all({"type": "null"} in fields[field].get("anyOf", ()) for field in optional)


# Numbers


def test_minus_one(served: Served) -> None:
    room = served.llm.n_ctx()
    never = {"ignore_eos": True}
    for path, name in ((TEXTS, "max_tokens"), (TEXTS, "n_predict"), (CHATS, "max_completion_tokens")):
        usage = ask(served, path, **{"max_tokens": None, name: -1, **never})["usage"]
        assert usage["total_tokens"] == room
    assert ask(served, CHATS, max_tokens=3, n_predict=5, **never)["usage"]["completion_tokens"] == 5
    for path in PATHS:
        everything = {**RANDOM, "top_p": 1.0, "min_p": 0.0}
        assert (
            ask(served, path, **everything, top_k=-1)["choices"] == ask(served, path, **everything, top_k=0)["choices"]
        )
        assert "max_tokens: Input should be greater than or equal to -1" in refused(served, path, max_tokens=-2)


@pytest.mark.parametrize("path", PATHS)
def test_ignore_eos(served: Served, path: str) -> None:
    bias = {"logit_bias": {str(served.llm.token_eos()): 100.0}}
    assert ask(served, path, **bias)["usage"]["completion_tokens"] == 0
    assert ask(served, path, **bias, ignore_eos=True)["usage"]["completion_tokens"] == 8
    assert '"ignore_eos" and "grammar" disagree' in refused(served, path, ignore_eos=True, grammar='root ::= "a"')
    assert '"ignore_eos" and "' in refused(served, path, ignore_eos=True, json_schema={"enum": ["x"]})


def test_ignore_eos_and_tools(served: Served) -> None:
    path, function = "/v1/chat/completions", {"name": "look", "parameters": {}}
    tools, functions = {"tools": [{"type": "function", "function": function}]}, {"functions": [function]}
    named = {"type": "function", "function": {"name": "look"}}
    for choice in ("required", named):
        told = refused(served, path, ignore_eos=True, **tools, tool_choice=choice)
        assert '"ignore_eos" and "tool_choice" disagree' in told
    told = refused(served, path, ignore_eos=True, **functions, function_call={"name": "look"})
    assert '"ignore_eos" and "function_call" disagree' in told
    for free in ({**tools, "tool_choice": "auto"}, {"response_format": {"type": "text"}}):
        assert ask(served, path, ignore_eos=True, **free)["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("path", PATHS)
def test_biases_as_llama_server_takes_them(served: Served, path: str) -> None:
    token = served.llm.tokenize(b"cat", add_bos=False)[-1]
    assert (
        ask(served, path, logit_bias=[[token, 100]])["choices"]
        == (ask(served, path, logit_bias={str(token): 100})["choices"])
    )
    first = ask(served, path, return_origins=True)["tokens"][0]["id"]
    never = ask(served, path, logit_bias=[[first, False]], return_origins=True)["tokens"]
    assert never and first not in [each["id"] for each in never]
    assert "a list of pairs" in refused(served, path, logit_bias=[token])


@pytest.mark.parametrize("path", PATHS)
def test_repeat_last_n(served: Served, path: str) -> None:
    settings: dict[str, Any] = {"repeat_penalty": 1.8, "max_tokens": 30, "ignore_eos": True}
    without, some, all_of_them = (ask(served, path, **settings, repeat_last_n=n)["choices"] for n in (0, 3, -1))
    assert without == ask(served, path, **{**settings, "repeat_penalty": 1.0})["choices"]
    assert len({json.dumps(choices) for choices in (without, some, all_of_them)}) == 3
    assert ask(served, path, **settings, repeat_last_n=64)["choices"] == ask(served, path, **settings)["choices"]
    mirostat = {**settings, "mirostat": 2, "temperature": 1.0, "seed": 1}
    assert ask(served, path, **mirostat, repeat_last_n=0)["choices"] != ask(served, path, **mirostat)["choices"]


# Several texts


@pytest.fixture(params=[1, 3])
def served_many(request: Any, make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Served]:
    with serving(make_llama(draft=tiny_files.good), max_parallel=request.param) as running:
        yield running


@pytest.mark.parametrize("path", PATHS)
def test_several_answers(served_many: Served, path: str) -> None:
    one, several = (ask(served_many, path, **RANDOM, **more) for more in ({}, {"n": 3}))
    assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]
    assert texts_of(several)[0] == texts_of(one)[0] and len({*texts_of(several)}) == 3
    assert several == {
        **ask(served_many, path, **RANDOM, n=3),
        **{name: several[name] for name in several if name != "choices"},
    }
    usage, single = several["usage"], one["usage"]
    assert usage["prompt_tokens"] == single["prompt_tokens"]
    assert single["completion_tokens"] < usage["completion_tokens"] <= 24
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert several["timings"]["predicted_n"] >= usage["completion_tokens"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_of_several_answers(served_many: Served, path: str) -> None:
    whole = ask(served_many, path, **RANDOM, n=3)
    options = {"stream_options": {"include_usage": True, "include_obfuscation": False}}
    *events, last = served_many.events(path, **own(path), **RANDOM, n=3, **options)
    texts = ["", "", ""]
    for event in events:
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"] if path == TEXTS else choice["delta"].get("content") or ""
    assert texts == texts_of(whole)
    assert len({event["id"] for event in [*events, last]}) == 1
    assert sum(event["choices"][0]["finish_reason"] is not None for event in events) == 3
    del whole["usage"]["prompt_tokens_details"], last["usage"]["prompt_tokens_details"]
    assert last["choices"] == [] and last["usage"] == whole["usage"]
    if path == CHATS:
        for event in [*events, last]:
            ChatCompletionChunk.model_validate(event)


def test_several_prompts(served_many: Served) -> None:
    prompts = ["the cat", "a dog and a", "on"]
    alone = [ask(served_many, TEXTS, prompt=prompt, n=2, **RANDOM) for prompt in prompts]
    together = ask(served_many, TEXTS, prompt=prompts, n=2, **RANDOM)
    assert texts_of(together) == [text for answer in alone for text in texts_of(answer)]
    assert [choice["index"] for choice in together["choices"]] == list(range(6))
    for name in ("prompt_tokens", "completion_tokens"):
        assert together["usage"][name] == sum(answer["usage"][name] for answer in alone)
    ids = [served_many.llm.tokenize(prompt.encode()) for prompt in prompts]
    assert texts_of(ask(served_many, TEXTS, prompt=ids, n=2, **RANDOM)) == texts_of(together)
    assert texts_of(ask(served_many, TEXTS, prompt=["a"], **RANDOM)) == texts_of(
        ask(served_many, TEXTS, prompt="a", **RANDOM)
    )
    origins = ask(served_many, TEXTS, prompt=prompts, **RANDOM, return_origins=True)
    assert "tokens" not in origins and all(choice["tokens"] for choice in origins["choices"])


def test_the_best_of_several(served_many: Served) -> None:
    settings = {**RANDOM, "ignore_eos": True}
    candidates = ask(served_many, TEXTS, **settings, n=4, logprobs=0)
    means = [sum(choice["logprobs"]["token_logprobs"]) / 8 for choice in candidates["choices"]]
    order = sorted(range(4), key=lambda number: -means[number])
    best = ask(served_many, TEXTS, **settings, n=2, best_of=4)
    assert texts_of(best) == [texts_of(candidates)[number] for number in order[:2]]
    assert [choice["logprobs"] for choice in best["choices"]] == [None, None]
    assert best["usage"]["completion_tokens"] == 32
    assert "best_of=1 must be n=2 or more" in refused(served_many, TEXTS, n=2, best_of=1)
    assert "has no stream" in refused(served_many, TEXTS, best_of=2, stream=True)
    assert "200 texts in one request: send at most 128" in refused(served_many, TEXTS, prompt=["a"] * 100, n=2)


def test_one_of_several_prompts_is_wrong(served_many: Served) -> None:
    vocabulary = served_many.llm.n_vocab()
    assert "out of range" in refused(served_many, TEXTS, prompt=[[1], [vocabulary], [1, 2]], max_tokens=4)
    assert "exceed context window" in refused(served_many, TEXTS, prompt=["a", "a " * 600], max_tokens=4)
    for wrong in ([[1], "a"], [1, "a"], [["a"]], [], [[]], [None], [[1], None]):
        reply = served_many.post(TEXTS, prompt=wrong, max_tokens=1)
        assert reply.status_code in (200, 400), reply.text
    assert ask(served_many, TEXTS)["usage"]["completion_tokens"] == 8
    served_many.wait_until_idle()


def test_a_client_that_leaves_several_answers(served_many: Served) -> None:
    body = {"prompt": ["the cat"] * 6, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with served_many.client.stream("POST", TEXTS, json=body) as response:
        next(response.iter_lines())
    served_many.wait_until_idle()
    assert served_many.app.state.worker.outcomes["stopped"] == 1
    assert ask(served_many, TEXTS)["usage"]["completion_tokens"] == 8


def test_what_an_evaluation_harness_asks(served_many: Served) -> None:
    """lm-evaluation-harness's local-completions: lists of ids, scored and one token longer."""
    llm = served_many.llm
    a, b = llm.tokenize(PROMPT.encode(), add_bos=False)[1:3]
    scored: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0, "ignore_eos": True}
    answer = ask(served_many, TEXTS, prompt=[[llm.token_bos(), a, b], [a, b]], **scored)
    with_bos, without = (choice["logprobs"]["token_logprobs"] for choice in answer["choices"])
    assert [len(with_bos), len(without)] == [4, 3]
    assert with_bos[0] is without[0] is None and max(with_bos[1:] + without[1:]) < 0
    ones = [llm.create_completion(ids, **{**ONE, "logprobs": 500})["choices"][0] for ids in ([1], [1, a], [1, a, b])]
    expected = [
        one["logprobs"]["top_logprobs"][0][text]
        for one, text in zip(ones, answer["choices"][0]["logprobs"]["tokens"][1:], strict=True)
    ]
    assert with_bos[1:] == pytest.approx(expected, abs=1e-3)
    assert len(ask(served_many, TEXTS, prompt="ab", **scored)["choices"][0]["logprobs"]["tokens"]) == len(
        llm.tokenize(b"ab")
    )


# Log-probabilities and usage


def test_bytes_of_logprobs(served: Served) -> None:
    text_of = served.llm.engine.text
    half = next(token for token in range(served.llm.n_vocab()) if text_of([token]) == b"\x97")  # of a character
    settings: dict[str, Any] = {"logprobs": True, "top_logprobs": 3, "return_origins": True}
    for bias in ({}, {"logit_bias": {str(half): 100.0}}):
        answer = ask(served, CHATS, **settings, **bias)
        content = answer["choices"][0]["logprobs"]["content"]
        assert [entry["bytes"] for entry in content] == [list(text_of([token["id"]])) for token in answer["tokens"]]
        for entry in (entry for each in content for entry in (each, *each["top_logprobs"]) if entry["bytes"]):
            whole = bytes(entry["bytes"]).decode(errors="ignore")
            assert entry["token"] == whole or (not whole and entry["token"].startswith("\\x"))  # half a character
        assert any(top["bytes"] for entry in content for top in entry["top_logprobs"])
    events = served.events(CHATS, messages=MESSAGES, temperature=0.0, max_tokens=8, logprobs=True)
    parts = [(event["choices"][0].get("logprobs") or {}).get("content") or [] for event in events]
    expected = ask(served, CHATS, logprobs=True)["choices"][0]["logprobs"]["content"]
    streamed = [entry["bytes"] for part in parts for entry in part]
    assert streamed == [entry["bytes"] for entry in expected][: len(streamed)] and len(streamed) > 3


@pytest.mark.parametrize("path", PATHS)
def test_cached_tokens(served: Served, path: str) -> None:
    first, second = (ask(served, path)["usage"] for _ in range(2))
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": second["prompt_tokens"] - 1}


# Messages and tools


def test_messages_with_nulls_and_refusals(served: Served) -> None:
    user = {"role": "user", "content": "hi"}
    plain = [user, {"role": "assistant", "content": "no"}, user]
    nulls = dict.fromkeys(
        ("name", "tool_calls", "function_call", "audio", "refusal", "annotations", "reasoning_content")
    )
    other = [
        [{**message, **nulls} for message in plain],
        [user, {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}, user],
        [user, {"role": "assistant", "content": None, "refusal": "no"}, user],
    ]
    expected = ask(served, CHATS, messages=plain)
    for messages in other:
        found = ask(served, CHATS, messages=messages)
        assert found["choices"] == expected["choices"]
        assert found["usage"]["prompt_tokens"] == expected["usage"]["prompt_tokens"]


def test_nulls_in_tools_and_formats(served: Served) -> None:
    tool = {"type": "function", "function": {"name": "a", "parameters": None, "description": None, "strict": None}}
    assert ask(served, CHATS, tools=[tool], tool_choice=None)["choices"] == ask(served, CHATS)["choices"]
    schema = {"type": "object", "properties": {"a": {"enum": ["x", None]}}, "required": ["a"]}
    wanted = {"name": "x", "description": None, "strict": None, "schema": schema}
    ask(served, CHATS, response_format={"type": "json_schema", "json_schema": wanted})


def test_allowed_tools(served: Served) -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {
            "tools": TOOLS,
            "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}},
        }

    called = ask(served, CHATS, **allowed("required", "b"))["choices"][0]["message"]["tool_calls"]
    assert called[0]["function"]["name"] == "b"
    ask(served, CHATS, **allowed("auto", "a", "b"))
    assert "allows the tool 'c', which is not among the tools" in refused(served, CHATS, **allowed("auto", "c"))
    for wrong in (allowed("none", "a"), allowed("auto"), {"tools": TOOLS, "tool_choice": {"type": "allowed_tools"}}):
        assert "allowed_tools needs allowed_tools, an object" in refused(served, CHATS, **wrong)


# Paths


def test_paths_without_v1(served: Served) -> None:
    assert served.client.get("/models").json() == served.client.get("/v1/models").json()
    assert served.client.get("/models/tiny").json()["id"] == "tiny"
    assert served.client.get("/v1/health").json()["status"] == "ok"
    for path in PATHS:
        assert ask(served, path.removeprefix("/v1"), **own(path))["choices"] == ask(served, path)["choices"]


def test_head_is_get_without_a_body(served: Served) -> None:
    for path in ("/health", "/v1/models", "/", "/metrics", "/nowhere", "/v1/completions"):
        got, head = served.client.get(path), served.client.head(path)
        assert (head.status_code, head.content) == (got.status_code, b"")
        assert head.headers["content-type"] == got.headers["content-type"]


def test_llama_servers_tokens(served: Served) -> None:
    llm = served.llm
    plain = served.post("/tokenize", content=PROMPT).json()["tokens"]
    assert plain == llm.tokenize(PROMPT.encode(), add_bos=False, special=True)
    assert served.post("/tokenize", content=None, add_special=None).json() == served.post("/tokenize").json()
    assert served.post("/tokenize", content=PROMPT, add_special=True).json()["tokens"] == [llm.token_bos(), *plain]
    assert served.post("/tokenize", content=[*plain[:2], "a"]).json()["tokens"][:2] == plain[:2]
    assert served.post("/tokenize", content="<s>").json()["tokens"][-1:] == [llm.token_bos()]
    assert llm.token_bos() not in served.post("/tokenize", content="<s>", parse_special=False).json()["tokens"]
    pieces = served.post("/tokenize", content=f"{PROMPT} \U0001f999", with_pieces=True).json()["tokens"]
    whole = b"".join(p["piece"].encode() if isinstance(p["piece"], str) else bytes(p["piece"]) for p in pieces)
    assert whole.decode().strip() == f"{PROMPT} \U0001f999"
    assert served.post("/detokenize", tokens=plain).json()["content"].strip() == PROMPT
    assert served.post("/detokenize", tokens=[llm.token_bos()]).json() == {"content": "<s>"}
    for path, body in (
        ("/tokenize", {"content": [True]}),
        ("/tokenize", {"content": [2**70]}),
        ("/tokenize", {"content": "a " * 400_000}),
        ("/tokenize", {"content": [10**9], "with_pieces": True}),
        ("/detokenize", {"tokens": [10**9]}),
    ):
        assert served.post(path, **body).status_code == 400


def test_unknown_fields_of_small_bodies_are_refused(served: Served) -> None:
    extra = {"input_prefix": "a", "input_suffix": "b", "input_extra": [{"text": "a", "filname": "b", "time": 1}]}
    for path, body, message in (
        ("/tokenize", {"text": "a"}, "has no field 'text'"),
        ("/tokenize", {"content": "a", "with_piece": True}, "has no field 'with_piece': did you mean with_pieces?"),
        ("/detokenize", {"tokens": [5], "text": "a"}, "has no field 'text'"),
        ("/extras/tokenize", {"input": "a", "inputs": "b"}, "did you mean input?"),
        ("/extras/tokenize/count", {"input": "a", "special": True}, "has no field 'special'"),
        ("/extras/detokenize", {"tokens": [5], "special": True}, "has no field 'special'"),
        ("/infill", extra, "an entry of input_extra has no field 'filname': did you mean filename?"),
    ):
        reply = served.post(path, **body)
        assert (reply.status_code, message in reply.json()["error"]["message"]) == (400, True), reply.text


def test_numbers_that_json_lacks_are_not_answered(served: Served) -> None:
    """A banned token's bias is false, as in llama-server's requests; any other such number is null."""

    def strict(path: str, body: str) -> Any:
        reply = served.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert reply.status_code == 200, reply.text
        return json.loads(reply.content, parse_constant=lambda name: pytest.fail(f"{path} answers {name}"))

    for banned in ("[[5,false]]", '{"5":-Infinity}'):
        body = f'{{"prompt":"the cat","n_predict":2,"n_probs":20,"temperature":-1e400,"logit_bias":{banned}}}'
        settings = strict("/completion", body)["generation_settings"]
        assert settings["logit_bias"] == [{"token": "5", "bias": False}]
        assert settings["temperature"] is None
    told = strict("/v1/responses", '{"input":"the cat","max_output_tokens":2,"metadata":{"a":1e400,"b":1.5}}')
    assert told["metadata"] == {"a": None, "b": 1.5}


def test_a_template_is_applied(served: Served, make_llama: MakeLlama) -> None:
    prompt = served.post("/apply-template", messages=MESSAGES, max_tokens=5).json()["prompt"]
    assert "hi" in prompt
    whole = ask(served, CHATS)
    assert len(served.llm.tokenize(prompt.encode(), add_bos=False, special=True)) == whole["usage"]["prompt_tokens"]
    assert served.post("/apply-template", messages=[]).status_code == 400


def test_props(served: Served) -> None:
    props = served.client.get("/props").json()
    assert props["default_generation_settings"]["n_ctx"] == served.llm.n_ctx()
    assert props["default_generation_settings"]["params"]["repeat_penalty"] == 1.0
    assert props["chat_template"] == served.llm.metadata.get("tokenizer.chat_template", "")
    assert (props["total_slots"], props["model_alias"], props["bos_token"]) == (1, "tiny", "<s>")
    assert props["modalities"]["vision"] is False


@pytest.mark.parametrize("max_parallel", [1, 2])
def test_slots(make_llama: MakeLlama, tiny_files: TinyFiles, max_parallel: int) -> None:
    with serving(make_llama(draft=tiny_files.good), max_parallel=max_parallel) as served:
        slots = served.client.get("/slots").json()
        assert [slot["id"] for slot in slots] == [*range(max_parallel)]
        expected = {"n_ctx": served.llm.n_ctx(), "speculative": True, "is_processing": False}
        assert all(slot == {"id": slot["id"], **expected} for slot in slots)
        assert served.client.get("/slots?fail_on_no_slot=1").status_code == 200
        body = {**own(TEXTS), "max_tokens": -1, "ignore_eos": True, "stream": True, "temperature": 0.0}
        with contextlib.ExitStack() as streams:
            for _ in range(max_parallel):
                streams.enter_context(served.client.stream("POST", TEXTS, json=body))
            slots = served.client.get("/slots").json()
        assert len(slots) == max_parallel  # whether they were done by now is a matter of speed


@pytest.mark.parametrize("path", PATHS)
def test_how_much_of_a_prompt_is_read(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """As llama-server says it, before the first chunk of the answer."""
    heard, look = threading.Event(), Generation._look_at_loop

    def slowly(generation: Generation) -> None:
        look(generation)
        if generation._counters.num_target_tokens_decoded >= 96:
            assert heard.wait(60), "the client hears of it while the prompt is read"

    monkeypatch.setattr(prompt_progress, "_EVERY", 0.001)
    monkeypatch.setattr(Generation, "_look_at_loop", slowly)
    text = "the cat sat on the dog and " * 24
    asked = {"messages": [{"role": "user", "content": text}]} if path == CHATS else {"prompt": text}
    body = {**asked, "max_tokens": 8, "temperature": 0.0, "stream": True}
    with serving(make_llama(draft=tiny_files.good, n_batch=32)) as served:
        found = []
        with served.client.stream("POST", path, json={**body, "return_progress": True}) as response:
            assert response.status_code == 200
            for line in response.iter_lines():
                if line.startswith("data: {"):
                    found.append(json.loads(line.removeprefix("data: ")))
                    if found[-1].get("prompt_progress", {}).get("processed", 0) >= 96:
                        heard.set()
        read = [chunk["prompt_progress"] for chunk in found if "prompt_progress" in chunk]
        assert found[: len(read)] == [chunk for chunk in found if "prompt_progress" in chunk]
        counts = [one["processed"] for one in read]
        assert counts == sorted(set(counts)) and 96 in counts
        total = found[-1]["timings"]["prompt_n"]
        assert {(one["total"], one["cache"]) for one in read} == {(total, 0)}
        assert counts[-1] <= total
        served.llm.reset()
        plain = served.events(path, **body)
        assert [chunk["choices"] for chunk in found[len(read) :]] == [chunk["choices"] for chunk in plain]
        # What is wrong with a request still has a status of its own.
        asked = {"messages": [{"role": "user", "content": text * 9}]} if path == CHATS else {"prompt": text * 9}
        refused = served.post(path, **{**body, **asked, "return_progress": True})
        assert refused.status_code == 400 and "exceed context window" in refused.json()["error"]["message"]
        # Where there is no stream, there is nobody to tell.
        whole = served.post(path, **{**body, "stream": False, "return_progress": True}).json()
        assert "prompt_progress" not in whole and "warnings" not in whole


LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": {"type": "object"}}}
CALLED = {"id": "call_1", "type": "function", "index": 0, "function": {"name": "look", "arguments": "{}"}}
OPEN_WEBUI: dict[
    str, dict[str, Any]
] = {  # by its sources (0.12: main.py, routers/openai.py, routers/tasks.py, utils/payload.py)
    "a turn, with all of the model's parameters set": {
        "stream": True,
        "stream_options": {"include_usage": True},
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        **{"temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "frequency_penalty": 0.1, "presence_penalty": 0.1},
        **{"max_tokens": 8, "seed": 42, "stop": ["\n\n\n"], "logit_bias": {"5": -100}, "reasoning_effort": "medium"},
        **{"top_k": 40, "repeat_penalty": 1.1, "mirostat": 0},  # parameters of one's own
        "response_format": {"type": "text"},
    },
    "a title": {
        "stream": False,
        "messages": [{"role": "user", "content": "### Task:\nGenerate a title\n### Chat History:\n<chat_history>hi"}],
        "max_tokens": 8,
    },
    "a regenerated answer, of which nothing is set": {"stream": True, "messages": MESSAGES},
    "a tool's answer": {
        "stream": True,
        "tools": [LOOK],
        "messages": [
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": "", "tool_calls": [CALLED]},
            {"role": "tool", "tool_call_id": "call_1", "content": "It is a cat."},
        ],
        "max_tokens": 8,
    },
    "parts, as with files": {
        "stream": True,
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "max_tokens": 8,
    },
}


@pytest.mark.parametrize("name", OPEN_WEBUI)
def test_what_open_webui_sends(served: Served, name: str) -> None:
    (listed,) = served.client.get("/v1/models").json()["data"]
    body = {"model": listed["id"], **OPEN_WEBUI[name]}
    if not body["stream"]:
        answer = served.post(CHATS, **body)
        assert answer.status_code == 200, answer.text
        assert ChatCompletion.model_validate(answer.json()).choices[0].message.content is not None
        return
    chunks = [ChatCompletionChunk.model_validate(event) for event in served.events(CHATS, **body)]
    assert chunks[0].choices[0].delta.role == "assistant"
    ended = [choice.finish_reason for chunk in chunks for choice in chunk.choices if choice.finish_reason]
    assert len(ended) == 1 and set(ended) <= {"stop", "length"}
    assert (chunks[-1].usage is not None) == ("stream_options" in body)


def test_a_rendered_chat_gets_no_second_bos(saying: Saying) -> None:
    """The text that /apply-template gives, sent as a prompt, has the tokens of the chat."""
    template = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    with serving(saying(["One"], template)) as served:
        chat = ask(served, CHATS)["usage"]["prompt_tokens"]
        prompt = served.post("/apply-template", messages=MESSAGES).json()["prompt"]
        assert prompt.startswith("<s>")
        for given in (prompt, [prompt]):
            assert ask(served, TEXTS, prompt=given)["usage"]["prompt_tokens"] == chat
        assert served.post("/completion", prompt=prompt, n_predict=1).json()["tokens_evaluated"] == chat


def test_tools_of_other_types_are_left_out(served: Served) -> None:
    answer = ask(served, CHATS, tools=[*TOOLS, {"type": "web_search"}, {"type": "custom", "custom": {"name": "x"}}])
    assert [one for one in answer["warnings"] if "is left out" in one] == [
        f"a tool of the type {kind!r} is left out: it is no function" for kind in ("custom", "web_search")
    ]
    assert "there are no tools" in refused(served, CHATS, tools=[{"type": "custom"}], tool_choice="required")
