"""Programs that answer prompts and can be started again: specllama in a process of its own, and llama-server."""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import httpx
from llama_server import serving

import specllama
from specllama.models.catalog import resolve

WARM_UP = 8  # tokens: too few to be kept


class Reply(NamedTuple):
    """What an answer took."""

    seconds: float
    """Until the first token."""
    num_decoded: int
    """Tokens of the prompt that were decoded."""
    num_from_ram: int = 0
    """Tokens of the prompt that came from copies in memory."""
    num_from_disk: int = 0
    """Tokens of the prompt that came from files."""
    num_draft_decoded: int = 0
    """Tokens that the draft decoded, for the prompt and for its drafts."""


class Program(Protocol):
    """A program that runs."""

    def ask(self, agent: str, tokens: Sequence[int], max_tokens: int) -> Reply:
        """Have a prompt answered.

        Args:
            agent: whose prompt it is.
            tokens: the prompt.
            max_tokens: the most tokens of the answer.
        """


# --- specllama --------------------------------------------------------------------------------------------------------


class Ours:
    """specllama in a process of its own."""

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool = pool

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function returns there. Its first argument is the Llama."""
        return self._pool.submit(_call, function, arguments).result()

    def ask(self, agent: str, tokens: Sequence[int], max_tokens: int) -> Reply:
        """See `Program`."""
        return self.call(_ask, tokens, max_tokens)


@contextlib.contextmanager
def ours(**options: Any) -> Iterator[Ours]:
    """A context manager that has specllama run with these arguments of a Llama, warm. Its end waits for the store."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        pool.submit(_open, options).result()
        program = Ours(pool)
        program.ask("", range(3, 3 + WARM_UP), 1)
        yield program
        program.call(_close)


_llms: list[specllama.Llama] = []  # of the other process


def _open(options: dict[str, Any]) -> None:
    _llms.append(specllama.Llama(verbose=False, **options))


def _call(function: Callable[..., Any], arguments: Sequence[Any]) -> Any:
    return function(_llms[0], *arguments)


def _ask(llm: specllama.Llama, tokens: Sequence[int], max_tokens: int) -> Reply:
    start = time.perf_counter()
    generation = llm.engine.generate(list(tokens), max_tokens=max_tokens, temperature=0.0)
    next(generation)
    seconds = time.perf_counter() - start
    for _ in generation:
        pass
    stats = llm.stats
    return Reply(
        seconds,
        stats.num_prompt_tokens - stats.num_prompt_tokens_reused,
        stats.num_prompt_tokens_from_ram,
        stats.num_prompt_tokens_from_disk,
        stats.num_draft_tokens_decoded,
    )


def tokens_of(llm: specllama.Llama, text: str) -> list[int]:
    """The tokens of a text, special ones too, with none added."""
    return llm.tokenize(text.encode(), add_bos=False, special=True)


def _close(llm: specllama.Llama) -> None:
    llm.engine.store.flush()
    llm.close()


# --- llama-server -----------------------------------------------------------------------------------------------------


class Theirs:
    """A llama-server.

    Args:
        client: its client.
        slots: a folder of saved slots, or None. With it each agent has a slot of its own, which is restored in front of
            the agent's first prompt. The time of this counts.
    """

    def __init__(self, client: httpx.Client, slots: Path | None) -> None:
        self._client, self._slots = client, slots
        self._agents: list[str] = []

    def ask(self, agent: str, tokens: Sequence[int], max_tokens: int) -> Reply:
        """See `Program`."""
        start = time.perf_counter()
        body = {"prompt": list(tokens), "n_predict": max_tokens, "temperature": 0.0, "stream": True}
        if self._slots is not None:
            body["id_slot"] = self._slot(agent)
        seconds, last = 0.0, "{}"
        with self._client.stream("POST", "/completion", json=body) as reply:
            if reply.is_error:
                raise RuntimeError(f"llama-server refuses a prompt of {len(tokens)} tokens: {reply.read().decode()}")
            for line in reply.iter_lines():
                if line.startswith("data: "):
                    seconds = seconds or time.perf_counter() - start
                    last = line
        found = httpx.Response(200, text=last.removeprefix("data: ")).json()
        return Reply(seconds, found["timings"]["prompt_n"])

    def _slot(self, agent: str) -> int:
        if agent not in self._agents:
            self._agents.append(agent)
            if (self._slots / agent).exists():
                self._act(agent, "restore")
        return self._agents.index(agent)

    def save(self) -> None:
        """Save the slots of all agents."""
        for agent in self._agents:
            self._act(agent, "save")

    def _act(self, agent: str, action: str) -> None:
        path = f"/slots/{self._agents.index(agent)}?action={action}"
        self._client.post(path, json={"filename": agent}).raise_for_status()


@contextlib.contextmanager
def theirs(
    folder: Path, model: str, n_ctx: int, threads: int, *, slots: Path | None = None, num_agents: int = 1
) -> Iterator[Theirs]:
    """A context manager that has a llama-server run, warm, with its own copies in memory (``--cache-ram``).

    Args:
        folder: the folder that has the program.
        model: the model.
        n_ctx: the tokens of a context.
        threads: the threads.
        slots: see `Theirs`. Without it, slots are as many as llama-server likes, and any agent may have any of them.
        num_agents: with `slots`, how many agents there are. Each has a context of its own.
    """
    arguments = ["-m", resolve(model), "-t", str(threads), "-tb", str(threads)]
    if slots is None:
        arguments += ["-c", str(n_ctx)]
    else:
        arguments += ["-c", str(n_ctx * num_agents), "-np", str(num_agents), "--no-kv-unified"]
        arguments += ["--slot-save-path", f"{slots}/"]
    with serving(folder, arguments) as client:
        body = {"prompt": [*range(3, 3 + WARM_UP)], "n_predict": 1, "cache_prompt": False}
        client.post("/completion", json=body).raise_for_status()
        program = Theirs(client, slots)
        yield program
        program.save()
