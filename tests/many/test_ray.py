"""`specllama.ray`: a local Ray cluster of two workers, one of which dies."""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import pytest
from needed import imported
from ray_driver import examples

from specllama.engine import cache_contents

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform == "win32", reason="Ray's support of Windows is a trial"),
]

DEADLY = 21
"""The row over whose batch a worker dies."""
BAD = {4: "n_ctx", 22: "n_ctx", 33: "prompt"}
"""Rows that cannot be answered, and what their errors speak of."""
SERVED = {"prompt": "hello", "max_tokens": 6, "temperature": 0.0, "num_draft_tokens": 3}
DRIVER = Path(__file__).parents[1] / "helpers" / "ray_driver.py"
PATIENCE = 300


def rows() -> list[dict[str, Any]]:
    """Prompts of several lengths. Some have a seed, some two too long, one is missing."""
    found: list[dict[str, Any]] = [
        {"number": i, "prompt": "hello " * (i % 5 + 1) + "word " * (i % 3), "seed": i if i % 3 else None}
        for i in range(40)
    ]
    for number, said in BAD.items():
        found[number]["prompt"] = "word " * 500 if said == "n_ctx" else None
    return found


@pytest.fixture(scope="module")
def found(tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the driver reports."""
    for module in ("ray.data", "ray.serve", "fastapi"):
        imported(module)
    folder = tmp_path_factory.mktemp("shared")
    shutil.copy(tiny_files.target, folder / "target.gguf")
    shutil.copy(tiny_files.good, folder / "draft.gguf")
    (folder / "rows.json").write_text(json.dumps(rows()))
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": row["prompt"] or ""}) + "\n" for row in rows()))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = {
        "model_path": str(folder / "target.gguf"),
        "draft_model": str(folder / "draft.gguf"),
        "n_ctx": 128,
        "max_parallel": 4,
        "num_draft_tokens": 4,
        "arguments": {"max_tokens": 12, "temperature": 0.9},
        "row_arguments": ["seed"],
        "cache_dir": str(folder / "kept"),
    }
    # The name of a Unix socket has 107 characters at most, and Ray adds some 60 to this.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as short_folder:
        asked = {
            **{"folder": str(folder), "short_folder": short_folder, "port": port},
            **{"deadly": DEADLY, "options": options, "bodies": [SERVED] * 3},
        }
        environment = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
        environment["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "60"  # 5 are too few on a busy machine
        line = [sys.executable, str(DRIVER), json.dumps(asked)]
        done = subprocess.run(
            line, capture_output=True, text=True, check=False, timeout=PATIENCE, env=environment, cwd=folder
        )
    assert done.returncode == 0, done.stderr[-5000:]
    kept = cache_contents(folder / "kept")
    return {**json.loads((folder / "found.json").read_text()), "died": int((folder / "died").read_text()), "kept": kept}


def test_a_worker_that_is_killed_loses_no_row(found: dict[str, Any], make_llama: MakeLlama) -> None:
    """Each comes once, with the text that it has alone, from another process than the one that died over it."""
    answers = sorted(found["rows"], key=lambda row: int(row["number"]))
    assert [row["number"] for row in answers] == list(range(40))
    pids = {row["pid"] for row in answers}
    assert len(pids) > 1
    assert answers[DEADLY]["pid"] != found["died"]
    alone = make_llama(n_ctx=128)
    for given, row in zip(rows(), answers, strict=True):
        assert row["prompt"] == given["prompt"]
        assert row["seed"] == given["seed"], "as it was: a whole number, or none"
        if given["number"] in BAD:
            assert BAD[given["number"]] in row["error"]
            assert (row["text"], row["finish_reason"], row["num_tokens"]) == ("", "", 0)
            continue
        seed = given["seed"] or 0
        expected = alone.create_completion(
            given["prompt"], max_tokens=12, temperature=0.9, seed=seed, num_draft_tokens=0
        )
        assert (row["text"], row["error"]) == (expected["choices"][0]["text"], "")
        assert row["finish_reason"] == expected["choices"][0]["finish_reason"]
        assert row["num_prompt_tokens"] == expected["usage"]["prompt_tokens"]
        assert row["num_tokens"] == alone.stats.num_tokens
    assert sum(row["num_accepted_tokens"] for row in answers) > 0


def test_workers_keep_what_prompts_begin_with(found: dict[str, Any]) -> None:
    """In one folder, also while one of them is killed."""
    assert {content.about["file"] for content in found["kept"]} == {"target.gguf", "draft.gguf"}


def test_a_worker_has_as_many_threads_as_cpus_of_ray(found: dict[str, Any]) -> None:
    assert {row["threads"] for row in found["rows"]} == {1}


def test_the_dataset_of_the_page(found: dict[str, Any], make_llama: MakeLlama) -> None:
    alone = make_llama(n_ctx=512)
    answers = {row["prompt"]: row for row in found["written"]}
    assert len(found["written"]) == len(rows())
    for prompt in {row["prompt"] for row in rows() if row["number"] not in BAD}:
        expected = alone.create_completion(prompt, max_tokens=8, temperature=0.0)
        assert answers[prompt]["text"] == expected["choices"][0]["text"]
    assert answers["word " * 500]["error"].startswith("ValueError: ")


def test_the_server_of_the_page(found: dict[str, Any], make_llama: MakeLlama) -> None:
    expected = make_llama(n_ctx=512).create_completion(**SERVED)
    assert [answer["choices"][0]["text"] for answer in found["served"]] == [expected["choices"][0]["text"]] * 3
    assert all(answer["timings"]["draft_n"] for answer in found["served"])


def test_servers_of_layers_are_named_before_the_model_is_opened(
    tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the page does it. The functions are llama.cpp's, if it is built with them: here they only note their calls."""
    shutil.copy(tiny_files.target, tmp_path / "target.gguf")
    shutil.copy(tiny_files.good, tmp_path / "draft.gguf")
    library, load = mock.Mock(), ctypes.CDLL
    library.ggml_backend_rpc_add_server.side_effect = [5, 6]
    monkeypatch.setattr(ctypes, "CDLL", lambda name, *rest: library if "/" not in str(name) else load(name, *rest))
    names: dict[str, Any] = {}
    exec(examples(tmp_path)[2], names)
    try:
        assert [call.args[0] for call in library.ggml_backend_rpc_add_server.mock_calls] == [
            b"192.168.1.10:50052",
            b"192.168.1.11:50052",
        ]
        assert [call.args[0].value for call in library.ggml_backend_register.mock_calls] == [5, 6]
        assert names["llm"].create_completion("hello", max_tokens=4)["usage"]["completion_tokens"] == 4
        assert names["llm"].draft_model.model_params.n_gpu_layers == 0 < names["llm"].model_params.n_gpu_layers
    finally:
        names["llm"].close()


# --- Without a cluster -----------------------------------------------------------------------------------------------


@pytest.fixture
def completions(tiny_files: TinyFiles) -> Iterator[Any]:
    """Makes a `Completions` over `target`, and closes it afterwards."""
    imported("ray")
    imported("pyarrow")
    from specllama.ray import Completions

    made = []

    def make(**kwargs: Any) -> Any:
        kwargs = {"n_ctx": 128, "n_threads": 1, "max_parallel": 3, **kwargs}
        made.append(Completions(str(tiny_files.target), **kwargs))
        return made[-1]

    yield make
    for each in made:
        each._create.__self__.close()


def test_numpy_arrays(completions: Any, make_llama: MakeLlama) -> None:
    prompts = np.array(["hello", [1, 270], "word " * 500], dtype=object)
    batch = {"text": prompts, "seed": np.array([5, 6, 7]), "embedding": np.ones((3, 2))}
    answer = completions(column="text", prefix="answer_", row_arguments="seed", arguments={"max_tokens": 4})
    found = answer(batch)
    assert [found[name] is batch[name] for name in batch] == [True] * 3
    alone = make_llama(n_ctx=128)
    for i, prompt in enumerate(prompts[:2]):
        expected = alone.create_completion(prompt, max_tokens=4, seed=5 + i)
        assert found["answer_text"][i] == expected["choices"][0]["text"]
    assert [bool(error) for error in found["answer_error"]] == [False, False, True]
    holes = answer({"text": np.array(["hello"]), "seed": np.array([np.nan])})
    assert holes["answer_text"][0] == alone.create_completion("hello", max_tokens=4, seed=0)["choices"][0]["text"]


def test_chats(completions: Any, make_llama: MakeLlama) -> None:
    pyarrow = imported("pyarrow")
    chats = [[{"role": "user", "content": "hello"}], [{"role": "user", "content": "word", "name": "Ada"}], None]
    answer = completions(chat=True, arguments={"max_tokens": 4})
    found = answer(pyarrow.table({"messages": chats})).to_pylist()
    alone = make_llama(n_ctx=128)
    for messages, row in zip(chats[:2], found, strict=False):
        expected = alone.create_chat_completion(messages, max_tokens=4, seed=0)
        assert row["text"] == expected["choices"][0]["message"]["content"]
    assert found[2]["error"].startswith("TypeError: ")
    with pytest.raises(TypeError, match='batch_format="pyarrow"'):
        answer({"messages": np.array(chats, dtype=object)})


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "additionalProperties": False}}}


def test_what_is_no_text_is_in_the_response(completions: Any) -> None:
    pyarrow = imported("pyarrow")
    forced = {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}, "max_tokens": 60}
    chats = pyarrow.table({"messages": [[{"role": "user", "content": "hello"}], None]})
    called, failed = completions(n_ctx=512, chat=True, arguments=forced)(chats).to_pylist()
    assert (called["text"], called["finish_reason"]) == ("", "tool_calls")
    (call,) = json.loads(called["response"])["choices"][0]["message"]["tool_calls"]
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("f", {})
    assert failed["error"]
    assert failed["response"] == ""
    answer = completions(arguments={"max_tokens": 4, "logprobs": 2}, prefix="answer_")
    (row,) = answer(pyarrow.table({"prompt": ["hello"]})).to_pylist()
    choice = json.loads(row["answer_response"])["choices"][0]
    assert choice["text"] == row["answer_text"]
    assert len(choice["logprobs"]["tokens"]) == row["answer_num_tokens"]


def test_whole_numbers_that_came_as_floats(completions: Any, make_llama: MakeLlama) -> None:
    """Ray's `read_json` makes them, if some rows lack one."""
    pyarrow = imported("pyarrow")
    numbers = {"seed": [7.0, None, float("nan"), 2.5, 2.0**60], "top_k": [5.0, None, 40.0, 40.0, 40.0]}
    answer = completions(arguments={"max_tokens": 4}, row_arguments=list(numbers))
    found = answer(pyarrow.table({"prompt": ["hello"] * 5, **numbers})).to_pylist()
    alone = make_llama(n_ctx=128)
    for row, (seed, top_k) in zip(found, [(7, 5), (0, 40), (0, 40)], strict=False):
        expected = alone.create_completion("hello", max_tokens=4, seed=seed, top_k=top_k)
        assert (row["error"], row["text"]) == ("", expected["choices"][0]["text"])
    assert found[0]["seed"] == 7.0, "as it was"
    assert "seed=2.5" in found[3]["error"]
    assert "seed=1.15" in found[4]["error"], "its last digits may be lost"


def test_columns_have_one_type_in_all_batches(completions: Any) -> None:
    pyarrow = imported("pyarrow")
    answer = completions(arguments={"max_tokens": 2})
    batches = [answer(pyarrow.table({"prompt": pyarrow.array(texts, "string")})) for texts in (["hello"], [None], [])]
    assert batches[0].schema == batches[1].schema == batches[2].schema
    assert pyarrow.types.is_string(batches[1].schema.field("error").type)


def test_columns_that_do_not_fit(completions: Any) -> None:
    answer = completions(row_arguments=["seed"])
    with pytest.raises(ValueError, match="no column 'prompt': they have 'text', 'seed'"):
        answer({"text": np.array(["hello"]), "seed": np.array([1])})
    with pytest.raises(ValueError, match="no column 'seed'"):
        answer({"prompt": np.array(["hello"])})
    with pytest.raises(ValueError, match="column 'error' already"):
        answer({"prompt": np.array(["hello"]), "seed": np.array([1]), "error": np.array([""])})


@pytest.mark.parametrize(
    ("given", "error", "said"),
    [
        ({"arguments": {"temprature": 1.0}}, TypeError, "arguments has 'temprature', .*: did you mean temperature"),
        ({"arguments": {"stream": True}}, TypeError, "arguments has 'stream', which is no argument"),
        ({"row_arguments": ["prompt"]}, TypeError, "row_arguments has 'prompt', which is no argument"),
        ({"seed": 3}, ValueError, "seed.*`arguments`"),
    ],
)
def test_what_every_row_would_fail_of_is_refused(
    completions: Any, given: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        completions(**given)


@pytest.mark.parametrize("missing", ["ray", "pyarrow"])
def test_without_ray(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    imported("pyarrow")  # is looked for before ray
    monkeypatch.delitem(sys.modules, "specllama.ray", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=rf'specllama\.ray needs {missing}: pip install "specllama\[ray\]"'):
        importlib.import_module("specllama.ray")
