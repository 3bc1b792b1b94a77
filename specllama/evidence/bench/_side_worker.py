"""A process of `specllama bench --against`: it opens one class, and answers a line of JSON with a line of JSON.

Run by its path, with the argument CLASS: a process with llama_cpp.Llama then has nothing of specllama in it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(name: str) -> None:
    """Answer until nobody asks any more. The first line says what to open."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever else is printed goes to stderr
    llm = None
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if llm is None:
                llm, answer = _opened(name, asked)
            else:
                answer = _called(llm, **asked)
        except Exception as error:
            answer = {"error": str(error) or type(error).__name__}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _opened(name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The Llama, and what it runs on."""
    if name == "llama_cpp":
        import llama_cpp

        return llama_cpp.Llama(verbose=False, **options), {}
    from specllama import Llama
    from specllama.evidence.machine import describe_machine

    llm = Llama(verbose=False, **options)
    return llm, describe_machine(llm)


def _called(llm: Any, text: str, chat: bool, options: dict[str, Any]) -> dict[str, Any]:
    """One whole call, in the cache of which nothing is reused."""
    llm.reset()
    start = time.perf_counter()
    if chat:
        response = llm.create_chat_completion([{"role": "user", "content": text}], **options)
    else:
        response = llm.create_completion(text, **options)
    seconds = time.perf_counter() - start
    choice, usage = response["choices"][0], response["usage"]
    return {
        "text": choice["message"]["content"] if chat else choice["text"],
        "num_prompt_tokens": usage["prompt_tokens"],
        "num_tokens": usage["completion_tokens"],
        "seconds": seconds,
    }


if __name__ == "__main__":
    main(sys.argv[1])
