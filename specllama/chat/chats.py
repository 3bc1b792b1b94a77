"""A chat, prepared once: its prompt, the arguments of the completion, and a reader of the answer."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from llama_cpp.llama_chat_format import _convert_completion_to_chat, _convert_completion_to_chat_function

from specllama.drop_in.arguments import OURS, completed, given_to
from specllama.drop_in.base_class import BaseLlama, file_of
from specllama.drop_in.image_prompts import view_for_images
from specllama.drop_in.images import decodes_by_itself, handler_for_text
from specllama.drop_in.lending import lent
from specllama.drop_in.prompt_tokens import prompt_tokens_of
from specllama.drop_in.requests import call_of
from specllama.drop_in.view import Call, EngineLlama, View, exclusively
from specllama.grammars.schemas import schemas_by_grammar, warn_of_schemas, with_grammar_of_format

from .answers import ChatAnswer
from .arguments import checked_chat
from .continued import with_continued
from .forced_calls import with_forced_calls
from .formats.kinds import taught_by
from .formats.thinking import Thinking
from .messages import formatter_of, handler_for, has_own_handler, template_errors, template_of
from .prompt import ChatPrompt, called_function, for_handler, rendered
from .template_fields import given_fields, may_think, read_fields, unread_fields, warn_of_fields

Message = dict[str, str]
"""``{"role": "system" | "user" | "assistant", "content": ...}``."""


@dataclasses.dataclass(frozen=True)
class Chat:
    """A chat that is prepared. It may be answered any number of times, by several threads at once.

    `prepared` makes it.
    """

    reader: Callable[[], ChatAnswer]
    """A function that makes the reader of an answer. Each answer needs a reader of its own."""
    without_effect: Sequence[str]
    """The names of arguments without effect: fields that the template does not read, and ``keeps_thoughts`` if the
    model's thoughts are not a text between two marks."""
    _llama: EngineLlama
    _ours: Mapping[str, Any]  # arguments that llama_cpp's method does not have
    _prompt: ChatPrompt | None  # None: a chat handler makes the prompt
    _ask: Callable[..., Any]  # a function that completes the prompt and returns a chat's response, or the chat handler

    @functools.cached_property
    def prompt(self) -> ChatPrompt:
        """The prompt, and the arguments of ``create_completion`` with which the model answers it.

        Raises:
            ValueError: a chat handler makes the prompts, and decodes by itself instead of giving tokens.
        """
        reader = self.reader()
        prompt = self._prompt or _noted(self._llama, self._ask, reader)
        grammar = prompt.options["grammar"]
        if grammar is not None:
            grammar = reader.begins_behind(lent(self._llama), prompt.tokens, grammar)
        return dataclasses.replace(prompt, options={**prompt.options, **self._ours, "grammar": grammar})

    def thinking(self) -> Thinking:
        """An object that reads a growing answer and tells whether the last piece belongs to a thought."""
        return Thinking(template_of(self._llama), self.prompt.text or "")

    def answer(self, call: Call, **changes: Any) -> Any:
        """Generate an answer.

        Args:
            call: the options of the call besides the arguments of ``create_chat_completion``.
            changes: new values of arguments that the prompt does not depend on, such as ``seed`` and ``stream``.

        Returns:
            The result of ``create_chat_completion``: the response, or an iterator of chunks.
        """
        reader = self.reader()
        call = dataclasses.replace(call, chat=reader)
        if self._prompt is not None:
            options = {**self._prompt.options, **self._ours, **changes}
            found = self._ask(prompt=self._prompt.tokens, **options, call=call)
        else:
            view = view_for_images(self._llama, call_of(self._llama, {**self._ours, "call": call}))
            with template_errors(), call.slot.exclusive():
                found = self._ask(llama=view, **changes)
            found = exclusively(self._llama, call.slot, found) if isinstance(found, Iterator) else found
        return reader.read(found)


def prepared(llm: BaseLlama, arguments: Mapping[str, Any], *, keeps_thoughts: bool = False, warns: bool = True) -> Chat:
    """Prepare a chat: check its arguments, render and tokenize its prompt, and make the grammar of its answer.

    Any number of threads may call this, also while texts are generated.

    Args:
        llm: the Llama that answers. Its chat handler or template makes the prompt.
        arguments: the arguments of ``create_chat_completion``, by name.
        keeps_thoughts: thoughts stay in the text of the answer.
        warns: whether to warn of fields and schemas that have no effect.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument has a wrong value or would be ignored, or the template refuses the messages.
    """
    llama, given = cast(EngineLlama, llm), dict(arguments)
    ours = {name: given.pop(name) for name in OURS if name in given}
    fields = given_fields(llm, given.pop("chat_template_kwargs", None), given.pop("reasoning_effort", None))
    is_continued, special = given.pop("continue_final_message", None), bool(given.pop("parse_special", False))
    parallel = given.pop("parallel_tool_calls", None)
    parallel = parallel is None or bool(parallel)
    given, continued = with_continued(llm, given_to(BaseLlama.create_chat_completion, (), given), is_continued)
    chat = checked_chat(llm, given)
    schemas, of_format = schemas_by_grammar(chat), with_grammar_of_format(chat)
    if warns:
        warn_of_schemas(chat)
        warn_of_fields(llm, fields)
    chat, forced = with_forced_calls(llm, of_format, parallel=parallel)
    thinks = continued is None and may_think(fields)
    how: dict[str, Any] = {"parallel": parallel, "keeps_thoughts": keeps_thoughts, "may_think": thinks}
    reader = functools.partial(ChatAnswer, llm, chat, forced, schemas=schemas, **how)
    handler, read = _handler(llm, chat["messages"]), read_fields(llm, fields)
    formatter, prompt = formatter_of(handler), None
    if formatter is not None:
        prompt = rendered(llm, formatter, chat, read, continued, parse_special=special)
        ask = functools.partial(_completed, llm, called_function(chat))
    else:
        if not has_own_handler(llm):
            chat, read = for_handler(llm, chat, read, parse_special=special)
        ask = functools.partial(handler, **{**completed(BaseLlama.create_chat_completion, chat), **read})
    form = taught_by(template_of(llm))[0]
    keeps_none = keeps_thoughts and form is not None and form.thoughts
    without_effect = [*unread_fields(llm, fields), *(["keeps_thoughts"] if keeps_none else [])]
    return Chat(reader, without_effect, llama, ours, prompt, ask)


def _handler(llm: BaseLlama, messages: Any) -> Any:
    """The chat handler that makes the prompt of these messages."""
    for_text = None if decodes_by_itself(llm, messages) else handler_for_text(llm)
    return for_text or handler_for(llm)


def _completed(llm: BaseLlama, function: Mapping[str, Any] | None, **arguments: Any) -> Any:
    """A completion in the form of a chat's answer. With a `function`, the text is the arguments of a call of it."""
    found, stream = llm.create_completion(**arguments), bool(arguments["stream"])
    if function is None:
        return _convert_completion_to_chat(found, stream=stream)
    return _convert_completion_to_chat_function(function["name"], found, stream)


def chat_prompt(llm: BaseLlama, messages: Sequence[Mapping[str, Any]], **options: Any) -> ChatPrompt:
    """The prompt that ``llm.create_chat_completion`` would decode for these messages, with the completion's arguments.

    Args:
        llm: the Llama.
        messages: the messages.
        options: other arguments of ``create_chat_completion``.

    Raises:
        TypeError, ValueError: as `prepared` does; or the chat handler decodes by itself, and gives no prompt.
    """
    return prepared(llm, {**options, "messages": list(messages)}).prompt


def _noted(llama: EngineLlama, ask: Callable[..., Any], reader: ChatAnswer) -> ChatPrompt:
    """The prompt that a chat handler makes.

    Raises:
        ValueError: the handler asks for no completion, or decodes by itself.
    """
    noting = _Noting(llama, dataclasses.replace(llama._call, chat=reader))
    try:
        with template_errors():
            ask(llama=noting)
    except Exception:
        if noting.noted is None:  # otherwise the handler has failed at the empty answer, which does not matter
            raise
    if noting.noted is None:
        raise ValueError(
            f"the chat handler of {file_of(llama)} asks for no completion: it cannot be rendered as a prompt"
        )
    return cast(ChatPrompt, noting.noted)


class _Noting(View):
    """A stand-in for a Llama that is given to a chat handler.

    It notes the arguments of the completion that the handler asks for, and returns an empty text.
    """

    __slots__ = ("_text", "_tokens", "noted")

    def __init__(self, llama: EngineLlama, call: Call) -> None:
        super().__init__(llama, call)
        self._set(_text="", _tokens=None, noted=None)

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = False) -> list[int]:
        """Tokenize, and note the text, which may be the prompt's."""
        tokens: list[int] = self._llama.tokenize(text, add_bos, special)
        self._set(_text=text.decode("utf-8"), _tokens=tokens)
        return tokens

    def reset(self) -> None:
        """Refuse. A handler that resets the Llama decodes by itself.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            f"the chat handler of {file_of(self._llama)} decodes by itself, as those for images do: "
            "its prompt is no list of tokens; call create_chat_completion, whose usage says how many tokens it has"
        )

    def create_completion(self, prompt: str | list[int], **options: Any) -> Any:
        """Note the arguments, and return an empty answer.

        Raises:
            ValueError: this is the handler's second completion.
        """
        if self.noted is not None:
            raise ValueError("the chat handler asks for a second completion, after the answer to the first")
        tokens = prompt_tokens_of(self._llama, prompt, None)
        text = prompt if isinstance(prompt, str) else self._text if tokens == self._tokens else None
        self._set(noted=ChatPrompt(tokens, self._call.chat.completed_options(options), text))
        choice = {"text": "", "index": 0, "logprobs": None, "finish_reason": "stop"}
        answer = {"id": "", "object": "text_completion", "created": 0, "model": "", "choices": [choice]}
        usage = {"prompt_tokens": len(tokens), "completion_tokens": 0, "total_tokens": len(tokens)}
        stream: Iterator[Any] = iter([answer])
        return stream if options.get("stream") else {**answer, "usage": usage}
