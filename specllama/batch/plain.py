"""Answers lines that have arguments of ``create_completion`` or ``create_chat_completion``."""

from __future__ import annotations

from typing import Any

from llama_cpp.llama_grammar import LlamaGrammar

from specllama import Llama
from specllama.drop_in import Watch, call_on
from specllama.engine import Slot, require_room, size_of
from specllama.many import Outcome, arguments_of

from .line import Line

NO_STREAMS = 'a batch has no streams: leave "stream" out'
_TEXTS = ("prompt", "suffix", "messages", "tools", "functions")
_METHODS = {"prompt": "create_completion", "messages": "create_chat_completion"}


def generate(llm: Llama, slot: Slot, watch: Watch, line: Line, defaults: dict[str, Any]) -> dict[str, Any]:
    """The response to one line.

    Args:
        llm: generates the answer.
        slot: where to generate.
        watch: follows the answer.
        line: the line with the arguments.
        defaults: the arguments that the line may leave out.

    Raises:
        Exception: whatever the method raises; ValueError also for a line with neither a prompt nor messages, or both.
    """
    # A null stands for the default of an argument. Only max_tokens keeps it: there None means as many tokens as fit.
    of_line = {name: value for name, value in line.content.items() if name not in line.name}
    arguments = {name: value for name, value in of_line.items() if value is not None or name == "max_tokens"}
    given = [name for name in _METHODS if name in arguments]
    if len(given) != 1:
        found = "both `prompt` and `messages`" if given else "neither `prompt` nor `messages`"
        raise ValueError(f"the line has {found}: give one of them, or OpenAI's `custom_id`, `url` and `body`")
    [name] = given
    if arguments.get("stream"):
        raise ValueError(NO_STREAMS)
    arguments = arguments_of(arguments, name, defaults)
    require_room(size_of([arguments.get(part) for part in _TEXTS]), llm.n_ctx())
    if isinstance(arguments.get("grammar"), str):
        arguments["grammar"] = LlamaGrammar.from_string(arguments["grammar"], verbose=False)
    response: dict[str, Any] = getattr(llm, _METHODS[name])(**arguments, call=call_on(llm, slot=slot, watch=watch))
    return response


def answer(line: Line, outcome: Outcome) -> dict[str, Any]:
    """The object that the output gets for a line."""
    if outcome.error is not None:
        said = {"error": {"message": problem_of(line, outcome.error), "type": type(outcome.error).__name__}}
        return {**line.name, **said, "key": line.key}
    response = outcome.response or {}
    choice = response["choices"][0]
    more = {"logprobs": choice.get("logprobs"), **choice.get("message", {})}
    return {
        **line.name,
        "text": outcome.text,
        "finish_reason": choice["finish_reason"],
        **{name: more[name] for name in ("logprobs", "tool_calls", "function_call") if more.get(name) is not None},
        "usage": response["usage"],
        "key": line.key,
    }


def problem_of(line: Line, error: Exception) -> str:
    """What was wrong with a line, in one line of text."""
    return f"line {line.number}: {' '.join(str(error).split()) or type(error).__name__}"
