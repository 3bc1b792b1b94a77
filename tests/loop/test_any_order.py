"""Random sequences of all that moves a memory. Whatever came before, the next text is that of a fresh Llama."""

from __future__ import annotations

import itertools
import random
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from test_continuing import logits_behind
from test_logits_processors import processors

from specllama import _core_test as _test

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from conftest import MakeLlama, TinyFiles

    import specllama

pytestmark = [
    pytest.mark.skipif(
        not hasattr(llama_cpp, "llama_state_seq_get_data_ext"), reason="this llama-cpp-python cannot copy states"
    ),
    pytest.mark.filterwarnings("ignore:the draft .* is larger than the target"),
]

DRAFTS = {
    "target": "good",
    "sliding": "sliding_draft",
    "recurrent": "recurrent_good",
    "hybrid": "hybrid_good",
    "deep": "deep_head",
}
LONGEST = 350


TIE = 1e-4
"""Two tokens whose scores are nearer to each other than this are told apart by rounding, which depends on the batch."""


MOST_WALKS = 4
"""Until one of them comes to its end without a near-tie."""


class NearTie(Exception):
    """The texts split where the two tokens are as good as equal: nothing that follows can be compared."""


class Walk:
    """A Llama with a draft, one without to compare with, and the text so far.

    Attributes:
        text: what is evaluated.
        last: what was generated and is not: the last token, or nothing.
    """

    def __init__(self, llm: specllama.Llama, plain: specllama.Llama, chance: random.Random) -> None:
        self.llm, self.plain, self.chance = llm, plain, chance
        self.text: list[int] = []
        self.last: list[int] = []
        self.states: list[tuple[llama_cpp.LlamaState, list[int]]] = []

    def go(self, num_steps: int) -> None:
        """From an empty memory."""
        self.reset()
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        """Does something."""
        steps = [self.another_text, self.go_on, self.send, self.interrupt, self.interrupt_by_eval, self.eval]
        steps += [self.save, self.load, self.complete, self.refuse]
        step = self.reset if len(self.text) > LONGEST else self.chance.choice(steps)
        step()
        assert list(self.llm.eval_tokens) == self.text
        assert self.llm.stats.fallback_reason is None

    def words(self, most: int) -> list[int]:
        return [self.chance.randrange(260, 320) for _ in range(self.chance.randrange(1, most))]

    def begun(
        self, llm: specllama.Llama, seed: int, prompt: list[int], **settings: Any
    ) -> Generator[int, Sequence[int] | None, None]:
        llm.set_seed(seed)
        return llm.generate(prompt, temp=0.9, verify="coupled", **settings)

    def generate(self, behind: list[int], prompt: list[int], **settings: Any) -> Any:
        """Takes some tokens, and leaves the generator as it is."""
        seed, count = self.chance.randrange(1000), self.chance.randrange(1, 20)
        if self.chance.random() < 0.3:
            settings["logits_processor"] = processors("by history")
        generation = self.begun(self.llm, seed, prompt, **settings)
        tokens = list(itertools.islice(generation, count))
        settings.pop("reset", None)
        self.text = [*behind, *prompt]
        expected = self.begun(self.plain, seed, self.text, **settings)
        self.compare(seed, self.text, tokens, list(itertools.islice(expected, count)), **settings)
        self.text, self.last = self.text + tokens[:-1], tokens[-1:]
        return generation, lambda text: list(itertools.islice(self.begun(self.plain, seed, text, **settings), 6))

    def compare(self, seed: int, behind: list[int], found: list[int], expected: list[int], **settings: Any) -> None:
        """They are equal, or split at a near-tie of the scores that decide: logit / temperature + noise."""
        split = next((i for i, (a, b) in enumerate(zip(found, expected, strict=False)) if a != b), None)
        if split is None:
            assert found == expected
            return
        text = [*behind, *expected[:split]]
        self.plain.reset()
        logits = logits_behind(self.plain, text)
        for process in settings.get("logits_processor") or ():
            logits = process(np.array(text, dtype=np.intc), logits)
        one, other = (
            float(logits[token]) / 0.9 + _test.gumbel(seed, len(text), token)
            for token in (found[split], expected[split])
        )
        assert abs(one - other) < TIE, (
            f"{found} and {expected} split at {split}, where the scores are {one} and {other}"
        )
        raise NearTie(f"after {len(text)} tokens the scores of two are {one} and {other}")

    def with_last(self, text: str, prompt: list[int]) -> list[int]:
        """What was generated, the last token included, from its text."""
        evaluated = list(self.llm.eval_tokens)[len(prompt) :]
        known = self.plain.detokenize(evaluated, prev_tokens=prompt).decode()
        assert text.startswith(known)
        return [*evaluated, *self.plain.tokenize(text[len(known) :].encode(), add_bos=False)[-1:]]

    def another_text(self) -> None:
        common = self.chance.randrange(len(self.text) + 1)
        self.generate([], self.text[:common] + self.words(30))

    def go_on(self) -> Any:
        return self.generate(self.text, self.last + self.words(30), reset=not self.text)

    def send(self) -> None:
        generation, plain = self.go_on()
        own = self.words(9)
        tokens = [generation.send(own), *itertools.islice(generation, 5)]
        self.text += self.last + own
        assert tokens == plain(self.text)
        self.text, self.last = self.text + tokens[:-1], tokens[-1:]

    def interrupt(self) -> None:
        generation, _ = self.go_on()
        self.go_on()
        with pytest.raises(RuntimeError, match="ended by a later one"):
            next(generation)

    def interrupt_by_eval(self) -> None:
        generation, _ = self.go_on()
        self.eval()
        with pytest.raises(RuntimeError, match="changed during a generation"):
            next(generation)

    def eval(self) -> None:
        tokens = self.last + self.words(20)
        self.text, self.last = self.text + tokens, []
        found = logits_behind(self.llm, tokens)
        self.plain.reset()
        assert np.allclose(found, logits_behind(self.plain, self.text), atol=1e-2)

    def save(self) -> None:
        self.states.append((self.llm.save_state(), self.text))

    def load(self) -> None:
        if self.states:
            state, self.text = self.chance.choice(self.states)
            self.llm.load_state(state)
            self.last = []

    def complete(self) -> None:
        prompt = self.text + self.last + self.words(9)
        settings: dict[str, Any] = {"temperature": 0.9, "verify": "coupled", "max_tokens": 20, "stop": ["cat"]}
        settings["seed"] = self.chance.randrange(1000)
        ours, theirs = (llm.create_completion(prompt, **settings) for llm in (self.llm, self.plain))
        found, expected = (list(llm.eval_tokens)[len(prompt) :] for llm in (self.llm, self.plain))
        seen = [choice["text"] for completion in (ours, theirs) for choice in completion["choices"]]
        if seen[0] != seen[1] and found == expected:  # the last token is in no cache
            found, expected = (self.with_last(text, prompt) for text in seen)
        self.compare(settings["seed"], prompt, found, expected)
        assert ours["choices"] == theirs["choices"]
        self.text, self.last = list(self.llm.eval_tokens), []

    def refuse(self) -> None:
        with pytest.raises(ValueError, match="out of range"):
            next(self.llm.generate([*self.text, -1]))

    def reset(self) -> None:
        self.llm.reset()
        self.text, self.last = [], []


@pytest.mark.sampled(16)
@pytest.mark.parametrize("gamma", [1, 3, 6, "auto"])
@pytest.mark.parametrize("n_batch", [7, 512])
@pytest.mark.parametrize("draft", ["model", "another", "lookup"])
@pytest.mark.parametrize("kind", DRAFTS)
def test_any_order(
    make_llama: MakeLlama,
    tiny_files: TinyFiles,
    record_property: Callable[[str, object], None],
    kind: str,
    draft: str,
    n_batch: int,
    gamma: int | str,
) -> None:
    path = getattr(tiny_files, kind)
    another = tiny_files.good if kind == "recurrent" else tiny_files.recurrent_draft
    drafter = {"model": getattr(tiny_files, DRAFTS[kind]), "another": another, "lookup": "lookup"}[draft]
    plain = make_llama(path, n_batch=n_batch)
    llm = make_llama(path, drafter, n_batch=n_batch, num_draft_tokens=gamma)
    for walk in range(MOST_WALKS):
        try:
            Walk(llm, plain, random.Random(f"{kind} {draft} {gamma} {n_batch} {walk}")).go(15)
        except NearTie as tie:
            record_property("near_tie", f"{kind} {draft} {n_batch} {gamma}: {tie}")
        else:
            return
    pytest.fail(f"each of {MOST_WALKS} walks came to a near-tie: none was compared to its end")
