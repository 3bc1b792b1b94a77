"""What is nested too deeply is refused where it comes in: nothing of it runs into Python's limit of calls."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import pytest
from test_tool_calls import HERMES

from specllama.chat.depth import MOST_LEVELS, require_few_levels

if TYPE_CHECKING:
    from conftest import MakeLlama, Saying

HI: list[Any] = [{"role": "user", "content": "hi"}]


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {"type": "object"}
    for _ in range((levels - 1) // 2):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def of_tools(schema: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "look", "parameters": schema}}]}


def test_levels_are_counted() -> None:
    value: Any = "x"
    for _ in range(MOST_LEVELS - 1):
        value = {"a": [], "b": value}
    require_few_levels(value, "it")
    for more in ([value], (value,), {"c": value}):
        with pytest.raises(ValueError, match="it is nested too deeply: it may have 128 levels"):
            require_few_levels(more, "it")


def test_what_is_in_itself_or_in_many_places() -> None:
    """Which JSON cannot be, and Python's values can."""
    itself: list[Any] = []
    itself.append(itself)
    with pytest.raises(ValueError, match="nested too deeply"):
        require_few_levels(itself, "it")
    shared: Any = []
    for _ in range(100):
        shared = [shared, shared]
    require_few_levels(shared, "it")


@pytest.mark.parametrize("levels", [150, 600, 5000])
def test_a_chat_that_is_nested_too_deeply(make_llama: MakeLlama, levels: int) -> None:
    llm, deep = make_llama(), nested(levels)
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": deep}}
    asked: dict[str, Any] = {
        "tools": of_tools(deep),
        "functions": {"functions": of_tools(deep)["tools"]},
        "messages": {"messages": [*HI, {"role": "assistant", "tool_calls": [call]}]},
        "chat_template_kwargs": {"chat_template_kwargs": {"a": deep}},
        "the schema of response_format": {"response_format": {"type": "json_object", "schema": deep}},
    }
    for name, given in asked.items():
        with pytest.raises(ValueError, match=f"{name} is nested too deeply"):
            llm.create_chat_completion(**{"messages": HI, "max_tokens": 1, **given})


@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_chat_of_so_many_levels_as_may_be(saying: Saying, choice: str) -> None:
    llm = saying(["One"], HERMES, n_ctx=8192)
    given = of_tools(nested(101))
    assert llm.create_chat_completion(HI, **given, tool_choice=choice, max_tokens=1)["choices"]  # type: ignore[index]
    with pytest.raises(ValueError, match="tools is nested too deeply"):
        llm.create_chat_completion(HI, **of_tools(nested(MOST_LEVELS - 1)), tool_choice=choice, max_tokens=1)


@pytest.mark.parametrize("levels", [100, 200, 400, 700, 900, 5000])
def test_arguments_of_a_call_as_a_text(saying: Saying, levels: int) -> None:
    """A model may have written them. What is too deep stays a text."""
    llm = saying(["One"], HERMES, n_ctx=8192)
    arguments = '{"a":' * levels + "1" + "}" * levels
    call = {"id": "1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    messages: list[Any] = [*HI, {"role": "assistant", "tool_calls": [call]}, *HI]
    with contextlib.nullcontext() if levels < 1000 else pytest.raises(ValueError, match="exceed context window"):
        assert llm.create_chat_completion(messages, max_tokens=1)["choices"]  # type: ignore[index]
