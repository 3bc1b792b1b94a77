"""How the prompt of a chat is made: rendered by llama_cpp's formatter, and tokenized."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import Any

from llama_cpp.llama_chat_format import _grammar_for_response_format
from llama_cpp.llama_grammar import JSON_GBNF, LlamaGrammar

from specllama.drop_in.arguments import checked_stops, completed, names_of
from specllama.drop_in.base_class import BaseLlama
from specllama.drop_in.prompt_tokens import continuation_tokens
from specllama.drop_in.text import has_own_tokenizer
from specllama.grammars.schemas import schemas_by_grammar

from .accepted_form import accepted, render
from .continued import Continued
from .formats.kinds import says_calls, taught_by
from .messages import formatter_for, prompt_around, template_errors, template_of
from .special_names import SpecialNames, is_marked, without_marks


@dataclasses.dataclass(frozen=True)
class ChatPrompt:
    """The prompt of a chat, and the other arguments of the completion."""

    tokens: list[int]
    """The prompt's tokens."""
    options: dict[str, Any]
    """All other arguments of ``create_completion``, such as the sampler's parameters and stop strings."""
    written: str | None
    """The prompt's text, with marks in names of special tokens that are to stay text (`special_names`).

    None if the text is not known, because a user's chat handler has made the prompt of several texts.
    """
    names: SpecialNames | None = None
    """The names of special tokens that are text in messages; None if they are read as tokens."""

    @property
    def text(self) -> str | None:
        """The prompt's text."""
        return None if self.written is None else without_marks(self.written)

    @property
    def stop(self) -> list[str]:
        """The stop strings: the user's, and those of the chat format."""
        return checked_stops(self.options.get("stop"))

    def continuation(self, llama: BaseLlama, text: str) -> list[int]:
        """The tokens of `text`, which is the end of ``written`` and comes after other tokens."""
        if self.names is None or not is_marked(text):
            return continuation_tokens(llama, text)
        return self.names.tokens(text, continues=True)


def rendered(
    llama: BaseLlama,
    formatter: Callable[..., Any],
    chat: Mapping[str, Any],
    fields: Mapping[str, Any],
    continued: Continued | None = None,
    *,
    parse_special: bool = False,
) -> ChatPrompt:
    """The prompt that a formatter of llama_cpp's makes of a chat.

    Args:
        llama: the Llama that answers.
        formatter: the formatter, such as that of a chat template.
        chat: the checked arguments of the chat.
        fields: the template's fields, without those that it does not read (`read_fields`).
        continued: the message that the answer continues; None if it begins a new message.
        parse_special: names of special tokens in messages, tools and fields are read as these tokens.

    Raises:
        ValueError: the template cannot render the messages.
    """
    names = None if parse_special else _names(llama, is_removed=has_own_tokenizer(llama))
    given = {name: chat.get(name) for name in ("functions", "function_call", "tools", "tool_choice")} | dict(fields)
    messages = chat["messages"]
    if names is not None:
        messages, given = names.marked_messages(messages), names.marked(given)
        continued = continued and continued.marked(names)
    with template_errors():
        response = render(formatter, messages, **given)
    written: str = response.prompt if continued is None else continued.behind(response.prompt)
    add_bos = not response.added_special
    if names is not None and is_marked(written):
        tokens = names.tokens(written, add_bos=add_bos)
    else:
        tokens = llama.tokenize(written.encode("utf-8"), add_bos=add_bos, special=True)
    return ChatPrompt(tokens, _options(chat, response), written, names)


def _names(llama: BaseLlama, *, is_removed: bool) -> SpecialNames:
    template = template_of(llama)
    form, thoughts = says_calls(template), taught_by(template)[1] or ()
    marks = [piece for pieces in thoughts for piece in pieces]
    marks += () if form is None else (*form.openings, *form.marks)
    return SpecialNames(llama, prompt_around(llama), marks, is_removed=is_removed)


def _options(chat: Mapping[str, Any], response: Any) -> dict[str, Any]:
    """The arguments of the completion but the prompt, from a chat's arguments and a formatter's response."""
    given = completed(BaseLlama.create_chat_completion, chat)
    options = {name: given[name] for name in names_of(BaseLlama.create_completion) & given.keys()}
    more = [response.stop] if isinstance(response.stop, str) else response.stop or []
    options["stop"] = [*checked_stops(given["stop"]), *more]
    options["stopping_criteria"] = response.stopping_criteria
    options["logprobs"] = given["top_logprobs"] if given["logprobs"] else None
    function, answer = called_function(chat), given["response_format"]
    if function is not None:
        options["grammar"] = _grammar_of_call(function)
    elif answer is not None and answer["type"] == "json_object":
        options["grammar"] = _grammar_for_response_format(answer)
    return options


def called_function(chat: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The function whose arguments are the whole answer, as plain JSON; None if there is no such function."""
    choice = chat.get("function_call") or chat.get("tool_choice")
    if not isinstance(choice, Mapping):
        return None
    name = (choice.get("function") or choice)["name"]
    functions: list[Any] = chat.get("functions") or [tool["function"] for tool in chat.get("tools") or ()]
    found: Mapping[str, Any] = next(function for function in functions if function["name"] == name)
    return found


def _grammar_of_call(function: Mapping[str, Any]) -> LlamaGrammar:
    """The grammar of a function's arguments. If llama_cpp cannot convert the schema, the grammar allows any JSON."""
    known = schemas_by_grammar({"functions": [function], "function_call": {"name": function["name"]}})
    if known:
        return next(iter(known.values()))
    try:
        return LlamaGrammar.from_json_schema(json.dumps(function["parameters"]), verbose=False)
    except Exception:  # as llama_cpp's chat handlers do
        return LlamaGrammar.from_string(JSON_GBNF, verbose=False)


def for_handler(
    llama: BaseLlama, chat: dict[str, Any], fields: Mapping[str, Any], *, parse_special: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A chat's arguments and the template's fields for one of llama_cpp's handlers that render and tokenize themselves.

    Names of special tokens that must stay text get an invisible character instead of a mark, because such a handler
    would not remove a mark.
    """
    known = formatter_for(llama)
    if known is not None:
        chat = {**chat, "messages": list(accepted(known, chat["messages"], tools=chat.get("tools"), **fields))}
    if parse_special:
        return chat, dict(fields)
    names = _names(llama, is_removed=False)
    tools = {name: names.marked(chat[name]) for name in ("tools", "functions") if chat.get(name)}
    return {**chat, **tools, "messages": names.marked_messages(chat["messages"])}, names.marked(dict(fields))
