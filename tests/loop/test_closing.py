"""A Llama, or its draft, that is closed while texts are under way: no text reads what has been freed."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from fresh import text_of

import specllama

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeBase, MakeLlama, TinyFiles

LONG = "hello " * 150  # to tell its tokens takes as long as to decode them
PROMPTS = [LONG + "word " * i for i in range(30)]
MANY: dict[str, Any] = {"max_tokens": 6, "temperature": 1.0, "stream": True}


@pytest.fixture(params=range(12))
def moment(request: pytest.FixtureRequest) -> float:
    """Seconds from the first text to the closing."""
    return float(request.param) * 0.002


def assert_closed(outcomes: Iterator[specllama.Outcome]) -> None:
    left = list(outcomes)
    assert {type(outcome.error) for outcome in left} <= {type(None), specllama.ClosedError}
    assert any(outcome.error for outcome in left)


@pytest.mark.sampled(4)
def test_it_ends_the_texts(make_llama: MakeLlama, moment: float) -> None:
    llm = make_llama(n_ctx=1024)
    outcomes = llm.create_completions(PROMPTS, **MANY)
    next(outcomes)
    time.sleep(moment)
    llm.close()
    assert_closed(outcomes)
    with pytest.raises(specllama.ClosedError):
        llm.create_completions(["hello"])


@pytest.mark.sampled(4)
def test_it_ends_a_stream_of_another_thread(make_llama: MakeLlama, tiny_files: TinyFiles, moment: float) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=1024)
    begun = threading.Event()
    errors: list[BaseException] = []

    def read() -> None:
        try:
            while True:
                for _ in llm.create_completion(LONG, **MANY):
                    begun.set()
                    time.sleep(0.001)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    time.sleep(moment)
    while thread.is_alive():
        try:
            llm.close()
        except specllama.BusyError:
            time.sleep(0.0002)
        else:
            break
    thread.join()
    assert [type(error) for error in errors] == [specllama.ClosedError]


@pytest.mark.parametrize("name", ["tokenize", "detokenize"])
def test_it_waits_for_who_reads_the_vocabulary(
    make_llama: MakeLlama, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm = make_llama(n_ctx=1024)
    reader: tuple[Any, str] = (llm.tokenizer_, name) if name == "tokenize" else (llama_cpp, "llama_token_to_piece")
    plain, begun, found = getattr(*reader), threading.Event(), []

    def slow(*args: Any, **kwargs: Any) -> Any:
        begun.set()
        time.sleep(0.2)
        return plain(*args, **kwargs)  # reads what closing frees

    argument: Any = b"hello word" if name == "tokenize" else [5, 6, 7]
    expected = getattr(llm.tokenizer_, name)(argument)
    monkeypatch.setattr(*reader, slow)
    thread = threading.Thread(target=lambda: found.append(getattr(llm, name)(argument)))
    thread.start()
    assert begun.wait(30)
    llm.close()
    thread.join()
    assert found == [expected]
    with pytest.raises(specllama.ClosedError):
        getattr(llm, name)(argument)


def test_readers_that_never_pause(make_llama: MakeLlama) -> None:
    """Closing comes to its turn, and nobody reads what has been freed."""
    asked: list[Callable[[specllama.Llama], object]] = [
        lambda llm: llm.tokenize(b"hello word"),
        lambda llm: llm.detokenize([5, 6, 7]),
        lambda llm: llm.tokenizer().encode("hello"),
        lambda llm: llm.n_vocab(),
        lambda llm: llm.token_eos(),
    ]
    for _ in range(20):
        llm = make_llama(n_ctx=64)
        errors: list[type[BaseException]] = []

        def read(llm: specllama.Llama, ask: Callable[[specllama.Llama], object], errors: list[Any] = errors) -> None:
            try:
                while True:
                    ask(llm)
            except BaseException as error:
                errors.append(type(error))

        threads = [threading.Thread(target=read, args=(llm, ask), daemon=True) for ask in asked]
        for thread in threads:
            thread.start()
        start = time.monotonic()
        llm.close()
        assert time.monotonic() - start < 5
        for thread in threads:
            thread.join(10)
        assert errors == [specllama.ClosedError] * len(asked)


def test_who_reads_the_vocabulary_cannot_close_it(make_llama: MakeLlama) -> None:
    """As a signal handler might try."""
    llm = make_llama(n_ctx=1024)
    tokenizer: Any = llm.tokenizer_
    tokenizer.tokenize = lambda *_: llm.close()
    with pytest.raises(specllama.BusyError):
        llm.tokenize(b"hello")
    del tokenizer.tokenize
    assert llm.tokenize(b"hello")


def test_a_text_cannot_close_its_own_llama(make_llama: MakeLlama) -> None:
    llm = make_llama(n_ctx=1024)

    def close(ids: Any, scores: Any) -> Any:
        llm.close()
        return scores

    for parallel in (1, 4):
        outcomes = llm.create_completions(["hello"] * 5, max_tokens=4, logits_processor=[close], max_parallel=parallel)
        assert [type(outcome.error) for outcome in outcomes] == [specllama.BusyError] * 5
        assert all("generating" in str(outcome.error) for outcome in outcomes)
    assert [outcome.error for outcome in llm.create_completions(["hello"] * 5, max_tokens=4)] == [None] * 5


@pytest.mark.parametrize("is_plain", [False, True])
@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_draft_that_its_owner_has_closed(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, is_under_way: bool, is_plain: bool
) -> None:
    draft = (make_base if is_plain else make_llama)(tiny_files.good, n_ctx=256)
    llm = make_llama(draft=draft, n_ctx=256, max_parallel=4)
    prompts = ["the cat", "hello", "a dog sat on", "word"]
    expected = [text_of(llm, prompt, max_tokens=9, seed=1) for prompt in prompts]
    given: dict[str, Any] = {"max_tokens": 9, "temperature": 0.9, "seed": 1}
    if is_under_way:
        assert llm.create_completions(prompts, **given)[0].stats.num_draft_tokens > 0
    draft.close()
    with pytest.warns(specllama.FallbackWarning, match="the draft Llama is closed"):
        outcomes = llm.create_completions(prompts, **given)
    assert [outcome.text for outcome in outcomes] == expected
    assert sum(outcome.stats.num_draft_tokens for outcome in outcomes) == 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("is_plain", [False, True])
def test_a_draft_that_its_owner_closes_meanwhile(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, is_plain: bool, moment: float
) -> None:
    """Its weights stay for the texts that draft with them. Another target of the same draft sees that it is closed."""
    draft = (make_base if is_plain else make_llama)(tiny_files.good, n_ctx=1024)
    first, second = make_llama(draft=draft, n_ctx=1024), make_llama(draft=draft, n_ctx=1024, max_parallel=2)
    streams = [llm.create_completions(PROMPTS, num_draft_tokens=3, **MANY) for llm in (first, second)]
    for stream in streams:
        next(stream)
    time.sleep(moment)
    draft.close()
    left = [list(stream) for stream in streams]
    assert [outcome.error for outcomes in left for outcome in outcomes] == [None] * 2 * (len(PROMPTS) - 1)
    for llm in (first, second):
        with pytest.warns(specllama.FallbackWarning, match="the draft Llama is closed"):
            outcomes = llm.create_completions(["hello"] * 3, max_tokens=4, num_draft_tokens=3)
        assert [outcome.stats.num_draft_tokens for outcome in outcomes] == [0] * 3


@pytest.mark.sampled(4)
def test_a_draft_that_is_exchanged_meanwhile(make_llama: MakeLlama, tiny_files: TinyFiles, moment: float) -> None:
    """The one that was loaded for the target is freed, but not under the texts."""
    llm = make_llama(draft=tiny_files.good, n_ctx=1024, max_parallel=4)
    outcomes = llm.create_completions(PROMPTS, num_draft_tokens=3, **MANY)
    next(outcomes)
    time.sleep(moment)
    llm.draft_model = None
    assert [outcome.error for outcome in outcomes] == [None] * (len(PROMPTS) - 1)
    assert llm.create_completions(["hello"] * 3, max_tokens=4)[0].stats.num_draft_tokens == 0


def test_a_draft_is_itself_again_when_the_places_are_closed(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    draft = make_base(tiny_files.good, n_ctx=1024)
    llm = make_llama(draft=draft, n_ctx=1024)
    assert llm.create_completions(PROMPTS[:4], max_tokens=4)[0].error is None
    llm.close()
    assert text_of(draft, max_tokens=4)
    draft.close()
    assert draft._model.model is None


def test_a_draft_that_drafts_is_not_exchanged(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """A processor asks for it. The text goes on with the draft that it has."""
    llm = make_llama(draft=tiny_files.identical, num_draft_tokens=3)
    asked: list[type[BaseException]] = []

    def exchange(ids: Any, scores: Any) -> Any:
        try:
            llm.draft_model = str(tiny_files.good)
        except specllama.BusyError as error:
            asked.append(type(error))
        return scores

    before = llm.draft_model
    llm.create_completion("hello", max_tokens=20, temperature=0.0, logits_processor=[exchange])
    assert asked
    assert llm.draft_model is before
    assert llm.stats.num_accepted_tokens > 0


@pytest.mark.parametrize("how", ["pass", "raise SystemExit(0)"])
def test_python_ends_while_texts_are_under_way(tiny_files: TinyFiles, how: str) -> None:
    script = f"""
import specllama
llm = specllama.Llama({str(tiny_files.target)!r}, n_ctx=256, verbose=False)
outcomes = llm.create_completions(["hello"] * 6, max_tokens=200, stream=True, max_parallel=4)
print(next(outcomes).error)
{how}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr


def test_places_that_are_opened_anew_many_times(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_ctx=128)
    for i in range(400):
        llm.engine.texts.open(1 + i % 2)
    outcomes = llm.create_completions(["hello"] * 4, max_tokens=4)
    assert [outcome.error for outcome in outcomes] == [None] * 4


def test_a_stream_whose_llama_nobody_else_holds(tiny_files: TinyFiles) -> None:
    outcomes = specllama.Llama(str(tiny_files.target), n_ctx=256, verbose=False).create_completions(
        ["hello", "word " * 20] * 8, max_tokens=20, stream=True
    )
    assert [outcome.error for outcome in outcomes] == [None] * 16


def test_the_end_of_a_with_block_closes_it(make_llama: MakeLlama) -> None:
    with make_llama() as llm:
        assert llm.create_completion("the cat", max_tokens=2)["choices"]
    with pytest.raises(specllama.ClosedError):
        llm.create_completion("the cat", max_tokens=2)


def test_a_draft_that_is_not_there_is_missed_before_the_target_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(specllama.ModelNotFoundError, match=r"draft\.gguf does not exist"):
        specllama.Llama(str(tmp_path / "target.gguf"), draft_model=str(tmp_path / "draft.gguf"))
