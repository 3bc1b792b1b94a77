"""The figures of README and docs: they are what docs/data/ says, all of it is shown, and what is missing is said."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path

import figures
import pages
import pytest
import recorded
import tables

SCRIPTS = pages.ROOT / "scripts"
DATA = pages.ROOT / "docs" / "data"


def test_pages_show_what_the_data_says() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "tables.py"), "--check"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_page_that_is_changed_by_hand_is_found() -> None:
    page = pages.ROOT / "docs" / "kernels.md"
    text = page.read_text(encoding="utf-8")
    written = tables.written
    assert written(text) == text
    shown = figures.ik_llama_cpp(DATA)
    assert shown in text
    changed = text.replace(shown, re.sub(r"\d\.\d\d", "98.76", shown, count=1))
    assert "98.76" in changed and written(changed) == text


def test_every_figure_is_shown_and_every_marker_is_closed() -> None:
    texts = [page.read_text(encoding="utf-8") for page in pages.PAGES]
    shown = [name for text in texts for name in tables.names_in(text)]
    assert set(shown) == set(figures.TABLES)
    for text in texts:
        opened, closed = len(re.findall("<!-- data:", text)), text.count("<!-- /data -->")
        assert opened == closed == len(tables.names_in(text))


def test_a_marker_within_a_line_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(figures.TABLES, "gain", lambda data: "2.0 times" if data == DATA else data.name)
    written = tables.written
    assert written("a <!-- data: gain --><!-- /data --> b") == "a <!-- data: gain -->2.0 times<!-- /data --> b"
    assert written("<!-- data: gain -->\nold\n<!-- /data -->") == "<!-- data: gain -->\n\n2.0 times\n\n<!-- /data -->"
    assert written("<!-- data: gain of other -->1<!-- /data -->") == "<!-- data: gain of other -->other<!-- /data -->"
    with pytest.raises(LookupError, match=r"no figure is called loss: there are .*gain"):
        written("<!-- data: loss --><!-- /data -->")


def test_what_is_not_measured_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path)
    for name, function in figures.TABLES.items():
        with pytest.raises(figures.MissingError):
            function(tmp_path)
        assert tables.made(name, in_line=False) == "Not measured yet."


def test_data_is_kept_with_machine_and_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(recorded, "DATA", tmp_path / "data")
    run = {"speedup": 1.23456789, "stats": {"num_drafts": 3, "num_tokens": 9}}
    recorded.keep("one", {"machine": {"cpu": "x"}, "runs": [run], "times": (0.000123456789,)})
    kept = json.loads((tmp_path / "data" / "one.json").read_text(encoding="utf-8"))
    assert set(kept) == {"commit", "machine", "runs", "times"}
    assert kept["runs"] == [{"speedup": 1.2346, "stats": {"num_tokens": 9}}]
    assert kept["times"] == [0.00012346]
    with pytest.raises(ValueError, match="two does not say on which machine"):
        recorded.keep("two", {})


def test_data_is_made_by_parts_that_exist_and_names_no_folders() -> None:
    listed = subprocess.run(
        ["bash", "-c", f"source <(sed -n '/^parts()/,/^}}/p' '{SCRIPTS / 'measure.sh'}'); parts"],
        capture_output=True,
        text=True,
        check=True,
    )
    only_by_name = {"compatibility", "ik-llama-cpp", "llama-server-q4_k_m", "many-texts-spec-bench-q4_k_m"}
    only_by_name |= {"long-contexts-q4_k_m", "tools-q4_k_m", "training-smollm2", "training-siblings"}
    only_by_name |= {
        "training-kinds",
        "agent-prompts-q4_k_m",
        "after-restart-q4_k_m",
        "learning-from-use",
        "arm-estimate",
    }
    only_by_name |= {f"whole-{kind}-7b" for kind in figures.SETS}
    only_by_name |= {f"costs-{name}-{weights}" for name in figures.INSTRUCTION_SETS for weights in figures.TYPES}
    methods = itertools.product(figures.METHODS, figures.SETS, figures.TARGETS)
    only_by_name |= {f"method-{name}-{kind}-{weights}" for name, kind, weights in methods}
    parts = {*listed.stdout.split(), *only_by_name}
    for path in DATA.rglob("*.json"):
        text = path.read_text(encoding="utf-8")
        found = json.loads(text)
        if not path.stem.startswith("traces-"):  # of scripts/record_traces.py: no times, for scripts/replay.py
            assert path.stem in parts
            assert found.get("source") or (found["commit"] and found["machine"]["cpu"])
        assert not re.search(r"(?<![\w.:/])/(?:root|home|work|tmp|Users)/", text), path
