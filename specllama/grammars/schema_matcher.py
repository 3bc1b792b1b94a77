"""Says which of a model's tokens a JSON schema allows, by llguidance."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specllama import _core
from specllama.backend import libllama

from .follower import Follower
from .in_llguidance import in_llguidance
from .schema import LIMITS, reason_of

_OF_SCHEMA = '{"grammars":[{"name":"json_schema"'  # how llguidance's own grammars of schemas begin
_MOST_LONGER = 200  # tokens that are longer than a text and begin with it; each is tried
_UNSHOWN = b"\xff"  # before the name of a token that adds nothing to a text
_EVERY_BYTE = frozenset(bytes([byte]) for byte in range(256))
_MOST_FIRST = 8  # matchers of the last schemas that are kept at their beginnings: copying one is faster than making one


class SchemaVocabulary:
    """A model's tokens, in the form that llguidance needs. It is made once for a model, because it takes a while."""

    def __init__(self, vocab: int, own: _core.Tokenizer, eos: int) -> None:
        """Args: vocab: libllama's vocabulary; own: its tokenizer; eos: the file's token that ends a text."""
        pieces, ends = _core.token_pieces(libllama.API, vocab)
        if not ends:  # llguidance needs one
            pieces.append(b"\xff<end>")
        self._end = eos if eos in ends else ends[0] if ends else len(pieces) - 1
        self._pieces = pieces
        self._tokenizer = _tokenizer(own, pieces, self._end)
        self._own = own  # kept alive, because the other tokenizer calls it
        self.ends = ends
        """The tokens that end a text."""
        self.first = functools.lru_cache(_MOST_FIRST)(self._matcher)
        """Makes a matcher of llguidance's grammar. It must be copied before it is used."""

    def _matcher(self, matched: str) -> LLMatcher:
        # If only one text may follow, llguidance tokenizes it alone, and accepts no other tokens for it. In calls of
        # tools such a text may follow a token of another kind, and some models' tokenizers put a space before it.
        guesses = not matched.startswith(_OF_SCHEMA) and self._puts_spaces
        return LLMatcher(self._by_pieces if guesses else self._tokenizer, matched, log_level=0, limits=LIMITS)

    def name(self, token: int) -> bytes:
        """What a token adds to a text. If it adds nothing, its name."""
        piece = self._pieces[token]
        return piece[1:] if piece[:1] == _UNSHOWN else piece

    def tokens_of(self, text: bytes) -> list[int]:
        """Tokens that give a text together. The end of the text is left out if no token has it."""
        return self._as_pieces(text) if text else []

    def along(self, text: bytes) -> list[int]:
        """The tokens that are a beginning of a text, and those that begin with it, unless these are too many."""
        return self._as_pieces.along(text)

    @functools.cached_property
    def _as_pieces(self) -> SchemaPieces:
        return SchemaPieces(self._pieces, self._end)

    @functools.cached_property
    def _by_pieces(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._as_pieces))

    @functools.cached_property
    def _puts_spaces(self) -> bool:
        if not _EVERY_BYTE.issubset(self._pieces):  # then the model's tokenizer is not used (see `_tokenizer`)
            return False
        # A space need not come before all of them: a vocabulary may have some of these texts as they are.
        return any(
            b"".join(self._pieces[token] for token in self._own.tokens(text, False, False)) != text
            for text in (b"{", b'"', b"a", b"1")
        )

    @in_llguidance()
    def matcher(self, matched: str) -> SchemaMatcher:
        """A matcher at the beginning of a schema, which is given as llguidance's grammar."""
        return SchemaMatcher(Follower(self.first(matched)), frozenset(self.ends))

    def constraint(self, matched: str) -> _core.MaskConstraint:
        """A constraint for the native loop, at the beginning of a schema."""
        return _core.MaskConstraint(self.ends, self.matcher(matched))


class SchemaMatcher:
    """Says which tokens may come next in a text, which may also have become shorter or another one."""

    def __init__(self, follower: Follower, ends: frozenset[int]) -> None:
        self._follower = follower
        self._ends = ends
        self._steps = np.empty(0, dtype=np.intc)
        self._followed: list[bool] = []  # by step; False for an end of a text or a caller's token that was passed over

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int]:
        """Which tokens may follow the tokens generated so far.

        Returns:
            A bit for each token, the lowest first; whether the text may end; the token that begins the only text that
            may come next, or -1.

        Raises:
            ValueError: no token may come next, or finding out would take too long.
        """
        self._go_behind(recent)
        matcher = self._follower.matcher
        mask = matcher.compute_bitmask()
        may_end = matcher.is_accepting()
        forced = matcher.compute_ff_tokens()
        if matcher.is_error() or (matcher.is_stopped() and not may_end):
            raise ValueError(f"the JSON schema cannot be followed any further ({reason_of(matcher)}): simplify it")
        return mask, may_end, forced[0] if forced else -1

    def _go_behind(self, recent: npt.NDArray[np.intc]) -> None:
        both = min(len(recent), len(self._steps))
        different = np.flatnonzero(recent[:both] != self._steps[:both])
        common = int(different[0]) if len(different) else both
        self._follower.back_to(len(self._follower) - sum(self._followed[common:]))
        del self._followed[common:]
        for token in recent[common:].tolist():
            self._followed.append(token not in self._ends and self._follower.follow(token))
        self._steps = recent


class SchemaPieces:
    """A vocabulary that cannot write every text, as a tokenizer for llguidance.

    It takes the longest token that fits. The model's tokenizer may choose others, but llguidance uses this for guesses
    only.
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
        """The tokens of a text, up to the first character that no token has."""
        found = []
        while text:
            sizes = range(min(self._longest, len(text)), 0, -1)
            size = next((size for size in sizes if text[:size] in self._known), 0)
            if not size:
                break
            found.append(self._known[text[:size]])
            text = text[size:]
        return found

    def along(self, text: bytes) -> list[int]:
        """The tokens along a text, as ``SchemaVocabulary.along`` says."""
        sizes = range(1, min(len(text), self._longest) + 1)
        found = [self._known[text[:size]] for size in sizes if text[:size] in self._known]
        first = bisect.bisect_right(self._sorted, text)
        last = bisect.bisect_left(self._sorted, text + b"\xff")
        return found + [self._known[piece] for piece in self._sorted[first : min(last, first + _MOST_LONGER)]]

    @functools.cached_property
    def _sorted(self) -> list[bytes]:
        return sorted(self._known)


@in_llguidance()
def _tokenizer(own: _core.Tokenizer, pieces: list[bytes], end: int) -> LLTokenizer:
    if not _EVERY_BYTE.issubset(pieces):  # else llama_tokenize could end the process
        return LLTokenizer(TokenizerWrapper(SchemaPieces(pieces, end)))
    made: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # its stubs lack it
        tokens=pieces, vocab_ptr=own.address, tokenize_fptr=own.function, eos_token=end
    )
    return made
