"""The engine by itself: tokens in, tokens out, without llama_cpp.Llama."""

from __future__ import annotations

import gc
import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import specllama
from specllama import Engine
from specllama.engine import Gbnf, Listener, Stopped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"
SMALL: dict[str, Any] = {"n_ctx": 512, "n_batch": 64, "n_threads": 1}


@pytest.fixture
def engine(tiny_files: TinyFiles) -> Iterator[Engine]:
    with Engine.open(tiny_files.target, tiny_files.good, **SMALL) as engine:
        yield engine


def theirs(make_llama: MakeLlama, count: int, **options: Any) -> list[int]:
    llm = make_llama(n_ctx=512, n_batch=64, seed=7)
    return list(itertools.islice(llm.generate(llm.tokenize(PROMPT.encode()), **options), count))


@pytest.mark.parametrize("draft", ["good", "bad", "lookup", None])
@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_that_of_a_llama(
    make_llama: MakeLlama, tiny_files: TinyFiles, draft: str | None, temperature: float
) -> None:
    given = getattr(tiny_files, draft) if draft in ("good", "bad") else draft
    with Engine.open(tiny_files.target, given, num_draft_tokens=4, **SMALL) as engine:
        prompt = engine.tokenize(PROMPT)
        tokens = list(engine.generate(prompt, max_tokens=40, temperature=temperature, seed=7))
        again = list(itertools.islice(engine.generate(prompt, temperature=temperature, seed=7), 40))
        assert tokens == again == theirs(make_llama, 40, temp=temperature)
        assert engine.stats.num_prompt_tokens_reused == len(prompt) - 1
        assert engine.total_stats.num_tokens == 80
        assert (engine.stats.num_draft_tokens > 0) == (draft is not None)


def test_texts_and_tokens(engine: Engine, make_llama: MakeLlama) -> None:
    llm = make_llama()
    tokens = llm.tokenize(PROMPT.encode(), special=True)
    assert engine.tokenize(PROMPT) == engine.tokenize(PROMPT.encode()) == tokens
    assert engine.tokenize(PROMPT, add_bos=False) == llm.tokenize(PROMPT.encode(), add_bos=False)
    assert engine.text(tokens).strip() == PROMPT.encode()
    assert engine.model.ends_text(llm.token_eos())
    with pytest.raises(ValueError, match="out of range"):
        engine.text([10**9])


def test_tokens_of_the_callers_own(engine: Engine) -> None:
    prompt, more = engine.tokenize(PROMPT), engine.tokenize(" no", add_bos=False)
    text = engine.generate(prompt, temperature=0.0)
    first = [next(text) for _ in range(3)]
    text.append(more)
    behind = [next(text) for _ in range(5)]
    whole = engine.generate([*prompt, *first, *more], temperature=0.0)
    assert [next(whole) for _ in range(5)] == behind
    assert text.origin in ("draft", "lookup", "correction", "bonus", "plain")


def test_a_constraint(engine: Engine) -> None:
    answer = list(engine.generate(engine.tokenize("yes?"), max_tokens=4, constraint=Gbnf('root ::= "the cat"'), seed=1))
    assert engine.text(answer).strip() == b"the cat"


def test_logits_are_those_that_are_scored(engine: Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    text = engine.generate(prompt, temperature=0.0, wants_logits=True)
    token = next(text)
    logits = text.logits()
    text.close()
    rows = dict(engine.score([*prompt, token]))
    assert list(rows) == list(range(len(prompt)))
    assert rows[len(prompt) - 1].argmax() == logits.argmax() == token


def test_batches_of_ones_own(engine: Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    expected = [row for _, row in engine.score(prompt)]
    before = list(engine.generate(prompt, max_tokens=8, temperature=0.0))
    with engine.direct() as direct:
        direct.prefill(prompt[:3])
        rows = direct.decode(prompt[3:7])
        assert np.array(rows) == pytest.approx(np.array(expected[3:7]), abs=1e-4)
        direct.prefill(prompt[:4])
        assert direct.decode(prompt[4:5])[0] == pytest.approx(expected[4], abs=1e-4)
        assert direct.seconds(prompt[5:7]) > 0
        assert direct.decode_last(prompt[:6]) == pytest.approx(expected[5], abs=1e-4)
        assert list(engine.generate(prompt, max_tokens=8, temperature=0.0)) == before, "a text within the block"
        for again in (lambda: direct.clear(), lambda: direct.prefill([]), lambda: direct.prefill(prompt[:0])):
            with pytest.raises(RuntimeError, match="was used otherwise"):
                direct.decode(prompt[:1])
            again()
            assert direct.decode(prompt[:1])[0] == pytest.approx(expected[0], abs=1e-4)
            list(engine.generate(prompt, max_tokens=2, temperature=0.0))
        with engine.direct():
            pass
        direct.clear()
        assert direct.decode(prompt[:1])[0] == pytest.approx(expected[0], abs=1e-4)
    assert list(engine.generate(prompt, max_tokens=8, temperature=0.0)) == before
    assert engine.stats.num_prompt_tokens_reused == 0
    with pytest.raises(RuntimeError, match="the block of direct"):
        direct.decode(prompt[:1])
    with engine.direct("draft") as direct:
        assert len(direct.decode(prompt)) == len(prompt)
    assert list(engine.generate(prompt, max_tokens=8, temperature=0.0, num_draft_tokens=4)) == before


@pytest.mark.parametrize(
    ("tokens", "error", "message"),
    [
        ([], ValueError, "a batch of 0 tokens"),
        ([1] * 65, ValueError, "n_batch=64 of the target"),
        ([332], ValueError, "token 332 at index 0 is out of range"),
        ([1.5], TypeError, "sequence of token ids"),
    ],
)
def test_a_batch_that_cannot_be_decoded(engine: Engine, tokens: Any, error: type[Exception], message: str) -> None:
    with engine.direct() as direct:
        for decode in (direct.decode, direct.seconds):
            with pytest.raises(error, match=message):
                decode(tokens)
        assert direct.decode([1])[0].shape == (engine.model.n_vocab,)


def test_a_text_has_the_context_while_it_makes_a_token(engine: Engine) -> None:
    def direct(_: object, scores: Any) -> Any:
        with engine.direct():
            return scores

    with pytest.raises(specllama.BusyError):
        next(engine.generate(engine.tokenize(PROMPT), logits_processor=direct))
    stream = engine.generate(engine.tokenize(PROMPT))
    next(stream)
    with engine.direct(), pytest.raises(RuntimeError, match="was changed during"):
        next(stream)


def test_what_decodes(engine: Engine, tiny_files: TinyFiles) -> None:
    described = {name: model.describe() for name, model in engine.models.items()}
    assert {name: model["file"] for name, model in described.items()} == {"target": "target.gguf", "draft": "good.gguf"}
    assert (described["target"]["n_ctx"], described["target"]["n_threads"]) == (512, 1)
    assert described["target"]["size"] == described["draft"]["size"] > 0
    assert engine.why_plain is None
    for use in (engine.direct("head").__enter__, lambda: engine.keep_costs("head", {1: 0.1})):
        with pytest.raises(ValueError, match=r"this engine has no model 'head', only target, draft"):
            use()
    with Engine.open(tiny_files.target, **SMALL) as alone:
        assert (list(alone.models), alone.why_plain) == (["target"], None)


def test_costs_that_are_kept_are_known_to_the_next_engine(engine: Engine, tiny_files: TinyFiles) -> None:
    engine.keep_costs("draft", {1: 0.001, 4: 0.002})
    with Engine.open(tiny_files.target, tiny_files.good, **SMALL) as other:
        assert [each.slot.loop.costs for each in (engine, other)] == [[{}, pytest.approx({1: 0.001, 4: 0.002})]] * 2


@pytest.mark.parametrize("temperature", [0.0, 1.3])
def test_what_a_request_makes_of_logits(engine: Engine, temperature: float) -> None:
    prompt = engine.tokenize(PROMPT)
    chain = {"temperature": temperature, "top_k": 7, "top_p": 1.0, "min_p": 0.0, "repeat_penalty": 1.2}
    request = engine.request(prompt, seed=5, verify="coupled", **chain)
    text = list(engine.generate(prompt, seed=5, verify="coupled", max_tokens=12, **chain))
    rows = dict(engine.score([*prompt, *text]))
    for index, token in enumerate(text):
        row = rows[len(prompt) + index - 1]
        probabilities = request.probabilities(row, text[:index])
        assert probabilities.sum() == pytest.approx(1.0)
        assert np.count_nonzero(probabilities) == (7 if temperature else 1)
        assert probabilities[token] > 0
        assert request.coupled_choice(row, text[:index]) == token


def test_scoring_that_fails_leaves_nothing_to_reuse(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = engine.tokenize(PROMPT)
    expected = list(engine.generate(prompt, max_tokens=9, temperature=0.0))

    class Failing:
        def __getattr__(self, name: str) -> Any:
            return getattr(engine.model.sequence, name)

        def decode(self, *_: object, **__: object) -> None:
            raise specllama.DecodeError("as it happens")

    with monkeypatch.context() as patch:
        patch.setattr(type(engine.slot), "sequence", Failing())
        with pytest.raises(specllama.DecodeError):
            next(engine.score(prompt[::-1]))
    assert list(engine.generate(prompt, max_tokens=9, temperature=0.0)) == expected


def test_scoring_beside_something_else_is_refused(engine: Engine) -> None:
    tokens = engine.tokenize(PROMPT) * 9
    rows = engine.score(tokens)
    next(rows)
    list(engine.generate(tokens[:5], max_tokens=2))
    with pytest.raises(RuntimeError, match="was used for something else while tokens were scored"):
        list(rows)
    assert len(list(engine.score(tokens))) == len(tokens) - 1


@pytest.mark.parametrize("where", ["logits_processor", "stopping_criteria"])
def test_a_text_is_not_changed_while_its_next_token_is_made(engine: Engine, where: str) -> None:
    prompt = engine.tokenize(PROMPT)
    expected = list(engine.generate(prompt, max_tokens=9, temperature=0.0))
    refused = []

    def changing(_: object, scores: Any) -> Any:
        with pytest.raises(specllama.BusyError, match="generating already") as error:
            text.append([5])
        refused.append(error)
        return scores if where == "logits_processor" else False

    asked: Any = {where: [changing]}
    text = engine.generate(prompt, max_tokens=9, temperature=0.0, **asked)
    assert list(text) == expected
    assert len(refused) == 9
    text = engine.generate(prompt, max_tokens=9, temperature=0.0)
    assert next(text) == expected[0]
    text.append([5])
    assert len(list(text)) == 8  # the caller's own token is none of the nine


def test_a_listener_hears_of_it_and_ends_it(engine: Engine) -> None:
    class Hearing(Listener):
        heard: list[str]

        def __init__(self, patience: int) -> None:
            self.heard, self.patience = [], patience

        def poll(self) -> None:
            self.patience -= 1
            if self.patience == 0:
                raise Stopped

        def begin(self, tally: Any) -> None:
            self.heard.append("begin")

        def end(self, tally: Any) -> None:
            self.heard.append(f"end {tally.num_tokens > 0}")

    prompt = engine.tokenize(PROMPT)
    listener = Hearing(6)
    text = engine.generate(prompt, temperature=0.0, listener=listener)
    with pytest.raises(Stopped):
        list(text)
    assert listener.heard == ["begin", "end True"]
    assert list(text) == []
    engine.forget()
    fresh = list(engine.generate(prompt, max_tokens=9, temperature=0.0))
    assert list(engine.generate(prompt, max_tokens=9, temperature=0.0)) == fresh


def test_a_later_text_ends_an_earlier_one(engine: Engine) -> None:
    prompt = engine.tokenize(PROMPT)
    first = engine.generate(prompt)
    next(first)
    next(engine.generate(prompt))
    with pytest.raises(RuntimeError, match="ended by a later one"):
        next(first)


def test_what_is_closed_is_closed(tiny_files: TinyFiles) -> None:
    engine = Engine.open(tiny_files.target, **SMALL)
    prompt = engine.tokenize(PROMPT)
    text = engine.generate(prompt)
    next(text)
    engine.close()
    engine.close()
    uses: list[Callable[[], object]] = [
        lambda: next(text),
        lambda: engine.tokenize("a"),
        lambda: engine.text([5]),
        lambda: next(engine.generate(prompt)),
        lambda: next(engine.score(prompt)),
        lambda: engine.model.ends_text(5),
        engine.forget,
    ]
    for use in uses:
        with pytest.raises(specllama.ClosedError):
            use()


def test_an_engine_that_nobody_holds_is_freed_behind_its_last_text(tiny_files: TinyFiles) -> None:
    text = Engine.open(tiny_files.target, **SMALL).generate([1, 2, 3], max_tokens=4)
    gc.collect()
    assert len(list(text)) == 4


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"temperatur": 1.0}, TypeError, "there is no option temperatur"),
        ({"temperature": "hot"}, TypeError, "must be a number"),
        ({"num_draft_tokens": -1}, ValueError, "out of range"),
        ({"verify": "maybe"}, ValueError, "unknown verify"),
        ({"logit_bias": {10**9: 1.0}}, ValueError, "out of range"),
    ],
)
def test_what_is_wrong_is_named(engine: Engine, asked: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        next(engine.generate(engine.tokenize(PROMPT), **asked))
    assert next(engine.generate(engine.tokenize(PROMPT))) >= 0


def test_what_cannot_be_opened(tiny_files: TinyFiles) -> None:
    with pytest.raises(specllama.ModelNotFoundError):
        Engine.open("missing.gguf")
    with pytest.raises(ValueError, match="another vocabulary"):
        Engine.open(tiny_files.target, tiny_files.letters, **SMALL)
    with pytest.raises(ValueError, match="not a GGUF file"):
        Engine.open(tiny_files.not_gguf)


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ({"n_ctx": -1}, ValueError),
        ({"n_batch": 0}, ValueError),
        ({"n_batch": 1 << 30}, ValueError),
        ({"n_threads": 10**6}, ValueError),
        ({"n_threads": "2"}, TypeError),
        ({"cache_tokens": 0}, ValueError),
    ],
)
def test_sizes_that_cannot_be(tiny_files: TinyFiles, asked: dict[str, Any], error: type[Exception]) -> None:
    (name,) = asked
    with pytest.raises(error, match=name):
        Engine.open(tiny_files.target, **{**SMALL, **asked})


@pytest.mark.parametrize("tokens", [[1, 2**63], [2**70], [-1, 2**63]])
def test_ids_that_no_integer_holds(engine: Engine, tokens: list[int]) -> None:
    with pytest.raises(ValueError, match=r"token -?\d+ at index \d is out of range"):
        next(engine.generate(tokens))


def test_a_model_of_the_catalog_that_is_not_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    with pytest.raises(specllama.ModelNotFoundError, match="specllama pull qwen"):
        Engine.open("qwen2.5-coder-0.5b")


@pytest.mark.parametrize(
    ("value", "error"), [(-1, ValueError), (2**70, ValueError), (True, TypeError), (2.5, TypeError), ("9", TypeError)]
)
def test_a_number_of_tokens_that_is_none(engine: Engine, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"max_tokens=.* must be an int, from 0 up, or None"):
        engine.generate([1, 2], max_tokens=value)


def test_numbers_of_numpy(tiny_files: TinyFiles) -> None:
    five: Any = np.int64(5)
    options: dict[str, Any] = {"draft_window": np.int32(64), "draft_vocabulary": np.int64(64), "n_ctx": np.int64(512)}
    with Engine.open(tiny_files.target, tiny_files.good, num_draft_tokens=five, **options) as engine:
        prompt: Any = np.array(engine.tokenize(PROMPT))
        assert len(list(engine.generate(prompt, max_tokens=five, temperature=0.0, logit_bias={five: 1.0}))) == 5


@pytest.mark.parametrize("name", ["draft_window", "cache_tokens"])
def test_a_number_that_no_integer_of_c_holds(tiny_files: TinyFiles, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}={2**70} is out of range: .*, and at most {2**31 - 1}"):
        Engine.open(tiny_files.target, tiny_files.good, **{name: 2**70})


def test_a_cache_for_as_many_tokens_as_were_asked_for(tiny_files: TinyFiles) -> None:
    """llama.cpp rounds n_ctx up. Nobody can know the number that comes out."""
    with Engine.open(tiny_files.target, None, n_ctx=500, n_threads=1, cache_tokens=500) as engine:
        engine.texts.open(2)
    with (
        Engine.open(tiny_files.target, None, n_ctx=500, n_threads=1, cache_tokens=499) as engine,
        pytest.raises(ValueError, match="cache_tokens=499 is less than n_ctx"),
    ):
        engine.texts.open(2)


@pytest.mark.parametrize("text", [None, 5, b"root ::= [a]"])
def test_a_grammar_that_is_no_text(text: Any) -> None:
    with pytest.raises(TypeError, match="must be a text in GBNF"):
        Gbnf(text)
