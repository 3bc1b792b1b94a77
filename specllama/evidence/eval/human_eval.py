"""HumanEval, answered plainly and speculatively: do as many of the programs pass their tests?

The tasks are those of Chen et al., "Evaluating Large Language Models Trained on Code" (2021). Code that a model has
written is executed: sandbox.py says what the code can do.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .evaluation import Evaluation, Grader, OnRecord
from .grades import EvalResult, Grade
from .sandbox import Limits, require_sandbox, run_tests

if TYPE_CHECKING:
    from specllama import Llama
    from specllama.prompts import Prompt

NAME = "humaneval"

_FENCED = re.compile(r"```[ \t]*(?P<language>[\w+.-]*)[^\n`]*\n(?P<code>.*?)(?:```|\Z)", re.DOTALL)
_PYTHON = ("python", "python3", "py")


def humaneval(
    llm: Llama,
    prompts: Sequence[Prompt],
    *,
    allow_code_execution: bool,
    limits: Limits | None = None,
    temperature: float = 0.2,
    max_tokens: int = 512,
    on_record: OnRecord | None = None,
    **options: Any,
) -> EvalResult:
    """Have each task solved once by both ways, run the tests, and compare pass@1.

    To keep the answers of an interrupted evaluation, use ``Evaluation``.

    Args:
        llm: a target with its draft.
        prompts: tasks of HumanEval, from ``read_prompts``.
        allow_code_execution: must be True. Code that the model writes runs on this machine, with limits on time and
            memory, but with your rights, your files and your network.
        limits: the limits of each program.
        temperature: the temperature; 0.2 as in the paper, for pass@1; 0 is greedy.
        max_tokens: the most tokens of an answer.
        on_record: called with each task and its answers, how many tasks are done, and how many there are.
        options: the other arguments of ``Evaluation``.

    Raises:
        ValueError: execution is not allowed, no draft, a prompt that is not a HumanEval task, or an option out of
            range.
        RuntimeError: this system has no limits on time and memory.
    """
    if allow_code_execution is not True:
        raise ValueError(
            f"allow_code_execution={allow_code_execution!r}: HumanEval executes code that a model wrote, with your "
            "rights; pass True if that is what you want"
        )
    options = {"temperature": temperature, "max_tokens": max_tokens, **options}
    return Evaluation(llm, NAME, checked_tasks(prompts), grader(limits), **options).run(on_record)


def grader(limits: Limits | None = None) -> Grader:
    """A grader that runs the program of each answer.

    Raises:
        RuntimeError: this system has no limits on time and memory.
    """
    require_sandbox()
    bounds = limits or Limits()

    def grade(prompt: Prompt, text: str) -> Grade:
        found = run_tests(program(prompt, text), str(prompt.task["entry_point"]), bounds)
        return Grade(found.passed, found.outcome, found.detail)

    return grade


def checked_tasks(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts, if all of them are tasks of HumanEval.

    Raises:
        ValueError: a prompt lacks a field that a task needs.
    """
    for prompt in prompts:
        for key in ("prompt", "entry_point", "test"):
            if not isinstance(prompt.task.get(key), str):
                raise ValueError(f"{prompt.id} is no task of HumanEval: its line has no text `{key}`")
        if not prompt.task["entry_point"].isidentifier():
            raise ValueError(f"{prompt.id}: entry_point {prompt.task['entry_point']!r} is not the name of a function")
    return prompts


def extract(text: str) -> str:
    """The code of an answer: its first fenced block of Python, or else the whole answer.

    A block without a language counts if none is called Python. A block that is not closed was cut off, and counts, too.
    """
    blocks = list(_FENCED.finditer(text))
    for languages in (_PYTHON, ("",)):
        for block in blocks:
            if block["language"].lower() in languages:
                return block["code"]
    return text


def program(prompt: Prompt, text: str) -> list[str]:
    """The parts of the program that tests an answer. They are executed one after the other in one namespace.

    If the answer has the function's signature, the program is the task's text before the function (imports, and
    helpers that some tests use), then the answer. If not, the answer continues the task's text.
    """
    task, code = prompt.task, extract(text)
    signature = re.compile(rf"^[ \t]*(?:async[ \t]+)?def[ \t]+{re.escape(task['entry_point'])}[ \t]*\(", re.MULTILINE)
    if not signature.search(code):
        return [task["prompt"] + code, task["test"]]
    starts = [match.start() for match in signature.finditer(task["prompt"])]
    return [task["prompt"][: starts[-1]] if starts else "", textwrap.dedent(code), task["test"]]
