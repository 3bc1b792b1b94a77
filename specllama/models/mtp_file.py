"""MTP layers (multi-token prediction) in a model's own file, or in a file of their own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import llama_cpp.llama_cpp as _bindings

from specllama.backend.trial import WITHIN, tried
from specllama.backend.trial_key import trial_key, with_neighbours

from .gguf_values import StoredTensor, UnusableFileError, architecture_of, parts_of, read_whole_header
from .head_file import HeadFile, number_in

# The architectures of which llama.cpp (llama-cpp-python 0.3.36) can run several MTP layers, or at least one. With
# other architectures it may end the process, so a child process tries them first. Tests have each of these.
_WITH_SEVERAL = frozenset({"hy_v3", "mimo2", "step35"})
_WITH_MTP = _WITH_SEVERAL | {
    *("bailingmoe3", "cohere2moe", "deepseek2", "deepseek32", "deepseek4", "glm-dsa", "glm4moe"),
    *("nemotron_h_moe", "qwen35", "qwen35moe", "qwen3next"),
}
_TRIAL, _SECONDS = "engine._mtp_trial", 600.0
_OF_MTP = ".nextn.eh_proj.weight"


@dataclasses.dataclass(frozen=True, kw_only=True)
class MtpFile(HeadFile):
    """The description of a model's MTP layers in a file of their own.

    `n_vocab` is 0, since nothing reads it: when the layers are opened, their vocabulary is compared with the target's
    token by token.

    Attributes:
        num_layers: the number of MTP layers.
    """

    num_layers: int

    in_model = "mtp"

    @classmethod
    def is_of(cls, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> bool:
        """See the base class."""
        return any(name.endswith(_OF_MTP) for name in tensors) and "blk.0.attn_norm.weight" not in tensors

    @classmethod
    def read(cls, path: str, values: Mapping[str, Any], tensors: Mapping[str, StoredTensor]) -> MtpFile:
        """See the base class."""
        num_layers = cls.num_in_model(path)
        size = number_in(path, values, f"{architecture_of(values)}.embedding_length")
        return cls(path=path, hidden_size=size, n_vocab=0, tensors=tensors, num_layers=num_layers)

    @classmethod
    def num_named(cls, values: Mapping[str, Any]) -> int:
        """See the base class."""
        count = values.get(f"{architecture_of(values)}.nextn_predict_layers", 0)
        return max(0, count) if isinstance(count, int) else 0

    @classmethod
    def num_in_model(cls, path: str) -> int:
        """See the base class. The result is 1 if the file cannot be read: loading it will report that.

        llama.cpp ends the process if it cannot run the layers. Some architectures are known to work. All others
        are tried in a child process, once for each file and library.
        """
        try:
            (values, _), *_ = parts = [read_whole_header(part) for part in parts_of(path)]
        except (UnusableFileError, OSError):
            return 1  # loading the file will report what is wrong
        architecture, count = architecture_of(values), cls.num_named(values)
        if count == 0:
            raise UnusableFileError(
                f"{path} has no MTP layers: give a draft model's path, or draft_model='lookup' (-md lookup)"
            )
        found = sum(name.endswith(_OF_MTP) for _, tensors in parts for name in tensors)
        if not found:
            raise UnusableFileError(
                f"{path} names MTP layers in its metadata, and does not have them: perhaps they are in another file"
            )
        if architecture in (_WITH_SEVERAL if count > 1 else _WITH_MTP) or os.environ.get(WITHIN) == _TRIAL:
            return min(count, found)
        reason = "alone in a file" if any(cls.is_of(values, tensors) for _, tensors in parts) else _why_no_mtp(path)
        if reason:
            raise UnusableFileError(
                f"{path} has {count} MTP layers of the architecture {architecture}, which llama.cpp cannot run "
                f"({reason}): give a draft model's path, or draft_model='lookup' (-md lookup)"
            )
        return min(count, found)


def _why_no_mtp(path: str) -> str:
    found = os.stat(path)
    key = {**trial_key(with_neighbours(_bindings._lib._name)), "file": f"{found.st_size} bytes, {found.st_mtime_ns}"}
    return tried(_TRIAL, [os.path.abspath(path)], key=key, seconds=_SECONDS).reason
