"""A plug-in for `llm` (https://llm.datasette.io): ``llm -m specllama -o target MODEL -o draft MODEL "..."``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal

import llm
from pydantic import Field, Json

from .engine import VERIFY
from .server.sampler_fields import SamplerFields

if TYPE_CHECKING:
    from . import Conversation, Llama


@llm.hookimpl
def register_models(register: Callable[[llm.Model], None]) -> None:
    """Register the model. llm calls this."""
    register(SpecllamaModel())


class ModelOptions(llm.Options):
    """The model, and how it is opened. If one of these options changes, the model is opened again."""

    target: str | None = Field(None, description="the model: a GGUF file, or a name from `specllama pull --list`")
    draft: str | None = Field(None, description="its draft: the same, or lookup")
    max_draft_tokens: int | None = Field(None, description="the most tokens that auto drafts in a round, default 64")
    n_ctx: int | None = Field(None, description="size of the context, default 4096; 0: the model's own")
    n_threads: int | None = Field(None, description="threads, for prompts and generation alike")
    n_gpu_layers: int | None = Field(None, description="layers on the GPU; -1: all")
    cache_ram: int | None = Field(None, description="MiB in memory for copies of the KV cache of earlier texts")
    cache_dir: str | None = Field(None, description="a folder for such copies, which later commands use, too")
    cache_disk: float | None = Field(None, description="the most GiB in this folder, default 8")
    learn: bool | None = Field(None, description="keep what a draft can learn from the answers: see specllama learn")
    learn_disk: float | None = Field(None, description="the most GiB of that, default 4")


class SpecllamaOptions(SamplerFields, ModelOptions):
    """What ``-o NAME VALUE`` sets for a prompt, and ``llm models options set specllama NAME VALUE`` for all."""

    dry_sequence_breakers: Json[list[str]] | list[str] | None = Field(None, description='a JSON list, such as ["."]')
    num_draft_tokens: int | Literal["auto"] | None = Field(None, description="tokens drafted in a round; 0: none")
    verify: str | None = Field(None, description=f"what accepts drafted tokens: {', '.join(VERIFY)}")
    max_tokens: int | None = Field(None, description="the most tokens of an answer")
    temperature: float | None = Field(None, description="0 is greedy")
    top_k: int | None = Field(None, description="sample from the K likeliest tokens")
    top_p: float | None = Field(None, description="sample from the likeliest tokens that make up P")
    min_p: float | None = Field(None, description="sample from tokens at least P times as likely as the likeliest")
    repeat_penalty: float | None = Field(None, description="divides the logits of tokens that occurred")
    seed: int | None = Field(None, description="the same seed gives the same text, with any draft or none")


class SpecllamaModel(llm.Model):
    """One Llama at a time, kept between the prompts of a process. A conversation decodes only what is new."""

    model_id = "specllama"
    can_stream = True
    supports_schema = True
    Options = SpecllamaOptions

    def __init__(self) -> None:
        self._conversation: Conversation | None = None
        self._loaded: dict[str, Any] = {}

    def execute(
        self, prompt: llm.Prompt, stream: bool, response: llm.Response, conversation: llm.Conversation | None
    ) -> Iterator[str]:
        """Called by llm: yields the pieces of an answer, and leaves the statistics in llm's log."""
        options = prompt.options.model_dump(exclude_none=True)
        chat = self._conversation_of({name: options.pop(name) for name in ModelOptions.model_fields if name in options})
        if prompt.schema:
            options["response_format"] = {"type": "json_object", "schema": prompt.schema}
        *earlier, last = _messages(prompt)
        chat.messages = earlier
        for token in chat.say(last["content"], **options):
            yield token.text
        stats = chat.llm.stats
        response.set_usage(input=stats.num_prompt_tokens, output=stats.num_tokens)
        response.response_json = {"stats": stats.to_dict()}

    def _conversation_of(self, model: dict[str, Any]) -> Conversation:
        if "target" not in model:
            raise llm.ModelError(
                "no model was chosen: give one with `-o target MODEL`, or once and for all with "
                "`llm models options set specllama target MODEL`; `-o draft MODEL` gives its draft. `llm chat` forgets "
                "what was set so as soon as it gets any -o: give it the target by -o, too"
            )
        if self._conversation is None or model != self._loaded:
            if self._conversation is not None:
                self._conversation.llm.close()
                self._conversation = None
            from . import Conversation

            self._conversation, self._loaded = Conversation(_opened(**model)), model
        return self._conversation


def _opened(
    target: str, draft: str | None = None, n_ctx: int = 4096, n_threads: int | None = None, **others: Any
) -> Llama:
    from . import Llama
    from .backend.cpu import default_threads

    n_threads = n_threads or default_threads()
    return Llama(
        target,
        draft_model=draft,
        n_ctx=n_ctx,
        n_threads=n_threads,
        n_threads_batch=n_threads,
        verbose=False,
        **others,
    )


def _messages(prompt: llm.Prompt) -> list[dict[str, str]]:
    return [
        {"role": message.role, "content": "".join(getattr(part, "text", "") for part in message.parts)}
        for message in prompt.messages
    ]
