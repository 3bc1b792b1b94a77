"""A small model that learns to predict several tokens in one decode: a parallel draft.

This is PARD (An et al. 2025, arXiv 2504.18583). Import this module only where PyTorch is installed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from specllama.models import PARALLEL, read_whole_header

from .head import Shape
from .sibling import Sibling, SiblingStart, read_sibling
from .target import Target

if TYPE_CHECKING:
    import numpy.typing as npt

    from .batches import Batch

PLACES = 8
"""The number of tokens that a draft learns to predict in one decode: the first from the text, the others from masks."""
_EVERY = 4
"""In training, masks follow only one place in this many, to save time. PARD drops masks at random for this."""
_CONTROL, _UNKNOWN = 3, 2  # llama.cpp's types of tokens


@dataclasses.dataclass(frozen=True)
class ParallelStart(SiblingStart):
    """A small model before it learns to predict several tokens.

    Attributes:
        mask: the token that stands at a place whose token is not known yet.
    """

    mask: int = 0

    def shape(self, n_rows: int) -> Shape:
        """See the base class."""
        shape = super().shape(n_rows)
        return dataclasses.replace(shape, width=shape.width * (1 + -(-PLACES // _EVERY)))

    def build(self, rows: npt.NDArray[np.int64], _sizes: torch.Tensor, _size_of_token: float) -> Parallel:
        """See the base class."""
        return Parallel(self, rows)


def read_parallel(path: str, target: Target) -> ParallelStart:
    """Read a small model that is to become a parallel draft for a target.

    Raises:
        ValueError: as for `read_sibling`, or no token of its vocabulary can be the mask.
        OSError: the file cannot be read.
    """
    start = read_sibling(path, target)
    values, _ = read_whole_header(path)
    fields = {field.name: getattr(start, field.name) for field in dataclasses.fields(start)}
    return ParallelStart(**{**fields, "kind": PARALLEL}, mask=_mask_of(path, values))


def _mask_of(path: str, values: Mapping[str, Any]) -> int:
    """The tokenizer's mask token; else the last control token without another use; else the last unknown token.

    Raises:
        ValueError: there is no such token.
    """
    named, count = values.get("tokenizer.ggml.mask_token_id"), len(values["tokenizer.ggml.tokens"])
    if isinstance(named, int) and 0 <= named < count:
        return named
    types = np.asarray(values.get("tokenizer.ggml.token_type", ()))
    used = [
        value for name, value in values.items() if name.startswith("tokenizer.ggml.") and name.endswith("_token_id")
    ]
    for kind in (_CONTROL, _UNKNOWN):
        free = [int(token) for token in np.flatnonzero(types == kind) if token not in used or kind == _UNKNOWN]
        if free:
            return free[-1]
    raise ValueError(f"{path} has no control token that could stand for a token that is not known: take another model")


class Parallel(Sibling):
    """The small model, with masks behind the text.

    A mask sees the text up to the place that it follows, and the masks between. So the k-th token of a draft is
    predicted by the k-th place behind the text, and depends on no drafted token.

    Args:
        start: the model before its training.
        rows: the tokens that are learned.
    """

    learned_steps = PLACES

    def __init__(self, start: ParallelStart, rows: npt.NDArray[np.int64]) -> None:
        super().__init__(start, rows)
        self._mask = start.mask

    def drafted(self, batch: Batch, steps: int) -> list[torch.Tensor]:
        """See the base class. Step s predicts each place as the s-th place of a draft would."""
        tokens, last = batch.tokens, self._last(batch)
        count, masks = tokens.shape[1], steps - 1
        places, ahead = torch.arange(count, device=tokens.device), torch.arange(1, masks + 1, device=tokens.device)
        positions = torch.cat([places, (last[:, None] + ahead).flatten()])
        known = torch.cat([places, last.repeat_interleave(masks)])  # the last place of the text that each place sees
        is_mask = torch.arange(len(positions), device=tokens.device) >= count
        of_text = ~is_mask & (positions <= known[:, None])
        of_draft = is_mask & is_mask[:, None] & (known == known[:, None]) & (positions <= positions[:, None])
        masked = tokens.new_full((len(tokens), len(last) * masks), self._mask)
        found = self.states(torch.cat([tokens, masked], 1), positions, of_text | of_draft)
        behind = found[:, count:].unflatten(1, (len(last), masks))
        steps_found = [found[:, :count]]
        for k in range(masks):
            inside = last + k + 1 < count
            said = torch.zeros_like(steps_found[0])
            said[:, last[inside] + k + 1] = behind[:, inside, k]
            steps_found.append(said)
        return steps_found

    def learned(self, batch: Batch, step: int) -> torch.Tensor:
        """See the base class."""
        found = super().learned(batch, step)
        if step == 0:
            return found
        last = self._last(batch) + step
        has_mask = torch.zeros_like(found)
        has_mask[:, last[last < found.shape[1]]] = True
        return found & has_mask

    def _last(self, batch: Batch) -> torch.Tensor:
        """The places that masks follow: all for measuring; in training one in `_EVERY`, with an offset by the batch."""
        count = batch.tokens.shape[1]
        if not self.training:
            return torch.arange(count, device=batch.tokens.device)
        answers = batch.learned.any(0).nonzero()[:, 0]
        return answers[int(batch.tokens.sum()) % _EVERY :: _EVERY]
