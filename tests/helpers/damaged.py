"""Opens models that may end the process: each in a child of its own. Run as a program, with the paths as arguments."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uses import in_child


def attempts(paths: Sequence[Path], **kwargs: Any) -> list[str]:
    """What came of each: "ok", an error's type and message, or the signal that ended it."""
    command = [sys.executable, __file__, json.dumps(kwargs), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    return [json.loads(line) for line in run.stdout.splitlines()]


def _use(path: str, kwargs: dict[str, Any]) -> str:
    import specllama

    try:
        llm = specllama.Llama(path, **{"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **kwargs})
        llm.create_completion("the cat é 日 <b>", max_tokens=12, temperature=1.0, top_k=0)
        llm.detokenize(list(range(llm.n_vocab())))
        for byte in range(256):
            llm.tokenize(bytes([byte]))
        llm.create_chat_completion([{"role": "user", "content": "the cat"}], max_tokens=2)
        llm.close()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


if __name__ == "__main__":
    from specllama import Llama  # with all that it imports: once, for all children  # noqa: F401

    for one in sys.argv[2:]:
        sys.stdout.write(json.dumps(in_child(functools.partial(_use, one, json.loads(sys.argv[1])))) + "\n")
        sys.stdout.flush()
