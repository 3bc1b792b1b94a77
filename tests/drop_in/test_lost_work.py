"""What was done is not lost by an error, and errors say what was wrong and what to give."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from batches import MANY

import specllama
from specllama.cli import main

if TYPE_CHECKING:
    from batches import Files
    from conftest import MakeLlama, TinyFiles


class BrokenError(Exception):
    pass


def breaking(count: int) -> Iterator[str]:
    for i in range(count):
        yield f"the cat {i}"
    raise BrokenError("no more")


@pytest.mark.parametrize("max_parallel", [1, 2, 4])
def test_a_source_of_prompts_that_breaks(make_llama: MakeLlama, max_parallel: int) -> None:
    """The texts before it come first, then its error, once."""
    llm = make_llama(max_parallel=max_parallel)
    outcomes: Any = llm.create_completions(breaking(3), max_tokens=8, stream=True)
    found = [next(outcomes) for _ in range(3)]
    assert sorted(outcome.index for outcome in found) == [0, 1, 2]
    assert [outcome.error for outcome in found] == [None] * 3
    with pytest.raises(BrokenError, match="no more"):
        next(outcomes)
    assert list(outcomes) == []
    with pytest.raises(BrokenError, match="no more"):
        llm.create_completions(breaking(3), max_tokens=2)
    assert llm.create_completions(["the cat"], max_tokens=2)[0].error is None


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("stop", 5, "stop=5 must be a text or a list of texts"),
        ("stop", [5], r"stop=\[5\] must be a text or a list of texts"),
        ("stop", b"a", "stop=b'a' must be a text"),
        ("logprobs", 1.5, "logprobs=1.5 must be a whole number: how many alternatives"),
        ("logprobs", "x", "logprobs='x' must be a whole number"),
        ("stopping_criteria", 5, "stopping_criteria=5 must be a function, or a list of functions"),
        ("logits_processor", [5], r"logits_processor=\[5\] must be a function, or a list of functions"),
    ],
)
def test_arguments_of_another_type(make_llama: MakeLlama, name: str, value: Any, why: str) -> None:
    llm = make_llama()
    with pytest.raises(TypeError, match=why):
        llm.create_completion("the", max_tokens=2, **{name: value})
    if name == "stop":
        with pytest.raises(TypeError, match=why):
            llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=2, stop=value)


@pytest.mark.parametrize("form", [lambda f: f, lambda f: [f], lambda f: (f, f)])
def test_functions_and_lists_of_them(make_llama: MakeLlama, form: Any) -> None:
    llm = make_llama()
    asked: list[int] = []

    def stop(ids: Any, logits: Any) -> bool:
        return len(ids) > 6

    def note(ids: Any, scores: Any) -> Any:
        asked.append(len(ids))
        return scores

    settings: dict[str, Any] = {"max_tokens": 20, "temperature": 0.0}
    theirs = llama_cpp.StoppingCriteriaList([stop])
    expected = llm.create_completion("the", stopping_criteria=theirs, **settings)["choices"]
    assert expected[0]["finish_reason"] == "stop"
    given = {"stopping_criteria": form(stop), "logits_processor": form(note)}
    assert llm.create_completion("the", **given, **settings)["choices"] == expected
    assert asked


def answer_of(llm: specllama.Llama, schema: Any) -> Any:
    form: Any = {"type": "json_object", "schema": schema}
    return llm.create_chat_completion([{"role": "user", "content": "a"}], max_tokens=4, response_format=form)


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, r"Pointer '/\$defs/b' does not exist"),
        (True, r"it is true: give an object; \{\} allows anything"),
    ],
)
def test_schemas_that_cannot_be_enforced(make_llama: MakeLlama, schema: Any, why: str) -> None:
    with pytest.warns(UserWarning, match=why):
        answer_of(make_llama(), schema)


@pytest.mark.parametrize("keyword", ["enum", "anyOf", "oneOf"])
def test_schemas_that_no_answer_follows(make_llama: MakeLlama, keyword: str) -> None:
    with pytest.raises(ValueError, match=rf"response_format has {keyword}: \[\], which no answer can follow: give it"):
        answer_of(make_llama(), {keyword: []})


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--temp", "nan", "temperature=nan is not a usable value: it must be"),
        ("--repeat-penalty", "0", "repeat_penalty=0 is not a usable value"),
        ("--xtc-probability", "-1", "xtc_probability=-1 is not a usable value"),
        ("--temp", "warm", "invalid float value: 'warm'"),
    ],
)
def test_samplers_that_no_line_could_use(
    files: Files, capsys: pytest.CaptureFixture[str], option: str, value: str, why: str
) -> None:
    files.write({"prompt": "the"})
    assert main([*files.line, option, value]) == 2
    assert why in capsys.readouterr().err
    assert not files.target.exists()


def test_a_missing_input(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(files.line) == 1
    assert f"--input {files.source} does not exist: give the path of a file" in capsys.readouterr().err
    assert not files.target.exists()


def test_a_name_that_cannot_be_quantized(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "zzz", "Q8_0"]) == 1
    assert "zzz does not exist: check the path, or see `specllama pull --list`" in capsys.readouterr().err


def test_a_context_that_was_rounded_up(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    for size, shown in (("1", True), ("256", False), ("0", False)):
        assert main(["generate", "-m", str(tiny_files.target), "-t", "1", "-c", size, "-p", "a", "-n", "2"]) == 0
        assert ("--ctx-size 1 became 256: llama.cpp" in capsys.readouterr().err) == shown


def test_lines_that_are_too_long(files: Files) -> None:
    """Nothing of them is tokenized, and of the longest nothing is kept. They are known again."""
    long = "a " * 2_000_000
    chat = {"messages": [{"role": "user", "content": long}]}
    files.write({"prompt": long}, chat, {"prompt": "a " * 9_000_000}, MANY[0])
    start = time.monotonic()
    assert main([*files.line, "-n", "1", "--quiet"]) == 0
    assert time.monotonic() - start < 10
    answers = files.by_index()
    for index in (1, 2):
        assert "bytes of text exceed context window of 256 tokens" in answers[index]["error"]["message"]
    assert answers[3]["error"]["message"] == "line 3: the line has more than 8388608 bytes: shorten it"
    assert isinstance(answers[4]["text"], str)  # of one token that is drawn, and may be the text's end
    assert main([*files.line, "-n", "1", "--quiet"]) == 0
    assert files.by_index() == answers


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="a device of Linux")
def test_a_corpus_without_an_end(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["generate", "-m", str(tiny_files.target), "-md", "lookup", "--lookup-corpus", "/dev/zero", "-p", "a"]
    assert main(line) == 1
    assert "a lookup corpus from /dev/zero: it has more than 67108864 bytes; give a part" in capsys.readouterr().err


def test_lines_that_are_no_chats(files: Files) -> None:
    files.write({"messages": "hi"}, {"messages": []}, {"messages": ["hi"]})
    assert main([*files.line, "--quiet"]) == 0
    problems = [answer["error"]["message"] for _, answer in sorted(files.by_index().items())]
    assert "messages='hi' must be a list of messages" in problems[0]
    assert "there are no messages" in problems[1]
    assert "the message 'hi' must be a dict" in problems[2]
