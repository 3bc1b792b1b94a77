"""HumanEval: the program made of an answer, and both ways run and graded."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest

from specllama.evidence.answer import Answer, answer
from specllama.evidence.eval import Limits, humaneval, sandbox
from specllama.evidence.eval.human_eval import checked_tasks, extract, program
from specllama.prompts import Prompt

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="limits of POSIX")

BODY = "    return 4 * side(x)\n"
TASK = {
    "task_id": "Test/0",
    "prompt": 'import math\n\n\ndef side(x):\n    return math.sqrt(x)\n\n\ndef around(x):\n    """ Around. """\n',
    "entry_point": "around",
    "test": "def check(candidate):\n    assert candidate(9) == 12\n    assert side(4) == 2\n",
}
PROMPT = Prompt("Test/0", "humaneval", "complete this", task=TASK)
WHOLE = "def around(x):\n" + BODY


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("Here:\n```python\na = 1\n```\nand\n```python\nb = 2\n```", "a = 1\n"),
        ("```\nplain\n```\n```python\na = 1\n```", "a = 1\n"),
        ("```Python3 title\na = 1\n```", "a = 1\n"),
        ("```py\r\na = 1```", "a = 1"),
        ("text\n```\na = 1\n```", "a = 1\n"),
        ("```bash\npip install\n```\n```\na = 1\n```", "a = 1\n"),
        ("```python\na = 1\nb =", "a = 1\nb ="),
        ("    return 1\n", "    return 1\n"),
        ("```java\nint a;\n```", "```java\nint a;\n```"),
        ("", ""),
    ],
)
def test_extract(text: str, code: str) -> None:
    assert extract(text) == code


@posix
@pytest.mark.parametrize(
    ("text", "outcome"),
    [
        (f"Sure!\n```python\n{WHOLE}```\nIt works.", "passed"),
        (TASK["prompt"] + BODY, "passed"),
        (BODY, "passed"),
        (f"```python\n{BODY}```", "passed"),
        (f"```python\n    {WHOLE.replace(chr(10), chr(10) + '    ')}\n```", "passed"),  # in a list, say
        (f"```python\nfrom __future__ import annotations\n{WHOLE}```", "passed"),
        (f"```python\n{WHOLE}\nif __name__ == '__main__':\n    raise SystemExit('not to be run')\n```", "passed"),
        ("```python\ndef around_(x):\n    return 12\n```", "failed"),
        ("    return 5\n", "failed"),
        ("```python\ndef around(x):\n    return 12", "passed"),
        ("```python\ndef around(x):\n    return side(", "error"),
        ("I cannot do that.", "error"),
        ("", "failed"),  # the docstring alone is a function that returns None
    ],
)
def test_programs(text: str, outcome: str) -> None:
    assert sandbox.run_tests(program(PROMPT, text), "around").outcome == outcome


@pytest.mark.parametrize("key", ["prompt", "entry_point", "test"])
def test_what_is_no_task(key: str) -> None:
    task = {name: value for name, value in TASK.items() if name != key}
    with pytest.raises(ValueError, match=f"Test/0 is no task of HumanEval: its line has no text `{key}`"):
        checked_tasks([PROMPT, dataclasses.replace(PROMPT, task=task)])
    with pytest.raises(ValueError, match=r"entry_point 'a\(b' is not the name"):
        checked_tasks([dataclasses.replace(PROMPT, task={**TASK, "entry_point": "a(b"})])


@pytest.fixture
def pair(make_llama: MakeLlama, tiny_files: TinyFiles) -> Any:
    return make_llama(draft=tiny_files.good)


@posix
def test_both_ways_are_run(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        "plain": [WHOLE, "    return 5\n", "    while True: pass\n"],
        "speculative": [BODY, BODY, "    return unknown\n"],
    }
    asked: list[dict[str, Any]] = []

    def scripted(llm: Any, prompt: Any, **options: Any) -> Answer:
        asked.append(options)
        found = answer(llm, prompt, **options)
        way = "plain" if options["num_draft_tokens"] == 0 else "speculative"
        return found if len(asked) <= 2 else dataclasses.replace(found, text=texts[way].pop(0))

    monkeypatch.setattr("specllama.evidence.eval.evaluation.answer", scripted)
    tasks = [dataclasses.replace(PROMPT, id=f"Test/{n}") for n in range(3)]
    result = humaneval(pair, tasks, allow_code_execution=True, limits=Limits(seconds=3.0), max_tokens=5)
    assert [record.plain.grade.outcome for record in result.records] == ["passed", "failed", "timeout"]
    assert [record.speculative.grade.outcome for record in result.records] == ["passed", "passed", "error"]
    assert "NameError" in result.records[2].speculative.grade.detail
    assert result.comparison is not None
    assert (result.comparison.plain.correct, result.comparison.speculative.correct) == (1, 2)
    assert result.outcomes["speculative"] == {"passed": 2, "error": 1}
    assert all(options["temperature"] == 0.2 for options in asked)
    assert result.to_dict()["records"][1]["plain"]["grade"]["outcome"] == "failed"


def test_nothing_runs_unless_it_is_allowed(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.subprocess, "Popen", lambda *args, **kwargs: pytest.fail("executed"))
    with pytest.raises(ValueError, match="allow_code_execution=False: HumanEval executes code"):
        humaneval(pair, [PROMPT], allow_code_execution=False)
    with pytest.raises(TypeError, match="allow_code_execution"):
        humaneval(pair, [PROMPT])
    assert pair.stats.num_tokens == 0
