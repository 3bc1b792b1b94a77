"""The catalog file, the names that mean a path, and where models lie."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from specllama.backend.cache import cache_dir
from specllama.models import catalog as c

ENTRY = """
[default]
target = "big"
draft = "small"
[models.big]
title = "Big"
file = "big-q4_k_m.gguf"
type = "Q4_K_M"
size = 10
sha256 = "{sha}"
licence = "MIT"
repo = "a/b"
[models.small]
title = "Small"
file = "Small.Q4_1.gguf"
type = "Q4_1"
size = 4
sha256 = "{sha}"
licence = "MIT"
repo = "a/c"
revision = "1"
""".format(sha="0" * 64)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path / "cache"))
    models = tmp_path / "cache" / "models"
    models.mkdir(parents=True)
    return models


@pytest.fixture
def small_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> c.Catalog:
    path = tmp_path / "catalog.toml"
    path.write_text(ENTRY)
    loaded = c.load_catalog(path)
    monkeypatch.setattr(c, "catalog", lambda: loaded)
    return loaded


def test_shipped_catalog_is_complete() -> None:
    catalog = c.catalog()
    assert {catalog.default_target, catalog.default_draft} <= set(catalog.models)
    files = [model.file for model in catalog.models.values()]
    assert len(set(files)) == len(files)
    for model in catalog.models.values():
        assert model.type in c.FILE_TYPES
        assert model.size > 1_000_000
        assert model.licence
        assert "/" in model.repo


def test_shipped_file_names_take_types() -> None:
    for model in c.catalog().models.values():
        assert c.retype(model.file, model.type) == model.file
        assert model.variant_path("f16") != model.path
        assert model.variant_path(model.type.lower()) == model.path


def test_cache_follows_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    assert c.models_dir() == tmp_path / "models"
    monkeypatch.setenv("SPECLLAMA_CACHE", "~/elsewhere")
    assert cache_dir() == Path.home() / "elsewhere"
    monkeypatch.setenv("SPECLLAMA_CACHE", "")
    assert cache_dir() == Path(platformdirs.user_cache_dir("specllama"))


@pytest.mark.parametrize(
    ("name", "file_type", "expected"),
    [
        ("qwen-q4_k_m.gguf", "F16", "qwen-f16.gguf"),
        ("Smol.Q4_1.gguf", "Q8_0", "Smol.Q8_0.gguf"),
        ("plain.gguf", "Q4_0", "plain-q4_0.gguf"),
        ("no_suffix", "Q4_0", "no_suffix-q4_0.gguf"),
        ("x-IQ2_XS.gguf", "F16", "x-F16.gguf"),
        ("model-bf16.GGUF", "F32", "model-f32.gguf"),
        ("q4_0.gguf", "F16", "q4_0-f16.gguf"),
    ],
)
def test_retype(name: str, file_type: str, expected: str) -> None:
    assert c.retype(name, file_type) == expected


def test_resolve_existing_path_wins(
    small_catalog: c.Catalog, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("big").write_bytes(b"x")
    assert c.resolve("big") == "big"
    assert c.resolve(tmp_path / "big") == str(tmp_path / "big")


def test_resolve_leaves_other_strings_alone(small_catalog: c.Catalog, cache: Path) -> None:
    for text in ("/no/such/file.gguf", "bigger", "", "C:\\models\\x.gguf", "other:F16"):
        assert c.resolve(text) == text


def test_resolve_names(small_catalog: c.Catalog, cache: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"big is not on this machine: get it with `specllama pull big`"):
        c.resolve("big")
    with pytest.raises(FileNotFoundError, match=r"specllama pull big`, then `specllama quantize big F16`"):
        c.resolve("big:f16")
    (cache / "big-q4_k_m.gguf").write_bytes(b"x" * 9)
    with pytest.raises(FileNotFoundError, match=r"has 9 bytes, not the 10 of big: get it with `specllama pull big`"):
        c.resolve("big")
    (cache / "big-q4_k_m.gguf").write_bytes(b"x" * 10)
    assert c.resolve("big") == c.resolve("Big:q4_k_m") == str(cache / "big-q4_k_m.gguf")
    with pytest.raises(FileNotFoundError, match=r"make it with `specllama quantize big F16`"):
        c.resolve("big:F16")
    (cache / "big-f16.gguf").write_bytes(b"y")
    assert c.resolve("big:f16") == str(cache / "big-f16.gguf")
    assert small_catalog.models["big"].variants() == ["F16"]


def test_resolve_unknown_type(small_catalog: c.Catalog, cache: Path) -> None:
    with pytest.raises(ValueError, match=r"'F17' is not a type .* use one of F32, BF16"):
        c.resolve("big:F17")


def test_find_suggests(small_catalog: c.Catalog) -> None:
    assert small_catalog.find("SMALL").name == "small"
    with pytest.raises(ValueError, match=r"'smal': did you mean small\?"):
        small_catalog.find("smal")
    with pytest.raises(ValueError, match=r"'zzz': there are big, small"):
        small_catalog.find("zzz")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[default]", "[default", "not a valid catalog: TOMLDecodeError"),
        ('licence = "MIT"\nrepo = "a/b"', 'repo = "a/b"', "licence"),
        ('file = "big-q4_k_m.gguf"', 'file = "../big.gguf"', "a folder"),
        ("[models.small]", '[models."Small"]', "lower case"),
        ("0" * 64, "0" * 63, "not 64 hexadecimal digits"),
        ('draft = "small"', 'draft = "tiny"', "no model is called 'tiny'"),
        ('repo = "a/b"', 'reop = "a/b"', "not a valid catalog: TypeError.*reop"),
    ],
)
def test_broken_catalog_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in ENTRY
    path = tmp_path / "catalog.toml"
    path.write_text(ENTRY.replace(old, new))
    with pytest.raises(ValueError, match=message):
        c.load_catalog(path)
