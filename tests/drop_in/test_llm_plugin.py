"""The plug-in for `llm`, in the real `llm`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

from specllama.engine.samplers import SAMPLERS

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::specllama.FallbackWarning"),
]

MESSAGE = "the cat sat on the dog and"
SCHEMA = {"type": "object", "properties": {"animal": {"enum": ["cat", "dog"]}}, "required": ["animal"]}


@pytest.fixture
def model(tiny_files: TinyFiles) -> Any:
    """The model that the plug-in registers."""
    imported("llm")
    registered: list[Any] = []
    imported("specllama.llm_plugin").register_models(registered.append)
    assert [found.model_id for found in registered] == ["specllama"]
    yield registered[0]
    if registered[0]._conversation is not None:
        registered[0]._conversation.llm.close()


@pytest.fixture
def options(tiny_files: TinyFiles) -> dict[str, Any]:
    return {"target": str(tiny_files.target), "draft": str(tiny_files.good), "n_threads": 1, "n_ctx": 512}


def test_a_prompt(model: Any, options: dict[str, Any], make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    sampling = {"max_tokens": 20, "seed": 3}
    messages: list[Any] = [{"role": "system", "content": "a dog"}, {"role": "user", "content": MESSAGE}]
    expected = make_llama(draft=tiny_files.good).create_chat_completion(messages, **sampling)
    text = expected["choices"][0]["message"]["content"]
    for stream in (True, False):
        response = model.prompt(MESSAGE, system="a dog", stream=stream, **options, **sampling, num_draft_tokens=4)
        pieces = list(response)
        assert "".join(pieces) == response.text() == text
        assert not stream or len(pieces) > 5
        assert response.usage().input == expected["usage"]["prompt_tokens"]
        assert response.usage().output == 20
        assert response.response_json["stats"]["num_draft_tokens"] > 0


def test_a_conversation_decodes_what_is_new(model: Any, options: dict[str, Any]) -> None:
    conversation = model.conversation()
    before = 0
    for message in (MESSAGE, "no fox", "a dog"):
        response = conversation.prompt(message, **options, max_tokens=15, seed=3)
        response.text()
        assert response.response_json["stats"]["num_prompt_tokens_reused"] == max(0, before - 1)
        before = model._conversation.num_tokens
    assert [turn["content"] for turn in model._conversation.messages[::2]] == [MESSAGE, "no fox", "a dog"]


def test_another_process_reads_only_what_is_new(model: Any, options: dict[str, Any], tmp_path: Path) -> None:
    """What `llm -c` starts for each message, with a folder of earlier texts."""
    kept = {"cache_dir": str(tmp_path / "kept"), "cache_disk": "0.5", "cache_ram": "1"}
    conversation = model.conversation()
    first = conversation.prompt(MESSAGE * 5, **options, **kept, max_tokens=15, seed=3)
    first.text()
    model._conversation.llm.close()
    model._conversation = None
    response = conversation.prompt("no fox", **options, **kept, max_tokens=15, seed=3)
    response.text()
    read = first.response_json["stats"]["num_prompt_tokens"]  # the answer's text has other tokens
    assert response.response_json["stats"]["num_prompt_tokens_from_disk"] >= read - 1 > 40
    llm = model._conversation.llm
    assert (llm.cache_dir, llm.cache_disk, llm.cache_ram) == (kept["cache_dir"], 0.5, 1)


def test_a_schema(model: Any, options: dict[str, Any]) -> None:
    response = model.prompt(MESSAGE, schema=SCHEMA, **options, max_tokens=400)
    assert json.loads(response.text())["animal"] in ("cat", "dog")


def test_a_schema_that_is_not_followed_is_named(model: Any, options: dict[str, Any]) -> None:
    schema = {"type": "string", "not": {"const": "a"}}
    with pytest.warns(UserWarning, match="the schema of response_format cannot be enforced"):
        model.prompt(MESSAGE, schema=schema, **options, max_tokens=4).text()


def test_samplers_and_rule(model: Any, options: dict[str, Any], make_llama: MakeLlama) -> None:
    """As strings, which is how the command gives them."""
    assert set(SAMPLERS) <= set(model.Options.model_fields)
    sampling: dict[str, Any] = {"max_tokens": 24, "seed": 5, "temperature": 1.0}
    plain = model.prompt(MESSAGE, **options, **sampling).text()
    dry = {"dry_multiplier": "3", "dry_allowed_length": "0", "dry_penalty_last_n": "100"}
    for given in ({**dry, "dry_sequence_breakers": '["."]'}, {"xtc_probability": "0.9"}, {"top_n_sigma": "0.3"}):
        response = model.prompt(MESSAGE, **options, **sampling, **given, verify="rejection")
        meant = {name: json.loads(value) for name, value in given.items()}
        expected = make_llama().create_chat_completion(
            [{"role": "user", "content": MESSAGE}], **sampling, **meant, verify="coupled"
        )
        coupled = model.prompt(MESSAGE, **options, **sampling, **meant, verify="coupled").text()
        assert coupled == expected["choices"][0]["message"]["content"] != plain
        assert len(response.text()) > 0
        assert response.response_json["stats"]["verify"] == "rejection"
    model.prompt(MESSAGE, **options, max_draft_tokens=3, max_tokens=2).text()
    assert model._conversation.llm.engine.account.options.max_draft_tokens == 3
    with pytest.raises(ValueError, match="unknown verify='exact': use one of"):
        model.prompt(MESSAGE, **options, verify="exact").text()


def test_the_model_is_kept_while_it_is_the_same(model: Any, options: dict[str, Any]) -> None:
    model.prompt(MESSAGE, **options, max_tokens=2).text()
    first = model._conversation.llm
    model.prompt(MESSAGE, **options, max_tokens=3, temperature=0.0).text()
    assert model._conversation.llm is first
    model.prompt(MESSAGE, **{**options, "draft": "lookup"}, max_tokens=2).text()
    assert model._conversation.llm is not first
    assert model._conversation.llm.draft_model == "lookup"


def test_without_a_target_it_says_what_to_do(model: Any) -> None:
    with pytest.raises(imported("llm").ModelError, match=r"set specllama target MODEL`.* as it gets any -o"):
        model.prompt(MESSAGE).text()


def test_the_command(tiny_files: TinyFiles, tmp_path: Path) -> None:
    imported("llm")
    if not any(point.group == "llm" for point in metadata.distribution("specllama").entry_points):
        pytest.fail("the installed specllama does not declare the plug-in: install it again")
    environment = {**os.environ, "LLM_USER_PATH": str(tmp_path)}

    def llm(*arguments: str) -> str:
        line = [sys.executable, "-m", "llm", *arguments]
        done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120, env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert '"specllama"' in llm("plugins")
    for name, value in (("target", tiny_files.target), ("draft", tiny_files.good), ("n_threads", 1)):
        llm("models", "options", "set", "specllama", name, str(value))
    answer = llm("-m", "specllama", "-o", "seed", "3", "-o", "max_tokens", "10", "-o", "verify", "block", MESSAGE)
    assert len(answer) > 10
    assert len(llm("-c", "-o", "max_tokens", "10", "no fox")) > 5
    logged = json.loads(llm("logs", "list", "--json", "-n", "2"))
    assert [entry["model"] for entry in logged] == ["specllama"] * 2
