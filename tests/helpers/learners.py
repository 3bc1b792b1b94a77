"""What learns from use, and what answers meanwhile, until each is killed at some time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import specllama
from specllama.engine import kept_files, learned, learned_head, read_kept
from specllama.models.heads import read_head

GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0}
OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
PROMPT = "the cat sat on"


def done(model: str, case: dict[str, Any]) -> str:
    """Do what the case says in this process, which ends itself after so many seconds if it is not done by then.

    Args:
        model: the model.
        case: `cache`, the cache directory; `do`, "learn" or "answer"; `seconds`.
    """
    _set(case["cache"])
    if case["seconds"] is not None:
        threading.Thread(target=_end_after, args=[case["seconds"]], daemon=True).start()
    return _learn(model) if case["do"] == "learn" else _answer(model)


def looked_at(model: str, weights: str, cache: str) -> str:
    """What a reader finds: "ok" and the text of the model with the head that is there, or what is damaged."""
    _set(cache)
    for one in kept_files(learned.learn_dir(weights)):
        if read_kept(one.path) is None:
            return f"{Path(one.path).name} cannot be read"
    head = learned_head(weights)
    if head is not None and read_head(str(head.path)) is None:
        return f"{head.path.name} is no head"
    return f"ok {_answer(model)}"


def _set(cache: str) -> None:
    os.environ["SPECLLAMA_CACHE"] = cache
    learned.FIRST, learned.NEXT = 500, 200


def _end_after(seconds: float) -> None:
    time.sleep(seconds)
    os.kill(os.getpid(), signal.SIGKILL)


def _learn(model: str) -> str:
    from specllama.training.learn import learn

    try:
        return f"learned {learn(model).num_tokens}"
    except ValueError as error:
        return str(error)


def _answer(model: str) -> str:
    with specllama.Llama(model, draft_model="auto", learn=True, **OPTIONS) as llm:
        said = str(llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"])
        llm.create_completion(f"{PROMPT} {time.time_ns()}", **GREEDY)  # something new is kept
        return said
