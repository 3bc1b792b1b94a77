"""Every kind of draft, with every option, through both doors: `Engine.open` and `Llama`."""

from __future__ import annotations

import ctypes
import dataclasses
import itertools
import os
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest

import specllama
from specllama import Engine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeBase, MakeLlama, TinyFiles

    from specllama.engine import Model

PROMPT = "the cat sat on the dog and"
CORPUS = "the cat sat on the dog and the fox ran"
SETTINGS: dict[str, Any] = {"n_ctx": 500, "n_batch": 64, "n_threads": 1, "num_draft_tokens": 4}
HAS_HEADS = hasattr(llama_cpp.llama_context_default_params(), "ctx_other")
pytestmark = [
    pytest.mark.filterwarnings("ignore:the draft has another tokenizer than the target"),
    pytest.mark.every_case,
]
NEEDS_HEADS = pytest.mark.skipif(not HAS_HEADS, reason="this llama-cpp-python has no heads")


def function(tokens: Any) -> list[int]:
    """Drafts what came first."""
    return [int(token) for token in tokens[:2]]


@dataclasses.dataclass
class Case:
    """A target, what drafts for it, and what is said of that."""

    target: str
    draft: Callable[[TinyFiles], Any]
    options: dict[str, Any] = dataclasses.field(default_factory=dict)


CASES = {
    "none": Case("target", lambda files: None),
    "lookup": Case("target", lambda files: "lookup", {"lookup_corpus": CORPUS}),
    "auto": Case("target", lambda files: "auto", {"lookup_corpus": [5, 6, 7]}),
    "function": Case("target", lambda files: function),
    "model": Case("target", lambda files: files.good, {"lookup_corpus": CORPUS, "draft_window": 100}),
    "settings": Case(
        "target",
        lambda files: files.good,
        {"draft_kwargs": {"n_ctx": 256, "n_batch": 32, "n_threads": 2, "n_threads_batch": 1, "flash_attn": True}},
    ),
    "cache": Case(
        "target", lambda files: files.good, {"draft_kwargs": {"type_k": llama_cpp.GGML_TYPE_F32, "use_mmap": True}}
    ),
    "vocabulary": Case("target", lambda files: files.good, {"draft_vocabulary": 64}),
    "another tokenizer": Case("target", lambda files: files.foreign, {"lookup_corpus": CORPUS, "draft_window": 100}),
    "head and another tokenizer": Case("deep", lambda files: [files.deep_head, files.foreign]),
    "parallel": Case("target", lambda files: files.good, {"draft_mask_token": 5}),
    "staged": Case("target", lambda files: files.good, {"draft_kwargs": {"draft_model": "lookup", "n_ctx": 256}}),
    "adapter": Case(
        "target", lambda files: files.identical, {"draft_kwargs": {"lora_path": "lora", "lora_scale": 0.5}}
    ),
    "recurrent": Case("recurrent", lambda files: files.recurrent_draft),
    "sliding window": Case("sliding", lambda files: files.sliding_draft),
    "head": Case("deep", lambda files: files.deep_head, {"draft_window": 100, "draft_kwargs": {"n_ctx": 256}}),
    "head of blocks": Case(
        "deep", lambda files: files.deep_block, {"draft_window": 99, "draft_kwargs": {"n_ctx": 256}}
    ),
    "head of the final state": Case("deep", lambda files: files.deep_medusa, {"lookup_corpus": CORPUS}),
    "assistant": Case("gemma4", lambda files: files.assistant, {"draft_kwargs": {"n_threads": 2}}),
    "mtp": Case("mtp", lambda files: "mtp", {"lookup_corpus": CORPUS, "draft_window": 100}),
    "auto with mtp": Case("mtp", lambda files: "auto"),
    "head and model": Case("deep", lambda files: [files.deep_head, files.good], {"draft_window": 100}),
    "head and parallel model": Case(
        "deep",
        lambda files: [files.good, files.deep_head],
        {"draft_mask_token": 5, "draft_kwargs": {"n_ctx": 256, "flash_attn": True}},
    ),
    "head of blocks and parallel model": Case(
        "deep", lambda files: [files.good, files.deep_block], {"draft_mask_token": 5, "draft_kwargs": {"n_ctx": 256}}
    ),
    "auto and model": Case("target", lambda files: ["auto", files.good], {"draft_window": 100}),
    "auto and model, with mtp": Case("mtp", lambda files: ["auto", files.good]),
}
PARAMS = [
    pytest.param(case, id=name, marks=NEEDS_HEADS if case.target in ("deep", "mtp", "gemma4") else ())
    for name, case in CASES.items()
]


def chosen(case: Case, files: TinyFiles) -> tuple[Path, Any, dict[str, Any]]:
    """The target, the draft and the options, with files in place of their names."""
    own = dict(case.options.get("draft_kwargs", {}))
    if "lora_path" in own:
        own["lora_path"] = str(files.lora)
    return getattr(files, case.target), case.draft(files), {**case.options, **({"draft_kwargs": own} if own else {})}


@pytest.fixture
def both(tiny_files: TinyFiles, make_llama: MakeLlama) -> Iterator[Callable[[Case], tuple[Engine, Engine]]]:
    """The engines that both doors open."""
    opened: list[Engine] = []

    def open_both(case: Case) -> tuple[Engine, Engine]:
        target, draft, options = chosen(case, tiny_files)
        opened.append(Engine.open(target, draft, **SETTINGS, **options))
        return opened[0], make_llama(target, draft, **SETTINGS, **options).engine

    yield open_both
    for engine in opened:
        engine.close()


def values_of(struct: Any) -> dict[str, Any]:
    """The fields of a struct that are no addresses."""
    found = {name: getattr(struct, name) for name, _ in struct._fields_}
    addresses = (ctypes._Pointer, ctypes._CFuncPtr)
    return {
        name: value for name, value in found.items() if not isinstance(value, addresses) and "ctx_other" not in name
    }


def opened_as(model: Model) -> dict[str, Any]:
    """How a model and its context were opened, but for what is an address, and who shows messages."""
    settings = model.settings
    lora, hidden = settings.lora, settings.hidden
    return {
        **values_of(settings.model_params),
        **values_of(settings.context_params),
        "cb_eval_user_data": None,
        "n_ctx": model.n_ctx,
        "file": os.path.basename(settings.path),
        "metadata": dict(settings.metadata),
        "threads": (settings.n_threads, settings.n_threads_batch, settings.n_batch),
        "kernels": (str(settings.kernels), settings.kernels.choice),
        "lora": None if lora is None else (lora.path, lora.scale),
        "hidden": None if hidden is None else dataclasses.replace(hidden, target=None),
        "rollback": model.sequence.decoder.rollback,
    }


@pytest.mark.parametrize("case", PARAMS)
def test_both_doors_open_the_same(both: Callable[[Case], tuple[Engine, Engine]], case: Case) -> None:
    """Parameters of models and contexts, field by field, and the texts."""
    ours, llamas = both(case)
    assert opened_as(ours.model) == opened_as(llamas.model)
    assert (ours.draft is None) == (llamas.draft is None) == (case.draft is CASES["none"].draft)
    if ours.draft is not None and llamas.draft is not None:
        assert type(ours.draft) is type(llamas.draft)
        assert (ours.draft.label, ours.draft.unusable) == (llamas.draft.label, None)
        assert ours.draft.models.keys() == llamas.draft.models.keys()
        for name, model in ours.draft.models.items():
            assert opened_as(model) == opened_as(llamas.draft.models[name])
    texts, drafted = [], []
    for engine in (ours, llamas):
        texts.append(list(engine.generate(engine.tokenize(PROMPT), max_tokens=30, temperature=0.9, seed=7)))
        drafted.append((engine.stats.per_drafter, engine.stats.num_draft_tokens, engine.stats.draft_vocabulary))
    assert texts[0] == texts[1]
    assert drafted[0] == drafted[1]
    assert drafted[0][1] > 0 or ours.draft is None or not ours.draft.models


@pytest.mark.parametrize("case", PARAMS)
def test_the_text_is_that_without_a_draft(tiny_files: TinyFiles, case: Case) -> None:
    """Every option of a draft leaves the text as it is."""
    target, draft, options = chosen(case, tiny_files)
    texts = []
    for what in ({"draft": draft, **options}, {}):
        with Engine.open(target, **what, **SETTINGS) as engine:
            texts.append(list(engine.generate(engine.tokenize(PROMPT), max_tokens=40, temperature=0.0)))
    assert texts[0] == texts[1]


def test_what_another_llama_lends(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    """Of both classes, through both doors."""
    llm = make_llama(seed=7)
    plain = list(itertools.islice(llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0), 30))
    for lender in (make_llama(tiny_files.good), make_base(tiny_files.good)):
        llm.draft_model = lender
        with Engine.open(tiny_files.target, lender, **SETTINGS) as engine:
            for drafted in (engine, llm.engine):
                tokens = list(drafted.generate(drafted.tokenize(PROMPT), max_tokens=30, temperature=0.0))
                assert tokens == plain
                assert drafted.stats.num_accepted_tokens > 0
        llm.draft_model = None


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "corpus without a draft": (None, {"lookup_corpus": CORPUS}, "lookup_corpus is for a draft model or"),
    "arguments without a draft": (None, {"draft_kwargs": {"n_ctx": 64}}, "draft_kwargs is for a draft_model given by"),
    "mask of lookup": (
        "lookup",
        {"draft_mask_token": 5},
        "draft_mask_token is for a parallel draft model: leave it out",
    ),
    "window of lookup": ("lookup", {"draft_window": 5}, "draft_window is for a draft model, or a head with a context"),
    "vocabulary of lookup": ("lookup", {"draft_vocabulary": 64}, "draft_vocabulary is for a draft model: leave it out"),
    "all of a vocabulary": ("lookup", {"draft_vocabulary": None}, "draft_vocabulary is for a draft model"),
    "arguments of lookup": ("lookup", {"draft_kwargs": {"n_ctx": 64}}, "draft_kwargs is for a draft_model given by"),
    "corpus of a function": (function, {"lookup_corpus": [5]}, "lookup_corpus is for a draft model or"),
    "window of a function": (function, {"draft_window": 5}, "draft_window is for a draft model, or a head"),
    "two models": (["good", "bad"], {}, "must be a head and a smaller model, if it is a list"),
    "a function in a list": (["good", function], {}, "must be a head and a smaller model"),
    "nothing in a list": ([], {}, "must be a head and a smaller model"),
    "two heads": (["deep_head", "deep_block"], {}, "must be a head and a smaller model"),
    "vocabulary of a head": ("deep_head", {"draft_vocabulary": 64}, "draft_vocabulary is for a draft model"),
    "mask of a head": ("deep_head", {"draft_mask_token": 5}, "draft_mask_token is for a parallel draft model"),
    "cache of a head": (
        "deep_head",
        {"draft_kwargs": {"type_k": 1}},
        "draft_kwargs of a head may have .*: leave type_k",
    ),
}


def file_of(files: TinyFiles, draft: Any) -> Any:
    if isinstance(draft, list):
        return [file_of(files, each) for each in draft]
    return getattr(files, draft, draft) if isinstance(draft, str) else draft


@pytest.mark.parametrize("door", ["engine", "llama"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_effect_is_refused_before_weights_are_loaded(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, name: str, door: str
) -> None:
    draft, options, message = REFUSED[name]
    monkeypatch.setattr(llama_cpp, "llama_model_load_from_file", None)
    with pytest.raises(ValueError, match=message):
        if door == "engine":
            Engine.open(tiny_files.deep, file_of(tiny_files, draft), **options)
        else:
            make_llama(tiny_files.deep, file_of(tiny_files, draft), **options)


@pytest.mark.parametrize("draft", [dict, 5, {"a": 1}, b"draft.gguf", specllama.Llama])
def test_what_cannot_draft_is_refused(make_llama: MakeLlama, tiny_files: TinyFiles, draft: object) -> None:
    with pytest.raises(TypeError, match="must be a path, a model name"):
        Engine.open(tiny_files.target, draft)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="must be a path, a model name"):
        make_llama(draft=draft)


def test_arguments_that_an_engine_does_not_have(tiny_files: TinyFiles) -> None:
    with pytest.raises(TypeError, match="the draft of an Engine has no argument rope_freq_base: it has n_ctx, n_batch"):
        Engine.open(tiny_files.target, tiny_files.good, draft_kwargs={"rope_freq_base": 1.0})


def test_an_adapter_of_the_target(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(lora_path=str(tiny_files.lora), lora_scale=0.5, draft=tiny_files.good)
    expected = list(itertools.islice(llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0), 30))
    texts = []
    for lora in ({"lora_path": str(tiny_files.lora), "lora_scale": 0.5}, {}):
        with Engine.open(tiny_files.target, tiny_files.good, **SETTINGS, **lora) as engine:
            texts.append(list(engine.generate(engine.tokenize(PROMPT), max_tokens=30, temperature=0.0)))
    assert texts[0] == expected
    assert texts[1] != expected


def test_a_draft_that_takes_anothers_place(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Options that were for a draft model do not keep out a draft that has no use for them."""
    llm = make_llama(draft=tiny_files.good, draft_window=100, draft_vocabulary=64, lookup_corpus=CORPUS)
    for draft in ("lookup", function, str(tiny_files.bad), None, str(tiny_files.good)):
        llm.draft_model = draft
        assert llm.create_completion(PROMPT, max_tokens=9, temperature=0.0)["usage"]["completion_tokens"] == 9


@NEEDS_HEADS
def test_parts_of_a_list_are_freed_where_the_last_one_fails(tiny_files: TinyFiles) -> None:
    """A head that was opened already does not keep its target from being closed."""
    with pytest.raises(ValueError, match="the draft has another vocabulary than the target"):
        Engine.open(tiny_files.deep, [tiny_files.deep_head, tiny_files.letters], **SETTINGS)
