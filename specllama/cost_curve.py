"""Measures T(n), the seconds that a batch of n tokens takes. T(n) is neither flat nor monotonic in n."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .drop_in.base_class import BaseLlama
from .drop_in.lending import lent
from .engine.costs import thinned
from .engine.direct import emptied
from .engine.model import Model
from .engine.options import checked_index
from .engine.tokens_of_text import tokens_of
from .llama import Llama
from .prompts import builtin_prompts

_SEED = 1  # fixed, so that two measurements decode the same tokens in the same order


@dataclasses.dataclass(frozen=True)
class CostCurve:
    """T(n) of one model on one machine: the seconds that a batch of n tokens takes, with their spread.

    Attributes:
        name: ``"target"`` or ``"draft"``.
        n_past: tokens in the KV cache before each batch.
        samples: seconds of every decode, by the number of tokens in its batch.
    """

    name: str
    n_past: int
    samples: Mapping[int, tuple[float, ...]]

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were measured, ascending."""
        return tuple(sorted(self.samples))

    def seconds(self, n: int) -> float:
        """T(n): the median of the seconds that a batch of n tokens took.

        Raises:
            ValueError: that size was not measured.
        """
        return float(np.median(self._samples_of(n)))

    def spread(self, n: int) -> tuple[float, float]:
        """The quartiles (25%, 75%) of the seconds of a batch of n tokens. Raises ValueError as `seconds` does."""
        low, high = np.quantile(self._samples_of(n), (0.25, 0.75))
        return float(low), float(high)

    def relative(self, n: int) -> float:
        """T(n) / T(1). Raises ValueError if one of the two sizes was not measured."""
        return self.seconds(n) / self.seconds(1)

    def at(self, n: float) -> float:
        """T(n) in seconds, also for n between two measured sizes, such as a mean, by linear interpolation.

        Raises:
            ValueError: n lies outside the measured sizes.
        """
        sizes = self.sizes
        if not sizes or not sizes[0] <= n <= sizes[-1]:
            raise ValueError(f"T({n:g}) of the {self.name} lies outside the sizes measured: {_listed(sizes)}")
        return float(np.interp(n, sizes, [self.seconds(size) for size in sizes]))

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON: name, n_past, and for each size the median, the quartiles and every sample, in seconds."""
        points = []
        for n in self.sizes:
            low, high = self.spread(n)
            samples = list(self.samples[n])
            points.append({"n": n, "seconds": self.seconds(n), "q25": low, "q75": high, "samples": samples})
        return {"name": self.name, "n_past": self.n_past, "points": points}

    def _samples_of(self, n: int) -> tuple[float, ...]:
        if n not in self.samples:
            raise ValueError(
                f"T({n}) of the {self.name} was not measured, only {_listed(self.sizes)}: add {n} to the sizes"
            )
        return self.samples[n]


def measure_cost_curve(
    llm: BaseLlama,
    name: str,
    *,
    sizes: Iterable[int] = range(1, 17),
    repeats: int = 7,
    n_past: int = 128,
    on_progress: Callable[[int, int], None] | None = None,
) -> CostCurve:
    """Measure T(n) of a model: the seconds to decode a batch of n tokens after n_past others.

    A target computes logits for all n tokens, as verification needs them. A draft computes the last token's only.

    Each repeat takes the sizes in another order, so that changes in the machine's speed affect all sizes alike. Only
    the decode is timed. Measure between generations: the KV cache is empty afterwards, also after Ctrl-C.

    Args:
        llm: a target, or its draft (``llm.draft_model``).
        name: ``"target"`` or ``"draft"``.
        sizes: the batch sizes.
        repeats: timed decodes of each size, after one that only warms up.
        n_past: tokens in the KV cache before each batch.
        on_progress: called with (decodes done, decodes in all); both numbers include the decodes that only warm up.

    Raises:
        TypeError: a number is not an integer.
        ValueError: a number is out of range, a batch does not fit into n_batch or the context, or the model keeps no KV
            cache or cannot roll it back (a recurrent model under an early llama-cpp-python).
        ClosedError: the Llama is closed.
        BusyError: the Llama generates in another thread.
    """
    model = lent(llm, name)
    checked = _checked_sizes(model, name, sizes, repeats, n_past)
    tokens = _filling(model, n_past + max(checked))
    samples: dict[int, list[float]] = {n: [] for n in checked}
    order = random.Random(_SEED)
    with llm.engine.direct() if isinstance(llm, Llama) else emptied(model) as direct:
        for repeat in range(repeats + 1):
            for i, n in enumerate(order.sample(checked, len(checked))):
                direct.prefill(tokens[:n_past])
                seconds = direct.seconds(tokens[n_past : n_past + n], last_only=name == "draft")
                if repeat > 0:  # the first repeat warms up
                    samples[n].append(seconds)
                if on_progress is not None:
                    on_progress(repeat * len(checked) + i + 1, (repeats + 1) * len(checked))
    return CostCurve(name, n_past, {n: tuple(samples[n]) for n in checked})


def kept_sizes(most: int) -> list[int]:
    """The batch sizes up to `most` that ``Engine.keep_costs`` tells apart: all small sizes, and some large ones."""
    return list(thinned(dict.fromkeys(range(1, most + 1), 1.0)))


def _checked_sizes(model: Model, name: str, sizes: Iterable[int], repeats: int, n_past: int) -> list[int]:
    checked = sorted(set(sizes))
    if not checked or checked[0] < 1:
        raise ValueError(f"sizes={checked} must be batch sizes of at least 1, for example range(1, 17)")
    if checked_index("repeats", repeats, "an int") < 1:
        raise ValueError(f"repeats={repeats} must be at least 1")
    if checked_index("n_past", n_past, "an int") < 0:
        raise ValueError(f"n_past={n_past} must be at least 0")
    unusable = model.why_no_rollback
    if unusable is not None:
        raise ValueError(f"{unusable}: its cost curve cannot be measured")
    largest = checked[-1]
    if largest > model.settings.n_batch:
        raise ValueError(
            f"a batch of {largest} tokens does not fit into n_batch={model.settings.n_batch} of the {name}: "
            "measure smaller sizes, or create the Llama with a larger n_batch, which is at most n_ctx (-c)"
        )
    if n_past + largest > model.n_ctx:
        raise ValueError(
            f"{n_past} + {largest} tokens (n_past and the largest batch) do not fit into n_ctx={model.n_ctx} of the "
            f"{name}: measure with a smaller n_past, or create the Llama with a larger n_ctx (-c)"
        )
    return checked


def _filling(model: Model, count: int) -> npt.NDArray[np.int32]:
    """The tokens [count] of prompts that come with specllama, from the first again after the last.

    They are a text, because a mixture of experts reads more experts for a batch of random tokens than for a text's.
    """
    tokens = tokens_of(model, "\n".join(prompt.text for prompt in builtin_prompts()).encode(), False, False)
    return np.resize(np.array(tokens, dtype=np.int32), count)


def _listed(sizes: Sequence[int]) -> str:
    return ", ".join(map(str, sizes)) or "none"
