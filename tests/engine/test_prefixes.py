"""Copies of earlier texts are put back into the memory: nothing is decoded twice, and no text changes."""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from conversations import blocks_of
from exact import EXACT_CACHE

import specllama
from specllama import _core
from specllama.backend import libllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

TALKS = ["the cat sat on the dog and in of a it is " * 3, "a fox is in of it and on the " * 4, "dog dog cat " * 12]
NEW = [5, 7, 9]
TURN: dict[str, Any] = {"max_tokens": 8, "temperature": 0.9}
KINDS = {
    "plain": ("target", None),
    "model": ("target", "good"),
    "another model": ("target", "bad"),
    "lookup": ("target", "lookup"),
    "head": ("deep", "deep_head"),
    "head of blocks": ("deep", "deep_block"),
    "mtp": ("mtp", "mtp"),
    "sliding": ("sliding", "sliding_draft"),
    "moving window": ("sliding", "sliding_draft"),
    "recurrent": ("recurrent", "recurrent_good"),
    "hybrid": ("hybrid", "hybrid_good"),
}


def opened(make_llama: MakeLlama, files: TinyFiles, kind: str, **settings: Any) -> specllama.Llama:
    target, draft = KINDS[kind]
    given = {"lookup": "lookup", "mtp": "mtp", None: None}.get(draft, getattr(files, str(draft), None))
    if kind == "moving window":
        settings["swa_full"] = False
    return make_llama(getattr(files, target), given, n_ctx=512, num_draft_tokens=4, **settings, **EXACT_CACHE)


def conversations(llm: specllama.Llama, num_turns: int = 4) -> tuple[list[list[int]], list[int]]:
    """Several by turns. Gives what was said, and of each turn how many tokens were read that had been read before."""
    tokens = [llm.tokenize(talk.encode()) for talk in TALKS]
    said, read_again = [], []
    for turn, number in itertools.product(range(num_turns), range(len(TALKS))):
        talk = tokens[number]
        answer = list(llm.engine.generate(talk, seed=turn, **TURN))
        stats = llm.stats
        if turn > 0:
            read_again.append(stats.num_prompt_tokens - stats.num_prompt_tokens_reused - len(NEW))
        said.append(answer)
        tokens[number] = [*talk, *answer, *NEW]
    return said, read_again


@pytest.mark.parametrize("kind", KINDS)
def test_conversations_by_turns(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> None:
    said, read_again = conversations(opened(make_llama, tiny_files, kind, verify="coupled", cache_ram=64))
    without, all_again = conversations(opened(make_llama, tiny_files, kind, verify="coupled"))
    assert said == without
    # A head has not read the last tokens of a text: the target reads these again for it.
    assert max(read_again) <= (8 if kind in ("head", "head of blocks", "mtp") else 1), read_again
    assert min(all_again) > 20


def test_a_text_that_others_share_the_beginning_of(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """It stays, since one of them may go on with all of it."""
    llm = opened(make_llama, tiny_files, "model", cache_ram=64)
    system, *users = ([number] * 40 for number in (10, 11, 12, 13))
    for user in users:
        list(llm.engine.generate([*system, *user], max_tokens=1))
    assert llm.stats.num_prompt_tokens_reused == 40
    store = llm.engine.store
    assert store.num_recalled == 0
    list(llm.engine.generate([50] * 40, max_tokens=1))
    list(llm.engine.generate([*system, 9, 9], max_tokens=1))
    list(llm.engine.generate([*system, *users[0], 9], max_tokens=1))
    assert llm.stats.num_prompt_tokens_reused == 80
    assert store.num_recalled == 2


def test_there_is_a_limit(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """At any moment, and what was not used for longest goes first."""
    llm = opened(make_llama, tiny_files, "plain", cache_ram=1)
    ram = llm.engine.store.ram
    texts = [[3 + number] * 400 for number in range(60)]
    most = 0
    for text in texts:
        list(llm.engine.generate(text, max_tokens=1))
        most = max(most, ram.num_bytes)
    assert 0 < ram.num_entries < 2 * (len(texts) - 1)
    assert (1 << 20) * 0.8 < most <= 1 << 20
    list(llm.engine.generate([*texts[0], 9], max_tokens=1))
    assert llm.stats.num_prompt_tokens_reused == 0
    list(llm.engine.generate([*texts[-3], 9], max_tokens=1))
    assert llm.stats.num_prompt_tokens_reused == len(texts[-3])
    llm.reset()
    assert (ram.num_entries, ram.num_bytes) == (0, 0)


def test_none_are_kept_unless_asked_for(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = opened(make_llama, tiny_files, "plain")
    conversations(llm, 2)
    assert llm.engine.store.ram.num_entries == 0
    with specllama.Engine.open(tiny_files.target, n_ctx=512, n_threads=1, cache_ram=-1) as engine:
        for token in (5, 6):
            list(engine.generate([token] * 50, max_tokens=1))
        assert engine.store.ram.num_entries == 1


@pytest.mark.parametrize("fault", ["get", "set"])
@pytest.mark.parametrize("kind", ["model", "sliding"])
def test_what_llama_cpp_does_not_do(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, fault: str, kind: str
) -> None:
    """It changes no text: what is not there is read again."""
    expected, _ = conversations(opened(make_llama, tiny_files, kind, verify="coupled"), 3)
    function = ctypes.CFUNCTYPE(ctypes.c_size_t, *[ctypes.c_void_p] * 5)(lambda *_: 0)
    with monkeypatch.context() as patched:
        patched.setattr(llama_cpp, f"llama_state_seq_{fault}_data_ext", function)
        api = libllama.load_api()
    monkeypatch.setattr(libllama, "API", api)
    said, read_again = conversations(opened(make_llama, tiny_files, kind, verify="coupled", cache_ram=64), 3)
    assert said == expected
    assert min(read_again) > 20


@pytest.mark.parametrize("where", ["put_range", "put_point", "refilled"])
@pytest.mark.parametrize("kind", ["model", "recurrent", "hybrid", "sliding", "moving window"])
def test_an_interruption_while_one_is_put_back(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, kind: str, where: str
) -> None:
    llm = opened(make_llama, tiny_files, kind, verify="coupled", cache_ram=64)
    one, other = [5] * 50, [6] * 50
    for text in (one, other):
        list(llm.engine.generate(text, max_tokens=1))
    owner = _core.Speculator if where == "refilled" else _core.Sequence
    original, was_called = getattr(owner, where), []

    def interrupted(*given: Any) -> None:
        original(*given)
        was_called.append(True)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, contextlib.suppress(KeyboardInterrupt):
        patched.setattr(owner, where, interrupted)
        list(llm.engine.generate([*one, 9], max_tokens=1))
    assert was_called or (kind, where) in {
        *(("model", "put_point"), ("sliding", "put_point"), ("recurrent", "put_range")),
    }
    asked: dict[str, Any] = {"max_tokens": 20, "seed": 4, "temperature": 0.9}
    fresh = opened(make_llama, tiny_files, kind, verify="coupled")
    for text in ([*other, 9], [*one, 9], [*other, 9, 9]):
        assert list(llm.engine.generate(text, **asked)) == list(fresh.engine.generate(text, **asked))


@pytest.mark.parametrize(("value", "error"), [(-2, ValueError), (1.5, TypeError), (True, TypeError), (None, TypeError)])
def test_bad_sizes(tiny_files: TinyFiles, value: Any, error: type[Exception]) -> None:
    for door in (specllama.Llama, specllama.Engine.open):
        with pytest.raises(error, match=f"cache_ram={value} .*MiB"):
            door(str(tiny_files.target), cache_ram=value)


def test_a_copy_of_a_llama_keeps_as_many(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    copy = pickle.loads(pickle.dumps(opened(make_llama, tiny_files, "plain", cache_ram=3)))
    assert copy.cache_ram == 3
    copy.close()


def test_what_was_read_is_kept_when_a_llama_is_closed(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path
) -> None:
    """Even if nobody reads the text to its end."""
    prompt = list(range(259, 330)) * 4
    for expected in (0, len(prompt)):
        llm = opened(make_llama, tiny_files, "model", cache_dir=tmp_path)
        text = llm.engine.generate([*prompt, 9], max_tokens=20, temperature=0.0)
        next(text)
        assert llm.stats.num_prompt_tokens_from_disk == expected
        llm.close()
        with pytest.raises(specllama.ClosedError):
            next(text)


def test_the_same_tokens_at_another_place(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """A block is named after all tokens before it, too."""
    with blocks_of(16):
        llm, plain = (opened(make_llama, tiny_files, "plain", cache_ram=ram) for ram in (64, 0))
        one, other, more = (list(range(start, start + 16)) for start in (260, 280, 300))
        for text in ([*one, *one, *one, *one], more, [*other, *one, *one, *one], more, [*one, *one, *other, *one]):
            asked: dict[str, Any] = {"max_tokens": 8, "temperature": 0.9, "seed": 1}
            assert list(llm.engine.generate([1, *text], **asked)) == list(plain.engine.generate([1, *text], **asked))
        list(llm.engine.generate([1, *one, *one, *one, 9], max_tokens=1))
        assert llm.stats.num_prompt_tokens_from_ram == 16, "the part that the text before has not"


@pytest.mark.parametrize(
    "changed",
    [
        {"type_k": 0},
        {"flash_attn": True},
        {"rope_freq_base": 5000.0},
        {"rope_freq_scale": 0.5},
        {"lora_path": "lora"},
        {"lora_path": "lora", "lora_scale": 0.5},
        {"kv_overrides": {"llama.attention.layer_norm_rms_epsilon": 0.5}},
        {"model": "bad"},
    ],
    ids=str,
)
def test_what_copies_depend_on(
    make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path, changed: dict[str, Any]
) -> None:
    """A copy is not used for what would have computed it otherwise."""
    changed = dict(changed)
    model = getattr(tiny_files, changed.pop("model", "target"))
    if "lora_path" in changed:
        changed["lora_path"] = str(tiny_files.lora)
    text = [1, *range(260, 330)] * 3

    def read(path: Any, **options: Any) -> int:
        llm = make_llama(path, n_ctx=512, cache_dir=tmp_path / "store", **options)
        fresh = make_llama(path, n_ctx=512, **options)
        texts = [list(each.engine.generate(text, **TURN, seed=1)) for each in (llm, fresh)]
        llm.close()
        assert texts[0] == texts[1]
        return int(llm.stats.num_prompt_tokens_from_disk)

    assert read(tiny_files.target) == 0
    assert read(model, **changed) == 0
    renamed = tmp_path / "renamed.gguf"
    shutil.copy(model, renamed)
    assert read(renamed, **changed) == len(text) - 1


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"cache_dir": ""}, ValueError),
        ({"cache_dir": __file__}, ValueError),
        ({"cache_dir": 3}, TypeError),
        ({"cache_disk": 0}, ValueError),
        ({"cache_disk": float("nan")}, ValueError),
        ({"cache_disk": "8"}, TypeError),
    ],
    ids=str,
)
def test_bad_folders(tiny_files: TinyFiles, value: dict[str, Any], error: type[Exception]) -> None:
    for door in (specllama.Llama, specllama.Engine.open):
        with pytest.raises(error, match=next(iter(value))):
            door(str(tiny_files.target), **value)


def test_a_folder_that_cannot_be_written_to(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    """Who uses it is told, whenever the thread that writes has noticed."""
    folder = tmp_path / "store"
    llm = opened(make_llama, tiny_files, "plain", cache_dir=folder)
    folder.write_text("a file in its place")

    def use() -> None:
        list(llm.engine.generate([5] * 50, max_tokens=1))
        llm.close()

    with pytest.warns(specllama.FallbackWarning, match="cache_dir=.* cannot be written to"):
        use()
