"""The index of earlier occurrences against its definition, computed the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structs import values

from specllama import _core_test as _test

GRAMS = (4, 2)  # an occurrence agrees in at least so many tokens; the longer ones are looked at first
MAX_MATCH = 64
MAX_VISITED = 16

Match = tuple[int, int, int]


def common(text: list[int], last: int) -> int:
    """How many tokens up to index `last` are those at the end of the text, MAX_MATCH at most."""
    length = 0
    while length < min(MAX_MATCH, last + 1) and text[last - length] == text[-1 - length]:
        length += 1
    return length


def longest(text: list[int]) -> Match:
    """The longest of the MAX_VISITED most recent occurrences of the last tokens; the most recent of several."""
    for gram in GRAMS:
        ends = [last for last in range(len(text) - 2, -1, -1) if common(text, last) >= gram][:MAX_VISITED]
        if ends:
            length = max(common(text, last) for last in ends)
            as_long = [last + 1 for last in ends if common(text, last) == length]
            same = sum(text[at] == text[as_long[0]] for at in as_long)
            return as_long[0], length, len(as_long) - same
    return 0, 0, 0


def index_of(text: list[int]) -> _test.SuffixIndex:
    index = _test.SuffixIndex()
    index.append(np.array(text, dtype=np.int32))
    return index


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(0, 3), max_size=120))
def test_longest_match(text: list[int]) -> None:
    assert values(index_of(text).longest()) == longest(text)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.lists(st.integers(0, 2), max_size=12), st.integers(0, 40)), max_size=25))
def test_forgetting_is_as_if_it_had_never_been(steps: list[list[int] | int]) -> None:
    """Texts that grow and are cut back: every state equals that of an index which saw the result only."""
    index, text = _test.SuffixIndex(), list[int]()
    for step in steps:
        if isinstance(step, int):
            index.truncate(step)
            text = text[:step]
        else:
            index.append(np.array(step, dtype=np.int32))
            text += step
        assert len(index) == len(text)
        assert values(index.longest()) == longest(text)


def test_tables_grow_without_losing_a_link() -> None:
    rng = np.random.default_rng(0)
    phrase = list(range(1000, 1012))
    text = [*phrase, 7, *rng.integers(0, 900, 5000).tolist(), *phrase]
    assert values(index_of(text).longest()) == (12, 12, 0)
    index = index_of(text)
    index.truncate(12)  # the tables stay large
    index.append(np.array(phrase[:5], dtype=np.int32))
    assert values(index.longest()) == (5, 5, 0)


def test_occurrences_that_disagree_are_counted() -> None:
    phrase = [1, 2, 3, 4]
    assert values(index_of([5, *phrase, 9, 6, *phrase, 8, 7, *phrase]).longest()) == (11, 4, 1)
    assert values(index_of([5, *phrase, 8, 6, *phrase, 8, 7, *phrase]).longest()) == (11, 4, 0)
    assert values(index_of([7, *phrase, 9, 6, *phrase, 8, 7, *phrase]).longest()) == (5, 5, 0), "the longest wins"


@pytest.mark.parametrize("count", [1_000, 1_025, 1_026, 4_098, 65_537, 65_538, 100_000])
@pytest.mark.parametrize("vocabulary", [1, 50_000])
def test_memory(count: int, vocabulary: int) -> None:
    """Under 60 bytes a token, also just above a power of two, where everything has grown to twice the size."""
    index = index_of(np.random.default_rng(0).integers(0, vocabulary, count).tolist())
    assert index.memory < 60 * count


@pytest.mark.parametrize("count", [1_000, 100_000])
def test_a_look_up_sees_a_bounded_part_of_a_long_text(count: int) -> None:
    """Every token but the last ends an occurrence, as long as all that is before it."""
    assert values(index_of([7] * count).longest()) == (count - 1, MAX_MATCH, 0)


@pytest.mark.parametrize("text", [[], [1], [1, 1], [1, 2, 1]])
def test_short_texts_match_nothing_or_what_they_repeat(text: list[int]) -> None:
    assert values(index_of(text).longest()) == longest(text)


def test_an_occurrence_that_no_token_follows_is_left_out() -> None:
    """The end of a corpus, marked by a negative number: a shorter match in the text itself can be continued."""
    corpus = [1, 2, 3, 4, 5, -1]
    assert values(index_of([*corpus, 1, 2, 3, 4, 5]).longest()) == (0, 0, 0)
    assert values(index_of([*corpus, 9, 4, 5, 6, 1, 2, 3, 4, 5]).longest()) == (9, 2, 0)
