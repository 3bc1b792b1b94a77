"""Texts without a place to cut: llama.cpp's tokenizers call themselves for every character of them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import llama_cpp
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tiny_models import byte_pair_vocabulary, llama_weights, write_llama

import specllama

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

OVERFLOWS = 30_000  # characters: more than a stack of 8 MiB holds
RECURSIVE = ["gpt-4o", "tekken", "deepseek-llm", "poro-chat", "exaone-moe", "default"]
OWN_CODE = ["llama-bpe", "qwen2", "gpt-2"]


def write_byte_level(path: Path, pre: str) -> None:
    """A tiny model in which nearly every byte is a token."""
    vocabulary = byte_pair_vocabulary(pre)
    write_llama(path, vocabulary, llama_weights(vocabulary, 1))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], specllama.Llama]]:
    """Opens tiny models by the name of how their tokenizer cuts texts."""
    folder, known = tmp_path_factory.mktemp("pre"), {}

    def open_one(pre: str) -> specllama.Llama:
        if pre not in known:
            path = folder / f"{pre}.gguf"
            write_byte_level(path, pre)
            known[pre] = specllama.Llama(str(path), n_ctx=64, n_threads=1, verbose=False, vocab_only=True)
        return known[pre]

    yield open_one
    for llm in known.values():
        llm.close()


@pytest.mark.parametrize("pre", RECURSIVE)
def test_one_long_word_has_tokens(opened: Callable[[str], specllama.Llama], pre: str) -> None:
    """Each byte is a token here, so that what is right is known."""
    llm = opened(pre)
    texts = [letter * OVERFLOWS for letter in ("a", "Z", "1", "-", " ", "\n", "é", "中")]
    if pre == "deepseek-llm":
        texts = [text for text in texts if not text.isspace()]
    if pre == "exaone-moe":
        texts.append("word " * (OVERFLOWS // 3))
    for text in texts:
        data = text.encode()
        assert len(llm.tokenize(data, add_bos=False)) == len(data)
        assert llm.engine.text(llm.engine.tokenize(text, add_bos=False)) == data


@pytest.mark.parametrize("pre", [*RECURSIVE, *OWN_CODE])
def test_what_one_character_takes_is_known(opened: Callable[[str], specllama.Llama], pre: str) -> None:
    """None where llama.cpp has code of its own: no text is too long there."""
    tokenizer = opened(pre).engine.model.tokenizer
    if pre in OWN_CODE:
        assert tokenizer.stack_per_character == 0
        assert tokenizer.stack_for(b"a" * 100_000) == 0
    else:
        assert 100 < tokenizer.stack_per_character < 4000
        assert tokenizer.stack_for(b"-1" * 50_000) == 100_000 * tokenizer.stack_per_character
        assert tokenizer.stack_for("没有空格的一行\n".encode() * 50_000) == 0


def test_a_word_that_no_stack_holds_is_refused(opened: Callable[[str], specllama.Llama]) -> None:
    for tokenize in (opened("gpt-4o").tokenize, opened("gpt-4o").tokenizer().tokenize):
        with pytest.raises(ValueError, match="3000000 characters at a stretch"):
            tokenize(b"-" * 3_000_000)
    assert len(opened("llama-bpe").tokenize(b"-" * 3_000_000, add_bos=False)) == 3_000_000


def test_what_takes_a_time_that_grows_with_the_square_is_refused(opened: Callable[[str], specllama.Llama]) -> None:
    with pytest.raises(ValueError, match="9000 digits in a row"):
        opened("superbpe").tokenize(b"1" * 9_000)
    with pytest.raises(ValueError, match="9000 spaces in a row"):
        opened("deepseek-llm").tokenize(b" " * 9_000 + b"1")


def test_a_long_text_of_words_needs_no_room(opened: Callable[[str], specllama.Llama]) -> None:
    text = b"Hello, my World 12! It's a test\n" * 20_000
    for pre in ("gpt-4o", "exaone-moe"):
        assert opened(pre).engine.model.tokenizer.stack_for(text) == 0
        assert len(opened(pre).tokenize(text, add_bos=False)) > 500_000


def test_threads_with_small_stacks(opened: Callable[[str], specllama.Llama]) -> None:
    """A word of 3,000 letters overflows these 256 KiB."""
    found: list[int] = []
    before = threading.stack_size(256 << 10)
    try:
        thread = threading.Thread(target=lambda: found.extend(opened("gpt-4o").tokenize(b"-" * 3_000, add_bos=False)))
        thread.start()
    finally:
        threading.stack_size(before)
    thread.join()
    assert len(found) == 3_000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("pre", [*RECURSIVE, *OWN_CODE])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    text=st.one_of(
        st.text(max_size=300),
        st.lists(
            st.tuples(
                st.sampled_from(["a", "B", "7", "-", " ", "\n", "\t", "é", "中", "'s", "\u00a0", "🦙", "th"]),
                st.integers(1, 400),
            ),
            max_size=8,
        ).map(lambda parts: "".join(unit * n for unit, n in parts)),
        st.binary(max_size=300),
    )
)
@example(text=b"\x80" * 500)
@example(text="a " * 600)
@example(text=" \x0b" * 600)
def test_tokens_are_those_of_llama_cpp(opened: Callable[[str], specllama.Llama], pre: str, text: str | bytes) -> None:
    llm = opened(pre)
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for special in (False, True):
        room = (llama_cpp.llama_token * (3 * len(data) + 2))()  # what is no UTF-8 becomes three bytes
        count = llama_cpp.llama_tokenize(llm._model.vocab, data, len(data), room, len(room), False, special)
        assert llm.tokenize(data, add_bos=False, special=special) == list(room[:count])


WAYS_IN = """
import specllama, sys
llm = specllama.Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False, embedding=True)
long = "-" * 30_000
few = dict(max_tokens=2, temperature=0.0)
chat, short = ([{"role": "user", "content": text}] for text in (long, "a"))
schema = {"type": "object", "properties": {"a": {"const": long}}, "required": ["a"]}
ways = [
    lambda: llm.tokenize(long.encode()), lambda: llm.engine.tokenize(long), lambda: llm.tokenizer().encode(long),
    lambda: llm.tokenizer_.encode(long), lambda: llm._model.tokenize(long.encode(), False, True),
    lambda: llm.create_completion(long, **few), lambda: llm.create_completion("a", suffix=long, **few),
    lambda: list(llm.create_completion(long, stream=True, **few)), lambda: list(llm.generate_tokens(long, **few)),
    lambda: llm.create_completion("a", stop=[long], **few), lambda: llm.create_chat_completion(chat, **few),
    lambda: llm.create_completion("a", dry_multiplier=1.0, dry_sequence_breakers=[long], **few),
    lambda: llm.create_completions([long], **few), lambda: llm.create_chat_completions([chat], **few),
    lambda: llm.create_chat_completion(short, response_format={"type": "json_object", "schema": schema}, **few),
    lambda: specllama.Conversation(llm).say(long, **few), lambda: llm.embed(long), lambda: llm.create_embedding([long]),
    lambda: specllama.Llama(sys.argv[1], draft_model="lookup", lookup_corpus=long, n_ctx=64, verbose=False),
]
for number, way in enumerate(ways):
    try:
        result = way()
    except (ValueError, RuntimeError) as error:
        print(number, type(error).__name__, str(error)[:60], flush=True)
    else:
        print(number, type(result).__name__, flush=True)
print("all", len(ways))
"""


def test_no_way_in_ends_the_process(tmp_path: Path) -> None:
    write_byte_level(tmp_path / "m.gguf", "gpt-4o")
    ended = subprocess.run(
        [sys.executable, "-c", WAYS_IN, str(tmp_path / "m.gguf")], capture_output=True, text=True, timeout=300
    )
    assert ended.returncode == 0, ended.stdout[-500:] + ended.stderr[-1500:]
    assert ended.stdout.splitlines()[-1].startswith("all ")


def test_an_image_chat_is_refused_before_its_library_overflows(
    opened: Callable[[str], specllama.Llama], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its library tokenizes on the stack of the caller."""
    llm = opened("gpt-4o")
    asked = []

    class Handler:
        clip_model_path = "mmproj.gguf"

        def __call__(self, **kwargs: object) -> str:
            asked.append(kwargs)
            return "answer"

    monkeypatch.setattr(llm, "chat_handler", Handler())
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 50_000}}
    for content in ("-" * 30_000, [{"type": "text", "text": "-" * 30_000}, picture]):
        with pytest.raises(ValueError, match="30000 characters with too few places"):
            llm.create_chat_completion([{"role": "user", "content": content}])
    assert not asked
    assert (
        llm.create_chat_completion([{"role": "user", "content": [{"type": "text", "text": "hi"}, picture]}]) == "answer"
    )
    assert len(asked) == 1
