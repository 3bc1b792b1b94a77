"""What a draft gains: which of the drafted tokens are its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specllama.evidence import draft_pays
from specllama.stats import DrafterStats

PER_DRAFTER = {"head": DrafterStats(2, 8, 2), "lookup": DrafterStats(3, 10, 9)}


@pytest.mark.parametrize(
    ("draft", "per_drafter", "accepted", "drafted"),
    [
        ("head.gguf", PER_DRAFTER, 0.25, 0.5),
        ("lookup", {"lookup": PER_DRAFTER["lookup"]}, 0.9, 0.625),
        ("head.gguf", {"lookup": PER_DRAFTER["lookup"]}, 0.0, 0.0),
    ],
)
def test_what_is_looked_up_beside_a_draft_is_not_its_own(
    monkeypatch: pytest.MonkeyPatch, draft: str, per_drafter: dict[str, DrafterStats], accepted: float, drafted: float
) -> None:
    def answer(llm: Any, rendered: str, *, num_draft_tokens: Any, **_: Any) -> Any:
        is_plain = num_draft_tokens == 0
        seconds, used = (2.0, {}) if is_plain else (1.0, per_drafter)
        return SimpleNamespace(stats=SimpleNamespace(total_seconds=seconds, num_tokens=16, per_drafter=used))

    monkeypatch.setattr(draft_pays, "answer", answer)
    monkeypatch.setattr(draft_pays, "that_fit", lambda *_: ([("a", "text"), ("b", "text")], []))
    llm: Any = SimpleNamespace(draft_model=draft, reset=lambda: None)
    gain = draft_pays.gain_of(llm, 16, lambda *_: None)
    assert (gain.ratio, gain.error) == (2.0, 0.0)
    assert (gain.accepted, gain.drafted) == (accepted, drafted)
