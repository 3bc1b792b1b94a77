"""What `specllama batch` reads and writes, without a model: lines, their names and keys, and a file that grows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from specllama.batch import answers as output
from specllama.batch.answers import Answers
from specllama.batch.line import Line, lines_of
from specllama.batch.survey import Survey

REQUEST = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "prompts.jsonl"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def lines(source: Path, *given: Any) -> list[Line]:
    """The lines of a file of these: bytes as they are, others as JSON."""
    source.write_bytes(b"".join((it if isinstance(it, bytes) else json.dumps(it).encode()) + b"\n" for it in given))
    return list(lines_of(source))


def answered(line: Line) -> dict[str, Any]:
    return {**line.name, "text": "t", "key": line.key}


# --- lines -----------------------------------------------------------------------------------------------------------


def test_lines_and_what_they_are_called(source: Path) -> None:
    found = lines(
        source,
        b'\xef\xbb\xbf{"prompt": "first"}',
        b"",
        {"id": 7, "prompt": "x"},
        b"   \r",
        {"custom_id": "q", "id": 7, "messages": []},
        REQUEST,
    )
    assert [(line.number, line.name) for line in found] == [
        (1, {"index": 1}),
        (3, {"id": 7}),
        (5, {"custom_id": "q"}),
        (6, {"custom_id": "a"}),
    ]
    assert found[0].content == {"prompt": "first"}
    assert [line.is_request for line in found] == [False, False, False, True]
    assert [line.problem for line in found] == [None] * 4


def test_a_key_is_of_what_a_line_says_and_without_a_name_of_where(source: Path) -> None:
    first = lines(source, {"prompt": "x"}, {"prompt": "x"}, {"id": 1, "prompt": "x"}, {"id": 2, "prompt": "x"})
    assert len({line.key for line in first}) == 4
    moved = lines(source, {"id": 2, "prompt": "x"}, {"prompt": "x"}, {"id": 1, "prompt": "y"})
    assert moved[0].key == first[3].key
    assert moved[1].key == first[1].key
    assert moved[2].key not in {line.key for line in first}


def test_a_last_line_without_its_end(source: Path) -> None:
    source.write_bytes(b'{"prompt": "x"}\n{"prompt": "y"}')
    before = [line.key for line in lines_of(source)]
    source.write_bytes(b'{"prompt": "x"}\r\n{"prompt": "y"}\n{"prompt": "z"}\n')
    assert [line.key for line in lines_of(source)][:2] == before


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        (b"{", "not JSON"),
        (b"[]", "not a JSON object, but list"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"prompt": "a", "seed": ' + b"1" * 5000 + b"}", "a number has more than 4300 digits"),
        (b'"\xff"', "not UTF-8: byte 1"),
        ({"id": None, "prompt": "x"}, "`id` must be a name or a whole number, not None"),
        ({"id": True, "prompt": "x"}, "`id` must be"),
        ({"custom_id": "", "prompt": "x"}, "`custom_id` must be"),
        ({**REQUEST, "custom_id": ["a"]}, "`custom_id` must be"),
        ({"url": "/v1/completions", "body": {}}, "needs a `custom_id`"),
        ({"id": 3, "body": {}}, "needs a `custom_id`"),
        ({**REQUEST, "body": {"prompt": "y"}}, "line 1 has this custom_id 'a', too"),
    ],
)
def test_what_is_wrong_with_a_line_is_its_own_problem(source: Path, bad: Any, problem: str) -> None:
    found = lines(source, REQUEST, bad, {"prompt": "y"})
    assert problem in str(found[1].problem)
    assert found[1].name == {"index": 2}
    assert [found[0].problem, found[2].problem] == [None, None]
    assert len({line.key for line in found}) == 3


def test_names_of_two_kinds_are_two(source: Path) -> None:
    assert [line.problem for line in lines(source, {"id": 7, "prompt": ""}, {"id": "7", "prompt": ""})] == [None, None]


# --- the output ------------------------------------------------------------------------------------------------------


def test_answers_are_there_when_it_is_opened_again(source: Path, target: Path) -> None:
    given = lines(source, {"prompt": "x"}, {"prompt": "y"}, REQUEST)
    with Answers(target) as answers:
        assert answers.keys == {}
        answers.add(answered(given[1]))
        assert json.loads(target.read_bytes()) == {"index": 2, "text": "t", "key": given[1].key}  # at once
        answers.add({"id": f"{output.REQUEST_ID}{given[2].key}", "custom_id": "a"})
    with Answers(target) as answers:
        assert answers.keys == {bytes.fromhex(given[1].key): 1, bytes.fromhex(given[2].key): 2}
        assert Survey.of(source, answers) == Survey(3, 2, False)


def test_texts_are_readable_and_half_characters_do_no_harm(target: Path) -> None:
    with Answers(target) as answers:
        answers.add({"text": "Grüße 漢", "key": "00"})
        answers.add({"id": "\ud83d", "key": "01"})
    first, second = target.read_bytes().splitlines()
    assert "Grüße 漢".encode() in first
    assert json.loads(second)["id"] == "\ud83d"


@pytest.mark.parametrize(
    "torn", [b'{"index": 3, "te', b"{", b"\0\0\0", b'{"ind\0\0\n{"index": 9, "key": "09"}\n', b'{"id": "batch']
)
@pytest.mark.parametrize("whole", [b"", b'{"index": 1, "key": "01"}\n{"index": 2, "key": "02"}\n'])
def test_half_a_line_is_cut_off(target: Path, whole: bytes, torn: bytes) -> None:
    target.write_bytes(whole + torn)
    with Answers(target) as answers:
        assert len(answers.keys) == whole.count(b"\n")
        assert target.read_bytes() == whole
        answers.add({"index": 3, "key": "03"})
    assert target.read_bytes() == whole + b'{"index": 3, "key": "03"}\n'


@pytest.mark.parametrize(
    "other",
    [
        b"my notes",
        b'{"a": 1}',
        b"my notes\n",
        b'{"index": 1, "key": "01"}\n{}\n',
        b"[1]\n",
        b'{"key": 5}\n',
        b'{"key": "xy"}\n{"',
    ],
)
def test_a_file_of_something_else_is_left_as_it_is(target: Path, other: bytes) -> None:
    target.write_bytes(other)
    with pytest.raises(ValueError, match="is no answer of a batch: give another file as --output"):
        Answers(target)
    assert target.read_bytes() == other


def test_answers_to_another_input_are_refused(source: Path, target: Path) -> None:
    given = lines(source, {"prompt": "x"}, {"prompt": "y"})
    with Answers(target) as answers:
        for line in given:
            answers.add(answered(line))
    lines(source, {"prompt": "x"}, {"prompt": "changed"}, {"prompt": "new"})
    with Answers(target) as answers, pytest.raises(ValueError, match=r"1 of 2 answers .* the first in its line 2, are"):
        Survey.of(source, answers)
    lines(source, {"prompt": "x"}, {"prompt": "y"}, {"prompt": "new"}, REQUEST)
    with Answers(target) as answers:
        assert Survey.of(source, answers) == Survey(4, 2, True)


def test_an_input_of_which_nothing_can_be_read_is_refused(source: Path, target: Path) -> None:
    lines(source, b"why?", b"[1]")
    with Answers(target) as answers, pytest.raises(ValueError, match=r"none of the 2 lines .* because it is not JSON"):
        Survey.of(source, answers)
    lines(source, b"why?", {"prompt": "x"})
    with Answers(target) as answers:
        assert Survey.of(source, answers) == Survey(2, 0, False)


def test_an_empty_input_is_refused(source: Path, target: Path) -> None:
    lines(source, b"", b"  ")
    with Answers(target) as answers, pytest.raises(ValueError, match="has no line"):
        Survey.of(source, answers)


def test_nobody_else_writes_meanwhile(target: Path) -> None:
    script = "import pathlib, sys; from specllama.batch.answers import Answers; Answers(pathlib.Path(sys.argv[1]))"
    with Answers(target) as answers:
        answers.add({"index": 1, "key": "01"})
        with pytest.raises(BlockingIOError, match="another batch is writing to"):
            Answers(target)
        done = subprocess.run([sys.executable, "-c", script, str(target)], capture_output=True, text=True, check=False)
        assert "BlockingIOError: another batch" in done.stderr
    with Answers(target) as answers:
        assert len(answers.keys) == 1


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="a folder in which nobody can make files")
def test_a_folder_without_room_for_files_is_no_other_batch() -> None:
    with pytest.raises(OSError, match=r"cannot write to /proc/x: .*; give another --output"):
        Answers(Path("/proc/x"))


@pytest.mark.skipif(sys.platform == "win32", reason="limits of POSIX")
def test_a_full_disk_leaves_whole_lines(target: Path) -> None:
    import resource
    import signal

    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    answer = {"index": 1, "text": "x" * 50, "key": "01"}
    try:
        with Answers(target) as answers:
            answers.add(answer)
            size = target.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 30, before[1]))
            with pytest.raises(OSError, match=r"cannot write to .*answers\.jsonl: "):
                answers.add({**answer, "index": 2})
            assert target.stat().st_size == size
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            answers.add({**answer, "index": 3, "key": "03"})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert [json.loads(line)["index"] for line in target.read_bytes().splitlines()] == [1, 3]


def test_the_disk_has_it_now_and_then(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda handle: synced.append(os.fstat(handle).st_size))
    with Answers(target) as answers:
        answers.add({"index": 1, "key": "01"})
        assert synced == []
        monkeypatch.setattr(output, "_SECONDS_UNTIL_SYNC", -1.0)
        answers.add({"index": 2, "key": "02"})
        assert synced == [target.stat().st_size]
    assert len(synced) == 2


def test_the_memory_does_not_grow_with_the_input(source: Path, target: Path) -> None:
    """9,000 lines that have their answers cost what a key costs each."""
    source.write_text("".join(json.dumps({"prompt": "x" * 2000, "max_tokens": 0, "n": i}) + "\n" for i in range(9000)))
    script = (
        "import sys, tracemalloc, pathlib\n"
        "from specllama.batch.answers import Answers\n"
        "from specllama.batch.line import lines_of\n"
        "from specllama.batch.survey import Survey\n"
        "source, target = map(pathlib.Path, sys.argv[1:])\n"
        "with Answers(target) as answers:\n"
        "    for line in lines_of(source):\n"
        "        answers.add({**line.name, 'text': 'y' * 2000, 'key': line.key})\n"
        "tracemalloc.start()\n"
        "with Answers(target) as answers:\n"
        "    assert Survey.of(source, answers).num_done == 9000\n"
        "print(tracemalloc.get_traced_memory()[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(source), str(target)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 9000 < 500
