"""Makes the text that a head learns from. The target writes many texts at once. The texts are kept as token ids."""

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

from specllama.prompts import read_prompts, read_text

from .openings import openings

if TYPE_CHECKING:
    from specllama.llama import Llama

HELD_OUT = 12
"""Every 12th text is used for measuring only, and never learned. The target writes these at temperature 0."""
QUESTION = 48
"""The most tokens in a question that the target writes itself."""
LONGEST = 512
"""The most tokens in a text."""
_TEMPERATURE, _TOP_P = 0.8, 0.95
_ANY = 3  # the number of tokens in a random beginning
_MARK = "\u2063specllama\u2063"  # takes the place of a question in a chat template
_PROMPTS = (".jsonl", ".json")


@dataclasses.dataclass(frozen=True)
class Text:
    """A text to learn from.

    Attributes:
        index: the text's number in the training.
        tokens: the text's tokens.
        start: the index of the first token that is learned. The tokens before it are the prompt.
    """

    index: int
    tokens: list[int]
    start: int

    @property
    def is_held_out(self) -> bool:
        """Whether the text is for measuring only."""
        return held_out(self.index)

    @property
    def size(self) -> int:
        """The number of tokens that are learned."""
        return len(self.tokens) - self.start

    def end(self, most: int) -> Text:
        """The last tokens of the text, at most so many."""
        left_out = max(0, len(self.tokens) - most)
        return Text(self.index, self.tokens[left_out:], max(0, self.start - left_out))


def held_out(index: int) -> bool:
    """Whether the text with this index is for measuring only."""
    return index % HELD_OUT == 0


def has_both(indices: Iterable[int]) -> bool:
    """Whether some of the texts with these indices are learned, and others held out."""
    return len(set(map(held_out, indices))) == 2


def read_texts(path: Path) -> list[Text]:
    """The texts in a file, in the order of their indices. Lines that were cut off are ignored."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    found: dict[int, Text] = {}
    for line in lines:
        try:
            text = Text(**json.loads(line))
        except (ValueError, TypeError):
            continue  # the line of a process that was killed while it wrote
        found[text.index] = text
    return [found[index] for index in sorted(found)]


class Writer:
    """Lets the target write texts.

    Args:
        llm: the target, opened without a draft.
        path: the file for the texts.
        given: the user's files. The target answers the prompts in .jsonl and .json files. Any other file is text,
            which is learned as it is.
        answer: the most tokens in an answer.

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
        self._prompts = [prompt for name in given if has_prompts(name) for prompt in read_prompts(Path(name))[0]]
        texts = (name for name in given if not has_prompts(name))
        self._as_it_is = [part for name in texts for part in self._parts(name) if len(part) > 2]

    @property
    def size_as_it_is(self) -> int:
        """The number of tokens in the user's text, which the target need not write."""
        return sum(map(len, self._as_it_is))

    def write(self, enough: Callable[[int], bool], max_parallel: int, on_text: Callable[[int, int], None]) -> None:
        """Write texts, and append them to the texts that are in the file already.

        Args:
            enough: is given how many tokens there are to learn, and returns whether to stop. The writing goes on all
                the same until there is a text to learn, and one that is held out.
            max_parallel: how many texts to write at once.
            on_text: is told how many tokens there are to learn, and how many texts.

        Raises:
            OSError: the disk is full.
        """
        before = read_texts(self._path)
        have, size = {text.index for text in before}, sum(text.size for text in before)
        count = self._engine.texts.open(max_parallel)
        with open(self._path, "ab") as file, concurrent.futures.ThreadPoolExecutor(count) as pool:
            if file.tell():
                file.write(b"\n")  # ends a line that may have been cut off
            jobs = ((index, make) for index, make in enumerate(self._jobs()) if index not in have)
            self._closing.clear()
            running: set[concurrent.futures.Future[Text | None]] = set()
            try:
                while not (enough(size) and has_both(have)):
                    # For each text in progress another one waits, so that always `count` texts are written at once.
                    for index, make in itertools.islice(jobs, 2 * count - len(running)):
                        running.add(pool.submit(make, index, count))
                    done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
                    for future in done:
                        text = future.result()
                        if text is None or text.size < 1:
                            continue
                        file.write(json.dumps(dataclasses.asdict(text)).encode() + b"\n")
                        file.flush()
                        have.add(text.index)
                        size += text.size
                        on_text(size, len(have))
            finally:
                self._closing.set()
                pool.shutdown(wait=True, cancel_futures=True)
                os.fsync(file.fileno())

    def _jobs(self) -> Iterator[Callable[[int, int], Text | None]]:
        """Functions that make one text each, always in the same order.

        First comes a text that the target invents, and that is held out; then the user's texts and prompts; then more
        inventions.
        """
        invented = self._inventions()
        yield next(invented)
        for tokens in self._as_it_is:
            yield lambda index, count, tokens=tokens: Text(index, tokens, 0)  # type: ignore[misc]
        for prompt in self._prompts:
            yield lambda index, count, prompt=prompt: self._answered(  # type: ignore[misc]
                index, count, prompt.rendered(self._llm).tokens
            )
        yield from invented

    def _inventions(self) -> Iterator[Callable[[int, int], Text | None]]:
        for topic, start in openings(seed=1):
            yield lambda index, count, topic=topic, start=start: self._invented(  # type: ignore[misc]
                index, count, topic, start
            )

    def _invented(self, index: int, count: int, topic: str, start: str) -> Text | None:
        """Let the target write a question and its answer. Without a chat template, the target continues a beginning.

        A chat template up to where the user speaks lets the model invent the question (Magpie, arXiv 2406.08464,
        section 2).
        """
        from specllama.chat import chat_prompt
        from specllama.drop_in import prompt_tokens_of

        if self._before is None:
            try:
                begin = prompt_tokens_of(self._llm, f"{start} {topic}", None)
            except ValueError:  # the vocabulary cannot write these words
                begin = _any_tokens(self._llm, index)
            return self._answered(index, count, begin)
        prefix = prompt_tokens_of(self._llm, self._before + start, None)
        found = self._written(prefix, index, count, QUESTION, 1.0)
        question = self._engine.text(found).decode("utf-8", "ignore").split("\n\n\n")[0]
        asked = chat_prompt(self._llm, [{"role": "user", "content": start + question}])
        return self._answered(index, count, asked.tokens)

    def _answered(self, index: int, count: int, prompt: Sequence[int]) -> Text | None:
        prompt = list(prompt)[-(self._llm.n_ctx() - self._answer) :]
        temperature = 0.0 if held_out(index) else _TEMPERATURE
        answer = self._written(prompt, index, count, self._answer, temperature, keeps_end=True)
        return None if self._closing.is_set() else Text(index, [*prompt, *answer][-LONGEST:], _start(prompt, answer))

    def _written(
        self, prompt: Sequence[int], seed: int, count: int, most: int, temperature: float, keeps_end: bool = False
    ) -> list[int]:
        from specllama.engine import Generation

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
    """A random beginning of a text, for a vocabulary that cannot write English words."""
    model, rng = llm.engine.model, random.Random(index)
    return [*([model.bos] if model.bos >= 0 else []), *(rng.randrange(model.n_vocab) for _ in range(_ANY))]


def has_prompts(name: str) -> bool:
    """Whether a file of the user's has prompts, which the target answers, and no text to learn as it is."""
    return name.lower().endswith(_PROMPTS)


def _before_a_question(llm: Llama) -> str | None:
    """The rendered chat up to the user's words; None if the file has no template, or one that changes these words."""
    from specllama.chat import chat_prompt

    if "tokenizer.chat_template" not in llm.metadata:
        return None
    try:
        text = chat_prompt(llm, [{"role": "user", "content": _MARK}]).text
    except ValueError:
        return None
    before, mark, _ = (text or "").partition(_MARK)
    return before if mark else None
