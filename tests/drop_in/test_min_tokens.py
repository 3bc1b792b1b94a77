"""``min_tokens``: none of the tokens that end a text comes before it has so many, whoever is asked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import tiny_models as tiny
from llama_cpp.llama_grammar import LlamaGrammar
from needed import imported

from specllama import Conversation
from specllama.batch.answers import Answers
from specllama.batch.batch import Batch

if TYPE_CHECKING:
    from conftest import MakeLlama

    import specllama

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")

PROMPT = "the cat"
HI = [{"role": "user", "content": "hi"}]
JSON = {"type": "json_object", "schema": {"type": "object", "properties": {"a": {"enum": ["x"]}}, "required": ["a"]}}
TOOL = {"type": "function", "function": {"name": "pick", "parameters": JSON["schema"]}}
CHOICE = {"type": "function", "function": {"name": "pick"}}
OTHER_END = "<|im_end|>"
"""llama.cpp takes every token of this text to end one."""


@pytest.fixture(params=[None, "lookup"], ids=["plain", "lookup"])
def ending(request: pytest.FixtureRequest, tmp_path: Path, make_llama: MakeLlama) -> specllama.Llama:
    """A model with two tokens that end a text."""
    words = tiny.word_vocabulary()
    two = dataclasses.replace(
        words,
        tokens=[*words.tokens, OTHER_END],
        scores=[*words.scores, 0.0],
        types=[*words.types, int(gguf.TokenType.CONTROL)],
    )
    path = tiny.write_llama(tmp_path / "two-ends.gguf", two, tiny.llama_weights(two, seed=1))
    return make_llama(path, request.param)


@pytest.fixture
def options(ending: specllama.Llama) -> dict[str, Any]:
    """Of texts that end at once, unless something holds both ends back."""
    ends = [ending.token_eos(), ending.n_vocab() - 1]
    assert all(map(ending.engine.model.ends_text, ends))
    settings = {"max_tokens": 9, "temperature": 0.0, "logit_bias": dict.fromkeys(ends, 60.0)}
    assert ending.create_completion(PROMPT, **settings)["usage"]["completion_tokens"] == 0
    return settings


@pytest.mark.parametrize("count", [0, 1, 5, 8])
def test_exactly_so_many(ending: specllama.Llama, options: dict[str, Any], count: int) -> None:
    asked = {**options, "min_tokens": count}
    assert ending.create_completion(PROMPT, **asked)["usage"]["completion_tokens"] == count
    assert ending(PROMPT, **asked)["usage"]["completion_tokens"] == count
    assert len(list(ending.generate_tokens(PROMPT, **asked))) == count
    chunks = list(ending.create_completion(PROMPT, stream=True, logprobs=0, **asked))
    assert sum(len(chunk["choices"][0]["logprobs"]["tokens"]) for chunk in chunks[:-1]) == count
    for outcome in ending.create_completions([PROMPT, {"prompt": "a dog", "min_tokens": count}], **asked):
        assert outcome.response is not None
        assert outcome.response["usage"]["completion_tokens"] == count
    mirostat = {**asked, "temperature": 0.8, "mirostat_mode": 2, "seed": 1}
    assert ending.create_completion(PROMPT, **mirostat)["usage"]["completion_tokens"] == count


def test_chats(ending: specllama.Llama, options: dict[str, Any]) -> None:
    asked = {**options, "min_tokens": 5}
    assert ending.create_chat_completion(HI, **asked)["usage"]["completion_tokens"] == 5
    (outcome,) = ending.create_chat_completions([HI], **asked)
    assert outcome.response is not None and outcome.response["usage"]["completion_tokens"] == 5
    assert len(list(Conversation(ending, **asked).say("hi"))) == 5
    assert len(list(Conversation(ending, **options).say("hi", min_tokens=4))) == 4


def test_generate_holds_back_every_end(ending: specllama.Llama) -> None:
    def towards_the_end(ids: Any, scores: Any) -> Any:
        scores[[ending.token_eos(), ending.n_vocab() - 1]] += 60.0
        return scores

    tokens = []
    for token in ending.generate(
        ending.tokenize(PROMPT.encode()), temp=0.0, logits_processor=[towards_the_end], min_tokens=3
    ):
        tokens.append(token)
        if ending.engine.model.ends_text(token):
            break
    assert len(tokens) == 4


def test_the_server_and_batches(ending: specllama.Llama, options: dict[str, Any], tmp_path: Path) -> None:
    imported("fastapi")
    from served import serving

    bias = {str(token): value for token, value in options["logit_bias"].items()}
    body = {**options, "logit_bias": bias, "min_tokens": 8}
    with serving(ending) as served:
        assert served.complete(PROMPT, **body)["usage"]["completion_tokens"] == 8
        assert len(served.events("/v1/completions", prompt=PROMPT, **body)) >= 8
        chat = served.post("/v1/chat/completions", messages=HI, **body).json()
        assert chat["usage"]["completion_tokens"] == 8
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({"prompt": PROMPT, **body}) + "\n" + json.dumps({"messages": HI, **body}) + "\n")
    with Answers(tmp_path / "out.jsonl") as answers:
        Batch(ending, source, answers, defaults={}, name="tiny").run(1)
    for line in (tmp_path / "out.jsonl").read_text().splitlines():
        assert json.loads(line)["usage"]["completion_tokens"] == 8


def test_a_grammar_has_an_end_of_its_own(ending: specllama.Llama) -> None:
    why = "min_tokens=30 and a grammar, a schema or a tool that must be called both say where the answer ends"
    grammar = LlamaGrammar.from_string('root ::= "a"', verbose=False)
    with pytest.raises(ValueError, match=why):
        ending.create_completion(PROMPT, grammar=grammar, min_tokens=30)
    called: dict[str, Any] = {"tools": [TOOL], "tool_choice": CHOICE}
    rules: tuple[dict[str, Any], ...] = ({"grammar": grammar}, {"response_format": JSON}, called)
    for rule in rules:
        with pytest.raises(ValueError, match=why):
            ending.create_chat_completion(HI, min_tokens=30, **rule)
        with pytest.raises(ValueError, match=why):
            list(Conversation(ending).say("hi", min_tokens=30, **rule))
    imported("fastapi")
    from served import serving

    with serving(ending) as served:
        for fields in (
            {"grammar": 'root ::= "a"'},
            {"response_format": JSON},
            {"tools": [TOOL], "tool_choice": CHOICE},
        ):
            reply = served.post("/v1/chat/completions", messages=HI, min_tokens=30, **fields)
            assert (reply.status_code, why in reply.json()["error"]["message"]) == (400, True), reply.text
        reply = served.post("/v1/chat/completions", messages=HI, min_tokens=3, max_tokens=4, tools=[TOOL])
        assert reply.status_code == 200, "nothing must be called"


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("3", TypeError)])
def test_what_is_no_number_of_tokens(make_llama: MakeLlama, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=f"min_tokens={value!r} must be"):
        make_llama().create_completion(PROMPT, min_tokens=value)
