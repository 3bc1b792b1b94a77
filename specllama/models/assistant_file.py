"""Files of Gemma 4's assistants: heads whose layers have queries only, and read the keys and values of their target."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from .gguf_values import StoredTensor, UnusableFileError, architecture_of, parts_of, read_without_texts, tokens_in
from .head_file import HeadFile, number_in, require_turns, require_types
from .head_kinds import ASSISTANT

_TARGET = "gemma4"
_SIZES = (f"{ASSISTANT}.attention.key_length", f"{ASSISTANT}.attention.value_length")
_LAYERS = range(1, 513)  # LLAMA_MAX_LAYERS


class _Seen(NamedTuple):
    """What a layer sees, and the shape of a token's keys."""

    has_window: bool
    num_heads: int
    size: int

    def __str__(self) -> str:
        return f"{self.num_heads} heads of {self.size} numbers {'in a window' if self.has_window else 'everywhere'}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssistantFile(HeadFile):
    """The description of an assistant in a file.

    Attributes:
        seen: for each layer, the keys that it reads.
    """

    seen: tuple[_Seen, ...]

    @classmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """See the base class."""
        return architecture_of(values) == ASSISTANT

    @classmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> AssistantFile:
        """See the base class. llama.cpp looks at few of these numbers before it computes with them."""
        require_types(path, tensors)
        count = number_in(path, values, f"{ASSISTANT}.block_count")
        if count not in _LAYERS or count != number_in(path, values, f"{ASSISTANT}.nextn_predict_layers"):
            raise UnusableFileError(
                f"{path} is a head that is damaged: {ASSISTANT}.block_count is {count}, and must be from {_LAYERS[0]} "
                f"to {_LAYERS[-1]}, the same as {ASSISTANT}.nextn_predict_layers"
            )
        heads = number_in(path, values, f"{ASSISTANT}.attention.head_count")
        turned = f"{ASSISTANT}.rope.dimension_count"
        for end in ("", "_swa"):
            sizes = {name: number_in(path, values, f"{name}{end}") for name in _SIZES}
            usual = values.get(turned, values[_SIZES[0]])
            changed = {f"{ASSISTANT}.attention.head_count_kv": 1, **sizes, turned: values.get(f"{turned}{end}", usual)}
            require_turns(path, {**values, **changed}, ASSISTANT, same_values=True)
        seen = tuple(_seen(path, values, ASSISTANT, layer, count) for layer in range(count))
        are_multiples = all(layer.num_heads > 0 and heads % layer.num_heads == 0 for layer in seen)
        if not are_multiples or not any(layer.has_window for layer in seen):
            raise UnusableFileError(
                f"{path} is a head that is damaged: its layers read {_named(seen)} by "
                f"{heads} heads, which must be a multiple, and one layer must have a window"
            )
        return cls(
            path=path,
            hidden_size=number_in(path, values, f"{ASSISTANT}.embedding_length_out"),
            n_vocab=len(tokens_in(values)),
            seen=seen,
            tensors=tensors,
        )

    def require_fit(self, *, n_layer: int, n_embd: int, n_vocab: int) -> None:
        """See the base class."""
        super().require_fit(n_layer=n_layer, n_embd=n_embd, n_vocab=n_vocab)
        self.require_tokens(n_vocab, has_matrix=True)

    def require_memory(self, target: str) -> None:
        """See the base class. It is that of the last two layers, one with a window and one without.

        llama.cpp takes any memory for such a one.
        """
        values, _ = read_without_texts(parts_of(target)[0])
        architecture = architecture_of(values)
        if architecture != _TARGET:
            raise UnusableFileError(
                f"the head {self.name} reads the memory of a model of the architecture {_TARGET}, and the target is "
                f"of {architecture}: give the head with its own target, or draft_model='lookup'"
            )
        count = number_in(target, values, f"{_TARGET}.block_count")
        own = count - int(values.get(f"{_TARGET}.attention.shared_kv_layers", 0))  # the others read keys of these
        for end in {count, own}:
            shown = [_seen(target, values, _TARGET, layer, count) for layer in (end - 2, end - 1) if layer >= 0]
            if not set(self.seen) <= set(shown) or [layer.has_window for layer in shown] != [True, False]:
                raise UnusableFileError(
                    f"the head {self.name} is for another target: it reads {_named(self.seen)}, and the last two "
                    f"layers of this one have {_named(shown)}"
                )


def _named(layers: Iterable[_Seen]) -> str:
    return ", ".join(dict.fromkeys(map(str, layers)))


def _seen(path: str, values: Mapping[str, Any], architecture: str, layer: int, count: int) -> _Seen:
    windows = np.atleast_1d(values.get(f"{architecture}.attention.sliding_window_pattern", ()))
    heads = np.atleast_1d(values.get(f"{architecture}.attention.head_count_kv", ()))
    of_windows, of_heads = windows.shape == (count,) and windows.dtype == bool, heads.dtype.kind in "iu"
    if not of_windows or not of_heads or heads.size not in (1, count):
        raise UnusableFileError(
            f"{path} is damaged: it must say for each of its {count} layers whether it has a window, and how many "
            "heads its keys have"
        )
    size = number_in(path, values, f"{architecture}.attention.key_length{'_swa' if windows[layer] else ''}")
    return _Seen(bool(windows[layer]), int(heads[layer % heads.size]), size)
