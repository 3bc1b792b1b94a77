"""Opens files whose chat templates jinja cannot read. Only a chat that needs such a template fails."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llama_cpp import llama_chat_format

from specllama.engine.opening import metadata_of

from .base_class import file_of

_NAME = "tokenizer.chat_template"  # further templates have names such as tokenizer.chat_template.tool_use
OF_FILE = "chat_template.default"
"""llama_cpp's name for the handler of the file's first chat template."""


class ChatTemplates:
    """A mixin for subclasses of ``llama_cpp.Llama``. llama_cpp's constructor fails if jinja cannot read a template.

    Attributes:
        metadata: the file's metadata. While the constructor runs, the templates that cannot be read are left out.
    """

    _metadata: dict[str, str]
    _unreadable: dict[str, str] | None = None
    """For each template that cannot be read, by its name in the metadata, the reason; None after the constructor."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        llama: Any = self
        unreadable, self._unreadable = self._unreadable or {}, None
        for name, reason in unreadable.items():
            kind = OF_FILE if name == _NAME else name.removeprefix("tokenizer.")
            llama._chat_handlers[kind] = _refusing(file_of(llama), reason)
        if _NAME in unreadable and kwargs.get("chat_format") is None and llama.chat_handler is None:
            llama.chat_format = OF_FILE  # in place of llama_cpp's default for files without a template

    @property
    def metadata(self) -> dict[str, str]:
        """The file's metadata. While the constructor runs, the templates that cannot be read are left out."""
        hidden = self._unreadable or {}
        return (
            {name: value for name, value in self._metadata.items() if name not in hidden} if hidden else self._metadata
        )

    @metadata.setter
    def metadata(self, metadata: dict[str, str]) -> None:
        if not hasattr(self, "_metadata"):  # llama_cpp's constructor sets metadata whose values it cut at 1,023 bytes
            metadata = metadata_of(self.__dict__["_model"].model)
        self._metadata = metadata
        templates = {name: text for name, text in metadata.items() if name == _NAME or name.startswith(_NAME + ".")}
        reasons = {name: _why_unreadable(text) for name, text in templates.items()}
        self._unreadable = {name: reason for name, reason in reasons.items() if reason is not None}


@functools.lru_cache(maxsize=8)  # reading takes some milliseconds, and a model and its draft have the same template
def _why_unreadable(template: str) -> str | None:
    try:
        llama_chat_format.Jinja2ChatFormatter(template=template, eos_token="", bos_token="")
    except Exception as error:  # raised by jinja, or by Python, which compiles jinja's output
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _refusing(file: str, reason: str) -> Callable[..., Any]:
    """A chat handler that refuses every chat and says why."""

    def refuse(**_: Any) -> Any:
        raise ValueError(
            f"the chat template of {file} cannot be read ({reason}): create the Llama with a chat_format or a "
            "chat_handler, or get the file again"
        )

    return refuse
