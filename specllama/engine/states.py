"""Teacher forcing: the target decodes a given text, and the callers read its hidden states and logits."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import llama_cpp
import numpy as np
import numpy.typing as npt

from specllama import _core

from .hidden import FINAL, shown_layers
from .listener import Listener
from .model import Model
from .options import checked_index
from .slot import Slot

Read = TypeVar("Read")
_CHUNK = 128  # the most tokens that `states_of` decodes at once: memory for their states and logits is needed


@dataclasses.dataclass(frozen=True)
class States:
    """The hidden states and logits that the target computed for a part of a text (consecutive tokens).

    Attributes:
        start: the index in the text of the part's first token.
        hidden: the inputs of the layers in ``shown_layers`` [tokens, layers, n_embd].
        first_logits: the index in the text of the first token after which there are logits.
        logits: the logits of the requested tokens of the vocabulary [places, tokens], from `first_logits` on.
        logsumexp: over the whole vocabulary [places]: ``exp(logits - logsumexp)`` are probabilities.
        best: the most likely token of the whole vocabulary [places].
    """

    start: int
    hidden: npt.NDArray[np.float32]
    first_logits: int
    logits: npt.NDArray[np.float32]
    logsumexp: npt.NDArray[np.float32]
    best: npt.NDArray[np.int32]


def forced(
    slot: Slot,
    ids: npt.NDArray[np.int32],
    listener: Listener,
    read: Callable[[_core.Sequence, int, int], Read],
    *,
    most: int,
    first_output: int = 0,
    keeps_states: bool = False,
) -> Iterator[Read]:
    """Decode a text from its beginning, part by part.

    Args:
        slot: the slot of the model's own context.
        ids: the tokens of the text [n].
        listener: is called between parts, and may end the work.
        read: called after each part with the sequence, the place of the part's first token, and the part's length.
        most: the most tokens of one part.
        first_output: the place of the first token after which logits are wanted.
        keeps_states: whether `read` reads hidden states.

    Yields:
        What `read` returns.

    Raises:
        BusyError: another thread is generating.
        ClosedError: the model is closed.
        DecodeError: llama.cpp fails.
        RuntimeError: something else has used the model's own context since the last part.
    """
    most = min(most, slot.model.settings.n_batch, slot.model.n_ctx)
    hidden = slot.model.settings.hidden
    needs_all = hidden is not None and hidden.of_wanted
    for start in range(0, len(ids), most):
        listener.poll()
        part = ids[start : start + most]
        with slot.exclusive():
            slot.require_threads()
            slot.require_at_rest()
            sequence, position = slot.sequence, slot.position
            if start > 0 and not np.array_equal(position.tokens(), ids[:start]):
                raise RuntimeError(
                    "this Llama was used for something else while tokens were scored: score them to the end first, or "
                    "create one Llama for each"
                )
            position.change(start)  # this comes first, because the decoding may fail, or be interrupted
            sequence.assume(ids[:start])
            sequence.keep(start)
            first = 0 if keeps_states and needs_all else first_output
            sequence.decode(part, min(max(0, first - start), len(part)), keeps_states=keeps_states)
            position.ids[start : start + len(part)] = part
            position.change(sequence.num_tokens)
            found = read(sequence, start, len(part))
        yield found


def states_of(
    slot: Slot,
    ids: npt.NDArray[np.int32],
    listener: Listener,
    rows: npt.NDArray[np.int32],
    first_logits: int,
) -> Iterator[States]:
    """Decode a text and give its states, as `Engine.states` says."""
    num_layers = len(slot.model.settings.hidden.names)  # type: ignore[union-attr]  # checked by `require_shown_layers`

    def read(sequence: _core.Sequence, start: int, count: int) -> States:
        first = min(max(0, first_logits - start), count)
        logits = np.empty((count - first, len(rows)), np.float32)
        logsumexp = np.empty(count - first, np.float32)
        best = np.empty(count - first, np.int32)
        for place in range(first, count):
            row = sequence.logits(place)
            logits[place - first] = row[rows]
            best[place - first] = row.argmax()
            most = row[best[place - first]]
            logsumexp[place - first] = most + np.log(np.exp(row - most).sum(dtype=np.float64))
        hidden = sequence.states(count).reshape(count, num_layers, -1)
        return States(start, hidden, start + first, logits, logsumexp, best)

    yield from forced(slot, ids, listener, read, most=_CHUNK, first_output=first_logits, keeps_states=True)


def checked_layers(layers: Any) -> tuple[int, ...]:
    """The numbers of layers that a user gives.

    Raises:
        TypeError: the value is no sequence of integers.
    """
    if isinstance(layers, (str, bytes)) or not isinstance(layers, Iterable):
        raise TypeError(f"shown_layers={layers!r:.100} must be a sequence of layers' numbers, such as (2, 14, 25)")
    return tuple(checked_index("shown_layers", layer, "a layer's number") for layer in layers)


def require_shown_layers(model: Model) -> None:
    """Check that a target was opened so that it shows the inputs of its layers.

    Raises:
        ValueError: the target shows no states, or only states for MTP layers.
    """
    hidden = model.settings.hidden
    if hidden is None or hidden.nextn:
        raise ValueError("the target shows no states: open the Engine with shown_layers, or with a head")


def require_layers(model: Model, layers: Sequence[int]) -> None:
    """Check that the target shows these layers.

    Raises:
        ValueError: the target has no layer with such a number, or was opened to show other layers.
    """
    count = int(llama_cpp.llama_model_n_layer(model.address))
    if layers and model.settings.hidden != shown_layers(layers):
        raise ValueError("shown_layers cannot be had beside a head: the target shows what that reads")
    for layer in layers:
        if layer != FINAL and not 0 < layer < count:
            raise ValueError(
                f"shown_layers: what enters layer {layer} cannot be had, but of the layers 1 to {count - 1}, "
                f"and the final state ({FINAL})"
            )


def require_computed(model: Model) -> None:
    """Check, by decoding one token, that llama.cpp computes the states that a target was opened to show.

    If the context already holds a text, nothing is done: the check came before the text.

    Raises:
        ValueError: llama.cpp does not compute these states.
        DecodeError, BusyError, ClosedError: the token cannot be decoded.
    """
    sequence, hidden = model.sequence, model.settings.hidden
    if hidden is None or sequence.num_tokens:
        return
    sequence.decode(np.array([max(model.bos, 0)], np.int32), 0, keeps_states=True)
    try:
        sequence.states(1)
    except _core.DecodeError:
        architecture = model.settings.metadata.get("general.architecture", "?")
        raise ValueError(
            f"the target {os.path.basename(model.settings.path)} does not show {', '.join(hidden.names)}, which is "
            f"read of it: llama.cpp computes no tensor of such a name for the architecture {architecture}. Give "
            "another kind of draft"
        ) from None
    finally:
        sequence.keep(0)
        model.clear()
