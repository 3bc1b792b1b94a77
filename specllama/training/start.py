"""A head that is trained further: reads its sizes, its tokens and its weights from a file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from specllama.models import HeadFile, read_head, read_whole_header

from .target import Target
from .torch_here import require_gguf_package

if TYPE_CHECKING:
    import torch

    from .head import AnyHead, AnyShape, Head, Shape

# Metadata of rotary positions (RoPE) that the trainer does not compute.
_TURNED_OTHERWISE = ("eagle3.rope.scaling.type", "eagle3.rope.scaling.factor", "eagle3.rope.scale_linear")


class AnyStart(Protocol):
    """What a training starts from, if not from random weights."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The target's layers whose inputs it reads."""

    @property
    def rows(self) -> npt.NDArray[np.int64] | None:
        """The tokens that it can draft, as ids of the target [n_rows]; None if it can draft any."""

    @property
    def n_vocab(self) -> int:
        """How many tokens it knows: the target's first ones."""

    @property
    def rate(self) -> float:
        """The factor of the learning rates."""

    def shape_for(self, n_rows: int) -> AnyShape:
        """The sizes, if `n_rows` tokens are learned."""

    def head(self, target: Target, sizes: torch.Tensor, rows: npt.NDArray[np.int64]) -> AnyHead:
        """The draft in PyTorch.

        Args:
            target: the target.
            sizes: the root mean square of each number of the target's states, as for `Head`.
            rows: the tokens that are learned.
        """


@dataclasses.dataclass(frozen=True)
class Start:
    """An EAGLE-3 head as its file has it.

    Attributes:
        shape: its sizes.
        layers: the target's layers whose inputs it reads.
        rows: the tokens that it can draft, as ids of the target [n_rows].
        n_vocab: the number of tokens in the target's vocabulary.
    """

    shape: Shape
    layers: tuple[int, int, int]
    rows: npt.NDArray[np.int64]
    n_vocab: int
    _weights: Mapping[str, npt.NDArray[np.float32]] = dataclasses.field(repr=False)

    rate = 0.25
    """See `AnyStart`."""

    def shape_for(self, _n_rows: int) -> Shape:
        """See `AnyStart`."""
        return self.shape

    def head(self, target: Target, sizes: torch.Tensor, _rows: npt.NDArray[np.int64]) -> Head:
        """See `AnyStart`."""
        import torch

        from .file import NAMES
        from .head import Head

        own = self._weights.get("output.weight")
        output = target.output_rows(self.rows) if own is None else own
        head = Head(self.shape, sizes, torch.from_numpy(output))
        named = {here: torch.from_numpy(self._weights[f"{there}.weight"]) for here, there in NAMES.items()}
        named["fc"] = torch.from_numpy(self._weights["fc.weight"]) * sizes
        head.load_state_dict({**named, "sizes": sizes})
        return head


def read_start(path: str, target: Target) -> Start:
    """Read a head that is to be trained further.

    Args:
        path: the head's file.
        target: the target.

    Raises:
        ValueError: it is no EAGLE-3 head, is for another target, or has a form that cannot be trained here.
        OSError: the file cannot be read.
    """
    with open(path, "rb"):  # raises an OSError with the reason, which read_head() does not
        found = read_head(path)
    if not isinstance(found, HeadFile):
        raise ValueError(f"{path} is no EAGLE-3 head, and only such a head can be trained further")
    found.require_fit(n_layer=target.n_layer, n_embd=target.n_embd, n_vocab=target.n_vocab)
    values, _ = read_whole_header(path)
    low, middle, high = found.layers
    weights, rows = _weights(path, target)
    shape = _shape(path, values, len(rows))
    _require_known(path, values, weights, shape)
    return Start(shape, (low, middle, high), rows, target.n_vocab, weights)


def _weights(path: str, target: Target) -> tuple[dict[str, npt.NDArray[np.float32]], npt.NDArray[np.int64]]:
    gguf = require_gguf_package()
    rows, weights = np.arange(target.n_vocab), {}
    for tensor in gguf.GGUFReader(path).tensors:
        if tensor.name == "d2t":
            rows = np.array(tensor.data, np.int64)
            continue
        try:
            numbers = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError:
            raise ValueError(
                f"{path}: {tensor.name} is of the type {tensor.tensor_type.name}, which the gguf package cannot read: "
                "give the head in F16, Q8_0 or another such type"
            ) from None
        weights[tensor.name] = np.array(numbers, np.float32).reshape([int(n) for n in tensor.shape[::-1]])
    return weights, rows


def _shape(path: str, values: Mapping[str, Any], n_rows: int) -> Shape:
    from .head import Shape

    def number(name: str, default: Any) -> Any:
        found = values.get(f"eagle3.{name}", default)
        if not isinstance(found, (int, float) if isinstance(default, float) else int):
            raise ValueError(f"{path} is a head whose {name} must be a number, and is {found!r:.60}")
        return found

    n_embd, n_head = int(number("embedding_length", 0)), int(number("attention.head_count", 0)) or 1
    return Shape(
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=int(number("attention.head_count_kv", n_head)),
        head_size=int(number("attention.key_length", n_embd // n_head)),
        n_ff=int(number("feed_forward_length", 0)),
        n_rows=n_rows,
        rope_base=float(number("rope.freq_base", 10_000.0)),
        epsilon=float(number("attention.layer_norm_rms_epsilon", 1e-5)),
        norm_before_residual=bool(values.get("eagle3.norm_before_residual", False)),
    )


def _require_known(
    path: str, values: Mapping[str, Any], weights: Mapping[str, npt.NDArray[np.float32]], shape: Shape
) -> None:
    """Refuse heads that the trainer would compute differently from llama.cpp.

    Raises:
        ValueError: the head is such a one, or is damaged.
    """
    name = os.path.basename(path)
    turned = values.get("eagle3.rope.dimension_count", shape.head_size)
    others = [key for key in _TURNED_OTHERWISE if values.get(key) not in (None, "none", 1.0)]
    if turned != shape.head_size or others or any("rope_" in tensor for tensor in weights):
        raise ValueError(f"the head {name} has a scaled or partial RoPE, and cannot be trained further")
    if values.get("eagle3.norm_before_fc"):
        raise ValueError(f"the head {name} norms the states before it reads them, and cannot be trained further")
    if "token_embd.weight" in weights:
        raise ValueError(f"the head {name} has token embeddings of its own, and cannot be trained further")
    is_whole = weights.keys() >= {f"{there}.weight" for there in _needed()}
    if shape.n_head_kv < 1 or shape.n_head % shape.n_head_kv or not is_whole or not _has_sizes(weights, shape):
        raise ValueError(f"the head {name} is damaged: its sizes or its tensors are not those of an EAGLE-3 head")


def _has_sizes(weights: Mapping[str, npt.NDArray[np.float32]], shape: Shape) -> bool:
    """Whether the matrices have the sizes that the metadata state: room for these is taken before they are read."""
    d, q, kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    sizes = {"attn_q": (q, 2 * d), "attn_k": (kv, 2 * d), "ffn_up": (shape.n_ff, d), "ffn_down": (d, shape.n_ff)}
    return all(weights[f"blk.0.{name}.weight"].shape == size for name, size in sizes.items())


def _needed() -> set[str]:
    from .file import NAMES

    return {*NAMES.values(), "fc"}
