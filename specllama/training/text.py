"""The text that a head learns from: the target writes it, many texts at once. Kept as token ids."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specllama.prompts.reading import read_prompts, read_text

from .openings import openings

if TYPE_CHECKING:
    from specllama.llama import Llama

HELD_OUT = 12
"""Each text of so many is kept for measuring, and never learned from. Of those the target writes at temperature 0."""
QUESTION = 48
"""Tokens of a question that the target writes itself, at most."""
LONGEST = 512
"""Tokens of a text, at most."""
_TEMPERATURE, _TOP_P = 0.8, 0.95
_ANY = 3  # tokens
_AT_ONCE = 32  # texts whose places are filled together
_MARK = "\u2063specllama\u2063"  # stands for a question in a chat's template
_PROMPTS = (".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class Text:
    """One text.

    Attributes:
        index: which of the training's.
        tokens: it.
        start: the place of the first token that is learned: what the target wrote, and not what it was asked.
    """

    index: int
    tokens: list[int]
    start: int

    @property
    def is_held_out(self) -> bool:
        """Whether it is for measuring."""
        return self.index % HELD_OUT == 0

    @property
    def size(self) -> int:
        """Tokens that are learned."""
        return len(self.tokens) - self.start


def read_texts(path: Path) -> list[Text]:
    """The texts that are there. A last line that was cut off is none."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    found: dict[int, Text] = {}
    for line in lines:
        try:
            text = Text(**json.loads(line))
        except (ValueError, TypeError):
            continue  # of a process that was killed: the next one began a line of its own
        found[text.index] = text
    return [found[index] for index in sorted(found)]


class Writer:
    """Has the target write.

    Args:
        llm: the target, without a draft.
        path: where the texts are kept.
        given: files of the user's: of prompts (.jsonl, .json), which the target answers, or of text, which is learned
            as it is.
        answer: tokens of an answer, at most.

    Raises:
        OSError, ValueError: a file cannot be read.
    """

    def __init__(self, llm: Llama, path: Path, given: Sequence[str] = (), answer: int = 256) -> None:
        self._llm = llm
        self._engine = llm.engine
        self._path = path
        self._answer = min(answer, llm.n_ctx() // 2)
        self._closing = threading.Event()
        self._before = _before_a_question(llm)
        self._prompts = [prompt for name in given if _has_prompts(name) for prompt in read_prompts(Path(name))[0]]
        self._asis = [part for name in given if not _has_prompts(name) for part in self._parts(name) if len(part) > 2]

    @property
    def size_as_it_is(self) -> int:
        """Tokens of the user's text that nobody has to write."""
        return sum(map(len, self._asis))

    def write(self, enough: Callable[[int], bool], max_parallel: int, on_text: Callable[[int, int], None]) -> None:
        """Write more texts, behind those that are there.

        Args:
            enough: of how many tokens there are to learn, whether they are.
            max_parallel: texts at once.
            on_text: hears how many tokens there are to learn, and how many texts.

        Raises:
            OSError: the disk is full.
        """
        done = read_texts(self._path)
        have, size = {text.index for text in done}, sum(text.size for text in done)
        count = self._engine.texts.open(max_parallel)
        with open(self._path, "ab") as file, concurrent.futures.ThreadPoolExecutor(count) as pool:
            if file.tell():
                file.write(b"\n")  # behind a line that was cut off
            jobs = ((index, make) for index, make in enumerate(self._jobs()) if index not in have)
            self._closing.clear()
            try:
                while not enough(size):
                    part = list(itertools.islice(jobs, max(count, _AT_ONCE)))
                    running = [pool.submit(make, index, count) for index, make in part]
                    for future in concurrent.futures.as_completed(running):
                        text = future.result()
                        if text is None or text.size < 1:
                            continue
                        file.write(json.dumps(dataclasses.asdict(text)).encode() + b"\n")
                        file.flush()
                        have.add(text.index)
                        size += text.size
                        on_text(size, len(have))
                        if enough(size):
                            break
                    else:
                        continue
                    break
            finally:
                self._closing.set()
                pool.shutdown(wait=True, cancel_futures=True)
                os.fsync(file.fileno())

    def _jobs(self) -> Iterator[Callable[[int, int], Text | None]]:
        """What makes each text, in an order that is always the same. What the user has given comes first."""
        for tokens in self._asis:
            yield lambda index, count, tokens=tokens: Text(index, tokens, 0)  # type: ignore[misc]
        for prompt in self._prompts:
            yield lambda index, count, prompt=prompt: self._answered(  # type: ignore[misc]
                index, count, prompt.rendered(self._llm).tokens
            )
        for topic, start in openings(seed=1):
            yield lambda index, count, topic=topic, start=start: self._invented(  # type: ignore[misc]
                index, count, topic, start
            )

    def _invented(self, index: int, count: int, topic: str, start: str) -> Text | None:
        """The target writes a question, and answers it; without a chat it goes on with what has begun.

        A chat's template up to where the user speaks lets the model itself invent the question (Magpie, arXiv
        2406.08464, section 2).
        """
        from specllama.drop_in.chats import render_chat, render_text

        if self._before is None:
            try:
                begin = render_text(self._llm, f"{start} {topic}").tokens
            except ValueError:  # its vocabulary cannot write this
                begin = _any_tokens(self._llm, index)
            return self._answered(index, count, begin)
        prefix = render_text(self._llm, self._before + start).tokens
        found = self._written(prefix, index, count, QUESTION, 1.0)
        question = self._engine.text(found).decode("utf-8", "ignore").split("\n\n\n")[0]
        return self._answered(index, count, render_chat(self._llm, start + question).tokens)

    def _answered(self, index: int, count: int, prompt: Sequence[int]) -> Text | None:
        prompt = list(prompt)[-(self._llm.n_ctx() - self._answer) :]
        temperature = 0.0 if index % HELD_OUT == 0 else _TEMPERATURE
        answer = self._written(prompt, index, count, self._answer, temperature, keeps_end=True)
        return None if self._closing.is_set() else Text(index, [*prompt, *answer][-LONGEST:], _start(prompt, answer))

    def _written(
        self, prompt: Sequence[int], seed: int, count: int, most: int, temperature: float, keeps_end: bool = False
    ) -> list[int]:
        from specllama.engine.generation import Generation

        engine, found = self._engine, list[int]()
        request = engine.request(prompt, max_tokens=most, seed=seed, temperature=temperature, top_p=_TOP_P, top_k=0)
        with engine.texts.taken(count, lambda: None) as slot:
            generation = Generation(slot, request)
            try:
                for token in generation:
                    if self._closing.is_set():
                        break
                    if engine.model.ends_text(token):
                        found.extend([token] if keeps_end else [])
                        break
                    found.append(token)
            finally:
                generation.close()
        return found

    def _parts(self, name: str) -> Iterable[list[int]]:
        tokens, longest = self._engine.tokenize(read_text(Path(name), "text")), min(LONGEST, self._llm.n_ctx())
        return (tokens[i : i + longest] for i in range(0, len(tokens) - 1, longest))


def _start(prompt: Sequence[int], answer: Sequence[int]) -> int:
    return max(0, min(len(prompt), LONGEST - len(answer)))


def _any_tokens(llm: Llama, index: int) -> list[int]:
    """The beginning of a text in a vocabulary of which nothing is known."""
    model, rng = llm.engine.model, random.Random(index)
    return [*([model.bos] if model.bos >= 0 else []), *(rng.randrange(model.n_vocab) for _ in range(_ANY))]


def _has_prompts(name: str) -> bool:
    return name.lower().endswith(_PROMPTS)


def _before_a_question(llm: Llama) -> str | None:
    """A chat up to where the user begins to speak. None: the file has no template, or one that changes the words."""
    from specllama.drop_in.chats import chat_call

    if "tokenizer.chat_template" not in llm.metadata:
        return None
    try:
        text = chat_call(llm, [{"role": "user", "content": _MARK}]).text
    except ValueError:
        return None
    before, mark, _ = (text or "").partition(_MARK)
    return before if mark else None
