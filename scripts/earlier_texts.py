"""Compares today's lookup, in the text itself, with a lookup that also has a pool of earlier answers.

``python scripts/earlier_texts.py TARGET DRAFT --prompts FILE`` (HumanEval's) has the target answer questions one after
the other, and replays the answers. It needs no quiet machine: it counts tokens, and no time. ``--texts FILE`` keeps the
answers, so that another replay needs no model.

Each round of a replay drafts up to so many tokens that followed the longest match, and is told which were right.
A pool of limited size comes before the text in one index, the oldest answer first. So the longest match is taken, and
of several the most recent, as lookup does with a corpus (suffix decoding, arXiv 2411.04975, without its trees).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import recorded

from specllama import Llama
from specllama import _core_test as _test
from specllama.backend.cpu import cpu_name
from specllama.chat import chat_prompt
from specllama.engine.earlier_answers import EarlierAnswers
from specllama.evidence.answer import answer
from specllama.models.catalog import resolve
from specllama.prompts import RenderedPrompt, builtin_prompts, limited, read_prompts

POOL = 16_384  # tokens
MOST = (4, 8, 16)  # tokens drafted in a round
LEAST_OF_POOL = (2, 4, 8)  # tokens that a match in the pool must have at least
TURNS = (
    "Write a Python class for a bank account with deposit and withdraw.",
    "Add a method that transfers money to another account.",
    "Raise an error if the amount is not positive.",
    "Write a test for the method that transfers.",
    "Keep a list of all transactions, with the time of each.",
    "Add a method that prints the transactions as a table.",
    "Now show the whole class once more.",
    "Explain in three sentences how the class works.",
    "Turn the class into a dataclass.",
    "Write a README for it, with an example.",
)
EDITS = (
    "Rename the class to Ledger.",
    "Add a docstring to each method.",
    "Add type hints to each method.",
    "Rename the method withdraw to take.",
    "Let the constructor take the name of the owner, too.",
    "Raise ValueError where money is missing.",
    "Add a method interest(rate).",
    "Use Decimal in place of float.",
)
FILE = """class Account:
    def __init__(self, balance=0.0):
        self.balance = float(balance)
        self.history = []

    def deposit(self, amount):
        self.balance += amount
        self.history.append(("deposit", amount))
        return self.balance

    def withdraw(self, amount):
        if amount > self.balance:
            print("not enough money")
            return self.balance
        self.balance -= amount
        self.history.append(("withdraw", amount))
        return self.balance

    def report(self):
        for kind, amount in self.history:
            print(kind, amount)
        print("balance", self.balance)
"""


@dataclasses.dataclass(frozen=True)
class Text:
    """An answer of the target.

    Attributes:
        prompt: the tokens of the prompt.
        answer: the tokens of the answer.
    """

    prompt: list[int]
    answer: list[int]


# --- What is asked ----------------------------------------------------------------------------------------------------


def ask(llm: Llama, messages: Sequence[dict[str, str]], **options: Any) -> tuple[Text, str]:
    """The answer to a chat, and its text."""
    prompt = chat_prompt(llm, messages).tokens
    found = answer(llm, RenderedPrompt(prompt, []), **options)
    return Text([*map(int, prompt)], [*map(int, found.tokens)]), found.text


def asked_twice(llm: Llama, n: int) -> Iterator[Text]:
    """Answers to eight prompts, asked twice. They are sampled, so that the second answers differ."""
    for seed in (1, 2):
        for prompt in limited(builtin_prompts(), 1):
            rendered = prompt.rendered(llm)
            found = answer(llm, rendered, max_tokens=n, temperature=0.8, seed=seed)
            yield Text([*map(int, rendered.tokens)], [*map(int, found.tokens)])


def tasks(llm: Llama, n: int, path: Path, count: int) -> Iterator[Text]:
    """Answers to the tasks of HumanEval, one after the other."""
    for task in read_prompts(path)[0][:count]:
        rendered = task.rendered(llm)
        found = answer(llm, rendered, max_tokens=n, temperature=0.0)
        yield Text([*map(int, rendered.tokens)], [*map(int, found.tokens)])


def edits(llm: Llama, n: int) -> Iterator[Text]:
    """Answers that edit one file again and again, each in a chat of its own."""
    file = FILE
    for edit in EDITS:
        content = f"{edit} Answer with the whole file only.\n\n```python\n{file}```"
        text, said = ask(llm, [{"role": "user", "content": content}], max_tokens=3 * n, temperature=0.0)
        if said.count("```") == 2:
            file = said.split("```")[1].removeprefix("python\n")
        yield text


def turns(llm: Llama, n: int) -> Iterator[Text]:
    """The answers of one chat. Each prompt has all earlier turns."""
    messages: list[dict[str, str]] = []
    for question in TURNS:
        messages.append({"role": "user", "content": question})
        text, said = ask(llm, messages, max_tokens=2 * n, temperature=0.0)
        messages.append({"role": "assistant", "content": said})
        yield text


# --- What lookup makes of it ------------------------------------------------------------------------------------------


class Lookup:
    """Today's lookup over one text, with a pool before the text.

    Args:
        before: the pool's tokens, see `EarlierAnswers.corpus`.
        prompt: the tokens of the prompt.
        least: the fewest tokens of a match in the pool.
    """

    def __init__(self, before: Sequence[int], prompt: Sequence[int], least: int) -> None:
        self._own, self._all, self._least = _test.SuffixIndex(), _test.SuffixIndex(), least
        self._own.append(np.array(prompt, np.int32))
        self._all.append(np.array([*before, *prompt], np.int32))
        self._offset, self._text = len(before), [*before, *prompt]

    def append(self, tokens: Sequence[int]) -> None:
        """Add tokens of the answer to the text."""
        for index in (self._own, self._all):
            index.append(np.array(tokens, np.int32))
        self._text += tokens

    def draft(self, most: int) -> list[int]:
        """The tokens that followed the longest match, at most `most`."""
        match = self._all.longest()
        next_ = match.next
        if match.length and next_ < self._offset and match.length < self._least:
            match = self._own.longest()
            next_ = self._offset + match.next
        found: list[int] = []
        while match.length and len(found) < most:
            at = next_ + len(found)
            token = self._text[at] if at < len(self._text) else found[at - len(self._text)]
            if token < 0:  # the end of an earlier answer
                break
            found.append(token)
        return found


def replayed(texts: Sequence[Text], most: int, least: int | None) -> dict[str, float]:
    """Replay all answers in their order, with a pool of earlier answers. least: see `Lookup`; None: without a pool.

    Returns:
        The tokens of a round, the share of drafted tokens that were right, and the drafted tokens of a round.
    """
    pool = EarlierAnswers(0 if least is None else POOL)
    rounds, tokens, drafted, right = 0, 0, 0, 0
    for text in texts:
        lookup = Lookup(pool.corpus().tolist(), text.prompt, least or 0)
        done = 0
        while done < len(text.answer):
            draft = lookup.draft(most)
            rest = text.answer[done:]
            same = next(
                (i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), min(len(draft), len(rest))
            )
            said = rest[: same + 1]
            lookup.append(said)
            done, rounds, tokens = done + len(said), rounds + 1, tokens + len(said)
            drafted, right = drafted + len(draft), right + same
        pool.add(np.array(text.answer))
    return {
        "tokens_per_round": tokens / rounds,
        "accepted": right / max(1, drafted),
        "drafted_per_round": drafted / rounds,
    }


def compared(texts: Sequence[Text]) -> dict[str, Any]:
    """Replay with a pool and without, for several numbers of drafted tokens."""
    found: dict[str, Any] = {"texts": len(texts), "tokens": sum(len(text.answer) for text in texts)}
    for most in MOST:
        own = replayed(texts, most, None)
        pools = {str(least): replayed(texts, most, least) for least in LEAST_OF_POOL}
        found[f"up to {most}"] = {"text alone": own, **{f"pool, from {least} on": one for least, one in pools.items()}}
    return found


def main() -> None:
    """Ask, replay and write."""
    parser = recorded.parser(__doc__)
    parser.add_argument("target")
    parser.add_argument("draft", help="drafts while the target answers, which changes no answer")
    parser.add_argument("--prompts", type=Path, required=True, help="HumanEval's tasks")
    parser.add_argument("--texts", type=Path, help="keeps the answers, or has them already")
    parser.add_argument("-n", type=int, default=96, help="tokens of an answer; of a file three times as many")
    parser.add_argument("--tasks", type=int, default=16, help="of HumanEval")
    parser.add_argument("-t", "--threads", type=int, default=1)
    given = parser.parse_args()
    if given.texts is not None and given.texts.is_file():
        kept = json.loads(given.texts.read_text())
        texts = {name: [Text(**one) for one in several] for name, several in kept.items()}
    else:
        options = {"n_ctx": 4096, "n_threads": given.threads, "n_threads_batch": given.threads, "verbose": False}
        with Llama(given.target, draft_model=given.draft, **options) as llm:
            scenarios = {
                "the same prompts twice": asked_twice(llm, given.n),
                "HumanEval in sequence": tasks(llm, given.n, given.prompts, given.tasks),
                "one file, edited": edits(llm, given.n),
                "a chat of ten turns": turns(llm, given.n),
            }
            texts = {}
            for name, several in scenarios.items():
                texts[name] = list(several)
                print(name, len(texts[name]), flush=True)
        if given.texts is not None:
            given.texts.write_text(
                json.dumps({name: [*map(dataclasses.asdict, several)] for name, several in texts.items()})
            )
    result = {"pool": POOL, "kinds": {name: compared(one) for name, one in texts.items()}}
    print(json.dumps(result, indent=1))
    if given.record:
        recorded.keep(
            given.record, {"machine": {"cpu": cpu_name()}, "target": Path(resolve(given.target)).name, **result}
        )


if __name__ == "__main__":
    main()
