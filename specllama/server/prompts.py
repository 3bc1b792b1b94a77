"""Prompts in the bodies of requests: texts, token ids, or lists of both."""

from __future__ import annotations

from typing import Annotated, Any, TypeGuard, cast

from pydantic import PlainValidator

from specllama import Llama
from specllama.drop_in import leading_tokens
from specllama.engine import BYTES_OF_TOKEN, require_room, require_room_for_ids, size_of

from .fields import KnownFields

OnePrompt = str | list[int | str]


def checked_prompt(prompt: Any) -> OnePrompt | list[OnePrompt]:
    """Checks one prompt or several. For a long list, pydantic's union of types would report millions of errors."""
    if isinstance(prompt, list) and prompt and not any(type(part) is int for part in prompt):
        return [_one_prompt(part) for part in prompt]
    return _one_prompt(prompt)


def _one_prompt(prompt: Any) -> OnePrompt:
    """Checks one prompt: a text, token ids, or, as llama-server accepts, a list of both or an object with a text."""
    if isinstance(prompt, dict) and prompt.keys() <= {"prompt_string", "multimodal_data"}:
        if prompt.get("multimodal_data"):
            raise ValueError("multimodal_data is not supported: send images in messages, to /v1/chat/completions")
        prompt = prompt.get("prompt_string")
    if isinstance(prompt, str) or (isinstance(prompt, list) and {type(part) for part in prompt} <= {int, str}):
        return cast("OnePrompt", prompt)
    raise ValueError(
        "it must be a text, a list of token ids, which are whole numbers, and texts, or a list of one of these"
    )


def checked_ids(given: Any) -> OnePrompt | list[OnePrompt]:
    """Checks the input of an embedding: as `checked_prompt`, but without objects and lists of both ids and texts."""
    prompt = checked_prompt(given)
    each = prompt if isinstance(prompt, list) and not is_one(prompt) else [prompt]
    if isinstance(given, dict) or any(isinstance(part, list) and not _is_list_of(int, part) for part in each):
        raise ValueError("it must be a text, a list of token ids, which are whole numbers, or a list of one of these")
    return prompt


def is_one(prompt: OnePrompt | list[OnePrompt]) -> TypeGuard[OnePrompt]:
    """Whether a value is one prompt, not a list of prompts."""
    return isinstance(prompt, str) or not prompt or any(isinstance(part, int) for part in prompt)


def ids_of(llm: Llama, prompt: OnePrompt) -> str | list[int]:
    """Converts a list of texts and ids, or a text that begins with BOS, to ids; returns any other prompt unchanged."""
    if isinstance(prompt, str) and _has_bos(llm, prompt):
        return _tokens_of(llm, prompt)
    if isinstance(prompt, str) or _is_list_of(int, prompt):
        return cast("str | list[int]", prompt)
    ids: list[int] = []
    for number, part in enumerate(prompt):
        ids += [part] if isinstance(part, int) else _tokens_of(llm, part, is_first=number == 0)
    return ids


def require_room_for_prompt(prompt: OnePrompt, n_ctx: int, other_bytes: int = 0) -> None:
    """Refuses a prompt that cannot fit, before it is tokenized.

    Raises:
        ValueError: the prompt cannot fit beside `other_bytes` of other text.
    """
    num_ids = 0 if isinstance(prompt, str) else sum(isinstance(part, int) for part in prompt)
    require_room_for_ids(num_ids, n_ctx)
    require_room(size_of(prompt) + BYTES_OF_TOKEN * num_ids + other_bytes, n_ctx)


def _is_list_of(kind: type, given: Any) -> bool:
    return isinstance(given, list) and {type(part) for part in given} <= {kind}


def _tokens_of(llm: Llama, text: str, *, is_first: bool = False) -> list[int]:
    add_bos = is_first and not _has_bos(llm, text)
    return llm.tokenize(text.encode("utf-8", errors="replace"), add_bos=add_bos, special=True)


def _has_bos(llm: Llama, text: str) -> bool:
    """Whether a text begins with the name of BOS, which the model wants before texts. Rendered chats often do."""
    name = llm.engine.text(leading_tokens(llm), special=True).decode("utf-8", "replace")
    return bool(name) and text.startswith(name)


def _token_ids(tokens: Any) -> list[int]:
    if not _is_list_of(int, tokens):
        raise ValueError("it must be a list of token ids, which are whole numbers")
    return cast("list[int]", tokens)


class TokenizeInputRequest(KnownFields):
    """The body of /extras/tokenize."""

    model: str | None = None
    input: str


class DetokenizeRequest(KnownFields):
    """The body of /extras/detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], PlainValidator(_token_ids, json_schema_input_type=list[int])]


Prompt = Annotated[
    str | list[int] | list[str] | list[list[int]],
    PlainValidator(checked_ids, json_schema_input_type=str | list[int] | list[str] | list[list[int]]),
]
PromptOfCompletion = Annotated[
    OnePrompt | list[OnePrompt],
    PlainValidator(checked_prompt, json_schema_input_type=OnePrompt | list[OnePrompt] | dict[str, Any]),
]
