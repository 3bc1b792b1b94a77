"""Models of the hub by ORG/NAME:TYPE: from a hub on this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import faults
import pytest
from fake_hub import Hub

import specllama
from specllama.models.catalog import ModelNotFoundError, resolve
from specllama.models.hub import HubName, hub_cache

if TYPE_CHECKING:
    from conftest import TinyFiles

FILES = [
    *("README.md", "mmproj-m-f16.gguf", "mtp-m-Q8_0.gguf", "m-imatrix.gguf"),
    *("m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m-IQ4_XS.gguf"),
    *(f"BF16/m-BF16-0000{part}-of-00003.gguf" for part in (2, 1, 3)),
]
REPO = "someone/m-GGUF"


@pytest.mark.parametrize("text", ["org/name", "org/na.me_2-x", "org/name:Q4_K_M", "org/name:folder/file.gguf"])
def test_names(text: str) -> None:
    assert str(HubName.of(text)) == text


@pytest.mark.parametrize(
    "text", ["name", "name:F16", "a/b.gguf", "./a/b", "../a", "/a/b", "a/b/c", "a/b:", "a b/c", ""]
)
def test_what_is_no_name(text: str) -> None:
    assert HubName.of(text) is None


@pytest.mark.parametrize(
    ("wanted", "chosen"),
    [
        ("", ["m-Q4_K_M.gguf"]),
        ("q8_0", ["m-Q8_0.gguf"]),
        ("UD-Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("Q4_K_XL", ["m-UD-Q4_K_XL.gguf"]),
        ("mtp-m-Q8_0.gguf", ["mtp-m-Q8_0.gguf"]),
        ("bf16", [f"BF16/m-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
        ("BF16/m-BF16-00001-of-00003.gguf", [f"BF16/m-BF16-0000{part}-of-00003.gguf" for part in (1, 2, 3)]),
    ],
)
def test_which_file_is_meant(wanted: str, chosen: list[str]) -> None:
    assert HubName(REPO, wanted).chosen(FILES) == chosen


@pytest.mark.parametrize(
    ("wanted", "files", "message"),
    [
        (
            "Q5_K_M",
            FILES,
            "none fits. Write someone/m-GGUF: and one of BF16/m-BF16-00001-of-00003.gguf, m-IQ4_XS.gguf, ",
        ),
        ("Q8_0", ["a-Q8_0.gguf", "b-Q8_0.gguf"], "several fit. Write .* one of a-Q8_0.gguf, b-Q8_0.gguf$"),
        ("", ["a-Q5_0.gguf", "a-F16.gguf"], "does not say which file"),
        ("", ["model.safetensors"], "has no GGUF file: look for a repository .* whose name ends in -GGUF"),
        ("", ["mmproj-m-f16.gguf"], "does not say which file"),
    ],
)
def test_a_name_that_is_not_clear(wanted: str, files: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HubName(REPO, wanted).chosen(files)


@pytest.fixture
def repository(hub: type[Hub]) -> type[Hub]:
    """One with these files."""
    hub.repositories[REPO] = {name: name.encode() * 100 for name in FILES}
    return hub


def test_a_model_gets_a_name(repository: type[Hub], tiny_files: TinyFiles) -> None:
    repository.repositories[REPO]["m-Q4_K_M.gguf"] = tiny_files.target.read_bytes()
    with pytest.raises(ModelNotFoundError, match=f"get it with `specllama pull {REPO}`"):
        resolve(REPO)
    done = faults.run("pull", REPO)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    assert path.read_bytes() == tiny_files.target.read_bytes()
    repository.requests.clear()
    for name in (REPO, f"{REPO}:q4_k_m", f"{REPO}:m-Q4_K_M.gguf"):
        assert Path(resolve(name)) == path
        assert faults.run("pull", name).stdout == done.stdout
    assert repository.requests == []
    with specllama.Llama(REPO, draft_model=f"{REPO}:Q4_K_M", n_ctx=256, verbose=False) as llm:
        assert llm.create_completion("the cat", max_tokens=3)["usage"]["completion_tokens"] == 3
    listed = faults.run("pull", "--list").stdout
    assert f"{REPO}:m-Q4_K_M.gguf" in listed


@pytest.mark.long
def test_commands_download_what_is_named_with_its_type(repository: type[Hub], tiny_files: TinyFiles) -> None:
    """As llama.cpp's ``-hf`` does. A name without a type may be a path with a mistake."""
    repository.repositories[REPO]["m-Q4_K_M.gguf"] = tiny_files.target.read_bytes()
    options = ["-c", "256", "-n", "3", "-p", "the cat"]
    refused = faults.run("generate", "-m", REPO, *options)
    faults.assert_one_line_error(refused, f"get it with `specllama pull {REPO}`")
    done = faults.run("generate", "-m", f"{REPO}:Q4_K_M", "-md", f"{REPO}:Q4_K_M", *options)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("is not on this machine: it is downloaded") == 1
    missing = faults.run("generate", "-m", "nobody/nothing:Q8_0", *options)
    assert missing.returncode != 0
    assert "There is no such repository" in missing.stderr


@pytest.mark.parametrize(
    "variables",
    [
        {"HF_HUB_CACHE": "~/a"},
        {"HUGGINGFACE_HUB_CACHE": "$HOME/a"},
        {"HF_HOME": "~/a"},
        {"XDG_CACHE_HOME": "~/a"},
        {},
    ],
)
def test_where_the_cache_is(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where the hub's own library has it: it is asked in a process of its own."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    script = "from huggingface_hub.constants import HF_HUB_CACHE; print(HF_HUB_CACHE)"
    theirs = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.strip()
    assert str(hub_cache()) == theirs


def test_all_parts_come(repository: type[Hub]) -> None:
    done = faults.run("pull", f"{REPO}:BF16")
    path = Path(done.stdout.strip())
    assert path.name == "m-BF16-00001-of-00003.gguf", done.stderr
    assert len(list(path.parent.glob("*.gguf"))) == 3
    assert Path(resolve(f"{REPO}:BF16")) == path
    (path.parent / "m-BF16-00002-of-00003.gguf").unlink()
    with pytest.raises(ModelNotFoundError):
        resolve(f"{REPO}:BF16")
    assert faults.run("pull", f"{REPO}:BF16").stdout == done.stdout
    assert len(list(path.parent.glob("*.gguf"))) == 3


def test_one_that_is_not_for_everybody(repository: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    repository.token = "hf_secret"
    refused = faults.run("pull", REPO)
    faults.assert_one_line_error(refused, f"{REPO} could not be downloaded", "accept its terms there, and set HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert faults.run("pull", REPO).returncode == 0


def test_one_that_is_not_there(repository: type[Hub]) -> None:
    done = faults.run("pull", "nobody/nothing")
    faults.assert_one_line_error(done, "nobody/nothing could not be downloaded", "There is no such repository")
