"""The Llama object: statistics, options, signatures, pickling, and constructor arguments of llama_cpp.Llama."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pickle
import weakref
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from responses import PROMPT, Pair, assert_same, comparable, complete, completions

import specllama
from specllama.engine.samplers import SAMPLERS

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles


def test_the_models_are_freed_with_the_last_name_for_them(tiny_files: TinyFiles) -> None:
    """Not some time later, by the garbage collector: they are large."""
    options = {"n_ctx": 128, "n_threads": 1, "verbose": False}
    llm = specllama.Llama(str(tiny_files.target), draft_model=str(tiny_files.good), **options)
    llm.create_completion(PROMPT, max_tokens=8)
    seen = [weakref.ref(llm), weakref.ref(llm.draft_model)]
    stream = llm.generate_tokens(PROMPT, max_tokens=8)
    text = next(stream).text
    del llm
    assert seen[0]() is not None, "whoever reads a stream needs it"
    text += "".join(token.text for token in stream)
    del stream
    assert text
    assert [reference() for reference in seen] == [None, None]


def test_stats(pair: Pair) -> None:
    llm, _ = pair
    complete(pair, max_tokens=30)
    first = llm.stats
    fields = (
        "num_prompt_tokens num_prompt_tokens_reused num_tokens num_first_tokens num_drafts num_draft_tokens "
        "num_accepted_tokens num_accepted_tokens_per_pos acceptance_rate mean_acceptance_length expected_acceptance "
        "argmax_acceptance prompt_seconds draft_seconds verify_seconds sample_seconds rollback_seconds total_seconds "
        "tokens_per_second verify rollback fallback_reason"
    ).split()
    as_dict = first.to_dict()
    assert list(as_dict)[: len(fields)] == fields
    assert first.num_tokens == 30
    assert first.num_prompt_tokens == len(llm.tokenize(PROMPT.encode()))
    assert first.acceptance_rate == first.num_accepted_tokens / first.num_draft_tokens
    assert first.mean_acceptance_length == 1 + first.num_accepted_tokens / first.num_drafts
    assert sum(first.num_accepted_tokens_per_pos) == first.num_accepted_tokens
    assert 0 < first.expected_acceptance <= 1
    assert first.total_seconds > 0
    assert "30 tokens" in str(first)
    with pytest.raises(AttributeError):
        first.num_tokens = 1  # type: ignore[misc]
    complete(pair, max_tokens=20)
    assert llm.stats.num_tokens == 20
    total = llm.total_stats
    assert total.num_tokens == 50
    assert total.num_drafts == first.num_drafts + llm.stats.num_drafts
    assert total.num_accepted_tokens == first.num_accepted_tokens + llm.stats.num_accepted_tokens
    assert json.loads(json.dumps(total.to_dict()))["num_tokens"] == 50


def test_stats_before_anything(make_llama: MakeLlama) -> None:
    llm = make_llama()
    assert llm.stats == llm.total_stats == specllama.Stats()
    assert str(llm.stats)


def test_no_buffer_of_n_ctx_times_n_vocab(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, logits_all=True)
    llm.create_completion(PROMPT, max_tokens=5, logprobs=2)
    for name, value in vars(llm).items():
        if isinstance(value, np.ndarray):
            assert value.size < 4 * max(llm.n_vocab(), llm.n_ctx()), name


def test_signatures_are_those_of_the_base_class_plus_ours(make_llama: MakeLlama) -> None:
    of_chats = {
        "parallel_tool_calls",
        "chat_template_kwargs",
        "reasoning_effort",
        "continue_final_message",
        "parse_special",
    }
    for name in ("generate", "create_completion", "__call__", "create_chat_completion"):
        theirs = inspect.signature(getattr(llama_cpp.Llama, name)).parameters
        ours = inspect.signature(getattr(specllama.Llama, name)).parameters
        added = {"num_draft_tokens", "verify", "min_tokens", "prediction", "learn", *SAMPLERS}
        assert set(ours) - set(theirs) == added | (of_chats if name == "create_chat_completion" else set())
        assert {key: p.default for key, p in theirs.items()} == {key: ours[key].default for key in theirs}
    with pytest.raises(TypeError, match="temprature"):
        make_llama().create_completion("x", temprature=1)  # type: ignore[call-arg]


def test_options_as_attributes(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=2, verify="rejection")
    assert (llm.num_draft_tokens, llm.verify) == (2, "rejection")
    llm.num_draft_tokens, llm.verify = 3, "block"
    llm.create_completion(PROMPT, max_tokens=30)
    assert llm.stats.verify == "block"
    assert len(llm.stats.num_accepted_tokens_per_pos) == 3


def test_pickling(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=3, seed=5)
    copied = pickle.loads(pickle.dumps(llm))
    assert (copied.num_draft_tokens, copied.draft_model.model_path) == (3, str(tiny_files.good))
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 10}
    assert comparable(copied.create_completion(PROMPT, **settings)) == comparable(
        llm.create_completion(PROMPT, **settings)
    )
    copied.close()


@pytest.fixture
def opened_with(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, dict[str, Any]]]:
    """Path and arguments of each llama_cpp.Llama that is opened."""
    opened: list[tuple[str, dict[str, Any]]] = []
    init = llama_cpp.Llama.__init__

    @functools.wraps(init)
    def spy(self: llama_cpp.Llama, model_path: str, **kwargs: Any) -> None:
        opened.append((model_path, kwargs))
        init(self, model_path, **kwargs)

    monkeypatch.setattr(llama_cpp.Llama, "__init__", spy)
    return opened


GPU: dict[str, Any] = {
    "n_gpu_layers": -1,
    "split_mode": llama_cpp.LLAMA_SPLIT_MODE_ROW,
    "main_gpu": 1,
    "tensor_split": [1.0, 3.0],
    "offload_kqv": False,
    "op_offload": False,
    "flash_attn": True,
}


def test_a_draft_takes_over_the_settings_of_the_gpu(
    make_llama: MakeLlama, tiny_files: TinyFiles, opened_with: list[tuple[str, dict[str, Any]]]
) -> None:
    """Whether it is given at once or assigned later, and in a copy."""
    llm = make_llama(draft=tiny_files.good, n_ctx=256, **GPU)
    llm.draft_model = str(tiny_files.bad)
    copy = pickle.loads(pickle.dumps(llm))
    copy.draft_model = str(tiny_files.identical)
    drafts = [(path, kwargs) for path, kwargs in opened_with if path != str(tiny_files.target)]
    assert [path for path, _ in drafts] == [str(tiny_files.good), *[str(tiny_files.bad)] * 2, str(tiny_files.identical)]
    for _, kwargs in drafts:
        assert {name: kwargs[name] for name in GPU} | {"n_gpu_layers": -1} == GPU
        assert kwargs["n_gpu_layers"] in (-1, 0x7FFFFFFF)  # which is what llama_cpp makes of it
        assert (kwargs["n_ctx"], kwargs["use_mmap"]) == (256, False)
    copy.close()


def test_a_draft_is_mapped_if_the_target_was_asked_to_be(
    make_llama: MakeLlama, tiny_files: TinyFiles, opened_with: list[tuple[str, dict[str, Any]]]
) -> None:
    llm = make_llama(draft=tiny_files.good, use_mmap=True)
    pickle.loads(pickle.dumps(llm)).close()
    assert [kwargs["use_mmap"] for _, kwargs in opened_with] == [True] * 4


def test_lora_of_the_target(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    lora = str(tiny_files.lora)
    plain = complete((make_llama(draft=tiny_files.good), make_base()))
    adapted = complete((make_llama(draft=tiny_files.good, lora_path=lora), make_base(lora_path=lora)))
    assert adapted["choices"] != plain["choices"]


def test_quantised_kv_cache(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    kwargs = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
    assert_same(*completions((make_llama(draft=tiny_files.good, **kwargs), make_base(**kwargs))))


def test_flash_attention(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    assert_same(*completions((make_llama(draft=tiny_files.good, flash_attn=True), make_base(flash_attn=True))))


def test_from_pretrained(monkeypatch: pytest.MonkeyPatch, tiny_files: TinyFiles) -> None:
    """The hub is replaced by the folder of tiny models: what matters is that our arguments get through."""
    import huggingface_hub

    class FakeFileSystem:
        def ls(self, repo: str, recursive: bool = True) -> list[dict[str, str]]:
            return [{"name": f"{repo}/{tiny_files.target.name}"}]

    monkeypatch.setattr(huggingface_hub, "HfFileSystem", FakeFileSystem)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda **_: str(tiny_files.target))
    llm = specllama.Llama.from_pretrained(
        "somebody/tiny",
        "target.gguf",
        local_dir=tiny_files.target.parent,
        draft_model=str(tiny_files.good),
        num_draft_tokens=2,
        verbose=False,
        n_threads=1,
    )
    llm.create_completion(PROMPT, max_tokens=5)
    assert isinstance(llm, specllama.Llama)
    assert llm.stats.num_drafts > 0
    llm.close()


def test_a_draft_of_a_file_shows_its_path(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    assert repr(llm.draft_model) == f"<draft {tiny_files.good}>"


def test_a_summary_is_one_line(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=4)
    llm("the cat sat", max_tokens=12)
    stats = llm.stats
    first, second, *_ = str(stats).splitlines()
    assert stats.summary == f"{first}; {second.partition(' in ')[0]}"
    assert f"accepted {stats.num_accepted_tokens} of {stats.num_draft_tokens} drafted" in stats.summary
    assert dataclasses.replace(stats, num_drafts=0).summary == first
    plain = dataclasses.replace(stats, num_drafts=0, fallback_reason="it is recurrent")
    assert plain.summary == f"{first}; decoded plainly: it is recurrent"
