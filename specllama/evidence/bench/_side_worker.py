"""A process of `specllama bench --against`. It opens one class, and answers each line of JSON with a line of JSON.

It is run by its path, with the argument CLASS, so that a process with llama_cpp.Llama imports nothing of specllama.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main(name: str) -> None:
    """Answer lines until there are no more. The first line has the arguments of the class."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # everything else that is printed goes to stderr
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
    """Open a Llama. Returns the Llama, and a description of machine and models, which is empty for llama_cpp."""
    if name == "llama_cpp":
        import llama_cpp

        return llama_cpp.Llama(verbose=False, **options), {}
    from specllama import Llama
    from specllama.evidence.machine import describe_machine

    llm = Llama(verbose=False, **options)
    return llm, describe_machine(llm)


def _called(llm: Any, text: str, chat: bool, before: list[dict[str, str]], options: dict[str, Any]) -> dict[str, Any]:
    """Do one whole call, which reuses nothing from the cache."""
    llm.reset()
    start = time.perf_counter()
    if chat:
        response = llm.create_chat_completion([*before, {"role": "user", "content": text}], **options)
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
