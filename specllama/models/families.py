"""Families of models and the drafts that are known for them, from families.toml."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .catalog import shipped, tomllib
from .gguf_values import text_in
from .head_kinds import HEADS

KINDS = ("model", "parallel", *HEADS)
_SIZE = "{size}"
_MOST_NAMED = 1000  # the most characters of a name that are used; a file may have any number of them


@dataclasses.dataclass(frozen=True)
class Named:
    """How a model's file names the model.

    Attributes:
        architecture: llama.cpp's name of the architecture.
        names: all names of the model joined into one text, in lower case, with "-" between words.
        size: the model's size as the file states it, such as 7B or 30B-A3B; empty if the file states none.
    """

    architecture: str
    names: str
    size: str

    @classmethod
    def of(cls, values: Mapping[str, Any], file: str) -> Named:
        """Read the names from the metadata of a file and from the file's name."""
        texts = [text_in(values, f"general.{name}") for name in ("basename", "name", "base_model.0.name")]
        names = " ".join(re.sub(r"[\s_]+", "-", text[:_MOST_NAMED].lower()) for text in (*texts, file) if text)
        size = text_in(values, "general.size_label")
        found = re.search(r"(?<![a-z0-9.])\d+(\.\d+)?[bm](-a\d+(\.\d+)?b)?(?![a-z0-9])", names)
        return cls(text_in(values, "general.architecture"), names, size or (found[0].upper() if found else ""))


@dataclasses.dataclass(frozen=True)
class KnownDraft:
    """A draft that families.toml names for a target. The comments in families.toml explain the fields."""

    kind: str
    name: str
    gguf: bool = False
    file: str = ""
    in_model: bool = False
    acceptance: float | None = None


@dataclasses.dataclass(frozen=True)
class _Entry:
    kind: str
    name: str
    sizes: tuple[str, ...] = ()
    only: str = ""
    gguf: bool = False
    file: str = ""
    in_model: bool = False
    acceptance: float | None = None

    def for_target(self, named: Named) -> KnownDraft | None:
        """The draft for a target, with the target's size put into its name; None if the entry is for other targets."""
        size = named.size
        if self.sizes:
            size = next((one for one in self.sizes if one.lower() == named.size.lower()), "")
        if (not size and (self.sizes or _SIZE in self.name)) or not re.search(self.only, named.names):
            return None
        name = self.name.replace(_SIZE, size)
        return KnownDraft(self.kind, name, self.gguf, self.file, self.in_model, self.acceptance)


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models in families.toml."""

    name: str
    names: str
    architectures: tuple[str, ...]
    drafts: tuple[_Entry, ...]

    def is_of(self, named: Named) -> bool:
        """Whether a model belongs to the family."""
        of_architecture = not self.architectures or named.architecture in self.architectures
        return of_architecture and re.search(self.names, named.names) is not None

    def drafts_for(self, named: Named) -> list[KnownDraft]:
        """The drafts that are known for a model of the family, in the order of families.toml."""
        return [draft for entry in self.drafts if (draft := entry.for_target(named)) is not None]


def family_of(named: Named) -> Family | None:
    """The family of a model; None if families.toml has no family for it."""
    return next((family for family in families() if family.is_of(named)), None)


@functools.lru_cache(maxsize=1)
def families() -> tuple[Family, ...]:
    """The families in the families.toml that ships with this package."""
    return load_families(shipped("families.toml"))


def load_families(path: Path) -> tuple[Family, ...]:
    """Read a table of families.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file is no valid table. The message says where.
    """
    where = "it"
    try:
        found = []
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["families"]:
            where = f"the family {entry.get('name')!r}"
            found.append(_family(entry))
    except (KeyError, TypeError, AttributeError, ValueError, re.error, RecursionError) as error:
        raise ValueError(
            f"{path} is not a valid table of families: {where} has {type(error).__name__}: {error}; install specllama "
            "again"
        ) from error
    return tuple(found)


def _family(entry: Mapping[str, Any]) -> Family:
    re.compile(entry["names"])
    drafts = tuple(_Entry(**{**one, "sizes": tuple(one.get("sizes", ()))}) for one in entry["drafts"])
    for draft in drafts:
        re.compile(draft.only)
        if draft.kind not in KINDS:
            raise ValueError(f"the kind {draft.kind!r}: use one of {', '.join(KINDS)}")
    return Family(entry["name"], entry["names"], tuple(entry.get("architectures", ())), drafts)
