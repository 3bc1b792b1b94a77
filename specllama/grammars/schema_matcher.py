"""Says which of a model's tokens a JSON schema allows, by llguidance."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specllama import _core
from specllama.backend import libllama

from .follower import Follower
from .in_llguidance import in_llguidance
from .schema import LIMITS, reason_of
from .states import States

_OF_SCHEMA = '{"grammars":[{"name":"json_schema"'  # how llguidance's grammars of JSON schemas begin
_MOST_LONGER = 200  # the most tokens that `along` gives which begin with a text and are longer; each is tried
_UNSHOWN = b"\xff"  # precedes the name of a token that adds nothing to a text
_EVERY_BYTE = frozenset(bytes([byte]) for byte in range(256))
_MOST_ACROSS = 64  # the most kept results of `across`, each of which takes a search through all tokens
_MOST_FIRST = 16  # the most matchers of last grammars that are kept for copying: making one takes longer


class SchemaVocabulary:
    """A model's tokens, in the form that llguidance needs. Made once for a model, because that takes a while."""

    def __init__(self, vocab: int, tokenizer: _core.Tokenizer, eos: int) -> None:
        """Args: vocab: the vocabulary's address; tokenizer: llama.cpp's; eos: the file's token that ends a text."""
        pieces, ends = _core.token_pieces(libllama.API, vocab)
        if not ends:  # llguidance needs a token that ends a text
            pieces.append(b"\xff<end>")
        self._end = eos if eos in ends else ends[0] if ends else len(pieces) - 1
        self._pieces = pieces
        self._tokenizer = _tokenizer(tokenizer, pieces, self._end)
        self._llama_tokenizer = tokenizer  # kept alive, because llguidance's tokenizer calls it
        self.ends = ends
        """The tokens that end a text."""
        self.across = functools.lru_cache(_MOST_ACROSS)(self._across)
        """Finds the tokens that complete a mark and write more: see `_across`."""
        self.first = functools.lru_cache(_MOST_FIRST)(self._matcher)
        """Gives the matcher at the beginning of a grammar of llguidance's. Callers copy it, because it is kept."""

    def _matcher(self, matched: str) -> LLMatcher:
        # If only one text may follow, llguidance tokenizes this text alone, and accepts no other tokens for it. But
        # some models' tokenizers put a space before a text that stands alone, which is wrong within a tool call. With
        # such a model, our own tokenizer, which puts no spaces, is used for the grammars of calls.
        guesses = not matched.startswith(_OF_SCHEMA) and self._puts_spaces
        return LLMatcher(self._by_pieces if guesses else self._tokenizer, matched, log_level=0, limits=LIMITS)

    def _across(self, mark: bytes, before: bytes) -> dict[bytes, list[int]]:
        """The tokens that, after `before`, complete the mark and write more bytes behind the mark, by these bytes."""
        found: dict[bytes, list[int]] = {}
        for token in range(len(self._pieces)):
            rest = (before + self.name(token)).partition(mark)[2]
            if rest:
                found.setdefault(rest, []).append(token)
        return found

    def name(self, token: int) -> bytes:
        """The bytes that a token adds to a text; of a token that adds nothing, its name."""
        piece = self._pieces[token]
        return piece[1:] if piece[:1] == _UNSHOWN else piece

    def tokens_of(self, text: bytes) -> list[int]:
        """Tokens of a text, up to the first bytes for which there is no token."""
        return self._as_pieces(text) if text else []

    def free(self, without: Collection[int] = ()) -> bytes:
        """A mask that allows all tokens but those in `without`."""
        mask = bytearray(b"\xff" * (len(self._pieces) // 8 + 1))
        for token in without:
            mask[token // 8] &= ~(1 << token % 8)
        return bytes(mask)

    def along(self, text: bytes) -> list[int]:
        """The tokens that are a beginning of a text, and longer tokens (at most `_MOST_LONGER`) that begin with it."""
        return self._as_pieces.along(text)

    def writes(self, text: bytes) -> bool:
        """Whether there are tokens for a text. llguidance does not check this for a text that must come next."""
        return self._as_pieces.write(text)

    @functools.cached_property
    def has_all_bytes(self) -> bool:
        """Whether there is a token for each byte."""
        return _EVERY_BYTE.issubset(self._pieces)

    @functools.cached_property
    def _as_pieces(self) -> SchemaPieces:
        return SchemaPieces(self._pieces, self._end)

    @functools.cached_property
    def _by_pieces(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._as_pieces))

    @functools.cached_property
    def _puts_spaces(self) -> bool:
        if not self.has_all_bytes:  # then the model's tokenizer is not used (see `_tokenizer`)
            return False
        # Several texts are tried, because a vocabulary may have tokens for some of these texts without a space.
        return any(
            b"".join(self._pieces[token] for token in self._llama_tokenizer.tokens(text, False, False)) != text
            for text in (b"{", b'"', b"a", b"1")
        )

    def widened(self, mask: bytes, matcher: LLMatcher) -> bytes:
        """Widen a mask to all tokens that may come next. If only one text may, llguidance's mask has only one token.

        But a model may write this text in other tokens than a tokenizer would.
        """
        wide = bytearray(mask)
        for token in self.along(matcher.compute_ff_bytes()):
            if matcher.validate_tokens([token]) == 1:
                wide[token // 8] |= 1 << token % 8
        return bytes(wide)

    @in_llguidance()
    def matcher(self, *matched: str) -> SchemaMatcher:
        """A matcher at the beginning of a text that follows one of these grammars of llguidance's."""
        return SchemaMatcher(self, [self.first(each) for each in matched])

    def constraint(self, matched: str) -> _core.MaskConstraint:
        """The constraint for the native loop, at the beginning of a text that follows a grammar of llguidance's."""
        return _core.MaskConstraint(self.ends, self.matcher(matched))


class SchemaMatcher:
    """Says which tokens may come next in a text that follows one of several grammars.

    From call to call the text may grow, get shorter or end in other tokens, because drafted tokens may be rejected.

    Args:
        vocabulary: the tokens.
        first: for each grammar, a matcher at the beginning of the text.
    """

    def __init__(self, vocabulary: SchemaVocabulary, first: Sequence[LLMatcher]) -> None:
        self._vocabulary = vocabulary
        self._ends = frozenset(vocabulary.ends)
        self._first = first
        self._followers = [Follower(each) for each in first]
        self._states = States(dict.fromkeys(range(len(first)), 0), self._next)

    @in_llguidance()
    def may_begin(self, text: bytes) -> bool:
        """Whether the text may begin with these bytes."""
        tokens = self._vocabulary.tokens_of(text)
        is_whole = b"".join(map(self._vocabulary.name, tokens)) == text
        return is_whole and any(each.deep_copy().try_consume_tokens(tokens) == len(tokens) for each in self._first)

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int]:
        """Which tokens may follow the tokens generated so far.

        Returns:
            A bit for each token, the lowest bit of a byte first; whether the text may end; and, if only one text may
            come next, the token with which it begins, else -1.

        Raises:
            ValueError: no token may come next, or computing the answer would take too long.
        """
        followed = self._states.behind(recent)
        for number, count in followed.items():
            self._followers[number].back_to(count)
        matchers = [self._followers[number].matcher for number in followed]
        masks = [matcher.compute_bitmask() for matcher in matchers]
        may_end = [matcher.is_accepting() for matcher in matchers]
        forced = matchers[0].compute_ff_tokens() if len(matchers) == 1 else []
        found = [place for place, matcher in enumerate(matchers) if may_end[place] or self._goes_on(matcher)]
        if not found:
            reason = reason_of(matchers[0])
            raise ValueError(f"the JSON schema cannot be followed any further ({reason}): simplify it")
        if len(self._first) > 1:  # lets the only text of a grammar come in any tokens
            masks = [self._vocabulary.widened(masks[place], matchers[place]) for place in found]
        return _union(masks), any(may_end[place] for place in found), forced[0] if forced else -1

    def _goes_on(self, matcher: LLMatcher) -> bool:
        """Whether a text may come next that the vocabulary can write."""
        if matcher.is_error() or matcher.is_stopped():
            return False
        return self._vocabulary.has_all_bytes or self._vocabulary.writes(matcher.compute_ff_bytes())

    def _next(self, followed: dict[int, int], token: int, _: int) -> dict[int, int]:
        """For each grammar that the text still follows, how many of the text's tokens its matcher has followed.

        A token that ends a text is skipped. So is a token that no grammar allows: a drafted one, or the caller's own.
        """
        if token in self._ends:
            return followed
        for number, count in followed.items():
            self._followers[number].back_to(count)
        behind = {number: count + 1 for number, count in followed.items() if self._followers[number].follow(token)}
        return behind or followed


def _union(masks: Sequence[bytes]) -> bytes:
    if len(masks) == 1:
        return masks[0]
    union = 0
    for mask in masks:
        union |= int.from_bytes(mask, "little")
    return union.to_bytes(max(map(len, masks)), "little")


class SchemaPieces:
    """A tokenizer for llguidance over a list of tokens. It takes the longest token that fits.

    The vocabulary need not have tokens for every text. The model's own tokenizer may choose other tokens, but
    llguidance uses a tokenizer for guesses only.
    """

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        """Args: tokens: what each token adds to a text; end: the token that ends a text."""
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids = (end,)
        self._known = {piece: token for token, piece in enumerate(tokens) if piece[:1] != _UNSHOWN}
        self._longest = max(map(len, self._known), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text, up to the first bytes for which there is no token."""
        found = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._known), 0)
            if not size:
                break
            found.append(self._known[text[:size]])
            text = text[size:]
        return found

    def write(self, text: bytes) -> bool:
        """Whether there are tokens for a text. Texts with the name of a token in them are not checked: True."""
        places = {0}
        for place in range(len(text)):
            if place in places:
                sizes = range(1, min(self._longest, len(text) - place) + 1)
                places |= {place + size for size in sizes if text[place : place + size] in self._known}
        return len(text) in places or _UNSHOWN in text

    def along(self, text: bytes) -> list[int]:
        """See ``SchemaVocabulary.along``."""
        sizes = range(1, min(len(text), self._longest) + 1)
        found = [self._known[text[:size]] for size in sizes if text[:size] in self._known]
        first = bisect.bisect_right(self._sorted, text)
        last = bisect.bisect_left(self._sorted, text + b"\xff")
        return found + [self._known[piece] for piece in self._sorted[first : min(last, first + _MOST_LONGER)]]

    @functools.cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._known)


@in_llguidance()
def _tokenizer(tokenizer: _core.Tokenizer, pieces: list[bytes], end: int) -> LLTokenizer:
    if not _EVERY_BYTE.issubset(pieces):  # else llama_tokenize could end the process
        return LLTokenizer(TokenizerWrapper(SchemaPieces(pieces, end)))
    made: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # its stubs lack it
        tokens=pieces, vocab_ptr=tokenizer.address, tokenize_fptr=tokenizer.function, eos_token=end
    )
    return made
