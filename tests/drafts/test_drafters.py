"""The table of drafters, and what becomes of their offers."""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import pages
import pytest
from engine import Engine
from structs import values

from specllama import _core
from specllama import _core_test as _test
from specllama.token import Origin

if TYPE_CHECKING:
    from conftest import TinyFiles


def test_everything_that_lists_drafters_has_those_of_the_table() -> None:
    drafters = {drafter.name: drafter for drafter in _core.drafters()}
    assert {drafter.origin for drafter in drafters.values()} < set(get_args(Origin))
    assert all(drafter.summary and name in repr(drafter) for name, drafter in drafters.items())
    page = (pages.ROOT / "docs" / "statistics.md").read_text(encoding="utf-8")
    (row,) = (line for line in page.splitlines() if line.startswith("| `per_drafter`"))
    assert [name for name in drafters if f"`{name}`" not in row] == []


def test_two_drafters_of_one_kind_cannot_draw(tiny_files: TinyFiles) -> None:
    engine = Engine(tiny_files.target, tiny_files.good)
    assert engine.draft is not None
    with pytest.raises(ValueError, match="two drafters of one kind"):
        _core.Speculator(engine.target, [_core.Drafter.model(engine.draft), _core.Drafter.model(engine.draft)])
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
