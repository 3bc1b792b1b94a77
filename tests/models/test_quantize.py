"""The quantizer: types, names, and what happens when it fails."""

from __future__ import annotations

import collections
import dataclasses
import os
import re
import shutil
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import pytest

import specllama
from specllama import cli
from specllama.models import catalog, new_file, quantize
from specllama.models.contents import contents_of, planned
from specllama.models.gguf_header import read_header
from specllama.models.quantize import QuantizeError

if TYPE_CHECKING:
    from conftest import TinyFiles

F32, F16, Q4_0, Q8_0 = 0, 1, 2, 8  # ggml's tensor types


@pytest.fixture
def model(tiny_files: TinyFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the tiny target in a folder of its own, and an empty cache."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "models"
    folder.mkdir()
    return Path(shutil.copy(tiny_files.target, folder / "tiny.gguf"))


def tensor_types(path: Path) -> set[int]:
    return {int(tensor.tensor_type) for tensor in gguf.GGUFReader(path).tensors}


def test_default_output_is_beside_the_file(model: Path) -> None:
    steps: list[tuple[str, int, int]] = []
    path = quantize.quantize(model, "f16", threads=1, on_progress=lambda *step: steps.append(step))
    assert path == model.with_name("tiny-f16.gguf")
    assert tensor_types(path) == {F32, F16}
    count = read_header(model).num_tensors
    assert steps[-1] == ("to F16", count, count)
    assert sorted(file.name for file in model.parent.iterdir()) == ["tiny-f16.gguf", "tiny.gguf"]


@pytest.mark.long
def test_requantizes(model: Path, tmp_path: Path) -> None:
    small = quantize.quantize(model, "Q8_0", threads=1, output=tmp_path / "new" / "small.gguf")
    assert Q8_0 in tensor_types(small)
    large = quantize.quantize(small, "F32", threads=1)
    assert large == small.with_name("small-f32.gguf")
    assert tensor_types(large) == {F32}


@pytest.mark.parametrize("file_type", catalog.FILE_TYPES)
def test_every_type_is_known_to_llama_cpp(file_type: str) -> None:
    import llama_cpp

    prefix = "LLAMA_FTYPE_ALL_" if file_type == "F32" else "LLAMA_FTYPE_MOSTLY_"
    assert isinstance(getattr(llama_cpp, prefix + file_type.removesuffix(catalog.PURE)), int)


@pytest.mark.long
def test_sizes_are_enough_for_the_space_check(model: Path) -> None:
    for file_type in ("F16", "Q8_0", "Q4_0", "Q4_0_PURE"):
        path = quantize.quantize(model, file_type, threads=1)
        needed = read_header(model).num_elements * catalog.FILE_TYPES[file_type] / 8 + new_file.HEADER_ROOM
        assert path.stat().st_size <= needed


@pytest.mark.long
def test_a_pure_type_is_that_of_the_output_matrix_too(model: Path) -> None:
    """Q4_0 gives it 8 bits, and it is much of a small draft."""

    def output_type(path: Path) -> int:
        return next(int(one.tensor_type) for one in gguf.GGUFReader(path).tensors if one.name == "output.weight")

    mixed, pure = quantize.quantize(model, "Q4_0", threads=1), quantize.quantize(model, "q4_0_pure", threads=1)
    assert pure == model.with_name("tiny-q4_0_pure.gguf")
    assert (output_type(mixed), output_type(pure)) == (Q8_0, Q4_0)
    llm = specllama.Llama(str(pure), n_ctx=64, verbose=False)
    found: Any = llm.create_completion("hello", max_tokens=3, temperature=0.0)
    llm.close()
    assert found["usage"]["completion_tokens"] == 3


@pytest.mark.long
def test_catalog_names(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entry = catalog.Model("tiny", "Tiny", "tiny-f32.gguf", "F32", model.stat().st_size, "0" * 64, "MIT", "a/b")
    known = catalog.Catalog({"tiny": entry}, "tiny", "tiny")
    monkeypatch.setattr(catalog, "catalog", lambda: known)
    monkeypatch.setattr(quantize, "catalog", lambda: known)
    with pytest.raises(FileNotFoundError, match="specllama pull tiny"):
        quantize.quantize("tiny", "F16")
    entry.path.parent.mkdir(parents=True)
    shutil.copy(model, entry.path)
    path = quantize.quantize("tiny", "F16", threads=1)
    assert path == catalog.models_dir() / "tiny-f16.gguf"
    assert catalog.resolve("tiny:f16") == str(path)
    assert quantize.what_stays_lost("tiny", "F16") is quantize.what_stays_lost("tiny:F16", "F32") is None
    fewer = dataclasses.replace(entry, type="Q4_K_M")
    monkeypatch.setattr(quantize, "catalog", lambda: catalog.Catalog({"tiny": fewer}, "tiny", "tiny"))
    assert "tiny:F16 was made with 5.2 bits a weight" in str(quantize.what_stays_lost("tiny:F16", "Q8_0"))
    monkeypatch.setattr(quantize, "catalog", lambda: known)
    # A type of a type is made from the type that was named.
    assert quantize.quantize("tiny:F16", "Q8_0", threads=1) == catalog.models_dir() / "tiny-q8_0.gguf"
    # But not from one that has lost something, under a name that promises more.
    before = (catalog.models_dir() / "tiny-q8_0.gguf").read_bytes()
    quantize.quantize("tiny", "Q4_0", threads=1)
    with pytest.raises(ValueError, match=r"tiny:Q4_0 is of another type.*make Q8_0 from tiny, or name"):
        quantize.quantize("tiny:Q4_0", "Q8_0", threads=1)
    assert (catalog.models_dir() / "tiny-q8_0.gguf").read_bytes() == before
    other = model.with_name("other.gguf")
    assert quantize.quantize("tiny:Q4_0", "Q8_0", threads=1, output=other) == other


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("not_gguf", "is not a GGUF file"),
        ("deep_medusa", "is a head of specllama's own form .specllama-medusa., which llama.cpp does not quantize"),
        ("lora", "holds no language model \\(general.type is 'adapter'\\)"),
        ("truncated", "truncated.gguf is truncated or damaged: it has .* bytes, and needs more than that"),
    ],
)
def test_bad_models(tiny_files: TinyFiles, tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises((ValueError, QuantizeError), match=message):
        quantize.quantize(getattr(tiny_files, name), "F16", threads=1, output=tmp_path / "out.gguf")
    assert list(tmp_path.iterdir()) == []


def test_bad_arguments(model: Path, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"absent\.gguf does not exist"):
        quantize.quantize(tmp_path / "absent.gguf", "F16")
    with pytest.raises(ValueError, match="is not a file"):
        quantize.quantize(tmp_path, "F16")
    with pytest.raises(ValueError, match="'Q4_9' is not a type"):
        quantize.quantize(model, "Q4_9")
    with pytest.raises(ValueError, match="threads is -1"):
        quantize.quantize(model, "F16", threads=-1)
    with pytest.raises(ValueError, match="is the input"):
        quantize.quantize(model, "F16", output=model.parent / ".." / "models" / "tiny.gguf")
    with pytest.raises(ValueError, match="is a folder"):
        quantize.quantize(model, "F16", output=tmp_path)
    with pytest.raises(OSError, match=r"the folder .*tiny\.gguf.* cannot be made: .*; name a file in another one"):
        quantize.quantize(model, "F16", output=model / "folder" / "x.gguf")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there is nothing of this kind")
def test_what_is_no_file_is_not_replaced(model: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match=r"pipe is no file: name another one with --output"):
        quantize.quantize(model, "F16", output=tmp_path / "pipe")
    assert not (tmp_path / "pipe").is_file()


def test_the_command_looks_first(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = model.read_bytes()
    for line, why in (
        ((str(model), "Q8_0", "-o", str(tmp_path)), "is a folder: name a file in it"),
        ((str(model), "Q8_0", "-o", ""), "is a folder: name a file in it"),
        ((str(model), "Q8_0", "-o", str(model)), "is the input: name another one"),
        ((str(model), "Q8_0", "-o", str(tmp_path / "o\udcff.gguf")), "o\\udcff.gguf' is not UTF-8: name another one"),
        ((str(tmp_path), "Q8_0"), "is not a file"),
        ((".", "Q8_0"), ". is not a file"),
    ):
        assert cli.main(["quantize", *line]) == 1
        assert why in capsys.readouterr().err
    assert model.read_bytes() == before


@pytest.mark.skipif(sys.platform != "linux", reason="no file can have such a name")
def test_a_name_that_is_not_utf_8_is_not_given_to_a_new_file(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    renamed = model.rename(model.with_name("m\udcff.gguf"))
    assert cli.main(["quantize", str(renamed), "Q8_0", "-t", "1"]) == 1
    assert r"m\udcff-q8_0.gguf' is not UTF-8" in capsys.readouterr().err
    assert cli.main(["quantize", str(renamed), "Q8_0", "-t", "1", "-o", str(model)]) == 0
    assert Q8_0 in tensor_types(model)


def test_a_file_that_was_cut_off_is_to_be_got_again(model: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(model.read_bytes()[:-400])
    with pytest.raises(ValueError, match=r"cut\.gguf is truncated or damaged: .*; get it again"):
        quantize.quantize(cut, "F16", threads=1)


def test_interrupt_leaves_nothing(model: Path) -> None:
    before = model.read_bytes()

    def interrupt(step: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize.quantize(model, "F16", threads=1, on_progress=interrupt)
    assert [file.name for file in model.parent.iterdir()] == ["tiny.gguf"]
    assert model.read_bytes() == before


def test_failure_keeps_the_old_file(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "CHILD", "import specllama_has_no_such_module")
    old = tmp_path / "old.gguf"
    old.write_bytes(b"old")
    with pytest.raises(QuantizeError, match="No module named"):
        quantize.quantize(model, "F16", output=old)
    assert old.read_bytes() == b"old"


def test_full_disk(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "HEADER_ROOM", 1 << 60)
    with pytest.raises(OSError, match=r"making tiny-f16\.gguf needs"):
        quantize.quantize(model, "F16")
    with pytest.raises(OSError, match=r"make room, or name a file on another disk with --output$"):
        quantize.quantize(model, "F16", output=model.with_name("other.gguf"))


# --- what is made ---------------------------------------------------------------------------------------------------


PLANS = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_model_quantize_default_params(), "dry_run"), reason="this llama.cpp cannot plan"
)


@PLANS
@pytest.mark.long
def test_what_will_be_made_is_said_before_and_after(model: Path, tmp_path: Path) -> None:
    """Rows of 32 numbers are no whole blocks of 256: llama.cpp takes larger types."""
    plans = planned(model, ["F16", "Q8_0", "Q4_0", "Q4_K_M", "Q2_K"])
    for file_type, plan in plans.items():
        notes: list[str] = []
        path = quantize.quantize(model, file_type, threads=1, output=tmp_path / "new.gguf", on_note=notes.append)
        made = contents_of(path)
        assert (made.counts, made.size) == (plan.counts, plan.size)
        found: dict[str, int] = {}
        for tensor in gguf.GGUFReader(path).tensors:
            found[tensor.tensor_type.name] = found.get(tensor.tensor_type.name, 0) + 1
        assert made.counts == found
        assert notes[-1] == f"new.gguf has {made}"
        assert all(f"{name} ({count})" in notes[-1] for name, count in found.items())
        is_odd = file_type != "F16"
        assert len(notes) == 1 + is_odd
        if is_odd:
            numbers = {"Q4_K_M": "256 .* rows of 32", "Q2_K": "256 .* rows of 32"}.get(file_type, "32 .* rows of 48")
            assert re.match(f"{file_type} stores {numbers}", notes[0])
            assert str(plan) in notes[0]
    assert plans["Q4_K_M"].counts.keys() >= {"Q5_0", "Q8_0"}
    assert "Q4_K" not in plans["Q4_K_M"].counts


@pytest.mark.long
def test_the_space_check_counts_what_will_be_made(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an older llama.cpp it is estimated."""
    exact = planned(model, ["Q4_K_M", "Q8_0", "IQ4_XS"])
    monkeypatch.setattr("specllama.models.contents._said_by_llama_cpp", lambda *_: {})
    for file_type, estimated in planned(model, exact).items():
        assert exact[file_type].size <= estimated.size <= 2.2 * exact[file_type].size
        assert estimated.odd == exact[file_type].odd
    named = collections.namedtuple("named", "total used free")
    free = exact["Q4_K_M"].size + new_file.HEADER_ROOM - 1
    monkeypatch.setattr(shutil, "disk_usage", lambda _: named(1, 1, free))
    with pytest.raises(OSError, match=r"making .* needs"):
        quantize.quantize(model, "Q4_K_M", threads=1)


def test_as_draft_counts_all_types_first(
    model: Path, tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specllama.evidence.draft_types.CANDIDATES", ("Q4_0", "Q4_K_M"))
    monkeypatch.setattr(quantize, "quantize", lambda *_, **__: pytest.fail("a type was made"))
    named = collections.namedtuple("named", "total used free")
    free = 2 * new_file.HEADER_ROOM
    monkeypatch.setattr(shutil, "disk_usage", lambda _: named(1, 1, free))
    assert cli.main(["quantize", str(model), "--as-draft", str(tiny_files.target), "-t", "1"]) == 1
    assert "making drafts needs 0.13 GB" in capsys.readouterr().err


# --- the header reader ----------------------------------------------------------------------------------------------


def test_header_agrees_with_gguf(tiny_files: TinyFiles) -> None:
    for path in (tiny_files.target, tiny_files.recurrent, tiny_files.embedding, tiny_files.lora):
        reader = gguf.GGUFReader(path)
        header = read_header(path)
        assert header.num_tensors == len(reader.tensors)
        assert header.num_elements == sum(int(tensor.n_elements) for tensor in reader.tensors)
        num_bytes = sum(int(tensor.n_bytes) for tensor in reader.tensors)
        assert header.bits == pytest.approx(8 * num_bytes / header.num_elements, rel=0.01)  # padding
        assert header.architecture == str(reader.get_field("general.architecture").contents())  # type: ignore[union-attr]
    assert read_header(tiny_files.lora).kind == "adapter"


def test_every_truncation_of_a_header_is_named(tiny_files: TinyFiles, tmp_path: Path) -> None:
    data = tiny_files.letters.read_bytes()
    path = tmp_path / "cut.gguf"
    for length in (4, 8, 20, 24, 40, 100, 400):
        path.write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"truncated or damaged|not supported"):
            read_header(path)
    path.write_bytes(b"")
    with pytest.raises(ValueError, match="not a GGUF file"):
        read_header(path)


@pytest.mark.parametrize(
    "tail",
    [
        struct.pack("<IQQ", 3, 1 << 60, 0),  # tensors without end
        struct.pack("<IQQ", 3, 0, 1 << 60),  # pairs without end
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q", 1 << 62),  # a key of 4 EB
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 4, 1 << 61),  # an array of that size
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sIIQ", 1, b"k", 9, 8, 1 << 61),
        struct.pack("<IQQ", 3, 0, 1) + struct.pack("<Q1sI", 1, b"k", 77),  # a type that does not exist
        struct.pack("<IQQ", 3, 1, 0) + struct.pack("<Q1sI", 1, b"t", 1 << 30),  # dimensions
        struct.pack("<IQQ", 99, 0, 0),
    ],
)
def test_lying_headers(tmp_path: Path, tail: bytes) -> None:
    path = tmp_path / "lie.gguf"
    path.write_bytes(b"GGUF" + tail + b"\0" * 64)
    with pytest.raises(ValueError, match=r"lie\.gguf"):
        read_header(path)
