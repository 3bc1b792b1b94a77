"""Lookup in what was answered before: it saves rounds and changes no text, and is forgotten by one call."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny

import specllama
from specllama.cli import build_parser
from specllama.commands.arguments import load_llama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PIECES = [f"w{number} " for number in range(40)]
PROMPT = "the cat sat on the dog and"
TEXT = "".join(PIECES)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def looking_up(make_llama: MakeLlama, tmp_path: Path) -> specllama.Llama:
    """Says `TEXT`, in which nothing occurs twice: alone, nothing is drafted."""
    path = tiny.write_saying(tmp_path / "says.gguf", PIECES)
    return make_llama(path, "lookup", num_draft_tokens=4, n_ctx=512)


def drafted(llm: specllama.Llama) -> int:
    """Drafted tokens of an answer, of which nearly all are right."""
    assert llm.create_completion(PROMPT, **GREEDY)["choices"][0]["text"] == TEXT
    stats = llm.stats
    assert stats.num_accepted_tokens >= stats.num_draft_tokens - 4
    return stats.num_draft_tokens


def test_nothing_is_kept_by_itself(looking_up: specllama.Llama) -> None:
    assert [drafted(looking_up) for _ in range(3)] == [0, 0, 0]


def test_the_same_answer_is_looked_up(looking_up: specllama.Llama) -> None:
    looking_up.engine.keep_answers()
    assert drafted(looking_up) == 0
    assert drafted(looking_up) > 25
    looking_up.engine.keep_answers()  # forgets
    assert drafted(looking_up) == 0
    assert drafted(looking_up) > 25
    looking_up.engine.keep_answers(0)
    assert drafted(looking_up) == drafted(looking_up) == 0


def test_no_more_is_kept_than_was_asked_for(looking_up: specllama.Llama) -> None:
    """The last tokens. No match reaches from one answer into the next."""
    looking_up.engine.keep_answers(12)
    drafted(looking_up)
    assert 4 <= drafted(looking_up) <= 12
    assert len(looking_up.engine.account.earlier.corpus()) <= 13
    for prompt in ("the dog", "a fox"):
        looking_up.create_completion(prompt, max_tokens=3, temperature=0.0)
    corpus = looking_up.engine.account.earlier.corpus().tolist()
    assert corpus.count(-1) >= 2
    assert len(corpus) - corpus.count(-1) <= 12


def test_several_texts_share_it(looking_up: specllama.Llama) -> None:
    looking_up.engine.keep_answers()
    drafted(looking_up)
    for one in looking_up.create_completions([PROMPT] * 3, **GREEDY):
        assert one.text == TEXT
    assert looking_up.total_stats.num_accepted_tokens > 3 * 25


def test_answers_that_nobody_reads_to_their_end(looking_up: specllama.Llama) -> None:
    looking_up.engine.keep_answers()
    stream = looking_up.create_completion(PROMPT, stream=True, **GREEDY)
    for _ in range(20):
        next(stream)
    stream.close()
    assert 8 <= drafted(looking_up) < 25


@pytest.mark.parametrize("draft", ["lookup", "good"])
@pytest.mark.parametrize("gamma", [3, "auto"])
def test_texts_stay_as_they_are(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str, gamma: Any) -> None:
    """Greedy and coupled ones, whatever was said before, with a prediction, too."""
    said = []
    for keeps in (False, True):
        llm = make_llama(draft=draft if draft == "lookup" else tiny_files.good, num_draft_tokens=gamma)
        if keeps:
            llm.engine.keep_answers()
        said.append(
            [
                llm.create_completion(prompt, max_tokens=30, temperature=heat, seed=3, verify="coupled")["choices"]
                for prompt in (PROMPT, "a fox", PROMPT)
                for heat in (0.0, 0.9)
            ]
        )
    assert said[0] == said[1]


def test_a_server_shares_it_only_if_it_is_told_to(tiny_files: TinyFiles) -> None:
    for options, is_kept in (([], False), (["--share-lookups"], True)):
        command = ["serve", "-m", str(tiny_files.target), "-md", "lookup", "-c", "256", "-t", "1", *options]
        with load_llama(build_parser().parse_args(command)) as llm:
            llm.create_completion(PROMPT, max_tokens=5, temperature=0.0)
            assert (len(llm.engine.account.earlier.corpus()) == 6) == is_kept


@pytest.mark.parametrize(("most", "error"), [(-1, ValueError), (1.5, TypeError), (True, TypeError), ("9", TypeError)])
def test_what_is_no_size(looking_up: specllama.Llama, most: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"most=.* tokens of earlier answers"):
        looking_up.engine.keep_answers(most)
