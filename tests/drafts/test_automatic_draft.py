"""`draft_model="auto"`: what it takes of that which is on this machine, what it remembers, and what it says."""

from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from state_heads import fitted_state_head, write_state_head

import specllama
from specllama import cli
from specllama.engine.drafts import automatic
from specllama.engine.drafts.automatic import remember
from specllama.engine.learned import learned_path
from specllama.models.found_drafts import survey
from specllama.training.target import read_target

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = pytest.mark.usefixtures("home")

SETTINGS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1}
PROMPT = "the cat sat on the dog"
FLAT = {n: 0.1 + 0.001 * n for n in range(1, 17)}
STEEP = {n: 0.1 * n for n in range(1, 17)}


@pytest.fixture
def small(target: Path, tiny_files: TinyFiles) -> Path:
    """A draft of the target's vocabulary, beside it."""
    return Path(shutil.copy(tiny_files.bad, target.with_name("small.gguf")))


@pytest.fixture
def foreign(target: Path, tiny_files: TinyFiles) -> Path:
    """A draft of another tokenizer, beside it."""
    return Path(shutil.copy(tiny_files.foreign, target.with_name("foreign.gguf")))


def keep_costs(target: Path, of_target: dict[int, float], draft: Path | None = None, of_draft: float = 0.0) -> None:
    with specllama.Engine.open(target, draft, n_ctx=64, n_threads=1) as engine:
        engine.keep_costs("target", of_target)
        if draft is not None:
            engine.keep_costs("draft", {1: of_draft})


def taken(target: Path, **options: Any) -> Any:
    """The path or the name of what "auto" is, in both classes."""
    with specllama.Engine.open(target, "auto", n_ctx=256, n_threads=1) as engine:
        by_engine = None if engine.draft is None else engine.draft.reopened_by
    with specllama.Llama(str(target), draft_model="auto", verbose=False, **SETTINGS, **options) as llm:
        assert by_engine == (None if llm.engine.draft is None else llm.engine.draft.reopened_by)
    return by_engine


@pytest.fixture
def surveys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models for which files were looked into."""
    asked = []

    def look(path: str) -> Any:
        asked.append(path)
        return survey(path)

    monkeypatch.setattr(automatic, "survey", look)
    return asked


def test_nothing_is_here(target: Path) -> None:
    assert taken(target) == "lookup"


def test_a_model_is_taken_where_it_pays(target: Path, small: Path) -> None:
    """By what batches cost here. The text is that without it."""
    cost = survey(str(target)).found[0].cost
    keep_costs(target, FLAT, small, 0.1 * cost / 2)
    assert taken(target) == str(small)
    texts = []
    for draft in ("auto", None):
        with specllama.Llama(str(target), draft_model=draft, verbose=False, num_draft_tokens=3, **SETTINGS) as llm:
            texts.append(llm.create_completion(PROMPT, max_tokens=40, temperature=0.9, seed=4))
    assert texts[0]["choices"] == texts[1]["choices"]


def test_a_file_that_was_cut_off_is_not_taken(target: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shorter it is, the less it would seem to cost."""
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    whole = small.read_bytes()
    small.write_bytes(whole[: len(whole) // 2])
    with pytest.warns(UserWarning, match=r"'auto' leaves small\.gguf out: .* is truncated or damaged"):
        assert taken(target) == "lookup"
    assert cli.main(["drafts", str(target)]) == 0
    assert "cannot be used: " in (out := capsys.readouterr().out)
    assert f"{small} is truncated or damaged: it has {len(whole) // 2} bytes, and needs more than" in out
    with pytest.raises(ValueError, match="is truncated or damaged"):
        survey(str(small))
    small.write_bytes(whole)
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    assert taken(target) == str(small)


def test_no_model_is_taken_where_none_pays(target: Path, small: Path) -> None:
    keep_costs(target, STEEP, small, 0.04)
    assert taken(target) == "lookup"


def test_it_is_decided_again_once_costs_are_known(target: Path, small: Path, surveys: list[str]) -> None:
    """Where T(n) is not known it is guessed, carefully."""
    assert taken(target) == taken(target) == "lookup"
    assert len(surveys) == 1
    keep_costs(target, FLAT, small, 0.05 * survey(str(target)).found[0].cost)
    assert taken(target) == taken(target) == str(small)
    assert len(surveys) == 2


def test_a_head_goes_before_a_model(target: Path, small: Path, tiny_files: TinyFiles) -> None:
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    head = Path(shutil.copy(tiny_files.deep_head, target.with_name("eagle3-target.gguf")))
    shutil.copy(tiny_files.deep_head, target.with_name("eagle3-another.gguf"))
    assert taken(target) == str(head)


def test_another_tokenizer_is_taken_only_where_it_is_known_to_pay(target: Path, foreign: Path) -> None:
    (found,) = survey(str(target)).usable
    assert found.kind == "foreign"
    assert taken(target) == "lookup"
    remember(survey(str(target)), {str(foreign): (1.2, 0.02), "lookup": (1.1, 0.02)})
    with pytest.warns(UserWarning, match="the draft has another tokenizer"):
        assert taken(target) == str(foreign)


@pytest.mark.parametrize(
    ("ratios", "expected"),
    [
        ({"small": 1.3, "lookup": 1.1}, "small"),
        ({"small": 1.3, "lookup": 1.4}, "lookup"),
        ({"small": 1.3, "lookup": 1.28}, "lookup"),  # no more than its standard error above it
        ({"small": 0.9, "lookup": 0.99}, "lookup"),
        ({"small": 1.02, "lookup": 0.99}, "lookup"),  # less than its standard error
        ({"small": 0.9, "lookup": 0.9}, None),
    ],
)
def test_what_was_measured_decides(target: Path, small: Path, ratios: dict[str, float], expected: str | None) -> None:
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    assert taken(target) == str(small)
    remember(survey(str(target)), {name.replace("small", str(small)): (ratio, 0.03) for name, ratio in ratios.items()})
    assert taken(target) == (str(small) if expected == "small" else expected)


def test_what_was_measured_is_of_that_file(target: Path, small: Path) -> None:
    """Of another one under its name it says nothing. What is said of others stays."""
    other = Path(shutil.copy(small, target.with_name("other.gguf")))
    remember(survey(str(target)), {str(small): (1.5, 0.02), str(other): (1.2, 0.02)})
    assert taken(target) == str(small)
    words = tiny.word_vocabulary()
    tiny.write_llama(small, words, tiny.llama_weights(words, seed=4, n_layer=1))
    assert taken(target) == str(other)


def test_no_header_is_read_once_it_is_decided(target: Path, small: Path, surveys: list[str]) -> None:
    """A new file, another one under the same name, or one less has it decided again."""
    taken(target)
    assert surveys == [str(target)]
    taken(target)
    assert len(surveys) == 1
    changes: list[Callable[[], Any]] = [
        lambda: shutil.copy(small, target.with_name("new.gguf")),
        lambda: target.with_name("new.gguf").write_bytes(target.read_bytes() + b"more"),
        lambda: target.with_name("new.gguf").unlink(),
    ]
    for number, change in enumerate(changes, start=2):
        change()
        taken(target)
        assert len(surveys) == number


def damaged(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(change(content) or content))


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(path.read_bytes()[:200]), id="cut"),
        pytest.param(lambda path: path.write_bytes(b"[" * 60_000), id="brackets"),
        pytest.param(lambda path: path.write_bytes(b"\xff\xfe"), id="no text"),
        pytest.param(lambda path: damaged(path, lambda found: [found]), id="list"),
        pytest.param(lambda path: damaged(path, lambda found: found.update(format=99)), id="format"),
        pytest.param(lambda path: damaged(path, lambda found: found["key"].update(size=1)), id="key"),
        pytest.param(lambda path: damaged(path, lambda found: found.pop("seen") and found), id="missing"),
        pytest.param(lambda path: damaged(path, lambda found: found.update(otherwise="/x.gguf")), id="otherwise"),
        pytest.param(lambda path: damaged(path, lambda found: found["paying"][0].update(weights=-5)), id="negative"),
        pytest.param(lambda path: damaged(path, lambda found: found["paying"][0].update(draft_model=5)), id="number"),
        pytest.param(lambda path: damaged(path, lambda found: found["paying"][0].update(more=1)), id="more"),
        pytest.param(
            lambda path: damaged(path, lambda found: found.update(measured={"a": {"ratio": 1}})), id="measured"
        ),
        pytest.param(
            lambda path: damaged(
                path, lambda found: found.update(measured={"a": {"ratio": 10**400, "error": 0, "identity": [0, 0]}})
            ),
            id="huge",
        ),
    ],
)
def test_a_damaged_memory_is_ignored_and_rewritten(
    target: Path, small: Path, home: Path, surveys: list[str], damage: Callable[[Path], Any]
) -> None:
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    assert taken(target) == str(small)
    (path,) = (home / "specllama" / "drafts").iterdir()
    whole = path.read_bytes()
    damage(path)
    assert path.read_bytes() != whole
    assert taken(target) == str(small)
    assert path.read_bytes() == whole
    assert len(surveys) == 2


def test_a_cache_that_cannot_be_written(
    target: Path, small: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place in (str(tmp_path / "file"), "~nobody-of-that-name/x"):
        monkeypatch.setenv("SPECLLAMA_CACHE", place)
        assert taken(target) == "lookup"


def test_what_does_not_fit_into_memory_is_not_taken(
    target: Path, small: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, surveys: list[str]
) -> None:
    """For the time being: what was decided stays. The target counts, too, but where it is open."""
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    assert taken(target) == str(small)
    free = (1 << 28) + small.stat().st_size + target.stat().st_size // 2
    monkeypatch.setattr(automatic, "free_memory", lambda: free)
    with caplog.at_level(logging.INFO, "specllama.drafts"):
        assert taken(target) == "lookup"
    assert "there is not enough free memory for small.gguf" in caplog.text
    with specllama.Llama(str(target), verbose=False, **SETTINGS) as llm:
        monkeypatch.setattr(automatic, "free_memory", lambda: 2 * free)
        llm.draft_model = "auto"
        assert llm.engine.draft is not None
        assert llm.engine.draft.reopened_by == str(small)
    assert len(surveys) == 1


def test_longer_contexts_need_more_memory(target: Path, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    found = survey(str(target))
    (draft,) = found.usable
    cache = found.memory - found.size + draft.memory - draft.size
    free = (1 << 28) + found.size + draft.size + cache // 4
    monkeypatch.setattr(automatic, "free_memory", lambda: free)
    assert automatic.choose(str(target), automatic.Room(1000)).draft_model == str(small)
    assert automatic.choose(str(target), automatic.Room(2000)).draft_model == "lookup"


def test_what_cannot_be_opened_does_not_keep_the_target_from_it(target: Path, small: Path) -> None:
    """Its header is whole, and llama.cpp finds something wrong."""
    small.write_bytes(small.read_bytes().replace(b"blk.0.ffn_up.weight", b"blk.0.ffn_xx.weight"))
    remember(survey(str(target)), {str(small): (1.5, 0.02)})
    with pytest.warns(UserWarning, match=r"'auto' looks up the text, because small\.gguf cannot be opened: "):
        llm = specllama.Llama(str(target), draft_model="auto", verbose=False, **SETTINGS)
    assert llm.draft_model == "lookup"
    assert llm.create_completion(PROMPT, max_tokens=5, temperature=0.0)["usage"]["completion_tokens"] == 5
    llm.close()


def test_what_is_gone_by_now(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = automatic.Choice(str(target.with_name("gone.gguf")), "it was there")
    monkeypatch.setattr("specllama.engine.drafts.kinds.choose", lambda path, room: choice)
    with pytest.warns(UserWarning, match=r"because gone\.gguf cannot be opened: .*does not exist"):
        assert taken(target) == "lookup"


def test_a_head_that_has_learned_from_use(target: Path, tiny_files: TinyFiles) -> None:
    """By how right it is, and what it costs, as a model: until then it joins lookup. Others' heads are not for it."""
    keep_costs(target, FLAT)
    weights = read_target(str(target)).weights
    for folder, is_its in ((weights, True), (weights[::-1], False)):
        path = learned_path(folder)
        path.parent.mkdir(parents=True)
        for right, is_good in ((0.05, False), (0.9, True)):
            write_learned(path, target, right)
            found = {one.draft_model: one for one in survey(str(target)).found}
            assert (str(path) in found) == is_its
            assert taken(target) == (str(path) if is_good and is_its else "lookup")
            with specllama.Llama(str(target), draft_model="auto", learn=True, verbose=False, **SETTINGS) as llm:
                assert llm.draft_model == (str(path) if is_good and is_its else "auto")
        path.unlink()


def write_learned(path: Path, target: Path, right: float) -> None:
    """A head that says how right it is."""
    words = tiny.word_vocabulary()
    weights = fitted_state_head("medusa", words, tiny.llama_weights(words, seed=1), first=259)
    write_state_head(path, "medusa", words, weights, trained_for=(target.name, right))


def test_options_that_what_is_taken_has_no_use_for(target: Path, small: Path) -> None:
    """What that is depends on the machine. A mask is for one draft alone."""
    given: dict[str, Any] = {"draft_window": 100, "draft_vocabulary": 64, "draft_kwargs": {"n_ctx": 128}}
    assert taken(target, **given) == "lookup"
    remember(survey(str(target)), {str(small): (1.5, 0.02)})
    assert taken(target, **given) == str(small)
    with pytest.raises(ValueError, match="draft_mask_token is for a parallel draft model: leave it out"):
        taken(target, draft_mask_token=5)


def test_it_is_said_once(target: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By commands on stderr. A Llama that is verbose says it each time, among what llama.cpp says."""
    keep_costs(target, FLAT, small, 0.1 * survey(str(target)).found[0].cost / 2)
    command = ["generate", "-m", str(target), "-md", "auto", "-p", PROMPT, "-n", "4", "-t", "1", "-c", "256"]
    said = []
    for _ in range(2):
        assert cli.main(command) == 0
        said.append([line for line in capsys.readouterr().err.splitlines() if "auto" in line])
    line = (
        r"specllama: draft_model='auto' is small\.gguf: [\d.]+ times as fast as plain decoding is expected, by what "
        "batches cost here"
    )
    assert [len(lines) for lines in said] == [1, 0]
    assert re.fullmatch(line, said[0][0])
    for _ in range(2):
        specllama.Llama(str(target), draft_model="auto", **SETTINGS).close()
        assert "draft_model='auto' is small.gguf: " in capsys.readouterr().err


def test_it_can_be_forgotten(target: Path, small: Path, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = Path(shutil.copy(target, target.with_name("other.gguf")))
    remember(survey(str(target)), {str(small): (1.5, 0.02)})
    assert (taken(target), taken(other)) == (str(small), "lookup")
    assert cli.main(["drafts", "--forget", str(target)]) == 0
    assert "forgot what -md auto is for 1 model\n" in capsys.readouterr().err
    assert taken(target) == "lookup"
    assert cli.main(["drafts", "--forget"]) == 0
    assert "for 2 models\n" in capsys.readouterr().err
    assert [*(home / "specllama" / "drafts").iterdir()] == []
    assert cli.main(["drafts", "--forget"]) == 0
    assert "for 0 models\n" in capsys.readouterr().err
    assert cli.main(["drafts"]) == 2
    assert "give a model: specllama drafts MODEL" in capsys.readouterr().err


def test_the_command_says_what_it_is(target: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def auto() -> dict[str, Any]:
        assert cli.main(["drafts", str(target), "-o", "json"]) == 0
        return dict(json.loads(capsys.readouterr().out)["auto"])

    assert auto()["draft_model"] == taken(target) == "lookup"
    remember(survey(str(target)), {str(small): (1.5, 0.02)})
    found = {"draft_model": str(small), "why": "measured here, 1.50 times as fast as plain decoding"}
    assert auto() == found
    assert cli.main(["drafts", str(target)]) == 0
    out = capsys.readouterr().out
    assert "-md auto is small.gguf: measured here, 1.50 times as fast as plain decoding" in out
    assert f"To try it: specllama chat -m {target} -md {small}" in out


def test_measure_is_what_it_goes_by(target: Path, small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["drafts", str(target), "--measure", "-n", "8", "-t", "1", "-o", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    of_small = said["found"][0]["measured"]
    is_faster = of_small["ratio"] - of_small["error"] > max(1.0, said["lookup"]["ratio"])
    ratios = {str(small): of_small["ratio"] * is_faster, "lookup": said["lookup"]["ratio"], None: 1.0}
    best = max(ratios, key=ratios.__getitem__)
    is_certain = said["lookup"]["ratio"] + said["lookup"]["error"] < 1.0
    assert said["auto"]["draft_model"] == taken(target)
    assert taken(target) == (best if best is not None or is_certain else "lookup")
