"""A head and a model that both draft: each round has the one that promises most."""

from __future__ import annotations

import pickle
import shutil
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny
from exact import EXACT_CACHE
from fresh import RULES, assert_texts_of_plain_decoding, text_of
from simulation import MOST, TARGETS, curve
from state_heads import KINDS, fitted_state_head, write_state_head
from test_scheduler import prompts

import specllama
from specllama import _core_test as _test
from specllama.backend import cache

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import MakeLlama, TinyFiles

pytestmark = pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)

LONG = "the cat sat on the dog and " * 8
FREE, COSTLY = {1: 1e-6, 2: 1e-6, 600: 1e-5}, {1: 2.0, 2: 2.1, 600: 900.0}
TARGET = {1: 1.0, 2: 1.01, 20: 1.1, 600: 10.0}


@pytest.fixture
def both(tiny_files: TinyFiles) -> list[Path]:
    return [tiny_files.good, tiny_files.deep_head]  # in whatever order


@pytest.mark.parametrize("rule", RULES)
def test_texts_are_those_of_plain_decoding(
    make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path], rule: str
) -> None:
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, both, verify=rule, **EXACT_CACHE)
    for costs in ([TARGET, FREE, COSTLY], [TARGET, COSTLY, FREE], [TARGET, FREE, FREE]):
        llm.engine.slot.loop.restore_costs(costs)
        text_of(llm, LONG[1:], num_draft_tokens="auto", temperature=0.9, max_tokens=20)
        assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 5, "auto"])
    assert {"head", "model"} <= llm.total_stats.per_drafter.keys()


def test_a_fixed_number_is_drafted_by_the_head(make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path]) -> None:
    llm = make_llama(tiny_files.deep, both, num_draft_tokens=3, **EXACT_CACHE)
    text_of(llm, LONG)
    assert {"head"} == llm.stats.per_drafter.keys() - {"lookup", "grammar"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", RULES)
def test_a_head_that_is_no_model(
    make_llama: MakeLlama,
    tiny_files: TinyFiles,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    rule: str,
) -> None:
    """A Hydra, Medusa or blockwise head: it has no context, and what it costs is not kept as if it were the model's."""
    monkeypatch.setenv("SPECLLAMA_CACHE", str(tmp_path))
    words = tiny.word_vocabulary()
    weights = fitted_state_head(kind, words, tiny.llama_weights(words, seed=1, n_layer=4), first=259)
    head = write_state_head(tmp_path / "head.gguf", kind, words, weights)
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, [tiny_files.good, head], verify=rule, max_parallel=2, **EXACT_CACHE)
    for costs in ([TARGET, FREE, COSTLY], [TARGET, COSTLY, FREE]):
        llm.engine.slot.loop.restore_costs(costs)
        text_of(llm, LONG[1:], num_draft_tokens="auto", temperature=0.9, max_tokens=20)
        assert_texts_of_plain_decoding(llm, plain, rule, [LONG, "a dog", LONG + " no fox"], [1, 5, "auto"])
    assert {"state_head", "model"} <= llm.total_stats.per_drafter.keys()
    text_of(llm, LONG, num_draft_tokens=3)
    assert {"state_head"} == llm.stats.per_drafter.keys() - {"lookup", "grammar"}
    asked: dict[str, Any] = {"max_tokens": 12, "temperature": 0.9, "seed": 4}
    texts = [LONG, "a dog", LONG + " no fox"]
    expected = [plain.create_completion(text, **asked)["choices"][0]["text"] for text in texts]
    if rule == "coupled":
        assert [found.text for found in llm.create_completions(texts, **asked)] == expected
    kept = [path.read_text() for path in (cache.cache_dir() / "costs").iterdir()]
    assert any('"role": "draft"' in one for one in kept)
    assert not any('"role": "head"' in one for one in kept)


def test_one_whose_memory_is_full_leaves_it_to_the_other(
    make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path]
) -> None:
    """The head begins behind what was in the target's memory already; a smaller model's context ends earlier."""
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    llm = make_llama(tiny_files.deep, both, draft_kwargs={"n_ctx": 256}, n_ctx=512, num_draft_tokens=4, **EXACT_CACHE)
    for _ in range(2):
        found = text_of(llm, LONG * 5, temperature=0.0, max_tokens=60)
        assert found == text_of(plain, LONG * 5, temperature=0.0, max_tokens=60)
        assert llm.stats.fallback_reason is None
        assert llm.stats.num_draft_tokens > 0


def test_several_texts(make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path]) -> None:
    given = prompts(14, shared=40)
    sampled: dict[str, Any] = {"max_tokens": 50, "temperature": 0.9, "seed": 3}
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    expected = [found.text for found in plain.create_completions(given, **sampled)]
    for gamma, cache_tokens in ((4, None), ("auto", None), ("auto", 512)):
        llm = make_llama(
            tiny_files.deep, both, num_draft_tokens=gamma, max_parallel=6, cache_tokens=cache_tokens, **EXACT_CACHE
        )
        llm.engine.texts.open(6)
        assert llm.engine.texts._contexts is not None
        # Else what tiny models cost decides whether anything is drafted at all.
        llm.engine.texts._contexts.scheduler.restore_costs([TARGET, FREE, FREE])
        assert [found.text for found in llm.create_completions(given, **sampled)] == expected
        assert llm.total_stats.fallback_reason is None
        assert llm.total_stats.num_draft_tokens > 0


def test_what_they_cost_is_kept(make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path]) -> None:
    llm = make_llama(tiny_files.deep, both, num_draft_tokens="auto", **EXACT_CACHE)
    for costs in ([TARGET, FREE, COSTLY], [TARGET, COSTLY, FREE]):
        llm.engine.slot.loop.restore_costs(costs)
        text_of(llm, LONG, temperature=0.0)
    for name in ("target", "head", "draft"):
        assert any(f'"role": "{name}"' in path.read_text() for path in (cache.cache_dir() / "costs").iterdir())


def test_a_copy_has_both(make_llama: MakeLlama, tiny_files: TinyFiles, both: list[Path]) -> None:
    llm = make_llama(tiny_files.mtp, ["mtp", tiny_files.good], num_draft_tokens=3, **EXACT_CACHE)
    copy = pickle.loads(pickle.dumps(llm))
    assert copy.draft_model == ["mtp", str(tiny_files.good)] or copy.draft_model[0] == "mtp"
    assert text_of(copy) == text_of(llm)
    assert copy.stats.per_drafter.keys() & {"head"}
    copy.close()


def test_an_owner_may_close_the_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    plain = make_llama(tiny_files.deep, num_draft_tokens=0, **EXACT_CACHE)
    model = llama_cpp.Llama(str(tiny_files.good), n_ctx=512, n_threads=1, verbose=False)
    llm = make_llama(tiny_files.deep, [tiny_files.deep_head, model], num_draft_tokens=3, **EXACT_CACHE)
    assert text_of(llm) == text_of(plain)
    model.close()
    with pytest.warns(UserWarning, match="the draft Llama is closed: decoding plainly"):
        assert text_of(llm) == text_of(plain)
    assert [found.text for found in llm.create_completions([LONG], max_tokens=9, temperature=0.0)] == [
        text_of(plain, LONG, max_tokens=9, temperature=0.0)
    ]


@pytest.mark.parametrize(
    "names", [("deep_head", "deep_head"), ("good", "bad"), ("good",), ("deep_head", "good", "bad")]
)
def test_others_are_refused(make_llama: MakeLlama, tiny_files: TinyFiles, names: tuple[str, ...]) -> None:
    with pytest.raises(ValueError, match="must be a head and a smaller model, if it is a list"):
        make_llama(tiny_files.deep, [getattr(tiny_files, name) for name in names])


@pytest.mark.parametrize(
    ("other", "error", "message"),
    [
        ("lookup", ValueError, "must be a head"),
        (len, ValueError, "must be a head"),
        (5, TypeError, "must be a path, a model name"),
    ],
)
def test_what_decodes_nothing_is_refused(
    make_llama: MakeLlama, tiny_files: TinyFiles, other: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        make_llama(tiny_files.deep, [tiny_files.deep_head, other])


def test_auto_is_the_layer_in_the_file_or_lookup(make_llama: MakeLlama, tiny_files: TinyFiles, tmp_path: Path) -> None:
    assert make_llama(tiny_files.mtp, "auto").draft_model == "mtp"
    alone = shutil.copy(tiny_files.deep, tmp_path)
    assert make_llama(alone, "auto").draft_model == "lookup"
    with specllama.Engine.open(tiny_files.mtp, "auto", n_ctx=256, n_threads=1) as engine:
        assert engine.draft is not None
        assert "head" in engine.draft.models


# --- the pace, without models ---------------------------------------------------------------------------------------


@pytest.fixture
def pace() -> _test.Pace:
    found = _test.Pace(drawers=[("head", 512, 1), ("model", 512, 1)])
    found.target.restore({n: TARGETS["flat"](n) for n in range(1, MOST + 2)})
    for drawer, seconds in ((0, 0.004), (1, 0.013)):
        cheap = curve(seconds, {1: 1.0, 2: 1.8, 512: 150.0})
        found.draft_of(drawer).restore({n: cheap(n) for n in (1, 2, 512)})
    found.begin_generation()
    for _ in range(2):  # plain decoding is measured first
        found.begin_round(MOST, [1, 1])
        found.end_round(0, TARGETS["flat"](1), 0.0)
    return found


def _round(pace: _test.Pace, right: tuple[float, float], rng: np.random.Generator, missing: list[int]) -> int | None:
    """A round in which each drawer's tokens are right so often. Returns who drew in it."""
    pace.begin_round(MOST, missing)
    drawer, drawn = pace.drawer, 0
    while pace.decide([]).move == "draw":
        pace.drafted(_test.Expectation.of_model(right[drawer], pace.before(), by_head=drawer == 0))
        drawn += 1
    accepted = 0
    while accepted < drawn and rng.random() < right[drawer]:
        accepted += 1
    draft_seconds = drawn * pace.draft_of(drawer).seconds(1)
    pace.end_round(accepted, pace.target.seconds(drawn + 1), draft_seconds)
    return drawer if drawn else None


@pytest.mark.parametrize(("right", "best"), [((0.8, 0.85), 0), ((0.3, 0.95), 1)])
def test_the_one_with_more_tokens_a_second_draws(pace: _test.Pace, right: tuple[float, float], best: int) -> None:
    rng = np.random.default_rng(1)
    who = [_round(pace, right, rng, [1, 1]) for _ in range(200)]
    assert who[60:].count(best) > 100


def test_one_that_becomes_better_gets_its_turn(pace: _test.Pace) -> None:
    """What is not used is believed less and less, and so is tried again."""
    rng = np.random.default_rng(2)
    for _ in range(100):
        _round(pace, (0.1, 0.9), rng, [1, 1])
    who = [_round(pace, (0.95, 0.9), rng, [1, 1]) for _ in range(400)]
    assert who[-50:].count(0) > 40


def test_one_that_cannot_draw_leaves_it_to_the_other(pace: _test.Pace) -> None:
    rng = np.random.default_rng(3)
    assert {_round(pace, (0.9, 0.9), rng, [0, 1]) for _ in range(30)} <= {1, None}
    assert {_round(pace, (0.9, 0.9), rng, [1, 0]) for _ in range(30)} <= {0, None}
    assert {_round(pace, (0.9, 0.9), rng, [0, 0]) for _ in range(5)} == {None}


def test_a_second_prompt_must_pay_beside_the_first(pace: _test.Pace) -> None:
    """The head's is cheap. Of the model, which is no better, it would be lost; alone it would pay."""
    assert pace.prompts_pay([200, 200], MOST, 256) == [True, False]
    rng = np.random.default_rng(4)
    for _ in range(150):
        _round(pace, (0.05, 0.95), rng, [1, 1])
    assert pace.prompts_pay([200, 200], MOST, 10**6)[1]
