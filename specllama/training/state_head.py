"""Medusa, Hydra and blockwise heads, as `cpp/heads/state_head.hpp` computes them: they read the final state alone.

torch is imported by whoever makes one: this module is imported only there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from .head import STEPS, AnyHead, Shape, matrix

_SMALL = 0.1  # of a matrix that is added to what is there


@dataclasses.dataclass(frozen=True)
class StateShape:
    """The sizes of such a head.

    Attributes:
        kind: ``"medusa"``, ``"hydra"`` or ``"blockwise"``.
        n_embd: numbers in a state.
        n_rows: tokens that it says.
    """

    kind: str
    n_embd: int
    n_rows: int

    @property
    def columns(self) -> list[int]:
        """Numbers that the layer of each place reads; of blockwise none has one."""
        if self.kind == "blockwise":
            return []
        return [self.n_embd * (k + 2 if self.kind == "hydra" else 1) for k in range(STEPS)]

    @property
    def num_read(self) -> int:
        """How many states of the target it reads of a token."""
        return 1

    @property
    def num_trained(self) -> int:
        """How many weights are trained."""
        wide = STEPS * self.n_embd
        if self.kind == "blockwise":
            return wide * (self.n_embd + wide) + 2 * wide
        return sum(2 * self.n_embd * (columns + 1) for columns in self.columns)


AnyShape = Shape | StateShape
"""Of a head of any kind."""


class StateHead(AnyHead):
    """A layer for each place over the target's final state, which its output matrix multiplies.

    Args:
        shape: its sizes.
        sizes: see `AnyHead` [n_embd].
        size_of_token: the same of all numbers of the target's embeddings together.
        output: see `AnyHead`.
    """

    def __init__(self, shape: StateShape, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(sizes, output)
        self.shape = shape
        self.size_of_token: torch.Tensor
        self.register_buffer("size_of_token", torch.tensor(size_of_token))

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """See the base class: what the output matrix multiplies is read as it is."""
        return states

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """See the base class: place p has in step s what is said of the state of p - s + 1."""
        tokens = embedded / self.size_of_token
        normed, found = states / self.sizes, []
        for k in range(steps):
            seen = [_moved(normed, k), *(_moved(tokens, k - i) for i in range(k + 1))]
            found.append(_moved(states, k) + self.added(k, seen))
        return found

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """What a place adds to the state.

        Args:
            place: numbered from 0.
            seen: the state, the text's last token, and those drafted behind it, each divided by its size
                [place + 2][..., n_embd].
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """Its weights by their names in the file, but for the output matrix."""
        raise NotImplementedError


class Layered(StateHead):
    """Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.1.1) and Hydra (Ankner et al. 2024, arXiv 2402.05109).

    x + SiLU(W x + b) of the state x, and of Hydra with the embeddings behind it. In the papers an output matrix of its
    own is trained for each place. Here a matrix of the width stands before the target's: x + A x + SiLU(W x + b).
    """

    def __init__(self, shape: StateShape, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(shape, sizes, size_of_token, output)
        d = shape.n_embd
        self.curved = nn.ParameterList(matrix(d, columns, _SMALL) for columns in shape.columns)
        self.straight = nn.ParameterList(matrix(d, columns, _SMALL) for columns in shape.columns)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in range(2 * STEPS))

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """See the base class."""
        x = torch.cat(list(seen), -1) if self.shape.kind == "hydra" else seen[0]
        curved = functional.linear(x, self.curved[place], self.biases[2 * place])
        return functional.silu(curved) + functional.linear(x, self.straight[place], self.biases[2 * place + 1])

    def tensors(self) -> dict[str, torch.Tensor]:
        """See the base class. What the state goes through unchanged is in ``straight`` there."""
        found, d = {}, self.shape.n_embd
        for k in range(STEPS):
            sizes = self.size_of_token.repeat(self.shape.columns[k])
            sizes[:d] = self.sizes
            straight = self.straight[k] / sizes
            straight[:, :d] += torch.eye(d, device=straight.device)
            for name, weight in (("linear", self.curved[k] / sizes), ("straight", straight)):
                found[f"place.{k}.0.{name}.weight"] = weight
                found[f"place.{k}.0.{name}.bias"] = self.biases[2 * k + (name == "straight")]
        return found


class Blockwise(StateHead):
    """Blockwise parallel heads (Stern et al. 2018, arXiv 1811.03115, section 6 and figure 2).

    At place k the state x becomes x + part k of W2 relu(W1 x + b1) + b2.
    """

    def __init__(self, shape: StateShape, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(shape, sizes, size_of_token, output)
        wide = STEPS * shape.n_embd
        self.first, self.second = matrix(wide, shape.n_embd), matrix(wide, wide, _SMALL)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(wide)) for _ in range(2))

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """See the base class."""
        d = self.shape.n_embd
        own = slice(place * d, (place + 1) * d)
        hidden = functional.linear(seen[0], self.first, self.biases[0]).relu()
        return functional.linear(hidden, self.second[own], self.biases[1][own])

    def tensors(self) -> dict[str, torch.Tensor]:
        """See the base class."""
        weights = {"hidden.0.weight": self.first / self.sizes, "hidden.1.weight": self.second}
        return {**weights, **{f"hidden.{i}.bias": bias for i, bias in enumerate(self.biases)}}


CLASSES: dict[str, type[StateHead]] = {"medusa": Layered, "hydra": Layered, "blockwise": Blockwise}
"""Of each kind."""


def _moved(x: torch.Tensor, places: int) -> torch.Tensor:
    return functional.pad(x, (0, 0, places, 0))[:, : x.shape[1]]
