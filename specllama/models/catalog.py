"""The models that have names: the entries of catalog.toml, and where their files are on this machine."""

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
    import tomllib as tomllib
else:
    import tomli as tomllib

PURE = "_PURE"  # ends names of types that all matrices get; with other types, some matrices get more bits

# The types that llama.cpp can quantize to without an importance matrix, and their bits per weight. The bits are
# rounded up, so that the estimated size of a file is not too small.
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
    """There is no such model file. It is a ValueError, too, since llama_cpp.Llama raises a ValueError."""


@dataclasses.dataclass(frozen=True)
class Model:
    """An entry of the catalog.

    Attributes:
        name: the name in lower case.
        title: the model's full name.
        file: the name of the file.
        type: the quantization of `file`.
        size: the size of `file` in bytes.
        sha256: the hash of `file`, in hexadecimal.
        licence: the model's licence.
        repo: the repository on the hub that has `file`.
        revision: a version of the repository; None for the newest.
    """

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
        """Where the file is once it was downloaded."""
        return models_dir() / self.file

    def is_downloaded(self) -> bool:
        """Whether the complete file is here. Only its size is compared: it got this name after its hash was checked."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False

    def variant_path(self, file_type: str) -> Path:
        """Where `specllama quantize` puts this model with another type."""
        canonical = parse_file_type(file_type)
        return self.path if canonical == self.type else models_dir() / retype(self.file, canonical)

    def variants(self) -> list[str]:
        """The other types of this model that `specllama quantize` has made here."""
        return [t for t in FILE_TYPES if t != self.type and os.path.isfile(self.variant_path(t))]


@dataclasses.dataclass(frozen=True)
class Catalog:
    """All models by name, and the target and draft of commands in which the user names none."""

    models: Mapping[str, Model]
    default_target: str
    default_draft: str

    def find(self, name: str) -> Model:
        """The model with a name, in upper or lower case.

        Raises:
            ValueError: there is no such model. The message suggests similar names.
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
    """The folder of complete models. It may not exist yet."""
    return cache_dir() / "models"


def partial_dir() -> Path:
    """The folder of downloads that are incomplete, or not checked yet."""
    return cache_dir() / "partial"


def parse_file_type(name: str) -> str:
    """The canonical name of a quantization type.

    Raises:
        ValueError: llama.cpp has no such type, or cannot make it without an importance matrix.
    """
    canonical = name.upper()
    if canonical not in FILE_TYPES:
        raise ValueError(f"{name!r} is not a type that can be made here: use one of {', '.join(FILE_TYPES)}")
    return canonical


def retype(file_name: str, file_type: str) -> str:
    """The name of a file with another type: x-q4_k_m.gguf becomes x-f16.gguf."""
    stem = file_name[: -len(".gguf")] if file_name.lower().endswith(".gguf") else file_name
    match = _TYPE_SUFFIX.search(stem)
    if match is None:
        return f"{stem}-{file_type.lower()}.gguf"
    # Keep the spelling: some repositories write ".Q4_1", others "-q4_1".
    spelled = file_type if match["type"].isupper() else file_type.lower()
    return f"{stem[: match.start()]}{match['separator']}{spelled}.gguf"


def bits_of(file_name: str) -> float:
    """The bits per weight, from the type at the end of a file's name; 16 if the name has none."""
    name = file_name.upper()
    return next((bits for file_type, bits in FILE_TYPES.items() if name.endswith(f"{file_type}.GGUF")), 16.0)


def resolve(name_or_path: str | os.PathLike[str]) -> str:
    """The path of a model's file, from the model's name.

    Args:
        name_or_path: a path, a catalog name, a catalog name with a type ("qwen2.5-coder-1.5b:F16"), or a name of the
            hub ("ORG/NAME:Q4_K_M").

    Returns:
        The path of the model. An existing path is returned unchanged, and so is a text that is no known name.

    Raises:
        ModelNotFoundError: the model is known and not on this machine. The message names the command that gets it.
        ValueError: the model is known, and the type does not exist.
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
    """The advice for a user whose model file is damaged."""
    with contextlib.suppress(ValueError, OSError):  # a damaged catalog must not hide the message about the model
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
        OSError: the file cannot be read.
        ValueError: the file is no valid catalog. The message says where.
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
    return load_catalog(shipped("catalog.toml"))


def shipped(name: str) -> Path:
    """The path of a table about models that ships with this package.

    Raises:
        FileNotFoundError: the installation has no such table.
    """
    here = Path(__file__).parent
    # An installed wheel has the table beside this module, and the source tree has it at its root.
    candidates = [here / name, here.parents[1] / "models" / name]
    for path in candidates:
        if path.is_file():
            return path
    raise FileNotFoundError(f"the table {name} is missing: looked for {candidates[0]}; reinstall specllama")


def _model(name: str, entry: dict[str, Any]) -> Model:
    """Make an entry of the catalog. It is checked here, so that mistakes are found before a download starts.

    Raises:
        ValueError: the entry has a mistake.
    """
    if name != name.lower():
        raise ValueError(f"catalog entry {name!r}: names are lower case")
    if ":" in name or "/" in name or Path(entry["file"]).name != entry["file"]:
        raise ValueError(f"catalog entry {name!r}: neither a name nor a file may hold ':' or a folder")
    if not re.fullmatch(r"[0-9a-f]{64}", entry["sha256"]):
        raise ValueError(f"catalog entry {name!r}: sha256 is {entry['sha256']!r}, not 64 hexadecimal digits")
    return Model(name=name, **entry)
