"""A prompt: a user's message, and the kind of text that it asks for."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specllama import Llama


@dataclasses.dataclass(frozen=True)
class RenderedPrompt:
    """A prompt for ``create_completion``."""

    tokens: list[int]
    stop: list[str]
    """The texts that end an answer in this chat format, besides the model's own end tokens."""


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A user's message, with its name and category."""

    id: str
    """The name of the prompt within its file, such as ``HumanEval/0``."""
    category: str
    """The kind of text that the prompt asks for, such as ``code``. Results are shown by category."""
    text: str
    """The user's message."""
    chat: bool = True
    """Whether the model's chat template is applied. If not, the text is completed as it is."""
    before: tuple[dict[str, Any], ...] = dataclasses.field(default=(), compare=False)
    """The messages before `text`, if `text` is the last message of a chat."""
    task: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)
    """The JSON object of the prompt's line in the file. A HumanEval task has its tests there."""

    @classmethod
    def of(cls, given: Prompt | str, number: int) -> Prompt:
        """The given prompt; or a prompt of a user's message, which gets the number `number`.

        Raises:
            TypeError: `given` is neither a prompt nor a string.
        """
        if isinstance(given, Prompt):
            return given
        if isinstance(given, str):
            return cls(id=f"prompt-{number}", category="text", text=given)
        raise TypeError(f"{given!r} is no prompt: give strings, or what specllama.prompts.read_prompts(file)[0] gives")

    def rendered(self, llm: Llama) -> RenderedPrompt:
        """The prompt in a model's tokens."""
        from specllama.chat import chat_prompt
        from specllama.drop_in import prompt_tokens_of

        if not self.chat:
            return RenderedPrompt(prompt_tokens_of(llm, self.text, None), [])
        prompt = chat_prompt(llm, [*self.before, {"role": "user", "content": self.text}])
        return RenderedPrompt(prompt.tokens, prompt.stop)
