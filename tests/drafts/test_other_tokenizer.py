"""Drafts of another tokenizer: they read the target's text in their own tokens, and texts are the target's."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from exact import EXACT_CACHE
from test_engine_statistics import RULES, Scorer, assert_pairs_are_the_targets

import specllama
from specllama import Engine, _core
from specllama import _core_test as _test
from specllama.backend.libllama import API

if TYPE_CHECKING:
    from conftest import MakeLlama

    from specllama.engine import Model

PROMPT = b"the cat sat on"
TEXT = (
    "The cat sat on the dog, and the dog sat on the cat. In the end a fox (of 12 years) ran:\n\n"
    "    for i in range(10):\n        print('caf\u00e9', i)  # \u4f60\u597d, \U0001f999!\n\n"
) * 3
ENGLISH = "the cat sat on the dog and the fox ran in the night of the other cat while it was no dog at all " * 4
KINDS = ("words", "bytes", "pieces")
"""SentencePiece, byte-level BPE, WordPiece."""
PAIRS = list(itertools.permutations(KINDS, 2))


def small(kind: str) -> tiny.Vocabulary:
    """A dozen tokens of each kind of tokenizer. Their merges overlap, and not all of them are in the others."""
    normal, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    if kind == "words":
        tokens = ["<unk>", "<s>", "</s>", *"abcde", "ab", "bc", "cd", "q"]
        types = [int(gguf.TokenType.UNKNOWN), control, control, *[normal] * 9]
        return tiny.Vocabulary(tokens, [0.0] * len(tokens), types)
    if kind == "bytes":
        merges = ("b c", "d e", "a bc")
        tokens = [*"abcdex", *(merge.replace(" ", "") for merge in merges), "<s>", "</s>"]
        types = [*[normal] * 9, control, control]
        return tiny.Vocabulary(tokens, [0.0] * 11, types, bos=9, eos=10, model="gpt2", merges=merges)
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁a", "▁b", *"abcd", "bc", "ab"]
    types = [control, int(gguf.TokenType.UNKNOWN), *[control] * 3, *[normal] * 8]
    return tiny.Vocabulary(tokens, [0.0] * 13, types, bos=2, eos=3, model="bert", separator=3, adds_bos=False)


LARGE = {
    "words": tiny.word_vocabulary(),
    "bytes": tiny.byte_pair_vocabulary(),
    "pieces": dataclasses.replace(tiny.word_piece_vocabulary(), adds_bos=False),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Models of each kind, large ones by the name of the kind."""
    folder = tmp_path_factory.mktemp("tokenizers")
    found = {}
    for kind, vocabulary in LARGE.items():
        found[kind] = tiny.write_llama(folder / f"{kind}.gguf", vocabulary, tiny.llama_weights(vocabulary, seed=1))
    for kind in KINDS:
        vocabulary = small(kind)
        weights = tiny.llama_weights(vocabulary, 1, n_embd=16, n_ff=16, n_layer=1, sharpness=1.0, flat_bias=True)
        found[f"small {kind}"] = tiny.write_llama(folder / f"small-{kind}.gguf", vocabulary, weights)
    # It says what the draft says, too: what both can say is accepted.
    pieces = [" one", " two", " three", " four", " five"]
    found["saying"] = tiny.write_saying(folder / "saying.gguf", pieces)
    found["saying bytes"] = saying_bytes(folder / "saying-bytes.gguf", pieces)
    return found


def saying_bytes(path: Path, names: list[str]) -> Path:
    """A byte-level model that says these tokens in their order, whatever was before the last one."""
    base = tiny.byte_pair_vocabulary()
    vocabulary = dataclasses.replace(
        base,
        tokens=[*base.tokens, *names],
        scores=[0.0] * (len(base) + len(names)),
        types=[*base.types, *[int(gguf.TokenType.USER_DEFINED)] * len(names)],
    )
    first, size, n_embd = len(base), len(vocabulary), 16
    weights = tiny.llama_weights(vocabulary, seed=1, n_embd=n_embd, n_layer=1)
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        weights[name] *= 0
    embedding, output = np.zeros((size, n_embd), np.float32), np.zeros((size, n_embd), np.float32)
    embedding[:first, 0] = 1
    for number in range(len(names)):
        embedding[first + number, number + 1] = 1
        output[first + number, number] = 10
    output[vocabulary.eos, len(names)] = 10
    weights.update({"token_embd.weight": embedding, "output.weight": output})
    weights["output_norm.weight"] = np.ones(n_embd, np.float32)
    return tiny.write_llama(path, vocabulary, weights)


def opened(make_llama: MakeLlama, target: Path, draft: Path, **options: Any) -> specllama.Llama:
    """The pair, after one line that says what it is."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        llm = make_llama(target, draft, **options)
    (line,) = (str(one.message) for one in said if "larger than the target" not in str(one.message))
    assert line.startswith("the draft has another tokenizer than the target, and ")
    assert "\n" not in line
    return llm


def tokens_of(llm: specllama.Llama, count: int = 50, prompt: bytes = PROMPT, **settings: Any) -> list[int]:
    return list(itertools.islice(llm.generate(llm.tokenize(prompt), **settings), count))


@pytest.mark.parametrize(("target", "draft"), PAIRS)
def test_texts_are_the_same(make_llama: MakeLlama, files: dict[str, Path], target: str, draft: str) -> None:
    llm = opened(make_llama, files[target], files[draft])
    plain = tokens_of(llm, temp=0.0, num_draft_tokens=0)
    for gamma in (1, 4, "auto"):
        assert tokens_of(llm, temp=0.0, num_draft_tokens=gamma) == plain
    for seed in (1, 2):
        llm.set_seed(seed)
        plain = tokens_of(llm, num_draft_tokens=0, verify="coupled", temp=1.5)
        assert tokens_of(llm, num_draft_tokens=3, verify="coupled", temp=1.5) == plain
    assert llm.stats.fallback_reason is None
    assert llm.stats.per_drafter["foreign"].num_draft_tokens > 10


def test_what_both_say_is_accepted(make_llama: MakeLlama, files: dict[str, Path]) -> None:
    """But for the end of the text: special tokens are not drafted."""
    llm = opened(make_llama, files["saying"], files["saying bytes"])
    done = llm.create_completion("a", max_tokens=20, temperature=0.0, num_draft_tokens=4)
    assert done["choices"][0]["text"] == " one two three four five"
    assert llm.stats.per_drafter["foreign"].num_accepted_tokens == 4
    assert all(
        token.origin != "draft" for token in llm.generate_tokens(llm.tokenize(b"a"), temperature=0.0) if token.id == 2
    )


@pytest.mark.statistics
@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("target", "draft"), PAIRS)
@pytest.mark.parametrize("chain", ["T=1", "T=0.7 top-k 4", "T=1.5 top-p 0.8"])
def test_pairs_of_tokens_have_the_distribution_of_the_target(
    make_llama: MakeLlama, files: dict[str, Path], chain: str, target: str, draft: str, rule: str
) -> None:
    path = files[f"small {target}"]
    plain = llama_cpp.Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    prompt = [small(target).tokens.index(letter) for letter in "abc"]
    llm = opened(make_llama, path, files[f"small {draft}"], n_ctx=64)
    assert_pairs_are_the_targets(llm, Scorer(plain, prompt), chain, rule, prompt, count=1200, accepted=60)
    plain.close()
    plain.close()


@pytest.mark.parametrize(("target", "draft"), [("words", "bytes"), ("bytes", "words")])
def test_a_grammar(make_llama: MakeLlama, files: dict[str, Path], target: str, draft: str) -> None:
    llm = opened(make_llama, files[target], files[draft])
    grammar = llama_cpp.LlamaGrammar.from_string('root ::= "{" [a-z ]+ "}" [a-z]+', verbose=False)
    settings: dict[str, Any] = {"grammar": grammar, "temp": 0.0, "repeat_penalty": 1.3}
    plain = tokens_of(llm, 30, num_draft_tokens=0, **settings)
    assert tokens_of(llm, 30, num_draft_tokens=3, **settings) == plain
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_draft_tokens > 5


def test_several_texts_at_once(make_llama: MakeLlama, files: dict[str, Path]) -> None:
    llm = opened(make_llama, files["words"], files["bytes"], max_parallel=3, flash_attn=True, **EXACT_CACHE)
    prompts = ["the cat sat", "a dog", "no fox is on the", "in the end", "h\u00e9"]
    settings: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 4, "verify": "coupled"}
    plain = [llm.create_completion(prompt, **settings, num_draft_tokens=0)["choices"][0]["text"] for prompt in prompts]
    found = llm.create_completions(prompts, **settings)
    assert [outcome.text for outcome in found] == plain
    assert llm.total_stats.per_drafter["foreign"].num_draft_tokens > 20


def test_calls_that_are_left_and_states(make_llama: MakeLlama, files: dict[str, Path]) -> None:
    """What the draft has read of other texts changes nothing, not even what it drafts."""
    settings: dict[str, Any] = {"temp": 1.0, "verify": "block", "num_draft_tokens": 3}
    fresh = opened(make_llama, files["bytes"], files["words"])
    fresh.set_seed(5)
    expected = tokens_of(fresh, 40, **settings)
    llm = opened(make_llama, files["bytes"], files["words"])
    for prompt in (b"the cat sat", b"the cat sat on the caf\xc3", b"\xe4\xbd\xa0", PROMPT + b" the dog"):
        assert len(tokens_of(llm, 7, prompt, **settings)) == 7
    state = llm.save_state()
    llm.set_seed(5)
    assert tokens_of(llm, 40, **settings) == expected
    llm.load_state(state)
    llm.set_seed(5)
    assert tokens_of(llm, 40, **settings) == expected


def test_a_window_and_a_small_context(make_llama: MakeLlama, files: dict[str, Path]) -> None:
    llm = opened(make_llama, files["words"], files["bytes"], draft_window=24, draft_kwargs={"n_ctx": 64})
    assert tokens_of(llm, 90, temp=0.0) == tokens_of(llm, 90, temp=0.0, num_draft_tokens=0)
    assert llm.total_stats.num_draft_tokens > 20


def test_a_draft_that_cannot_write_the_text(make_llama: MakeLlama, files: dict[str, Path]) -> None:
    """It has no token for most of it, and reads the rest."""
    llm = opened(make_llama, files["words"], files["pieces"])
    for prompt in (b"\xf0\x9f\xa6\x99\xe4\xbd", b"XYZ\n\n\x00\xff", b"", b"x" * 400):
        plain = tokens_of(llm, 20, prompt, temp=0.0, num_draft_tokens=0)
        assert tokens_of(llm, 20, prompt, temp=0.0, num_draft_tokens=3) == plain
        assert llm.stats.fallback_reason is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"draft_mask_token": 5}, "draft_mask_token is for a parallel draft of the target's own tokenizer"),
        ({"draft_kwargs": {"draft_model": "lookup"}}, "is for a draft of the target's own tokenizer"),
    ],
)
def test_what_is_for_the_own_tokenizer(files: dict[str, Path], options: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        Engine.open(files["words"], files["bytes"], n_ctx=64, n_threads=1, **options)


def test_nothing_in_common_is_refused(tmp_path: Path, files: dict[str, Path]) -> None:
    vocabulary = dataclasses.replace(
        small("bytes"), tokens=[*"ABCDEX", "BC", "DE", "ABC", "<s>", "</s>"], merges=("B C",)
    )
    other = tiny.write_llama(tmp_path / "other.gguf", vocabulary, tiny.llama_weights(vocabulary, 1, flat_bias=True))
    with pytest.raises(ValueError, match="by their texts, 0 of the target's 9 tokens are among the draft's 9"):
        Engine.open(files["small words"], other, n_ctx=64, n_threads=1)


def test_it_is_translated_once(files: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is looked at before its weights are loaded, by the names of tokens."""
    made = []
    original = _core.Translation

    def translation(*given: Any) -> _core.Translation:
        made.append(given)
        return original(*given)

    monkeypatch.setattr(_core, "Translation", translation)
    with (
        pytest.warns(UserWarning, match="another tokenizer"),
        Engine.open(files["words"], files["bytes"], n_ctx=64, n_threads=1),
    ):
        assert len(made) == 1


# --- What the draft reads ---------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Read:
    """A target and a draft of which the vocabularies are of use."""

    target: Model
    draft: Model
    translation: _core.Translation

    def target_tokens(self, text: bytes) -> list[int]:
        return _core.Tokenizer(API, self.target.vocab).tokens(text, False, False)

    def draft_tokens(self, text: bytes) -> list[int]:
        return _core.Tokenizer(API, self.draft.vocab).tokens(text, False, False)


@pytest.fixture
def read(files: dict[str, Path], request: pytest.FixtureRequest) -> Iterator[Read]:
    target, draft = request.param
    with Engine.open(files[target], n_ctx=64, n_threads=1) as ours, Engine.open(files[draft], n_ctx=64) as theirs:
        models = ours.model, theirs.model
        roles = [(LARGE[target].eos, LARGE[draft].eos)]
        yield Read(*models, _core.Translation(API, models[0].vocab, models[1].vocab, roles, -1))


BOTH = pytest.mark.parametrize("read", [("words", "bytes"), ("bytes", "words")], indirect=True)


@BOTH
def test_parts_are_read_as_the_whole(read: Read) -> None:
    """Where words begin, which is where every tokenizer cuts."""
    tokens = read.target_tokens(ENGLISH.encode())
    translated = _test.TranslatedText(read.translation)
    assert translated.read(tokens) == read.draft_tokens(ENGLISH.encode())


@BOTH
def test_what_is_read_does_not_depend_on_what_was_read_before(read: Read) -> None:
    """Text that grows by a token, is cut within a character, or is another one from some place on."""
    tokens = read.target_tokens(TEXT.encode())
    rng = np.random.default_rng(1)
    translated, size = _test.TranslatedText(read.translation), 0
    for _ in range(300):
        size = int(np.clip(size + rng.integers(-6, 9), 0, len(tokens)))
        text = tokens[:size]
        if rng.random() < 0.3:
            text = [*text, *map(int, rng.integers(0, read.target.n_vocab, 3))]
        before = translated.read([]) if rng.random() < 0.02 else []
        found = translated.read(text)
        assert found == _test.TranslatedText(read.translation).read(text)
        assert len(before) <= 1
    assert b"".join(piece(read.draft, token) for token in translated.read(tokens)).strip() == TEXT.encode().strip()


@BOTH
def test_only_the_end_is_read_again(read: Read) -> None:
    tokens = read.target_tokens(ENGLISH.encode() * 8)
    translated = _test.TranslatedText(read.translation)
    translated.read(tokens[:-60])
    before = translated.num_tokenized
    for size in range(len(tokens) - 60, len(tokens) + 1):
        found_tokens = translated.read(tokens[:size])
        assert len(found_tokens) - translated.num_unchanged <= 240
    assert translated.num_tokenized - before < 61 * 240


@BOTH
def test_special_tokens_are_none_of_text(read: Read) -> None:
    """The draft reads its own end in place of the target's, and never a name."""
    target, draft = (LARGE["words"], LARGE["bytes"]) if read.target.n_vocab > 300 else (LARGE["bytes"], LARGE["words"])
    tokens = read.target_tokens(b"the cat")
    found = _test.TranslatedText(read.translation).read([target.bos, *tokens, target.eos, *tokens])
    assert found.count(draft.eos) == 1
    written = b"".join(piece(read.draft, token) for token in found if token not in (draft.bos, draft.eos))
    assert written.replace(b" ", b"") == b"thecatthecat"
    assert target.eos not in _test.drafted_tokens(read.translation)
    assert target.bos not in _test.drafted_tokens(read.translation)


@BOTH
def test_half_a_character(read: Read) -> None:
    """Is read as its bytes, and as a character when the rest comes."""
    whole = "caf\u00e9 \U0001f999 \u4f60".encode()
    tokens = read.target_tokens(whole)
    for size in range(len(tokens) + 1):
        read_so_far = _test.TranslatedText(read.translation).read(tokens[:size])
        written = b"".join(piece(read.draft, token) for token in read_so_far)
        expected = b"".join(piece(read.target, token) for token in tokens[:size])
        assert size == 0 or written.strip() == expected.strip()


def piece(model: Model, token: int) -> bytes:
    room = bytearray(64)
    buffer: Any = (llama_cpp.ctypes.c_char * 64).from_buffer(room)
    vocab: Any = model.vocab
    return bytes(room[: llama_cpp.llama_token_to_piece(vocab, token, buffer, 64, 0, False)])
