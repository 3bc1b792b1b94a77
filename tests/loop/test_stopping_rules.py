"""Section 8 of the design: what a drafter may look at before it draws the next token.

Small models over three tokens, and drafters that stop, mix and pad by all that they may know. Several rounds are
enumerated in a row: every draft, every outcome, and what the next round then does. Nothing is sampled.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import reference as ref
from random_models import PAIRS, VOCAB, random_model
from test_verify import core_block, core_rejection

LENGTH = 3
MOST = 3
RULES: dict[str, ref.Rule] = {"rejection": core_rejection, "block": core_block}


@dataclasses.dataclass(frozen=True)
class Known:
    """What a drafter may look at.

    Attributes:
        history: all tokens before the round.
        last: of the last round, how many tokens were drafted and how many of them accepted.
        drafted: the tokens drafted so far.
        q: the distributions that they were drawn from.
        next_q: the model's distribution of the next token, which has not been drawn yet.
    """

    history: tuple[int, ...]
    last: tuple[int, int]
    drafted: tuple[int, ...]
    q: tuple[ref.Array, ...]
    next_q: ref.Array

    @property
    def sequence(self) -> tuple[int, ...]:
        """History and draft."""
        return self.history + self.drafted


STOP, MODEL = "stop", "model"
Policy = Callable[[Known], str | int]
"""STOP, MODEL (draw from next_q), or a token: a guess, whose q is one-hot."""


def guess(sequence: tuple[int, ...]) -> int:
    """A lookup: some function of the tokens before."""
    return (2 * sum(sequence) + len(sequence) + 1) % VOCAB


def always(known: Known) -> str | int:
    return MODEL


def stop_behind_unlikely_ones(known: Known) -> str | int:
    return STOP if known.drafted and known.q[-1][known.drafted[-1]] < 0.3 else MODEL


def stop_behind_a_certain_token(known: Known) -> str | int:
    return STOP if known.drafted[-1:] == (0,) else MODEL


def stop_before_doubt(known: Known) -> str | int:
    """Before a token is drawn from a flat distribution, not because of which one it is."""
    return MODEL if known.next_q.max() > 0.5 else STOP


def look_up(known: Known) -> str | int:
    """Guesses alone, until one is a 0."""
    return STOP if known.drafted[-1:] == (0,) else guess(known.sequence)


def look_up_then_draw(known: Known) -> str | int:
    return MODEL if known.drafted[:1] == (1,) or len(known.drafted) == 2 else guess(known.sequence)


def draw_then_look_up(known: Known) -> str | int:
    """What the model drew decides where the next token comes from, and whether there is one."""
    if not known.drafted:
        return MODEL
    return {0: guess(known.sequence), 1: MODEL, 2: STOP}[known.drafted[-1]]


def pad(known: Known) -> str | int:
    """The same token once more where the model is not sure: the batch of four may be cheaper than that of three."""
    if known.drafted and known.q[-1][known.drafted[-1]] < 0.6:
        return known.drafted[-1]
    return MODEL


def follow_the_last_round(known: Known) -> str | int:
    """A window that grows while all are accepted; plain decoding behind a round in which none was."""
    drafted, accepted = known.last
    if accepted == 0 and drafted > 0:
        return STOP
    return MODEL if len(known.drafted) <= (drafted if accepted == drafted else 0) else STOP


POLICIES: list[Policy] = [
    always,
    stop_behind_unlikely_ones,
    stop_behind_a_certain_token,
    stop_before_doubt,
    look_up,
    look_up_then_draw,
    draw_then_look_up,
    pad,
    follow_the_last_round,
]


@dataclasses.dataclass(frozen=True)
class Draft:
    """A proposal, and how likely it is."""

    tokens: tuple[int, ...]
    q: tuple[ref.Array, ...]
    probability: float


Drafter = Callable[[ref.Model, tuple[int, ...], tuple[int, int]], Iterator[Draft]]
"""Given the model, history and the last round: every proposal that can be made."""


def one_hot(token: int) -> ref.Array:
    return np.eye(VOCAB)[token]


def following(policy: Policy) -> Drafter:
    """Drafts as the policy says, MOST tokens at most."""

    def drafts(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
        waiting = [Draft((), (), 1.0)]
        while waiting:
            draft = waiting.pop()
            known = Known(history, last, draft.tokens, draft.q, model(history + draft.tokens))
            move = STOP if len(draft.tokens) == MOST else policy(known)
            if move == STOP:
                yield draft
            elif isinstance(move, int):
                waiting.append(Draft((*draft.tokens, move), (*draft.q, one_hot(move)), draft.probability))
            else:
                for token in range(VOCAB):
                    if known.next_q[token] > 0.0:
                        probability = draft.probability * float(known.next_q[token])
                        waiting.append(Draft((*draft.tokens, token), (*draft.q, known.next_q), probability))

    return drafts


def emitted(target: ref.Model, model: ref.Model, drafter: Drafter, rule: ref.Rule) -> dict[tuple[int, ...], float]:
    """The probability of every sequence of LENGTH tokens at the beginning of a text made by rounds of speculation."""
    result: dict[tuple[int, ...], float] = collections.defaultdict(float)
    # Every state that a text can be in between two rounds, by its length: rounds make it longer.
    states: list[dict[tuple[tuple[int, ...], tuple[int, int]], float]] = [
        collections.defaultdict(float) for _ in range(LENGTH)
    ]
    states[0][(), (1, 1)] = 1.0
    for waiting in states:
        for (history, last), reached in waiting.items():
            for draft in drafter(model, history, last):
                p = [target(history + draft.tokens[:i]) for i in range(len(draft.tokens) + 1)]
                for outcome in rule(p, draft.q, draft.tokens):
                    for token in range(VOCAB):
                        mass = float(outcome.next_token[token])
                        mass *= reached * draft.probability * outcome.probability
                        if mass == 0.0:
                            continue
                        text = (*history, *draft.tokens[: outcome.accepted], token)
                        if len(text) >= LENGTH:
                            result[text[:LENGTH]] += mass
                        else:
                            states[len(text)][text, (len(draft.tokens), outcome.accepted)] += mass
    return result


@pytest.mark.sampled(40)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
@pytest.mark.parametrize("pair", PAIRS)
def test_the_text_has_the_distribution_of_the_target(pair: str, policy: Policy, rule: str) -> None:
    target, model = PAIRS[pair]
    result = emitted(target, model, following(policy), RULES[rule])
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-9)
    assert ref.largest_error(target, result, VOCAB, LENGTH) < 1e-9


@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.__name__)
def test_the_policies_do_different_things(policy: Policy) -> None:
    """Each drafts something, and none but `always` drafts as many tokens whatever they are."""
    _, model = PAIRS["random"]
    lengths = {
        len(draft.tokens)
        for history in [(), (0,), (1,), (2,), (0, 1), (2, 2)]
        for last in [(1, 1), (3, 3), (3, 1), (2, 0)]
        for draft in following(policy)(model, history, last)
    }
    assert max(lengths) > 1
    assert (len(lengths) == 1) == (policy in (always, look_up_then_draw, pad))


def dropping(p_min: float) -> Drafter:
    """Draws d_i, and leaves it out if q(d_i) < p_min."""

    def drafts(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
        for draft in following(always)(model, history, last):
            unlikely = (i for i, token in enumerate(draft.tokens) if draft.q[i][token] < p_min)
            end = next(unlikely, len(draft.tokens))
            yield Draft(draft.tokens[:end], draft.q[:end], draft.probability)

    return drafts


def cutting_behind_an_end(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
    """Leaves out whatever was drawn behind the first 0, say an end of text: none of it decides where the cut is."""
    for draft in following(draw_then_look_up if last[1] else always)(model, history, last):
        end = draft.tokens.index(0) + 1 if 0 in draft.tokens else len(draft.tokens)
        yield Draft(draft.tokens[:end], draft.q[:end], draft.probability)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pair", PAIRS)
def test_a_draft_may_be_cut_behind_an_end(pair: str, rule: str) -> None:
    target, model = PAIRS[pair]
    result = emitted(target, model, cutting_behind_an_end, RULES[rule])
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-9)
    assert ref.largest_error(target, result, VOCAB, LENGTH) < 1e-9


def choosing(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
    """Takes the lookup instead of the model's draft if the two disagree at their first token."""
    looked_up = next(following(lambda known: guess(known.sequence))(model, history, last))
    for draft in following(always)(model, history, last):
        if draft.tokens[0] == looked_up.tokens[0]:
            yield draft
        else:
            yield dataclasses.replace(looked_up, probability=draft.probability)


def pretending(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
    """Says of sampled tokens that they were looked up."""
    for draft in following(always)(model, history, last):
        yield dataclasses.replace(draft, q=tuple(one_hot(token) for token in draft.tokens))


BROKEN: dict[str, Drafter] = {
    "drops a token because of which one it is": dropping(0.3),
    "chooses by what was drawn": choosing,
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("drafter", BROKEN)
def test_taking_back_what_was_drawn_is_caught(drafter: str, rule: str) -> None:
    target, model = PAIRS["random"]
    result = emitted(target, model, BROKEN[drafter], RULES[rule])
    assert sum(result.values()) == pytest.approx(1.0, abs=1e-9), "a distribution, but another one"
    assert ref.largest_error(target, result, VOCAB, LENGTH) > 1e-4


def test_an_error_in_the_second_round_is_caught() -> None:
    """The enumeration sees what follows a round: here only a round behind an acceptance drops its unlikely tokens."""

    def drafts(model: ref.Model, history: tuple[int, ...], last: tuple[int, int]) -> Iterator[Draft]:
        behind_acceptance = history and last[1] > 0
        drafter = dropping(0.3) if behind_acceptance else following(stop_behind_unlikely_ones)
        yield from drafter(model, history, last)

    target, model = PAIRS["close"]
    result = emitted(target, model, drafts, core_rejection)
    assert ref.largest_error(target, result, VOCAB, LENGTH) > 1e-4


@pytest.mark.parametrize("rule", RULES)
def test_a_target_that_is_slightly_another_is_caught(rule: str) -> None:
    """The bound of 1e-9 is tight: a temperature that is off by one in ten thousand shows."""
    target, model = PAIRS["random"]
    result = emitted(random_model(1, sharpness=1.5 * 1.0001), model, following(always), RULES[rule])
    assert 1e-9 < ref.largest_error(target, result, VOCAB, LENGTH) < 1e-3


def test_guesses_are_told_from_samples() -> None:
    """A sampled token whose q is said to be one-hot is accepted with p instead of min(1, p / q): fewer, still exact.

    Unlike dropping, it changes how much is accepted and not what is said: q decides what the correction leaves out.
    """
    target, model = PAIRS["random"]
    error = ref.largest_error(target, emitted(target, model, pretending, core_rejection), VOCAB, LENGTH)
    assert error < 1e-9
