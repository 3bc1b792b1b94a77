"""Grammars for calls of tools, in the form that the model was trained to write: for forced calls and for free ones."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
from typing import Any

from specllama.drop_in.base_class import BaseLlama, file_of
from specllama.drop_in.lending import lent
from specllama.drop_in.text import has_own_tokenizer
from specllama.engine.schema_constraint import Begun
from specllama.grammars.begun_calls import Beginning, BegunCalls
from specllama.grammars.schema import NotEnforcedError, SchemaGrammar, matched_schema

from .arguments import is_name
from .formats.forced import behind_trigger, forced_calls
from .formats.format import Format, Pieces, Written
from .formats.kinds import taught_by
from .formats.llama3 import BARE, BARE_WRITTEN
from .messages import hands_on_everything, has_own_handler, template_of
from .prescribed import Calls

_WITHOUT_PARAMETERS = ({"type": "object"}, {"type": "object", "properties": {}})
_NOTHING = {"type": "object", "properties": {}, "additionalProperties": False}  # the schema of tools without parameters
_ANY_OBJECT = {"type": "object"}  # replaces a schema that cannot be enforced; the user was warned of it


@dataclasses.dataclass(frozen=True)
class ForcedCalls:
    """The calls that an answer must consist of.

    Attributes:
        form: the form in which the calls are written.
        thoughts: the marks around a thought, which may come before the calls; None if no thought can.
        grammar: the grammar of the answer, if no thought comes before it.
        calls: the calls.
    """

    form: Format
    thoughts: tuple[Pieces, Pieces] | None
    grammar: SchemaGrammar
    calls: Calls


def with_forced_calls(
    llama: BaseLlama, chat: dict[str, Any], *, parallel: bool
) -> tuple[dict[str, Any], ForcedCalls | None]:
    """Make a grammar for a call that the arguments of a chat force.

    Args:
        llama: the Llama that answers.
        chat: the checked arguments.
        parallel: whether the answer may have more than one call.

    Returns:
        The arguments, with the grammar if a call is forced, and the calls. The calls are None if no call is forced.
        They are also None if llama_cpp's chat handler must force the call itself: it writes only the arguments of one
        tool, and is used for models whose chat template teaches no form of calls.

    Raises:
        ValueError: one of several tools must be called, and the chat handler takes no grammar.
    """
    choice, tools = chat.get("tool_choice"), tools_of(chat)
    if choice != "required" and not isinstance(choice, Mapping):
        return chat, None
    named = choice["function"]["name"] if isinstance(choice, Mapping) else None
    only = named or (next(iter(tools)) if len(tools) == 1 else None)
    takes_grammar = hands_on_everything(llama) and not has_own_handler(llama)
    form, thoughts = taught_by(template_of(llama))
    how = None if form is None else form.written
    if form is None or how is None or not takes_grammar:
        # llama_cpp's handlers treat the whole text as the arguments, also a thought. So a handler forces the call only
        # if the model has no thoughts, or if the handler takes no grammar.
        if only is not None and (thoughts is None or not takes_grammar):
            return {**chat, "tool_choice": {"type": "function", "function": {"name": only}}}, None
        if not takes_grammar:
            raise ValueError(
                'tool_choice="required" with several tools needs a chat handler that takes a grammar, and that of '
                f"{file_of(llama)} takes none: name the tool that is to be called"
            )
        form, how = BARE, BARE_WRITTEN
    wanted = {named: tools[named]} if named else tools
    calls = _calls(llama, how, wanted, several=parallel and named is None)
    text = calls.grammar(None)
    grammar = SchemaGrammar(text, text)
    return {**chat, "tool_choice": "required", "grammar": grammar}, ForcedCalls(form, thoughts, grammar, calls)


def free_calls(llama: BaseLlama, chat: Mapping[str, Any], form: Format | None, *, parallel: bool) -> Calls | None:
    """The calls that a model may make by itself in place of a prescribed answer; None if it can make none.

    Args:
        llama: the Llama that answers.
        chat: the checked arguments.
        form: the form in which the model writes calls; None if no form is known.
        parallel: whether the answer may have more than one call.
    """
    if form is None or form.written is None or not _may_call(llama, chat):
        return None
    return _calls(llama, form.written, tools_of(chat), several=parallel)


def _calls(llama: BaseLlama, how: Written, tools: Mapping[str, Any], *, several: bool) -> Calls:
    @functools.cache  # checking many schemas takes a while
    def schemas() -> dict[str, Any]:
        return {name: _schema(parameters) for name, parameters in tools.items()}

    def grammar(behind: Pieces | None) -> str:
        return forced_calls(how, schemas(), functools.partial(special_token, llama), several=several, behind=behind)

    bare = [] if how.bare is None else [how.bare(name) for name in tools]
    return Calls(grammar, [how.trigger] if how.trigger else bare)


def _may_call(llama: BaseLlama, chat: Mapping[str, Any]) -> bool:
    """Whether there are tools that the model may call by itself, and a grammar can prescribe its calls."""
    takes_grammar = hands_on_everything(llama) and not has_own_handler(llama) and has_own_tokenizer(llama)
    return takes_grammar and bool(tools_of(chat)) and chat.get("tool_choice") in (None, "auto")


def begun_calls(
    llama: BaseLlama,
    chat: Mapping[str, Any],
    form: Format | None,
    *,
    parallel: bool,
) -> Begun | None:
    """Grammars for calls that a model may begin by itself. A call that has begun must follow its tool's schema.

    Args:
        llama: the Llama that answers.
        chat: the checked arguments.
        form: the form in which the model writes calls; None if no form is known.
        parallel: whether the answer may have more than one call.

    Returns:
        The constraint; None if the form of calls is not known, or no text surely begins a call.
    """
    tools, how = tools_of(chat), None if form is None else form.written
    if how is None or not _may_call(llama, chat):
        return None
    found = []
    if how.trigger:
        rest = functools.partial(_rest, llama, how, tools, several=parallel)
        found.append(Beginning(how.trigger, functools.lru_cache(1)(rest)))
    for name in tools:
        if how.bare is None:
            break
        only = Written(lambda _: (), ("}",), between=None)
        arguments = functools.lru_cache(1)(functools.partial(_rest, llama, only, {name: tools[name]}, several=False))
        text = how.bare(name)
        found.append(Beginning(text, arguments, at_start=True))
        found += [Beginning(before + text, arguments) for before in how.bare_behind]
    return Begun(BegunCalls(tuple(found))) if found else None


def _rest(llama: BaseLlama, how: Written, tools: Mapping[str, Any], *, several: bool) -> str:
    schemas = {name: _schema(parameters) for name, parameters in tools.items()}
    return behind_trigger(how, schemas, functools.partial(special_token, llama), several=several)


def tools_of(chat: Mapping[str, Any]) -> dict[str, Any]:
    """The schemas of the tools' parameters, by the tools' names."""
    functions = [tool.get("function") for tool in chat.get("tools") or () if isinstance(tool, Mapping)]
    named = [function for function in functions if isinstance(function, Mapping)]
    return {each["name"]: each.get("parameters") for each in named if is_name(each.get("name"))}


def special_token(llama: BaseLlama, text: str) -> int | None:
    """The special token with this name, if it shows nothing in a text; None if there is no such token."""
    if not has_own_tokenizer(llama):
        return None
    data, model = text.encode(), lent(llama)
    try:
        tokens = llama.tokenize(data, False, True)
    except ValueError:  # the vocabulary cannot write this text
        return None
    if len(tokens) != 1 or model.piece(tokens[0]) or model.piece(tokens[0], special=True) != data:
        return None
    return tokens[0]


def _schema(parameters: Any) -> Any:
    """The schema of a tool's parameters, as llguidance takes it."""
    if not parameters or parameters in _WITHOUT_PARAMETERS:
        parameters = _NOTHING
    try:
        found = matched_schema(json.dumps(parameters))
    except (NotEnforcedError, TypeError, RecursionError):
        found = matched_schema(json.dumps(_ANY_OBJECT))
    return json.loads(found)["grammars"][0]["json_schema"]
