"""A completion between two texts: the model's own tokens say where they are, and the suffix is whole."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import pytest
import tiny_models as tiny
from needed import imported

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

    import specllama

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")
GREEDY: dict[str, Any] = {"max_tokens": 4, "temperature": 0.0}
Opened = Callable[..., "specllama.Llama"]


@pytest.fixture(params=["words", "byte pairs"])
def filling(request: pytest.FixtureRequest, tmp_path: Path, make_llama: MakeLlama) -> Opened:
    """Opens a model that fills gaps: with SentencePiece's spaces and BOS, or with neither."""
    plain = tiny.word_vocabulary() if request.param == "words" else tiny.byte_pair_vocabulary()
    vocabulary = dataclasses.replace(
        plain,
        tokens=[*plain.tokens, *MARKS],
        scores=[*plain.scores, 0.0, 0.0, 0.0],
        types=[*plain.types, *[int(gguf.TokenType.CONTROL)] * 3],
        adds_bos=request.param == "words",
    )
    path = tiny.write_llama(tmp_path / "gaps.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1))
    return lambda **options: make_llama(path, **options)


def prompt_of(llm: specllama.Llama) -> list[int]:
    """The tokens of the last prompt."""
    return [int(token) for token in llm.input_ids[: llm.stats.num_prompt_tokens]]


def marks_of(llm: specllama.Llama) -> list[int]:
    """The tokens before the prefix, before the suffix, and before the gap."""
    first = llm.n_vocab() - len(MARKS)
    vocab = llama_cpp.llama_model_get_vocab(llm.model)
    asked = (llama_cpp.llama_vocab_fim_pre, llama_cpp.llama_vocab_fim_suf, llama_cpp.llama_vocab_fim_mid)
    assert [ask(vocab) for ask in asked] == [first, first + 1, first + 2]
    return [first, first + 1, first + 2]


SUFFIXES = ["return", "the cat", " the", "\n\n  in", "☺é", "<|fim_middle|></s>", "a"]


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize("spm_infill", [False, True])
def test_the_prompt_is_in_the_models_own_form(filling: Opened, suffix: str, spm_infill: bool) -> None:
    llm = filling(spm_infill=spm_infill)
    before, behind, middle = marks_of(llm)
    llm.create_completion("def f():\n    ", suffix=suffix, **GREEDY)
    bos = [llm.token_bos()] if llm._model.add_bos_token() else []
    prompt = prompt_of(llm)
    assert prompt[: len(bos)] == bos and prompt[-1] == middle
    assert (prompt.count(before), prompt.count(behind), prompt.count(middle)) == (1, 1, 1), "texts hold no marks"
    parts = prompt[len(bos) : -1]
    assert parts[0] == (behind if spm_infill else before)
    second = parts.index(before if spm_infill else behind)
    first, last = parts[1:second], parts[second + 1 :]
    prefix, rest = (last, first) if spm_infill else (first, last)
    assert llm.engine.text(rest) == suffix.encode(), "the whole suffix, with no space before it"
    assert llm.engine.text(prefix).lstrip(b" ") == b"def f():\n    "


def test_an_empty_suffix_and_an_empty_prefix(filling: Opened) -> None:
    llm = filling()
    before, behind, middle = marks_of(llm)
    bos = [llm.token_bos()] if llm._model.add_bos_token() else []
    llm.create_completion("", suffix="", **GREEDY)
    assert prompt_of(llm) == [*bos, before, behind, middle]


def test_a_prefix_of_tokens(filling: Opened) -> None:
    """BOS comes first, once, whether the tokens have it or not."""
    llm = filling()
    ids = llm.tokenize(b"the cat", add_bos=False)
    llm.create_completion("the cat", suffix=" in", **GREEDY)
    expected = prompt_of(llm)
    for given in (ids, llm.tokenize(b"the cat")):
        llm.create_completion(given, suffix=" in", **GREEDY)
        assert prompt_of(llm) == expected


def test_every_way_to_a_completion_fills_the_gap(filling: Opened) -> None:
    llm = filling()
    whole = llm.create_completion("the cat", suffix=" in", **GREEDY)["choices"][0]["text"]
    assert llm("the cat", suffix=" in", **GREEDY)["choices"][0]["text"] == whole
    expected = prompt_of(llm)
    chunks = llm.create_completion("the cat", suffix=" in", stream=True, **GREEDY)
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole
    assert prompt_of(llm) == expected
    assert "".join(token.text for token in llm.generate_tokens("the cat", suffix=" in", **GREEDY)) == whole
    assert prompt_of(llm) == expected
    outcomes = llm.create_completions([{"prompt": "the cat", "suffix": " in"}] * 2, **GREEDY)
    assert [outcome.response["usage"]["prompt_tokens"] for outcome in outcomes if outcome.response] == [
        len(expected)
    ] * 2
    assert [outcome.text for outcome in outcomes] == [whole] * 2


def test_the_server_fills_the_gap(filling: Opened) -> None:
    imported("fastapi")
    from served import serving

    llm = filling()
    options: dict[str, Any] = {"suffix": " in", "repeat_penalty": 1.0, **GREEDY}
    whole = llm.create_completion("the cat", **options)["choices"][0]["text"]
    expected = prompt_of(llm)
    with serving(llm) as served:
        assert served.complete("the cat", **options)["choices"][0]["text"] == whole
        assert prompt_of(llm) == expected
        reply = served.complete(llm.tokenize(b"the cat"), **options)
    assert (reply["choices"][0]["text"], reply["usage"]["prompt_tokens"]) == (whole, len(expected))


def test_a_model_that_fills_no_gaps_says_so(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match=r"suffix: .* has no tokens for filling a gap \(FIM\).*leave the suffix out"):
        llm.create_completion("the cat", suffix="return", **GREEDY)
    (outcome,) = llm.create_completions([{"prompt": "the cat", "suffix": "return"}], **GREEDY)
    assert "has no tokens for filling a gap" in str(outcome.error)
    plain = llm.create_completion("the cat", **GREEDY)["choices"]
    assert llm.create_completion("the cat", suffix="", **GREEDY)["choices"] == plain, "nothing comes behind it"


@pytest.mark.parametrize("suffix", [5, b"return", ["return"]])
def test_a_suffix_that_is_no_text(make_llama: MakeLlama, suffix: Any) -> None:
    with pytest.raises(TypeError, match=r"suffix=.* must be a text, or None"):
        make_llama().create_completion("the cat", suffix=suffix, **GREEDY)
