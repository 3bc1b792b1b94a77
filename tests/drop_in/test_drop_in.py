"""Outputs are those of llama_cpp.Llama, field for field, wherever its behaviour is deterministic and well defined."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from responses import (
    PROMPT,
    ROUNDING,
    Pair,
    assert_same,
    comparable,
    complete,
    completions,
    joined,
    stream,
    without_halves,
)

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

MESSAGES = [{"role": "system", "content": "no fox"}, {"role": "user", "content": "is the cat on the dog?"}]


@pytest.mark.parametrize("prompt", [PROMPT, "the", "Zürich ☺", [1, 270, 280, 290], "a dog. " * 40])
@pytest.mark.parametrize("max_tokens", [1, 2, 7, 30])
def test_completion(pair: Pair, prompt: Any, max_tokens: int) -> None:
    assert_same(*completions(pair, prompt, max_tokens=max_tokens))


def test_empty_prompt(pair: Pair) -> None:
    """It means BOS alone. The base class counts that BOS as generated, and so stops one token early."""
    llm, base = pair
    for max_tokens in (1, 2, 9):
        ours = llm.create_completion("", temperature=0.0, max_tokens=max_tokens)
        theirs = base.create_completion("", temperature=0.0, max_tokens=max_tokens + 1)
        assert ours["choices"] == theirs["choices"]
        assert ours["usage"] == {"prompt_tokens": 1, "completion_tokens": max_tokens, "total_tokens": max_tokens + 1}


def test_call_is_completion(pair: Pair) -> None:
    ours, theirs = (comparable(llm(PROMPT, temperature=0.0, max_tokens=12)) for llm in pair)
    assert_same(ours, theirs)
    assert comparable(pair[0](PROMPT, temperature=0.0, max_tokens=12, num_draft_tokens=0, verify="coupled")) == ours


@pytest.mark.parametrize("echo", [False, True])
def test_stop_strings(pair: Pair, echo: bool) -> None:
    whole = complete(pair, max_tokens=40)["choices"][0]["text"]
    for stop in ([whole[5:7]], whole[8:12], [whole[20:22], whole[10:13]], ["not there"], ["x" * 400], []):
        out = complete(pair, max_tokens=40, stop=stop, echo=echo)
        if stop and stop != ["not there"] and stop != ["x" * 400]:
            assert out["choices"][0]["finish_reason"] == "stop"


def test_echo(pair: Pair) -> None:
    assert complete(pair, echo=True)["choices"][0]["text"].startswith(PROMPT)


def test_end_of_generation_token(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    pair = (make_llama(tiny_files.eos_happy, tiny_files.good), make_base(tiny_files.eos_happy))
    reasons = set()
    for word in ("the", "a dog", "no", "cat sat", "in on at", "fox. the dog", "it is", "to do", "b", "see", "or an ox"):
        out = complete(pair, word, max_tokens=60)
        reasons.add(out["choices"][0]["finish_reason"])
        complete(pair, word, max_tokens=60, logit_bias={2: 3.0})
    assert reasons == {"stop", "length"}


@pytest.mark.parametrize(
    "settings",
    [
        {"repeat_penalty": 1.3},
        {"frequency_penalty": 0.8, "presence_penalty": -0.4},
        {"logit_bias": {280: 3.0, 265: -100.0}},
        {"logit_bias": {270: 2.0}, "repeat_penalty": 1.2},
        {"top_k": 1, "temperature": 0.7},
        {"model": "a name"},
        {"seed": 3},
        {"typical_p": 0.5, "top_p": 0.1, "min_p": 0.5},
    ],
    ids=str,
)
def test_sampling_arguments(pair: Pair, settings: dict[str, Any]) -> None:
    assert_same(*completions(pair, **settings))


@pytest.mark.parametrize("prompt", [PROMPT, "the", [1, 270, 280]])
@pytest.mark.parametrize("max_tokens", [1, 5, 30])
def test_stream(pair: Pair, prompt: Any, max_tokens: int) -> None:
    ours, theirs = (stream(llm, prompt, max_tokens=max_tokens) for llm in pair)
    assert joined(ours) == joined(theirs)
    assert_same(ours[-1], theirs[-1])
    assert ours[-1]["choices"][0]["finish_reason"] == "length"
    assert joined(ours) == complete(pair, prompt, max_tokens=max_tokens)["choices"][0]["text"]
    assert {tuple(chunk) for chunk in ours} == {tuple(chunk) for chunk in theirs}


def test_stream_with_stop_strings_leaks_nothing(pair: Pair) -> None:
    whole = joined(stream(pair[0], max_tokens=40))
    for begin in range(2, 30, 4):
        stop = whole[begin : begin + 3]
        for gamma in (0, 4, 8):
            chunks = stream(pair[0], max_tokens=40, stop=[stop], num_draft_tokens=gamma)
            assert joined(chunks) == whole[: whole.index(stop)]
            assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


def test_streams_of_broken_utf8_equal_the_whole_text(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Multi-byte characters arrive whole, whatever the tokens cut them into."""
    llm = make_llama(draft=tiny_files.identical)
    smile = {3 + byte: 9.0 for byte in "☺é".encode()}
    for seed in range(6):
        settings: dict[str, Any] = {"temperature": 1.0, "seed": seed, "logit_bias": smile}
        whole = llm.create_completion(PROMPT, max_tokens=40, **settings)["choices"][0]["text"]
        assert joined(stream(llm, max_tokens=40, **settings)) == whole
    assert any(ord(c) > 127 for c in whole)


@pytest.mark.parametrize("num", [0, 1, 5])
@pytest.mark.parametrize("echo", [False, True])
def test_logprobs(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, num: int, echo: bool) -> None:
    """The base class needs logits_all=True for it; ours does not, and allocates no such buffer."""
    pair = (make_llama(draft=tiny_files.good), make_base(logits_all=True))
    out, theirs = map(without_halves, completions(pair, max_tokens=12, logprobs=num, echo=echo))
    if echo:  # they count the space that the tokenizer puts before the text, and the text has not
        offsets = theirs["choices"][0]["logprobs"]["text_offset"]
        theirs["choices"][0]["logprobs"]["text_offset"] = [0, *(offset - 1 for offset in offsets[1:])]
    assert_same(out, theirs)
    logprobs = out["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) >= 12
    known = [p for p in logprobs["token_logprobs"] if p is not None]
    assert all(p < 0 for p in known)
    assert len(set(known)) > 5, "the accepted tokens' logprobs are their own"


def test_logprobs_are_the_same_for_every_gamma(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    results = [
        llm.create_completion(PROMPT, max_tokens=25, temperature=0.0, logprobs=3, num_draft_tokens=gamma)["choices"][0]
        for gamma in (0, 3, 8)
    ]
    assert_same(results[1], results[0])
    assert_same(results[2], results[0])


def test_stream_with_logprobs(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    ours, theirs = make_llama(draft=tiny_files.good), make_base(logits_all=True)
    chunks = [stream(llm, max_tokens=10, logprobs=2) for llm in (ours, theirs)]
    assert joined(chunks[0]) == joined(chunks[1])
    values = [
        [p for chunk in c if chunk["choices"][0]["logprobs"] for p in chunk["choices"][0]["logprobs"]["token_logprobs"]]
        for c in chunks
    ]
    assert len(values[0]) == 10
    assert values[0][1:] == pytest.approx(values[1][1:], abs=ROUNDING)


@pytest.mark.parametrize("max_tokens", [None, 0, -1, 5])
def test_chat(pair: Pair, max_tokens: int | None) -> None:
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": max_tokens}
    ours, theirs = (comparable(llm.create_chat_completion(MESSAGES, **settings)) for llm in pair)
    assert_same(ours, theirs)
    assert ours["choices"][0]["message"]["content"]


def test_chat_options_and_streams(pair: Pair) -> None:
    llm, base = pair
    settings: dict[str, Any] = {"temperature": 0.0, "max_tokens": 20}
    chunks = list(llm.create_chat_completion(MESSAGES, stream=True, num_draft_tokens=2, verify="rejection", **settings))
    assert llm.stats.verify == "rejection"
    assert len(llm.stats.num_accepted_tokens_per_pos) == 2
    theirs = list(base.create_chat_completion(MESSAGES, stream=True, **settings))
    assert [comparable(c)["choices"][0]["finish_reason"] for c in chunks][-1] == "length"
    texts = ["".join(c["choices"][0]["delta"].get("content") or "" for c in cs) for cs in (chunks, theirs)]
    assert texts[0] == texts[1] != ""
    llm.create_chat_completion(MESSAGES, num_draft_tokens=0, **settings)
    assert llm.stats.num_drafts == 0
    llm.create_chat_completion(MESSAGES, **settings)
    assert llm.stats.num_drafts > 0
    assert llm.num_draft_tokens == 4


def test_chat_stop_and_openai_v1(pair: Pair) -> None:
    whole = pair[0].create_chat_completion(MESSAGES, temperature=0.0, max_tokens=20)["choices"][0]["message"]["content"]
    for llm in pair:
        out = llm.create_chat_completion(MESSAGES, temperature=0.0, max_tokens=20, stop=[whole[4:7]])
        assert out["choices"][0]["message"]["content"] == whole[: whole.index(whole[4:7])]
        assert out["choices"][0]["finish_reason"] == "stop"


def test_stopping_criteria(pair: Pair) -> None:
    def after(n: int) -> llama_cpp.StoppingCriteriaList:
        start = len(pair[1].tokenize(PROMPT.encode()))
        return llama_cpp.StoppingCriteriaList([lambda tokens, logits: len(tokens) >= start + n])

    for n in (0, 1, 5):
        assert_same(*completions(pair, stopping_criteria=after(n)))


def test_generate_and_stopping_criteria(pair: Pair) -> None:
    llm, base = pair
    tokens = base.tokenize(PROMPT.encode())
    for n in (0, 1, 4, 9):
        criteria = llama_cpp.StoppingCriteriaList([lambda ids, logits, n=n: len(ids) == len(tokens) + n])
        texts = [list(one.generate(tokens, temp=0.0, stopping_criteria=criteria)) for one in (llm, base)]
        assert texts[0] == texts[1]
        assert len(texts[0]) == n


def test_max_tokens_of_the_whole_context(pair: Pair) -> None:
    complete(pair, max_tokens=None)
    complete(pair, max_tokens=0)
    complete(pair, max_tokens=-5)
    assert complete(pair, max_tokens=10_000)["usage"]["total_tokens"] == 512


def test_embedding_and_tokenizing_methods(make_llama: MakeLlama, make_base: MakeBase) -> None:
    ours, theirs = make_llama(), make_base()
    text = "the cat ☺"
    assert ours.tokenize(text.encode()) == theirs.tokenize(text.encode())
    assert ours.detokenize([280, 270]) == theirs.detokenize([280, 270])
    for name in ("n_ctx", "n_embd", "n_vocab", "token_eos", "token_bos", "token_nl"):
        assert getattr(ours, name)() == getattr(theirs, name)()


def test_eval_and_sample_of_the_base_class(pair: Pair) -> None:
    """The low-level methods still work on their own."""
    results = []
    for llm in pair:
        llm.reset()
        llm.eval(llm.tokenize(PROMPT.encode()))
        results.append(llm.sample(temp=0.0))
    assert results[0] == results[1]
