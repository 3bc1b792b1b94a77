"""compare: both ways of decoding, shown honestly."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from rich.console import Console

from specllama import Stats, Token, cli, compare
from specllama.commands.side_by_side import Panes, report, show
from specllama.commands.terminal import STYLES, harmless
from specllama.evidence import neighbours
from specllama.prompts import Prompt

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

REMARK = neighbours.Neighbours.remark  # the real one: see conftest
PROMPT = Prompt("prompt", "text", "the cat sat on the dog and", chat=False)


def side(seconds: float, ids: list[int], **stats: object) -> compare.Side:
    tokens = [Token(id=token, text=f" {token}", origin="plain") for token in ids]
    return compare.Side(tokens, Stats(num_tokens=len(ids), verify_seconds=seconds, **stats))  # type: ignore[arg-type]


def reported(comparison: compare.Comparison, remark: str | None = None) -> str:
    out = io.StringIO()
    report(Console(file=out, width=200), comparison, remark=remark)
    return out.getvalue()


def test_the_report_is_honest() -> None:
    plain = side(2.0, [1, 2, 3, 4])
    faster = side(1.0, [1, 2, 3, 4], num_draft_tokens=4, acceptance_rate=0.75)
    text = reported(compare.Comparison(plain, faster, True))
    assert "2.00x" in text
    assert "75%" in text
    assert "the same, token for token" in text
    assert "slower" not in text
    assert "Note: it is busy." in reported(compare.Comparison(plain, faster, True), "it is busy")
    slower = side(4.0, [1, 2, 9, 4], num_draft_tokens=4, acceptance_rate=0.25)
    text = reported(compare.Comparison(plain, slower, True))
    assert "0.50x" in text
    assert "part at token 2" in text
    assert "Speculation is slower here" in text
    text = reported(compare.Comparison(plain, side(4.0, [1, 2, 3, 4], num_draft_tokens=0), True))
    assert "Speculation is slower here" not in text
    assert "two samples" in reported(compare.Comparison(plain, slower, False))
    assert "because" in reported(compare.Comparison(plain, side(2.0, [1], fallback_reason="because"), True))


def test_nothing_generated_is_no_division_by_zero() -> None:
    nothing = compare.Comparison(side(0.0, []), side(0.0, []), True)
    assert nothing.speedup == 0.0
    assert "0.00x" in reported(nothing)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_both_ways_write_one_text(tiny_files: TinyFiles, make_llama: MakeLlama, temperature: float) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    seen: list[tuple[str, Token]] = []
    comparison = compare.run(
        llm,
        PROMPT,
        max_tokens=40,
        temperature=temperature,
        seed=3,
        on_token=lambda *token: seen.append(token),
    )
    assert comparison.first_difference is None
    assert comparison.same_text_expected
    assert comparison.plain.text == comparison.speculative.text != ""
    assert comparison.plain.stats.num_drafts == 0
    assert {token.origin for token in comparison.plain.tokens} == {"plain"}
    assert "draft" in {token.origin for token in comparison.speculative.tokens}
    assert seen == [("plain", t) for t in comparison.plain.tokens] + [
        ("speculative", t) for t in comparison.speculative.tokens
    ]
    for each in (comparison.plain, comparison.speculative):
        assert each.stats.num_prompt_tokens_reused == 0
        assert each.tokens_per_second == pytest.approx(39 / each.seconds)
    assert comparison.speedup == pytest.approx(comparison.plain.seconds / comparison.speculative.seconds)


def test_samples_may_differ(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    comparison = compare.run(llm, PROMPT, max_tokens=40, temperature=1.0, verify="block")
    assert not comparison.same_text_expected


def pair_arguments(tiny_files: TinyFiles) -> list[str]:
    return ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256", "-p", PROMPT.text]


def test_without_a_terminal_one_comes_after_the_other(
    tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert cli.main(["compare", *pair_arguments(tiny_files), "-n", "12"]) == 0
    out = capsys.readouterr().out
    assert out.index("plain decoding") < out.index("speculative decoding") < out.index("t/s")
    assert "Both texts are the same, token for token." in out
    assert "\x1b" not in out


def test_in_a_terminal_tokens_are_coloured_by_origin(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.bad)
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, width=100, height=20, color_system="standard")
    comparison = show(out, llm, PROMPT, max_tokens=60, temperature=1.0, seed=1)
    drawn = file.getvalue()
    assert {token.origin for token in comparison.speculative.tokens} >= {"draft", "correction"}
    assert "\x1b[32m" in drawn  # green
    assert "\x1b[1;31m" in drawn  # bold red
    assert f"{comparison.speedup:.2f}x" in drawn
    assert drawn.endswith("\x1b[?25h") or "\x1b[?25h" in drawn, "the cursor is visible again"


def test_a_narrow_terminal_is_no_place_for_two_columns(tiny_files: TinyFiles, make_llama: MakeLlama) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, width=40, color_system=None)
    show(out, llm, PROMPT, max_tokens=10, temperature=0.0)
    assert "speculative decoding" in file.getvalue()


@pytest.mark.parametrize("width", [40, 59, 60, 80])
def test_numbers_are_whole_in_a_narrow_window(tiny_files: TinyFiles, make_llama: MakeLlama, width: int) -> None:
    llm = make_llama(tiny_files.target, tiny_files.good)
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, width=width, height=30, color_system=None)
    comparison = show(out, llm, PROMPT, max_tokens=200, temperature=0.0)
    start = len(file.getvalue())
    report(out, comparison)
    drawn, reported = file.getvalue()[:start], file.getvalue()[start:]
    speculative = comparison.speculative
    for number in (f"{speculative.tokens_per_second:.2f}", f"{speculative.seconds:.2f}", f"{comparison.speedup:.2f}x"):
        assert number in reported
    assert "accepted" in reported and "…" not in reported
    assert (f"{speculative.tokens_per_second:.2f} t/s, {comparison.speedup:.2f}x" in drawn) == (width == 80)
    assert "tokens, …" not in drawn and "t/s…" not in drawn


@pytest.mark.parametrize("terminal", [False, True])
def test_escape_sequences_do_not_reach_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    said = "\x1b[2J[bold]\r\x07 long" + " word" * 30

    def run(llm: object, prompt: object, *, on_token: Callable[[str, Token], None]) -> compare.Comparison:
        on_token("plain", Token(0, said, "plain"))
        return compare.Comparison(side(1.0, []), side(1.0, []), True)

    monkeypatch.setattr(compare, "run", run)
    file = io.StringIO()
    out = Console(file=file, force_terminal=terminal, width=40, color_system=None)
    show(out, None, None)  # type: ignore[arg-type]
    assert (harmless(said) if terminal else said) in file.getvalue()
    assert ("\x1b[2J" in file.getvalue()) is not terminal


def test_long_texts_show_their_end_while_they_grow_and_are_whole_afterwards() -> None:
    file = io.StringIO()
    out = Console(file=file, force_terminal=True, width=80, height=12, color_system=None)
    with Panes(out) as panes:
        for i in range(300):
            panes.add("plain", Token(i, f" word{i}", "plain"))
        panes.add("speculative", Token(0, "\x1b[2J[bold]", "draft"))
        start = len(file.getvalue())
        panes.draw({})
        frame = file.getvalue()[start:]
        whole_from = len(file.getvalue())
    whole = file.getvalue()[whole_from:]
    assert "word299" in frame
    assert "word0 " not in frame
    assert "word0 " in whole
    assert "word299" in whole
    assert "␛[2J[bold]" in whole, "a model's escape sequences and markup are text"
    assert all(origin in whole for origin in STYLES)


def test_json(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *pair_arguments(tiny_files), "-n", "12", "--json", "--temp", "0"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["first_difference"] is None
    assert result["speedup"] > 0
    assert result["plain"]["text"] == result["speculative"]["text"]
    assert len(result["speculative"]["tokens"]) == result["speculative"]["stats"]["num_tokens"] == 12


def test_whole_calls_against_llama_cpp(tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", *pair_arguments(tiny_files), "-n", "12", "--against", "llama_cpp"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    rates = re.fullmatch(
        r"Whole calls, prompt included: llama_cpp\.Llama ([\d.]+) t/s, specllama\.Llama ([\d.]+) t/s, ([\d.]+)x: "
        r"[\d.]+x without the draft, and [\d.]+x of that with it\.",
        last,
    )
    assert rates is not None, last
    theirs, ours, gain = map(float, rates.groups())
    assert gain == pytest.approx(ours / theirs, rel=0.05, abs=0.02)


def test_interruption_shows_what_is_there(
    tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from specllama import Llama

    generate = Llama.generate_tokens

    def interrupted(self: Llama, *args: object, **kwargs: object) -> object:
        for number, token in enumerate(generate(self, *args, **kwargs)):  # type: ignore[arg-type]
            if number == 7:
                raise KeyboardInterrupt
            yield token

    monkeypatch.setattr(Llama, "generate_tokens", interrupted)
    assert cli.main(["compare", *pair_arguments(tiny_files), "-n", "12", "--temp", "0"]) == 130
    out, err = capsys.readouterr()
    assert "plain decoding" in out
    assert "interrupted" in err


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["-md", "nowhere.gguf"], 1, "nowhere.gguf"),
        (["--against", "llama_cpp", "--json"], 2, "leave out --json"),
    ],
)
def test_bad_arguments(
    tiny_files: TinyFiles, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    assert cli.main(["compare", *pair_arguments(tiny_files), *arguments]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("others", "threads", "cores", "said"), [(1.0, 2, 2, True), (0.1, 2, 2, False), (1.0, 4, 8, False)]
)
def test_neighbours(monkeypatch: pytest.MonkeyPatch, others: float, threads: int, cores: int, said: bool) -> None:
    """By what all processes have taken, but for this one and its children."""
    readings = iter(
        [neighbours._Reading(0.0, 50.0, 10.0), neighbours._Reading(10.0, 50.0 + 10.0 * others + 20.0, 30.0)]
    )
    monkeypatch.setattr(neighbours, "_read", lambda: next(readings))
    monkeypatch.setattr(neighbours.os, "cpu_count", lambda: cores)
    remark = REMARK(neighbours.Neighbours(), threads)
    assert (remark is not None) == said
    assert remark is None or f"other programs used {others:.1f} of {cores} cores" in remark


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody knows what children took that have ended")
def test_what_a_process_takes_is_its_own() -> None:
    before = neighbours._read()
    end = time.process_time() + 0.3
    while time.process_time() < end:
        pass
    subprocess.run([sys.executable, "-c", "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    after = neighbours._read()
    assert before is not None
    assert after is not None
    assert after.ours - before.ours > 0.5
    assert after.busy - before.busy > 0.5
