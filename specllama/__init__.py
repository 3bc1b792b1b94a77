"""Exact speculative decoding for GGUF models: a drop-in ``llama_cpp.Llama`` with a draft model."""

from __future__ import annotations

from pkgutil import extend_path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._core import BusyError, ClosedError, ContextFullError, DecodeError
    from .conversation import Conversation
    from .drop_in.saved_state import StateError
    from .engine.engine import Engine
    from .engine.options import FallbackWarning
    from .llama import Llama
    from .models.catalog import ModelNotFoundError
    from .stats import Stats
    from .token import Token

    __version__: str

# In a checkout this folder hides the installed package, which alone has the compiled `_core`: search that package, too.
__path__ = extend_path(__path__, __name__)

_WHERE = {
    "BusyError": "._core",
    "ClosedError": "._core",
    "ContextFullError": "._core",
    "Conversation": ".conversation",
    "DecodeError": "._core",
    "Engine": ".engine.engine",
    "FallbackWarning": ".engine.options",
    "Llama": ".llama",
    "ModelNotFoundError": ".models.catalog",
    "StateError": ".drop_in.saved_state",
    "Stats": ".stats",
    "Token": ".token",
}

_EVIDENCE = ("bench", "compare", "eval", "tune", "verify")  # modules of `evidence`, as in `specllama.bench.run`

__all__ = ["BusyError", "ClosedError", "ContextFullError", "DecodeError", "FallbackWarning", "ModelNotFoundError"]
__all__ += ["Conversation", "Engine", "Llama", "StateError", "Stats", "Token", "__version__"]


def __getattr__(name: str) -> Any:
    # Names are imported when they are first used: loading libllama takes most of a second, and the command cannot
    # handle Ctrl-C yet while this file is imported.
    from importlib import import_module, metadata

    if name == "__version__":
        return metadata.version("specllama")
    if name in _EVIDENCE:
        return import_module(f".evidence.{name}", __name__)
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name], __name__), name)
