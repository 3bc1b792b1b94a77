"""The loss of a training, computed without the logits of all places at once."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from .batches import Batch
from .head import Learner

_PLACES = 512  # how many places have their logits in memory together


def loss_of(head: Learner, batch: Batch) -> torch.Tensor:
    """The cross-entropy between the head's distribution and the target's, which is cut to its most likely tokens.

    The loss is the mean of all steps, with equal weights. It differs from the Kullback-Leibler divergence by the
    entropy of the target's distribution, which does not depend on the head's weights.
    """
    total = batch.embedded.new_zeros(())
    for step, multiplied in enumerate(head.drafted(batch, head.learned_steps)):
        learned = head.learned(batch, step)
        entropy = _CrossEntropy.apply(multiplied[learned], head.output, batch.likely[learned], batch.shares[learned])
        total = total + entropy / max(1, int(learned.sum()))
    return total / head.learned_steps


class _CrossEntropy(torch.autograd.Function):
    """The sum of the cross-entropies of places, whose gradient is computed in the same pass.

    The logits of a batch would be its largest tensors by far, and autograd would keep several of their size.
    """

    @staticmethod
    def forward(
        ctx: Any, multiplied: torch.Tensor, output: torch.Tensor, likely: torch.Tensor, shares: torch.Tensor
    ) -> torch.Tensor:
        """The sum over places.

        Args:
            ctx: keeps the gradient.
            multiplied: the states that the output rows are multiplied with [places, n_embd].
            output: the output rows [n_rows, n_embd].
            likely: the rows of the target's most likely tokens [places, k].
            shares: the target's probabilities of these tokens [places, k].
        """
        kind = multiplied.device.type
        if torch.is_autocast_enabled(kind):
            output = output.to(torch.get_autocast_dtype(kind))  # converted once, and not for each part
        total, gradient = multiplied.new_zeros((), dtype=torch.float32), torch.empty_like(multiplied)
        for begin in range(0, len(multiplied), _PLACES):
            part = slice(begin, begin + _PLACES)
            logits = functional.linear(multiplied[part], output).float()
            tokens, wanted = likely[part], shares[part]
            said, all_wanted = torch.gather(logits, -1, tokens), wanted.sum(-1, keepdim=True)
            largest = logits.amax(-1, keepdim=True)
            weights = logits.sub_(largest).exp_()
            weight = weights.sum(-1, keepdim=True)
            total += (all_wanted * (weight.log() + largest)).sum() - (wanted * said).sum()
            by_logit = weights.mul_(all_wanted / weight).scatter_add_(-1, tokens, -wanted)
            gradient[part] = by_logit.to(output.dtype) @ output
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *of_total: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the arguments. Only the states learn."""
        (gradient,) = ctx.saved_tensors
        return gradient * of_total[0].to(gradient.dtype), None, None, None
