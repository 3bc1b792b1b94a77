"""Finds the files on this machine that could draft for a model. Only their headers are read."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import catalog
from .families import KnownDraft, Named, family_of
from .gguf_values import UnusableFileError, architecture_of, read_without_texts, text_in
from .head_kinds import HEADS, MASK_TOKEN
from .header_checks import whole_number
from .heads import FORMS, kind_of_head, read_head
from .hub import HubName, on_disk
from .loading import require_gguf, require_whole
from .model_folders import LEARNED, model_files, size_of
from .shared_tokens import Shared, SharedTokens
from .weights_digest import digest_of_file
from .writers import NO_WRITERS, why_no_writer

_PARALLEL = re.compile(r"(^|[^a-z])pard-")
_MASK = "it is a parallel draft: give it with draft_mask_token, the pard_token of its config.json"
ROOM = 4096
"""The number of tokens whose KV cache counts as a part of a model's memory."""
_OF_FAMILY = 0.75
"""The assumed acceptance of a model with the target's vocabulary, if the pair was not measured.

It is lower than that of the measured pairs in families.toml, so that an untested pair does not look better than these.
"""
_FOREIGN = (0.45, 0.3)
"""The assumed acceptance of a model with another tokenizer: the first number, plus the second times the common share.

If all tokens are common, it is 75 %, as for a model of the family. If 26 % are common, it is 53 %. SmolLM2-135M has
26 % of the tokens of Qwen2.5-Coder-1.5B, and predicts 54 % of the tokens that this target writes.
"""
_MODELS = ("model", "parallel", "foreign")
_IN_FILE = "in the file"


@dataclasses.dataclass(frozen=True)
class FoundDraft:
    """A file on this machine, or a layer of the target, that could draft for the target.

    Attributes:
        draft_model: the value to give as ``draft_model`` (-md).
        kind: ``"model"``, ``"foreign"`` (a model with another tokenizer), ``"parallel"`` (a model that
            predicts several tokens in one decode), or the kind of head.
        where: the place where it was found.
        size: the draft's size in bytes.
        share: the share of the target's tokens that the draft has, too, from 0 to 1.
        cost: the bytes of weights that one drafted token reads, divided by those that one token of the target reads.
            It is estimated from the files' sizes.
        acceptance: how often the draft's next token is usually right if all drafted tokens before were right, from
            families.toml if this has the pair; None if it is not known.
        memory: the bytes of the draft's weights and of a KV cache of 4,096 tokens, if the file says the cache's size.
        is_of_name: whether the draft belongs to this target: a head that is named after the target or is in its file,
            or a small model that was trained for the target.
        why_not: why the draft cannot be used; None if it can be.
    """

    draft_model: str
    kind: str
    where: str
    size: int
    share: float
    cost: float
    acceptance: float | None
    memory: int
    is_of_name: bool = False
    why_not: str | None = None

    @property
    def in_model(self) -> bool:
        """Whether the draft is a layer of the target's own file."""
        return self.where == _IN_FILE


@dataclasses.dataclass(frozen=True)
class Survey:
    """The drafts for a model, on this machine and elsewhere.

    Attributes:
        path: the model's file.
        architecture: llama.cpp's name of the architecture.
        family: the model's family in families.toml; None if it has none.
        size: the model's size in bytes.
        tokenizer: the kind of the tokenizer, and how it splits texts into words.
        num_tokens: the number of tokens in the vocabulary.
        n_ctx: the most tokens in a text that the model was trained with; 0 if its file does not say it.
        memory: the bytes of the model's weights and of a KV cache of 4,096 tokens.
        found: the drafts on this machine, the most promising one first.
        known: the drafts that are known for the family and are not on this machine.
        left_out: the files on this machine that are damaged or cannot be read: for each path, why.
    """

    path: str
    architecture: str
    family: str | None
    size: int
    tokenizer: str
    num_tokens: int
    n_ctx: int
    memory: int
    found: tuple[FoundDraft, ...]
    known: tuple[KnownDraft, ...]
    left_out: Mapping[str, str]

    @property
    def usable(self) -> tuple[FoundDraft, ...]:
        """The drafts on this machine that can be used."""
        return tuple(one for one in self.found if one.why_not is None)


def survey(path: str) -> Survey:
    """Look for drafts for a model.

    Raises:
        ModelNotFoundError: there is no such file.
        ValueError: the file is no language model.
    """
    require_gguf(path)
    target = _Target(path)
    require_whole(path)
    known = _known(target)
    found, left_out = [*target.own_layers()], {}
    for where, other in model_files(path):
        try:
            found += target.considered(other, where, known)
        except (UnusableFileError, OSError) as error:
            left_out[other] = str(error)
    here = {one.draft_model for one in found}
    missing = [one for one in known if not one.in_model and _on_disk(one) not in here]
    missing += [one for one in known if one.in_model and not any(draft.kind == one.kind for draft in found)]
    return Survey(
        path=path,
        architecture=target.named.architecture,
        family=target.family.name if target.family else None,
        size=target.size,
        tokenizer=target.tokenizer,
        num_tokens=target.tokens.count if target.tokens else 0,
        n_ctx=target.number("context_length"),
        memory=target.size + _cache_bytes(target.values),
        found=tuple(sorted(found, key=target.rank)),
        known=tuple(missing),
        left_out=left_out,
    )


class _Target:
    """The model that a draft is searched for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = size_of(path)
        self.values, self.tokens = read_without_texts(path)
        self.named = Named.of(self.values, os.path.basename(path))
        if not self.named.architecture or self.tokens is None:
            raise ValueError(f"{path} holds no language model with a vocabulary: give a model's file")
        if self.size == 0:
            raise ValueError(f"{path} is incomplete: its parts must be in one folder, with their original names")
        if why := _why_no_target(self.values):
            raise ValueError(f"nothing drafts for {path}: {why}")
        self.read = _read_of(self.values, self.size)
        self.family = family_of(self.named)
        self.shared = SharedTokens(self.tokens)

    @functools.cached_property
    def digest(self) -> str:
        """See `digest_of_file`."""
        return digest_of_file(self.path)

    @property
    def tokenizer(self) -> str:
        return ", ".join(filter(None, (text_in(self.values, f"tokenizer.ggml.{name}") for name in ("model", "pre"))))

    def number(self, name: str) -> int:
        return whole_number(self.values, name)

    def own_layers(self) -> Iterator[FoundDraft]:
        """The layers in the model's own file that draft, if it has any."""
        count = max(1, self.number("block_count"))
        for form in FORMS:
            if (name := form.in_model) is None or (layers := form.num_named(self.values)) == 0:
                continue
            why_not, size = None, round(self.size * layers / count)
            try:
                form.num_in_model(self.path)
            except UnusableFileError as error:
                why_not = str(error)
            yield FoundDraft(name, name, _IN_FILE, size, 1.0, 1 / count, None, 0, True, why_not)

    def considered(self, path: str, where: str, known: list[KnownDraft]) -> Iterator[FoundDraft]:
        """Yields a file as a draft for the model; nothing if the file cannot be one.

        Raises:
            UnusableFileError: the file is damaged.
            OSError: the file cannot be read.
        """
        if os.path.realpath(path) == os.path.realpath(self.path):
            return
        values, tokens = read_without_texts(path, until_tokens=True)
        kind = kind_of_head(path, values)
        if kind is not None:
            require_whole(path)
            yield from self._head(path, where, kind, values)
        elif tokens is not None and _writes(values) and 0 < (size := size_of(path)) < self.size:
            shared = self.shared.share(tokens)
            if shared is not None:
                require_whole(path)
                memory, cost = size + _cache_bytes(values), _read_of(values, size) / self.read
                kind, why_not = "foreign" if shared.is_foreign else "model", None
                if _is_parallel(path, values):
                    if shared.is_foreign:
                        return  # it is a parallel draft for models of another tokenizer
                    kind, why_not = "parallel", None if MASK_TOKEN in values else _MASK
                trained = _trained_for(values, self.path)
                usual = _usual(shared, next((one for one in known if _is_of(path, one)), None))
                acceptance, is_of_name = usual if trained is None else trained, trained is not None
                yield FoundDraft(path, kind, where, size, shared.share, cost, acceptance, memory, is_of_name, why_not)

    def _head(self, path: str, where: str, kind: str, values: Mapping[str, Any]) -> Iterator[FoundDraft]:
        if where == LEARNED and os.path.basename(os.path.dirname(path)) != self.digest:
            return  # of another model's answers
        size, why_not = size_of(path), None
        try:
            head = read_head(path)
        except UnusableFileError as error:
            head, why_not = None, str(error)
        if head is not None:
            try:
                head.require_memory(self.path)
                head.require_fit(
                    n_layer=self.number("block_count"),
                    n_embd=self.number("embedding_length"),
                    n_vocab=self.tokens.count if self.tokens else 0,
                )
            except UnusableFileError as error:
                why_not = str(error)
        elif why_not is None:
            return  # an ordinary model whose name begins like that of a head
        is_of_name = where == "beside the model" and _is_called_after(path, self.path)
        if why_not is None or is_of_name:
            right = _trained_for(values, self.path)
            cost = (size if head is None else head.bytes_of_token(size)) / self.read
            yield FoundDraft(path, kind, where, size, 1.0, cost, right, size, is_of_name, why_not)

    def rank(self, draft: FoundDraft) -> tuple[Any, ...]:
        """The key by which drafts are sorted: usable ones first, heads (in llama.cpp's order) before models."""
        is_head = draft.kind not in _MODELS
        begins = draft.draft_model if draft.in_model else os.path.basename(draft.draft_model).lower()
        order = [*HEADS, ""]
        of_name = next((kind for kind in order if begins.startswith(kind)), "")
        of_kind = order.index(of_name or (draft.kind if draft.kind in order else ""))
        bits = -1.0 if draft.in_model else abs(catalog.bits_of(draft.draft_model) - catalog.bits_of(self.path))
        is_foreign = draft.kind == "foreign"
        unlikely = not is_head and draft.cost > 0.6  # drafting would take nearly as long as plain decoding
        last = bits if is_head else draft.cost
        return (draft.why_not is not None, unlikely, is_foreign, not is_head, not draft.is_of_name, of_kind, last)


def _is_parallel(path: str, values: Mapping[str, Any]) -> bool:
    names = Named.of(values, os.path.basename(path)).names
    return MASK_TOKEN in values or _PARALLEL.search(names) is not None


def _trained_for(values: Mapping[str, Any], target: str) -> float | None:
    """The share of right tokens that ``train-draft`` has measured for this target; None for files of other origin."""
    of_file, greedy = text_in(values, "specllama.target.file"), values.get("specllama.acceptance.greedy")
    if of_file != os.path.basename(target) or not isinstance(greedy, np.ndarray) or not len(greedy):
        return None
    return float(greedy[0]) if 0 <= greedy[0] <= 1 else None


def _usual(shared: Shared, known: KnownDraft | None) -> float:
    """How often a model's next token is usually right, if all drafted tokens before were right."""
    if known is not None and known.acceptance is not None:
        return known.acceptance
    least, more = _FOREIGN
    return least + more * shared.share if shared.is_foreign else _OF_FAMILY * shared.share


def _known(target: _Target) -> list[KnownDraft]:
    """The drafts of families.toml for a model, without the model itself and without larger models."""
    if target.family is None:
        return []
    most = _size_in(target.named.size) or float("inf")
    drafts = target.family.drafts_for(target.named)
    return [one for one in drafts if one.kind not in _MODELS or _size_in(one.name) < most]


def _size_in(name: str) -> float:
    """The parameters in a model's name, in billions; 0 if the name has none."""
    found = re.search(r"(?<![a-z0-9.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", name.lower())
    return 0.0 if found is None else float(found[1]) / (1000 if found[2] == "m" else 1)


def _on_disk(draft: KnownDraft) -> str | None:
    """The file of a draft of families.toml, if it is on this machine; else None."""
    entry = catalog.catalog().models.get(draft.name)
    if entry is not None:
        return str(entry.path) if entry.is_downloaded() else None
    name = HubName.of(draft.name) if draft.gguf and not draft.file else None
    path = on_disk(name) if name is not None else None
    return None if path is None else str(path)


def _is_of(path: str, draft: KnownDraft) -> bool:
    """Whether a file is a draft of families.toml, with any quantization."""
    entry = catalog.catalog().models.get(draft.name)
    if entry is not None:
        return _without_type(os.path.basename(path).lower()) == _without_type(entry.file.lower())
    return _on_disk(draft) == path


def _why_no_target(values: Mapping[str, Any]) -> str | None:
    """Why no text can be generated from a file; None if it can."""
    architecture = architecture_of(values)
    if kind_of_head("", values):
        return f"it is a head ({architecture}), give the file of the model that it drafts for"
    causal = f"{architecture}.attention.causal"
    metadata = {"general.architecture": architecture, causal: str(values.get(causal) is not False).lower()}
    return why_no_writer(metadata, None, attention_type=-1)


def _is_called_after(path: str, target: str) -> bool:
    """Whether a head has the name of the model, apart from their quantizations."""
    head, model = (_without_type(os.path.basename(one).lower()) for one in (path, target))
    return any(head == f"{kind}-{model}" for kind in HEADS)


def _without_type(name: str) -> str:
    return catalog.retype(name, "F16")


def _writes(values: Mapping[str, Any]) -> bool:
    name, is_model = architecture_of(values), text_in({"general.type": b"model", **values}, "general.type") == "model"
    return is_model and name not in ("", *NO_WRITERS) and f"{name}.pooling_type" not in values


def _read_of(values: Mapping[str, Any], size: int) -> float:
    """The bytes of a model that one token reads.

    In a mixture of experts a token reads the used experts, and all weights outside of experts, estimated as 5 %.
    """
    experts, used = whole_number(values, "expert_count"), whole_number(values, "expert_used_count")
    return size * (0.05 + 0.95 * used / experts) if 0 < used < experts else size


def _cache_bytes(values: Mapping[str, Any]) -> int:
    """The bytes of a KV cache of 4,096 tokens in 16 bits; 0 if the metadata that were read do not give its size."""
    heads = whole_number(values, "attention.head_count_kv") or whole_number(values, "attention.head_count")
    width = whole_number(values, "attention.key_length")
    if not width and (of_queries := whole_number(values, "attention.head_count")):
        width = whole_number(values, "embedding_length") // of_queries
    return 2 * 2 * ROOM * whole_number(values, "block_count") * heads * width
