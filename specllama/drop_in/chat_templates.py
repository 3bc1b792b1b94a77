"""Chat templates that jinja cannot read: the chat that needs one fails, and nothing else."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from llama_cpp import llama_chat_format

from specllama.engine.opening import metadata_of

from .base_class import file_of

_NAME = "tokenizer.chat_template"  # and with a dot and a name behind it, where there are several
_OF_FILE = "chat_template.default"  # as llama_cpp calls the first one


class ChatTemplates:
    """Opens a Llama whatever its chat templates are: the constructor of ``llama_cpp.Llama`` reads them all.

    Attributes:
        metadata: of the file. While that constructor runs they lack the templates that cannot be read.
    """

    _metadata: dict[str, str]
    _unreadable: dict[str, str] | None = None
    """Why those templates cannot be read, by their names among the metadata. None: the constructor is over."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        llama: Any = self
        unreadable, self._unreadable = self._unreadable or {}, None
        for name, reason in unreadable.items():
            kind = _OF_FILE if name == _NAME else name.removeprefix("tokenizer.")
            llama._chat_handlers[kind] = _refusing(file_of(llama), reason)
        if _NAME in unreadable and kwargs.get("chat_format") is None and llama.chat_handler is None:
            llama.chat_format = _OF_FILE  # not the one that llama_cpp takes for a file without a template

    @property
    def metadata(self) -> dict[str, str]:
        """See the class."""
        hidden = self._unreadable or {}
        return (
            {name: value for name, value in self._metadata.items() if name not in hidden} if hidden else self._metadata
        )

    @metadata.setter
    def metadata(self, metadata: dict[str, str]) -> None:
        if not hasattr(self, "_metadata"):  # the constructor's, which cuts values at 1,023 bytes
            metadata = metadata_of(self.__dict__["_model"].model)
        self._metadata = metadata
        templates = {name: text for name, text in metadata.items() if name == _NAME or name.startswith(_NAME + ".")}
        reasons = {name: _why_unreadable(text) for name, text in templates.items()}
        self._unreadable = {name: reason for name, reason in reasons.items() if reason is not None}


@functools.lru_cache(maxsize=8)  # a model and its draft have the same, and one takes some milliseconds
def _why_unreadable(template: str) -> str | None:
    try:
        llama_chat_format.Jinja2ChatFormatter(template=template, eos_token="", bos_token="")
    except Exception as error:  # of jinja's, or of Python's, which compiles what jinja makes of it
        return " ".join(f"{type(error).__name__}: {error}".split())
    return None


def _refusing(file: str, reason: str) -> Callable[..., Any]:
    """A chat handler that says why there can be no chat."""

    def refuse(**_: Any) -> Any:
        raise ValueError(
            f"the chat template of {file} cannot be read ({reason}): create the Llama with a chat_format or a "
            "chat_handler, or get the file again"
        )

    return refuse
