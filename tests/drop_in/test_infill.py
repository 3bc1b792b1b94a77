"""A completion between two texts: the model's own tokens say where they are, and the suffix is whole."""

from __future__ import annotations

import dataclasses
import json
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


@pytest.mark.parametrize("spm_infill", [False, True])
def test_an_echo_has_the_text_where_its_own_tokens_are(filling: Opened, spm_infill: bool) -> None:
    """Not where the same tokens are in the suffix."""
    llm = filling(spm_infill=spm_infill)
    before, behind, _ = marks_of(llm)
    prompt = "the cat in the cat"
    settings: dict[str, Any] = {"suffix": " the cat in", "echo": True, **GREEDY}
    choice = llm.create_completion(prompt, logprobs=0, **settings)["choices"][0]
    tokens = list(llm.generate_tokens(prompt, **settings))
    assert "".join(token.text for token in tokens) == choice["text"]
    ids = [token.id for token in tokens]
    first, end = ids.index(before), len(ids) - 1 - GREEDY["max_tokens"] if spm_infill else ids.index(behind)
    own, offsets = tokens[first + 1 : end], choice["logprobs"]["text_offset"]
    assert "".join(token.text for token in own) == prompt
    assert len({token.text for token in own}) > 1 and all(token.text for token in own)
    assert offsets[first + 1 : end] == [sum(len(token.text) for token in own[:i]) for i in range(len(own))]
    assert set(offsets[: first + 1]) == {0}
    assert set(offsets[end : -GREEDY["max_tokens"]]) == {len(prompt)}


def test_an_echo_of_marks_alone_is_streamed(filling: Opened) -> None:
    """The prompt's own text is empty, and its tokens have log-probabilities."""
    llm = filling()
    settings: dict[str, Any] = {"suffix": " the", "echo": True, "logprobs": 0, **GREEDY}
    whole = llm.create_completion("", **settings)["choices"][0]
    choices = [chunk["choices"][0] for chunk in llm.create_completion("", stream=True, **settings)]
    assert "".join(choice["text"] for choice in choices) == whole["text"]
    streamed = [token for choice in choices if choice["logprobs"] for token in choice["logprobs"]["tokens"]]
    assert streamed == whole["logprobs"]["tokens"]


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


def test_llama_servers_path(filling: Opened) -> None:
    """As llama.vim and llama.vscode ask: the same text as with a suffix, in llama-server's form."""
    imported("fastapi")
    from served import serving

    llm = filling()
    whole = llm.create_completion("the cat", suffix=" in", **GREEDY)["choices"][0]["text"]
    expected = prompt_of(llm)
    asked: dict[str, Any] = {
        **{"input_prefix": "the", "prompt": " cat", "input_suffix": " in", "input_extra": [], "n_predict": 4},
        **{"temperature": 0.0, "cache_prompt": True, "stream": False, "n_indent": 2, "t_max_predict_ms": 500},
        "samplers": ["top_k", "infill"],
    }
    with serving(llm) as served:
        answer = served.post("/infill", **asked).json()
        assert prompt_of(llm) == expected
        assert (answer["content"], answer["stop"], answer["stop_type"]) == (whole, True, "limit")
        assert (answer["tokens_predicted"], answer["tokens_evaluated"]) == (4, len(expected))
        assert len(answer["tokens"]) == 4 and answer["timings"]["predicted_n"] == 4
        ignored = ("cache_prompt", "n_indent", "samplers", "t_max_predict_ms")
        assert answer["warnings"] == [f"{name} has no effect here" for name in ignored]
        few = served.post("/infill", **asked, response_fields=["content", "timings/prompt_n", "nothing"]).json()
        assert few == {"content": whole, "timings/prompt_n": 1}
        with served.client.stream("POST", "/infill", json={**asked, "stream": True}) as response:
            events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
        assert "".join(event["content"] for event in events) == whole
        assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
        assert [token for event in events[:-1] for token in event["tokens"]] == answer["tokens"]
        stop = whole.strip()[-1:]
        stopped = served.post("/infill", **asked, stop=[stop]).json()
        assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", stop)
        for wrong in ({"input_suffix": None}, {"suffix": "x"}, {"input_extra": [{"filename": "x"}]}, {"temprature": 1}):
            assert served.post("/infill", **{**asked, **wrong}).status_code == 400


def test_other_files_come_before_the_gap(tmp_path: Path, make_llama: MakeLlama) -> None:
    """By the model's own tokens for them if it has any; and as much of them as there is room for."""
    imported("fastapi")
    from served import serving

    plain = tiny.word_vocabulary()
    extra = [{"text": "the dog", "filename": "a.txt"}, {"text": "a mat"}]
    for names in (MARKS, (*MARKS, "<|repo_name|>", "<|file_sep|>")):
        kinds = [int(gguf.TokenType.CONTROL)] * len(names)
        vocabulary = dataclasses.replace(
            plain,
            tokens=[*plain.tokens, *names],
            scores=[*plain.scores, *[0.0] * len(names)],
            types=[*plain.types, *kinds],
        )
        path = tiny.write_llama(tmp_path / f"{len(names)}.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1))
        llm = make_llama(path, n_ctx=256)
        asked: dict[str, Any] = {"input_prefix": "the cat", "input_suffix": " in", "max_tokens": 4, "temperature": 0.0}
        with serving(llm) as served:
            assert served.post("/infill", **asked).status_code == 200
            gap = prompt_of(llm)[1:]
            assert served.post("/infill", **asked, input_extra=extra).status_code == 200
            prompt = prompt_of(llm)
            assert prompt[0] == llm.token_bos() and prompt[-len(gap) :] == gap
            text = llm.detokenize(prompt[1 : -len(gap)], special=True).decode().replace("\n ", "\n").strip()
            if len(names) > len(MARKS):
                repository, file = names[-2:]
                parts = text.replace(f"{repository} ", repository).replace(f"{file} ", file)
                assert parts == f"{repository}myproject\n{file}a.txt\nthe dog{file}tmp\na mat{file}filename"
            else:
                assert text.replace("  ", " ").count("--- snippet ---") == 2
            long = [{"text": "the cat sat " * 400}, {"text": "a dog"}]
            answer = served.post("/infill", **asked, input_extra=long).json()
            assert answer["tokens_evaluated"] == 256 - 4 and prompt_of(llm)[-len(gap) :] == gap
            assert b"a dog" in llm.detokenize(prompt_of(llm))
            assert served.post("/infill", **{**asked, "input_prefix": "the cat sat " * 400}).status_code == 400


def test_a_model_that_fills_no_gaps_says_so(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match=r"suffix: .* has no tokens for filling a gap \(FIM\).*leave the suffix out"):
        llm.create_completion("the cat", suffix="return", **GREEDY)
    (outcome,) = llm.create_completions([{"prompt": "the cat", "suffix": "return"}], **GREEDY)
    assert "has no tokens for filling a gap" in str(outcome.error)
    imported("fastapi")
    from served import serving

    with serving(llm) as served:
        refused = served.post("/infill", input_prefix="the cat", input_suffix="", max_tokens=2)
        assert (refused.status_code, "no tokens for filling a gap" in refused.text) == (400, True)
    plain = llm.create_completion("the cat", **GREEDY)["choices"]
    assert llm.create_completion("the cat", suffix="", **GREEDY)["choices"] == plain, "nothing comes behind it"


@pytest.mark.parametrize("suffix", [5, b"return", ["return"]])
def test_a_suffix_that_is_no_text(make_llama: MakeLlama, suffix: Any) -> None:
    with pytest.raises(TypeError, match=r"suffix=.* must be a text, or None"):
        make_llama().create_completion("the cat", suffix=suffix, **GREEDY)
