"""A small model that learns to write as its target does, with low-rank additions to its matrices (LoRA).

This is distillation for speculative decoding (Zhou et al. 2023, arXiv 2310.08461; LoRA: Hu et al. 2021, arXiv
2106.09685). Import this module only where PyTorch is installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional

from specllama.models import SIBLING, architecture_of, largest, read_whole_header, text_in, tokens_in, whole_number

from .head import Learner, Shape
from .start import Start
from .target import Target, read_target

if TYPE_CHECKING:
    from .batches import Batch

RANK = 32
"""The rank of the additions."""
_SCALE = 2.0  # the factor of the additions
MATRICES = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
"""The matrices of a layer, all of which learn."""
_OTHERS = ("attn_norm", "ffn_norm", "attn_q_norm", "attn_k_norm")  # the last two are in some models only
_TURNS_HALVES = {"llama": False, "qwen2": True, "qwen3": True}
"""By architecture, whether rotary positions turn number i with number i + half, and not with its neighbour."""
_USED = frozenset({"token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight"})


@dataclasses.dataclass(frozen=True)
class SiblingStart(Start):
    """A small model before its training. It reads none of the target's states.

    Attributes:
        model: the description of the small model.
        epsilon: the epsilon of the model's norms.
        rope_base: the base of the model's rotary positions.
    """

    model: Target
    epsilon: float
    rope_base: float

    @property
    def n_vocab(self) -> int:
        """See the base class."""
        return min(self.target.n_vocab, self.model.n_vocab)

    def shape(self, n_rows: int) -> Shape:
        """See the base class."""
        model = self.model
        matrices = [model.shape_of(f"blk.{i}.{name}.weight") for i in range(model.n_layer) for name in MATRICES]
        (n_ff, _) = model.shape_of("blk.0.ffn_gate.weight")
        return Shape(
            n_embd=model.n_embd,
            n_rows=n_rows,
            num_read=0,
            num_trained=sum(RANK * (rows + columns) for rows, columns in matrices),
            num_frozen=sum(rows * columns for rows, columns in matrices) + model.n_vocab * model.n_embd // 2,
            width=10 * model.n_embd + 4 * n_ff,
        )

    def build(self, rows: npt.NDArray[np.int64], _sizes: torch.Tensor, _size_of_token: float) -> Sibling:
        """See the base class."""
        return Sibling(self, rows)


def read_sibling(path: str, target: Target) -> SiblingStart:
    """Read a small model that is to learn from a target.

    Raises:
        ValueError: the model's architecture cannot be trained here, or the model is damaged, is larger than the target
            or has other tokens.
        OSError: the file cannot be read.
    """
    model = read_target(path)
    values, _ = read_whole_header(path)
    architecture = architecture_of(values)
    known = {f"blk.{i}.{name}.weight" for i in range(model.n_layer) for name in (*MATRICES, *_OTHERS)}
    known |= {f"blk.{i}.{name}.bias" for i in range(model.n_layer) for name in MATRICES[:3]}
    if architecture not in _TURNS_HALVES or (unknown := sorted(model.names - known - _USED)):
        why = f"the architecture {architecture!r}" if architecture not in _TURNS_HALVES else f"the tensor {unknown[0]}"
        raise ValueError(
            f"{path} has {why}, which cannot be trained: take a small model of the architectures "
            f"{', '.join(_TURNS_HALVES)}"
        )
    scaling = text_in(values, f"{architecture}.rope.scaling.type") or "none"
    turned = whole_number(values, "rope.dimension_count") or model.head_size
    if scaling != "none" or turned != model.head_size:
        raise ValueError(f"{path} has rotary positions that are scaled or partial, which cannot be trained")
    tokens, of_target = tokens_in(values), tokens_in(read_whole_header(target.path)[0])
    common = min(len(tokens), len(of_target))
    if tokens[:common] != of_target[:common]:
        raise ValueError(f"{path} has other tokens than {target.path}: take a small model of the target's family")
    if model.num_weights > target.num_weights:
        raise ValueError(
            f"{path} has {model.num_weights:,} weights, and {target.path} has {target.num_weights:,}: a draft must be "
            "smaller than the model that it drafts for, at most a third of it (--draft)"
        )
    epsilon = float(largest(values, "attention.layer_norm_rms_epsilon") or 1e-5)
    target = dataclasses.replace(target, layers=())
    return SiblingStart(target, SIBLING, model, epsilon, float(largest(values, "rope.freq_base") or 10_000.0))


class Lora(nn.Module):
    """A matrix that does not learn, with a low-rank addition that is trained.

    Args:
        weight: the matrix [rows, columns].
        bias: the vector that is added to the product [rows]; None for no vector.
    """

    def __init__(self, weight: npt.NDArray[np.float32], bias: npt.NDArray[np.float32] | None) -> None:
        super().__init__()
        self.weight: torch.Tensor
        self.bias: torch.Tensor | None
        self.register_buffer("weight", torch.from_numpy(weight), persistent=False)
        self.register_buffer("bias", None if bias is None else torch.from_numpy(bias), persistent=False)
        rows, columns = weight.shape
        self.down = nn.Parameter(torch.randn(RANK, columns) / columns**0.5)
        self.up = nn.Parameter(torch.zeros(rows, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product of `x` [..., columns]."""
        added = functional.linear(functional.linear(x, self.down), self.up)
        return functional.linear(x, self.weight, self.bias) + _SCALE * added

    def merged(self) -> torch.Tensor:
        """The matrix with its addition [rows, columns]."""
        return self.weight + _SCALE * self.up.detach() @ self.down.detach()


class Layer(nn.Module):
    """A layer of the small model: attention, and a feed-forward layer with a gate.

    Args:
        start: the small model.
        number: the number of the layer.
    """

    def __init__(self, start: SiblingStart, number: int) -> None:
        super().__init__()
        model, name = start.model, f"blk.{number}."
        self._n_head, self._head_size, self._epsilon = model.n_head, model.head_size, start.epsilon
        for each in _OTHERS:
            found = model.vector(f"{name}{each}.weight")
            self.register_buffer(each, None if found is None else torch.from_numpy(found), persistent=False)
        self.matrices = nn.ModuleDict(
            {each: Lora(model.matrix(f"{name}{each}.weight"), model.vector(f"{name}{each}.bias")) for each in MATRICES}
        )

    def forward(
        self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, halves: bool, visible: torch.Tensor | None
    ) -> torch.Tensor:
        """The states after the layer, from the states before it [batch, places, n_embd]."""
        seen = self._normed(x, self.attn_norm)
        q, k, v = (self._heads(self.matrices[name](seen)) for name in MATRICES[:3])
        q, k = (
            _turned(one if norm is None else self._normed(one, norm), cos, sin, halves)
            for one, norm in ((q, self.attn_q_norm), (k, self.attn_k_norm))
        )
        group = self._n_head // k.shape[1]
        k, v = (one.repeat_interleave(group, 1) for one in (k, v))
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=visible is None)
        x = x + self.matrices["attn_output"](mixed.transpose(1, 2).flatten(-2))
        seen = self._normed(x, self.ffn_norm)
        gated = functional.silu(self.matrices["ffn_gate"](seen)) * self.matrices["ffn_up"](seen)
        return x + self.matrices["ffn_down"](gated)

    def _normed(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x.float(), x.shape[-1:], weight, self._epsilon)

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.unflatten(-1, (-1, self._head_size)).transpose(1, 2)


class Sibling(Learner):
    """The small model. Only the additions to its matrices are trained.

    Args:
        start: the model before its training.
        rows: the tokens that are learned.
    """

    learned_steps = 1  # a draft's later tokens are computed like the first one

    def __init__(self, start: SiblingStart, rows: npt.NDArray[np.int64]) -> None:
        super().__init__(torch.zeros(0), torch.from_numpy(start.model.output_rows(rows)))
        self.start = start
        model = start.model
        self._halves = _TURNS_HALVES[model.architecture]
        embeddings = model.embeddings(np.arange(model.n_vocab)).astype(np.float16)
        self.embeddings: torch.Tensor
        self.norm: torch.Tensor
        self.turns: torch.Tensor
        self.register_buffer("embeddings", torch.from_numpy(embeddings), persistent=False)
        self.register_buffer("norm", torch.from_numpy(model.output_norm()), persistent=False)
        turns = start.rope_base ** (-np.arange(0, model.head_size, 2, dtype=np.float64) / model.head_size)
        factors = model.vector("rope_freqs.weight")
        turns = turns if factors is None else turns / factors
        self.register_buffer("turns", torch.from_numpy(turns.astype(np.float32)), persistent=False)
        self.layers = nn.ModuleList(Layer(start, number) for number in range(model.n_layer))

    def states(
        self, tokens: torch.Tensor, positions: torch.Tensor | None = None, visible: torch.Tensor | None = None
    ) -> torch.Tensor:
        """The final states, after the last norm.

        Args:
            tokens: the texts [batch, places].
            positions: the position of each place [places]; None for 0, 1, 2, ...
            visible: which places each place attends to [places, places]; None for itself and all before it.

        Returns:
            A tensor [batch, places, n_embd].
        """
        # The target's vocabulary may have more tokens at its end. These are read as the small model's last token.
        x = self.embeddings[tokens.clamp(max=len(self.embeddings) - 1)].float()
        at = torch.arange(tokens.shape[1], device=x.device) if positions is None else positions
        angles = at[:, None] * self.turns
        cos, sin = angles.cos(), angles.sin()
        for layer in self.layers:
            x = layer(x, cos, sin, self._halves, visible)
        return functional.rms_norm(x.float(), x.shape[-1:], self.norm, self.start.epsilon)

    def drafted(self, batch: Batch, steps: int) -> list[torch.Tensor]:
        """See the base class. The text is read as it is, so the logits of a place are equal in all steps."""
        return [self.states(batch.tokens)] * steps

    def merged(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """The names in the file of all matrices that have learned, and the matrices."""
        for number, layer in enumerate(self.layers):
            for name in MATRICES:
                weight = layer.matrices[name].merged()
                yield f"blk.{number}.{name}.weight", weight.float().cpu().numpy()


def _turned(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, halves: bool) -> torch.Tensor:
    """Rotary positions of `x` [batch, heads, places, head_size]."""
    x = x.float()
    one, other = x.chunk(2, -1) if halves else (x[..., ::2], x[..., 1::2])
    turned = (one * cos - other * sin, one * sin + other * cos)
    return torch.cat(turned, -1) if halves else torch.stack(turned, -1).flatten(-2)
