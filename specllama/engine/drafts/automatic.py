"""``draft_model="auto"``: which draft is best for a model on this machine.

The decision is made once, from file headers and known costs, and kept in a file. Nothing is downloaded, loaded or
measured for the decision. It is valid until one of the files that could draft changes.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping

import llama_cpp

from specllama.backend.memory import free_memory
from specllama.engine.costs import KeptCurves
from specllama.engine.expected_gain import expected
from specllama.engine.hidden import Hidden
from specllama.engine.model import Model
from specllama.models.found_drafts import ROOM, FoundDraft, Survey, survey
from specllama.models.model_folders import LEARNED
from specllama.warn import warn

from .draft import LOOKUP, Draft, DraftKind, Loader
from .draft_options import DraftOptions
from .remembered import NOT_KNOWN, Decision, Measured, Paying, identity, read, seen, write

_LOGGER = logging.getLogger("specllama.drafts")
_LEAST = 1.1  # the least expected speedup of a draft over plain decoding: a smaller one is noise
_LEAST_GUESSED = 1.15  # the least expected speedup if T(n) of the target is only guessed
_GUESSED = {n: 1.0 + 0.15 * (n - 1) for n in range(1, 10)}
"""T(n)/T(1), the time of a batch of n tokens over that of one token, by n: a guess for a target without measurements.

The guess is rather too high: batches cost less with our kernels or on a GPU.
"""
_LEAST_FOREIGN = 1.25  # the least for a draft with another tokenizer: lookup gives 1.1, and costs no memory
_MOST_KEPT = 8  # the most drafts that a Decision keeps, the best ones
_SPARE = 1 << 28  # bytes of memory that must stay free beside the target and the draft


@dataclasses.dataclass(frozen=True)
class Choice:
    """The choice that ``"auto"`` stands for.

    Attributes:
        draft_model: the value that replaces ``"auto"``; None for plain decoding.
        why: the reason for this choice.
    """

    draft_model: str | None
    why: str

    def __str__(self) -> str:
        """The choice and its reason, in one line."""
        name = "no draft" if self.draft_model is None else os.path.basename(self.draft_model)
        return f"draft_model='auto' is {name}: {self.why}"


@dataclasses.dataclass(frozen=True)
class Room:
    """The sizes from which `choose` computes whether target and draft fit into memory.

    Attributes:
        n_ctx: the number of tokens in the target's context; 0 for the number in the target's file.
        own_ctx: the number of tokens in the draft's context; None for as many as the target's.
        on_gpu: True if layers are offloaded. Then the room is not checked here: only llama.cpp knows it, and loading
            the draft fails if there is too little.
        is_open: True if the target is in memory already.
        learns: True if a head learns from the target's answers. It joins lookup.
    """

    n_ctx: int = ROOM
    own_ctx: int | None = None
    on_gpu: bool = False
    is_open: bool = False
    learns: bool = False


def choose(path: str, room: Room) -> Choice:
    """Choose a draft for a model, and log the choice.

    An earlier decision is used again as long as the files that it was made from are unchanged.

    Args:
        path: the model's file.
        room: the sizes of the contexts, and whether the target is in memory already.
    """
    try:
        decision, is_new = _decided(path)
    except NOT_KNOWN as error:  # not raised here: loading the model raises an error that names the cause
        return Choice(LOOKUP, f"what could draft for it is not known: {error}")
    choice, is_usual = _that_fits(decision, room)
    _LOGGER.log(logging.INFO if is_new or not is_usual else logging.DEBUG, "%s", choice)
    return choice


def chosen_of(found: Survey) -> Choice:
    """The choice that `choose` would make now from the results of a survey."""
    before = read(found.path)
    return _that_fits(_decision(found, "", before.measured if before else {}), Room())[0]


def remember(found: Survey, measured: Mapping[str, tuple[float, float]]) -> None:
    """Keep measured speedups. From then on `choose` compares drafts by them.

    Args:
        found: the survey of the model and of the drafts on this machine.
        measured: for each ``draft_model``, the speedup over plain decoding and its standard error.

    Raises:
        OSError, RuntimeError: the file cannot be written.
    """
    before = read(found.path)
    known = dict(before.measured) if before else {}
    known.update({name: Measured(ratio, error, identity(name)) for name, (ratio, error) in measured.items()})
    write(found.path, _decision(found, seen(found.path), known))


class Automatic(DraftKind):
    """The draft that ``"auto"`` stands for.

    If that draft cannot be opened, lookup replaces it, so that a target always opens.

    Args:
        taken: the chosen draft.
        lookup: replaces the chosen draft if the chosen draft cannot be opened.
        options: what the user says of the draft.
        said: the choice and its reason, in one line.
    """

    def __init__(self, taken: DraftKind, lookup: DraftKind, options: DraftOptions, said: str) -> None:
        super().__init__(taken.options)
        self.opened_with = options.opened_with
        self._taken = taken
        self._lookup = lookup
        self.said = said

    def hidden_states(self, target: str) -> Hidden | None:
        """See the base class."""
        try:
            return self._taken.hidden_states(target)
        except (ValueError, OSError) as error:
            self._give_up(error)
        return None

    def open(self, target: Model, loader: Loader) -> Draft:
        """See the base class."""
        try:
            return self._taken.open(target, loader)
        except (ValueError, OSError, RuntimeError, MemoryError) as error:
            if self._taken is self._lookup:
                raise
            self._give_up(error)
        return self._lookup.open(target, loader)

    def _give_up(self, error: Exception) -> None:
        warn_of_opening(str(self._taken.options.draft_model), error)
        self._taken = self._lookup


def warn_of_opening(draft_model: str, error: Exception) -> None:
    """Warn that the draft chosen by ``"auto"`` cannot be opened, and lookup replaces it."""
    name = os.path.basename(draft_model)
    warn(f"draft_model='auto' looks up the text, because {name} cannot be opened: {error}")


def _decided(path: str) -> tuple[Decision, bool]:
    """The decision, and whether it was made just now."""
    before, digest = read(path), seen(path)
    if before is not None and before.seen == digest and (before.is_final or not _is_measured(KeptCurves(), path)):
        return before, False
    found = survey(path)
    decision = _decision(found, digest, before.measured if before else {})
    try:
        write(path, decision)
    except NOT_KNOWN as error:
        _LOGGER.debug("what drafts for %s cannot be kept: %s", path, error)
    folder = os.path.dirname(os.path.abspath(path))
    left_out = {file: why for file, why in found.left_out.items() if os.path.dirname(file) == folder}
    heads = {one.draft_model: one.why_not for one in found.found if one.is_of_name and not one.in_model}
    for file, why in (left_out | heads).items():
        if why is not None:
            warn(f"draft_model='auto' leaves {os.path.basename(file)} out: {why}")
    return decision, True


def _decision(found: Survey, digest: str, known: Mapping[str, Measured]) -> Decision:
    measured = {name: one for name, one in known.items() if one.identity == identity(name)}
    curves = KeptCurves()
    by_lookup = measured.get(LOOKUP)
    least = 1.0 if by_lookup is None else max(1.0, by_lookup.ratio)
    gains = {one.draft_model: _gain(one, found.path, curves, measured, least) for one in found.usable}
    paying = [one for one in found.usable if gains[one.draft_model][0] > least]
    paying.sort(key=lambda one: gains[one.draft_model][0], reverse=True)
    return Decision(
        seen=digest,
        is_final=bool(measured) or _is_measured(curves, found.path),
        paying=tuple(
            Paying(one.draft_model, one.size, one.memory - one.size, gains[one.draft_model][1])
            for one in paying[:_MOST_KEPT]
        ),
        otherwise=None if by_lookup is not None and by_lookup.ratio + by_lookup.error < 1.0 else LOOKUP,
        why="" if paying else _why_none(found, curves, measured),
        weights=found.size,
        cache=found.memory - found.size,
        n_ctx=found.n_ctx,
        measured=measured,
    )


def _gain(
    draft: FoundDraft, target: str, curves: KeptCurves, measured: Mapping[str, Measured], least: float
) -> tuple[float, str]:
    """The speedup by which drafts are compared, and the reason to report. A draft that does not pay has speedup 0.

    A measured draft must be faster than `least`, lookup's speedup, by more than the standard error, because a draft
    takes memory and lookup takes none.

    A head that has learned from the model's answers is compared as a draft model is: it says how often it is right.

    A head that was made for the model is preferred to all drafts that were not measured (its speedup is infinite),
    because a user has put it beside the model.
    """
    if draft.draft_model in measured:
        found = measured[draft.draft_model]
        is_faster = found.ratio - found.error > least
        return found.ratio if is_faster else 0.0, f"measured here, {found.ratio:.2f} times as fast as plain decoding"
    if draft.kind not in ("model", "foreign") and draft.where != LEARNED:
        of_file = f"its own file has {draft.kind.upper()} layers"
        where = of_file if draft.in_model else "a head for the model, beside it"
        where = "a small model that has learned from it" if draft.kind == "parallel" else where
        return (float("inf"), where) if draft.is_of_name else (0.0, "")
    gain, is_known = _expected_gain(draft, target, curves)
    is_foreign = draft.kind == "foreign"
    least_here = _LEAST_FOREIGN if is_foreign else _LEAST if is_known else _LEAST_GUESSED
    if gain < least_here or (is_foreign and not is_known):
        return 0.0, ""
    by = "by what batches cost here" if is_known else "as long as it was not measured here what batches cost"
    return gain, f"{gain:.2f} times as fast as plain decoding is expected, {by}"


def _expected_gain(draft: FoundDraft, target: str, curves: KeptCurves) -> tuple[float, bool]:
    """The expected speedup with a draft model, and whether T(n) of the target is known on this machine."""
    is_known = _is_measured(curves, target)
    of_target = curves.of(target, "target") if is_known else _GUESSED
    of_draft = curves.of(draft.draft_model, "draft") if is_known else {}
    return expected(draft.cost, draft.acceptance, of_target, of_draft).speedup or 0.0, is_known


def _is_measured(curves: KeptCurves, target: str) -> bool:
    """Whether T(n) of the target was measured here for enough n to estimate a speedup."""
    known = curves.of(target, "target")
    return 1 in known and sum(n in _GUESSED for n in known) > 2


def _why_none(found: Survey, curves: KeptCurves, measured: Mapping[str, Measured]) -> str:
    """The reason to report if no draft model or head is chosen."""
    models = [one for one in found.usable if one.kind in ("model", "foreign")]
    if any(name != LOOKUP for name in measured):
        return "no draft that was measured here was faster than plain decoding and lookup by more than the error"
    if not models:
        return "no draft for the model is on this machine"
    gains = {one.draft_model: _expected_gain(one, found.path, curves)[0] for one in models}
    best = max(gains, key=gains.__getitem__)
    return (
        f"no draft on this machine is expected to pay, with {os.path.basename(best)} it would be "
        f"{gains[best]:.2f} times as fast as plain decoding"
    )


def _that_fits(decision: Decision, room: Room) -> tuple[Choice, bool]:
    """The best draft that fits into the free memory, and whether it would also be chosen with unlimited memory."""
    if not decision.paying:
        return Choice(decision.otherwise, decision.why), True
    if room.on_gpu and llama_cpp.llama_supports_gpu_offload():
        return Choice(decision.paying[0].draft_model, decision.paying[0].why), True
    n_ctx = room.n_ctx or decision.n_ctx or ROOM
    of_target = 0 if room.is_open else decision.weights + decision.cache * n_ctx // ROOM
    free = free_memory() - of_target - _SPARE
    for number, one in enumerate(decision.paying):
        if one.weights + one.cache * (room.own_ctx or n_ctx) // ROOM <= free:
            return Choice(one.draft_model, one.why), number == 0
    first = os.path.basename(decision.paying[0].draft_model)
    return Choice(decision.otherwise, f"there is not enough free memory for {first}"), False
