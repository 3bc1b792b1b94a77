"""What a training starts from: a new head, or a head that is trained further and is read from its file."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from specllama.models import EAGLE3, OF_THE_FINAL_STATE, Eagle3File, read_head, read_whole_header

from .target import Target
from .torch_here import require_gguf_package

if TYPE_CHECKING:
    import torch

    from .head import EagleHead, EagleShape, Learner, Shape

# Metadata of those rotary positions (RoPE) that the trainer cannot compute.
_TURNED_OTHERWISE = ("eagle3.rope.scaling.type", "eagle3.rope.scaling.factor", "eagle3.rope.scale_linear")


@dataclasses.dataclass(frozen=True)
class Start:
    """What a training starts from: a new head, whose weights are random. All other starts are subclasses.

    Attributes:
        target: the target, with the layers whose inputs are read.
        kind: one of `TRAINED`.
    """

    target: Target
    kind: str

    rate = 1.0
    """The factor of the learning rates."""

    @property
    def rows(self) -> npt.NDArray[np.int64] | None:
        """The tokens that can be drafted, as ids of the target [n_rows]; None if any can."""
        return None

    @property
    def n_vocab(self) -> int:
        """How many of the target's tokens the draft knows, from the first on."""
        return self.target.n_vocab

    def shape(self, n_rows: int) -> Shape:
        """The sizes of the draft, if `n_rows` tokens are learned."""
        from .head import EagleShape
        from .state_head import shape_of

        if self.kind in OF_THE_FINAL_STATE:
            return shape_of(self.kind, self.target.n_embd, n_rows)
        return EagleShape.of(self.target).shape(n_rows)

    def build(self, rows: npt.NDArray[np.int64], sizes: torch.Tensor, size_of_token: float) -> Learner:
        """The draft in PyTorch, before its training.

        Args:
            rows: the tokens that are learned.
            sizes: the root mean square of each number of the target's states, as for `Learner`.
            size_of_token: the root mean square of all numbers in the target's embeddings.
        """
        import torch

        from .head import EagleHead, EagleShape
        from .state_head import CLASSES

        output = torch.from_numpy(self.target.output_rows(rows))
        if self.kind in OF_THE_FINAL_STATE:
            return CLASSES[self.kind](self.kind, sizes, size_of_token, output)
        head = EagleHead(EagleShape.of(self.target), sizes, output)
        with torch.no_grad():
            head.of_output.weight.copy_(torch.from_numpy(self.target.output_norm()))
        return head


@dataclasses.dataclass(frozen=True)
class Further(Start):
    """An EAGLE-3 head that is trained further.

    Attributes:
        sizes: the head's sizes.
        tokens: the tokens that the head can draft, as ids of the target [n_rows].
        weights: the head's weights by their names in the file.
    """

    sizes: EagleShape
    tokens: npt.NDArray[np.int64]
    weights: Mapping[str, npt.NDArray[np.float32]] = dataclasses.field(repr=False)

    rate = 0.25

    @property
    def rows(self) -> npt.NDArray[np.int64]:
        """See the base class."""
        return self.tokens

    def shape(self, _n_rows: int) -> Shape:
        """See the base class."""
        return self.sizes.shape(len(self.tokens))

    def build(self, _rows: npt.NDArray[np.int64], sizes: torch.Tensor, _size_of_token: float) -> EagleHead:
        """See the base class."""
        import torch

        from .head import NAMES, EagleHead

        output = self.weights.get("output.weight")
        output = self.target.output_rows(self.tokens) if output is None else output
        head = EagleHead(self.sizes, sizes, torch.from_numpy(output))
        named = {here: torch.from_numpy(self.weights[f"{there}.weight"]) for here, there in NAMES.items()}
        named["fc"] = torch.from_numpy(self.weights["fc.weight"]) * sizes
        head.load_state_dict({**named, "sizes": sizes})
        return head


def read_further(path: str, target: Target) -> Further:
    """Read a head that is to be trained further.

    Args:
        path: the head's file.
        target: the target.

    Raises:
        ValueError: the file is no EAGLE-3 head, is for another target, or has a form that cannot be trained here.
        OSError: the file cannot be read.
    """
    with open(path, "rb"):  # raises an OSError with the reason, which read_head() does not
        found = read_head(path)
    if not isinstance(found, Eagle3File):
        raise ValueError(f"{path} is no EAGLE-3 head, and only such a head can be trained further")
    found.require_fit(n_layer=target.n_layer, n_embd=target.n_embd, n_vocab=target.n_vocab)
    values, _ = read_whole_header(path)
    weights, rows = _weights(path, target)
    sizes = _sizes(path, values)
    _require_known(path, values, weights, sizes)
    target = dataclasses.replace(target, layers=tuple(found.layers))
    return Further(target, EAGLE3, sizes, rows, weights)


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


def _sizes(path: str, values: Mapping[str, Any]) -> EagleShape:
    from .head import EagleShape

    def number(name: str, default: Any) -> Any:
        found = values.get(f"eagle3.{name}", default)
        if not isinstance(found, (int, float) if isinstance(default, float) else int):
            raise ValueError(f"{path} is a head whose {name} must be a number, and is {found!r:.60}")
        return found

    n_embd, n_head = int(number("embedding_length", 0)), int(number("attention.head_count", 0)) or 1
    return EagleShape(
        n_embd=n_embd,
        n_head=n_head,
        n_head_kv=int(number("attention.head_count_kv", n_head)),
        head_size=int(number("attention.key_length", n_embd // n_head)),
        n_ff=int(number("feed_forward_length", 0)),
        rope_base=float(number("rope.freq_base", 10_000.0)),
        epsilon=float(number("attention.layer_norm_rms_epsilon", 1e-5)),
        norm_before_residual=bool(values.get("eagle3.norm_before_residual", False)),
    )


def _require_known(
    path: str, values: Mapping[str, Any], weights: Mapping[str, npt.NDArray[np.float32]], shape: EagleShape
) -> None:
    """Refuse heads that the trainer would compute differently from llama.cpp.

    Raises:
        ValueError: the trainer would compute the head differently, or the head is damaged.
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


def _has_sizes(weights: Mapping[str, npt.NDArray[np.float32]], shape: EagleShape) -> bool:
    """Whether the matrices have the sizes that the metadata state. Memory is allocated by the stated sizes."""
    d, q, kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
    sizes = {"attn_q": (q, 2 * d), "attn_k": (kv, 2 * d), "ffn_up": (shape.n_ff, d), "ffn_down": (d, shape.n_ff)}
    return all(weights[f"blk.0.{name}.weight"].shape == size for name, size in sizes.items())


def _needed() -> set[str]:
    from .head import NAMES

    return {*NAMES.values(), "fc"}
