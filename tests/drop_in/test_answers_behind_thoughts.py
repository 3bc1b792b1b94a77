"""Schemas, formats and grammars hold from where the answer begins: behind a thought, behind what opens an answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
import tiny_models as tiny
from llama_cpp.llama_grammar import LlamaGrammar
from served import serving
from test_tool_calls import (
    BEGINS,
    BEGUN,
    FORMS,
    GEMMA_THINKS,
    GREEDY,
    HARMONY,
    HERMES,
    HI,
    LLAMA,
    LOOK_AT,
    OPENS,
    THINKS,
    TOOLS,
    everywhere,
    said,
)

import specllama
from specllama.chat import chat_prompt
from specllama.grammars.schema import SchemaGrammar

if TYPE_CHECKING:
    from conftest import Saying

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")

SCHEMA = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
YES = 'root ::= "yes" | "no" '
CHANNELS = (*OPENS, "<|return|>", "<|call|>")
MISTRAL = "{# [THINK] [/THINK] #}" + HERMES
SEED = "{# <seed:think> </seed:think> #}" + HERMES
OFF = {"chat_template_kwargs": {"enable_thinking": False}}

# The template, a thought as the model writes it, control tokens.
FAMILIES: dict[str, tuple[str, list[str], Sequence[str]]] = {
    "Qwen3": (THINKS, ["<think>", "\n", "Hm", "..", "\n</think>", "\n\n"], ()),
    "Qwen3.5, DeepSeek R1": (BEGINS, ["Hm", "..", "\n</think>", "\n\n"], ()),
    "marks in longer tokens": (THINKS, ["<think>\n", "Hm", "..", "\n</think>\n\n"], ()),
    "marks in pieces": (THINKS, ["<th", "ink", ">\n", "Hm", "..", "<", "/think", ">\n\n"], ()),
    "control tokens": (BEGINS, ["Hm", "..", "</think>", "\n\n"], ("</think>",)),
    "Mistral": (MISTRAL, ["[THINK]", "Hm", "..", "[/THINK]"], ("[THINK]", "[/THINK]")),
    "Seed-OSS": (SEED, ["<seed:think>", "Hm", "..", "</seed:think>"], ()),
    "Gemma 4": (
        GEMMA_THINKS,
        ["<|channel>", "thought", "\nHm", "..", "<channel|>"],
        ("<|channel>", "<channel|>"),
    ),
    "gpt-oss": (
        HARMONY,
        ["<|channel|>", "analysis", "<|message|>", "Hm", "..", "<|end|>", "<|start|>", "assistant"],
        CHANNELS,
    ),
}


def answering(saying: Saying, family: str, *answer: str) -> specllama.Llama:
    """A model that thinks and then says this."""
    template, thought, special = FAMILIES[family]
    pieces = [*thought, *answer]
    return saying([*pieces, *(mark for mark in special if mark not in pieces)], template, special)


@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_answer_must_be_holds_behind_the_thought(saying: Saying, family: str) -> None:
    llm = answering(saying, family, '{"a"', ": ", "2", "}")
    free = everywhere(llm)
    assert free["reasoning"] == "Hm.."
    formats = [FORMAT, {"type": "json_object"}]
    for asked in formats[: 1 if family == "gpt-oss" else 2]:  # the model says its marks in texts of JSON, too
        found = everywhere(llm, response_format=asked, max_tokens=80)
        assert found["reasoning"] == "Hm.." and not found["calls"]
        assert found["content"].startswith('{"a": 2}') and found["why"] in ("stop", "length")
        if asked is FORMAT:
            jsonschema.validate(json.loads(found["content"]), SCHEMA)
            assert found["why"] == "stop"
    yes = said(llm.create_chat_completion(**GREEDY, grammar=LlamaGrammar.from_string(YES, verbose=False)))
    assert yes["reasoning"] == "Hm.." and yes["content"] in ("yes", "no") and yes["why"] == "stop"


@pytest.mark.parametrize("family", ["Qwen3", "Qwen3.5, DeepSeek R1", "gpt-oss"])
def test_every_route(saying: Saying, family: str) -> None:
    llm = answering(saying, family, '{"a"', ": ", "2", "}")
    one = {"temperature": 0, "messages": HI, "max_tokens": 80}
    with serving(llm) as served:
        for extra in ({"json_schema": SCHEMA}, {"grammar": YES}):
            message = served.post("/v1/chat/completions", **one, **extra).json()["choices"][0]["message"]
            assert message["reasoning_content"] == "Hm.."
            assert message["content"] in (["yes", "no"] if "grammar" in extra else ['{"a": 2}', '{"a": 1}', '{"a":1}'])
        text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        response = served.post("/v1/responses", input="hi", temperature=0, max_output_tokens=80, text=text).json()
        items = {item["type"]: item for item in response["output"]}
        assert items["reasoning"] and json.loads(items["message"]["content"][0]["text"])["a"] in (1, 2)
        config = {"format": {"type": "json_schema", "schema": SCHEMA}}
        blocks = served.post("/v1/messages", **one, output_config=config).json()["content"]
        by_type = {block["type"]: block for block in blocks}
        assert by_type["thinking"]["thinking"] == "Hm.." and json.loads(by_type["text"]["text"])["a"] in (1, 2)


@pytest.mark.parametrize("asked", [{"response_format": FORMAT}, {"grammar": LlamaGrammar(_grammar=YES)}])
@pytest.mark.parametrize("family", ["Qwen3", "Qwen3.5, DeepSeek R1"])
def test_a_thought_that_does_not_end(saying: Saying, family: str, asked: Any) -> None:
    """It is cut off, and there is no answer. If the model would end the text in it, it must go on."""
    llm = answering(saying, family, '{"a": 2}')
    cut = said(llm.create_chat_completion(**{**GREEDY, "max_tokens": 4 if family == "Qwen3" else 2}, **asked))
    assert cut == {"content": "", "reasoning": "Hm..", "calls": [], "why": "length"}
    template, thought, _ = FAMILIES[family]
    ends = saying(thought[:-2], template)
    found = said(ends.create_chat_completion(**{**GREEDY, "max_tokens": 60}, **asked))
    assert found["reasoning"].startswith("Hm..") and found["why"] == "length"
    free = said(ends.create_chat_completion(**GREEDY))
    assert (free["reasoning"], free["why"]) == ("Hm..", "stop")


def test_a_token_that_ends_the_thought_and_begins_the_answer(saying: Saying) -> None:
    """It comes if the answer may begin so. If not, another token does, and the thought ends later."""
    for last, content in (('</think>\n{"a"', '{"a": 2}'), ('</think>{"a"', '{"a": 2}'), ("</think>So", None)):
        llm = saying(["Hm", "..", last, ": ", "2", "}"], BEGINS)
        found = everywhere(llm, response_format=FORMAT, max_tokens=30)
        assert found["reasoning"].startswith("Hm..")
        if content is not None:
            assert (found["content"], found["reasoning"], found["why"]) == (content, "Hm..", "stop")
        else:
            tokens = llm.input_ids[: llm.n_tokens].tolist()
            assert not found["content"] and llm.tokenize(last.encode(), add_bos=False)[-1] not in tokens
    for begin in ("<think>\nHm", "<think>"):
        assert everywhere(saying([begin, "..</think>", '{"a": 2}'], THINKS), response_format=FORMAT)["content"] == (
            '{"a": 2}'
        )


@pytest.mark.parametrize("asked", [{"response_format": FORMAT}, {"grammar": LlamaGrammar(_grammar=YES)}])
def test_without_a_thought_it_holds_at_once(saying: Saying, asked: Any) -> None:
    """If thoughts are turned off, if the model does not think, and behind a message that is continued."""
    yes = "grammar" in asked
    open_one = HERMES + "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{# </think> #}"
    thought = FAMILIES["Qwen3"][1]
    for llm, extra in (
        (saying([*thought, '{"a": 2}'], THINKS), OFF),
        (saying([*thought, '{"a": 2}'], open_one), OFF),
        (saying(["yes" if yes else '{"a": 2}'], THINKS), {}),
    ):
        found = said(llm.create_chat_completion(**GREEDY, **asked, **extra))
        assert not found["reasoning"] and found["why"] == "stop"
        assert found["content"] in (["yes", "no"] if yes else ['{"a": 2}', '{"a": 1}', '{"a":1}'])
    begun = [*HI, {"role": "assistant", "content": "So:"}]
    llm = saying([*thought, '{"a": 2}'], THINKS)
    found = said(llm.create_chat_completion(**{**GREEDY, "messages": begun}, **asked, continue_final_message=True))
    assert not found["reasoning"] and found["content"] in (
        ["yes", "no"] if yes else ['{"a": 2}', '{"a": 1}', '{"a":1}']
    )


def test_models_that_do_not_think_are_asked_as_before(saying: Saying) -> None:
    """The grammar is the one that was given, so that nothing else is computed."""
    given = LlamaGrammar(_grammar=YES)
    for template in (HERMES, tiny.CHAT_TEMPLATE):
        llm = saying(["So"], template)
        assert type(chat_prompt(llm, HI, response_format=FORMAT).options["grammar"]) is SchemaGrammar
        assert chat_prompt(llm, HI, grammar=given).options["grammar"] is given
        assert chat_prompt(llm, HI, grammar=given, tools=TOOLS, tool_choice="none").options["grammar"] is given


def test_a_conversation_thinks_before_it_answers_in_a_format(saying: Saying) -> None:
    for family in ("Qwen3", "Qwen3.5, DeepSeek R1"):
        thought = "".join(FAMILIES[family][1])
        chat = specllama.Conversation(
            answering(saying, family, '{"a": 2}'), response_format=FORMAT, temperature=0.0, max_tokens=80
        )
        for _ in range(2):
            assert "".join(token.text for token in chat.say("hi")) == thought + '{"a": 2}'


@pytest.mark.parametrize("asked", [{"response_format": FORMAT}, {"grammar": LlamaGrammar(_grammar=YES)}])
@pytest.mark.parametrize("family", ["Qwen3", "marks in pieces", "Qwen3.5, DeepSeek R1", "gpt-oss"])
def test_drawn_texts_are_the_same_with_every_draft(saying: Saying, family: str, asked: Any) -> None:
    """And the thought is the one that is drawn without a format, up to where it would end the text."""
    llm = answering(saying, family, '{"a"', ": ", "2", "}")
    all_tokens = {"temperature": 12.0, "top_p": 1.0, "min_p": 0.0, "top_k": 0}
    chat: dict[str, Any] = {**GREEDY, **all_tokens, "max_tokens": 40, "verify": "coupled"}
    thoughts = []
    for seed in range(6):
        plain = said(llm.create_chat_completion(**chat, **asked, seed=seed, num_draft_tokens=0))
        for count in (1, 4, "auto"):
            assert said(llm.create_chat_completion(**chat, **asked, seed=seed, num_draft_tokens=count)) == plain
        thoughts.append(plain["reasoning"])
        if family == "Qwen3.5, DeepSeek R1" and "grammar" not in asked:  # llama.cpp's grammars know no half characters
            free = said(llm.create_chat_completion(**chat, seed=seed, num_draft_tokens=0))
            assert plain["reasoning"].startswith(free["reasoning"]) or free["content"]
        if plain["why"] == "stop":
            assert plain["content"] in ("yes", "no") or json.loads(plain["content"])["a"] in (1, 2)
    assert len(set(thoughts)) > 1


def test_several_texts_at_once(saying: Saying) -> None:
    llm = answering(saying, "Qwen3", '{"a"', ": ", "2", "}")
    chat: dict[str, Any] = {"temperature": 0.0, "max_tokens": 80, "response_format": FORMAT}
    with serving(llm, max_parallel=2) as served:
        answer = served.post("/v1/chat/completions", messages=HI, n=2, **chat).json()
    assert [(choice["message"]["reasoning_content"], choice["message"]["content"]) for choice in answer["choices"]] == [
        ("Hm..", '{"a": 2}')
    ] * 2
    outcomes = llm.create_chat_completions([HI] * 3, **chat)
    assert [(said(one.response)["reasoning"], one.text) for one in outcomes] == [("Hm..", '{"a": 2}')] * 3


def test_saved_states_and_logprobs(saying: Saying) -> None:
    llm = answering(saying, "Qwen3", '{"a"', ": ", "2", "}")
    chat = {**GREEDY, "response_format": FORMAT, "logprobs": True}
    first = llm.create_chat_completion(**chat)
    state = llm.save_state()
    llm.create_chat_completion(**GREEDY)
    llm.load_state(state)
    again = llm.create_chat_completion(**chat)
    assert said(first) == said(again)
    tokens = [entry["token"] for entry in first["choices"][0]["logprobs"]["content"]]
    assert "".join(tokens) == "".join(FAMILIES["Qwen3"][1]) + '{"a": 2}'
    assert first["usage"]["completion_tokens"] == len(tokens)
    stopped = said(llm.create_chat_completion(**GREEDY, response_format=FORMAT, stop=[": "]))
    assert (stopped["reasoning"], stopped["content"], stopped["why"]) == ("Hm..", '{"a"', "stop")
    mirostat = said(
        llm.create_chat_completion(**{**GREEDY, "temperature": 0.1}, response_format=FORMAT, mirostat_mode=2)
    )
    assert mirostat["reasoning"] == "Hm.." and json.loads(mirostat["content"])["a"] in (1, 2)
    kept = {**GREEDY, "response_format": FORMAT, "reasoning_format": "none", "tools": TOOLS}
    with serving(llm) as served:
        message = served.post("/v1/chat/completions", **kept).json()["choices"][0]["message"]
    assert message["content"] == "".join(tokens)


# Tools that may be called, and a format


@pytest.mark.parametrize("name", ["hermes", *FORMS])
def test_a_call_or_an_answer_in_the_format(saying: Saying, name: str) -> None:
    """The model chooses, by how it begins. Words that are neither cannot come."""
    template, pieces, special, _ = FORMS.get(name, (HERMES, BEGUN["hermes"][1], (), ""))
    special = CHANNELS if name == "gpt-oss" else special
    calls = pieces if pieces[0] not in ("Hm.", "Well") else pieces[2 if pieces[0] == "Well" else 1 :]
    rest = [mark for mark in special if mark not in calls]
    both: dict[str, Any] = {"tools": TOOLS, "response_format": FORMAT, "parallel_tool_calls": False}
    found = everywhere(saying([*calls, *rest], template, special), **both)
    [(called, arguments)] = found["calls"]
    assert (called, found["content"], found["why"]) == ("look", "", "tool_calls")
    jsonschema.validate(json.loads(arguments), LOOK_AT)
    for answer in (['{"a"', ": ", "2", "}"], ["So", " it"]):
        head = {"gpt-oss": ["<|channel|>", "final", "<|message|>"], "muse": [" to=user", "<|message|>"]}
        said_so = [*head.get(name, ()), *answer]
        llm = saying([*said_so, *(mark for mark in special if mark not in said_so)], template, special)
        found = everywhere(llm, **both)
        if answer[0] != "So":
            assert not found["calls"] and json.loads(found["content"]) == {"a": 2} and found["why"] == "stop"
        else:
            assert found["calls"] or json.loads(found["content"])["a"] in (1, 2)


def test_a_call_or_an_answer_behind_a_thought(saying: Saying) -> None:
    thought = FAMILIES["Qwen3"][1]
    call = ['<tool_call>\n{"name": "look", "arguments": ', '{"n": 1}', "}\n</tool_call>"]
    for asked in (
        {"response_format": FORMAT},
        {"response_format": {"type": "json_object"}},
        {"grammar": LlamaGrammar(_grammar='root ::= "{\\"a\\": " [0-9] "}"')},
    ):
        for template, begin in ((THINKS, thought), (BEGINS, thought[2:])):
            for tail, calls in ((call, [("look", '{"n": 1}')]), (['{"a": 2}'], [])):
                llm = saying([*begin, *tail], template)
                found = said(llm.create_chat_completion(**GREEDY, tools=TOOLS, **asked))
                assert (found["reasoning"], found["calls"]) == ("Hm..", calls)
                assert found["content"].rstrip() == ("" if calls else '{"a": 2}')
    free = {"type": "text"}
    assert everywhere(saying([*thought, *call], THINKS), tools=TOOLS, response_format=free)["calls"]


def test_calls_without_marks_beside_a_grammar(saying: Saying) -> None:
    grammar = LlamaGrammar(_grammar=YES)
    for pieces, calls in (
        (['{"name": "look", "parameters": ', '{"n": 1}', "}"], [("look", '{"n": 1}')]),
        (["yes"], []),
    ):
        found = said(saying(pieces, LLAMA).create_chat_completion(**GREEDY, tools=TOOLS, grammar=grammar))
        assert (found["calls"], found["content"]) == (calls, "" if calls else "yes")


@pytest.mark.parametrize("asked", [FORMAT, {"type": "json_object"}])
def test_a_call_beside_a_format_follows_its_schema(saying: Saying, asked: Any) -> None:
    llm = saying(['<tool_call>\n{"name": "loo', "oop", '", "q": 1}', "!!"], HERMES)
    found = everywhere(llm, tools=TOOLS[:1], response_format=asked, parallel_tool_calls=False)
    [(called, arguments)] = found["calls"]
    assert called == "look" and not found["content"]
    jsonschema.validate(json.loads(arguments), LOOK_AT)


def test_what_is_wrong_with_a_grammar_is_said_of_the_users_own(saying: Saying) -> None:
    llm = saying(["So"], THINKS)
    for text, quoted in (
        ("so ::= 'x'", "rule 'so', line 1"),
        ("so ::= [a]", "rule 'root'"),
        ("root ::= so", "line 1 names a rule 'so'"),
    ):
        with pytest.raises(ValueError, match=quoted):
            llm.create_chat_completion(**GREEDY, grammar=LlamaGrammar(_grammar=text))
    wrong: Any = 7
    with pytest.raises(TypeError, match="must be a text in GBNF"):
        llm.create_chat_completion(**GREEDY, grammar=LlamaGrammar(_grammar=wrong))
    with pytest.raises(TypeError, match=r"must be a llama_cpp\.LlamaGrammar"):
        llm.create_chat_completion(**GREEDY, grammar=wrong)
    nothing = LlamaGrammar(_grammar="")  # allows everything, as in llama.cpp
    assert said(llm.create_chat_completion(**GREEDY, grammar=nothing))["content"] == "So"
