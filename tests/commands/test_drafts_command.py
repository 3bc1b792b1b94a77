"""`specllama drafts`: what could draft for a model, found by headers alone."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
import tiny_models as tiny

import specllama
from specllama import cli
from specllama.engine.drafts import remembered
from specllama.evidence.draft_pays import Gain
from specllama.models import found_drafts
from specllama.models.catalog import catalog
from specllama.models.families import families, load_families
from specllama.models.found_drafts import FoundDraft, Survey, survey

if TYPE_CHECKING:
    from conftest import TinyFiles
    from fake_hub import Hub


pytestmark = pytest.mark.usefixtures("home")


def header(path: Path, architecture: str, name: str, basename: str = "", size: str = "", **numbers: int) -> Path:
    """A file with what a model of that name says of itself, and a small vocabulary. It has no weights."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_type("model")
    writer.add_name(name)
    if basename:
        writer.add_basename(basename)
    if size:
        writer.add_size_label(size)
    for key, value in {"block_count": 32, "embedding_length": 4096, **numbers}.items():
        writer.add_uint32(f"{architecture}.{key}", value)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list([f"t{i}" for i in range(64)])
    writer.add_token_types([1] * 64)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with path.open("ab") as file:
        file.write(b"\0" * 4096)  # in place of weights
    return path


def found_by_name(found: Survey) -> dict[str, FoundDraft]:
    return {Path(one.draft_model).name: one for one in found.found}


with Path(__file__).with_name("public_models.csv").open(encoding="utf-8", newline="") as table:
    PUBLIC = list(csv.DictReader(table))


@pytest.mark.parametrize("public", PUBLIC, ids=[one["file"] for one in PUBLIC])
def test_the_family_of_a_public_model(tmp_path: Path, public: dict[str, str]) -> None:
    """And the first draft that is known for it; the fields are those of its file."""
    said = (public["name"], public["basename"], public["size"])
    found = survey(str(header(tmp_path / f"{public['file']}.gguf", public["architecture"], *said)))
    assert found.family == (public["family"] or None)
    assert found.num_tokens == 64
    assert found.found == ()
    if public["first draft"]:
        assert found.known[0].name == public["first draft"]
    assert all("{" not in known.name for known in found.known)


@pytest.mark.parametrize("name", list(catalog().models))
def test_every_model_of_the_catalog_has_a_family(tmp_path: Path, name: str) -> None:
    model = catalog().models[name]
    architecture = "llama" if name.startswith("smol") else "qwen2"
    found = survey(str(header(tmp_path / model.file, architecture, model.title)))
    assert found.family is not None
    assert found.family.lower() in name or name.startswith(found.family.lower())


def test_every_draft_of_the_table_can_be_asked_for() -> None:
    assert len(families()) >= 20
    assert len({family.name for family in families()}) == len(families())
    for family in families():
        for draft in family.drafts:
            assert "/" in draft.name or not draft.gguf or draft.name in catalog().models


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("families = 3", "TypeError"),
        ("[[families]]\nname = 'a'\nnames = '('\ndrafts = []", "the family 'a' has "),
        (
            "[[families]]\nname = 'a'\nnames = 'a'\ndrafts = [{kind = 'x', name = 'b'}]",
            "the kind 'x': use one of model",
        ),
        ("[[families]]\nname = 'a'\nnames = 'a'\ndrafts = [{kind = 'model', nome = 'b'}]", "nome"),
        ("[[families", "is not a valid table of families"),
    ],
)
def test_a_damaged_table(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "families.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match="is not a valid table of families") as caught:
        load_families(path)
    assert message in str(caught.value)


# --- What is on this machine ------------------------------------------------------------------------------------------


def small(path: Path, change: Any = None) -> Path:
    """A model with one layer, of the tests' words."""
    words = tiny.word_vocabulary()
    words = words if change is None else change(words)
    path.parent.mkdir(parents=True, exist_ok=True)
    return tiny.write_llama(path, words, tiny.llama_weights(words, seed=3, n_layer=1))


def test_models_of_all_programs(target: Path, home: Path) -> None:
    blob = small(home / "ollama/blobs/sha256-abc")
    manifest = home / "ollama/manifests/registry.ollama.ai/library/small/1b"
    manifest.parent.mkdir(parents=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:def"},
        {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:abc"},
    ]
    manifest.write_text(json.dumps({"layers": layers}))
    (manifest.parent / "damaged").write_text("[")
    paths = {
        "beside the model": small(target.with_name("small.gguf")),
        "specllama": small(home / "specllama/models/own.gguf"),
        "the hub": small(home / "hf/hub/models--a--b-GGUF/snapshots/1/of-hub.gguf"),
        "llama.cpp": small(home / "llama.cpp/a_b_x-Q4_0.gguf"),
        "LM Studio": small(home / ".lmstudio/models/publisher/repo/studio.gguf"),
        "ollama": blob,
    }
    (home / "specllama/models/linked.gguf").symlink_to(paths["beside the model"])
    found = survey(str(target)).found
    assert {one.where: one.draft_model for one in found} == {where: str(path) for where, path in paths.items()}
    assert len(found) == len(paths), "a file under two names is one file"
    assert all(one.share == 1.0 and 0 < one.cost < 1 and one.memory >= one.size for one in found)


def test_lm_studios_folder_may_be_elsewhere(target: Path, home: Path) -> None:
    moved, models = home / "disk/lmstudio", home / "disk/models"
    (home / ".lmstudio-home-pointer").write_text(f"{moved}\n")
    inside = small(moved / "models/publisher/repo/inside.gguf")
    (moved / "settings.json").write_text(json.dumps({"downloadsFolder": str(models)}))
    outside = small(models / "publisher/repo/outside.gguf")
    (home / ".lmstudio").mkdir()
    (home / ".lmstudio/settings.json").write_text('{"downloadsFolder": null}')
    found = survey(str(target)).found
    assert {one.draft_model: one.where for one in found} == {str(path): "LM Studio" for path in (inside, outside)}


def test_what_cannot_draft_is_left_out(target: Path, tiny_files: TinyFiles) -> None:
    folder = target.parent
    for name in ("larger", "embedding", "embedding_words", "letters", "lora", "not_gguf"):
        shutil.copy(getattr(tiny_files, name), folder / f"{name}.gguf")
    (folder / "empty.gguf").touch()
    (folder / "folder.gguf").mkdir()
    small(folder / "parts-00002-of-00003.gguf")
    small(folder / "parts-00001-of-00003.gguf")
    small(folder / "fits.gguf")
    found = found_by_name(survey(str(target)))
    assert set(found) == {"fits.gguf"}


def test_how_many_tokens_are_in_both(target: Path) -> None:
    folder = target.parent
    count = len(tiny.word_vocabulary())
    small(folder / "same.gguf")
    small(folder / "padded.gguf", lambda words: words.padded(12))
    small(folder / "one.gguf", lambda words: words.with_token(280, "▁zebra"))
    small(folder / "few.gguf", lambda words: dataclasses.replace(words, tokens=[f"{text}!" for text in words.tokens]))
    found = found_by_name(survey(str(target)))
    assert {name: one.share for name, one in found.items()} == {
        "same.gguf": 1.0,
        "padded.gguf": 1.0,
        "one.gguf": pytest.approx((count - 1) / count),
    }


def test_what_is_said_of_a_vocabulary_holds_when_it_is_opened(target: Path) -> None:
    one = small(target.with_name("one.gguf"), lambda words: words.with_token(280, "▁zebra"))
    (found,) = survey(str(target)).usable
    assert found.share < 1
    with pytest.warns(UserWarning, match=r"the draft has \d+ of the target's \d+ tokens \(99"):
        llm = specllama.Llama(str(target), draft_model=str(one), n_ctx=64, verbose=False)
    llm.close()


VOCABULARIES = {"words": tiny.word_vocabulary, "pairs": tiny.byte_pair_vocabulary, "pieces": tiny.word_piece_vocabulary}


@pytest.mark.parametrize(("ours", "theirs"), [*itertools.permutations(VOCABULARIES, 2)])
def test_drafts_of_another_tokenizer(tmp_path: Path, ours: str, theirs: str) -> None:
    """What is said of common tokens is what counts when it is opened. Less is accepted than of the family's."""
    folder = tmp_path / "models"
    folder.mkdir()
    for name, layers in ((ours, 4), (theirs, 1)):
        vocabulary = VOCABULARIES[name]()
        weights = tiny.llama_weights(vocabulary, seed=3, n_layer=layers)
        tiny.write_llama(folder / f"{name}.gguf", vocabulary, weights)
    with (folder / f"{ours}.gguf").open("ab") as file:
        file.write(b"\0" * 1_000_000)  # it is larger, whatever its vocabulary
    target = str(folder / f"{ours}.gguf")
    (found,) = survey(target).found
    assert (found.kind, found.why_not) == ("foreign", None)
    assert found.acceptance is not None
    assert found.acceptance < 0.75
    with pytest.warns(UserWarning, match="another tokenizer") as caught:
        specllama.Llama(target, draft_model=found.draft_model, n_ctx=64, verbose=False).close()
    (numbers,) = re.findall(r"([\d,]+) of its ([\d,]+) tokens", str(caught[0].message))
    common, of_text = (int(number.replace(",", "")) for number in numbers)
    assert found.share == pytest.approx(common / of_text)


def test_of_many_models_of_other_tokenizers_some_are_shown(
    target: Path, tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(5):
        shutil.copy(tiny_files.foreign, target.with_name(f"foreign{number}.gguf"))
    shutil.copy(small(target.with_name("small.gguf")), target.with_name("other.gguf"))
    assert cli.main(["drafts", str(target)]) == 0
    out = capsys.readouterr().out
    rows = [line.split("|")[1:3] for line in out.splitlines() if line.startswith("| ")][2:]
    assert [row[1].strip() for row in rows] == ["model"] * 2 + ["another tokenizer"] * 3
    assert "And 2 more models of other tokenizers" in out
    assert cli.main(["drafts", str(target), "-o", "json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["found"]) == 7


def test_experts_that_a_token_does_not_use_cost_nothing(tmp_path: Path, target: Path) -> None:
    """Of 8 in 64 a token reads an eighth, and some that is always read."""
    counts = {"expert_count": 64, "expert_used_count": 8}
    costs = []
    for number, own in enumerate(({}, counts)):
        header(target.with_name("mixture.gguf"), "olmoe", "OLMoE", **own)
        draft = header(target.with_name("small.gguf"), "olmoe", "OLMoE", **own, block_count=number)
        with target.with_name("mixture.gguf").open("ab") as file:
            file.write(b"\0" * 500_000)
        found = found_by_name(survey(str(target.with_name("mixture.gguf"))))
        costs.append(found[draft.name].cost)
    assert costs[0] == pytest.approx(costs[1], rel=0.05)
    header(draft, "olmoe", "OLMoE")
    of_dense = found_by_name(survey(str(target.with_name("mixture.gguf"))))[draft.name].cost
    assert of_dense == pytest.approx(costs[0] / (0.05 + 0.95 / 8), rel=0.05)


def test_heads_beside_the_model(tiny_files: TinyFiles, target: Path) -> None:
    """As llama.cpp looks for them: by their beginnings, then by the type that is nearest to the model's."""
    folder = target.parent
    model = target.rename(folder / "deep-Q8_0.gguf")
    shutil.copy(tiny_files.deep_head, folder / "eagle3-deep-Q4_0.gguf")
    shutil.copy(tiny_files.deep_head, folder / "eagle3-deep-Q8_0.gguf")
    shutil.copy(tiny_files.letters_head, folder / "eagle3-deep.gguf")  # of another model
    shutil.copy(tiny_files.deep_block, folder / "dflash-deep.gguf")
    header(folder / "mtp-deep.gguf", "gemma4-assistant", "a head")
    small(folder / "small.gguf")
    found = survey(str(model))
    assert [Path(one.draft_model).name for one in found.usable] == [
        "dflash-deep.gguf",
        "eagle3-deep-Q8_0.gguf",
        "eagle3-deep-Q4_0.gguf",
        "small.gguf",
    ]
    refused = {Path(one.draft_model).name: one.why_not or "" for one in found.found if one.why_not}
    assert "for another target" in refused["eagle3-deep.gguf"]
    assert "gemma4-assistant.nextn_predict_layers must be a number" in refused["mtp-deep.gguf"]


def test_a_parallel_draft_needs_its_mask(target: Path) -> None:
    small(target.with_name("PARD-Small-1B-Q8_0.gguf"))
    (one,) = survey(str(target)).found
    assert one.kind == "parallel"
    assert "draft_mask_token" in (one.why_not or "")


def test_layers_in_the_models_own_file(tiny_files: TinyFiles) -> None:
    first = survey(str(tiny_files.mtp)).found[0]
    assert (first.draft_model, first.kind, first.where) == ("mtp", "mtp", "in the file")


@pytest.mark.parametrize("other", ["--measure", "--pull"])
def test_forgetting_is_all_that_is_done(target: Path, capsys: pytest.CaptureFixture[str], other: str) -> None:
    assert cli.main(["drafts", "--forget", other, str(target)]) == 2
    assert "--forget does nothing else: leave --measure and --pull to a second command" in capsys.readouterr().err


def test_no_model(tiny_files: TinyFiles, tmp_path: Path) -> None:
    with pytest.raises(specllama.ModelNotFoundError):
        survey(str(tmp_path / "missing.gguf"))
    with pytest.raises(ValueError, match="not a GGUF file"):
        survey(str(tiny_files.not_gguf))
    with pytest.raises(ValueError, match="holds no language model with a vocabulary"):
        survey(str(tiny_files.lora))
    with pytest.raises(
        ValueError, match=r"nothing drafts for .*deep_head.gguf: it is a head \(eagle3\), give the file"
    ):
        survey(str(tiny_files.deep_head))
    with pytest.raises(
        ValueError, match=r"nothing drafts for .*embedding.gguf: 'bert' is the architecture of an embed"
    ):
        survey(str(tiny_files.embedding))
    why = found_drafts._why_no_target({"general.architecture": b"llama", "llama.attention.causal": False})
    assert why == "by its metadata (llama.attention.causal) each token attends to those behind it, too"
    whole = tiny_files.target.read_bytes()
    for size in (10, 20, 100, 5000):
        (cut := tmp_path / "cut.gguf").write_bytes(whole[:size])
        with pytest.raises(ValueError, match=r"cut\.gguf is truncated or damaged: its header ends early"):
            survey(str(cut))
    part = small(tmp_path / "parts-00001-of-00002.gguf")
    with pytest.raises(ValueError, match="is incomplete: its parts must be in one folder"):
        survey(str(part))


# --- The command ------------------------------------------------------------------------------------------------------


def test_the_command_shows_what_there_is(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(target.with_name("small.gguf"))
    assert cli.main(["drafts", str(target)]) == 0
    out = capsys.readouterr().out
    assert "| small.gguf | model | beside the model | 100 %" in out
    assert f"To try the first: specllama chat -m {target} -md {target.with_name('small.gguf')}" in out
    assert "-md lookup" in out
    assert cli.main(["drafts", str(target), "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    (one,) = said["found"]
    assert one["share"] == 1.0
    unknown = dict.fromkeys(("pays_from", "speedup", "tokens_per_second", "with_prompt"))
    assert one["expected"] == {"cost": one["cost"], "is_measured": False, **unknown}
    assert one["measured"] is None


@pytest.mark.parametrize("others", [1.0, 10.0])
def test_costs_that_were_measured_here(target: Path, capsys: pytest.CaptureFixture[str], others: float) -> None:
    """Those that were measured while others used the machine are not believed."""
    draft = small(target.with_name("small.gguf"))
    (found,) = survey(str(target)).found
    seconds = 0.101 * found.cost / 2 / others
    with specllama.Engine.open(target, draft, n_ctx=64, n_threads=1) as engine:
        engine.keep_costs("target", {n: 0.1 + 0.001 * n for n in range(1, 17)})
        engine.keep_costs("draft", {1: seconds})
    assert cli.main(["drafts", str(target), "-o", "json"]) == 0
    expected = json.loads(capsys.readouterr().out)["found"][0]["expected"]
    assert expected["is_measured"] == (others == 1.0)
    assert expected["cost"] == pytest.approx(seconds / 0.101 if others == 1.0 else found.cost)
    assert expected["pays_from"] == pytest.approx(expected["cost"] + 0.001 / 0.101, abs=0.01)


def test_nothing_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = ("Qwen2.5 Coder 7B Instruct", "Qwen2.5-Coder", "7B")
    path = header(tmp_path / "coder.gguf", "qwen2", *said)
    with path.open("ab") as file:
        file.truncate(4_000_000_000)
    assert cli.main(["drafts", str(path)]) == 0
    out = capsys.readouterr().out
    assert "- qwen2.5-coder-0.5b (model): `specllama pull qwen2.5-coder-0.5b`, or --pull" in out
    assert "- amd/PARD-Qwen2.5-0.5B (parallel): convert it" in out
    assert f"To download one: specllama drafts {path} --pull" in out
    assert f"To make one: specllama train-draft {path}" in out
    other = header(tmp_path / "other" / "mystery.gguf", "mystery", "Mystery")
    assert cli.main(["drafts", str(other), "--pull"]) == 0
    out, err = capsys.readouterr()
    assert "of no family that is known" in out
    assert "--pull" not in out
    assert "nothing to download" in err


def test_pull_brings_what_the_table_names(hub: type[Hub], home: Path, tmp_path: Path) -> None:
    """A head by how its file begins, the one with the most bits, and nothing else of its repository."""
    names = ["gemma-4-31B-it-Q4_K_M.gguf", "mtp-gemma-4-31B-it-Q4_0.gguf", "mtp-gemma-4-31B-it-Q8_0.gguf"]
    hub.repositories = {"unsloth/gemma-4-31B-it-GGUF": {name: name.encode() for name in names}}
    path = header(tmp_path / "gemma-4-31B-it-Q4_0.gguf", "gemma4", "Gemma 4 31B It", "gemma-4", "31B")
    # In a process of its own: the hub's library reads HF_ENDPOINT when it is imported.
    command = [sys.executable, "-m", "specllama", "drafts", str(path), "--pull"]
    pulled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert pulled.returncode == 0
    assert "mtp-gemma-4-31B-it-Q8_0.gguf" in pulled.stderr
    assert [one for one in hub.requests if "resolve" in one and one.startswith("GET")] == [
        "GET /unsloth/gemma-4-31B-it-GGUF/resolve/main/mtp-gemma-4-31B-it-Q8_0.gguf"
    ]


def test_measure_tries_what_is_here(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small(target.with_name("small.gguf"))
    assert cli.main(["drafts", str(target), "--measure", "-n", "8", "-t", "1", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    for gain in (said["found"][0]["measured"], said["lookup"]):
        assert gain["ratio"] > 0
        assert 0 <= gain["accepted"] <= 1
    assert len(said["advice"]) == 2
    assert said["advice"][1].startswith("-md auto is ")


def test_what_was_measured_before_ctrl_c_is_kept(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = str(small(target.with_name("small.gguf")))

    def gain_of(llm: specllama.Llama, max_tokens: int, on_answer: Any) -> Gain:
        if llm.draft_model == "lookup":
            raise KeyboardInterrupt
        return Gain(1.3, 0.02, 0.7, 1.0)

    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", gain_of)
    assert cli.main(["drafts", str(target), "--measure", "-t", "1"]) == 130
    kept = remembered.read(str(target))
    assert kept is not None
    assert {draft: known.ratio for draft, known in kept.measured.items()} == {name: 1.3}


@pytest.mark.parametrize(("ratio", "advice"), [(1.3, "The fastest here: specllama chat -m "), (0.9, "leave -md out")])
def test_what_is_said_of_measurements(
    target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ratio: float, advice: str
) -> None:
    small(target.with_name("small.gguf"))

    def gain_of(llm: specllama.Llama, max_tokens: int, on_answer: Any) -> Gain:
        on_answer("plain decoding", 1, 1)
        if llm.draft_model == "lookup":
            raise ValueError("there is no prompt to measure")
        return Gain(ratio, 0.02, 0.7, 1.0)

    monkeypatch.setattr("specllama.evidence.draft_pays.gain_of", gain_of)
    assert cli.main(["drafts", str(target), "--measure", "-t", "1"]) == 0
    out = capsys.readouterr().out
    assert "Measured on eight prompts:" in out
    assert "- small.gguf: " in out
    assert "train longer" not in out
    assert "- lookup: there is no prompt to measure" in out
    assert advice in out
