"""Memories that cannot be cut, as target and as draft: the text, what is decoded, and every kind of interruption."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from test_decode_failures import aborting

import specllama

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

    from conftest import MakeBase, MakeLlama, TinyFiles

pytestmark = [
    pytest.mark.skipif(
        not hasattr(llama_cpp, "llama_state_seq_get_data_ext"), reason="this llama-cpp-python cannot copy states"
    ),
    pytest.mark.filterwarnings("ignore:the draft .* is larger than the target"),
]

PROMPT = "the cat sat on the dog and no fox is in it. "
# Greedily the tiny hybrid soon repeats one token, whatever its state: sampled texts tell states apart.
COUPLED: dict[str, Any] = {"temperature": 0.9, "seed": 3, "verify": "coupled", "max_tokens": 60}
GAMMA = 5
# How far the rule lets the copy of a target's state lag behind before the gap is closed by a decode of its own.
MOST_CARRIED = 8

ROLLBACK = {"target": "seq_rm", "recurrent": "checkpoint", "hybrid": "snapshot"}
PAIRS = [
    ("recurrent", "recurrent_good"),
    ("recurrent", "good"),
    ("recurrent", "hybrid_draft"),
    ("hybrid", "hybrid_good"),
    ("hybrid", "recurrent_draft"),
    ("target", "recurrent_draft"),
    ("target", "hybrid_draft"),
]
pairs = pytest.mark.parametrize(("target", "draft"), PAIRS)
kinds = pytest.mark.parametrize("kind", ["recurrent", "hybrid", "hybrid by checkpoint"])


def ids_of(llm: specllama.Llama, prompt: str | list[int] = PROMPT, **settings: Any) -> list[int]:
    """The tokens of a completion; with the same settings the same for every draft."""
    return [token.id for token in llm.generate_tokens(prompt, **{**COUPLED, **settings})]


def greedy(llm: llama_cpp.Llama, prompt: str = PROMPT) -> list[int]:
    """60 greedy tokens, of the base class, too."""
    return list(itertools.islice(llm.generate(llm.tokenize(prompt.encode()), temp=0.0), 60))


def sampled(llm: specllama.Llama, prompt: list[int]) -> Generator[int, Sequence[int] | None, None]:
    """An endless generation; with the same prompt the same."""
    llm.set_seed(3)
    return llm.generate(prompt, temp=0.9, verify="coupled")


def first_of(llm: specllama.Llama, prompt: list[int], count: int) -> list[int]:
    return list(itertools.islice(sampled(llm, prompt), count))


@pytest.fixture
def opened(make_llama: MakeLlama, tiny_files: TinyFiles, request: pytest.FixtureRequest) -> specllama.Llama:
    """A recurrent or hybrid target with a draft of its kind that is right two times of three."""
    kind = request.getfixturevalue("kind")
    target = kind.split()[0]
    draft = getattr(tiny_files, f"{target}_good")
    if "checkpoint" not in kind:
        return make_llama(getattr(tiny_files, target), draft, num_draft_tokens=GAMMA)
    llm = make_llama(getattr(tiny_files, target), num_draft_tokens=GAMMA)  # snapshots are for those opened with a draft
    llm.draft_model = str(draft)
    return llm


def assert_like_fresh(llm: specllama.Llama, make_llama: MakeLlama) -> None:
    """The next calls say what a fresh object without a draft says, and drafting goes on."""
    fresh = make_llama(llm.model_path)
    for prompt in (PROMPT, PROMPT + " no fox", "a dog"):
        assert ids_of(llm, prompt) == ids_of(fresh, prompt)
        assert llm.stats.fallback_reason is None
        assert llm.stats.num_accepted_tokens > 0


@pytest.mark.sampled(6)
@pairs
@pytest.mark.parametrize("gamma", [1, 4, 12, "auto"])
def test_the_text_is_that_of_plain_decoding(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, target: str, draft: str, gamma: int | str
) -> None:
    path = getattr(tiny_files, target)
    plain = make_llama(path)
    llm = make_llama(path, getattr(tiny_files, draft), num_draft_tokens=gamma)
    drafted = 0
    for prompt in (PROMPT, "a dog", PROMPT * 2, PROMPT):
        expected = greedy(make_base(path), prompt)
        assert greedy(plain, prompt) == expected
        assert greedy(llm, prompt) == expected
        drafted += llm.stats.num_draft_tokens
        assert ids_of(llm, prompt) == ids_of(plain, prompt)
        assert llm.stats.rollback == ROLLBACK[target]
        assert llm.stats.fallback_reason is None
    assert drafted > 0 or gamma == "auto"


@kinds
def test_the_text_while_much_is_rejected(opened: specllama.Llama, make_llama: MakeLlama, kind: str) -> None:
    """Long texts at a high temperature: what a rejection leaves to decode again adds up over several rounds."""
    plain = make_llama(opened.model_path)
    for seed in range(4):
        settings: dict[str, Any] = {"temperature": 1.5, "seed": seed, "max_tokens": 200}
        assert ids_of(opened, **settings) == ids_of(plain, **settings)
        assert 0.1 < opened.stats.acceptance_rate < 0.9
    assert opened.stats.rollback == ("snapshot" if kind == "hybrid" else "checkpoint")


@pytest.mark.parametrize("rule", ["rejection", "block"])
@kinds
def test_the_other_rules_leave_a_usable_state(
    opened: specllama.Llama, make_llama: MakeLlama, kind: str, rule: str
) -> None:
    for seed in range(3):
        ids_of(opened, temperature=1.0, seed=seed, verify=rule)
    assert_like_fresh(opened, make_llama)


@kinds
def test_what_is_decoded(opened: specllama.Llama, kind: str) -> None:
    """A token that was drafted and accepted is never decoded by the draft again; snapshots spare the target, too."""
    ids_of(opened, "a dog")
    for seed in range(3):
        for _ in range(2):
            ids_of(opened, seed=seed)
            stats = opened.stats
            rejected = stats.num_draft_tokens - stats.num_accepted_tokens
            assert rejected > 0
            again = 0 if kind == "hybrid" else stats.num_drafts * (MOST_CARRIED + GAMMA)
            prompt = stats.num_prompt_tokens - stats.num_prompt_tokens_reused
            assert stats.num_target_tokens_decoded <= prompt + stats.num_tokens + rejected + again
        assert stats.num_prompt_tokens_reused == stats.num_prompt_tokens - 1
        assert stats.num_draft_tokens_decoded <= stats.num_tokens + rejected


@kinds
def test_prompts_are_reused(opened: specllama.Llama, make_llama: MakeLlama, kind: str) -> None:
    """The same prompt once more, one that continues the answer, and one that has only its beginning in common."""
    plain = make_llama(opened.model_path)
    prompt = opened.tokenize(PROMPT.encode())
    for llm in (plain, opened):
        answer = first_of(llm, prompt, 20)
        assert first_of(llm, prompt, 20) == answer
        assert llm.stats.num_prompt_tokens_reused == len(prompt) - 1
        longer = [*prompt, *answer, *opened.tokenize(b" no", add_bos=False)]
        assert first_of(llm, longer, 20) == first_of(make_llama(opened.model_path), longer, 20)
        assert llm.stats.num_prompt_tokens_reused >= len(prompt) + len(answer) - 2 * GAMMA - MOST_CARRIED
        other = [*prompt[:5], *opened.tokenize(b"a dog", add_bos=False)]
        assert first_of(llm, other, 20) == first_of(make_llama(opened.model_path), other, 20)
        assert llm.stats.num_prompt_tokens_reused == 0


@pytest.mark.parametrize("after", [1, 3, 8])
@kinds
def test_ctrl_c_in_a_stopping_criterion(opened: specllama.Llama, make_llama: MakeLlama, kind: str, after: int) -> None:
    calls = itertools.count(1)

    def criterion(tokens: Any, logits: Any) -> bool:
        if next(calls) > after:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        opened.create_completion(PROMPT, stopping_criteria=llama_cpp.StoppingCriteriaList([criterion]), **COUPLED)
    assert_like_fresh(opened, make_llama)


@kinds
def test_an_aborted_target(opened: specllama.Llama, make_llama: MakeLlama, kind: str) -> None:
    prompt = opened.tokenize(PROMPT.encode())
    expected = first_of(make_llama(opened.model_path), prompt, 30)
    tokens = sampled(opened, prompt)
    first = list(itertools.islice(tokens, 7))
    with aborting(opened), pytest.raises(specllama.DecodeError, match=r"returned 2 on the target"):
        first += list(tokens)
    assert first == expected[: len(first)]
    assert first_of(opened, [*prompt, *first], 30 - len(first)) == expected[len(first) :]
    with aborting(opened), pytest.raises(specllama.DecodeError, match=r"returned 2 on the target"):
        ids_of(opened, PROMPT * 3)
    assert_like_fresh(opened, make_llama)


@kinds
def test_an_aborted_draft(opened: specllama.Llama, make_llama: MakeLlama, kind: str) -> None:
    expected = ids_of(make_llama(opened.model_path))
    with aborting(opened.draft_model), pytest.warns(specllama.FallbackWarning, match="returned 2 on the draft"):
        assert ids_of(opened) == expected
    assert_like_fresh(opened, make_llama)


def test_a_draft_that_its_owner_resets(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    """Which empties its memory, while its cache is ours."""
    draft = make_base(tiny_files.recurrent_good)
    llm = make_llama(tiny_files.recurrent, draft, num_draft_tokens=GAMMA)
    expected = ids_of(llm)
    rate = llm.stats.acceptance_rate
    assert rate > 0.3
    draft.reset()
    assert ids_of(llm) == expected
    assert llm.stats.acceptance_rate == pytest.approx(rate, abs=0.05)
    greedy(draft, "a dog")
    assert ids_of(llm) == expected
    assert llm.stats.acceptance_rate == pytest.approx(rate, abs=0.05)


@pytest.mark.parametrize("n_batch", [1, 2, 3, 7, 20])
@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_small_batches(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, n_batch: int) -> None:
    """llama.cpp aborts the process if there are more snapshots than a batch has tokens."""
    path = getattr(tiny_files, kind)
    llm = make_llama(path, getattr(tiny_files, f"{kind}_good"), n_batch=n_batch, num_draft_tokens=12)
    for prompt in (PROMPT * 3, "a dog"):
        assert ids_of(llm, prompt) == ids_of(make_llama(path), prompt)


@kinds
def test_a_full_context(opened: specllama.Llama, make_llama: MakeLlama, kind: str) -> None:
    ids = ids_of(opened, max_tokens=None)
    assert opened.stats.num_prompt_tokens + len(ids) == 512
    assert ids == ids_of(make_llama(opened.model_path), max_tokens=None)
    assert_like_fresh(opened, make_llama)


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
def test_guessed_drafts(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> None:
    path: Path = getattr(tiny_files, kind)
    expected = ids_of(make_llama(path), PROMPT * 3)
    for draft in ("lookup", lambda history: history[-8:-4]):
        for gamma in (3, 10):
            llm = make_llama(path, draft, num_draft_tokens=gamma)
            assert ids_of(llm, PROMPT * 3) == expected
            assert llm.stats.num_drafts > 0
            assert llm.stats.rollback == ROLLBACK[kind]


@pytest.mark.usefixtures("early_release")
def test_a_release_that_cannot_copy_states(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Decodes plainly, and says why."""
    expected = {kind: ids_of(make_llama(getattr(tiny_files, kind))) for kind in ("recurrent", "hybrid", "target")}
    for target, draft, whose in (
        ("recurrent", tiny_files.good, "target"),
        ("hybrid", "lookup", "target"),
        ("hybrid", lambda history: history[-2:], "target"),
        ("target", tiny_files.recurrent_draft, "draft"),
    ):
        with pytest.warns(specllama.FallbackWarning, match=f"the {whose}'s memory is recurrent, and llama-cpp-python"):
            llm = make_llama(getattr(tiny_files, target), draft)
        assert ids_of(llm) == expected[target]
        assert ids_of(llm) == expected[target]
        assert llm.stats.num_drafts == 0
        assert llm.stats.rollback == "none"
        assert "install a later release" in (llm.stats.fallback_reason or "")
