"""Opens models that may end the process: each in a child of its own. Run as a program, with the paths as arguments."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from uses import in_child


def attempts(paths: Sequence[Path], **kwargs: Any) -> list[str]:
    """What came of each: "ok", an error's type and message, or the signal that ended it."""
    command = [sys.executable, __file__, json.dumps(kwargs), *map(str, paths)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    return [json.loads(line) for line in run.stdout.splitlines()]


def beside(target: Path, name: str, files: Sequence[Path]) -> list[dict[str, Any]]:
    """What came of each file beside a model, with "auto" as the model's draft, and as a draft that was named.

    Args:
        target: a good model, alone in its folder.
        name: the name that each file gets there.
        files: the files, which are moved.

    Returns:
        For each file and way what `attempts` returns, the seconds of computing until the model was open, and the
        warnings.
    """
    command = [sys.executable, __file__, "--beside", str(target), name, *map(str, files)]
    run = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "GGML_NO_BACKTRACE": "1"})
    return [json.loads(line) for line in run.stdout.splitlines()]


def _open_beside(target: str, draft: str) -> str:
    import specllama

    begun = time.process_time()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            llm = specllama.Llama(target, draft_model=draft, n_ctx=64, n_threads=1, n_threads_batch=1, verbose=False)
            seconds = time.process_time() - begun
            llm.create_completion("the cat", max_tokens=3, temperature=0)
            llm.close()
            what = "ok"
        except Exception as error:
            seconds, what = time.process_time() - begun, f"{type(error).__name__}: {error}"
    return json.dumps(
        {"what": what[:1000], "seconds": seconds, "warnings": [str(one.message)[:1000] for one in said][:3]}
    )


def _try_beside(target: str, name: str, files: Sequence[str]) -> None:
    place = Path(target).with_name(name)
    for file in files:
        os.replace(file, place)
        for draft in ("auto", str(place)):
            said = in_child(functools.partial(_open_beside, target, draft))
            found = json.loads(said) if said.startswith("{") else {"what": said, "seconds": 0.0, "warnings": []}
            sys.stdout.write(json.dumps({"draft": "auto" if draft == "auto" else "named", **found}) + "\n")
            sys.stdout.flush()


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

    if sys.argv[1] == "--beside":
        _try_beside(sys.argv[2], sys.argv[3], sys.argv[4:])
        sys.exit()
    for one in sys.argv[2:]:
        sys.stdout.write(json.dumps(in_child(functools.partial(_use, one, json.loads(sys.argv[1])))) + "\n")
        sys.stdout.flush()
