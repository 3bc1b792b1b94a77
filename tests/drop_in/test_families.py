"""The chat templates of families of models, whole: calls as they write them, and what begins and ends a thought."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from llguidance import LLMatcher, LLTokenizer
from release_source import released_templates
from test_tool_formats import ADD, BY_NAME, LOOK, TEXT, calls_of, read

from specllama.chat import chat_prompt
from specllama.chat.formats.forced import forced_calls
from specllama.chat.formats.kinds import taught_by
from specllama.chat.formats.thinking import is_closed, is_open

if TYPE_CHECKING:
    from conftest import WithTemplate

THINK, CHANNEL = "<think>", "<|channel|>analysis<|message|>"


class Family(NamedTuple):
    """What a template teaches.

    Attributes:
        form: the form of calls.
        thoughts: the mark that begins a thought.
        prompts: what the prompt has done, without a field, with ``enable_thinking``, and with it turned off: it has
            begun a thought ("open"), ended one ("closed"), or neither ("free"). One value: no field changes it.
    """

    form: str | None
    thoughts: str | None = None
    prompts: tuple[str, ...] = ("free",)


SWITCHED = ("open", "open", "closed")
FAMILIES = {
    "Qwen3.5-4B": Family("qwen-xml", THINK, SWITCHED),
    "Qwen3-Coder": Family("qwen-xml"),
    "google-gemma-2-2b-it": Family(None),
    "google-gemma-4-31B-it": Family("gemma4", "<|channel>thought", ("closed", "free", "closed")),
    "google-gemma-4-31B-it-interleaved": Family("gemma4", "<|channel>thought", ("closed", "free", "closed")),
    "openai-gpt-oss-120b": Family("harmony", CHANNEL),
    "muse-glimmer": Family("muse", " to=self<|message|>"),
    "LFM2-8B-A1B": Family("lfm2"),
    "LFM2.5-Instruct": Family("lfm2", THINK),
    "LFM2.5-8B-A1B": Family("lfm2", THINK),
    "ibm-granite-granite-3.3-2B-Instruct": Family("granite3", THINK, ("free", "free", "free")),
    "ibm-granite-granite-4.0": Family("hermes"),
    "ibm-granite-granite-4.1": Family("hermes"),
    "NVIDIA-Nemotron-Nano-v2": Family("nemotron2", THINK, ("open",)),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": Family("qwen-xml", THINK, SWITCHED),
    "GLM-4.7-Flash": Family("glm", THINK, SWITCHED),
    "Spark2.5": Family("glm", THINK, SWITCHED),
    "poolside-Laguna-S-2.1": Family("glm", THINK, SWITCHED),
    "poolside-Laguna-XS-2.1": Family("glm", THINK, ("closed", "open", "closed")),
    "inclusionai-ling-3.0-flash": Family("glm", THINK, SWITCHED),
    "StepFun3.5-Flash": Family("qwen-xml", THINK, ("open",)),
    "Cohere2MoE": Family("cohere", "<|START_THINKING|>", SWITCHED),
    "openbmb-MiniCPM5-1B": Family("minicpm", THINK, ("free", "open", "closed")),
    "mistralai-Ministral-3-14B-Reasoning-2512": Family("mistral", "[THINK]"),
    "HuggingFaceTB-SmolLM3-3B": Family(None, THINK, ("free", "free", "closed")),
    "Bielik-11B-v3.0-Instruct": Family("hermes", THINK, ("free", "open", "free")),
    "ByteDance-Seed-OSS": Family("seed", "<seed:think>"),
    "unsloth-Apriel-1.5": Family("apriel"),
}
NOT_WRITTEN = ("google-gemma-2-2b-it", "HuggingFaceTB-SmolLM3-3B", "ibm-granite-granite-3.3-2B-Instruct")
OTHERWISE = ("openai-gpt-oss-120b", "unsloth-Apriel-1.5")  # earlier calls differ from those that the template teaches

NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}
SCHEMAS = {"look": TEXT, "add": NOTHING}
HI: list[Any] = [{"role": "user", "content": "QUESTION"}]


def template_of(family: str) -> str:
    return (released_templates() / f"{family}.jinja").read_text(encoding="utf-8")


def called(family: str, wanted: list[Any]) -> list[Any]:
    """A conversation with calls and their results."""
    calls = [
        {"id": str(number), "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for number, (name, arguments) in enumerate(wanted)
    ]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "RESULT"} for call in calls]
    return [*HI, {"role": "assistant", "content": None, "tool_calls": calls}, *results]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_the_template_says_which_form_and_which_marks(family: str) -> None:
    form, thoughts = taught_by(template_of(family))
    assert form is None if FAMILIES[family].form is None else form is BY_NAME[str(FAMILIES[family].form)]
    assert (None if thoughts is None else "".join(thoughts[0])) == FAMILIES[family].thoughts


@pytest.mark.long
@pytest.mark.parametrize("family", [name for name in FAMILIES if name not in NOT_WRITTEN])
def test_calls_as_the_template_writes_them(with_template: WithTemplate, family: str) -> None:
    """They are read as these calls, and the grammar of forced calls allows them."""
    wanted = [LOOK, ADD] if "gpt-oss" not in family else [LOOK]  # its template has one call in a message
    form = BY_NAME[str(FAMILIES[family].form)]
    tools = [{"type": "function", "function": {"name": name, "parameters": SCHEMAS[name]}} for name in SCHEMAS]
    text = chat_prompt(with_template(template_of(family)), called(family, wanted), tools=tools).text or ""
    between = text.partition("QUESTION")[2].partition("RESULT")[0].partition("<|call|>")[0]
    assert form.written is not None
    begun = between.index(form.written.trigger if (form.written.trigger or "-") in between else " to=")
    assert calls_of(read(form.name, list(between[begun:]))) == wanted
    if family in OTHERWISE:
        return
    matcher = LLMatcher(LLTokenizer("byte"), forced_calls(form.written, SCHEMAS, lambda _: None, several=True))
    written, whole = between[begun:].encode(), 0
    for size, byte in enumerate(written, 1):
        if not matcher.try_consume_tokens([byte]):
            break
        whole = size if matcher.is_accepting() else whole
    assert calls_of(read(form.name, [written[:whole].decode()])) == wanted, written


@pytest.mark.long
@pytest.mark.parametrize("family", ["openai-gpt-oss-120b", "muse-glimmer"])
def test_how_much_it_thinks(with_template: WithTemplate, family: str) -> None:
    text = chat_prompt(with_template(template_of(family)), HI, reasoning_effort="low").text
    assert text is not None and re.search(r"Reasoning( strength)?: low", text)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_what_the_prompt_does_with_thoughts(with_template: WithTemplate, family: str) -> None:
    template = template_of(family)
    llm, thoughts, expected = with_template(template), taught_by(template)[1], FAMILIES[family].prompts

    def state(**fields: Any) -> str:
        text = chat_prompt(llm, HI, chat_template_kwargs=fields).text or ""
        if thoughts is None:
            return "free"
        return "open" if is_open(text, thoughts) else "closed" if is_closed(text, thoughts) else "free"

    assert state() == expected[0]
    for is_on, each in zip((True, False), expected[1:], strict=False):
        assert state(enable_thinking=is_on) == each
    if len(expected) == 1:
        with pytest.warns(UserWarning, match="enable_thinking has no effect"):
            assert state(enable_thinking=False) == expected[0]
