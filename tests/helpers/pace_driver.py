"""A pace that knows its curves, driven round by round."""

from __future__ import annotations

from collections.abc import Sequence

from simulation import MOST, Curve

from specllama import _core_test as _test

Expectation = _test.Expectation


def looked_up(length: int, count: int = MOST, disputed: bool = False) -> list[_test.Expectation]:
    """What the lookup offers behind `length` tokens that agree."""
    return [Expectation.of_lookup(length + i, disputed) for i in range(count)]


def decided(pace: _test.Pace, lookup: Sequence[_test.Expectation]) -> tuple[str, int]:
    """What the pace says where only the lookup offers something: whose tokens come next, and how many."""
    decision = pace.decide([lookup])
    assert decision.offer == 0
    return {"draw": "model", "take": "lookup"}.get(decision.move, decision.move), decision.count


class Driver:
    """A pace that knows its curves, and rounds whose outcome the test decides."""

    def __init__(self, target: Curve, draft: Curve | None = None, block: int = 1, **constants: float) -> None:
        self.target = target
        self.draft = draft
        self.pace = _test.Pace(constants, [("model", 512, block)])
        self.pace.target.restore({n: target(n) for n in range(1, MOST + 2)})
        if draft is not None:
            self.pace.draft.restore({n: draft(n) for n in range(1, 33)})
        self.pace.begin_generation()
        assert self.draw(looked_up(20), confidence=0.99) == [], "it sees first how fast plain decoding is today"
        self.end(0)

    def draw(
        self,
        lookup: Sequence[_test.Expectation] = (),
        confidence: float = 0.9,
        most: int = MOST,
    ) -> list[str]:
        """Begins a round and drafts until the pace stops. Where each token came from."""
        missing = 0 if self.draft is None else 1
        self.pace.begin_round(most, missing)
        self.sources: list[str] = []
        self.draft_seconds = 0.0
        while True:
            done = len(self.sources)
            offered = list(lookup[done : min(most, len(lookup))])
            move, count = decided(self.pace, offered)
            assert done + count <= most
            if move == "stop":
                assert count == 0
                return self.sources
            for i in range(count):
                if move == "model":
                    assert self.draft is not None, "there is no model"
                    self.draft_seconds += self.draft(missing)
                    missing = 0
                    self.pace.drafted(Expectation.of_model(confidence, self.pace.before()))
                else:
                    self.pace.drafted(offered[i])
                missing += 1
            self.sources += [move] * count

    def end(self, num_accepted: int) -> None:
        """Verifies the round."""
        self.pace.end_round(num_accepted, self.target(len(self.sources) + 1), self.draft_seconds)
