"""The mathematics of specllama in NumPy, in the papers' notation and without any cleverness.

`p` is the target's distribution at a position, `q` the draft's, `gamma` the number of drafted tokens. Distributions are
dense float64 arrays over the vocabulary. Nothing here samples: rules are given as the probability of each outcome.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Model = Callable[[tuple[int, ...]], Array]
"""An autoregressive model: the distribution of the next token, given all tokens before it."""


# --- The sampler chain of llama_cpp.Llama._init_sampler, and what llama-server has besides ----------------------------


@dataclasses.dataclass(frozen=True)
class Chain:
    """Parameters of the chain; names and defaults are llama_cpp.Llama's, the last ones llama-server's."""

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = dataclasses.field(default_factory=dict)
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0

    def num_slots(self, num_kept: int, n_vocab: int) -> int:
        """Entries of llama.cpp's array at the end: only these samplers take those out that are ruled out."""
        if self.typical_p < 1 or self.top_p < 1 or self.min_p > 0:
            return num_kept
        return min(self.top_k, n_vocab) if self.top_k > 0 else n_vocab


def softmax(logits: Array) -> Array:
    """exp(x) / sum exp(x), for logits of which at least one is finite."""
    weights = np.exp(logits - logits.max())
    return np.asarray(weights / weights.sum())


def biased_and_penalised(logits: npt.NDArray[np.float32], chain: Chain, recent: Sequence[int]) -> Array:
    """Logit bias, then the penalties for the last `penalty_last_n` tokens of `recent`.

    In float32 and in llama.cpp's order of operations: a tie of two float32 logits must stay a tie.
    """
    logits = logits.astype(np.float32).copy()
    for token, bias in chain.logit_bias.items():
        logits[token] += np.float32(bias)
    seen = recent[-chain.penalty_last_n :] if chain.penalty_last_n > 0 else []
    for token, count in collections.Counter(seen).items():
        if logits[token] <= 0:
            logits[token] *= np.float32(chain.repeat_penalty)
        else:
            logits[token] /= np.float32(chain.repeat_penalty)
        logits[token] -= np.float32(count) * np.float32(chain.frequency_penalty) + np.float32(chain.presence_penalty)
    return logits.astype(np.float64)


def tempered(logits: Array, chain: Chain, slots: int) -> Array:
    """softmax(logits / temperature). With a range, its place there is the entropy as a share of log(slots)."""
    temperature = chain.temperature
    if chain.dynatemp_range > 0 and len(logits) > 1:
        p = softmax(logits)
        entropy = -np.sum(p[p > 0] * np.log(p[p > 0]))
        lowest, highest = max(0.0, temperature - chain.dynatemp_range), temperature + chain.dynatemp_range
        temperature = lowest + (highest - lowest) * (entropy / np.log(slots)) ** chain.dynatemp_exponent
    return softmax((logits - logits.max()) / max(temperature, 1e-300))


def dry_penalties(
    history: Sequence[int], multiplier: float, base: float, allowed_length: int, breakers: Sequence[Sequence[int]] = ()
) -> dict[int, float]:
    """DRY: what each token loses behind a history, by comparing the end of it with every earlier place.

    A token goes on with a repetition of n tokens if it followed, earlier, the n tokens that the history ends with. None
    of these lies behind the last breaker, of which those that begin later count first, and then longer ones.
    """
    size = len(history)
    if size <= allowed_length:
        return {}
    most = size
    for start in range(size - 1, -1, -1):
        ends = [start + len(b) for b in breakers if tuple(history[start : start + len(b)]) == tuple(b)]
        if ends:
            most = size - max(ends)
            break
    longest: dict[int, int] = {}
    for end in range(1, size):
        n = 0
        while n < min(end, most) and history[end - 1 - n] == history[size - 1 - n]:
            n += 1
        if n >= allowed_length:
            longest[history[end]] = max(n, longest.get(history[end], 0))
    alone = {b[0] for b in breakers if len(b) == 1}
    return {t: multiplier * base ** (n - allowed_length) for t, n in longest.items() if t not in alone}


@dataclasses.dataclass(frozen=True)
class ChainResult:
    """What the chain leaves.

    Attributes:
        probs: Probability of every token of the vocabulary; sums to 1.
        margin: How far the nearest decision on rounded numbers (keep this token or not) was from going the other way,
            in the units that it is taken in. Rounding can explain another support only if this is tiny.
        tied: Whether two tokens of equal logit were told apart: which of them is kept is up to the sorting algorithm.
    """

    probs: Array
    margin: float = np.inf
    tied: bool = False


def sampler_chain(logits: npt.NDArray[np.float32], chain: Chain, recent: Sequence[int] = ()) -> ChainResult:
    """The distribution from which llama_cpp.Llama samples the next token."""
    x = biased_and_penalised(logits, chain, recent)
    margins = [np.inf]
    cuts = []  # logits on the two sides of a cut
    if chain.temperature < 0:
        return ChainResult(softmax(x))

    # Descending by logit, ties by id.
    kept = np.lexsort((np.arange(len(x)), -x))
    kept = kept[x[kept] > -np.inf]
    if chain.temperature == 0:
        probs = np.zeros(len(x))
        probs[kept[0]] = 1.0
        return ChainResult(probs, tied=len(kept) > 1 and bool(x[kept[0]] == x[kept[1]]))

    if chain.top_n_sigma > 0:
        threshold = x[kept[0]] - chain.top_n_sigma * np.std(x[kept])
        margins.append(float(np.min(np.abs(x[kept] - threshold))))
        kept = kept[x[kept] >= threshold]
    if 0 < chain.top_k < len(kept):
        cuts.append((x[kept[chain.top_k - 1]], x[kept[chain.top_k]]))
        kept = kept[: chain.top_k]
    if chain.typical_p < 1:
        p = softmax(x[kept])
        surprise = np.full(len(p), np.inf)
        surprise[p > 0] = -np.log(p[p > 0])
        entropy = np.sum(p[p > 0] * surprise[p > 0])
        order = np.argsort(np.abs(surprise - entropy), kind="stable")
        total = np.cumsum(p[order])
        n = min(int(np.searchsorted(total, chain.typical_p, side="right")) + 1, len(p))
        margins.append(float(np.min(np.abs(total - chain.typical_p))))
        if n < len(p):
            last, first_out = order[n - 1], order[n]
            cuts.append((x[kept[last]], x[kept[first_out]]))
            score = np.abs(surprise - entropy)
            margins.append(float(score[first_out] - score[last]) or np.inf)
        kept = kept[np.sort(order[:n])]
    if chain.top_p < 1:
        p = softmax(x[kept])
        total = np.cumsum(p)
        n = min(int(np.searchsorted(total, chain.top_p, side="left")) + 1, len(p))
        margins.append(float(np.min(np.abs(total - chain.top_p))))
        if n < len(p):
            cuts.append((x[kept[n - 1]], x[kept[n]]))
        kept = kept[:n]
    if chain.min_p > 0:
        threshold = x[kept[0]] + np.log(chain.min_p)
        margins.append(float(np.min(np.abs(x[kept] - threshold))) or np.inf)
        n = max(1, int(np.sum(x[kept] >= threshold)))  # the first one stays even for min_p > 1
        if n < len(kept):
            cuts.append((x[kept[n - 1]], x[kept[n]]))
        kept = kept[:n]
    slots = chain.num_slots(len(kept), len(x))
    probs = np.zeros(len(x))
    probs[kept] = tempered(x[kept], chain, slots)
    if chain.xtc_probability > 0 and chain.xtc_threshold <= 0.5 and len(kept) > 1:
        p = softmax(x[kept])
        margins.append(float(np.min(np.abs(p - chain.xtc_threshold))))
        n = int(np.sum(p >= chain.xtc_threshold)) - 1
        if n > 0:
            cuts.append((x[kept[n - 1]], x[kept[n]]))
            probs *= 1 - chain.xtc_probability
            probs[kept[n:]] += chain.xtc_probability * tempered(x[kept[n:]], chain, slots - n)
    return ChainResult(probs, min(margins), tied=any(above == below for above, below in cuts))


# --- Verification rules -----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """One way in which a round can end: `accepted` drafted tokens, then one token from `next_token`."""

    accepted: int
    probability: float
    next_token: Array


def norm(weights: Array) -> Array:
    """weights / sum(weights); all zeros where there is nothing to normalise (an outcome of probability 0)."""
    total = weights.sum()
    return np.asarray(weights / total) if total > 0 else np.zeros_like(weights)


def residual(p: Array, q: Array, weight: float = 1.0) -> Array:
    """norm(max(0, weight p - q)): what is drawn from after a rejection."""
    return norm(np.maximum(0.0, weight * p - q))


def rejection_acceptance(p: Sequence[Array], q: Sequence[Array], draft: Sequence[int]) -> Array:
    """Leviathan et al. 2022, algorithm 1: a_i = min(1, p_i(d_i) / q_i(d_i))."""
    return np.array([min(1.0, p[i][d] / q[i][d]) for i, d in enumerate(draft)])


def rejection_outcomes(p: Sequence[Array], q: Sequence[Array], draft: Sequence[int]) -> list[Outcome]:
    """Accept d_1, d_2, .. while coins say so; correct at the first rejection, else draw the bonus from p_{gamma+1}."""
    outcomes = []
    reached = 1.0
    for i, a in enumerate(rejection_acceptance(p, q, draft)):
        outcomes.append(Outcome(i, reached * (1.0 - a), residual(p[i], q[i])))
        reached *= a
    return [*outcomes, Outcome(len(draft), reached, p[len(draft)])]


def block_weights(p: Sequence[Array], q: Sequence[Array], draft: Sequence[int]) -> tuple[Array, Array]:
    """Sun et al. 2025, algorithm 2: (h_1..h_gamma, w_0..w_gamma)."""
    gamma = len(draft)
    w = [1.0]
    for i, d in enumerate(draft):
        w.append(min(1.0, w[i] * p[i][d] / q[i][d]))
    h = []
    for i in range(1, gamma):
        r = float(np.maximum(0.0, w[i] * p[i] - q[i]).sum())
        h.append(r / (r + 1.0 - w[i]) if r + 1.0 - w[i] > 0 else 0.0)
    if gamma:
        h.append(w[gamma])
    return np.array(h), np.array(w)


def block_outcomes(p: Sequence[Array], q: Sequence[Array], draft: Sequence[int]) -> list[Outcome]:
    """The accepted length is the largest i whose own coin says yes."""
    gamma = len(draft)
    h, w = block_weights(p, q, draft)
    outcomes = [Outcome(gamma, float(h[-1]) if gamma else 1.0, p[gamma])]
    none_above = 1.0 - outcomes[0].probability
    for i in range(gamma - 1, 0, -1):
        outcomes.append(Outcome(i, none_above * h[i - 1], residual(p[i], q[i], w[i])))
        none_above *= 1.0 - h[i - 1]
    if gamma:
        outcomes.append(Outcome(0, none_above, residual(p[0], q[0])))
    return outcomes


def gumbel_argmax(p: Array, noise: Array) -> int:
    """argmax_x log p(x) + G(x), whose distribution is p if the noise is standard Gumbel."""
    with np.errstate(divide="ignore"):
        return int(np.argmax(np.log(p) + noise))


def coupled(p: Sequence[Array], draft: Sequence[int], noise: Sequence[Array]) -> tuple[int, int]:
    """Daliri et al. 2024: accept while the draft agrees with the target's own Gumbel argmax. (accepted, next token)."""
    for i, d in enumerate(draft):
        token = gumbel_argmax(p[i], noise[i])
        if token != d:
            return i, token
    return len(draft), gumbel_argmax(p[len(draft)], noise[len(draft)])


# --- Exact enumeration ------------------------------------------------------------------------------------------------

Rule = Callable[[Sequence[Array], Sequence[Array], Sequence[int]], list[Outcome]]
Stop = Callable[[Sequence[Array], Sequence[int]], int]
"""Given q and all gamma drafted tokens: how many of them are handed to the rule."""


def sequences(vocab: int, length: int) -> Iterator[tuple[int, ...]]:
    """Every sequence of that length."""
    return itertools.product(range(vocab), repeat=length)


def sequence_probability(model: Model, sequence: Sequence[int], prefix: tuple[int, ...] = ()) -> float:
    """The probability that a model continues `prefix` by `sequence`."""
    probability = 1.0
    for i, token in enumerate(sequence):
        probability *= float(model(prefix + tuple(sequence[:i]))[token])
    return probability


def round_distribution(
    target: Model, draft_model: Model, vocab: int, gamma: int, rule: Rule, stop: Stop | None = None
) -> tuple[dict[tuple[int, ...], float], float]:
    """One round of speculation, continued by the target alone until gamma + 1 tokens are there.

    Every draft block and every outcome is enumerated; nothing is sampled.

    Returns:
        The probability of every sequence of gamma + 1 tokens, and the expected number of accepted tokens.
    """
    emitted: dict[tuple[int, ...], float] = collections.defaultdict(float)
    accepted = 0.0
    for block in sequences(vocab, gamma):
        probability = sequence_probability(draft_model, block)
        if probability == 0.0:
            continue
        q = [draft_model(block[:i]) for i in range(gamma)]
        n = gamma if stop is None else stop(q, block)
        p = [target(block[:i]) for i in range(n + 1)]
        for outcome in rule(p, q[:n], block[:n]):
            accepted += probability * outcome.probability * outcome.accepted
            for token in range(vocab):
                mass = probability * outcome.probability * float(outcome.next_token[token])
                if mass > 0.0:
                    emitted[(*block[: outcome.accepted], token)] += mass
    result: dict[tuple[int, ...], float] = collections.defaultdict(float)
    for prefix, mass in emitted.items():
        for rest in sequences(vocab, gamma + 1 - len(prefix)):
            result[prefix + rest] += mass * sequence_probability(target, rest, prefix)
    return dict(result), accepted


def largest_error(target: Model, result: Mapping[tuple[int, ...], float], vocab: int, length: int) -> float:
    """How far `result` is from the target's own distribution over sequences of that length, at worst."""
    return max(abs(result.get(s, 0.0) - sequence_probability(target, s)) for s in sequences(vocab, length))
