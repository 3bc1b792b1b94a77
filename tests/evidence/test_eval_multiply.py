"""Multiplications: which questions are asked, how answers are read, and how both ways are asked and graded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import pytest

from specllama.evidence.answer import Answer, answer
from specllama.evidence.eval import Evaluation, Record, multiply
from specllama.evidence.eval.multiplication import grade, questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import MakeLlama, TinyFiles

    import specllama
    from specllama.prompts import RenderedPrompt

# --- questions --------------------------------------------------------------------------------------------------------


def test_questions_are_different_and_by_turns() -> None:
    prompts = questions(200)
    assert [prompt.category for prompt in prompts[:4]] == ["2x1", "2x2", "2x1", "2x2"]
    factors = [tuple(map(int, prompt.id.split("*"))) for prompt in prompts]
    assert len({frozenset(pair) for pair in factors}) == 200
    for prompt, (a, b) in zip(prompts, factors, strict=True):
        assert 10 <= a <= 99
        assert (2 <= b <= 9) if prompt.category == "2x1" else (10 <= b <= 99)
        assert prompt.text == f"What is {a} * {b}? Answer with the number only."
        assert prompt.task == {"expected": a * b}
        assert prompt.chat


def test_questions_depend_on_the_seed_only() -> None:
    assert questions(50, seed=3) == questions(50, seed=3)
    assert questions(20, seed=3) == questions(50, seed=3)[:20]
    assert questions(50, seed=3) != questions(50, seed=4)


def test_all_questions_there_are() -> None:
    # 2 to 9: 8 numbers, 36 pairs. When they are used up, the other digits go on.
    assert len(questions(36, [(1, 1)])) == 36
    categories = [prompt.category for prompt in questions(36 + 100, [(1, 1), (2, 1)])]
    assert (categories.count("1x1"), categories.count("2x1")) == (36, 100)
    assert len(questions(720, [(1, 2), (2, 1)])) == 720  # one and the same


@pytest.mark.parametrize(
    ("count", "shapes", "message"),
    [
        (37, [(1, 1)], "37 questions: there are 36 of the digits 1x1"),
        (721, [(2, 1), (1, 2)], "there are 720 of the digits 2x1"),
        (4816, [(2, 1), (2, 2)], "there are 4815 of the digits 2x1, 2x2"),
        (0, [(2, 1)], "0 questions"),
        (-1, [(2, 1)], "-1 questions"),
        (1, [], "of the digits none"),
        (1, [(0, 2)], "2 and 0 digits: give 1 to 9"),
        (1, [(10, 2)], "10 and 2 digits: give 1 to 9"),
    ],
)
def test_questions_that_do_not_exist(count: int, shapes: list[tuple[int, int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        questions(count, shapes)


# --- answers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1081", 1081),
        (" 1081.", 1081),
        ("1,081", 1081),
        ("1 081", 1081),
        ("1\u202f081", 1081),
        ("1_081", 1081),
        ("1'081", 1081),
        (r"\(23 \times 47 = 1{,}081\)", 1081),
        (r"\boxed{1\,081}", 1081),
        ("**1081**", 1081),
        ("23 * 47 = 1081", 1081),
        ("23 * 47 is 1,081.00", 1081),
        ("1081.0", 1081),
        ("1081.5", None),
        ("the answer is -1081", -1081),
        ("-1081", -1081),
        ("\u22121081", -1081),
        ("23-47", 47),
        ("- 1081", 1081),
        ("first 12, then 1081", 1081),
        ("12, 345", 345),
        ("1234,567", 567),
        ("1,0812", 812),
        ("1,234,567", 1234567),
        ("007", 7),
        ("", None),
        ("one thousand and eighty-one", None),
        ("x²", None),
        ("9" * 5000, None),
    ],
)
def test_the_number_of_an_answer_is_its_last(text: str, expected: int | None) -> None:
    [prompt] = questions(1)
    assert grade(prompt, text).detail == ("" if expected is None else str(expected))


def test_grade() -> None:
    [prompt] = questions(1, [(1, 1)])
    product = prompt.task["expected"]
    right, wrong, none = (grade(prompt, text) for text in (f"It is {product}.", f"{product + 1}", "no idea"))
    assert (right.correct, right.outcome, right.detail) == (True, "right", str(product))
    assert (wrong.correct, wrong.outcome, wrong.detail) == (False, "wrong", str(product + 1))
    assert (none.correct, none.outcome, none.detail) == (False, "no number", "")


# --- asking both ways -------------------------------------------------------------------------------------------------


@pytest.fixture
def pair(make_llama: MakeLlama, tiny_files: TinyFiles) -> specllama.Llama:
    return make_llama(draft=tiny_files.good)


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, int], str]], list[dict[str, Any]]]:
    """Replaces the texts of a real pair's answers: by the way that was asked and the number of its call."""

    def install(script: Callable[[str, int], str]) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def scripted_answer(llm: specllama.Llama, prompt: RenderedPrompt, **options: Any) -> Answer:
            found = answer(llm, prompt, **options)
            calls.append(options)
            way = "plain" if options["num_draft_tokens"] == 0 else "speculative"
            number = sum((call["num_draft_tokens"] == 0) == (way == "plain") for call in calls) - 2  # after the warm-up
            return dataclasses.replace(found, text=script(way, number)) if number >= 0 else found

        monkeypatch.setattr("specllama.evidence.eval.evaluation.answer", scripted_answer)
        return calls

    return install


def test_both_ways_are_graded(pair: specllama.Llama, scripted: Any) -> None:
    products = [prompt.task["expected"] for prompt in questions(8, seed=5)]
    # Plain decoding knows the first six, speculative decoding all but the first and second.
    calls = scripted(lambda way, n: str(products[n]) if (n < 6 if way == "plain" else n > 1) else "0")
    told: list[tuple[Record, int, int]] = []
    result = multiply(pair, 8, seed=5, max_tokens=6, on_record=lambda *args: told.append(args), top_k=7)
    comparison = result.comparison
    assert comparison is not None
    assert (comparison.both, comparison.only_plain, comparison.only_speculative, comparison.neither) == (4, 2, 2, 0)
    assert result.outcomes["plain"] == {"right": 6, "wrong": 2}
    assert [record.speculative.grade.correct for record in result.records] == [False] * 2 + [True] * 6
    assert [record.expected for record in result.records] == products
    assert [(done, total) for _, done, total in told] == [(n, 8) for n in range(1, 9)]
    assert not result.interrupted

    asked = calls[2:]
    assert [call["num_draft_tokens"] for call in asked] == [0, 4, 4, 0] * 4  # which goes first takes turns
    assert all(call["temperature"] == 1.0 and call["max_tokens"] == 6 and call["top_k"] == 7 for call in asked)
    assert all(call["verify"] == "block" for call in asked if call["num_draft_tokens"])
    seeds = [call["seed"] for call in asked]
    assert len(set(seeds)) == 16
    assert all(record.plain.seed in seeds and record.speculative.seed in seeds for record in result.records)


def test_results_are_what_the_models_did(pair: specllama.Llama) -> None:
    result = multiply(pair, 6, max_tokens=12, seed=2)
    again = multiply(pair, 6, max_tokens=12, seed=2)
    texts = [(record.plain.text, record.speculative.text) for record in result.records]
    assert texts == [(record.plain.text, record.speculative.text) for record in again.records]
    assert sum(plain != speculative for plain, speculative in texts) >= 5  # independent samples
    speed = result.stats["speculative"]
    drafted = [record.speculative.stats for record in result.records]
    assert speed.num_tokens == sum(stats.num_tokens for stats in drafted) > 0
    accepted, proposed = (sum(getattr(s, f"num_{name}_tokens") for s in drafted) for name in ("accepted", "draft"))
    assert speed.acceptance_rate == accepted / proposed > 0
    assert {stats.verify for stats in drafted} == {"block"}
    assert all(record.plain.stats.num_drafts == 0 for record in result.records)
    assert result.stats["plain"].acceptance_rate == 0.0
    assert result.stats["plain"].tokens_per_second > 0
    assert result.settings["num_draft_tokens"] == 4
    assert result.machine["draft"]["file"] == "good.gguf"


def test_coupled_answers_are_independent_too(pair: specllama.Llama) -> None:
    result = multiply(pair, 6, max_tokens=12, verify="coupled", num_draft_tokens=2)
    assert {record.speculative.stats.verify for record in result.records} == {"coupled"}
    assert result.settings["num_draft_tokens"] == 2
    assert sum(record.plain.text != record.speculative.text for record in result.records) >= 5


def test_greedy_answers_are_equal_and_the_result_says_so(pair: specllama.Llama) -> None:
    result = multiply(pair, 3, max_tokens=8, temperature=0.0)
    assert all(record.plain.text == record.speculative.text for record in result.records)
    assert any("temperature 0 both ways give the same text" in note for note in result.notes)
    assert any("Cut off after 8 tokens: 3 plain and 3 speculative" in note for note in result.notes)


def test_bad_input(make_llama: MakeLlama, pair: specllama.Llama) -> None:
    with pytest.raises(ValueError, match="no draft_model"):
        multiply(make_llama(), 2)
    with pytest.raises(ValueError, match="num_draft_tokens=0"):
        multiply(pair, 2, num_draft_tokens=0)
    with pytest.raises(ValueError, match="max_tokens=0"):
        multiply(pair, 2, max_tokens=0)
    with pytest.raises(ValueError, match="unknown verify='never'"):
        multiply(pair, 2, verify="never")
    with pytest.raises(ValueError, match="there are no prompts"):
        Evaluation(pair, "multiply", [], grade, seed=0, max_tokens=4, verify="block")
    long = dataclasses.replace(questions(1)[0], text="the cat " * 400)
    with pytest.raises(ValueError, match=r"some prompts do not fit into n_ctx=512: \S+ \(\d+\)"):
        Evaluation(pair, "multiply", [long], grade, seed=0, max_tokens=4, verify="block")
