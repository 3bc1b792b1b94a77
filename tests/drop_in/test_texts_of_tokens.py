"""One text of the same tokens everywhere: of answers, streams, stops, log-probabilities, echo and ``detokenize``."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import hypothesis.strategies as st
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from hypothesis import given, settings
from llama_cpp.llama_tokenizer import LlamaHFTokenizer

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

MARK, TOOL = "<|mark|>", "<tool>"
LONG = (32, 33, 64, 300)


def with_tokens(vocabulary: tiny.Vocabulary, space: str) -> tiny.Vocabulary:
    """Behind its own tokens: long ones, two control tokens and one that the user has defined."""
    more = [*(space * size for size in LONG), *("-" * size for size in LONG), "é" * 20, MARK, "<|other|>", TOOL]
    kinds = [gguf.TokenType.NORMAL] * (len(more) - 3) + [gguf.TokenType.CONTROL] * 2 + [gguf.TokenType.USER_DEFINED]
    return dataclasses.replace(
        vocabulary,
        tokens=[*vocabulary.tokens, *more],
        scores=[*vocabulary.scores, *[-1000.0] * len(more)],
        types=[*vocabulary.types, *map(int, kinds)],
    )


def vocabularies() -> dict[str, tiny.Vocabulary]:
    """Of SentencePiece, and as GPT-2's, where é is two letters of bytes."""
    byte_pairs = tiny.byte_pair_vocabulary()
    letters = dataclasses.replace(byte_pairs, tokens=[*byte_pairs.tokens, "Ã©Ã"], scores=[*byte_pairs.scores, 0.0])
    letters = dataclasses.replace(letters, types=[*letters.types, 1])
    return {
        "spm": with_tokens(tiny.word_vocabulary(), "▁"),
        "bpe": with_tokens(dataclasses.replace(letters, adds_bos=False), "Ġ"),
    }


@pytest.fixture(scope="module", params=["spm", "bpe"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    vocabulary = vocabularies()[request.param]
    weights = tiny.llama_weights(vocabulary, seed=1, flat_bias=True)
    return tiny.write_llama(tmp_path_factory.mktemp("texts") / f"{request.param}.gguf", vocabulary, weights)


OPTIONS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False}


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[specllama.Llama]:
    with specllama.Llama(str(path), **OPTIONS) as opened:
        yield opened


def saying(tokens: Sequence[int]) -> dict[str, Any]:
    """Has an answer be these tokens, and no more."""
    start: list[int] = []

    def forced(ids: Any, scores: Any) -> Any:
        start[:] = start or [len(ids)]
        found = np.full_like(scores, -np.inf)
        found[tokens[len(ids) - start[0]]] = 0.0
        return found

    processors = llama_cpp.LogitsProcessorList([forced])
    return {"logits_processor": processors, "max_tokens": len(tokens), "temperature": 0.0}


def completed(llm: specllama.Llama, prompt: Any, tokens: Sequence[int], **more: Any) -> Any:
    """The choice of a completion that is these tokens."""
    return llm.create_completion(prompt, **saying(tokens), **more)["choices"][0]


def streamed(llm: specllama.Llama, prompt: Any, tokens: Sequence[int], **more: Any) -> list[Any]:
    return [chunk["choices"][0] for chunk in llm.create_completion(prompt, stream=True, **saying(tokens), **more)]


def merged(chunks: list[Any]) -> dict[str, Any] | None:
    """The log-probabilities of a stream."""
    found = [chunk["logprobs"] for chunk in chunks if chunk["logprobs"]]
    return {name: [item for each in found for item in each[name]] for name in found[0]} if found else None


def token_of(llm: specllama.Llama, text: str) -> int:
    """The last with this text: not the byte."""
    return max(token for token in range(llm.n_vocab()) if llm.engine.text([token], special=True) == text.encode())


def tokens_of(llm: specllama.Llama, data: st.DataObject) -> list[int]:
    """Any tokens but those that end a text, often neighbours of a special or a long one.

    BOS does not come first: as in the base class, an answer that begins with it loses the space behind it.
    """
    ends = llm.engine.model.ends_text
    known = [token for token in range(llm.n_vocab()) if not ends(token)]
    some = st.sampled_from(known[-13:]) | st.sampled_from(known)
    letters = st.sampled_from(["é", "☺", "ab", "🦙"]).map(lambda text: llm.tokenize(text.encode(), add_bos=False))
    parts = data.draw(st.lists(some.map(lambda token: [token]) | letters, min_size=1, max_size=12))
    tokens = [token for part in parts for token in part if not ends(token)]
    bos = llm.token_bos()
    return list(itertools.dropwhile(lambda token: token == bos, tokens)) or [known[-1]]


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=pytest.mark.long)])
def test_one_text_of_the_same_tokens(llm: specllama.Llama, examples: int) -> None:
    @settings(max_examples=examples, deadline=None)
    @given(data=st.data())
    def one(data: st.DataObject) -> None:
        tokens = tokens_of(llm, data)
        whole, named = llm.engine.text(tokens), llm.engine.text(tokens, special=True)
        stops = []
        if data.draw(st.booleans()):
            text = data.draw(st.sampled_from([whole, named])).decode(errors="ignore")
            first = data.draw(st.integers(0, len(text)))
            stops = [text[first : first + data.draw(st.integers(1, 9))]]
        choice = completed(llm, "the", tokens, stop=stops, logprobs=1)
        ends = [stop.encode() for stop in stops if stop]
        before = min((whole.partition(end)[0] for end in ends), default=whole, key=len)
        if named == whole or not ends:
            assert choice["text"] == before.decode(errors="ignore")
            assert choice["finish_reason"] == ("stop" if before != whole else "length")
        else:  # special tokens' names may end it sooner
            assert before.decode(errors="ignore").startswith(choice["text"])
            assert choice["finish_reason"] == "stop" or before == whole
        chunks = streamed(llm, "the", tokens, stop=stops, logprobs=1)
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        assert chunks[-1]["finish_reason"] == choice["finish_reason"]
        yielded = list(llm.generate_tokens("the", stop=stops, **saying(tokens)))
        assert "".join(token.text for token in yielded) == choice["text"]
        check_logprobs(llm, [token.id for token in yielded], choice)
        found = merged(chunks)
        assert found is not None
        assert found["tokens"] == choice["logprobs"]["tokens"]
        assert found["text_offset"] == choice["logprobs"]["text_offset"]

    one()


def check_logprobs(llm: specllama.Llama, tokens: list[int], choice: Any) -> None:
    """Each token has its name, and its place in the text."""
    names, offsets = choice["logprobs"]["tokens"], choice["logprobs"]["text_offset"]
    assert len(names) == len(offsets) == len(tokens)
    for number, (token, name, offset) in enumerate(zip(tokens, names, offsets, strict=True)):
        before = len(llm.engine.text(tokens[:number]).decode(errors="ignore"))
        assert offset == len("the") + min(before, len(choice["text"]))
        data = llm.engine.text([token]) or llm.engine.text([token], special=True)
        try:
            assert name == data.decode()
        except UnicodeDecodeError:
            assert name == "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chats_log_probabilities_have_the_bytes_of_its_text(llm: specllama.Llama, stream: bool) -> None:
    """In OpenAI's form: with numbers, and half a character named by its bytes."""
    smile = llm.tokenize("☺".encode(), add_bos=False)[-3:]
    tokens = [*smile, token_of(llm, "-" * 33), token_of(llm, MARK), smile[0], *smile]
    messages: Any = [{"role": "user", "content": "a"}]
    asked: dict[str, Any] = {"logprobs": True, "top_logprobs": 2, **saying(tokens)}
    answer: Any = llm.create_chat_completion(messages, stream=stream, **asked)
    choices = [chunk["choices"][0] for chunk in answer] if stream else answer["choices"]
    entries = [entry for choice in choices for entry in (choice["logprobs"] or {"content": []})["content"]]
    parts = [choice["delta"].get("content", "") if stream else choice["message"]["content"] for choice in choices]
    assert len(entries) == len(tokens)
    data = b"".join(bytes(entry["bytes"]) for entry in entries)
    assert data == llm.engine.text(tokens)
    assert "".join(parts) == data.decode(errors="ignore") == "☺" + "-" * 33 + "☺"
    assert [entry["token"] for entry in entries[3:6]] == ["-" * 33, MARK, "\\xe2"]
    assert all(isinstance(top["bytes"], list) for entry in entries for top in entry["top_logprobs"])


def test_chats_of_several_texts_have_the_bytes(llm: specllama.Llama) -> None:
    messages: Any = [{"role": "user", "content": "a"}]
    [outcome] = llm.create_chat_completions(
        [messages], logprobs=True, top_logprobs=0, **saying([token_of(llm, "-" * 64)])
    )
    [entry] = outcome.response["choices"][0]["logprobs"]["content"] if outcome.response else []
    assert entry["token"] == outcome.text == "-" * 64 and entry["bytes"] == list(b"-" * 64)


# detokenize


def test_detokenize_is_the_text_of_all_tokens(llm: specllama.Llama, path: Path) -> None:
    """As llama_cpp's, but where that gives up: at 32 bytes."""
    base = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    assert len(base.detokenize([token_of(llm, "-" * 33)])) == 0, "mended there: ours can be the base class's"
    for detokenize in (llm.detokenize, llm.tokenizer().detokenize):
        for token in range(llm.n_vocab()):
            for special in (False, True):
                text = llm.engine.text([token], special=special)
                expected = text[1:] if token == llm.token_bos() and text[:1] == b" " else text
                assert detokenize([token], special=special) == expected
                assert detokenize([token], prev_tokens=[5, 6], special=special) == expected
                if len(text) <= 32:
                    assert base.detokenize([token], special=special) == expected
    bos, long = llm.token_bos(), token_of(llm, " " * 64)
    assert llm.detokenize([bos, long]) == b" " * 63
    assert llm.detokenize([5, bos, long]) == llm.engine.text([5]) + b" " * 64
    assert llm.tokenizer().decode([long, long]) == " " * 128
    base.close()


# Stops


def test_a_stop_in_a_long_token(llm: specllama.Llama) -> None:
    choice = completed(llm, "the", [token_of(llm, "-" * 64)] * 3, stop=["--"])
    assert choice["finish_reason"] == "stop" and choice["text"] == ""


@pytest.mark.parametrize(
    ("stop", "said", "text"),
    [
        (MARK, ["a", MARK, "b"], "a"),
        (f"b{MARK}", ["a", "b", MARK, "c"], "a"),
        (f"{MARK}b", ["a", MARK, "c", MARK, "b", "d"], "ac"),
        (f"{MARK}{MARK}", ["a", MARK, "b", MARK, MARK, "c"], "ab"),
        (f"b{MARK}c", ["b", "a", "b", MARK, "c", "d"], "ba"),
        ("ab", ["a", MARK, "b", "c"], ""),
        ("mark", ["a", MARK, "b"], None),
        (f"{MARK[1:]}b", ["a", MARK, "b", "c"], None),
        ("b<", ["a", "b", MARK, "c"], None),
        (TOOL, ["a", TOOL, "b"], "a"),
    ],
)
def test_a_stop_with_a_special_tokens_name(llm: specllama.Llama, stop: str, said: list[str], text: str | None) -> None:
    """Names are not shown. They end a text where a stop string has them, as a whole."""
    tokens = [token_of(llm, name) for name in said]
    choice = completed(llm, "the", tokens, stop=[stop])
    whole = llm.engine.text(tokens).decode()
    assert choice["text"] == (whole if text is None else text)
    assert choice["finish_reason"] == ("length" if text is None else "stop")
    chunks = streamed(llm, "the", tokens, stop=[stop])
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert chunks[-1]["finish_reason"] == choice["finish_reason"]


def test_a_conversation_goes_on_without_the_special_token_that_ended_an_answer(llm: specllama.Llama) -> None:
    talk = specllama.Conversation(llm, stop=[MARK])
    tokens = [token_of(llm, name) for name in ("a", "b", MARK)]
    assert "".join(token.text for token in talk.say("a", **saying(tokens))) == "ab"
    assert talk.messages[-1]["content"] == "ab"
    list(talk.say("b", **saying(tokens)))
    seen = llm.input_ids[: llm.stats.num_prompt_tokens].tolist()
    assert token_of(llm, MARK) not in seen
    assert seen[-1:] != [], "the second turn was read"


class Transformers:
    """Stands for a tokenizer of Hugging Face's: its texts are the model's, but that half a character is U+FFFD."""

    def __init__(self, llama: specllama.Llama) -> None:
        self._engine = llama.engine

    def encode(self, text: str, add_special_tokens: bool) -> list[int]:
        return self._engine.tokenize(text, add_bos=False)

    def decode(self, tokens: list[int], skip_special_tokens: bool) -> str:
        return self._engine.text(tokens, special=not skip_special_tokens).decode("utf-8", errors="replace")


def test_another_tokenizer(llm: specllama.Llama, path: Path) -> None:
    """It says the text; names of special tokens end it all the same."""
    with specllama.Llama(str(path), tokenizer=LlamaHFTokenizer(Transformers(llm)), **OPTIONS) as other:
        smile = llm.tokenize("☺".encode(), add_bos=False)[-3:]
        tokens = [*smile, token_of(llm, "-" * 33), token_of(llm, MARK), token_of(llm, "b"), token_of(llm, "<|other|>")]
        for stop in ([], [MARK], ["b<|other|>"], ["-<|other|>"], ["-"]):
            asked: dict[str, Any] = {"stop": stop, "logprobs": 0, "echo": True}
            ours = completed(llm, "the", tokens, **asked)
            choice = completed(other, "the", tokens, **asked)
            assert choice["text"] == ours["text"] and choice["finish_reason"] == ours["finish_reason"]
            assert choice["logprobs"]["tokens"] == ours["logprobs"]["tokens"]
            offsets = choice["logprobs"]["text_offset"]
            assert offsets == sorted(offsets) and max(offsets) <= len(choice["text"])
            chunks = streamed(other, "the", tokens, **asked)
            assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
        assert other.detokenize(tokens[3:5], special=True) == b"-" * 33 + MARK.encode()
        assert other.tokenizer().detokenize(tokens) == llm.engine.text(tokens), "the model's own"


# Echo


@pytest.mark.parametrize("logprobs", [None, 1])
@pytest.mark.parametrize("prompt", ["the cat", " the", "a🦙bc", "", MARK + "a cat" + MARK + " b", "a▁b\n c", "tokens"])
def test_echo_is_the_same_on_every_path(llm: specllama.Llama, prompt: str, logprobs: int | None) -> None:
    given_prompt: Any = prompt
    if prompt == "tokens":
        given_prompt = [
            5,
            token_of(llm, MARK),
            token_of(llm, "-" * 33),
            *llm.tokenize("🦙".encode(), add_bos=False)[:-1],
        ]
    if prompt == "" and not llm._model.add_bos_token():
        pytest.skip("nothing to begin with")
    tokens = [token_of(llm, "a"), token_of(llm, MARK), token_of(llm, "-" * 33)]
    asked: dict[str, Any] = {"echo": True, "logprobs": logprobs}
    choice = completed(llm, given_prompt, tokens, **asked)
    text = prompt if prompt != "tokens" else llm.detokenize(given_prompt, special=True).decode(errors="ignore")
    assert choice["text"] == text + "a" + "-" * 33
    chunks = streamed(llm, given_prompt, tokens, **asked)
    assert "".join(chunk["text"] for chunk in chunks) == choice["text"]
    assert chunks[0]["text"] == (text if text or logprobs is not None else "a")  # BOS has a log-probability
    yielded = list(llm.generate_tokens(given_prompt, **asked, **saying(tokens)))
    assert "".join(token.text for token in yielded) == choice["text"]
    assert [token.id for token in yielded if token.origin != "prompt"] == tokens
    [outcome] = llm.create_completions([given_prompt], **asked, **saying(tokens))
    assert outcome.text == choice["text"]
    found = merged(chunks)
    if logprobs is None:
        assert choice["logprobs"] is found is None
        return
    assert found is not None and found["text_offset"] == choice["logprobs"]["text_offset"]
    assert found["token_logprobs"] == pytest.approx(choice["logprobs"]["token_logprobs"], abs=1e-4)
    assert [token.logprob for token in yielded] == pytest.approx(found["token_logprobs"], abs=1e-4)
    offsets = found["text_offset"]
    assert offsets == sorted(offsets) and offsets[-3:] == [len(text), len(text) + 1, len(text) + 1]
    for name, offset in zip(found["tokens"][:-3], offsets[:-3], strict=True):
        if "bytes:" not in name and "▁" not in prompt and (name in text or name.strip() in text):
            assert choice["text"].startswith((name, name.removeprefix(" ")), offset) or prompt == "tokens"


def test_offsets_of_a_prompt_in_characters(make_llama: MakeLlama) -> None:
    """Of a character of four tokens each is where it begins."""
    llm = make_llama()
    logprobs = llm.create_completion("a🦙bc", echo=True, logprobs=1, max_tokens=1)["choices"][0]["logprobs"]
    assert logprobs["text_offset"][:7] == [0, 1, 1, 1, 1, 2, 3]
    assert logprobs["tokens"][1:6] == ["bytes:\\xf0", "bytes:\\x9f", "bytes:\\xa6", "bytes:\\x99", "b"]


def test_what_a_prompt_of_tokens_has_before_its_first_word_counts(make_llama: MakeLlama) -> None:
    """A BOS that the caller gave is a token like any other: what comes behind it has a probability."""
    llm = make_llama()
    ids = llm.tokenize(b"the cat", add_bos=False)
    asked: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0.0}
    given_bos = llm.create_completion([llm.token_bos(), *ids], **asked)["choices"][0]["logprobs"]
    assert len(given_bos["tokens"]) == 1 + len(ids) + 1
    assert given_bos["token_logprobs"][0] is None and all(given_bos["token_logprobs"][1:])
    of_text = llm.create_completion("the cat", **asked)["choices"][0]["logprobs"]
    assert len(of_text["tokens"]) == len(ids) + 1 and of_text["token_logprobs"][0] is None
    assert given_bos["token_logprobs"][2:] == pytest.approx(of_text["token_logprobs"][1:], abs=1e-4)


@pytest.mark.filterwarnings("ignore:Detected duplicate leading")
@pytest.mark.parametrize("is_added", [False, True])
def test_a_text_is_repeated_without_the_bos_that_it_did_not_have(
    make_llama: MakeLlama, tmp_path: Path, is_added: bool
) -> None:
    """llama_cpp leaves out every first BOS, also one that stands in the text."""
    vocabulary = dataclasses.replace(tiny.byte_pair_vocabulary(), adds_bos=is_added)
    llm = make_llama(tiny.write_llama(tmp_path / "bos.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1)))
    bos = llm.engine.text([llm.token_bos()], special=True).decode()
    asked: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 1, "logit_bias": {0: 100.0}}  # a letter
    own = llm.tokenize(f"{bos}the cat".encode(), add_bos=False, special=True)
    prompts: list[Any] = [f"{bos}the cat", bos, [llm.token_bos()], own, [*own, llm.token_bos()]]
    for prompt in prompts:
        response = llm.create_completion(prompt, **asked)
        choice, found = response["choices"][0], response["choices"][0]["logprobs"]
        num_added = is_added and isinstance(prompt, str)
        assert len(found["tokens"]) == response["usage"]["total_tokens"] - num_added
        assert found["tokens"][0] == bos
        assert found["token_logprobs"][0] is None and None not in found["token_logprobs"][1:]
        assert choice["text"] == "".join(found["tokens"])
        lengths = map(len, found["tokens"][:-1])
        assert found["text_offset"] == list(itertools.accumulate(lengths, initial=0))
        chunks = [chunk["choices"][0] for chunk in llm.create_completion(prompt, stream=True, **asked)]
        assert "".join(chunk["text"] for chunk in chunks) == choice["text"]


# Metadata


@pytest.mark.parametrize("size", [1022, 1023, 1024, 1025, 2048, 5000])
def test_metadata_are_as_long_as_they_are(make_llama: MakeLlama, tmp_path: Path, size: int) -> None:
    """llama_cpp's own reading loses the last byte of 1024, or half a character with all the others."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    template = "{#" + "é" * ((size - 4 - len(template)) // 2) + "#}" + template
    template += "x" * (size - len(template.encode()))
    vocabulary = dataclasses.replace(tiny.word_vocabulary(), chat_template=template)
    weights = tiny.llama_weights(vocabulary, seed=1)
    llm = make_llama(tiny.write_llama(tmp_path / "long.gguf", vocabulary, weights))
    assert llm.metadata["tokenizer.chat_template"] == template
    assert llm.engine.model.settings.metadata == llm.metadata
    llm.create_chat_completion([{"role": "user", "content": "the cat"}], max_tokens=1)
    seen = llm.detokenize(llm.input_ids[: llm.stats.num_prompt_tokens].tolist())
    assert seen.decode().startswith(" the cat")


def test_metadata_are_the_base_classs(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    assert llm.metadata == make_base().metadata
    llm.metadata = {"a": "b"}
    assert llm.metadata == {"a": "b"}, "it can be assigned, as there"
