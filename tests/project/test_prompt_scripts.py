"""scripts/agent_prompts.py, after_restart.py and keeping_cost.py: what they send, count and record. No times."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import after_restart
import agent_prompts
import figures
import httpx
import keeping_cost
import pytest
import recorded
from programs import Theirs
from transcripts import Sizes, num_distinct, written

if TYPE_CHECKING:
    from conftest import TinyFiles

SIZES = Sizes(system=700, question=20, answer=10, least_result=20, most_result=60)
ARGUMENTS = [f"--{name.replace('_', '-')}={value}" for name, value in vars(SIZES).items()]


def letters(text: str) -> list[int]:
    return [*text.encode()]


def test_prompts_of_an_agent_grow_and_sub_agents_begin_like_it() -> None:
    prompts = written(letters, 2, 3, SIZES)
    assert prompts == written(letters, 2, 3, SIZES)
    assert prompts != written(letters, 2, 4, SIZES)
    of = {name: [one.tokens for one in prompts if one.agent == name] for name in ("main", "one", "two")}
    assert [len(several) for several in of.values()] == [12, 4, 4]
    for several in of.values():
        for one, other in itertools.pairwise(several):
            assert other[: len(one)] == one and len(one) + 30 < len(other) < len(one) + 200
    assert sum(one.after_restart for one in prompts) == 3
    system = of["main"][0][:700]
    assert all(several[0][:700] == system for several in of.values())
    assert len({tuple(several[0]) for several in of.values()}) == 3


def test_distinct_tokens_are_counted() -> None:
    for seed in range(20):
        draw = random.Random(seed)
        prompts = [[draw.randint(0, 1) for _ in range(draw.randint(1, 9))] for _ in range(12)]
        beginnings = {tuple(one[:count]) for one in prompts for count in range(1, len(one) + 1)}
        assert num_distinct(prompts) == len(beginnings)


@pytest.mark.long
def test_an_agents_prompts_are_read_once(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    model, ways = str(tiny_files.target), ["no store", "cache_dir", "both, draft"]
    draft = ["--draft", str(tiny_files.good)]
    run = [model, *draft, *ARGUMENTS, "-t", "1", "--repeats", "1", "--record", "agent-prompts-q4_k_m"]
    agent_prompts.main([*run, "--ways", *ways])
    found = json.loads((tmp_path / "agent-prompts-q4_k_m.json").read_text(encoding="utf-8"))
    new = [prompt["new"] for prompt in found["prompts"]]
    assert len(new) == 20 and sum(new) < 4000
    for way, replay in zip(ways, found["replays"], strict=True):
        over = [turn["num_decoded"] - count for turn, count in zip(replay["turns"], new, strict=True)]
        assert replay["way"] == way and min(over) >= 0
        assert max(over) > 700 if way == "no store" else max(over) <= 256
    assert found["replays"][2]["turns"][4]["num_from_disk"] > 700
    assert figures.agent_prompts(tmp_path).count("\n") == 1 + len(ways)
    assert f"{sum(new):,} are distinct" in figures.agent_prompts_sent(tmp_path)


@pytest.mark.long
def test_a_text_is_put_back_after_a_restart(
    tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    run = [str(tiny_files.target), "--behind", "600", "-t", "1", "--repeats", "1", "--record", "after-restart-q4_k_m"]
    after_restart.main(run)
    (row,) = json.loads((tmp_path / "after-restart-q4_k_m.json").read_text(encoding="utf-8"))["rows"]
    assert (row["read"][0]["num_decoded"], row["put back"][0]["num_decoded"]) == (600, 1)
    assert row["put back"][0]["num_from_disk"] == 599
    assert "| 600 | " in figures.after_restart(tmp_path)


def test_keeping_is_compared(tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    run = [str(tiny_files.target), "--lengths", "4", "-t", "1", "--repeats", "2", "--record", "keeping-cost"]
    keeping_cost.main(run)
    (row,) = json.loads((tmp_path / "keeping-cost.json").read_text(encoding="utf-8"))["rows"]
    assert [len(row[way]) for way in ("with", "without")] == [2, 2]
    assert "| 4 | " in figures.keeping_cost(tmp_path)


def test_copying_counts_all_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "file").write_bytes(b"x" * 1000)
    (tmp_path / "other").write_bytes(b"x" * 24)
    assert after_restart.copied(tmp_path)[1] == 1024


def test_slots_of_llama_server_are_saved_and_restored(tmp_path: Path) -> None:
    """Each agent has one, and it is restored once, in front of the agent's first prompt."""
    sent: list[Any] = []

    def answered(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        sent.append((str(request.url.raw_path, "ascii"), body.get("filename", body.get("id_slot"))))
        return httpx.Response(200, text='data: {"content": "x"}\n\ndata: {"timings": {"prompt_n": 3}}\n\n')

    (tmp_path / "two").touch()
    with httpx.Client(transport=httpx.MockTransport(answered), base_url="http://server") as client:
        server = Theirs(client, tmp_path)
        assert [server.ask(agent, [5, 6, 7], 1).num_decoded for agent in ("one", "two", "two")] == [3, 3, 3]
        server.save()
    asked, restored = ("/completion", 1), ("/slots/1?action=restore", "two")
    saved = [("/slots/0?action=save", "one"), ("/slots/1?action=save", "two")]
    assert sent == [("/completion", 0), restored, asked, asked, *saved]
