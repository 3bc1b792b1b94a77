"""Loads a draft that is given by its path, as a ``llama_cpp.Llama`` of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from specllama.backend.kernel_use import checked_kernels
from specllama.engine.drafts.draft import Loaded
from specllama.engine.model import Model
from specllama.models.opening_checks import n_ctx_with_positions

from .base_class import BaseLlama
from .chat_templates import ChatTemplates
from .context_params import ContextParams
from .lending import lent

# The arguments that a draft takes over from its target, unless draft_kwargs set them.
_INHERITED = (
    *("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload", "flash_attn"),
    *("use_mmap", "use_mlock", "numa"),
)


class _LoadedDraft(ContextParams, ChatTemplates, BaseLlama):
    """A draft that was loaded from its path.

    Args:
        model_path: the draft's file.
        kernels: the user's choice of kernels.
        has_spare: whether parts of a text's memory are to be copied.
        kwargs: the arguments of llama_cpp's constructor.
    """

    _stack = contextlib.ExitStack()  # the destructor closes this empty stack if the constructor has failed early

    def __init__(self, model_path: str, kernels: str | None = None, *, has_spare: bool = False, **kwargs: Any) -> None:
        self._construct(model_path, kwargs, name="draft", kernels=checked_kernels(kernels), has_spare=has_spare)

    def __repr__(self) -> str:
        """``llm.draft_model`` shows the draft's path."""
        return f"<draft {self.model_path}>"


class DraftLoader:
    """Loads the drafts of one Llama, as an ``engine.drafts.draft.Loader``.

    Args:
        target: the Llama that the drafts draft for.
        settings: the arguments of the target's constructor, some of which a draft takes over.
    """

    def __init__(self, target: BaseLlama, settings: Mapping[str, Any]) -> None:
        self._target = target
        self._settings = settings

    def load(self, path: str, target: Model, draft_kwargs: Mapping[str, Any]) -> Loaded:
        """Load a draft model, as ``Loader`` says.

        Raises:
            MemoryError, OSError, RuntimeError, TypeError, ValueError: the draft cannot be opened.
        """
        inherited = {name: self._settings[name] for name in _INHERITED if name in self._settings}
        arguments = {"verbose": target.settings.verbose, **target.of_draft(), **inherited, **draft_kwargs}
        arguments["n_ctx"] = n_ctx_with_positions(path, arguments["n_ctx"])
        draft = _LoadedDraft(path, has_spare=target.settings.has_spare, **arguments)
        return Loaded(lent(draft), draft, draft.close)

    def tokenize(self, text: str) -> Sequence[int]:
        """The tokens of a text, as ``Loader`` says."""
        return self._target.tokenize(text.encode(), add_bos=False)
