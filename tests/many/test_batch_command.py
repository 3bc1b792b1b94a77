"""`specllama batch`: the same answers as one by one, each line once, whatever ends the command."""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from batches import MANY, Files, request
from needed import imported

import specllama
from specllama import cli
from specllama.many import Outcomes

imported("fastapi")

if TYPE_CHECKING:
    from conftest import TinyFiles


# --- answers ---------------------------------------------------------------------------------------------------------


def test_answers_are_those_of_create_completion(
    files: Files, batch_llm: specllama.Llama, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = [{"role": "user", "content": "hello"}]
    own: list[dict[str, Any]] = [
        {"prompt": "hello"},
        {"prompt": "hello word", "max_tokens": 3, "temperature": 0.0},
        {"messages": chat, "seed": 9},
        {"prompt": "word", "logprobs": 1, "stop": ["e"]},
        {"prompt": "word", "grammar": 'root ::= "yes"'},
        {"prompt": [5, 6, 7], "dry_multiplier": 0.5},
        {"prompt": "hello", "echo": True, "logprobs": 1},  # takes the model alone
    ]
    files.write(*own, {"id": "q", **own[0]}, {"custom_id": 8, **own[1]})
    assert cli.main([*files.line, "--temp", "0.9", "--seed", "5", "-n", "12", "--xtc-probability", "0.1"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "tokens/s after a prompt of" in err
    assert "accepted " in err
    assert err.splitlines()[-1] == f"all 9 answers are in {files.target}"
    defaults = {"temperature": 0.9, "seed": 5, "max_tokens": 12, "xtc_probability": 0.1}
    found = {answer.get("index") or answer.get("id") or answer["custom_id"]: answer for answer in files.answers()}
    assert sorted(map(str, found)) == ["1", "2", "3", "4", "5", "6", "7", "8", "q"]
    for name, given in [*enumerate(own, 1), ("q", own[0]), (8, own[1])]:
        alone = {**defaults, **given}
        if "grammar" in alone:
            alone["grammar"] = specllama.llama.llama_cpp.LlamaGrammar.from_string(alone["grammar"], verbose=False)
        response: Any = (batch_llm.create_chat_completion if "messages" in alone else batch_llm.create_completion)(
            **alone
        )
        choice, answer = response["choices"][0], found[name]
        assert answer["text"] == (choice["message"]["content"] if "messages" in alone else choice["text"])
        assert answer["finish_reason"] == choice["finish_reason"]
        assert answer["usage"] == response["usage"]
    assert len(found[4]["logprobs"]["tokens"]) == found[4]["usage"]["completion_tokens"]
    assert "logprobs" not in found[1]


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_requests_are_answered_as_the_server_does(
    files: Files, batch_llm: specllama.Llama, capsys: pytest.CaptureFixture[str]
) -> None:
    chat = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
    ]
    given = [
        request("a", prompt="hello", max_tokens=5, temperature=None),
        request("b", "/v1/chat/completions", messages=chat, max_completion_tokens=4, model="gpt", store=True),
        request("c", prompt="word " * 5000),
        request("d", prompt="word", temprature=1.0),
        request("e", "/v1/embeddings", input="x"),
        {**request("f", prompt="x"), "method": "GET"},
        request("g", prompt="x", stream=True),
        {**request("h"), "body": [1]},
        request("i", prompt="x", n=2),
        {"prompt": "word"},
        request("j", prompt="hello", max_tokens=5, temperature=0.8, mirostat_mode=2),  # takes the model alone
    ]
    files.write(*given)
    assert cli.main([*files.line, "--temp", "0", "--seed", "1", "-n", "9", "--top-k", "-1"]) == 0
    assert "6 of 11 texts failed: their answers say why\n" in capsys.readouterr().err
    [plain] = [answer for answer in files.answers() if "index" in answer]
    assert plain["index"] == 10
    found = {answer["custom_id"]: answer for answer in files.answers() if "index" not in answer}
    assert len({answer["id"] for answer in found.values()}) == len(found) == 10
    assert all(list(answer) == ["id", "custom_id", "response", "error"] for answer in found.values())

    first, second, alone = (found[name]["response"] for name in "abj")
    expected = batch_llm.create_completion("hello", max_tokens=5, temperature=0.0, seed=1, top_k=0)
    assert first["status_code"] == 200
    assert first["body"]["choices"][0]["text"] == expected["choices"][0]["text"]
    assert first["body"]["model"] == "target.gguf"
    assert first["body"]["timings"]["predicted_n"] == 5
    expected = batch_llm.create_completion("hello", max_tokens=5, temperature=0.8, seed=1, top_k=0, mirostat_mode=2)
    assert alone["body"]["choices"][0]["text"] == expected["choices"][0]["text"]
    assert second["body"]["object"] == "chat.completion"
    assert second["body"]["model"] == "gpt"
    assert second["body"]["usage"]["completion_tokens"] <= 4
    assert second["body"]["warnings"] == ["store has no effect here"]

    assert [choice["index"] for choice in found["i"]["response"]["body"]["choices"]] == [0, 1]
    for name, code in (("c", "context_length_exceeded"), ("d", None)):
        assert found[name]["error"] is None
        assert found[name]["response"]["status_code"] == 400
        assert found[name]["response"]["body"]["error"]["code"] == code
    assert "temperature" in found["d"]["response"]["body"]["error"]["message"]
    for name, number, what in (("e", 5, "/v1/embeddings"), ("f", 6, "'GET'"), ("g", 7, "stream"), ("h", 8, "`body`")):
        assert found[name]["response"] is None
        assert found[name]["error"]["code"] == "invalid_request"
        assert found[name]["error"]["message"].startswith(f"line {number}: ")
        assert what in found[name]["error"]["message"]


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_requests_that_take_the_model_alone(files: Files, batch_llm: specllama.Llama) -> None:
    """Also by llama-server's names, and where scores are needed only to compare the answers."""
    chat = [{"role": "user", "content": "hello"}]
    files.write(
        request("a", prompt="hello", mirostat=2),
        request("b", "/v1/chat/completions", messages=chat, mirostat=1),
        request("c", prompt="hello", echo=True, n_probs=2),
        request("d", prompt="hello", echo=True, best_of=2),
        request("e", prompt="hello"),
    )
    assert cli.main([*files.line, "--temp", "0.8", "--seed", "1", "-n", "5"]) == 0
    found = {answer["custom_id"]: answer["response"] for answer in files.answers()}
    assert {name: each["status_code"] for name, each in found.items()} == dict.fromkeys("abcde", 200)
    said = batch_llm.create_completion("hello", max_tokens=5, temperature=0.8, seed=1, mirostat_mode=2)
    assert found["a"]["body"]["choices"][0]["text"] == said["choices"][0]["text"]
    assert len(found["c"]["body"]["choices"][0]["logprobs"]["tokens"]) > 5


def test_bad_lines_have_errors_of_their_own(
    files: Files, batch_llm: specllama.Llama, capsys: pytest.CaptureFixture[str]
) -> None:
    bad: list[tuple[Any, str, str]] = [
        ("{", "ValueError", "not JSON"),
        ({"text": "hello"}, "ValueError", "neither `prompt` nor `messages`"),
        ({"prompt": "x", "messages": []}, "ValueError", "both `prompt` and `messages`"),
        ({"prompt": "word " * 5000}, "ValueError", "context window"),
        ({"prompt": "x", "temprature": 1}, "TypeError", "temprature"),
        ({"prompt": "x", "call": 1}, "TypeError", "got an unexpected keyword argument 'call'"),
        (
            {"messages": [{"role": "user", "content": "x"}], "self": 1},
            "TypeError",
            "unexpected keyword argument 'self'",
        ),
        ({"prompt": "x", "temperature": "hot"}, "TypeError", "temperature"),
        ({"prompt": "x", "stream": True}, "ValueError", "no streams"),
        ({"prompt": "x", "grammar": "broken"}, "ValueError", "grammar"),
        ({"prompt": 5}, "TypeError", ""),
        ({"messages": [{"role": "user"}], "id": [1]}, "ValueError", "`id` must be"),
    ]
    good = {"prompt": "hello", "seed": 3}
    mixed = [line for what, _, _ in bad for line in (what, good)]
    files.write(*mixed)
    assert cli.main([*files.line, "-n", "5", "--quiet"]) == 0
    assert capsys.readouterr() == ("", "12 of 24 texts failed: their answers say why\n")
    found = files.by_index()
    expected = batch_llm.create_completion("hello", seed=3, max_tokens=5)["choices"][0]["text"]
    for i, (_, kind, what) in enumerate(bad):
        error = found[2 * i + 1]["error"]
        assert (i, error["type"]) == (i, kind)
        assert error["message"].startswith(f"line {2 * i + 1}: ")
        assert what in error["message"]
        assert found[2 * i + 2]["text"] == expected


def test_a_name_that_is_there_twice(files: Files) -> None:
    """The first line has it; the others say so, once, also when the command goes on."""
    files.write(request("a", prompt="hello"), request("a", prompt="word"), {"id": "a", "prompt": "hello"}, MANY[0])
    for _ in range(2):
        assert cli.main([*files.line, "-n", "2"]) == 0
        found = files.answers()
        assert len(found) == 4
        [named] = [answer for answer in found if answer.get("custom_id") == "a"]
        assert named["response"]["status_code"] == 200
        errors = {answer["index"]: answer["error"]["message"] for answer in found if answer.get("error")}
        assert errors == {
            2: "line 2: line 1 has this custom_id 'a', too: give each line one of its own",
            3: "line 3: line 1 has this id 'a', too: give each line one of its own",
        }


def test_a_memory_that_cannot_be_shared(
    files: Files, tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], early_release: None
) -> None:
    files.write(*MANY[:3])
    others = {str(tiny_files.target): str(tiny_files.recurrent), str(tiny_files.good): str(tiny_files.recurrent_draft)}
    line = [others.get(part, part) for part in files.line]
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert cli.main([*line, "-n", "3", "--temp", "0"]) == 0
    assert "warning: one text after the other instead of 3 at once" in capsys.readouterr().err
    assert sorted(files.by_index()) == [1, 2, 3]


# --- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "target", "code", "message"),
    [
        ("-", "out", 2, "--input - is no file: a batch reads it again"),
        ("in", "-", 2, "--output - is no file"),
        (".", "out", 2, "--input . is no file"),
        ("in", "in", 2, "--input and --output are both"),
        ("missing", "out", 1, "does not exist: give the path"),
    ],
)
def test_files_that_cannot_be(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    source: str,
    target: str,
    code: int,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("in").write_text('{"prompt": "x"}\n')
    assert cli.main(["batch", "-m", "x", "--input", source, "--output", target]) == code
    assert message in capsys.readouterr().err
    assert Path("in").read_text() == '{"prompt": "x"}\n'
    assert not Path("out").exists()


def test_the_extra_is_asked_for_before_the_model(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.commands import batch

    monkeypatch.setattr(batch.importlib.util, "find_spec", lambda name: None)
    files.write(MANY[0], request("a", prompt="x"))
    assert cli.main(["batch", "-m", "no-such-model", *files.line[9:]]) == 1
    assert 'need fastapi: pip install "specllama[server]"' in capsys.readouterr().err


def test_progress_where_there_is_no_terminal(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.batch.answers import Answers
    from specllama.commands import batch

    told = threading.Event()
    show, add = batch.show, Answers.add

    def shown(text: str) -> None:
        show(text)
        if text.startswith("4 of 6 answers, "):
            told.set()

    def added(self: Answers, answer: dict[str, Any]) -> None:
        add(self, answer)
        if self.num_whole() == 4:
            assert told.wait(60), "the lines come between two answers"

    files.write(*MANY[:2])
    assert cli.main([*files.line, "-n", "1"]) == 0
    monkeypatch.setattr(batch, "_LINE_SECONDS", 0.01)
    monkeypatch.setattr(batch, "show", shown)
    monkeypatch.setattr(Answers, "add", added)
    files.write(*MANY[:6])
    assert cli.main([*files.line, "-n", "1"]) == 0
    err = capsys.readouterr().err
    assert re.search(r"^4 of 6 answers, \d+\.\d tokens/s; about \d+ s left$", err, re.M)
    files.write(*MANY[:8])
    assert cli.main([*files.line, "-n", "1", "--quiet"]) == 0
    assert "answers" not in capsys.readouterr().err


def test_progress_in_a_terminal(
    files: Files, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specllama.many import progress

    seen: list[tuple[int | None, int]] = []

    def bar(outcomes: Outcomes, total: int | None, num_done: int) -> Iterator[Any]:
        seen.append((total, num_done))
        yield from outcomes

    monkeypatch.setattr(progress, "progress_bar", bar)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    for count, options in ((2, []), (5, []), (6, ["--quiet"])):
        files.write(*MANY[:count])
        assert cli.main([*files.line, "-n", "1", *options]) == 0
    assert seen == [(2, 0), (5, 2)]
