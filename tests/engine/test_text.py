"""Text out of tokens: piece by piece it is what the whole is, which is what the base class makes of the same tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from specllama.drop_in.lending import lent
from specllama.drop_in.text import StopString, TextAssembler, text_of

if TYPE_CHECKING:
    from conftest import TinyFiles

SMILE = "☺".encode()


@pytest.fixture(scope="module")
def base(tiny_files: TinyFiles) -> Iterator[llama_cpp.Llama]:
    """A vocabulary, and the base class's way of reading it."""
    llm = llama_cpp.Llama(str(tiny_files.target), vocab_only=True, verbose=False)
    yield llm
    llm.close()


def byte_tokens(text: bytes) -> list[int]:
    return [3 + byte for byte in text]


# Words, control tokens, single bytes, and the bytes of characters whole and in part.
TOKENS = st.lists(
    st.one_of(
        st.integers(0, len(tiny.word_vocabulary()) - 1).map(lambda token: [token]),
        st.sampled_from([[1], [259], [280], byte_tokens(SMILE), byte_tokens(SMILE[:2]), byte_tokens("é".encode())]),
    ),
    max_size=25,
).map(lambda parts: [token for part in parts for token in part])
STOPS = st.lists(st.one_of(st.text("abt ☺é", min_size=1, max_size=4), st.just("tttttttt" * 9)), max_size=3)


def cut(text: bytes, stops: list[bytes]) -> bytes:
    """What comes before the first stop string."""
    return min((text[:at] for stop in stops if (at := text.find(stop)) >= 0), key=len, default=text)


@settings(max_examples=400, deadline=None)
@given(tokens=TOKENS, stops=STOPS, at_start=st.booleans(), data=st.data())
def test_pieces_are_the_base_classs_text(
    base: llama_cpp.Llama, tokens: list[int], stops: list[str], at_start: bool, data: st.DataObject
) -> None:
    """The base class detokenises [BOS] and the answer behind an empty prompt, else the answer."""
    leading = [base.token_bos()] if at_start else []
    whole = base.detokenize([*leading, *tokens])
    if whole and data.draw(st.booleans()):  # a stop string that does occur
        text = whole.decode(errors="ignore")
        first = data.draw(st.integers(0, max(0, len(text) - 1)))
        stops = [*stops, text[first : first + 3]] if text else stops
    encoded = [stop.encode() for stop in stops]
    assembler = TextAssembler(lent(base), encoded, at_start=at_start)
    shown, covered, stopped = "", 0, False
    for number, token in enumerate(tokens, 1):
        stopped = assembler.add(token)
        assert stopped == any(stop in base.detokenize([*leading, *tokens[:number]]) for stop in encoded)
        if stopped:
            break
        for text, first, count in assembler.take(final=False):
            assert first == covered
            shown, covered = shown + text, covered + count
    final = cut(base.detokenize([*leading, *tokens[: assembler.num_tokens]]), encoded).decode(errors="ignore")
    assert final.startswith(shown), "nothing was shown that had to be taken back"
    for text, first, count in assembler.take(final=True):
        assert first == covered
        shown, covered = shown + text, covered + count
    assert shown == assembler.text() == final
    assert covered == assembler.num_taken


@settings(max_examples=300)
@given(
    stop=st.text("ab", min_size=1, max_size=6).map(str.encode),
    pieces=st.lists(st.text("abc", max_size=5).map(str.encode)),
)
def test_a_stop_string_is_found_where_it_first_ends(stop: bytes, pieces: list[bytes]) -> None:
    watched, text = StopString(stop), b""
    for piece in pieces:
        end = watched.find_end(piece)
        at = (text + piece).find(stop)
        assert (end >= 0) == (at >= 0)
        if at >= 0:
            assert len(text) + end == at + len(stop)
            return
        text += piece
        longest = max(n for n in range(len(stop)) if text.endswith(stop[:n]))
        assert watched.num_matched == longest


def test_no_token_is_asked_for_twice(base: llama_cpp.Llama, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of llama.cpp, which takes a while: neither as a text grows nor by log-probabilities, nor by later texts."""
    asked: list[int] = []
    real = llama_cpp.llama_token_to_piece

    def counted(vocab: Any, token: int, *others: Any) -> int:
        asked.append(token)
        return int(real(vocab, token, *others))

    monkeypatch.setattr(llama_cpp, "llama_token_to_piece", counted)
    llm = llama_cpp.Llama(base.model_path, vocab_only=True, verbose=False)
    model = lent(llm)
    stops: list[list[bytes]] = [[], [b"zzz", b"t" * 400]]
    for each in stops:
        assembler = TextAssembler(model, each)
        for number in range(3000):
            assembler.add(260 + number % 50)
            list(assembler.take(final=False))
        assert assembler.num_tokens == 3000
        text_of(model, assembler.tokens)
    assert sorted(asked) == list(range(260, 310))
    llm.close()


class Contextual:
    """A tokenizer like Hugging Face's: it shows half a character as U+FFFD, and rewrites what came before."""

    bos = -1

    def piece(self, token: int, *, special: bool = False) -> bytes:
        return bytes([token])

    def detokenize(self, tokens: list[int]) -> bytes:
        whole = bytes(tokens).decode("utf-8", errors="replace")
        return whole.replace("a b", "a'b").encode()


@settings(max_examples=200)
@given(
    text=st.text("ab c☺é", max_size=12),
    stops=st.lists(st.text("bc☺'", min_size=1, max_size=2).map(str.encode), max_size=2),
)
def test_other_tokenizers_are_asked_for_the_whole(text: str, stops: list[bytes]) -> None:
    llama = Contextual()
    assembler = TextAssembler(llama, stops, whole=llama.detokenize)
    tokens = list(text.encode())
    for token in tokens:
        if assembler.add(token):
            break
        list(assembler.take(final=False))
    whole = llama.detokenize(tokens[: assembler.num_tokens])
    assert assembler.text() == cut(whole, stops).decode(errors="ignore")


@given(text=st.text("xy☺é", max_size=12))
def test_half_a_character_is_not_shown_by_other_tokenizers(text: str) -> None:
    llama = Contextual()
    assembler = TextAssembler(llama, [], whole=llama.detokenize)
    shown = ""
    for token in text.encode():
        assembler.add(token)
        shown += "".join(piece for piece, _, _ in assembler.take(final=False))
        assert text.startswith(shown)
    assert shown + "".join(piece for piece, _, _ in assembler.take(final=True)) == text
