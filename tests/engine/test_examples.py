"""What is kept of a text for a head to learn from: it is what the target computes, whatever has drafted."""

from __future__ import annotations

import itertools
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from exact import EXACT_CACHE
from kept_texts import kept_of

from specllama.engine import FINAL, Engine, Kept, kept_files, read_kept
from specllama.engine.examples import store as stores
from specllama.engine.examples.file import Name, write_kept
from specllama.engine.examples.store import ExampleStore

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the quick brown fox jumps over"
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 5}
DRAFTS = ["none", "lookup", "good", "adversarial", "head", "function"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory of its own for each test."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SPECLLAMA_CACHE", str(folder))
    return folder


def draft_named(name: str, tiny_files: TinyFiles) -> Any:
    if name == "function":
        return lambda ids, **_: np.array([int(ids[-1]), 270])
    return {"none": None, "lookup": "lookup", "head": tiny_files.deep_medusa}.get(name) or getattr(
        tiny_files, name, None
    )


@pytest.fixture
def seen(tiny_files: TinyFiles) -> Iterator[Engine]:
    """The target, which shows its final states."""
    with Engine.open(tiny_files.deep, n_ctx=512, n_threads=1, shown_layers=[FINAL]) as engine:
        yield engine


def assert_computed_by(engine: Engine, kept: Kept, tokens: list[int]) -> None:
    """`kept` is of the end of this text, and its rows are what the target computes when it reads the text."""
    begin = len(tokens) - len(kept.tokens)
    assert kept.tokens.tolist() == tokens[begin:]
    rows = np.arange(engine.model.n_vocab)
    parts = [*engine.states(tokens, rows=rows)]
    states = np.concatenate([part.hidden[:, 0] for part in parts])
    logits = np.concatenate([part.logits for part in parts])
    probabilities = np.exp(logits - np.concatenate([part.logsumexp for part in parts])[:, None])
    place = slice(begin + kept.first, begin + kept.first + len(kept.states))
    # The cache of `engine` is of float16, which makes a difference in the third digit.
    assert np.allclose(kept.states.astype(np.float32), states[place], rtol=5e-3, atol=1e-2 * states.std())
    found = np.take_along_axis(probabilities[place], kept.likely.astype(np.int64), 1)
    assert np.allclose(found, kept.shares.astype(np.float32), rtol=3e-2, atol=1e-3)
    assert np.allclose(kept.shares[:, 0], probabilities[place].max(1), rtol=3e-2)
    assert (np.diff(kept.shares.astype(np.float32), axis=1) <= 0).all()


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("sampling", [{"temperature": 0.0}, SAMPLED], ids=["greedy", "sampled"])
def test_it_is_what_the_target_computes(
    make_llama: MakeLlama, tiny_files: TinyFiles, seen: Engine, name: str, sampling: dict[str, Any]
) -> None:
    """Also behind rejections, and where a round accepts several tokens."""
    llm = make_llama(tiny_files.deep, draft_named(name, tiny_files), learn=True, **EXACT_CACHE)
    prompt = llm.tokenize(PROMPT.encode())
    tokens = [*llm.engine.generate(prompt, max_tokens=60, **sampling)]
    (kept,) = kept_of(llm)
    assert_computed_by(seen, kept, [*prompt, *tokens])
    assert kept.first == len(prompt) - 1
    assert len(kept.states) == len(tokens) - (kept.first + len(kept.states) < len(prompt) + len(tokens) - 1)


def test_the_text_is_the_same_as_without(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    for draft in (None, "lookup", tiny_files.deep_medusa):
        plain, learning = (make_llama(tiny_files.deep, draft, learn=learn) for learn in (False, True))
        for sampling in ({"temperature": 0.0}, SAMPLED):
            texts = [llm.create_completion(PROMPT, max_tokens=50, **sampling) for llm in (plain, learning)]
            assert texts[0]["choices"][0]["text"] == texts[1]["choices"][0]["text"]
        assert plain.learn_dir is None


def test_several_texts_at_once(make_llama: MakeLlama, tiny_files: TinyFiles, seen: Engine) -> None:
    for draft in (None, tiny_files.deep_medusa):
        llm = make_llama(tiny_files.deep, draft, learn=True, max_parallel=3, **EXACT_CACHE)
        prompts = [llm.tokenize(f"{PROMPT} {word}".encode()) for word in ("a", "the", "dog", "it", "in", "is")]
        outcomes = llm.create_completions(prompts, max_tokens=40, progress=False, logprobs=0, **SAMPLED)
        assert all(outcome.error is None for outcome in outcomes)
        found = kept_of(llm)
        assert len(found) == len(prompts)
        for kept in found:
            assert kept.tokens[: kept.first + 1].tolist() in prompts
            assert_computed_by(seen, kept, kept.tokens.tolist())
        for one in kept_files(Path(llm.learn_dir or "")):
            os.unlink(one.path)


@pytest.mark.parametrize("kind", ["sliding", "recurrent_good", "hybrid", "mtp_hybrid"])
def test_other_memories(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> None:
    path = getattr(tiny_files, kind)
    llm = make_llama(path, path, learn=True, **EXACT_CACHE)
    prompt = llm.tokenize(PROMPT.encode())
    tokens = [*llm.engine.generate(prompt, max_tokens=40, **SAMPLED)]
    (kept,) = kept_of(llm)
    with Engine.open(path, n_ctx=512, n_threads=1, shown_layers=[FINAL]) as engine:
        assert_computed_by(engine, kept, [*prompt, *tokens])


def test_what_nobody_read_is_not_kept(make_llama: MakeLlama, tiny_files: TinyFiles, seen: Engine) -> None:
    """A reader may stop in the midst of a round, or append tokens of its own."""
    llm = make_llama(tiny_files.deep, tiny_files.deep, learn=True, num_draft_tokens=7, **EXACT_CACHE)
    prompt = llm.tokenize(PROMPT.encode())
    stopped = llm.engine.generate(prompt, **SAMPLED)
    tokens = [*itertools.islice(stopped, 20)]
    stopped.close()
    (kept,) = kept_of(llm)
    assert_computed_by(seen, kept, [*prompt, *tokens][: len(prompt) + len(tokens)])

    going_on = llm.engine.generate(prompt, temperature=0.9, seed=6)
    first = [*itertools.islice(going_on, 20)]
    sent = llm.tokenize(b"of a dog", add_bos=False)
    going_on.append(sent)
    then = [*itertools.islice(going_on, 20)]
    going_on.close()
    _, one, other = kept_of(llm)
    assert_computed_by(seen, other, [*prompt, *first, *sent, *then])
    assert one.tokens.tolist() == [*prompt, *first, *sent][: len(one.tokens)]
    assert other.first == len(prompt) + len(first) + len(sent) - 1


def test_long_texts_are_taken_in_pieces(
    make_llama: MakeLlama, tiny_files: TinyFiles, seen: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "_TOGETHER", 10)
    monkeypatch.setattr(stores, "LONGEST_PROMPT", 3)
    llm = make_llama(tiny_files.deep, "lookup", learn=True, **EXACT_CACHE)
    prompt = llm.tokenize(PROMPT.encode())
    tokens = [*llm.engine.generate(prompt, max_tokens=100, **SAMPLED)]
    (kept,) = kept_of(llm)
    assert kept.first == 2
    assert_computed_by(seen, kept, [*prompt, *tokens])


def test_what_must_not_be_kept(make_llama: MakeLlama) -> None:
    llm = make_llama(learn=True)
    llm.create_completion(PROMPT, max_tokens=30, learn=False)
    llm.create_chat_completion([{"role": "user", "content": PROMPT}], max_tokens=30, learn=False)
    llm.create_completion(PROMPT, max_tokens=3)  # too short
    llm.create_completion(PROMPT, max_tokens=20, mirostat_mode=2)  # it has no rounds
    assert kept_of(llm) == []
    assert not Path(llm.learn_dir or "").exists()
    llm.create_completion(PROMPT, max_tokens=30)
    assert len(kept_of(llm)) == 1


def test_others_cannot_read_it(make_llama: MakeLlama) -> None:
    llm = make_llama(learn=True)
    llm.create_completion(PROMPT, max_tokens=30)
    kept_of(llm)
    folder = Path(llm.learn_dir or "")
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())] == [0o700, 0o600]


def test_closing_waits_until_it_is_written(make_llama: MakeLlama) -> None:
    llm = make_llama(learn=True)
    llm.create_completion(PROMPT, max_tokens=30)
    folder = Path(llm.learn_dir or "")
    llm.close()
    assert len(kept_files(folder)) == 1


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"learn": 1}, TypeError, "learn=1 must be True or False"),
        ({"learn": True, "learn_disk": 0}, ValueError, "learn_disk=0 must be above 0"),
        ({"learn": True, "learn_disk": "4"}, TypeError, "learn_disk='4' must be a number"),
        ({"learn": True, "draft": "deep_head"}, ValueError, "this head has the target show other states"),
        ({"learn": True, "lora_path": "lora"}, ValueError, "leave out lora_path and kv_overrides"),
    ],
)
def test_what_cannot_be_is_refused(
    make_llama: MakeLlama, tiny_files: TinyFiles, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    draft = getattr(tiny_files, options.pop("draft", ""), None)
    if "lora_path" in options:
        options["lora_path"] = str(tiny_files.lora)
    with pytest.raises(error, match=message):
        make_llama(tiny_files.deep if draft else tiny_files.target, draft, **options)


def test_a_call_says_it_by_true_or_false(make_llama: MakeLlama) -> None:
    with pytest.raises(TypeError, match="learn='no' must be True or False"):
        make_llama(learn=True).create_completion(PROMPT, learn="no")


# The folder


def text_of(seed: int, count: int = 20) -> tuple[np.ndarray[Any, np.dtype[np.int32]], stores._Rows]:
    """A made text of a prompt of five tokens, and its rows."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 1000, 5 + count).astype(np.int32)
    places = np.arange(4, 4 + count, dtype=np.int32)
    likely = rng.integers(0, 1000, (count, 64)).astype(np.int32)
    return tokens, stores._Rows(places, np.ones((count, 8), np.float16), likely, np.ones((count, 64), np.float16))


def put(store: ExampleStore, tokens: np.ndarray[Any, np.dtype[np.int32]], rows: stores._Rows, prompt: int = 5) -> None:
    store.put(tokens, prompt, rows)
    store.flush()


def names(folder: Path) -> list[Name]:
    return [one.name for one in kept_files(folder)]


def test_the_oldest_go_first(tmp_path: Path) -> None:
    notes: list[str] = []
    store = ExampleStore(tmp_path / "kept", 1 << 30, notes.append)
    put(store, *text_of(0))
    size = kept_files(store.folder)[0].size
    small = ExampleStore(tmp_path / "kept", 5 * size, notes.append)
    written = []
    for seed in range(1, 20):
        put(small, *text_of(seed))
        written.append(names(store.folder)[-1])
        assert sum(one.size for one in kept_files(store.folder)) <= 5 * size
    left = names(store.folder)
    assert left == written[-len(left) :]
    assert len(left) >= 3
    tiny_store = ExampleStore(tmp_path / "kept", size // 2, notes.append)
    put(tiny_store, *text_of(30))
    assert notes == []


def test_a_text_is_kept_once(tmp_path: Path) -> None:
    for _ in range(2):
        store = ExampleStore(tmp_path, 1 << 30, pytest.fail)
        for _ in range(3):
            put(store, *text_of(1))
    assert len(names(tmp_path)) == 1


def test_the_texts_of_a_conversation_have_its_name(tmp_path: Path) -> None:
    """Its next prompt begins with the one before. Another process may go on with it."""
    tokens, rows = text_of(1)
    put(ExampleStore(tmp_path, 1 << 30, pytest.fail), tokens, rows)
    store = ExampleStore(tmp_path, 1 << 30, pytest.fail)
    for _ in range(3):
        more, _ = text_of(len(tokens))
        prompt = np.concatenate([tokens, more])
        tokens, rows = np.concatenate([prompt, more[:20]]), text_of(2)[1]
        put(store, tokens, rows._replace(places=rows.places + len(prompt) - 5), len(prompt))
    put(store, *text_of(3))
    found = names(tmp_path)
    assert len({name.conversation for name in found[:4]}) == 1
    assert len({name.prompt for name in found[:4]}) == 4
    assert found[4].conversation == found[4].prompt != found[0].conversation


def test_a_damaged_file_is_no_text(tmp_path: Path) -> None:
    put(ExampleStore(tmp_path, 1 << 30, pytest.fail), *text_of(1))
    path = Path(kept_files(tmp_path)[0].path)
    whole, rng = path.read_bytes(), np.random.default_rng(1)
    for _ in range(300):
        damaged = bytearray(whole)
        for place in rng.integers(0, len(whole), rng.integers(1, 4)):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(bytes(damaged[: rng.integers(0, len(whole) + 1)] if rng.random() < 0.3 else damaged))
        kept = read_kept(path)
        assert kept is None or len(kept.states) == len(kept.likely) <= len(kept.tokens)
    assert read_kept(tmp_path / "gone") is None


def test_other_files_are_no_texts(tmp_path: Path) -> None:
    kept = Kept(np.zeros(3, np.int32), 0, np.zeros((3, 2), "f2"), np.zeros((3, 1), "i4"), np.zeros((3, 1), "f2"))
    for name in ("x.npz", "0-1-2-3.npz", f"{'g' * 16}-{'0' * 16}-{'0' * 16}-1.npz", ".lock"):
        write_kept(tmp_path / name, kept)
    assert kept_files(tmp_path) == []


def test_a_folder_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    notes: list[str] = []
    (tmp_path / "file").write_text("")
    put(ExampleStore(tmp_path / "file" / "kept", 1 << 30, notes.append), *text_of(1))
    assert len(notes) == 1 and "what a draft could learn is not kept" in notes[0]


def test_two_programs_write_into_one_folder(tmp_path: Path) -> None:
    """Each has its own files, and looks at those of the other."""
    program = (
        "import sys; sys.path[:0] = sys.argv[3:]\n"
        "from pathlib import Path\n"
        "from test_examples import ExampleStore, put, text_of\n"
        "store = ExampleStore(Path(sys.argv[1]), 200_000, print)\n"
        "for seed in range(100): put(store, *text_of(int(sys.argv[2]) + seed))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "kept")]
    running = [subprocess.Popen([*command, str(first), *sys.path]) for first in (0, 50)]
    assert [one.wait() for one in running] == [0, 0]
    found = kept_files(tmp_path / "kept")
    assert all(read_kept(one.path) is not None for one in found)
    assert 100_000 < sum(one.size for one in found) < 600_000
