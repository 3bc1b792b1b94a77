"""After every kind of interruption the caches are at a committed position: the next call equals a fresh object's."""

from __future__ import annotations

import _thread
import gc
import itertools
import signal
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from fresh import PROMPT, SAMPLING, assert_like_fresh, text_of

import specllama
from specllama.models import loading

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles


def test_stop_string_inside_an_accepted_run(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    whole = text_of(llm)
    for begin in range(4, 16, 3):
        stop = whole[begin : begin + 2]
        assert text_of(llm, stop=[stop]) == whole[: whole.index(stop)]
        chunks = llm.create_completion(PROMPT, stop=[stop], stream=True, **SAMPLING)
        assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole[: whole.index(stop)]
        assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 5, 8, 11])
def test_max_tokens_inside_a_run(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, max_tokens: int
) -> None:
    out = llm.create_completion(PROMPT, **{**SAMPLING, "max_tokens": max_tokens})
    assert out["usage"]["completion_tokens"] == max_tokens
    assert out["choices"][0]["finish_reason"] == "length"
    assert llm.stats.num_tokens == max_tokens
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_call_that_is_refused_leaves_a_stream_alone(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    tokens = llm.tokenize(PROMPT.encode())
    whole = [token.id for token in llm.generate_tokens(PROMPT, **SAMPLING)]
    stream = llm.generate_tokens(PROMPT, **SAMPLING)
    begun = [next(stream).id for _ in range(3)]
    for refused in ([*tokens, llm.n_vocab()], [-1]):
        with pytest.raises(ValueError, match="out of range"):
            list(llm.generate_tokens(refused, **SAMPLING))
    assert [*begun, *(token.id for token in stream)] == whole
    assert llm.stats.num_tokens == len(whole)
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("taken", [1, 2, 4, 9])
def test_abandoned_generator(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, taken: int) -> None:
    llm.set_seed(5)
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.9)
    for _ in range(taken):
        next(tokens)
    assert llm.stats.num_tokens == taken
    tokens.close()
    assert llm.stats.num_tokens == taken
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_generator_that_was_never_started_does_nothing(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    tokens = llm.generate(llm.tokenize(b"a dog"))
    expected = text_of(llm)
    assert expected == text_of(make_llama(draft=tiny_files.identical, num_draft_tokens=6, verify=llm.verify))
    tokens.close()
    assert_like_fresh(llm, make_llama, tiny_files)


class Boom(Exception):
    """Raised by callbacks of these tests."""


@pytest.mark.parametrize("error", [Boom, KeyboardInterrupt])
@pytest.mark.parametrize("after", [1, 3, 8])
def test_exception_in_a_stopping_criterion(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, after: int, error: type[BaseException]
) -> None:
    calls = itertools.count(1)

    def criterion(tokens: Any, logits: Any) -> bool:
        if next(calls) > after:
            raise error
        return False

    with pytest.raises(error):
        text_of(llm, stopping_criteria=llama_cpp.StoppingCriteriaList([criterion]))
    assert llm.stats.num_tokens == after
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Shells start background jobs with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no timers that send signals")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # Python drops it in a __del__
def test_signals_at_any_moment(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """What a signal raises may come anywhere. It leaves nobody behind who is thought to be in the middle."""
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=2)
    moments = np.random.default_rng(1)
    num_raised = 0

    def handle(number: int, frame: object) -> None:
        raise Boom

    before = signal.signal(signal.SIGALRM, handle)
    gc.collect()  # what is raised in a __del__ of what other tests have left is dropped
    gc.disable()
    try:
        for _ in range(150):
            try:
                signal.setitimer(signal.ITIMER_REAL, moments.uniform(0.0005, 0.02))
                for _ in range(20):
                    text_of(llm, max_tokens=8)
            except Boom:
                num_raised += 1
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0.0)
            assert [llm.tokenizing.depth, llm.engine.slot.exclusive().depth] == [0, 0]
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, before)
    assert num_raised > 110
    assert text_of(llm) == text_of(make_llama())
    llm.close()


@pytest.mark.usefixtures("interruptible")
def test_keyboard_interrupt_while_decoding(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Ctrl-C during a long generation comes out as KeyboardInterrupt, between two rounds."""
    started = threading.Event()

    def interrupt() -> None:
        started.wait()
        _thread.interrupt_main()

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        for _ in range(1000):  # until it arrives
            for _ in llm.generate(llm.tokenize(PROMPT.encode())):
                started.set()
                if llm.n_tokens > 400:
                    break
    thread.join()
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("draft", [None, "good"])
@pytest.mark.parametrize("target", ["target", "recurrent", "sliding"])
def test_keyboard_interrupt_where_a_text_begins(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, target: str, draft: str | None
) -> None:
    """The loop has cut the memory for another text already, and the text before goes on from what is left of it."""
    path, before = getattr(tiny_files, target), "the cat sat on the dog and the fox"
    given = None if draft is None else getattr(tiny_files, draft)
    llm, fresh = make_llama(path, given), make_llama(path)
    text_of(llm, before)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):

        def interrupt(_: object) -> None:
            raise KeyboardInterrupt

        patched.setattr("specllama.engine.generation.Generation._look_at_loop", interrupt)
        text_of(llm, "the dog")
    llm.load_state(llm.save_state())
    for prompt in (before, before + " it", "the dog", before):
        assert text_of(llm, prompt) == text_of(fresh, prompt)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("verbose", [False, True])
@pytest.mark.parametrize("call", ["save_state", "another draft", "close"])
def test_keyboard_interrupt_in_a_message_of_llama_cpp(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, call: str, verbose: bool
) -> None:
    """llama.cpp writes messages in the middle of these calls. What a signal raises in one comes at the call's end."""
    llm = make_llama(draft=tiny_files.good, num_draft_tokens=2, verbose=verbose)
    text_of(llm)
    calls = {
        "save_state": llm.save_state,
        "another draft": lambda: setattr(llm, "draft_model", None),
        "close": llm.close,
    }
    levels = loading._logger.GGML_LOG_LEVEL_TO_LOGGING_LEVEL
    armed = ["Ctrl-C"]

    class Logger:
        logger = loading._logger.logger

        @property
        def GGML_LOG_LEVEL_TO_LOGGING_LEVEL(self) -> Any:
            if armed:
                armed.pop()
                signal.raise_signal(signal.SIGINT)
            return levels

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(loading, "_logger", Logger())
        calls[call]()
    assert not armed
    if call != "close":
        assert text_of(llm, temperature=0.0) == text_of(make_llama(), temperature=0.0)
    llm.close()


@pytest.mark.parametrize(
    ("own", "error", "message"),
    [
        ([270] * 600, ValueError, r"600 tokens behind \d+ do not fit into n_ctx=512"),
        ([270, -1], ValueError, "token -1 at index 1 is out of range"),
        ([270, 2**40], ValueError, f"token {2**40} at index 1 is out of range"),
        ([270.5], TypeError, "what is sent must be a sequence of token ids, not of float64 values"),
        ([[270]], TypeError, "what is sent must be a sequence of token ids"),
        (["fox"], TypeError, "what is sent must be a sequence of token ids"),
    ],
)
def test_bad_tokens_of_the_callers_end_the_generation(
    llm: specllama.Llama,
    make_llama: MakeLlama,
    tiny_files: TinyFiles,
    own: list[Any],
    error: type[Exception],
    message: str,
) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    tokens = llm.generate(prompt, temp=0.0)
    first = [next(tokens) for _ in range(3)]
    with pytest.raises(error, match=message):
        tokens.send(own)
    assert list(llm.eval_tokens) == [*prompt, *first[:-1]]
    assert_like_fresh(llm, make_llama, tiny_files)


def test_stopping_criterion_inside_a_run(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    lengths = []

    def criterion(tokens: Any, logits: Any) -> bool:
        lengths.append(len(tokens))
        assert np.all(np.isfinite(logits))
        return len(lengths) == 9

    text_of(llm, stopping_criteria=llama_cpp.StoppingCriteriaList([criterion]))
    prompt = len(llm.tokenize(PROMPT.encode()))
    assert lengths[:9] == list(range(prompt, prompt + 9))
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("ending", ["next", "close"])
@pytest.mark.parametrize("disturbance", ["reset", "load_state", "eval", "eval of as many"])
def test_the_state_is_changed_during_a_generation(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, disturbance: str, ending: str
) -> None:
    """The generation ends with an error, and what the caller has put there is what the next call continues."""
    other = llm.tokenize(b"a dog is on the cat")
    text_of(llm, "a dog is on the cat and in it", max_tokens=8)
    state = llm.save_state()
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    for _ in range(5):
        next(tokens)
    if disturbance == "reset":
        llm.reset()
    elif disturbance == "load_state":
        llm.load_state(state)
    else:
        many = llm.n_tokens if disturbance == "eval of as many" else 1
        llm.reset()
        llm.eval((other * many)[: max(many, len(other))])
    n_tokens = llm.n_tokens
    if ending == "next":
        with pytest.raises(RuntimeError, match="changed during a generation"):
            next(tokens)
    else:
        tokens.close()
    assert llm.n_tokens == n_tokens
    longer = "a dog is on the cat and in it"
    assert text_of(llm, longer, temperature=0.0) == text_of(make_llama(), longer, temperature=0.0)
    assert_like_fresh(llm, make_llama, tiny_files)


def test_an_older_generation_does_not_disturb_a_newer_one(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    older = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    next(older)
    newer = llm.generate(llm.tokenize(b"a dog"), temp=0.0)
    first = [next(newer) for _ in range(3)]
    with pytest.raises(RuntimeError, match="ended by a later one"):
        next(older)
    older.close()
    rest = list(itertools.islice(newer, 12))
    newer.close()
    expected = itertools.islice(make_llama().generate(llm.tokenize(b"a dog"), temp=0.0), 15)
    assert first + rest == list(expected)
    assert_like_fresh(llm, make_llama, tiny_files)


@pytest.mark.parametrize("num_held", range(-3, 4))
def test_a_state_that_is_loaded_by_a_stopping_criterion(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, num_held: int
) -> None:
    """Whatever length it has: a generation never goes on in another text's cache."""
    prompt = llm.tokenize(PROMPT.encode())
    other = prompt[::-1] * 3
    llm.eval(other[: len(prompt) + 8 + num_held])
    state = llm.save_state()

    def criterion(tokens: Any, logits: Any) -> bool:
        if len(tokens) == len(prompt) + 8:
            llm.load_state(state)
        return False

    criteria = llama_cpp.StoppingCriteriaList([criterion])
    with pytest.raises(RuntimeError, match="was changed during a generation"):
        list(itertools.islice(llm.generate(prompt, stopping_criteria=criteria, temp=0.0), 30))
    assert llm.n_tokens == state.n_tokens
    assert_like_fresh(llm, make_llama, tiny_files)
