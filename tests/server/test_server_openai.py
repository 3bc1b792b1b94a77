"""The real `openai` package against the server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

imported("fastapi")
openai = imported("openai")

from pydantic import BaseModel  # comes with the extras
from served import serving

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

MESSAGES: Any = [{"role": "user", "content": "hi"}]
GREEDY: dict[str, Any] = {"model": "tiny", "messages": MESSAGES, "temperature": 0.0, "seed": 1, "max_tokens": 30}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def client(make_llama: MakeLlama, tiny_files: TinyFiles) -> Iterator[Any]:
    with (
        serving(make_llama(draft=tiny_files.good), api_key="sesame") as served,
        openai.OpenAI(base_url=served.url + "/v1", api_key="sesame", max_retries=0) as client,
    ):
        yield client


def test_plain_and_stream(client: Any) -> None:
    whole = client.chat.completions.create(**GREEDY)
    assert whole.usage.completion_tokens == 30 and whole.choices[0].finish_reason == "length"
    assert whole.timings["draft_n"] > 0
    chunks = list(client.chat.completions.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    first, second = (usage.model_dump(exclude={"prompt_tokens_details"}) for usage in (whole.usage, chunks[-1].usage))
    assert first == second
    cached = [usage.prompt_tokens_details.cached_tokens for usage in (whole.usage, chunks[-1].usage)]
    assert cached == [0, whole.usage.prompt_tokens - 1]  # the stream's prompt was the same


def test_completions_and_models(client: Any) -> None:
    options: dict[str, Any] = {"model": "tiny", "prompt": "the cat", "temperature": 0, "max_tokens": 10}
    whole = client.completions.create(**options)
    assert "".join(chunk.choices[0].text for chunk in client.completions.create(**options, stream=True)) == (
        whole.choices[0].text
    )
    assert [model.id for model in client.models.list()] == ["tiny"]


def test_our_options(client: Any) -> None:
    plain = client.chat.completions.create(**GREEDY, extra_body={"num_draft_tokens": 0, "verify": "rejection"})
    assert (plain.timings["draft_n"], plain.timings["verify"]) == (0, "rejection")


class Answer(BaseModel):
    """What the model is made to say."""

    sure: bool


def test_json_schema(client: Any) -> None:
    parsed = client.chat.completions.parse(**{**GREEDY, "max_tokens": 200}, response_format=Answer)
    assert isinstance(parsed.choices[0].message.parsed, Answer)


def test_tools(client: Any) -> None:
    parameters = {"type": "object", "properties": {"loud": {"type": "boolean"}}, "required": ["loud"]}
    tool = {"type": "function", "function": {"name": "bark", "parameters": parameters}}
    options: dict[str, Any] = {**GREEDY, "max_tokens": 200, "tools": [tool], "tool_choice": "required"}
    call = client.chat.completions.create(**options).choices[0].message.tool_calls[0]
    assert call.function.name == "bark" and json.loads(call.function.arguments)["loud"] in (True, False)
    with client.chat.completions.stream(**options) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.arguments == call.function.arguments


def test_logprobs(client: Any) -> None:
    choice = client.chat.completions.create(**{**GREEDY, "max_tokens": 4}, logprobs=True, top_logprobs=2).choices[0]
    assert len(choice.logprobs.content) == 4
    for entry in choice.logprobs.content:
        assert entry.logprob == max(top.logprob for top in entry.top_logprobs)


def test_errors_are_openais(client: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="exceed context window") as caught:
        client.completions.create(model="tiny", prompt="a " * 3000)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError, match="API key"):
        client.with_options(api_key="wrong").models.list()
