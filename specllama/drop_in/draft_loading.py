"""How a ``Llama`` loads a draft that is given by its path: as a ``llama_cpp.Llama`` of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from specllama.backend.kernel_use import checked_kernels, loading
from specllama.engine.drafts.draft import Loaded
from specllama.engine.model import Model
from specllama.models.loading import explained
from specllama.models.opening_checks import n_ctx_with_positions

from .base_class import BaseLlama
from .chat_templates import ChatTemplates
from .context_params import ContextParams
from .lending import lent

# What a draft given by its path takes over from the target, unless draft_kwargs say otherwise.
_INHERITED = (
    *("n_gpu_layers", "split_mode", "main_gpu", "tensor_split", "offload_kqv", "op_offload", "flash_attn"),
    *("use_mmap", "use_mlock", "numa"),
)


class _LoadedDraft(ChatTemplates, ContextParams, BaseLlama):
    """A draft given by its path."""

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        self.attend_as_kernels_do(kwargs)
        super().__init__(model_path, **kwargs)


class DraftLoader:
    """Loads drafts of one Llama.

    Args:
        target: what they draft for.
        settings: its constructor's arguments, some of which a draft takes over.
    """

    def __init__(self, target: BaseLlama, settings: Mapping[str, Any]) -> None:
        self._target = target
        self._settings = settings

    def load(self, path: str, target: Model, own: Mapping[str, Any]) -> Loaded:
        """See ``engine.drafts.draft.Loader``."""
        of_target = target.settings
        arguments = {
            # llama.cpp repacks 4-bit weights as it loads them. Mapped, the file would stay in memory beside the copy.
            "use_mmap": False,
            "verbose": of_target.verbose,
            **{name: self._settings[name] for name in _INHERITED if name in self._settings},
            "n_ctx": target.n_ctx,
            "n_batch": of_target.n_batch,
            "n_threads": of_target.n_threads,
            "n_threads_batch": of_target.n_threads_batch,
            "kernels": of_target.kernels.choice,
            **own,
        }
        arguments["n_ctx"] = n_ctx_with_positions(path, arguments["n_ctx"])
        choice = checked_kernels(arguments.pop("kernels"))
        with explained(path, overrides=arguments.get("kv_overrides")), loading(choice) as use:
            draft = _LoadedDraft(path, **arguments)
        return Loaded(lent(draft, "draft", use), draft, draft.close)

    def tokenize(self, text: str) -> Sequence[int]:
        """See ``engine.drafts.draft.Loader``."""
        return self._target.tokenize(text.encode(), add_bos=False)
