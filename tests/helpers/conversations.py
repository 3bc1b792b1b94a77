"""Conversations that are edited, branched, abandoned and restarted, over a store of prefixes.

Each text is compared with that of a Llama without a store and without a draft.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import differential
from exact import EXACT_CACHE

import specllama
from specllama.engine.prefixes import entry, memory, slot

_N_CTX = 512
_MODULES = (entry, memory, slot)
_FIRST, _LAST = 259, 330  # tokens of words


@contextlib.contextmanager
def blocks_of(size: int) -> Iterator[None]:
    """A block in which the blocks of a store have so many tokens, so that short texts have many of them."""
    before = [(module, module.BLOCK) for module in _MODULES]
    for module in _MODULES:
        module.BLOCK = size  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module, value in before:
            module.BLOCK = value  # type: ignore[attr-defined]


class Talks:
    """Several conversations with one Llama, as lists of tokens."""

    def __init__(self, files: Mapping[str, str], case: Mapping[str, Any], folder: Path) -> None:
        self._kind = differential.KINDS[case["kind"]]
        self._files, self._case, self._folder = files, case, folder
        self._chance = random.Random(case["seed"])
        self._both = {name: files[value] for name, value in self._kind.both.items()}
        self._llm = self._opened()
        self._plain = specllama.Llama(files[self._kind.target], **self._options())
        self._talks = [[1, *self._words(40)], [1, *self._words(150)]]
        self._streams: list[Any] = []
        self.num_recalled = 0
        """How many tokens of prompts came from copies."""

    def _options(self) -> dict[str, Any]:
        sizes = {"n_ctx": _N_CTX, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
        return {**sizes, **self._both, **EXACT_CACHE, **self._case["both"]}

    def _opened(self) -> specllama.Llama:
        options = {**self._options(), **self._kind.options, **self._case["options"]}
        if self._case["disk"]:
            options["cache_dir"] = str(self._folder)
        if self._kind.inner:
            options["draft_kwargs"] = {"draft_model": self._files.get(self._kind.inner, self._kind.inner)}
        draft = self._kind.draft
        if callable(draft):
            draft = draft(self._files)
        elif isinstance(draft, list):
            draft = [self._files[name] for name in draft]
        elif draft != "mtp":
            draft = self._files.get(draft, draft)
        return specllama.Llama(self._files[self._kind.target], draft_model=draft, **options)

    def _words(self, count: int) -> list[int]:
        most = self._plain.n_vocab()
        first, last = (_FIRST, _LAST) if most > _LAST else (3, most)
        return [self._chance.randrange(first, last) for _ in range(count)]

    def close(self) -> None:
        """Free both Llamas, and delete the folder."""
        self._llm.close()
        self._plain.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def do(self, action: str, number: int, size: int) -> str:
        """An action on a conversation. Returns what of its text is not as it should be; nothing if all is."""
        talk = self._talks[number % len(self._talks)]
        return str(getattr(self, f"_{action}")(talk, size) or "")

    def _asked(self, size: int) -> dict[str, Any]:
        return {"max_tokens": size, "seed": size, "verify": "coupled", **self._case["sampling"]}

    def _turn(self, talk: list[int], size: int) -> str:
        """The next turn of a conversation."""
        if len(talk) > _N_CTX - 60:
            del talk[60:]
        answer = list(self._llm.engine.generate(talk, **self._asked(size)))
        stats = self._llm.stats
        self.num_recalled += stats.num_prompt_tokens_from_ram + stats.num_prompt_tokens_from_disk
        expected = list(self._plain.engine.generate(talk, **self._asked(size)))
        said = f"{len(talk)} tokens, {answer} instead of {expected}" if answer != expected else ""
        talk += [*answer, *self._words(size % 7)]
        return said

    def _edit(self, talk: list[int], size: int) -> None:
        """The conversation has other words from some place on."""
        at = self._chance.randrange(1, len(talk))
        talk[at:] = self._words(size)

    def _forget_thoughts(self, talk: list[int], size: int) -> None:
        """Some tokens in the midst are left out."""
        at = self._chance.randrange(1, len(talk))
        del talk[at : at + size]
        talk += self._words(1)

    def _branch(self, talk: list[int], size: int) -> None:
        self._talks = [*self._talks[-3:], [*talk[: max(1, len(talk) - size)], *self._words(3)]]

    def _abandon(self, talk: list[int], size: int) -> None:
        """A text that nobody reads to its end."""
        text = self._llm.engine.generate(talk[: _N_CTX - 60], **{**self._asked(size), "max_tokens": 40})
        talk += list(itertools.islice(text, size % 5))
        self._streams = [text] if size % 2 else []

    def _several(self, talk: list[int], size: int) -> str:
        """Several texts at once."""
        if self._kind.is_limited:
            return ""
        given = [[*talk[: _N_CTX - 60], 20 + i] for i in range(3)] + [self._talks[-1][: _N_CTX - 60]]
        found = [self._text(one) for one in self._llm.create_completions(given, **self._asked(size))]
        expected = [self._text(one) for one in self._plain.create_completions(given, **self._asked(size))]
        return f"several: {found} instead of {expected}" if found != expected else ""

    @staticmethod
    def _text(outcome: Any) -> str:
        if outcome.error is not None:
            raise outcome.error
        return str(outcome.text)

    def _restart(self, talk: list[int], size: int) -> None:
        self._llm.close()
        self._llm = self._opened()

    def _reset(self, talk: list[int], size: int) -> None:
        self._llm.reset()

    def _leave(self, talk: list[int], size: int) -> None:
        """Something else uses the context."""
        self._llm.reset()
        self._llm.eval(talk[: size + 1])


ACTIONS: Sequence[str] = (
    *["turn"] * 6,
    *("edit", "forget_thoughts", "branch", "abandon", "several", "restart", "restart", "reset", "leave"),
)


def drawn(chance: random.Random, kinds: Sequence[str]) -> dict[str, Any]:
    """A case."""
    sampling = chance.choice([{"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.9, "top_k": 5}])
    both: dict[str, Any] = chance.choice(
        [{}, {}, {"swa_full": False}, {"n_batch": 32}, {"swa_full": False, "n_ubatch": 16}]
    )
    return {
        "kind": chance.choice(kinds),
        "seed": chance.randrange(1 << 30),
        "block": chance.choice([16, 32, 64]),
        "disk": chance.random() < 0.6,
        "both": both,
        "options": {
            "cache_ram": chance.choice([0, 1, 64]),
            "num_draft_tokens": chance.choice([0, 3, 5, "auto"]),
            "max_parallel": 4,
        },
        "sampling": sampling,
        "actions": [(chance.choice(ACTIONS), chance.randrange(4), chance.randrange(2, 30)) for _ in range(14)],
    }


def difference(files: Mapping[str, str], case: Mapping[str, Any], folder: Path) -> tuple[str, int]:
    """What of a case is not as it should be, nothing if all is; and how many tokens came from copies."""
    with blocks_of(case["block"]):
        talks = Talks(files, case, folder)
        try:
            for number, (action, *given) in enumerate([*case["actions"], ("turn", 0, 8), ("turn", 1, 8)]):
                if said := talks.do(action, *given):
                    return f"action {number}, {action} {given}: {said}", talks.num_recalled
        finally:
            talks.close()
    return "", talks.num_recalled
