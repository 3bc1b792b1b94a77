"""The result of a verification as text."""

from __future__ import annotations

from typing import Any

from specllama.evidence.tables import models_text, notes_text, table
from specllama.stats import Stats

from .batches import NUM_ROWS
from .loop import PENALTIES
from .rounding import SAFETY
from .verdicts import Difference, SamplingTest, TextComparison, TokenTest, VerifyResult

_NEUTRAL = {"top_k": 0, "top_p": 1.0, "min_p": 0.0, "typical_p": 1.0, **PENALTIES}
_NEUTRAL |= {"xtc_probability": 0.0, "top_n_sigma": -1.0, "dynatemp_range": 0.0}


def to_text(result: VerifyResult) -> str:
    """A heading, the parts that were verified, notes, and the verdict in the last line."""
    parts = [_heading(result), _texts(result)]
    parts += [_sampling(result)] if result.sampling else []
    parts += [_tokens(result)] if result.tokens else []
    parts += [_batches(result)] if result.batches else []
    untested = [f"NOT TOLD: {reason}" for reason in result.untested]
    if remarks := [*result.notes, *untested, *(f"FAILED: {problem}" for problem in result.problems)]:
        parts.append(notes_text(remarks))
    return "\n\n".join([*parts, _verdict(result)])


def _heading(result: VerifyResult) -> str:
    machine = result.machine
    return (
        f"{models_text(machine)}, tokens drafted a round: {result.settings['num_draft_tokens']}\n"
        f"specllama {machine['specllama']}, llama-cpp-python {machine['llama_cpp_python']}, "
        f"{', '.join(machine['backends'])}, {machine['cpu']}"
    )


def _texts(result: VerifyResult) -> str:
    titles = ("prompt", "mode", "seed", "tokens", "accepted", "with the draft")
    rows = [
        [
            text.prompt_id,
            text.mode,
            "-" if text.seed is None else str(text.seed),
            _compared(text),
            _accepted(text.stats),
            _text_verdict(text),
        ]
        for text in result.texts
    ]
    lines = [f"  {text.name}: {_difference(found)}" for text in result.texts for found in text.differences]
    parts = ["Texts with the draft against those without it, token by token", table(titles, rows, left=titles[:2])]
    if lines:
        explanation = (
            "Where they part, the target was decoded once more without the loop, in batches of several sizes. Gap: how "
            "far the two\ntokens are from being tied, in logits. Rounding: what batch sizes change there among the "
            f"leading tokens. A gap of up to\n{SAFETY:g} times the rounding is a near-tie."
        )
        parts.append("\n".join([explanation, *lines]))
    return "\n\n".join(parts)


def _compared(text: TextComparison) -> str:
    full = text.num_compared == text.num_tokens
    return str(text.num_tokens) if full else f"{text.num_compared} of {text.num_tokens}"


def _accepted(stats: Stats) -> str:
    if stats.num_draft_tokens == 0:
        return "none drafted"
    return f"{stats.num_accepted_tokens} of {stats.num_draft_tokens}"


def _text_verdict(text: TextComparison) -> str:
    if text.problems:
        return "FAILED"
    count = len(text.differences)
    return "equal" if count == 0 else f"equal but for {count} near-tie{'s' if count > 1 else ''}"


def _difference(difference: Difference) -> str:
    plain = "the end" if difference.plain is None else repr(difference.plain_text)
    drafted = "the end" if difference.drafted is None else repr(difference.drafted_text)
    where = f"token {difference.index} is {plain} without the draft and {drafted} with it"
    if difference.plain is None or difference.drafted is None:
        return where
    gap = "infinite" if difference.gap is None else f"{difference.gap:.2g}"
    verdict = "a near-tie" if difference.near_tie else "NOT a near-tie"
    return f"{where}: gap {gap}, rounding {difference.rounding:.2g}: {verdict}"


def _sampling(result: VerifyResult) -> str:
    titles = ("context", "rule", "cells", "accepted", "TV", "chance", "95%", "chi2", "p", "rounding", "samples")
    rows = [
        [
            f"{test.prompt_id} + {test.num_behind}",
            test.rule,
            str(test.num_cells),
            _accepted(test.stats),
            f"{test.total_variation:.3f}",
            f"{test.chance_mean:.3f}",
            f"{test.chance_95:.3f}",
            f"{test.chi_square:.1f}",
            f"{test.p_value:.2g}",
            f"{test.rounding:.2g}",
            _test_verdict(test),
        ]
        for test in result.sampling
    ]
    settings = result.settings
    return "\n\n".join(
        [
            f"{settings['samples']} pairs of next tokens each, {_chain(settings['sampling'])}, against the target's "
            "exact probabilities",
            table(titles, rows, left=titles[:2]),
            _power(result.sampling, settings["level"]),
        ]
    )


def _tokens(result: VerifyResult) -> str:
    titles = ("rule", "texts", "tokens", "accepted", "chi2", "p", "tokens' places")
    rows = [
        [
            test.rule,
            str(test.num_texts),
            str(test.num_tokens),
            _accepted(test.stats),
            f"{test.chi_square:.1f}",
            f"{test.p_value:.2g}",
            _test_verdict(test),
        ]
        for test in result.tokens
    ]
    return (
        "Whole texts, which have every draft position and many rounds: the place of each token in the target's exact\n"
        f"distribution there, in ten cells of equal probability\n\n{table(titles, rows, left=titles[:1])}"
    )


def _test_verdict(test: SamplingTest | TokenTest) -> str:
    return "FAILED" if test.problems else "NOT TOLD" if test.untested else "agree"


def _power(tests: list[SamplingTest], level: float) -> str:
    low, high = min(test.chance_95 for test in tests), max(test.chance_95 for test in tests)
    limits = f"{low:.2f}" if f"{low:.2f}" == f"{high:.2f}" else f"{low:.2f} to {high:.2f}"
    return (
        "A context is a prompt and so many tokens of its answer. TV: total variation between frequencies and "
        "probabilities, beside\nwhat sampling error alone gives (chance: in the mean; 95%: exceeded once in 20 times). "
        f"A test fails at p < {tests[0].level:.2g}, so that\nall of them together fail an exact loop in "
        f"{level:.1%} of runs. What they cannot see: errors that move less than about {limits}\n"
        "(the 95% column) of the probability; more --samples see smaller ones. Rounding: TV between the target's "
        "own\nprobabilities in batches of the loop's size and of one token."
    )


def _chain(sampling: dict[str, Any]) -> str:
    named = {name: sampling[name] for name, neutral in _NEUTRAL.items() if sampling.get(name, neutral) != neutral}
    words = [f"temperature {sampling['temperature']:g}", *(f"{name} {value:g}" for name, value in named.items())]
    return ", ".join([*words, *(["logit_bias"] if sampling["logit_bias"] else [])])


def _batches(result: VerifyResult) -> str:
    lengths = ", ".join(str(test.num_tokens_before) for test in result.batches if not test.problems)
    return (
        f"Logits of {NUM_ROWS} tokens behind {lengths or 'any'} tokens, bit by bit, in batches of 1 to {NUM_ROWS}: "
        f"{'the same' if lengths else 'not the same'}"
    )


def _verdict(result: VerifyResult) -> str:
    count = len(result.problems)
    if count:
        return f"FAILED: {count} problem{'s' if count > 1 else ''}, see above"
    count = len(result.untested)
    if result.interrupted:
        holds = f"no problem found, {count} not told, see above" if count else "all of these hold"
        return (
            f"INTERRUPTED: texts so far {len(result.texts)}, sets of samples {len(result.sampling)}, rules with whole "
            f"texts {len(result.tokens)}; {holds}, and the rest was not looked at"
        )
    if count:
        return f"NOT TOLD: {count} part{'s' if count > 1 else ''}, see above; all others hold"
    ties = result.num_near_ties
    near = f" but for {ties} near-tie{'s' if ties > 1 else ''}" if ties else ""
    count = len(result.sampling)
    return (
        f"PASSED: {len(result.texts)} texts with the draft equal those without it{near}, "
        f"{count} set{'s' if count > 1 else ''} of samples and the tokens of {result.tokens[0].num_texts} texts a rule "
        "agree with the target's probabilities"
    )
