"""Notes that a reader of the figures needs. Each function returns a note, or None if there is nothing to say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from specllama.evidence.answer import first_difference

from .runs import Run
from .synthetic import Synthetic

if TYPE_CHECKING:
    from specllama.evidence.answer import Answer

# The ratio of the fastest run to the slowest. On an idle machine it stays well below this, for prompts of up to a few
# thousand tokens.
_STEADY = 1.5


def on_threads(name: str, model: dict[str, Any]) -> str | None:
    """A note on a model that has other numbers of threads for one token and for several (see ``describe_machine``)."""
    single, batch = model["n_threads"], model["n_threads_batch"]
    if single == batch:
        return None
    return (
        f"the {name} has n_threads={single} but n_threads_batch={batch}: the ratios are not those of decoding alone, "
        "because rounds of several tokens run on other cores than plain decoding"
    )


def on_noise(plain: Sequence[Run]) -> str | None:
    """A note if the machine was not idle. Plain decoding tells: except for attention, each token is the same work."""
    rates = [run.stats.tokens_per_second for run in plain]
    if not rates or max(rates) < _STEADY * min(rates):
        return None
    return (
        f"plain decoding ran at {min(rates):.2f} to {max(rates):.2f} t/s: unless the prompts differ much in length, "
        "something else used the machine, and the ratios mean little; run it again when the machine is idle"
    )


def on_synthetic(synthetic: Synthetic | None) -> str | None:
    """A note that the draft was synthetic."""
    if synthetic is None:
        return None
    return (
        f"synthetic: there was no draft, but {synthetic}. It was told plain decoding's text, and erred and waited as "
        "often and as long as it says; its waiting is counted as sampling. No draft is known to be like that"
    )


def on_checkpoints(runs: Sequence[Run]) -> str | None:
    """A note on runs of a target that was opened without a draft, if it may roll back faster when opened with one."""
    if not any(run.stats.rollback == "checkpoint" and run.stats.num_drafts for run in runs):
        return None
    return (
        "the Llama was opened without a draft, so its context keeps no snapshots of a state, and rolls back by "
        "copies of it: open it with draft_model='lookup' to measure what a draft would get"
    )


def on_fallbacks(runs: Sequence[Run]) -> str | None:
    """A note on runs of one mode that were decoded plainly although a draft was asked for."""
    fallen = [run for run in runs if run.stats.fallback_reason]
    if not fallen:
        return None
    first = fallen[0]
    return (
        f"{first.mode} decoded plainly in {len(fallen)} of {len(runs)} runs "
        f"(the first: {first.prompt_id}): {first.stats.fallback_reason}"
    )


def on_differences(mode: str, pairs: Sequence[tuple[str, Answer, Answer]]) -> str | None:
    """A note on answers of one mode that should have plain decoding's text, and differ.

    Args:
        mode: the name of the mode.
        pairs: (id of the prompt, the answer, plain decoding's answer) for each run that should have the same text.
    """
    parted = [
        (prompt, place)
        for prompt, found, plain in pairs
        if (place := first_difference(found.tokens, plain.tokens)) is not None
    ]
    if not parted:
        return None
    prompt, place = parted[0]
    return (
        f"{mode}: {len(parted)} of {len(pairs)} texts part from plain decoding's (the first: {prompt}, at token "
        f"{place}); batches of other sizes round differently where two tokens nearly tie, and `specllama verify` tells "
        "that from an error"
    )
