"""Medusa, Hydra and blockwise heads in PyTorch. They read only the target's final hidden state.

`cpp/heads/state_head.hpp` computes the same functions. Import this module only where PyTorch is installed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from .head import STEPS, Learner, Shape, matrix, moved

_SMALL = 0.1  # the initial gain of a matrix whose result is added to the state


def columns_of(kind: str, n_embd: int) -> list[int]:
    """For each drafted token, how many numbers its layer reads; empty for blockwise heads, whose layers are shared."""
    if kind == "blockwise":
        return []
    return [n_embd * (k + 2 if kind == "hydra" else 1) for k in range(STEPS)]


def shape_of(kind: str, n_embd: int, n_rows: int) -> Shape:
    """The shape of a head that can draft `n_rows` tokens."""
    wide = STEPS * n_embd
    num_trained = sum(2 * n_embd * (columns + 1) for columns in columns_of(kind, n_embd))
    return Shape(n_embd, n_rows, 1, num_trained or wide * (n_embd + wide) + 2 * wide)


class StateHead(Learner):
    """A head that computes, for each token that it drafts, a vector that is added to the target's final state.

    The target's output matrix makes logits of the sums.

    Args:
        kind: ``"medusa"``, ``"hydra"`` or ``"blockwise"``.
        sizes: the root mean square of each number of the state [n_embd].
        size_of_token: the root mean square of all numbers in the target's embeddings.
        output: the rows of the target's output matrix [n_rows, n_embd].
    """

    def __init__(self, kind: str, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(sizes, output)
        self.kind, self.n_embd = kind, output.shape[1]
        self.columns = columns_of(kind, self.n_embd)
        self.size_of_token: torch.Tensor
        self.register_buffer("size_of_token", torch.tensor(size_of_token))

    def read(self, states: torch.Tensor) -> torch.Tensor:
        """See the base class. The states are returned unchanged."""
        return states

    def forward(self, embedded: torch.Tensor, states: torch.Tensor, steps: int) -> list[torch.Tensor]:
        """See the base class. In step s, place p predicts from the target's state of place p - s + 1."""
        tokens = embedded / self.size_of_token
        normed, found = states / self.sizes, []
        for k in range(steps):
            seen = [moved(normed, k), *(moved(tokens, k - i) for i in range(k + 1))]
            found.append(moved(states, k) + self.added(k, seen))
        return found

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """The vector that the head adds to the state for one drafted token.

        Args:
            place: the number of the drafted token, from 0.
            seen: the inputs of the head: the state, the embedding of the text's last token, and those of the tokens
                drafted after it. They are `place` + 2 tensors [..., n_embd], divided by their root mean squares.

        Returns:
            A tensor [..., n_embd].
        """
        raise NotImplementedError

    def tensors(self) -> dict[str, torch.Tensor]:
        """The weights by their names in the file, without the output matrix."""
        raise NotImplementedError


class Layered(StateHead):
    """Medusa (Cai et al. 2024, arXiv 2401.10774, section 2.1.1) and Hydra (Ankner et al. 2024, arXiv 2402.05109).

    Medusa computes x + SiLU(W x + b) of the state x. Hydra's W also reads the embeddings of the text's last token
    and of the tokens drafted after it. The papers train an output matrix for each place. Here, a matrix A is trained
    instead, and the target's output matrix is applied to x + A x + SiLU(W x + b).
    """

    def __init__(self, kind: str, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(kind, sizes, size_of_token, output)
        d = self.n_embd
        self.curved = nn.ParameterList(matrix(d, columns, _SMALL) for columns in self.columns)
        self.straight = nn.ParameterList(matrix(d, columns, _SMALL) for columns in self.columns)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(d)) for _ in range(2 * STEPS))

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """See the base class."""
        x = torch.cat(list(seen), -1) if self.kind == "hydra" else seen[0]
        curved = functional.linear(x, self.curved[place], self.biases[2 * place])
        return functional.silu(curved) + functional.linear(x, self.straight[place], self.biases[2 * place + 1])

    def tensors(self) -> dict[str, torch.Tensor]:
        """See the base class. In the file, ``straight`` is A plus the identity."""
        found, d = {}, self.n_embd
        for k in range(STEPS):
            sizes = self.size_of_token.repeat(self.columns[k])
            sizes[:d] = self.sizes
            straight = self.straight[k] / sizes
            straight[:, :d] += torch.eye(d, device=straight.device)
            for name, weight in (("linear", self.curved[k] / sizes), ("straight", straight)):
                found[f"place.{k}.0.{name}.weight"] = weight
                found[f"place.{k}.0.{name}.bias"] = self.biases[2 * k + (name == "straight")]
        return found


class Blockwise(StateHead):
    """Blockwise parallel heads (Stern et al. 2018, arXiv 1811.03115, section 6 and figure 2).

    For the drafted token k, the state x becomes x + part k of (W2 relu(W1 x + b1) + b2).
    """

    def __init__(self, kind: str, sizes: torch.Tensor, size_of_token: float, output: torch.Tensor) -> None:
        super().__init__(kind, sizes, size_of_token, output)
        wide = STEPS * self.n_embd
        self.first, self.second = matrix(wide, self.n_embd), matrix(wide, wide, _SMALL)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(wide)) for _ in range(2))

    def added(self, place: int, seen: Sequence[torch.Tensor]) -> torch.Tensor:
        """See the base class."""
        d = self.n_embd
        part = slice(place * d, (place + 1) * d)
        hidden = functional.linear(seen[0], self.first, self.biases[0]).relu()
        return functional.linear(hidden, self.second[part], self.biases[1][part])

    def tensors(self) -> dict[str, torch.Tensor]:
        """See the base class."""
        weights = {"hidden.0.weight": self.first / self.sizes, "hidden.1.weight": self.second}
        return {**weights, **{f"hidden.{i}.bias": bias for i, bias in enumerate(self.biases)}}


CLASSES: dict[str, type[StateHead]] = {"medusa": Layered, "hydra": Layered, "blockwise": Blockwise}
"""The class of each kind."""
