"""The table of all kinds of drafts, and which of them a user means."""

from __future__ import annotations

import os
from typing import Any

from specllama.models import catalog
from specllama.models.heads import head_of
from specllama.models.loading import require_gguf

from .assistant import AssistantInFile
from .automatic import Automatic, Room, choose, warn_of_opening
from .block_head import BlockHeadInFile
from .draft import LOOKUP, DraftKind
from .draft_options import DraftOptions
from .eagle3 import Eagle3InFile
from .function import DraftingFunction
from .lookahead import Lookahead
from .lookup import Lookup
from .mtp import MtpInFile, OwnMtp
from .second_model import FileModel, LentModel
from .several import HeadAndModel
from .state_head import LearnedHead, StateHeadInFile

AUTO = "auto"
"""The word for the best draft on this machine, which `choose` finds.

In a list ``"auto"`` stands for the head beside the target's file, or else for the MTP layer in that file.
"""
KINDS: tuple[type[DraftKind], ...] = (
    Lookup,
    Lookahead,
    OwnMtp,
    Eagle3InFile,
    MtpInFile,
    BlockHeadInFile,
    StateHeadInFile,
    AssistantInFile,
    FileModel,
    LentModel,
    DraftingFunction,
)
"""All kinds, one a line. The first kind whose `is_meant` is true for a user's ``draft_model`` is taken."""
NAMES = tuple(kind.name for kind in KINDS if kind.name is not None)
"""The words that users may give as ``draft_model``, besides ``"auto"``. Any other text is a path or a model's name."""


def understood(options: DraftOptions, target: str, *, as_assigned: bool = False, room: Room) -> DraftKind | None:
    """The kind of draft that a user means. No weights are loaded.

    Args:
        options: what the user says of the draft.
        target: the path of the target's file.
        as_assigned: True if the draft replaces another one for which the options were given. Options that the new
            draft does not take are then left out.
        room: the sizes from which ``"auto"`` computes whether a draft fits into memory.

    Returns:
        None for plain decoding.

    Raises:
        ModelNotFoundError: there is no file with the given path or name.
        TypeError: the given object is no kind of draft.
        ValueError: the file is no GGUF file or a head that cannot be used, or an option is not for this kind of draft.
    """
    given = options.draft_model
    if given is None:
        return None
    if isinstance(given, (list, tuple)):
        # Every draft model is combined with lookup, so a list need not name lookup.
        named = [_named(each, target) for each in given if not (_is_auto(each) and head_of(target) is None)]
        if len(named) > 1 or len(named) == len(given):
            return HeadAndModel(options, [_kind_of(each) for each in named], named)
        given = named[0] if named else LOOKUP
    elif _is_auto(given):
        return _automatic(options, target, room)
    given = _named(given, target)
    kind = _kind_of(given)
    if not as_assigned:
        options.require_taken(kind.takes)
    return kind(options.of(given, kind.takes))


def _automatic(options: DraftOptions, target: str, room: Room) -> DraftKind | None:
    """The draft that ``"auto"`` chooses.

    Options that the chosen draft does not take are left out, because the user cannot know the choice: it depends on the
    machine.
    """
    options.refuse(["draft_mask_token"])
    choice = choose(target, room)
    if choice.draft_model is None and not room.learns:
        return None
    lookup = Lookup(options.of(LOOKUP, Lookup.takes))
    taken: DraftKind = LearnedHead(options.of(AUTO, LearnedHead.takes)) if room.learns else lookup
    if choice.draft_model not in (None, LOOKUP):
        try:
            given = _named(choice.draft_model, target)
            kind = _kind_of(given)
            taken = kind(options.of(given, kind.takes))
        except (ValueError, OSError) as error:  # the file was deleted, or cannot be read any more
            warn_of_opening(choice.draft_model, error)
    return Automatic(taken, lookup, options, str(choice))


def _kind_of(given: Any) -> type[DraftKind]:
    for kind in KINDS:
        if kind.is_meant(given):
            return kind
    raise TypeError(
        f"draft_model={given!r:.200} must be a path, a model name, a llama_cpp.Llama, {', '.join(map(repr, NAMES))}, "
        "'auto', a llama_cpp LlamaDraftModel, a list of a head and a model, or None"
    )


def _named(given: Any, target: str) -> Any:
    """The user's ``draft_model``, with a file's name replaced by its path, and ``"auto"`` by the head that it means."""
    if _is_auto(given):
        return head_of(target)
    if not isinstance(given, (str, os.PathLike)) or given in NAMES:
        return given
    path = catalog.resolve(os.fsdecode(given))
    require_gguf(path)
    return path


def _is_auto(given: Any) -> bool:
    return isinstance(given, str) and given == AUTO
