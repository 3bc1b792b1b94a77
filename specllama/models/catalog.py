"""The models known by name: what catalog.toml says of them, and where they lie on this machine."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specllama.backend.cache import cache_dir

from .hub import HubName, on_disk

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PURE = "_PURE"  # all matrices of the type: llama.cpp gives some of them more bits, the output matrix above all

# The types that llama.cpp quantizes to without an importance matrix, with their bits per weight
# (rounded up: they are only used to see whether the result fits on the disk).
FILE_TYPES: Mapping[str, float] = {
    "F32": 32.0,
    "BF16": 16.0,
    "F16": 16.0,
    "Q8_0": 8.5,
    "Q6_K": 6.6,
    "Q5_K_M": 5.9,
    "Q5_K_S": 5.8,
    "Q5_1": 6.3,
    "Q5_0": 5.8,
    "Q4_K_M": 5.2,
    "Q4_K_S": 5.0,
    "Q4_1": 5.4,
    "Q4_0": 5.0,
    "Q4_0_PURE": 4.6,
    "IQ4_NL": 5.0,
    "IQ4_XS": 4.8,
    "Q3_K_L": 4.7,
    "Q3_K_M": 4.4,
    "Q3_K_S": 4.1,
    "Q2_K": 3.7,
}

_TYPE_SUFFIX = re.compile(
    r"(?P<separator>[-._])(?P<type>" + "|".join(FILE_TYPES) + r"|IQ[1-4]_\w+|Q2_K_S)$", re.IGNORECASE
)


class ModelNotFoundError(FileNotFoundError, ValueError):
    """There is no such model file. A ValueError too, because that is what llama_cpp.Llama raises."""


@dataclasses.dataclass(frozen=True)
class Model:
    """One entry of the catalog. `size` is in bytes, `type` the quantisation of `file`, which `repo` has on the hub."""

    name: str
    title: str
    file: str
    type: str
    size: int
    sha256: str
    licence: str
    repo: str
    revision: str | None = None

    @property
    def path(self) -> Path:
        """Where the file lies once it is downloaded."""
        return models_dir() / self.file

    def is_downloaded(self) -> bool:
        """Whether the file is here (its hash was checked before it got its name)."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False

    def variant_path(self, file_type: str) -> Path:
        """Where `specllama quantize` puts this model in another type."""
        canonical = parse_file_type(file_type)
        return self.path if canonical == self.type else models_dir() / retype(self.file, canonical)

    def variants(self) -> list[str]:
        """The other types in which this model is here, made by `specllama quantize`."""
        return [t for t in FILE_TYPES if t != self.type and self.variant_path(t).is_file()]


@dataclasses.dataclass(frozen=True)
class Catalog:
    """All models by name, and the pair that is used when none is named."""

    models: Mapping[str, Model]
    default_target: str
    default_draft: str

    def find(self, name: str) -> Model:
        """Return the model called `name`, in any case.

        Raises:
            ValueError: there is none; the message suggests the closest names.
        """
        model = self.models.get(name.lower())
        if model is None:
            close = difflib.get_close_matches(name.lower(), self.models, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(self.models)}"
            raise ValueError(
                f"no model is called {name!r}: {hint} (`specllama pull --list` shows them; of the hub: ORG/NAME:TYPE)"
            )
        return model


def models_dir() -> Path:
    """The folder of finished models; it may not exist yet."""
    return cache_dir() / "models"


def partial_dir() -> Path:
    """The folder of downloads that are not whole, or not checked yet."""
    return cache_dir() / "partial"


def parse_file_type(name: str) -> str:
    """Return the canonical name of a quantisation type.

    Raises:
        ValueError: llama.cpp has no such type, or cannot make it without an importance matrix.
    """
    canonical = name.upper()
    if canonical not in FILE_TYPES:
        raise ValueError(f"{name!r} is not a type that can be made here: use one of {', '.join(FILE_TYPES)}")
    return canonical


def retype(file_name: str, file_type: str) -> str:
    """Return the name of `file_name` in another type: x-q4_k_m.gguf becomes x-f16.gguf."""
    stem = file_name[: -len(".gguf")] if file_name.lower().endswith(".gguf") else file_name
    match = _TYPE_SUFFIX.search(stem)
    if match is None:
        return f"{stem}-{file_type.lower()}.gguf"
    # Follow the spelling of the name: some repositories write ".Q4_1", others "-q4_1".
    spelled = file_type if match["type"].isupper() else file_type.lower()
    return f"{stem[: match.start()]}{match['separator']}{spelled}.gguf"


def bits_of(file_name: str) -> float:
    """Bits of a weight, by the type that the name of a file ends with; 16 if it does not say one."""
    name = file_name.upper()
    return next((bits for file_type, bits in FILE_TYPES.items() if name.endswith(f"{file_type}.GGUF")), 16.0)


def resolve(name_or_path: str | os.PathLike[str]) -> str:
    """Turn a model's name into the path of its file.

    Args:
        name_or_path: a path, a catalog name, one with a type ("qwen2.5-coder-1.5b:F16"), or a name of the hub
            ("ORG/NAME:Q4_K_M").

    Returns:
        The path of the model. An existing path, and whatever is no name, comes back as it is.

    Raises:
        ModelNotFoundError: a known model that is not on this machine; the message names the command that gets it.
        ValueError: a known model with a type that does not exist.
    """
    text = os.fspath(name_or_path)
    if os.path.exists(text):
        return text
    name, separator, file_type = text.partition(":")
    model = catalog().models.get(name.lower())
    if model is None:
        return _of_hub(text)
    path = model.variant_path(file_type) if separator else model.path
    missing = f"{text} is not on this machine"
    if path == model.path:
        if model.is_downloaded():
            return str(path)
        if path.exists():
            missing = f"{path} has {path.stat().st_size} bytes, not the {model.size} of {model.name}"
        raise ModelNotFoundError(f"{missing}: get it with `specllama pull {model.name}`")
    if path.is_file():
        return str(path)
    quantize = f"`specllama quantize {model.name} {parse_file_type(file_type)}`"
    if model.is_downloaded():
        raise ModelNotFoundError(f"{missing}: make it with {quantize}")
    raise ModelNotFoundError(f"{missing}: get it with `specllama pull {model.name}`, then {quantize}")


def _of_hub(text: str) -> str:
    name = HubName.of(text)
    if name is None:
        return text
    path = on_disk(name)
    if path is None:
        raise ModelNotFoundError(
            f"{text} is neither a file nor a model of the hub that is on this machine: get it with "
            f"`specllama pull {name}`"
        )
    return str(path)


def remedy(path: str) -> str:
    """What to do about a damaged model file."""
    with contextlib.suppress(ValueError, OSError):  # a damaged catalog must not hide what is wrong with the model
        for model in catalog().models.values():
            if os.path.abspath(path) == os.path.abspath(model.path):
                return f"remove it, and get it again with `specllama pull {model.name}`"
            for file_type in model.variants():
                if os.path.abspath(path) == os.path.abspath(model.variant_path(file_type)):
                    return f"make it again with `specllama quantize --force {model.name} {file_type}`"
    return "get it again from where it came"


def load_catalog(path: Path) -> Catalog:
    """Read a catalog file.

    Raises:
        ValueError: the file is not a valid catalog; the message says where.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        models = {name: _model(name, entry) for name, entry in document["models"].items()}
        result = Catalog(models, document["default"]["target"], document["default"]["draft"])
        for name in (result.default_target, result.default_draft):
            result.find(name)
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is not a valid catalog: {why}; install specllama again") from error
    return result


@functools.lru_cache(maxsize=1)
def catalog() -> Catalog:
    """The catalog that ships with this package."""
    return load_catalog(catalog_path())


def catalog_path() -> Path:
    """The file of the catalog that ships with this package."""
    return shipped("catalog.toml")


def shipped(name: str) -> Path:
    """A table about models that ships with this package."""
    here = Path(__file__).parent
    # Beside this module in an installed wheel; at the root in the source tree.
    candidates = [here / name, here.parents[1] / "models" / name]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the table {name} is missing: looked for {candidates[0]}; reinstall specllama")


def _model(name: str, entry: dict[str, Any]) -> Model:
    """Check one entry of the file, so that a mistake is found before a download starts."""
    if name != name.lower():
        raise ValueError(f"catalog entry {name!r}: names are lower case")
    if ":" in name or "/" in name or Path(entry["file"]).name != entry["file"]:
        raise ValueError(f"catalog entry {name!r}: neither a name nor a file may hold ':' or a folder")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise ValueError(f"catalog entry {name!r}: sha256 is {entry['sha256']!r}, not 64 hexadecimal digits")
    return Model(name=name, **entry)
