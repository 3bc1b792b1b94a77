"""Prompts: the files they come from, and what is said of lines that are none."""

from __future__ import annotations

import collections
import json
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from specllama.prompts import Prompt, builtin_prompts, limited, read_prompts

if TYPE_CHECKING:
    pass

HUMANEVAL = {
    "task_id": "HumanEval/7",
    "prompt": "def f(x):\n    '''Doubles {x}.'''\n\n",
    "entry_point": "f",
    "test": "t",
}
SPEC_BENCH = {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Make it longer."]}


def written(path: Path, *lines: Any) -> Path:
    """A file of these lines; what is not a string is written as JSON."""
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines), "utf-8")
    return path


def test_humaneval(tmp_path: Path) -> None:
    [prompt], problems = read_prompts(written(tmp_path / "he.jsonl", HUMANEVAL))
    assert problems == []
    assert (prompt.id, prompt.category, prompt.chat) == ("HumanEval/7", "humaneval", True)
    assert prompt.text == (
        "Complete this Python function. Answer with the code only.\n\n```python\ndef f(x):\n    '''Doubles {x}.'''\n```"
    )
    assert prompt.task == HUMANEVAL


def test_humaneval_without_a_task_id(tmp_path: Path) -> None:
    [prompt], _ = read_prompts(written(tmp_path / "he.jsonl", {"prompt": "def g():", "entry_point": "g"}))
    assert (prompt.id, prompt.category) == ("g", "humaneval")


def test_spec_bench(tmp_path: Path) -> None:
    [prompt], _ = read_prompts(written(tmp_path / "sb.jsonl", SPEC_BENCH))
    assert prompt == Prompt("81", "writing", "Write a poem.")
    assert prompt.task["turns"][1] == "Make it longer."


def test_messages(tmp_path: Path) -> None:
    lines = [{"prompt": "Hi. ", "id": "greeting", "category": "talk"}, {"prompt": "two\u2028lines"}]
    prompts, _ = read_prompts(written(tmp_path / "own.json", "", *lines, "   "))
    assert prompts == [Prompt("greeting", "talk", "Hi. "), Prompt("3", "text", "two\u2028lines")]


def test_chats(tmp_path: Path) -> None:
    """Up to the last message of the user: what follows it is an answer to learn from elsewhere."""
    system, user = {"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}
    lines = [
        {"messages": [system, user, {"role": "assistant", "content": "So."}], "id": 7},
        {"messages": [user, {"role": "assistant", "content": "So.", "name": "x"}, {"role": "user", "content": "Oh?"}]},
    ]
    prompts, problems = read_prompts(written(tmp_path / "own.jsonl", *map(json.dumps, lines)))
    assert problems == []
    assert [(prompt.id, prompt.text, prompt.before) for prompt in prompts] == [
        ("7", "Why?", (system,)),
        ("2", "Oh?", (user, {"role": "assistant", "content": "So."})),
    ]


def test_a_line_separator_within_a_string_ends_no_line(tmp_path: Path) -> None:
    line = json.dumps({"prompt": "a\u2028b\x85c"}, ensure_ascii=False)
    prompts, problems = read_prompts(written(tmp_path / "own.jsonl", line))
    assert ([prompt.text for prompt in prompts], problems) == (["a\u2028b\x85c"], [])


def test_windows_files(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + json.dumps(SPEC_BENCH).encode() + b"\r\n" + json.dumps(HUMANEVAL).encode() + b"\r\n"
    )
    prompts, problems = read_prompts(path)
    assert ([prompt.id for prompt in prompts], problems) == (["81", "HumanEval/7"], [])


def test_plain_text(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear model,\n\nwrite back.\n", encoding="utf-8")
    assert read_prompts(path) == ([Prompt("letter.txt", "text", "Dear model,\n\nwrite back.")], [])


MALFORMED = {
    "{nonsense": "not JSON: Expecting property name enclosed in double quotes at column 2",
    "[1, 2]": "not a JSON object, but list",
    '"text"': "not a JSON object, but str",
    "[" * 100_000: "nested too deeply",
    '{"prompt": "a", "id": ' + "1" * 5000 + "}": "a number has more than 4300 digits",
    '{"question": "why?"}': "neither `prompt`",
    '{"messages": "why?"}': "`messages` must be a list",
    '{"messages": [{"role": "assistant", "content": "So."}]}': "`messages` has none with the role `user`",
    '{"messages": [{"role": "user", "content": [1]}]}': "`messages[0].content` must be a string, not list",
    '{"messages": [{"content": "a"}, {"role": "user", "content": "b"}]}': "`messages[0].role` must be a string",
    '{"turns": "one", "category": "qa"}': "`turns` must be a list of messages",
    '{"turns": [], "category": "qa"}': "`turns` must be a list of messages",
    '{"turns": [3], "category": "qa"}': "`turns[0]` must be a string, not int",
    '{"turns": ["x"], "category": ["qa"]}': "`category` must be a name",
    '{"turns": ["x"], "question_id": true}': "`question_id` must be a name",
    '{"turns": ["x"], "question_id": " "}': "`question_id` must be a name",
    '{"prompt": null, "task_id": "HumanEval/0"}': "`prompt` must be a string, not NoneType",
    '{"prompt": "x", "task_id": {}}': "`task_id` must be a name",
    '{"prompt": " \\n"}': "`prompt` is empty",
    '{"prompt": "half \\ud83d"}': "not valid Unicode",
}


def test_malformed_lines_are_named_and_skipped(tmp_path: Path) -> None:
    path = written(tmp_path / "mixed.jsonl", HUMANEVAL, *MALFORMED, "", SPEC_BENCH)
    prompts, problems = read_prompts(path)
    assert [prompt.id for prompt in prompts] == ["HumanEval/7", "81"]
    assert len(problems) == len(MALFORMED)
    for number, (problem, why) in enumerate(zip(problems, MALFORMED.values(), strict=True), 2):
        assert problem.startswith(f"{path}:{number}: ")
        assert why in problem


@pytest.mark.parametrize("line", MALFORMED, ids=range(len(MALFORMED)))
def test_a_file_without_a_prompt_is_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(ValueError, match=r"bad\.jsonl holds no prompt: no line of 1 is .*bad\.jsonl:1: "):
        read_prompts(written(tmp_path / "bad.jsonl", line))


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.txt"])
def test_an_empty_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=rf"{name} holds no prompt: it is empty"):
        read_prompts(written(tmp_path / name, " ", ""))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.jsonl", tmp_path):
        with pytest.raises(OSError, match=f"cannot read prompts from .*{path.name}"):
            read_prompts(path)
    (tmp_path / "latin1.txt").write_bytes("grün".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin1\.txt: byte 2 is not UTF-8"):
        read_prompts(tmp_path / "latin1.txt")


def test_limited_keeps_the_first_of_each_category() -> None:
    prompts = [Prompt(str(i), category, "x") for i, category in enumerate("aabab")]
    assert [prompt.id for prompt in limited(prompts, 1)] == ["0", "2"]
    assert [prompt.id for prompt in limited(prompts, 2)] == ["0", "1", "2", "4"]
    assert limited(prompts, 9) == prompts
    with pytest.raises(ValueError, match="limit=0"):
        limited(prompts, 0)


def test_builtin_prompts() -> None:
    prompts = builtin_prompts()
    counts = collections.Counter(prompt.category for prompt in prompts)
    kinds = "code edit-code summarise translate question maths story extract-json".split()
    assert counts == dict.fromkeys(kinds, 3)
    assert len({prompt.id for prompt in prompts}) == len({prompt.text for prompt in prompts}) == 24
    for prompt in prompts:
        assert prompt.text == prompt.text.strip()
        if prompt.category == "summarise":
            assert 100 <= len(prompt.text.split()) <= 230
        if prompt.category == "edit-code":
            assert prompt.text.count("```") == 2


def test_builtin_prompts_lie_beside_the_module() -> None:
    """In the installed package as in a checkout, whatever the working directory."""
    file = resources.files("specllama.prompts") / "builtin.jsonl"
    script = "from specllama.prompts import builtin_prompts; print(len(builtin_prompts()))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=Path.home())
    assert int(done.stdout) == len(file.read_text(encoding="utf-8").splitlines())
