"""An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840), as llama.cpp computes it: see its ``models/eagle3.cpp``.

torch is imported by whoever makes one: this module is imported only there.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn
from torch.nn import functional

STEPS = 3
"""Tokens that are drafted in training and in measuring."""
_FFN_GROUP = 32  # its size is a multiple, which the quantizers take


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes of a head.

    Attributes:
        n_embd: numbers in a state, the target's and its own.
        n_head: heads of attention.
        n_head_kv: of keys and values.
        head_size: numbers in each of them.
        n_ff: of the feed-forward layer.
        n_rows: tokens that it says.
        rope_base: of the turns by which places are told apart.
        epsilon: of its norms.
        norm_before_residual: whether the state that the layer adds to is the normed one.
    """

    n_embd: int
    n_head: int
    n_head_kv: int
    head_size: int
    n_ff: int
    n_rows: int
    rope_base: float = 10_000.0
    epsilon: float = 1e-5
    norm_before_residual: bool = False

    @classmethod
    def of(cls, target: Any, n_rows: int) -> Shape:
        """That of a head for a target: its attention's sizes, and a feed-forward layer of 8/3 of its width."""
        n_ff = -(-target.n_embd * 8 // 3 // _FFN_GROUP) * _FFN_GROUP
        return cls(target.n_embd, target.n_head, target.n_head_kv, target.head_size, n_ff, n_rows)

    @property
    def num_read(self) -> int:
        """How many states of the target it reads of a token."""
        return 3

    @property
    def num_trained(self) -> int:
        """How many weights are trained."""
        d, q, kv = self.n_embd, self.n_head * self.head_size, self.n_head_kv * self.head_size
        return 3 * d * d + 2 * d * (q + 2 * kv) + q * d + 3 * d * self.n_ff + 4 * d


class Norm(nn.Module):
    """Root mean square norm."""

    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self._epsilon = epsilon
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of the last dimension."""
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._epsilon) * self.weight


class AnyHead(nn.Module):
    """What learns to draft.

    At place p it gets the token p + 1 and what the target has computed at p, and says the token p + 2.

    Args:
        sizes: root mean square of each number of the target's states that it reads: they are divided by it, or the few
            that are huge hide all others. The file has it in the weights.
        output: the target's rows of the tokens that it says [n_rows, n_embd]; they stay as they are.
    """

    def __init__(self, sizes: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__()
        self.sizes: torch.Tensor
        self.output: torch.Tensor
        self.register_buffer("sizes", sizes)
        self.register_buffer("output", output, persistent=False)

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """What it makes of the target's states [batch, places, num_read * n_embd], before all else."""
        raise NotImplementedError

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """What the output matrix multiplies, step by step: in step s what is drafted behind s - 1 tokens.

        Args:
            embedded: of each place the token p + 1 [batch, places, n_embd].
            states: what `read` gives [batch, places, n_embd].
            steps: how many.

        Returns:
            Of each step [batch, places, n_embd]; of step s the first s - 1 places mean nothing.
        """
        raise NotImplementedError

    def logits(self, multiplied: torch.Tensor) -> torch.Tensor:
        """Of the tokens that it says."""
        return functional.linear(multiplied, self.output)


class Head(AnyHead):
    """One layer over three of the target's states.

    Args:
        shape: its sizes.
        sizes: see `AnyHead` [3 * n_embd]. The file has it in ``fc``.
        output: see `AnyHead`.
    """

    def __init__(self, shape: Shape, sizes: torch.Tensor, output: torch.Tensor) -> None:
        super().__init__(sizes, output)
        self.shape = shape
        d, q, kv = shape.n_embd, shape.n_head * shape.head_size, shape.n_head_kv * shape.head_size
        self.fc = matrix(d, 3 * d)
        self.q, self.k, self.v = matrix(q, 2 * d), matrix(kv, 2 * d), matrix(kv, 2 * d)
        self.o = matrix(d, q, 0.3)
        self.gate, self.up, self.down = matrix(shape.n_ff, d), matrix(shape.n_ff, d), matrix(d, shape.n_ff, 0.3)
        self.of_token, self.of_state, self.of_ffn, self.of_output = (Norm(d, shape.epsilon) for _ in range(4))

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """See the base class: llama.cpp's encoder."""
        return functional.linear(states / self.sizes, self.fc)

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """See the base class: training-time test (section 3.2 and figure 6).

        In step 1 each place has the target's state. In step s the state of place p is what step s - 1 made at p - 1,
        the only one that there is when s tokens are drafted. Such a place sees the target's states up to p - s + 1, and
        of the places behind that the ones of the steps before.
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
            states = functional.pad(x, (0, 0, 1, 0))[:, :-1]  # what is known one place later
        return found

    def _heads(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(*x.shape[:-1], -1, self.shape.head_size).transpose(1, 2)  # [batch, head, place, size]

    def _turned(self, x: torch.Tensor) -> torch.Tensor:
        """Neighbouring numbers are turned by their place: what llama.cpp calls the normal rope."""
        size = self.shape.head_size
        half = torch.arange(0, size, 2, device=x.device)
        angles = torch.arange(x.shape[2], device=x.device)[:, None] * self.shape.rope_base ** (-half / size)
        one, other = x[..., ::2].float(), x[..., 1::2].float()
        cos, sin = angles.cos(), angles.sin()
        return torch.stack((one * cos - other * sin, one * sin + other * cos), -1).flatten(-2)

    def _attended(self, q: torch.Tensor, keys: list[torch.Tensor], values: list[torch.Tensor]) -> torch.Tensor:
        """Attention of the last step's places."""
        step, places = len(keys) - 1, q.shape[2]
        group = q.shape[1] // keys[0].shape[1]
        k, v = ([x.repeat_interleave(group, 1) for x in xs] for xs in (keys, values))
        ahead = torch.ones(places, places, dtype=torch.bool, device=q.device).triu(1 - step)
        seen = (q @ k[0].transpose(-1, -2)).masked_fill(ahead, float("-inf"))
        own = []
        for later in range(1, step + 1):  # of that step the one place that is as far behind as the steps are apart
            back = step - later
            own.append((q * _moved(k[later], back)).sum(-1, keepdim=True))
        shares = (torch.cat([seen, *own], -1) / self.shape.head_size**0.5).softmax(-1)
        mixed = shares[..., :places] @ v[0].to(shares.dtype)
        for later in range(1, step + 1):
            mixed = mixed + shares[..., places + later - 1, None] * _moved(v[later], step - later)
        return mixed.transpose(1, 2).flatten(-2)


def _moved(x: torch.Tensor, places: int) -> torch.Tensor:
    return functional.pad(x, (0, 0, places, 0))[:, :, : x.shape[2]]


def matrix(rows: int, columns: int, gain: float = 1.0) -> nn.Parameter:
    """Random weights that make of numbers of the size 1 others of the size `gain`."""
    return nn.Parameter(torch.randn(rows, columns) * gain / columns**0.5)
