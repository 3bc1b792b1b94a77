"""``continue_final_message``: the answer continues the last message, which is the assistant's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from specllama.drop_in.base_class import BaseLlama, file_of
from specllama.drop_in.images import decodes_by_itself
from specllama.drop_in.parts import text_of

from .formats.kinds import taught_by
from .formats.thinking import is_open
from .messages import hands_on_everything, has_own_handler, template_of
from .special_names import SpecialNames


@dataclasses.dataclass(frozen=True)
class Continued:
    """The beginning of an answer: the last message, which the model continues.

    Attributes:
        content: the text of the message.
        thought: the thought before the text; empty if there is none.
        thoughts: the marks before and after a thought; None if the chat template has none.
    """

    content: str
    thought: str = ""
    thoughts: tuple[str, str] | None = None

    def marked(self, names: SpecialNames) -> Continued:
        """The beginning with marks in the names of special tokens, so that these names stay text."""
        [said] = names.marked_messages([{"role": "assistant", "content": self.content, "thought": self.thought}])
        return dataclasses.replace(self, content=said["content"], thought=said["thought"])

    def behind(self, prompt: str) -> str:
        """A prompt followed by this beginning. If the prompt has begun a thought, it is ended before the text."""
        begin, end = self.thoughts or ("", "")
        is_begun = bool(begin) and is_open(prompt, ((begin,), (end,)))
        if self.thoughts is None or not (is_begun or self.thought):
            return prompt + self.content
        before = "" if is_begun else f"{begin}\n"
        return prompt + f"{before}{self.thought.strip()}\n{end}\n\n{self.content}"


def with_continued(llama: BaseLlama, given: dict[str, Any], is_wanted: Any) -> tuple[dict[str, Any], Continued | None]:
    """Take the message that the answer continues out of a chat's arguments.

    Args:
        llama: the Llama that answers.
        given: the arguments of the chat.
        is_wanted: the value of ``continue_final_message``.

    Returns:
        The arguments without this message, and the message; None if nothing is continued.

    Raises:
        TypeError: ``continue_final_message`` is neither True nor False.
        ValueError: the last message cannot be continued, or the prompts are not made by a chat template.
    """
    if is_wanted is None or is_wanted is False:
        return given, None
    if is_wanted is not True:
        raise TypeError(f"continue_final_message={is_wanted!r:.100} must be True or False")
    messages = given.get("messages")
    last: Any = messages[-1] if isinstance(messages, (list, tuple)) and messages else None
    last = last.model_dump(exclude_none=True) if hasattr(last, "model_dump") else last
    is_answer = isinstance(last, Mapping) and last.get("role") == "assistant" and not last.get("tool_calls")
    content = _text_of(last.get("content")) if is_answer else ""
    if not content:
        raise ValueError(
            "continue_final_message=True needs a last message of the assistant that has a text, and no calls of tools: "
            "end with such a message, or leave it out"
        )
    if has_own_handler(llama) or decodes_by_itself(llama, messages) or not hands_on_everything(llama):
        raise ValueError(
            "continue_final_message=True needs a chat template that makes the prompts, and a chat handler makes those "
            f"of {file_of(llama)}: leave it out, or create the Llama without a chat_handler or chat_format"
        )
    thoughts = taught_by(template_of(llama))[1]
    marks = None if thoughts is None else ("".join(thoughts[0]), "".join(thoughts[1]))
    thought = last.get("reasoning_content") or ""
    return {**given, "messages": list(given["messages"][:-1])}, Continued(content, str(thought), marks)


def _text_of(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return "\n".join(text for part in content if (text := text_of(part)) is not None)
    return content if isinstance(content, str) else ""
