"""`specllama drafts`: shows what could draft for a model on this machine."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from specllama.commands.arguments import UsageError, add_threads, whole

if TYPE_CHECKING:
    from specllama.commands import Subparsers
    from specllama.engine import Choice
    from specllama.evidence.draft_pays import Gain
    from specllama.models import FoundDraft, KnownDraft, Survey

_CTX_SIZE = 4096
_LOOKUP = "lookup"
_MOST_FOREIGN = 3  # the most models of other tokenizers that are shown and tried, the cheapest: a folder may have many
_CONVERT = "convert it with llama.cpp's convert_hf_to_gguf.py"


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """Add the command."""
    parser = subparsers.add_parser(
        "drafts",
        help="show what could draft for a model on this machine",
        description="Show what could draft for a model: MTP layers in its file, heads beside it, and heads and "
        "smaller models in its folder and in the caches of specllama, llama.cpp, LM Studio, ollama and the hub. Such "
        "a model may have another vocabulary. Only headers are read. Drafts that are known for the model's family and "
        "are not on this machine are listed, too. A draft's cost is the time of a drafted token over that of a token "
        "of the model. It is measured if `tune` or a run has measured both, and estimated by sizes otherwise. The "
        "last lines say what -md auto takes.",
    )
    parser.add_argument("model", nargs="?", metavar="MODEL", help="a GGUF file, a catalog name, or a name of the hub")
    parser.add_argument(
        "--measure",
        action="store_true",
        help="try the drafts on this machine, and lookup, on eight prompts (minutes); -md auto then uses the results",
    )
    parser.add_argument(
        "--forget",
        action="store_true",
        help="forget what -md auto has decided and what was measured, for this model, or without one for all models",
    )
    parser.add_argument(
        "--pull",
        action="store_true",
        help="download the first draft that is known for the model's family, if none is on this machine",
    )
    parser.add_argument("--output", "-o", choices=("md", "json"), default="md", help="the format, default md")
    parser.add_argument(
        "--max-tokens",
        "-n",
        type=whole(8),
        default=64,
        metavar="N",
        help="the most tokens of an answer of --measure, default 64",
    )
    add_threads(parser, "threads for --measure, default: what suits this machine")
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Search for drafts, and print the result."""
    from specllama.models import resolve, survey

    if arguments.forget and (arguments.measure or arguments.pull):
        raise UsageError("--forget does nothing else: leave --measure and --pull to a second command")
    if arguments.forget:
        return _forget(arguments.model)
    if arguments.model is None:
        raise UsageError("give a model: specllama drafts MODEL")
    path = resolve(arguments.model)
    found = survey(path)
    if arguments.pull and all(one.kind == "foreign" for one in found.usable) and _pull(found):
        found = survey(path)
    gains = _measured(found, arguments) if arguments.measure else {}
    print(_as_json(found, gains) if arguments.output == "json" else _as_text(found, gains))
    return 0


# --- Actions ----------------------------------------------------------------------------------------------------------


def _forget(model: str | None) -> int:
    from specllama.engine import forget
    from specllama.models import resolve

    count = forget(None if model is None else resolve(model))
    print(f"forgot what -md auto is for {count} {'model' if count == 1 else 'models'}", file=sys.stderr)
    return 0


def remember_gains(survey: Survey, gains: Mapping[str, Gain | str]) -> None:
    """Keep the measured gains, by which ``-md auto`` chooses a draft."""
    from specllama.commands.steps import errors_reported
    from specllama.engine import remember

    measured = {name: (gain.ratio, gain.error) for name, gain in gains.items() if not isinstance(gain, str)}
    if measured:
        with errors_reported("what was measured cannot be kept for -md auto"):
            remember(survey, measured)


def _pull(survey: Survey) -> bool:
    """Download the first draft of families.toml that can be downloaded. Returns False if there is none."""
    from specllama.models import pull_draft

    for known in filter(_can_be_pulled, survey.known):
        if (path := pull_draft(known)) is not None:
            print(f"downloaded {path}", file=sys.stderr)
            return True
    print("there is nothing to download that is known for this model", file=sys.stderr)
    return False


def _can_be_pulled(known: KnownDraft) -> bool:
    return known.gguf and not known.in_model


def _measured(survey: Survey, arguments: argparse.Namespace) -> dict[str, Gain | str]:
    """The measured gain of each draft, or the reason why it could not be tried. Keeps the gains for ``-md auto``."""
    import specllama
    from specllama.backend.cpu import default_threads
    from specllama.commands.steps import steps
    from specllama.evidence.draft_pays import gain_of

    threads = arguments.n_threads or default_threads()
    settings: dict[str, Any] = {"n_ctx": _CTX_SIZE, "n_threads": threads, "n_threads_batch": threads}
    gains: dict[str, Gain | str] = {}
    with steps() as progress:
        for draft in [*(one.draft_model for one in _listed(survey)), _LOOKUP]:
            progress.note(f"with {os.path.basename(draft)}")
            try:
                with contextlib.closing(
                    specllama.Llama(survey.path, draft_model=draft, verbose=False, **settings)
                ) as llm:
                    gains[draft] = gain_of(
                        llm,
                        arguments.max_tokens,
                        lambda name, done, total: progress.done(name, done, total, f"against {name}"),
                    )
            except (ValueError, RuntimeError, MemoryError) as error:
                gains[draft] = str(error)
            remember_gains(survey, {draft: gains[draft]})  # now: Ctrl-C may come during the next measurement
    return gains


# --- Output -----------------------------------------------------------------------------------------------------------


def _as_json(survey: Survey, gains: dict[str, Gain | str]) -> str:
    from specllama.engine import KeptCurves

    found, expectations = [], KeptCurves().expected(survey)
    for draft in survey.found:
        one = {**dataclasses.asdict(draft), "expected": dataclasses.asdict(expectations[draft.draft_model])}
        one["measured"] = _gain_as_data(gains.get(draft.draft_model))
        found.append(one)
    document = {
        **{name: value for name, value in dataclasses.asdict(survey).items() if name not in ("found", "known")},
        "found": found,
        "known": [{**dataclasses.asdict(known), "how": _how_to_get(known)} for known in survey.known],
        "lookup": _gain_as_data(gains.get(_LOOKUP)),
        "auto": dataclasses.asdict(_auto(survey)),
        "advice": _advice(survey, gains),
    }
    return json.dumps(document, allow_nan=False)


def _gain_as_data(gain: Gain | str | None) -> Any:
    return dataclasses.asdict(gain) if dataclasses.is_dataclass(gain) else gain


def _as_text(survey: Survey, gains: dict[str, Gain | str]) -> str:
    from specllama.commands.terminal import gigabytes
    from specllama.engine import KeptCurves

    family = survey.family or "of no family that is known"
    lines = [
        f"{os.path.basename(survey.path)}: {family}, {survey.architecture}, {gigabytes(survey.size)}, "
        f"{survey.num_tokens:,} tokens ({survey.tokenizer})",
        "",
    ]
    if survey.found:
        plain = KeptCurves().plain_speed(survey.path)
        speed = "" if plain is None else f" (plain decoding: {plain:.1f} tokens/s)"
        lines += [f"On this machine{speed}:", "", _table(survey), ""]
    if more := len(survey.usable) - len(_listed(survey)):
        lines += [f"And {more} more models of other tokenizers (-o json).", ""]
    lines += [
        f"- {_short(survey, one.draft_model)} cannot be used: {one.why_not}" for one in survey.found if one.why_not
    ]
    lines += [f"- {_short(survey, path)} cannot be used: {why}" for path, why in survey.left_out.items()]
    if survey.known:
        lines += ["Known for this family, and not here:", ""]
        lines += [f"- {known.name} ({known.kind}): {_how_to_get(known)}" for known in survey.known]
        lines.append("")
    if gains:
        lines += ["Measured on eight prompts:", ""]
        lines += [f"- {os.path.basename(name)}: {gain}" for name, gain in gains.items()]
        lines.append("")
    return "\n".join([*lines, *_advice(survey, gains)])


def _table(survey: Survey) -> str:
    from specllama.commands.terminal import gigabytes
    from specllama.engine import KeptCurves
    from specllama.evidence.tables import table

    rows = [("draft", "kind", "where", "tokens", "cost", "accepted", "pays from", "expected", "with prompt", "memory")]
    expectations = KeptCurves().expected(survey)
    for draft in _listed(survey):
        known = expectations[draft.draft_model]
        rows.append(
            (
                _short(survey, draft.draft_model),
                "another tokenizer" if draft.kind == "foreign" else draft.kind,
                draft.where,
                f"{int(draft.share * 1000) / 10:g} %",
                f"{known.cost:.2f}{'' if known.is_measured else ' (by size)'}",
                "?" if draft.acceptance is None else f"{draft.acceptance:.0%}",
                "?" if known.pays_from is None else f"{known.pays_from:.0%}",
                "?" if known.speedup is None else f"{known.speedup:.2f}, {known.tokens_per_second:.1f} tokens/s",
                "?" if known.with_prompt is None else f"{known.with_prompt:.1f} tokens/s",
                gigabytes(draft.memory),
            )
        )
    return table(rows[0], rows[1:], left=rows[0])


def _listed(survey: Survey) -> list[FoundDraft]:
    """The usable drafts. Of models of other tokenizers only the cheapest are shown."""
    foreign = [draft for draft in survey.usable if draft.kind == "foreign"]
    return [draft for draft in survey.usable if draft not in foreign[_MOST_FOREIGN:]]


def _auto(survey: Survey) -> Choice:
    from specllama.engine import chosen_of

    return chosen_of(survey)


def _short(survey: Survey, path: str) -> str:
    """A draft's path; only its name if it is in the model's folder."""
    folder = os.path.dirname(os.path.abspath(survey.path))
    return os.path.basename(path) if os.path.dirname(path) == folder else path


def _how_to_get(known: KnownDraft) -> str:
    from specllama.models import HubName

    if known.in_model:
        return "the model itself in a file with MTP layers: `specllama pull` it, and draft with -md mtp"
    if known.gguf and not known.file:
        return f"`specllama pull {known.name}`, or --pull"
    if known.gguf:
        return f"the file {known.file}... of that repository, beside the model: --pull downloads it"
    if known.kind == "parallel":
        return f"{_CONVERT}, and give its pard_token as draft_mask_token (in Python)"
    return _CONVERT if HubName.of(known.name) else "look for a GGUF file of it"


def _advice(survey: Survey, gains: dict[str, Gain | str]) -> list[str]:
    """The advice for the user, from the drafts on this machine and their measured gains."""
    model, auto = survey.path, _auto(survey)
    lines = [str(auto).replace("draft_model='auto'", "-md auto", 1)]
    measured = {name: gain for name, gain in gains.items() if not isinstance(gain, str)}
    if measured:
        faster = {name: gain.ratio for name, gain in measured.items() if gain.is_faster}
        if not faster:
            return ["None of them was faster than plain decoding here: leave -md out.", *lines]
        return [f"The fastest here: specllama chat -m {model} -md {max(faster, key=faster.__getitem__)}", *lines]
    promising = [draft.draft_model for draft in survey.usable if draft.kind != "foreign"]
    if auto.draft_model in (None, _LOOKUP) and promising:
        lines.append(f"To try the first: specllama chat -m {model} -md {promising[0]}")
    elif auto.draft_model not in (None, _LOOKUP):
        lines.append(f"To try it: specllama chat -m {model} -md {auto.draft_model}")
    if not promising:
        if any(map(_can_be_pulled, survey.known)):
            lines.append(f"To download one: specllama drafts {model} --pull")
        lines.append(f"To make one: specllama train-draft {model}")
    return [*lines, f"Without a second model: specllama chat -m {model} -md lookup"]
