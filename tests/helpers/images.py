"""Chats with images: a handler that decodes one as llama_cpp's do, and messages."""

from __future__ import annotations

import base64
import io
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp.llama_chat_format import _convert_completion_to_chat
from PIL import Image

SIZE = 5
"""Places that an image of `Pictures` takes."""
PASSED = ("max_tokens", "temperature", "seed", "stream", "top_k", "top_p", "min_p", "logprobs")


def image(name: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "image_url", "image_url": {"url": name}}


def png(seed: int, size: int = 8) -> str:
    """The address of an image that has itself in it."""
    pixels = np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def asked(*parts: str | dict[str, Any]) -> list[dict[str, Any]]:
    """One message, of texts and images."""
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return [{"role": "user", "content": content}]


def embed(llama: Any, name: str) -> None:
    """Decodes an image behind what is evaluated, without a word to the Llama but its new `n_tokens`."""
    n_embd, first = llama.n_embd(), llama.n_tokens
    rng = np.random.default_rng(list(name.encode()))
    values = rng.standard_normal((SIZE, n_embd)).astype(np.float32)
    batch = llama_cpp.llama_batch_init(SIZE, n_embd, 1)
    try:
        batch.n_tokens = SIZE
        for i in range(SIZE):
            for j in range(n_embd):
                batch.embd[i * n_embd + j] = values[i, j]
            batch.pos[i] = first + i
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = 0
            batch.logits[i] = 0
        assert llama_cpp.llama_decode(llama._ctx.ctx, batch) == 0
    finally:
        llama_cpp.llama_batch_free(batch)
    llama.n_tokens = first + SIZE


class Pictures:
    """A chat handler in the manner of llama_cpp's for images.

    Attributes:
        prompts: what it has asked to be completed.
    """

    def __init__(self) -> None:
        """Nothing has been asked."""
        self.prompts: list[list[int]] = []

    def __call__(self, *, llama: Any, messages: Any, **options: Any) -> Any:
        """Decodes the messages, and asks for what follows."""
        llama.reset()
        llama._ctx.kv_cache_clear()
        for message in messages:
            for part in message["content"]:
                if part["type"] == "text":
                    llama.eval(llama.tokenize(part["text"].encode(), add_bos=llama.n_tokens == 0))
                else:
                    embed(llama, part["image_url"]["url"])
        self.prompts.append(llama.input_ids[: llama.n_tokens].tolist())
        chosen = {name: options[name] for name in PASSED if options.get(name) is not None}
        return _convert_completion_to_chat(
            llama.create_completion(prompt=self.prompts[-1], **chosen), stream=bool(options.get("stream"))
        )
