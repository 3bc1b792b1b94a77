"""What a trained draft gains, against plain decoding and lookup: measured, told, and kept for ``-md auto``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import closing

    from specllama import Llama
    from specllama.commands.steps import Reporter
    from specllama.evidence.draft_pays import Gain
    from specllama.prompts import RenderedPrompt

_ADVICE = "train it longer (a small model rarely gains by a head)"


class Gains(NamedTuple):
    """The gain of the draft over plain decoding, and the gain of lookup alone; None if that was not measured."""

    draft: Gain
    lookup: Gain | None


def gains_of(
    opened: Callable[[str], closing[Llama]],
    draft: str,
    most: int,
    reporter: Reporter,
    questions: Sequence[RenderedPrompt] | None = None,
    *,
    lookup: bool = True,
) -> Gains:
    """Measure whole calls with a draft and with lookup, each in turn with plain decoding.

    Args:
        opened: opens the target with a ``draft_model``.
        draft: the draft.
        most: the most tokens of an answer.
        reporter: shows the progress.
        questions: the prompts; None for those of the package.
        lookup: whether lookup is measured, too.
    """
    from specllama.engine import LOOKUP
    from specllama.evidence.draft_pays import gain_of

    with opened(draft) as llm:
        gain = gain_of(llm, most, reporter.answered, questions)
    if not lookup:
        return Gains(gain, None)
    with opened(LOOKUP) as llm:
        by_lookup = gain_of(llm, most, lambda _, done, total: reporter.answered(LOOKUP, done, total), questions)
    return Gains(gain, by_lookup)


def verdict(path: Path, gains: Gains | None, chosen: str | None, advice: str = _ADVICE) -> str:
    """The text for the user: the measured gains, and how to use the draft.

    Args:
        path: the draft's file.
        gains: what was measured; None for nothing.
        chosen: what ``-md auto`` takes.
        advice: what to do if it is no faster.
    """
    if gains is None:
        return f"It is used by draft_model={str(path)!r} (-md)"
    gain, by_lookup = gains
    advice = "" if gain.is_faster else f"; {advice}"
    by_auto = ", and by auto" if chosen == str(path) else ""
    taken = "" if by_auto else f"; auto is {'no draft' if chosen is None else os.path.basename(chosen)} here"
    used = f"It is used by draft_model={str(path)!r} (-md){by_auto}{taken}"
    if by_lookup is None:
        return f"{gain}{advice}. {used}"
    lookup = f"With lookup alone, which needs no draft, they are {by_lookup.ratio:.2f} times as fast"
    if gain.is_faster and gain.ratio - gain.error <= by_lookup.ratio:
        lookup += ": the draft adds nothing to that which can be told from chance"
    return f"{gain}{advice}. {lookup}. {used}"


def chosen_with(target: str, path: Path, gains: Gains) -> str | None:
    """Keep the measured gains for ``-md auto``. Returns the draft that ``-md auto`` takes now."""
    from specllama.commands.drafts import remember_gains
    from specllama.engine import LOOKUP, chosen_of
    from specllama.models import survey

    found = survey(target)
    real = os.path.realpath(path)
    names = [one.draft_model for one in found.usable if os.path.realpath(one.draft_model) == real]
    of_lookup = {} if gains.lookup is None else {LOOKUP: gains.lookup}
    remember_gains(found, {**dict.fromkeys(names, gains.draft), **of_lookup})
    chosen = chosen_of(found).draft_model
    return str(path) if chosen in names else chosen
