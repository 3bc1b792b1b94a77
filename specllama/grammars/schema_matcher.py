"""What a JSON schema allows among a model's tokens, by llguidance."""

from __future__ import annotations

import bisect
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from specllama import _core
from specllama.backend import libllama

from .in_llguidance import in_llguidance
from .schema import LIMITS, reason_of

_OF_SCHEMA = '{"grammars":[{"name":"json_schema"'  # how llguidance's own grammars of schemas begin
_MOST_LONGER = 200  # tokens that go on behind a text, each of which is tried
_UNSHOWN = b"\xff"  # before the name of a token that adds nothing to a text
_EVERY_BYTE = frozenset(bytes([byte]) for byte in range(256))
_MOST_FIRST = 8  # matchers of the last schemas, at their beginnings: to make one takes longer than to copy it


Matcher = Callable[[npt.NDArray[np.intc]], "tuple[bytes, bool, int] | None"]
"""Says what may come behind tokens, as ``SchemaMatcher`` does; None: anything."""


class SchemaVocabulary:
    """A model's tokens as llguidance knows them. Made once for a model, because it takes a while."""

    def __init__(self, vocab: int, own: _core.Tokenizer, eos: int) -> None:
        """Takes libllama's vocabulary, what makes its tokens of texts, and the token that the file says to end one."""
        pieces, ends = _core.token_pieces(libllama.API, vocab)
        if not ends:  # llguidance needs one
            pieces.append(b"\xff<end>")
        self._end = eos if eos in ends else ends[0] if ends else len(pieces) - 1
        self._pieces = pieces
        self._tokenizer = _tokenizer(own, pieces, self._end)
        self._own = own  # the other one calls it
        self.ends = ends
        """The tokens that end a text."""
        self.first = functools.lru_cache(_MOST_FIRST)(self._matcher)
        """Gives the matcher of llguidance's grammar, to be copied."""

    def _matcher(self, matched: str) -> LLMatcher:
        # llguidance has a text of which there is only one tokenized alone, and takes no other tokens for it.
        # Behind a token of another kind, which calls of tools have, some models' tokenizers put a space before it.
        guesses = not matched.startswith(_OF_SCHEMA) and self._puts_spaces
        return LLMatcher(self._by_pieces if guesses else self._tokenizer, matched, log_level=0, limits=LIMITS)

    def name(self, token: int) -> bytes:
        """What a token adds to a text; its name, if that is nothing."""
        piece = self._pieces[token]
        return piece[1:] if piece[:1] == _UNSHOWN else piece

    def tokens_of(self, text: bytes) -> list[int]:
        """Tokens that are this text, if there are such, but for those at its end that no token has."""
        return self._as_pieces(text) if text else []

    def along(self, text: bytes) -> list[int]:
        """The tokens that are a beginning of a text, and those that go on behind it, if these are not too many."""
        return self._as_pieces.along(text)

    @functools.cached_property
    def _as_pieces(self) -> SchemaPieces:
        return SchemaPieces(self._pieces, self._end)

    @functools.cached_property
    def _by_pieces(self) -> LLTokenizer:
        return LLTokenizer(TokenizerWrapper(self._as_pieces))

    @functools.cached_property
    def _puts_spaces(self) -> bool:
        if not _EVERY_BYTE.issubset(self._pieces):  # its tokenizer is not asked, see `_tokenizer`
            return False
        # Not before all: a vocabulary may have some as texts of its own.
        return any(
            b"".join(self._pieces[token] for token in self._own.tokens(text, False, False)) != text
            for text in (b"{", b'"', b"a", b"1")
        )

    @in_llguidance()
    def matcher(self, matched: str) -> SchemaMatcher:
        """Follows a schema, given as llguidance's grammar, from its beginning."""
        return SchemaMatcher(self.first(matched).deep_copy(), frozenset(self.ends))

    def constraint(self, matched: str) -> _core.MaskConstraint:
        """The same for the native loop."""
        return _core.MaskConstraint(self.ends, self.matcher(matched))

    def processor(self, matched: str) -> SchemaProcessor:
        """The same as a logits processor, for llama.cpp's own samplers."""
        return SchemaProcessor(self.matcher(matched), self.ends)


class SchemaMatcher:
    """Says what may come next, by llguidance's matcher, which goes along with the text, and back."""

    def __init__(self, matcher: LLMatcher, ends: frozenset[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._steps = np.empty(0, dtype=np.intc)
        self._followed: list[bool] = []  # else the matcher passed it over: the end of a text, or a caller's own token

    @in_llguidance()
    def __call__(self, recent: npt.NDArray[np.intc]) -> tuple[bytes, bool, int]:
        """What may come behind the tokens generated so far.

        Returns:
            A bit for each token, the lowest first; whether the text may end; the token that begins the only text that
            may come next, or -1.

        Raises:
            ValueError: nothing may come next, or finding out would take too long.
        """
        self._go_behind(recent)
        matcher = self._matcher
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
        back = sum(self._followed[common:])
        if back:
            self._matcher.rollback(back)
        del self._followed[common:]
        for token in recent[common:].tolist():
            self._followed.append(token not in self._ends and self._matcher.try_consume_tokens([token]) == 1)
        self._steps = recent


class SchemaProcessor:
    """Lets through what a matcher allows. For one generation."""

    def __init__(self, matcher: Matcher, ends: list[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._prompt_size = -1

    def __call__(self, input_ids: npt.NDArray[np.intc], scores: npt.NDArray[np.single]) -> npt.NDArray[np.single]:
        """The scores [n_vocab], -inf for what may not come next."""
        if self._prompt_size < 0:
            self._prompt_size = len(input_ids)
        answer = self._matcher(input_ids[self._prompt_size :])
        if answer is None:
            return scores
        mask, may_end, _ = answer
        allowed = np.zeros(len(scores), dtype=bool)
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[: len(scores)]
        allowed[: len(bits)] = bits
        allowed[self._ends] = may_end
        return np.where(allowed, scores, np.single(-np.inf))


class SchemaPieces:
    """A vocabulary in which some texts cannot be written, as llguidance asks of it.

    Takes the longest token that fits, which need not be the model's way: llguidance guesses by it, no more.
    """

    bos_token_id = None

    def __init__(self, tokens: Sequence[bytes], end: int) -> None:
        """Takes what each token adds to a text, and the one that ends a text."""
        self.tokens = tokens
        self.eos_token_id = end
        self.special_token_ids = (end,)
        self._known = {piece: token for token, piece in enumerate(tokens) if piece[:1] != _UNSHOWN}
        self._longest = max(map(len, self._known), default=0)

    def __call__(self, text: bytes) -> list[int]:
        """The tokens of a text, up to what none of them has."""
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
def _tokenizer(own: _core.Tokenizer, pieces: list[bytes], end: int) -> LLTokenizer:
    if not _EVERY_BYTE.issubset(pieces):  # llama_tokenize would end the process at a byte that no token has
        return LLTokenizer(TokenizerWrapper(SchemaPieces(pieces, end)))
    made: LLTokenizer = LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # its stubs lack it
        tokens=pieces, vocab_ptr=own.address, tokenize_fptr=own.function, eos_token=end
    )
    return made
