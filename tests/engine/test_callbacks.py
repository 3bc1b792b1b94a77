"""What a text calls may use the engine, or is refused: no text is another one for it. And what is read of a text."""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import specllama
from specllama import Engine
from specllama.engine import Generation, Listener

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"
OTHER = "a fox in the house of the"
SMALL: dict[str, Any] = {"n_ctx": 512, "n_batch": 16, "n_threads": 1, "num_draft_tokens": 4}
GREEDY: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0}
SEEDED: dict[str, Any] = {"max_tokens": 16, "temperature": 0.9, "seed": 5}
CALLED = ["begin", "poll", "end", "logits_processor", "stopping_criteria", "draft"]
USES = ["forget", "generate", "begin_another", "score", "exchange_draft"]


class Calling(Listener):
    """Calls a function at one of the places where a text calls somebody."""

    def __init__(self, where: str, function: Callable[[], None], nth: int = 3) -> None:
        self._where, self._function, self._left = where, function, nth if where not in ("begin", "end") else 1

    def called(self, where: str) -> None:
        if where == self._where:
            self._left -= 1
            if self._left == 0:
                self._function()

    def begin(self, tally: Any) -> None:
        assert tally().num_tokens == 0
        self.called("begin")

    def poll(self) -> None:
        self.called("poll")

    def end(self, tally: Any) -> None:
        self.called("end")

    def process(self, _: Any, scores: Any) -> Any:
        self.called("logits_processor")
        return scores

    def stops(self, *_: Any) -> bool:
        self.called("stopping_criteria")
        return False

    @property
    def asked(self) -> dict[str, Any]:
        functions = {"logits_processor": self.process, "stopping_criteria": self.stops}
        return {"listener": self, **{name: each for name, each in functions.items() if name == self._where}}


class Using:
    """Uses an engine in one way, once, and says whether that was refused."""

    def __init__(self, engine: Engine, use: str, other: list[int]) -> None:
        self.refused = self.happened = False
        self.left: Iterator[int] = iter(())
        self.begun: list[int] = []
        self._engine, self._use, self._other = engine, use, other

    def __call__(self) -> None:
        self.happened = True
        try:
            self._do()
        except specllama.BusyError:
            self.refused = True

    def _do(self) -> None:
        engine = self._engine
        if self._use == "forget":
            engine.forget()
        elif self._use == "score":
            list(engine.score(self._other))
        elif self._use == "exchange_draft":
            engine.slot.exchange_draft(None)
        else:
            text = engine.generate(self._other, **GREEDY)
            self.begun = [next(text)]
            if self._use == "begin_another":
                self.left = text
            else:
                self.begun += text


@contextlib.contextmanager
def opened(files: TinyFiles, target: str, draft: str | None, called: list[Calling]) -> Iterator[Engine]:
    def drafting(_: Any) -> list[int]:
        for each in called:
            each.called("draft")
        return [300, 301]

    given: Any = drafting if draft == "function" else None if draft is None else getattr(files, draft)
    with Engine.open(getattr(files, target), given, **SMALL) as engine:
        yield engine


@pytest.mark.parametrize("asked", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", CALLED)
@pytest.mark.parametrize(
    ("target", "draft"), [("target", "good"), ("target", None), ("recurrent", "recurrent_good"), ("hybrid", None)]
)
@pytest.mark.sampled(80)
def test_what_a_text_calls_uses_its_engine(
    tiny_files: TinyFiles, target: str, draft: str | None, where: str, use: str, asked: dict[str, Any]
) -> None:
    called: list[Calling] = []
    with opened(tiny_files, target, "function" if where == "draft" else draft, called) as engine:
        prompt, other = engine.tokenize(PROMPT) * 3, engine.tokenize(OTHER) * 2
        right, right_of_other = list(engine.generate(prompt, **asked)), list(engine.generate(other, **GREEDY))
        engine.forget()
        using = Using(engine, use, other)
        called.append(Calling(where, using))
        read: list[int] = []
        said = ""
        try:
            read.extend(token for token in engine.generate(prompt, **asked, **called[0].asked))
        except RuntimeError as error:
            said = str(error)
        assert using.happened
        assert "changed during a generation" in said if said else read == right
        assert not (said and using.refused)
        assert read == right[: len(read)]
        begun = using.begun + list(using.left)
        assert begun in ([], right_of_other)
        for _ in range(2):
            assert list(engine.generate(prompt, **asked)) == right
            assert list(engine.generate(other, **GREEDY)) == right_of_other
        assert [int(row.argmax()) for _, row in engine.score([*other, *right_of_other])][-16:] == right_of_other


@pytest.mark.parametrize("use", ["reset", "eval", "load_state", "save_state", "draft_model", "create_completion"])
@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
@pytest.mark.parametrize("target", ["target", "recurrent", "hybrid"])
def test_what_a_text_calls_uses_its_llama(
    make_llama: MakeLlama, tiny_files: TinyFiles, target: str, where: str, use: str
) -> None:
    draft = {"target": "good", "recurrent": "recurrent_good", "hybrid": "hybrid_good"}[target]
    llm = make_llama(getattr(tiny_files, target), draft=getattr(tiny_files, draft), num_draft_tokens=4, n_ctx=512)
    fresh = make_llama(getattr(tiny_files, target), n_ctx=512)

    def text(llama: specllama.Llama, prompt: str, **more: Any) -> str:
        return str(llama.create_completion(prompt, max_tokens=20, temperature=0.0, **more)["choices"][0]["text"])

    expected = [text(fresh, prompt) for prompt in (PROMPT, OTHER * 3)]
    text(llm, OTHER * 3)
    state = llm.save_state()
    refused: list[str] = []
    happened: list[Any] = []

    def using() -> None:
        happened.append(use)
        uses: dict[str, Callable[[], object]] = {
            "reset": llm.reset,
            "eval": lambda: llm.eval([300, 301]),
            "load_state": lambda: llm.load_state(state),
            "save_state": lambda: happened.append(llm.save_state()),
            "draft_model": lambda: setattr(llm, "draft_model", None),
            "create_completion": lambda: text(llm, OTHER),
        }
        try:
            uses[use]()
        except specllama.BusyError:
            refused.append(use)

    calling = Calling(where, using, nth=6)
    asked = {name: each for name, each in calling.asked.items() if name == where}
    said = ""
    try:
        assert text(llm, PROMPT, **asked) == expected[0]
    except RuntimeError as error:
        said = str(error)
    assert happened
    assert not said or ("changed during a generation" in said and not refused)
    for _ in range(2):
        assert [text(llm, OTHER * 3), text(llm, PROMPT)] == [expected[1], expected[0]]
    for saved in happened[1:]:  # what was saved is a state of this very text
        llm.load_state(saved)
        assert text(llm, PROMPT) == expected[0]


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("where", CALLED[:-1])
def test_one_of_several_texts_uses_the_engine(tiny_files: TinyFiles, where: str, use: str) -> None:
    with opened(tiny_files, "target", "good", []) as engine:
        prompt, other = engine.tokenize(PROMPT), engine.tokenize(OTHER)
        right, right_of_other = list(engine.generate(prompt, **SEEDED)), list(engine.generate(other, **GREEDY))
        using = Using(engine, use, other)
        count = engine.texts.open(3)
        with engine.texts.taken(count, lambda: None) as slot:
            asked = engine.request(prompt, **SEEDED, **Calling(where, using).asked)
            assert list(Generation(slot, asked)) == right
        assert using.happened
        assert not using.refused
        assert using.begun + list(using.left) in ([], right_of_other)
        assert list(engine.generate(prompt, **SEEDED)) == right


class Failing(Listener):
    def __init__(self, name: str, error: BaseException) -> None:
        def fail(*_: Any) -> None:
            raise error

        setattr(self, name, fail)


@pytest.fixture
def engine(tiny_files: TinyFiles) -> Iterator[Engine]:
    with opened(tiny_files, "target", "good", []) as engine:
        yield engine


@pytest.mark.parametrize("error", [ValueError("mine"), StopIteration(), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("where", ["begin", "poll", "end"])
def test_an_error_of_a_listener_is_its_own_texts(engine: Engine, where: str, error: BaseException) -> None:
    prompt = engine.tokenize(PROMPT)
    right = list(engine.generate(prompt, **GREEDY))
    before = engine.total_stats.num_tokens
    expected = RuntimeError if isinstance(error, StopIteration) else type(error)
    with pytest.raises(expected):
        list(engine.generate(prompt, **GREEDY, listener=Failing(where, error)))
    if where == "end":
        assert engine.total_stats.num_tokens == before + len(right)
    for _ in range(2):
        assert list(engine.generate(prompt, **GREEDY)) == right


@pytest.mark.parametrize("error", [ValueError("mine"), StopIteration()], ids=repr)
def test_an_error_of_a_listener_does_not_reach_who_ends_its_text(engine: Engine, error: Exception) -> None:
    prompt = engine.tokenize(PROMPT)
    right = list(engine.generate(prompt, **GREEDY))
    text = engine.generate(prompt, **GREEDY, listener=Failing("end", error))
    next(text)
    assert list(engine.generate(prompt, **GREEDY)) == right
    with pytest.raises(RuntimeError if isinstance(error, StopIteration) else type(error)):
        next(text)
    assert list(text) == []
    text.close()


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_a_function_that_raises_stop_iteration_ends_no_text_without_a_word(engine: Engine, where: str) -> None:
    prompt = engine.tokenize(PROMPT)
    calls = itertools.count()

    def fail(_: Any, scores: Any) -> Any:
        if next(calls) == 5:
            raise StopIteration
        return scores if where == "logits_processor" else False

    asked: Any = {where: fail}
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        list(engine.generate(prompt, **GREEDY, **asked))


def test_a_text_that_asks_itself_for_a_token_goes_on(engine: Engine) -> None:
    """Like Python's generators, which raise where they are entered twice, and go on."""
    prompt = engine.tokenize(PROMPT)
    expected = list(engine.generate(prompt, **GREEDY))
    refused = 0

    def asking(_: Any, scores: Any) -> Any:
        nonlocal refused
        with pytest.raises(specllama.BusyError):
            next(text)
        refused += 1
        return scores

    text = engine.generate(prompt, **GREEDY, logits_processor=asking)
    assert list(text) == expected
    assert refused


def test_what_is_read_of_a_text_is_its_own(engine: Engine) -> None:
    text = engine.generate(engine.tokenize(PROMPT), **GREEDY, wants_logits=True)
    for read in (text.logits, text.acceptance_probability):
        with pytest.raises(RuntimeError, match="has none yet"):
            read()
    with pytest.raises(RuntimeError, match="has none yet"):
        text.append([5])
    token = next(text)
    assert text.logits().argmax() == token
    other = engine.generate(engine.tokenize(OTHER), **GREEDY, wants_logits=True)
    next(other)
    uses: list[Callable[[], object]] = [text.logits, text.acceptance_probability, lambda: text.append([5])]
    for use in uses:
        with pytest.raises(RuntimeError, match="ended by a later one"):
            use()
    other.close()
    for use in (other.logits, other.acceptance_probability, lambda: other.append([5])):
        with pytest.raises(RuntimeError, match="has ended"):
            use()


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria", "poll"])
def test_nothing_is_read_of_a_text_while_its_next_token_is_made(engine: Engine, where: str) -> None:
    refused: list[object] = []

    def reading() -> None:
        for read in (text.logits, text.acceptance_probability):
            with pytest.raises(specllama.BusyError):
                read()
            refused.append(read)

    calling = Calling(where, reading)
    text = engine.generate(engine.tokenize(PROMPT), **GREEDY, wants_logits=True, **calling.asked)
    assert len(list(text)) == 16
    assert len(refused) == 2


def test_logits_that_nobody_has_asked_for(engine: Engine) -> None:
    text = engine.generate(engine.tokenize(PROMPT), **GREEDY)
    next(text)
    with pytest.raises(RuntimeError, match="wants_logits=True"):
        text.logits()
    assert len(list(text)) == 15


@pytest.mark.parametrize("criteria", [None, lambda *_: False], ids=["wanted", "criteria"])
def test_logits_of_one_of_several_texts(engine: Engine, criteria: Any) -> None:
    prompt, rows, tokens = engine.tokenize(PROMPT), [], []
    count = engine.texts.open(2)
    with engine.texts.taken(count, lambda: None) as slot, engine.texts.taken(count, lambda: None) as beside:
        asked = engine.request(prompt, **GREEDY, wants_logits=criteria is None, stopping_criteria=criteria)
        text = Generation(slot, asked)
        others = Generation(beside, engine.request(engine.tokenize(OTHER), **GREEDY))
        for token, _ in zip(text, others, strict=True):
            tokens.append(token)
            rows.append(text.logits())
    scored = dict(engine.score([*prompt, *tokens]))
    for place, row in enumerate(rows, len(prompt) - 1):
        np.testing.assert_allclose(row, scored[place], atol=1e-3)


@pytest.mark.parametrize(
    ("target", "draft"),
    [("target", "good"), ("target", None), ("recurrent", "recurrent_good"), ("hybrid", None), ("sliding", None)],
)
@pytest.mark.parametrize("asked", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_tokens_of_the_callers_own_are_not_generated(
    tiny_files: TinyFiles, target: str, draft: str | None, asked: dict[str, Any]
) -> None:
    with opened(tiny_files, target, draft, []) as engine:
        prompt, more = engine.tokenize(PROMPT), engine.tokenize(OTHER) * 3
        text = engine.generate(prompt, **asked)
        read = [next(text) for _ in range(5)]
        text.append(more)
        assert engine.stats.num_tokens == 5
        read += text
        assert len(read) == engine.stats.num_tokens == engine.total_stats.num_tokens == 16
        assert engine.stats.num_prompt_tokens == len(prompt) + len(more)
        if asked is GREEDY:
            assert list(engine.generate([*prompt, *read[:5], *more], max_tokens=11, temperature=0.0)) == read[5:]


def test_speed_does_not_count_tokens_of_the_callers_own(engine: Engine) -> None:
    text = engine.generate(engine.tokenize(PROMPT), temperature=0.0)
    next(text)
    text.append([300] * 400)
    text.close()
    assert (engine.stats.num_tokens, engine.stats.num_round_tokens, engine.stats.tokens_per_second) == (1, 0, 0.0)


def test_the_context_ends_a_text_with_tokens_of_the_callers_own(engine: Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    text = engine.generate(prompt, temperature=0.0)
    next(text)
    text.append([300] * 400)
    assert len(list(text)) == 512 - len(prompt) - 1 - 400
    with pytest.raises(ValueError, match="512"):
        list(engine.generate([300] * 513))
    assert list(engine.generate([300] * 512)) == []


@pytest.mark.parametrize("draft", [None, "good"])
def test_tokens_that_are_sent_are_not_generated(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str | None
) -> None:
    llm = make_llama(draft=getattr(tiny_files, draft) if draft else None)
    prompt = llm.tokenize(PROMPT.encode())
    text = llm.generate(prompt, temp=0.0)
    next(text)
    text.send([300] * 50)
    next(text)
    text.close()
    assert (llm.stats.num_tokens, llm.stats.num_prompt_tokens) == (3, len(prompt) + 50)


@pytest.mark.parametrize("n_batch", [1, 7, 31, 32])
@pytest.mark.parametrize("target", ["target", "recurrent", "hybrid", "sliding"])
def test_scoring_in_small_batches(tiny_files: TinyFiles, target: str, n_batch: int) -> None:
    path: Path = getattr(tiny_files, target)
    with (
        Engine.open(path, **{**SMALL, "n_batch": n_batch}) as small,
        Engine.open(path, **{**SMALL, "n_batch": 64}) as large,
    ):
        tokens = small.tokenize(OTHER) * 6
        rows, expected = dict(small.score(tokens)), dict(large.score(tokens))
        assert list(rows) == list(expected) == list(range(len(tokens) - 1))
        for place, row in rows.items():
            np.testing.assert_allclose(row, expected[place], atol=1e-2)


def test_scoring_more_than_the_context_has_room_for(tiny_files: TinyFiles) -> None:
    with (
        Engine.open(tiny_files.target, **SMALL) as engine,
        pytest.raises(specllama.ContextFullError, match="n_ctx=512"),
    ):
        list(engine.score([300] * 600))
    with Engine.open(tiny_files.target, **SMALL) as engine:
        assert len(list(engine.score([300] * 513))) == 512


@pytest.mark.parametrize("n_batch", [8, 31])
def test_an_echo_with_logprobs_in_small_batches(make_llama: MakeLlama, n_batch: int) -> None:
    asked: dict[str, Any] = {"echo": True, "logprobs": 1, "max_tokens": 3, "temperature": 0.0}
    llm, large = make_llama(n_batch=n_batch), make_llama(n_batch=256)
    expected = large.create_completion(OTHER * 4, **asked)["choices"][0]
    outcomes = llm.create_completions([OTHER * 4, OTHER * 4], **asked)
    answers = [llm.create_completion(OTHER * 4, **asked), *(outcome.response for outcome in outcomes)]
    for answer in answers:
        choice = answer["choices"][0]
        assert choice["text"] == expected["text"]
        assert choice["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
        likely = [each["logprobs"]["token_logprobs"][1:] for each in (choice, expected)]
        np.testing.assert_allclose(likely[0], likely[1], atol=1e-3)


@pytest.mark.parametrize("given", ["root ::= 'a'", 5, dict], ids=repr)
def test_what_is_no_constraint(engine: Engine, given: Any) -> None:
    with pytest.raises(TypeError, match=r"constraint=.* must be Gbnf\(text\) or Schema\(grammar\)"):
        engine.generate([5], constraint=given)


@pytest.mark.parametrize("given", [None, Listener, print], ids=repr)
def test_what_is_no_listener(engine: Engine, given: Any) -> None:
    with pytest.raises(TypeError, match=r"listener=.* must be a Listener"):
        engine.generate([5], listener=given)
    with pytest.raises(TypeError, match=r"listener=.* must be a Listener"):
        list(engine.score([5, 6], given))


def test_a_lent_draft_that_is_closed_is_called_the_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    lent = make_llama(tiny_files.good)
    llm = make_llama(draft=lent, num_draft_tokens=4)
    text = llm.create_completion(PROMPT, max_tokens=30, temperature=0.0, stream=True)
    next(text)
    lent.close()
    with pytest.warns(specllama.FallbackWarning) as warned:
        assert len(list(text)) > 1
    assert llm.stats.fallback_reason == "the draft Llama is closed"
    assert [str(each.message) for each in warned] == ["the draft Llama is closed: decoding plainly, without the draft"]
