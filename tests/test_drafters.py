"""The table of drafters, and the one that the docs show: bigram."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import pages
import pytest
from engine import Engine
from structs import values

from specllama import _core
from specllama import _core_test as _test
from specllama.engine.drafts import TEXT_DRAFTERS
from specllama.token import Origin

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and the cat sat on the"


def test_everything_that_lists_drafters_has_those_of_the_table() -> None:
    drafters = {drafter.name: drafter for drafter in _core.drafters()}
    assert {drafter.origin for drafter in drafters.values()} < set(get_args(Origin))
    assert TEXT_DRAFTERS == ("lookup", "bigram")
    assert all(drafter.summary and name in repr(drafter) for name, drafter in drafters.items())
    page = (pages.ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `per_drafter`"))
    assert [name for name in drafters if f"`{name}`" not in row] == []


@pytest.mark.parametrize(
    ("settings", "gamma"),
    [
        ({"temperature": 0.0}, 4),
        ({"temperature": 0.7}, 4),
        ({"temperature": 0.0}, "auto"),
        ({"temperature": 0.7}, "auto"),
    ],
)
def test_bigram_drafts_and_changes_nothing(make_llama: MakeLlama, settings: dict[str, Any], gamma: int | str) -> None:
    llm = make_llama(draft="bigram", num_draft_tokens=gamma)
    plain = [text(llm, seed, num_draft_tokens=0, **settings) for seed in range(3)]
    assert [text(llm, seed, **settings) for seed in range(3)] == plain
    assert llm.total_stats.num_draft_tokens_decoded == 0
    if gamma == 4:
        assert llm.total_stats.per_drafter["bigram"].num_accepted_tokens > 10


def text(llm: Any, seed: int, **settings: Any) -> list[int]:
    return [token.id for token in llm.generate_tokens(PROMPT, max_tokens=60, seed=seed, **settings)]


def test_a_bigram_is_the_most_frequent_follower(tiny_files: TinyFiles) -> None:
    """Of the corpus and the text, and no longer after a rewind."""
    engine = Engine(tiny_files.target)
    engine.speculator = _core.Speculator(engine.target, ["bigram"], corpus=[270, 280, 270, 281, 270, 281])  # type: ignore[arg-type]
    bias = dict.fromkeys((281,), 100.0)
    engine.begin([1, 281, 270], gamma=1, temperature=0.0, logit_bias=bias)
    assert engine.step() == [281, 281]
    assert engine.rounds[-1].num_accepted == 1, "281 has followed 270 twice, 280 once"
    engine.begin([1, 270, 280, 270, 280, 270], gamma=1, temperature=0.0, logit_bias={280: 100.0})
    assert engine.step() == [280, 280]
    assert engine.rounds[-1].num_accepted == 1, "here 280 has followed more often"
    engine.begin([1, 270], gamma=1, temperature=0.0, logit_bias={281: 100.0})
    assert engine.step() == [281, 281]
    assert engine.rounds[-1].num_accepted == 1, "that text is forgotten"
    engine.close()


def test_drafters_that_cannot_be_are_refused(tiny_files: TinyFiles) -> None:
    engine = Engine(tiny_files.target, tiny_files.good)
    with pytest.raises(ValueError, match="unknown drafter 'trigram': use some of 'model', 'lookup', 'bigram'"):
        _core.Speculator(engine.target, ["trigram"])
    with pytest.raises(ValueError, match="'model' needs a draft model"):
        _core.Speculator(engine.target, ["model"])
    with pytest.raises(ValueError, match="'function' needs a function"):
        _core.Speculator(engine.target, ["function"])
    with pytest.raises(ValueError, match="two drafters that draw"):
        _core.Speculator(engine.target, ["model", "model"], draft=engine.draft)
    engine.close()


def test_offers_of_several_drafters_are_compared(tiny_files: TinyFiles) -> None:
    """The pace takes the offer of which it expects more, whatever its place."""
    pace = _test.Pace()
    pace.target.restore({n: 0.05 + 0.001 * n for n in range(1, 18)})
    pace.begin_generation()
    pace.begin_round(16, 0)
    pace.end_round(0, 0.051, 0.0)
    likely, unlikely = [_test.Expectation.of_lookup(40, False)] * 3, [_test.Expectation.of_lookup(2, True)] * 3
    for offers, best in (([likely, unlikely], 0), ([unlikely, likely], 1), ([[], unlikely, likely], 2)):
        pace.begin_round(16, 0)
        assert values(pace.decide(offers)) == ("take", 3, best)
