"""An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840) in PyTorch, as llama.cpp's ``models/eagle3.cpp`` computes it.

Import this module only where PyTorch is installed.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from .batches import Batch
    from .target import Target

STEPS = 3
"""The number of tokens in a draft, in training and in measuring."""
NAMES = {
    "q": "blk.0.attn_q",
    "k": "blk.0.attn_k",
    "v": "blk.0.attn_v",
    "o": "blk.0.attn_output",
    "gate": "blk.0.ffn_gate",
    "up": "blk.0.ffn_up",
    "down": "blk.0.ffn_down",
    "of_token.weight": "blk.0.attn_norm",
    "of_state.weight": "blk.0.attn_norm_2",
    "of_ffn.weight": "blk.0.ffn_norm",
    "of_output.weight": "output_norm",
}
"""The name of each weight of an EAGLE-3 head here, and its name in the file."""
_FFN_GROUP = 32  # the size of the feed-forward layer is a multiple of this, a block of quantized types


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a head or of a small model that is trained.

    Attributes:
        n_embd: how many numbers the head's states have.
        n_rows: how many tokens are learned.
        num_read: how many of the target's states the head reads for each token.
        num_trained: the number of weights that are trained.
        num_frozen: the number of weights that do not learn, besides the output rows.
        width: how many numbers are kept for each token until the gradients are computed; 0 if few enough to ignore.
    """

    n_embd: int
    n_rows: int
    num_read: int
    num_trained: int
    num_frozen: int = 0
    width: int = 0


@dataclasses.dataclass(frozen=True)
class EagleShape:
    """The sizes of an EAGLE-3 head.

    Attributes:
        n_embd: how many numbers a state has, the target's and the head's.
        n_head: the number of attention heads.
        n_head_kv: the number of heads for keys and values.
        head_size: how many numbers an attention head has.
        n_ff: the size of the feed-forward layer.
        rope_base: the base of the rotary positions.
        epsilon: the epsilon of the norms.
        norm_before_residual: whether the layer's output is added to the normed state, and not to the state itself.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    rope_base: float = 10_000.0
    epsilon: float = 1e-5
    norm_before_residual: bool = False

    @classmethod
    def of(cls, target: Target) -> EagleShape:
        """The sizes of a new head: the target's attention, and a feed-forward layer of 8/3 of the target's width."""
        n_ff = -(-target.n_embd * 8 // 3 // _FFN_GROUP) * _FFN_GROUP
        return cls(target.n_embd, target.n_head, target.n_head_kv, target.head_size, n_ff)

    def shape(self, n_rows: int) -> Shape:
        """The shape of a head that can draft `n_rows` tokens."""
        d, q, kv = self.n_embd, self.n_head * self.head_size, self.n_head_kv * self.head_size
        return Shape(d, n_rows, 3, 3 * d * d + 2 * d * (q + 2 * kv) + q * d + 3 * d * self.n_ff + 4 * d)


class Norm(nn.Module):
    """A root mean square norm over the last dimension."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self._epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Norm `x` [..., size]."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._epsilon) * self.weight


class Learner(nn.Module):
    """The base class of the heads and small models that are trained.

    At place p a head reads token p + 1 and the target's states of token p, and predicts token p + 2.

    Args:
        sizes: the root mean square of each number of the states. States are divided by these, since a few huge
            numbers would hide all others. In the file the division is part of the weights.
        output: the rows of the target's output matrix for the tokens that the head can draft [n_rows, n_embd]. They are
            not trained.
    """

    def __init__(self, sizes: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__()
        self.sizes: torch.Tensor
        self.output: torch.Tensor
        self.register_buffer("sizes", sizes)
        self.register_buffer("output", output, persistent=False)

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """Compress the target's states [batch, places, num_read * n_embd] to [batch, places, n_embd]."""
        raise NotImplementedError

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """The states from which each step's logits are computed. Step s drafts the s-th token after a place's text.

        Args:
            embedded: the embedding of token p + 1 at each place p [batch, places, n_embd].
            states: the result of `read` [batch, places, n_embd].
            steps: the number of steps.

        Returns:
            For each step, a tensor [batch, places, n_embd]. In step s the first s - 1 places have no meaning.
        """
        raise NotImplementedError

    learned_steps = STEPS
    """How many steps are learned. It is 1 if a draft computes all its steps alike."""

    def drafted(self, batch: Batch, steps: int) -> list[torch.Tensor]:
        """The result of `forward` for a batch."""
        return self(batch.embedded, self.read(batch.states), steps)

    def learned(self, batch: Batch, step: int) -> torch.Tensor:
        """The places whose predictions in a step, from 0, are learned and measured [batch, places]."""
        found = batch.learned.clone()
        found[:, :step] = False
        return found

    def logits(self, multiplied: torch.Tensor) -> torch.Tensor:
        """The logits [..., n_rows] of the tokens that the head can draft."""
        return functional.linear(multiplied, self.output)


class EagleHead(Learner):
    """The layer of an EAGLE-3 head, which reads three of the target's states.

    Args:
        shape: the sizes of the head.
        sizes: the root mean square of each number of the states [3 * n_embd]. In the file they are part of ``fc``.
        output: the rows of the target's output matrix [n_rows, n_embd].
    """

    def __init__(self, shape: EagleShape, sizes: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__(sizes, output)
        self.shape = shape
        d, q, kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
        self.fc = matrix(d, 3 * d)
        self.q, self.k, self.v = matrix(q, 2 * d), matrix(kv, 2 * d), matrix(kv, 2 * d)
        self.o = matrix(d, q, 0.3)
        self.gate, self.up, self.down = matrix(shape.n_ff, d), matrix(shape.n_ff, d), matrix(d, shape.n_ff, 0.3)
        self.of_token, self.of_state, self.of_ffn, self.of_output = (Norm(d, shape.epsilon) for _ in range(4))

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """See the base class. llama.cpp computes this in its encoder."""
        return functional.linear(states / self.sizes, self.fc)

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """See the base class. This is the paper's training-time test (section 3.2 and figure 6).

        In step 1 each place has the target's state. In step s the state of place p is the result of step s - 1 at place
        p - 1, as in drafting, where no later state of the target is known. Then place p attends to the target's states
        up to place p - s + 1, and for the places after that to the results of earlier steps.
        """
        token, found = self.of_token(embedded), []
        keys: list[torch.Tensor] = []
        values: list[torch.Tensor] = []
        for _ in range(steps):
            normed = self.of_state(states)
            both = torch.cat([token, normed], -1)
            keys.append(self._turned(self._heads(functional.linear(both, self.k))))
            values.append(self._heads(functional.linear(both, self.v)))
            q = self._turned(self._heads(functional.linear(both, self.q)))
            before = normed if self.shape.norm_before_residual else states
            x = before + functional.linear(self._attended(q, keys, values), self.o)
            y = self.of_ffn(x)
            gated = functional.silu(functional.linear(y, self.gate)) * functional.linear(y, self.up)
            x = x + functional.linear(gated, self.down)
            found.append(self.of_output(x))
            states = functional.pad(x, (0, 0, 1, 0))[:, :-1]  # a result is the state of the next place in the next step
        return found

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.shape.head_size).transpose(1, 2)  # [batch, head, place, size]

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Rotate pairs of neighbouring numbers by their place. llama.cpp calls this the normal RoPE."""
        size = self.shape.head_size
        half = torch.arange(0, size, 2, device=x.device)
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * self.shape.rope_base ** (-half / size)
        one, other = x[..., ::2].float(), x[..., 1::2].float()
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)

    def _attended(self, q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        """The attention of the last step's places."""
        step, places = len(keys) - 1, q.shape[2]
        group = q.shape[1] // keys[0].shape[1]
        k, v = ([x.repeat_interleave(group, 1) for x in xs] for xs in (keys, values))
        ahead = torch.ones(places, places, dtype=torch.bool, device=q.device).triu(1 - step)
        seen = (q @ k[0].transpose(-1, -2)).masked_fill(ahead, float("-inf"))
        drafted = []  # the scores of the keys of later steps
        # Of the keys of each later step, a place sees only the one that is `back` places before it.
        for later in range(1, step + 1):
            back = step - later
            drafted.append((q * moved(k[later], back)).sum(-1, keepdim=True))
        shares = (torch.cat([seen, *drafted], -1) / self.shape.head_size**0.5).softmax(-1)
        mixed = shares[..., :places] @ v[0].to(shares.dtype)
        for later in range(1, step + 1):
            mixed = mixed + shares[..., places + later - 1, None] * moved(v[later], step - later)
        return mixed.transpose(1, 2).flatten(-2)


def moved(x: torch.Tensor, places: int) -> torch.Tensor:
    """Move all places [..., places, n] back by some places. The first ones become zeros."""
    return functional.pad(x, (0, 0, places, 0))[..., : x.shape[-2], :]


def matrix(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    """Random weights [rows, columns]. For inputs with a standard deviation of 1, that of the outputs is `gain`."""
    return nn.Parameter(torch.randn(rows, columns) * gain / columns**0.5)
