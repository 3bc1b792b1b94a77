"""Writes what an agent and two sub-agents of it send to a model: prompts that grow, with restarts between some turns.

Everything is made up, from a seed: sentences in English, and calls and results of tools in JSON. Prompts are tokens.
A prompt holds the answers before it as they are written here, whatever a model has answered. So all models and
programs are sent the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence

Tokenize = Callable[[str], Sequence[int]]

PLAN = "main main main main | main one two one two | one two one two main main main main | main main main"
"""Who sends a prompt, one after the other; ``|`` is a restart."""
_SUBJECTS = "parser server cache reader writer client worker table index queue lock folder file test block".split()
_VERBS = "reads writes keeps drops compares counts opens closes copies replaces sorts merges waits-for finds".split()
_WAYS = "slowly twice at-once in-order by-name from-the-end before-it-starts under-a-lock in-the-background".split()
_TOOLS = "read_file write_file list_folder search run_tests run_command fetch_page ask_user".split()


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How many tokens the parts of a transcript have."""

    system: int = 6000
    question: int = 60
    answer: int = 100
    least_result: int = 50
    most_result: int = 600


@dataclasses.dataclass(frozen=True)
class Prompt:
    """A prompt.

    Attributes:
        agent: who sends it.
        tokens: all of its tokens.
        after_restart: whether the program was started again since the prompt before.
    """

    agent: str
    tokens: list[int]
    after_restart: bool


def written(tokenize: Tokenize, end: int, seed: int, sizes: Sizes, plan: str = PLAN) -> list[Prompt]:
    """The prompts of a transcript, in their order.

    Args:
        tokenize: makes tokens of a text, special ones too, and adds none.
        end: the token that ends a message.
        seed: the seed.
        sizes: the sizes of its parts.
        plan: see `PLAN`.
    """
    random_ = random.Random(seed)

    def message(role: str, pieces: Iterator[str], count: int) -> list[int]:
        return [*tokenize(f"<|im_start|>{role}\n"), *text_of(tokenize, pieces, count), end, *tokenize("\n")]

    system = message("system", itertools.chain(_sentences(random_, 60), _tools(random_)), sizes.system)
    texts: dict[str, list[int]] = {}
    prompts, is_restart = [], False
    for agent in plan.split():
        if agent == "|":
            is_restart = True
            continue
        if agent in texts:  # what it was answered, and what its tools say
            result = random_.randint(sizes.least_result, sizes.most_result)
            texts[agent] += message("assistant", itertools.chain(_sentences(random_, 3), _calls(random_)), sizes.answer)
            texts[agent] += message("user", _results(random_), result)
        else:
            texts[agent] = [*system, *message("user", _sentences(random_), sizes.question)]
        prompts.append(Prompt(agent, [*texts[agent], *tokenize("<|im_start|>assistant\n")], is_restart))
        is_restart = False
    return prompts


def long_text(tokenize: Tokenize, seed: int, count: int) -> list[int]:
    """The tokens of one text that is as long as asked for."""
    return text_of(tokenize, _results(random.Random(seed)), count)


def text_of(tokenize: Tokenize, pieces: Iterator[str], count: int) -> list[int]:
    """The first tokens of some pieces of text, one after the other."""
    tokens: list[int] = []
    while len(tokens) < count:
        tokens += tokenize(next(pieces))
    return tokens[:count]


def num_new(prompts: Sequence[Sequence[int]]) -> list[int]:
    """How many tokens of each prompt are behind all that it has in common with one of the prompts before it."""
    return [len(one) - max((_common(one, other) for other in prompts[:i]), default=0) for i, one in enumerate(prompts)]


def num_distinct(prompts: Sequence[Sequence[int]]) -> int:
    """How many different beginnings the prompts have: the nodes of a tree that has all of them."""
    return sum(num_new(prompts))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    count = min(len(one), len(other))
    return next((i for i in range(count) if one[i] != other[i]), count)


def _words(random_: random.Random) -> str:
    subject, verb, object_, way = map(random_.choice, (_SUBJECTS, _VERBS, _SUBJECTS, _WAYS))
    return f"the {subject} {verb} the {object_} {way}".replace("-", " ")


def _sentences(random_: random.Random, most: int | None = None) -> Iterator[str]:
    for _ in itertools.count() if most is None else range(most):
        yield f"{_words(random_).capitalize()}, so that {_words(random_)}. "


def _tools(random_: random.Random) -> Iterator[str]:
    for number in itertools.count():
        names = random_.sample(_SUBJECTS, 3)
        properties = {name: {"type": "string", "description": _words(random_)} for name in names}
        parameters = {"type": "object", "properties": properties, "required": names[:1]}
        name = f"{random_.choice(_TOOLS)}_{number}"
        yield json.dumps({"name": name, "description": _words(random_), "parameters": parameters}) + "\n"


def _calls(random_: random.Random) -> Iterator[str]:
    while True:
        path = f"src/{random_.choice(_SUBJECTS)}/{random_.choice(_SUBJECTS)}.py"
        yield json.dumps({"name": random_.choice(_TOOLS), "arguments": {"path": path, "why": _words(random_)}}) + "\n"


def _results(random_: random.Random) -> Iterator[str]:
    for line in itertools.count(random_.randint(1, 500)):
        name, other = random_.choice(_SUBJECTS), random_.choice(_SUBJECTS)
        code = f"{name}.{random_.choice(_VERBS).replace('-', '_')}({other}, {random_.randint(0, 9999)})"
        yield json.dumps({"line": line, "text": code, "note": _words(random_)}) + "\n"
