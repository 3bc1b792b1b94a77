"""Gemma 4's assistant, which reads its target's memory: fed as by llama.cpp's driver, and texts stay the target's."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import types
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
import tiny_models as tiny
import uses
from assistants import (
    Assistant,
    assistant_weights,
    target_weights,
    write_assistant,
    write_gemma4,
)
from engine import Engine, assert_one_round_is_plain
from exact import EXACT_CACHE
from fresh import text_of
from heads import Headed
from test_decode_failures import aborting
from test_engine_statistics import VOCAB
from test_scheduler import prompts

import specllama
from specllama import _core
from specllama.engine.drafts.decoding import DecodingDraft
from specllama.models import survey

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
GAMMA = 4
NUM_FLIPS = int(os.environ.get("SPECLLAMA_FLIPS", "45"))
LONG = "the cat sat on the dog and " * 8
LETTERS: dict[str, Any] = {"n_embd": 16, "n_ff": 16, "sharpness": 1.5, "flat_bias": True}


@pytest.mark.parametrize("first_alone", [False, True])
def test_it_is_fed_as_by_llama_cpps_driver(tmp_path: Path, first_alone: bool) -> None:
    """Tokens, states and positions, also behind rejections: the same tokens are accepted as of the transcription's."""
    letters = tiny.letter_vocabulary(VOCAB)
    target = target_weights(letters, 1, **LETTERS)
    weights = assistant_weights(letters, target, 5, 24)
    path = write_gemma4(tmp_path / "target.gguf", letters, target)
    engine = Headed(path, write_assistant(tmp_path / "head.gguf", letters, weights), _core.Drafter.assistant)

    def transcribed(*, moves: bool) -> list[tuple[int, list[int]]]:
        oracle, assistant = Engine(path), Assistant(weights, target)
        oracle.draft_by(lambda history, count: assistant.drafted(target, history, count, moves=moves))
        found = oracle.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone)
        oracle.close()
        return found

    found = engine.greedy_rounds(VOCAB, GAMMA, 4, first_alone=first_alone)
    engine.close()
    assert found == transcribed(moves=False)
    assert found != transcribed(moves=True)
    assert {accepted for accepted, _ in found} >= {0, 1, 2}


def test_what_is_decoded(tiny_files: TinyFiles) -> None:
    """A token for each drafted one, and nothing of the text; the target's memory holds what it held."""
    engine = Headed(tiny_files.letters_gemma4, tiny_files.letters_assistant, _core.Drafter.assistant)
    engine.begin([1, 3, 4, 5], gamma=GAMMA)
    assert engine.draft is not None
    before = 0
    for _ in range(30):
        engine.step()
        now = engine.speculator.counters.num_draft_tokens_decoded
        assert now - before == engine.rounds[-1].num_drafted
        assert engine.target.tokens().tolist() == engine.history()[:-1]
        assert engine.draft.num_tokens == 0
        before = now
    engine.close()


def test_behind_what_the_memory_holds(tiny_files: TinyFiles) -> None:
    engine = Headed(tiny_files.letters_gemma4, tiny_files.letters_assistant, _core.Drafter.assistant)
    assert_one_round_is_plain(engine, tiny_files.letters_gemma4, GAMMA)
    engine.close()


def test_a_draft_that_is_given_anew(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """llama.cpp empties the target's memory when the assistant's context is made: it is filled again."""
    llm = make_llama(tiny_files.gemma4, tiny_files.assistant, **EXACT_CACHE)
    plain = make_llama(tiny_files.gemma4, num_draft_tokens=0, **EXACT_CACHE)
    prompt = llm.tokenize(LONG.encode())
    expected = list(itertools.islice(plain.generate(prompt, temp=0.0), 40))
    tokens = llm.generate(prompt, temp=0.0)
    found = list(itertools.islice(tokens, 7))
    tokens.close()
    llm.draft_model = None
    llm.draft_model = str(tiny_files.assistant)
    tokens = llm.generate([*prompt, *found], temp=0.0)
    found += itertools.islice(tokens, 33)
    tokens.close()
    assert found == expected
    assert llm.stats.num_prompt_tokens_reused >= len(prompt)
    assert llm.stats.per_drafter["assistant"].num_accepted_tokens > 0
    for each in (llm, plain):
        each.reset()
        each.eval(prompt)
    llm.draft_model = None
    llm.draft_model = str(tiny_files.assistant)
    found, expected = (list(itertools.islice(each.generate(prompt, temp=0.0), 20)) for each in (llm, plain))
    assert found == expected


@pytest.mark.parametrize("name", ["mtp-target.gguf", "gemma4-assistant-target.gguf"])
def test_auto_finds_it(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, name: str) -> None:
    target = Path(shutil.copy(tiny_files.gemma4, tmp_path / "target.gguf"))
    shutil.copy(tiny_files.assistant, tmp_path / name)
    llm = make_llama(target, "auto")
    assert llm.engine.draft is not None
    assert llm.engine.draft.label == name
    shutil.copy(tiny_files.sliding, target)  # its hidden size and its vocabulary are the same
    assert "reads the memory of a model of the architecture gemma4" in str(
        next(found.why_not for found in survey(str(target)).found if found.draft_model.endswith(name))
    )


@pytest.mark.parametrize(
    "options", [{}, {"swa_full": False}, {"cache_tokens": 512}, {"cache_tokens": 512, "n_batch": 8}]
)
def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles, options: dict[str, Any]) -> None:
    """Each in its own place of the target's memory, also where texts give way to others."""
    own = {name: value for name, value in options.items() if name != "cache_tokens"}
    given, sampled = prompts(10, shared=40), {"max_tokens": 50, "temperature": 0.9, "seed": 3}
    plain = make_llama(tiny_files.gemma4, num_draft_tokens=0, **own, **EXACT_CACHE)
    expected = [found.text for found in plain.create_completions(given, **sampled)]
    llm = make_llama(tiny_files.gemma4, tiny_files.assistant, max_parallel=6, **options, **EXACT_CACHE)
    assert [found.text for found in llm.create_completions(given, **sampled)] == expected
    assert llm.total_stats.fallback_reason is None
    assert llm.total_stats.per_drafter["assistant"].num_accepted_tokens > 0
    assert text_of(llm, LONG) == text_of(plain, LONG)


def test_earlier_texts(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Put back from memory and from a folder: the assistant reads them there."""
    plain = make_llama(tiny_files.gemma4, num_draft_tokens=0, n_ctx=1024, **EXACT_CACHE)
    for _ in range(2):
        llm = specllama.Llama(
            str(tiny_files.gemma4),
            draft_model=str(tiny_files.assistant),
            **{"n_ctx": 1024, "n_threads": 1, "cache_dir": str(tmp_path), "verbose": False, "num_draft_tokens": 4},
            **EXACT_CACHE,
        )
        for prompt in (LONG * 4, "a dog" * 100, LONG * 4 + "no fox"):
            assert text_of(llm, prompt) == text_of(plain, prompt)
            assert llm.stats.per_drafter["assistant"].num_draft_tokens > 0
        reused = llm.stats.num_prompt_tokens_from_disk + llm.stats.num_prompt_tokens_from_ram
        llm.close()
    assert reused > 0


DAMAGED: dict[str, tuple[dict[str, Any], str]] = {
    "layers": ({"nextn_predict_layers": 2}, "block_count is 3, and must be from 1 to 512, the same as"),
    "no layers": ({"block_count": 0, "nextn_predict_layers": 0}, "block_count is 0, and must be"),
    "no windows": ({"attention.sliding_window_pattern": [False] * 3}, "one layer must have a window"),
    "windows of other layers": ({"attention.sliding_window_pattern": [True] * 2}, "for each of its 3 layers"),
    "no pattern": ({"attention.sliding_window_pattern": None}, "for each of its 3 layers"),
    "odd keys": ({"attention.head_count_kv": 3}, "its layers read 3 heads of 8 numbers in a window, 3 heads of 16"),
    "no keys": ({"attention.head_count_kv": 0}, "attention heads|which must be a multiple"),
    "turned": ({"rope.dimension_count": 7}, r"rope\.dimension_count is 7: it must be even"),
    "turned in a window": ({"rope.dimension_count_swa": 32}, r"rope\.dimension_count is 32: it must be even"),
    "turned in no window": (
        {"rope.dimension_count": None, "rope.dimension_count_swa": None},
        r"rope\.dimension_count is 16: it must be even, and from 2 to 8",
    ),
    "values": ({"attention.value_length": 8}, "keys of 16 numbers and values of 8"),
    "size": ({"embedding_length_out": None}, "embedding_length_out must be a number"),
    "other size": ({"embedding_length_out": 48}, "reads states of 48 numbers, and this one's have 32"),
    "other keys": (
        {"attention.head_count_kv": 4},
        "it reads 4 heads of 8 numbers in a window, 4 heads of 16 numbers everywhere, and the last two layers of this "
        "one have 2 heads of 8 numbers in a window, 2 heads of 16",
    ),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_one_that_does_not_fit(tiny_files: TinyFiles, tmp_path: Path, name: str) -> None:
    changed, why = DAMAGED[name]
    words = tiny.word_vocabulary()
    weights = assistant_weights(words, target_weights(words, 1), 5, 24, num_texts=1)
    head = write_assistant(tmp_path / "head.gguf", words, weights, changed=changed)
    with pytest.raises(ValueError, match=why):
        specllama.Llama(str(tiny_files.gemma4), draft_model=str(head), n_ctx=64, verbose=False)


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "fork"), reason="each file is tried in a forked child")
def test_flipped_bytes_end_no_process(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Anywhere in the header but in the tokens' texts, which `test_opening.py` flips."""
    rng, found, flipped = random.Random(3), set(), tmp_path / "flipped.gguf"
    whole = tiny_files.assistant.read_bytes()
    places = [*range(4, 400), *range(whole.find(b"tokenizer.ggml.bos_token_id"), whole.find(b"blk.2.ffn_up") + 60)]
    with uses.started(tiny_files.gemma4, tiny_files.assistant) as child:
        for _ in range(NUM_FLIPS):
            data = bytearray(whole)
            data[rng.choice(places)] ^= 1 << rng.randrange(8)
            flipped.write_bytes(data)
            found.add(child.outcome("open", {"draft_model": str(flipped), **EXACT_CACHE}).partition(":")[0])
    assert found <= {"ok", "ValueError", "UnusableFileError"}


@pytest.mark.parametrize(
    ("kind", "match"),
    [
        ("llama", "reads the memory of a model of the architecture gemma4, and the target is of llama: give the head"),
        ("gemma3", "and the target is of gemma3"),
        ("vocabulary", "another vocabulary"),
        ("more tokens", "has embeddings of|another vocabulary"),
        ("order of layers", "the last two layers of this one have 2 heads of 8 numbers in a window"),
    ],
)
def test_targets_that_it_is_not_for(tiny_files: TinyFiles, tmp_path: Path, kind: str, match: str) -> None:
    words = tiny.word_vocabulary()
    targets = {"llama": tiny_files.deep, "gemma3": tiny_files.sliding}
    said = {"vocabulary": words.with_token(280, "zebra"), "more tokens": words.padded(7)}.get(kind, words)
    if kind == "order of layers":
        pattern = (False, True, True, True)
        path = write_gemma4(tmp_path / "target.gguf", words, target_weights(words, 1, windows=pattern), windows=pattern)
    elif kind in targets:
        path = targets[kind]
    else:
        path = write_gemma4(tmp_path / "target.gguf", said, target_weights(said, 1))
    with pytest.raises(ValueError, match=match):
        specllama.Llama(str(path), draft_model=str(tiny_files.assistant), n_ctx=64, verbose=False)


def test_options_that_it_does_not_take(tiny_files: TinyFiles) -> None:
    settings: dict[str, Any] = {"draft_model": str(tiny_files.assistant), "n_ctx": 64, "verbose": False}
    for options, match in (
        ({"draft_window": 8}, "draft_window"),
        ({"draft_kwargs": {"n_ctx": 32}}, "draft_kwargs of a head may have kernels, n_gpu_layers, n_threads"),
    ):
        with pytest.raises(ValueError, match=match):
            specllama.Llama(str(tiny_files.gemma4), **settings, **options)
    with pytest.raises(ValueError, match="is a head, and no model"):
        specllama.Llama(str(tiny_files.assistant), n_ctx=64, verbose=False)
    with specllama.Llama(str(tiny_files.gemma4), draft_kwargs={"n_threads": 1, "kernels": "off"}, **settings) as llm:
        assert text_of(llm, "the cat")


def test_layers_that_share_keys(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """The last layers of the small ones have none of their own: the assistant reads those that they read."""
    words = tiny.word_vocabulary()
    weights = target_weights(words, 1)
    path = write_gemma4(tmp_path / "t.gguf", words, weights, changed={"attention.shared_kv_layers": 2})
    plain = make_llama(path, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(path, tiny_files.assistant, **EXACT_CACHE)
    assert text_of(llm, LONG) == text_of(plain, LONG)
    assert llm.stats.per_drafter["assistant"].num_draft_tokens > 0
    assert llm.stats.fallback_reason is None


def test_beside_a_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    plain = make_llama(tiny_files.gemma4, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.gemma4, [str(tiny_files.assistant), str(tiny_files.good)], **EXACT_CACHE)
    for gamma, prompt in itertools.product((4, "auto"), (LONG, "a dog")):
        llm.num_draft_tokens = gamma
        assert text_of(llm, prompt) == text_of(plain, prompt)
        assert llm.stats.fallback_reason is None
    assert llm.total_stats.per_drafter["assistant"].num_accepted_tokens > 0


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_its_decodes_that_fail_cost_no_text(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """At the beginning, and in the middle of a text. The target's memory stays as it is."""
    llm = make_llama(tiny_files.gemma4, tiny_files.assistant, **EXACT_CACHE)
    plain = make_llama(tiny_files.gemma4, num_draft_tokens=0, **EXACT_CACHE)
    draft = llm.engine.slot.draft
    assert isinstance(draft, DecodingDraft)
    own: Any = types.SimpleNamespace(_ctx=types.SimpleNamespace(ctx=draft.model.context))
    tokens = plain.tokenize(LONG.encode())
    expected = list(itertools.islice(plain.generate(tokens, temp=0.0), 40))
    for first in (0, 7):
        rest = llm.generate(tokens, temp=0.0)
        found = list(itertools.islice(rest, first))
        with aborting(own):
            found += itertools.islice(rest, 40 - first)
        assert "returned 2 on the draft" in str(llm.stats.fallback_reason)
        rest.close()
        assert found == expected
        assert text_of(llm, "a dog") == text_of(plain, "a dog")
        assert llm.stats.per_drafter["assistant"].num_draft_tokens > 0
        llm.reset()
