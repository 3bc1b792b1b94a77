"""Bad input is a clear Python exception or warning that names the value; the object works afterwards."""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

NAN, INF = math.nan, math.inf


def assert_still_works(llm: llama_cpp.Llama) -> None:
    """It generates as a sound object does."""
    out = llm.create_completion("the cat", max_tokens=10, temperature=0.0)
    assert out["usage"]["completion_tokens"] == 10
    assert out["choices"][0]["text"]


# --- Files ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", ["target", "draft"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("truncated", "truncated|incomplete|corrupted|not within the file bounds"),
        ("not_gguf", "not a GGUF"),
        ("lora", "LoRA"),
        ("missing", "does not exist"),
        ("empty", "not a GGUF|empty"),
        ("folder", "directory"),
        ("garbled", "garbled"),
    ],
)
def test_files_that_are_no_models(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, name: str, message: str, role: str
) -> None:
    made = {"missing": tmp_path / "missing.gguf", "empty": tmp_path / "empty.gguf", "folder": tmp_path}
    made["empty"].write_bytes(b"")
    made["garbled"] = tmp_path / "garbled.gguf"
    made["garbled"].write_bytes(tiny_files.target.read_bytes()[:24] + bytes(range(256)) * 40)
    path = made.get(name, tmp_path / "model.gguf")
    if name not in made:
        shutil.copy(getattr(tiny_files, name), path)  # a name that says nothing
    with pytest.raises(ValueError, match=message) as caught:
        if role == "target":
            make_llama(path)
        else:
            make_llama(draft=path)
    assert isinstance(caught.value, FileNotFoundError) == (name == "missing")
    assert_still_works(make_llama(draft=tiny_files.good))


def test_an_embedding_model_as_target(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """It may be opened, because embed() works; it cannot generate."""
    llm = make_llama(tiny_files.embedding, embedding=True)
    assert len(llm.embed("a b")) > 0
    with pytest.raises(ValueError, match="embedding model"):
        llm.create_completion("a b")
    with pytest.raises(ValueError, match="embedding model"):
        next(llm.generate([2, 5]))


def test_an_embedding_model_as_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="embedding model"):
        make_llama(draft=tiny_files.embedding_words)
    with pytest.raises(ValueError, match="embedding model"):
        make_llama(draft=tiny_files.embedding)  # of another tokenizer, too


def test_a_model_with_an_encoder(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """llama.cpp would end the process. An encoder alone can embed."""
    whole = tiny.write_t5(tmp_path / "t5.gguf", 1)
    encoder = tiny.write_t5(tmp_path / "encoder.gguf", 1, decodes=False)
    for path in (whole, encoder):
        with pytest.raises(ValueError, match=r"the target cannot generate text: 't5.*from left to right"):
            make_llama(path)
        with pytest.raises(ValueError, match=r"the draft cannot generate text: 't5"):
            make_llama(draft=path)
    with pytest.raises(ValueError, match="the target has an encoder and a decoder"):
        make_llama(whole, embedding=True).embed("the cat")
    assert len(make_llama(encoder, embedding=True).embed("the cat")) > 0
    assert_still_works(make_llama(draft=tiny_files.good))


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"attention_type": llama_cpp.LLAMA_ATTENTION_TYPE_NON_CAUSAL}, "with attention_type=1 each token attends to"),
        ({"kv_overrides": {"llama.attention.causal": False}}, r"by its metadata \(llama.attention.causal\)"),
    ],
)
def test_attention_to_tokens_behind(make_llama: MakeLlama, settings: dict[str, Any], why: str) -> None:
    """Accepted tokens would see the drafted ones behind them, and the draft would change the text."""
    with pytest.raises(ValueError, match=f"the target cannot generate text: {why}"):
        make_llama(**settings)
    assert len(make_llama(embedding=True, **settings).embed("the cat")) > 0


def test_a_missing_name_of_the_catalog_says_how_to_get_it(
    make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"specllama pull qwen2\.5-coder-0\.5b"):
        make_llama("qwen2.5-coder-0.5b")


def test_paths_may_be_path_objects(tiny_files: TinyFiles) -> None:
    llm = specllama.Llama(tiny_files.target, draft_model=tiny_files.good, verbose=False, n_threads=1)  # type: ignore[arg-type]
    assert_still_works(llm)
    llm.close()


def test_an_unusual_file_name(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    path = tmp_path / "a model: ☺ {}%s.gguf"
    shutil.copy(tiny_files.target, path)
    assert_still_works(make_llama(path, path))


# --- Drafts -----------------------------------------------------------------------------------------------------------


def test_a_draft_with_another_vocabulary(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    path, message = tiny_files.letters, "5 of the target's 300 tokens are among the draft's 5, and 2% are needed"
    with pytest.raises(ValueError, match=message):
        make_llama(draft=path)
    with pytest.raises(ValueError, match=message):
        make_llama(draft=make_base(path))
    llm = make_llama()
    with pytest.raises(ValueError, match=message):
        llm.draft_model = make_base(path)
    assert_still_works(llm)


def test_the_vocabulary_is_compared_before_the_weights_are_loaded(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = []
    load = llama_cpp.llama_model_load_from_file

    def spy(path: bytes, params: Any) -> Any:
        loaded.append((path.decode(), bool(params.vocab_only)))
        return load(path, params)

    for module in (llama_cpp, llama_cpp.llama_cpp):
        monkeypatch.setattr(module, "llama_model_load_from_file", spy)
    with pytest.raises(ValueError, match="another vocabulary"):
        make_llama(draft=tiny_files.letters)
    assert loaded == [(str(tiny_files.target), False), (str(tiny_files.letters), True)]
    loaded.clear()
    make_llama(draft=tiny_files.good)  # the same tokens: that is seen by the files
    assert loaded == [(str(tiny_files.target), False), (str(tiny_files.good), False)]


def test_a_draft_with_padding_rows_is_fine(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    assert_still_works(make_llama(draft=tiny_files.padded_draft))
    assert_still_works(make_llama(tiny_files.padded, tiny_files.good))


def test_a_larger_draft_is_a_warning(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.warns(UserWarning, match="larger than the target"):
        llm = make_llama(draft=tiny_files.larger)
    assert_still_works(llm)
    assert llm.stats.num_drafts > 0


def test_other_things_than_drafts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(TypeError, match="draft_model=42"):
        make_llama(draft=42)
    with pytest.raises(ValueError, match="draft_kwargs"):
        make_llama(draft_kwargs={"n_ctx": 256})
    llm = make_llama()
    with pytest.raises(ValueError, match="its own draft"):
        llm.draft_model = llm
    assert_still_works(llm)


# --- Options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["fast", "", "Block", 3, None])
def test_unknown_verify(make_llama: MakeLlama, tiny_files: TinyFiles, value: Any) -> None:
    with pytest.raises(ValueError, match="verify"):
        make_llama(draft=tiny_files.good, verify=value)
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises(ValueError, match="'auto', 'rejection', 'block', 'coupled'"):
        llm.create_completion("the", verify=value or "?")
    with pytest.raises(ValueError, match="verify"):
        llm.verify = value or "?"
    with pytest.raises(ValueError, match="verify"):
        llm.create_completion("the", stream=True, verify=value or "?")
    assert_still_works(llm)


@pytest.mark.parametrize("value", [-1, 10**6, 2.5, "4", NAN, True])
def test_bad_num_draft_tokens(make_llama: MakeLlama, tiny_files: TinyFiles, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="num_draft_tokens"):
        make_llama(draft=tiny_files.good, num_draft_tokens=value)
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises((ValueError, TypeError), match="num_draft_tokens"):
        llm.create_completion("the", num_draft_tokens=value)
    with pytest.raises((ValueError, TypeError), match="num_draft_tokens"):
        llm.num_draft_tokens = value
    assert_still_works(llm)


def test_more_draft_tokens_than_fit_anywhere(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    assert_still_works(make_llama(draft=tiny_files.good, num_draft_tokens=512, n_batch=8))


@pytest.mark.parametrize("value", ["1", 1.5])
def test_bad_seeds(make_llama: MakeLlama, value: Any) -> None:
    with pytest.raises(TypeError, match="seed"):
        make_llama(seed=value)
    llm = make_llama()
    with pytest.raises(TypeError, match="seed"):
        llm.set_seed(value)
    with pytest.raises(TypeError, match="seed"):
        llm.create_completion("the", seed=value)
    assert_still_works(llm)


@pytest.mark.parametrize("seed", [-5, -1, 0, 2**32 - 1, 2**32, 2**64, 2**70])
def test_seeds_of_any_size(make_llama: MakeLlama, tiny_files: TinyFiles, seed: int) -> None:
    llm = make_llama(draft=tiny_files.good, seed=seed)
    assert_still_works(llm)
    assert llm.create_completion("the", max_tokens=4, seed=seed)["usage"]["completion_tokens"] == 4


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", NAN),
        ("temperature", INF),
        ("top_p", NAN),
        ("min_p", NAN),
        ("typical_p", NAN),
        ("repeat_penalty", NAN),
        ("repeat_penalty", INF),
        ("repeat_penalty", 0.0),
        ("frequency_penalty", INF),
        ("presence_penalty", -INF),
        ("logit_bias", {5: NAN}),
        ("logit_bias", {5: INF}),
        ("mirostat_tau", NAN),
        ("mirostat_eta", INF),
        ("mirostat_tau", 1e300),
        ("logit_bias", {10**6: 1.0}),
        ("logit_bias", {-3: 1.0}),
    ],
)
def test_sampling_parameters_without_a_meaning(
    make_llama: MakeLlama, tiny_files: TinyFiles, name: str, value: Any
) -> None:
    llm = make_llama(draft=tiny_files.good)
    for stream in (False, True):
        with pytest.raises(ValueError, match=name if name != "logit_bias" else "logit_bias|token"):
            list(llm.create_completion("the", stream=stream, **{name: value}))
        assert_still_works(llm)


@pytest.mark.parametrize(
    "settings",
    [
        {"temperature": -1.0},
        {"top_k": -1},
        {"top_k": 10**9},
        {"top_p": -1.0},
        {"top_p": 3.0},
        {"top_p": INF},
        {"min_p": 2.0},
        {"min_p": -1.0},
        {"typical_p": 5.0},
        {"logit_bias": {280: -INF}},
        {"logit_bias": {"280": 2}},
    ],
    ids=str,
)
def test_sampling_parameters_that_llama_cpp_gives_a_meaning(
    make_llama: MakeLlama, tiny_files: TinyFiles, settings: dict[str, Any]
) -> None:
    llm = make_llama(draft=tiny_files.good)
    assert llm.create_completion("the", max_tokens=8, **settings)["usage"]["completion_tokens"] == 8


def test_every_token_banned(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    for temperature in (0.0, 1.0):
        with pytest.raises(RuntimeError, match="no token can be sampled"):
            llm.create_completion("the", temperature=temperature, logit_bias=dict.fromkeys(range(llm.n_vocab()), -INF))
        assert_still_works(llm)


# --- Prompts ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draft", ["none", "good"])
def test_bad_prompts(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = make_llama(draft=tiny_files.draft(draft))
    n_vocab = llm.n_vocab()
    cases: list[tuple[Any, str]] = [
        ([], "empty"),
        ([1, -1], "-1"),
        ([1, n_vocab], str(n_vocab)),
        ([1, 2**31], str(2**31)),
        ([1, 2**40], str(2**40)),
        ([1] + [280] * 512, "n_ctx=512"),
        ([1] + [280] * 5000, "n_ctx=512"),
    ]
    for tokens, message in cases:
        with pytest.raises(ValueError, match=message):
            next(llm.generate(tokens))
        assert_still_works(llm)
    for wrong in ([1.5, 2.5], ["the"], [[1, 2]]):
        with pytest.raises((TypeError, ValueError)):
            next(llm.generate(wrong))
        assert_still_works(llm)


def test_completions_of_bad_prompts(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises(ValueError, match="empty"):
        llm.create_completion([])
    with pytest.raises(ValueError, match="context window of 512"):
        llm.create_completion("the cat " * 600)
    with pytest.raises(ValueError, match="out of range"):
        llm.create_completion([1, 10**6])
    with pytest.raises(ValueError, match="out of range"):
        list(llm.create_completion([1, -7], stream=True))
    assert_still_works(llm)
    with pytest.warns(RuntimeWarning, match="duplicate leading"):
        llm.create_completion([1, 1, 280], max_tokens=3)


@pytest.mark.parametrize("arguments", [{}, {"echo": True}, {"logprobs": 1}, {"echo": True, "logprobs": 1}])
def test_no_text_for_a_model_without_bos(
    make_llama: MakeLlama, tiny_files: TinyFiles, arguments: dict[str, Any]
) -> None:
    """Then there is no token at all. Qwen2.5 is such a model."""
    llm = make_llama(tiny_files.no_bos)
    with pytest.raises(ValueError, match="the prompt is empty"):
        llm.create_completion("", max_tokens=3, **arguments)
    assert_still_works(llm)


def test_the_whole_context_as_prompt(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=256)
    full = [1] + [280] * 255
    assert isinstance(next(llm.generate(full)), int)
    out = llm.create_completion(full[:-1], max_tokens=50)
    assert out["usage"]["completion_tokens"] == 1
    with pytest.raises(ValueError, match="exceed context window"):
        llm.create_completion(full)


def test_generator_send_of_bad_tokens(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    tokens = llm.generate([1, 280])
    next(tokens)
    with pytest.raises(ValueError, match="out of range"):
        tokens.send([10**6])
    assert_still_works(llm)
