"""Reads prompts from files: HumanEval and Spec-Bench as JSON lines, the user's own messages, plain text."""

from __future__ import annotations

import collections
import json
from collections.abc import Iterable
from importlib import resources
from pathlib import Path
from typing import Any

from specllama.chat import raise_too_deep, require_few_levels

from .prompt import Prompt

_JSON_LINES = (".jsonl", ".json")
_LONGEST = 64 << 20  # the most bytes of a file of prompts
_TEXT = "text"  # the category of prompts without one
# The instruction that instruct models usually get with a HumanEval task, which is the beginning of a function.
_HUMANEVAL = "Complete this Python function. Answer with the code only.\n\n```python\n{}\n```"


def builtin_prompts() -> list[Prompt]:
    """The prompts that come with the package."""
    file = resources.files("specllama.prompts") / "builtin.jsonl"
    prompts, problems = _read_lines(file.name, file.read_text(encoding="utf-8"))
    if problems:
        raise RuntimeError(f"the prompts that come with specllama are damaged, install it again: {problems[0]}")
    return prompts


def read_prompts(path: Path) -> tuple[list[Prompt], list[str]]:
    """Read the prompts of a file.

    A file whose name ends in .jsonl or .json has one JSON object on each line:

    - HumanEval (``prompt`` with ``task_id`` or ``entry_point``): a message that asks for the function's completion;
    - Spec-Bench (``turns``, ``category``, ``question_id``): the first turn;
    - ``prompt``, with ``id`` and ``category`` if wanted: a message as it is;
    - ``messages``, with ``id`` and ``category`` if wanted: a chat up to the user's last message. Later messages are
      left out.

    Any other file is one prompt. All prompts are messages of a user, for the chat template.

    Returns:
        The prompts, and what was wrong with the lines that were skipped, as "FILE:LINE: why".

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8, or holds no prompt.
    """
    text = read_text(path, "prompts")
    if path.suffix.lower() in _JSON_LINES:
        prompts, problems = _read_lines(str(path), text)
    else:
        message = text.removesuffix("\n")
        prompts, problems = [Prompt(path.name, _TEXT, message)] if message.strip() else [], []
    if not prompts:
        why = f"no line of {len(problems)} is a prompt, the first being {problems[0]}" if problems else "it is empty"
        raise ValueError(f"{path} holds no prompt: {why}")
    return prompts, problems


def limited(prompts: Iterable[Prompt], limit: int) -> list[Prompt]:
    """At most the first `limit` prompts of each category.

    Raises:
        ValueError: `limit` is below 1.
    """
    if limit < 1:
        raise ValueError(f"limit={limit}: give the number of prompts wanted of each category, at least 1")
    counts: collections.Counter[str] = collections.Counter()
    kept = []
    for prompt in prompts:
        counts[prompt.category] += 1
        if counts[prompt.category] <= limit:
            kept.append(prompt)
    return kept


def read_text(path: Path, what: str) -> str:
    """Read a text file. Messages of errors say `what` it should hold.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or too long.
    """
    try:
        with path.open("rb") as file:
            read = file.read(_LONGEST + 1)
        if len(read) > _LONGEST:
            raise ValueError(f"cannot read {what} from {path}: it has more than {_LONGEST} bytes; give a part of it")
        text = read.decode("utf-8-sig")  # Windows editors write a byte order mark
        return text.replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise OSError(f"cannot read {what} from {path}: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"cannot read {what} from {path}: byte {error.start} is not UTF-8; save the file as UTF-8 text"
        ) from error


def _read_lines(name: str, text: str) -> tuple[list[Prompt], list[str]]:
    prompts, problems = [], []
    # splitlines() is not used, because JSON strings may hold U+2028 and other ends of line.
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            prompts.append(_prompt_of(line, number))
        except ValueError as error:
            problems.append(f"{name}:{number}: {error}")
    return prompts, problems


def _prompt_of(line: str, number: int) -> Prompt:
    """The prompt of one line.

    Raises:
        ValueError: the line holds no prompt; the message says why.
    """
    task = object_of(line)
    if "turns" in task:
        turns = task["turns"]
        if not isinstance(turns, list) or not turns:
            raise ValueError("`turns` must be a list of messages")
        text = _checked_text(turns[0], "turns[0]")
        return Prompt(_name(task, "question_id", str(number)), _name(task, "category", _TEXT), text, task=task)
    before: tuple[dict[str, Any], ...] = ()
    if "messages" in task:
        before, text = _chat_of(task["messages"])
    elif "prompt" in task:
        text = _checked_text(task["prompt"], "prompt")
        for key in ("task_id", "entry_point"):
            if key in task:
                return Prompt(_name(task, key, ""), "humaneval", _HUMANEVAL.format(text.rstrip()), task=task)
    else:
        raise ValueError("neither `prompt` (HumanEval, or a message) nor `messages` (a chat) nor `turns` (Spec-Bench)")
    return Prompt(_name(task, "id", str(number)), _name(task, "category", _TEXT), text, before=before, task=task)


def _chat_of(messages: Any) -> tuple[tuple[dict[str, Any], ...], str]:
    """The messages of a chat before the user's last message, and the text of that message.

    Raises:
        ValueError: the user has no message, or a message has no text.
    """
    if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
        raise ValueError("`messages` must be a list of objects with `role` and `content`")
    last = max((i for i, one in enumerate(messages) if one.get("role") == "user"), default=None)
    if last is None:
        raise ValueError("`messages` has none with the role `user`")
    for i, one in enumerate(messages[: last + 1]):
        for key in ("role", "content"):
            _checked_text(one.get(key), f"messages[{i}].{key}")
    before = tuple({"role": one["role"], "content": one["content"]} for one in messages[:last])
    return before, messages[last]["content"]


def object_of(line: str) -> dict[str, Any]:
    """The JSON object of a line.

    Raises:
        ValueError: the line holds no object; the message says why.
    """
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error.msg} at column {error.colno}") from None
    except RecursionError:
        raise_too_deep("the line")
    except ValueError:  # Python's own limit of digits
        raise ValueError("a number has more than 4300 digits: send a smaller one") from None
    if not isinstance(found, dict):
        raise ValueError(f"not a JSON object, but {type(found).__name__}")
    require_few_levels(found, "the line")
    return found


def _checked_text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise ValueError(f"`{key}` must be a string, not {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"`{key}` is empty")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError(f"`{key}` is not valid Unicode: it has half of a surrogate pair") from None
    return value


def _name(task: dict[str, Any], key: str, default: str) -> str:
    """The identifier or category under a key: a string or a whole number."""
    value = task.get(key, default)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not str(value).strip():
        raise ValueError(f"`{key}` must be a name or a whole number, not {value!r}")
    name = _checked_text(str(value), key).strip()
    # Names are written to terminals and tables, so escape sequences and ends of line are replaced.
    return "".join(letter if letter.isprintable() else "?" for letter in name)
