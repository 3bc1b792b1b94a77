"""``create_completions`` and similar methods, which ``Llama`` inherits."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sized
from typing import Any, cast

from specllama.backend.streams import has_stderr, is_terminal
from specllama.drop_in.images import decodes_by_itself
from specllama.drop_in.seeds import seed_for_completion
from specllama.drop_in.view import EngineLlama, call_on
from specllama.drop_in.watch import Watch
from specllama.engine.engine import Engine
from specllama.engine.slot import Slot
from specllama.engine.texts import checked_max_parallel

from .outcomes import Outcome, Outcomes, arguments_of, takes_the_model_alone
from .progress import progress_bar
from .runner import Job


class ParallelCompletions:
    """The methods of a Llama that generate many completions at once."""

    engine: Engine
    max_parallel: int

    def create_completions(
        self,
        prompts: Iterable[Any],
        *,
        max_parallel: int | None = None,
        stream: bool = False,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> list[Outcome] | Outcomes:
        """Complete many prompts at once. Each text is the one that ``create_completion`` gives for its prompt alone.

        Args:
            prompts: texts, lists of token ids, or mappings of arguments with a ``prompt``. Prompts are read as they are
                needed.
            max_parallel: how many texts at once; None for the Llama's own ``max_parallel``.
            stream: return the outcomes as they end, instead of a list in the prompts' order. Then at most two outcomes
                for each slot are in memory.
            progress: show the progress on stderr; None: if stderr is a terminal.
            kwargs: the arguments of ``create_completion`` for every prompt. A seed is used for every text.

        Returns:
            An ``Outcome`` for each prompt, with a response or the error of this text.

        Raises:
            TypeError, ValueError: ``max_parallel`` is no valid number. An error in a prompt is in its outcome.
            MemoryError: there is no room for so many texts.
            BusyError: other texts are under way, with fewer slots.
            ClosedError: the Llama is closed.
        """
        return self._many("create_completion", "prompt", prompts, max_parallel, stream, progress, kwargs)

    def create_chat_completions(
        self,
        conversations: Iterable[Any],
        *,
        max_parallel: int | None = None,
        stream: bool = False,
        progress: bool | None = None,
        **kwargs: Any,
    ) -> list[Outcome] | Outcomes:
        """Complete many chats at once, as ``create_completions`` does for prompts.

        Args:
            conversations: lists of messages, or mappings of arguments with ``messages``.
            max_parallel: how many chats at once; None for the Llama's own ``max_parallel``.
            stream: return the outcomes as they end, instead of a list in the chats' order.
            progress: show the progress on stderr; None: if stderr is a terminal.
            kwargs: the arguments of ``create_chat_completion`` for every chat.
        """
        return self._many("create_chat_completion", "messages", conversations, max_parallel, stream, progress, kwargs)

    async def acreate_completions(
        self, prompts: Iterable[Any], *, max_parallel: int | None = None, **kwargs: Any
    ) -> AsyncIterator[Outcome]:
        """Complete many prompts at once. Yields outcomes as they end, for ``async for``; closing it ends all texts."""
        open_them = functools.partial(
            self.create_completions, prompts, max_parallel=max_parallel, stream=True, progress=False, **kwargs
        )
        opening = asyncio.get_running_loop().run_in_executor(None, open_them)  # not a task, which could be cancelled
        try:
            outcomes = cast(Outcomes, await asyncio.shield(opening))
            while (outcome := await asyncio.to_thread(next, outcomes, None)) is not None:
                yield outcome
        finally:  # also if this coroutine is cancelled while the thread opens the outcomes
            await asyncio.wait([opening])
            if opening.exception() is None:
                await asyncio.to_thread(cast(Outcomes, opening.result()).close)

    def _many(
        self,
        method: str,
        name: str,
        items: Iterable[Any],
        max_parallel: int | None,
        stream: bool,
        progress: bool | None,
        common: dict[str, Any],
    ) -> list[Outcome] | Outcomes:
        if isinstance(items, (str, bytes, Mapping)):
            raise TypeError(f"{name}s must be a list: put the one {name} into one")
        count = self.engine.texts.open(
            self.max_parallel if max_parallel is None else checked_max_parallel(max_parallel)
        )
        llama = cast(EngineLlama, self)
        jobs = (self._job(llama, method, item, name, common) for item in items)
        outcomes = Outcomes(llama, count, jobs)
        if stream:
            outcomes.start()
            return outcomes
        with outcomes:
            has_bar = is_terminal(sys.stderr) if progress is None else progress
            total = len(items) if isinstance(items, Sized) else None
            watched: Iterator[Outcome] = progress_bar(outcomes, total) if has_bar and has_stderr() else outcomes
            return sorted(watched, key=lambda outcome: outcome.index)

    @staticmethod
    def _job(llama: EngineLlama, method: str, item: Any, name: str, common: dict[str, Any]) -> Job:
        """The job for one prompt. It is called in the prompts' order, in which the Llama gives seeds to texts."""
        try:
            arguments = arguments_of(item, name, common)
            seed, is_given = seed_for_completion(llama, arguments.get("seed"))
            if is_given:
                arguments["seed"] = seed
            elif "seed" in arguments:
                del arguments["seed"]
        except (TypeError, ValueError) as error:
            return _failing(error)

        def generate(slot: Slot, watch: Watch) -> dict[str, Any]:
            return cast("dict[str, Any]", asked(**arguments, call=call_on(llama, slot=slot, watch=watch)))

        asked = getattr(llama, method)
        is_alone = takes_the_model_alone(arguments) or decodes_by_itself(llama, arguments.get("messages"))
        return Job(generate, is_alone)


def _failing(error: Exception) -> Job:
    def fail(*_: object) -> dict[str, Any]:
        raise error

    return Job(fail)
