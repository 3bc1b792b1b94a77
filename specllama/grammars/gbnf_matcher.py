"""Says which of a model's tokens a grammar in GBNF allows, by llguidance."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from specllama import _core
from specllama.backend import libllama

from .follower import Follower
from .gbnf_in_lark import in_lark
from .in_llguidance import in_llguidance
from .schema import reason_of
from .schema_matcher import SchemaPieces
from .states import States

_MOST_KEPT = 16  # the most grammars whose matchers, at the beginning of the text, are kept
_MOST_FORCED = 1000  # with more tokens in a mask (about), it is not checked whether all of them begin one text
_UNSHOWN = b"\xff"  # precedes the name of a token that adds nothing to a text
# Bytes that are often allowed, the most usual ones first. If two of these bytes are allowed, no token is forced, and no
# mask is needed to know it. If not, few tokens are allowed, and computing a mask is quick.
_FIRST = b' "ea1\n,.tcsnymopbdfgrw0-([{<}])=:ATI\xe2\xc3'
# Limits above the defaults: rules of single characters take many steps, each of less than a microsecond.
_LIMITS = LLParserLimits(
    max_items_in_row=50_000,
    initial_lexer_fuel=30_000_000,
    step_lexer_fuel=5_000_000,
    step_max_items=5_000_000,
    precompute_large_lexemes=False,
)


class GbnfVocabulary:
    """A model's tokens in the form that grammars need. Made once for a model, because that takes a while.

    As in llama.cpp, a grammar reads a special token as the text of its name.
    """

    def __init__(self, vocab: int) -> None:
        """Args: vocab: libllama's vocabulary."""
        pieces, self.ends = _core.token_pieces(libllama.API, vocab)
        special = {token for token, piece in enumerate(pieces) if piece[:1] == _UNSHOWN and len(piece) > 1}
        special.difference_update(self.ends)
        named = (piece[1:] if token in special else piece for token, piece in enumerate(pieces))
        self.tokens = [_UNSHOWN + piece if b"\0" in piece else piece for piece in named]
        if not self.ends:  # llguidance needs a token that ends a text
            self.tokens.append(_UNSHOWN + b"<end>")
        as_pieces = SchemaPieces(self.tokens, self.ends[0] if self.ends else len(self.tokens) - 1)
        self._tokenizer = LLTokenizer(TokenizerWrapper(as_pieces), slices=[])
        self.first = functools.lru_cache(_MOST_KEPT)(self._first)

    @in_llguidance()
    def _first(self, text: str, root: str) -> LLMatcher:
        """Make the matcher at the beginning of a grammar. Callers copy it, because it is kept."""
        matcher = LLMatcher(self._tokenizer, in_lark(text, root, self._named), log_level=0, limits=_LIMITS)
        if matcher.is_error():
            raise ValueError(f"llguidance cannot follow this grammar ({reason_of(matcher)}): simplify it")
        return matcher

    def _named(self, name: str) -> int:
        if name.encode() not in self._tokens_by_name:
            raise ValueError(f"the grammar names a token {name!r:.100}, which the model does not have")
        return self._tokens_by_name[name.encode()]

    @functools.cached_property
    def _tokens_by_name(self) -> dict[bytes, int]:
        return {piece: token for token, piece in enumerate(self.tokens)}

    @functools.cached_property
    def probes(self) -> list[int]:
        """The tokens of single bytes in `_FIRST`, which texts often go on with."""
        single = {piece: token for token, piece in enumerate(self.tokens) if len(piece) == 1}
        return [single[piece] for piece in (bytes([byte]) for byte in _FIRST) if piece in single]

    @in_llguidance()
    def constraint(self, text: str, root: str) -> _core.MaskConstraint:
        """The constraint at the beginning of a grammar.

        Raises:
            ValueError: the text is no GBNF, or llguidance cannot follow the grammar.
        """
        matcher = GbnfMatcher(self, self.first(text, root))
        return _core.MaskConstraint(self.ends, matcher, matcher.allowed, self.probes)


class GbnfMatcher:
    """Says which tokens may come next in a text that follows a grammar.

    From call to call the text may grow, get shorter or end in other tokens, because drafted tokens may be rejected.

    Args:
        vocabulary: the tokens.
        first: the matcher at the beginning of the grammar.
    """

    def __init__(self, vocabulary: GbnfVocabulary, first: LLMatcher) -> None:
        self._vocabulary = vocabulary
        self._ends = frozenset(vocabulary.ends)
        self._follower = Follower(first)
        self._states = States(0, self._next)

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int]:
        """Which tokens may follow the tokens generated so far.

        Returns:
            A bit for each token, the lowest bit of a byte first; whether the text may end; and, if only one text may
            come next, the token with which it begins, else -1.

        Raises:
            ValueError: computing the answer would take too long.
        """
        matcher = self._behind(recent)
        mask, may_end = matcher.compute_bitmask(), matcher.is_accepting()
        self._check(matcher)
        return mask, may_end, -1 if may_end else self._only_text(mask)

    @in_llguidance()
    def allowed(self, recent: npt.NDArray[np.intc], tokens: Sequence[int]) -> bytes:
        """For each token in `tokens`, 1 if it may follow the tokens generated so far, else 0.

        Raises:
            ValueError: computing the answer would take too long.
        """
        matcher = self._behind(recent)
        ends, may_end, validate = self._ends, matcher.is_accepting(), matcher.validate_tokens
        found = bytes([may_end if token in ends else validate([token]) for token in tokens])
        self._check(matcher)
        return found

    def _behind(self, recent: npt.NDArray[np.intc]) -> LLMatcher:
        self._follower.back_to(self._states.behind(recent))
        return self._follower.matcher

    def _next(self, count: int, token: int, _: int) -> int:
        """How many tokens are followed, with this token. Tokens that are not allowed, or end a text, are skipped."""
        if token in self._ends or not 0 <= token < len(self._vocabulary.tokens):
            return count
        self._follower.back_to(count)
        return count + self._follower.follow(token)

    def _only_text(self, mask: bytes) -> int:
        """If only one text may come next, the token that writes most of it; -1 if several texts may."""
        words = np.frombuffer(mask, np.uint32)
        some = np.flatnonzero(words)
        if len(some) > _MOST_FORCED:
            return -1
        place, bit = np.nonzero(np.unpackbits(words[some, None].view(np.uint8), axis=1, bitorder="little"))
        tokens = 32 * some[place] + bit
        pieces = [(self._vocabulary.tokens[token], token) for token in tokens.tolist() if token not in self._ends]
        # Of two tokens with the same text, the later one is the usual one: tokens for single bytes come first.
        text, longest = max(pieces, key=lambda one: (len(one[0]), one[1]), default=(b"", -1))
        return int(longest) if all(text.startswith(piece) for piece, _ in pieces) else -1

    def _check(self, matcher: LLMatcher) -> None:
        if matcher.is_error() and reason_of(matcher) != "no answer would be valid":
            raise ValueError(f"the grammar cannot be followed any further ({reason_of(matcher)}): simplify it")
