"""What a generation leaves behind for eval, reset=False and save_state: what llama_cpp.Llama leaves, in any memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from fresh import PROMPT

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

    import specllama

pytestmark = [
    pytest.mark.skipif(
        not hasattr(llama_cpp, "llama_state_seq_get_data_ext"), reason="this llama-cpp-python cannot copy states"
    ),
    pytest.mark.filterwarnings("ignore:the draft .* is larger than the target"),
]

KINDS = {"target": "good", "sliding": "sliding_draft", "recurrent": "recurrent_good", "hybrid": "hybrid_good"}
kinds = pytest.mark.parametrize("kind", KINDS)
numbers = pytest.mark.parametrize("taken", [1, 2, 3, 5, 8, 13])


def opened(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> specllama.Llama:
    return make_llama(getattr(tiny_files, kind), getattr(tiny_files, KINDS[kind]), num_draft_tokens=5)


def sampled(llm: specllama.Llama, tokens: list[int], count: int, **settings: Any) -> list[int]:
    """The first tokens of a generation, which is then closed: with the same text before them the same tokens."""
    llm.set_seed(3)
    generation = llm.generate(tokens, temp=0.9, verify="coupled", **settings)
    taken = list(itertools.islice(generation, count))
    generation.close()
    return taken


def logits_behind(llm: llama_cpp.Llama, tokens: list[int]) -> Any:
    """What the model says behind what was evaluated and these tokens."""
    llm.eval(tokens)
    row = llama_cpp.llama_get_logits_ith(llm._ctx.ctx, -1)
    return np.ctypeslib.as_array(row, shape=(llm.n_vocab(),)).copy()


@kinds
@numbers
def test_all_but_the_last_token_is_evaluated(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    llm, base = opened(make_llama, tiny_files, kind), make_base(getattr(tiny_files, kind))
    prompt = llm.tokenize(PROMPT.encode())
    for llama in (llm, base):
        generation = llama.generate(prompt, temp=0.0)
        for count in range(1, taken + 1):
            next(generation)
            assert llama.n_tokens == len(prompt) + count - 1
        generation.close()
        assert llama.n_tokens == len(prompt) + taken - 1
    assert list(llm.eval_tokens) == list(base.eval_tokens)


@kinds
@numbers
def test_a_stopping_criterion_leaves_all_tokens_evaluated(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    llm, base = opened(make_llama, tiny_files, kind), make_base(getattr(tiny_files, kind))
    prompt = llm.tokenize(PROMPT.encode())
    criteria = llama_cpp.StoppingCriteriaList([lambda tokens, logits: len(tokens) == len(prompt) + taken])
    for llama in (llm, base):
        assert len(list(llama.generate(prompt, temp=0.0, stopping_criteria=criteria))) == taken
        assert llama.n_tokens == len(prompt) + taken


@kinds
@numbers
def test_eval_goes_on_behind_what_the_caller_saw(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    llm = opened(make_llama, tiny_files, kind)
    prompt = llm.tokenize(PROMPT.encode())
    own = llm.tokenize(b"no fox", add_bos=False)
    for _ in range(3):
        first = sampled(llm, prompt, taken)
        found = logits_behind(llm, [first[-1], *own])
        expected = logits_behind(make_base(getattr(tiny_files, kind)), [*prompt, *first, *own])
        assert np.allclose(found, expected, atol=1e-3)
        assert list(llm.eval_tokens) == [*prompt, *first, *own]


@kinds
@numbers
def test_eval_in_the_middle_of_a_generation(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    """Which ends with it."""
    llm = opened(make_llama, tiny_files, kind)
    prompt = llm.tokenize(PROMPT.encode())
    generation = llm.generate(prompt, temp=0.9)
    first = list(itertools.islice(generation, taken))
    found = logits_behind(llm, [first[-1], *prompt])
    expected = logits_behind(make_base(getattr(tiny_files, kind)), [*prompt, *first, *prompt])
    assert np.allclose(found, expected, atol=1e-3)
    with pytest.raises(RuntimeError, match="changed during a generation"):
        next(generation)
    assert len(llm.eval_tokens) == 2 * len(prompt) + taken


@kinds
@numbers
def test_a_prompt_that_is_appended(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, taken: int) -> None:
    """By reset=False, behind what was evaluated: as with the base class the last token is the caller's to repeat."""
    llm, plain = opened(make_llama, tiny_files, kind), make_llama(getattr(tiny_files, kind))
    prompt = llm.tokenize(PROMPT.encode())
    own = llm.tokenize(b"no fox", add_bos=False)
    for _ in range(3):
        first = sampled(llm, prompt, taken)
        second = sampled(llm, [first[-1], *own], 7, reset=False)
        assert second == sampled(plain, [*prompt, *first, *own], 7)
        assert llm.stats.num_prompt_tokens == len(prompt) + taken + len(own)
        third = sampled(llm, second[-1:], 5, reset=False)
        assert third == sampled(plain, [*prompt, *first, *own, *second], 5)


@kinds
@numbers
def test_a_saved_state_has_what_the_caller_saw(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    llm, base = opened(make_llama, tiny_files, kind), make_base(getattr(tiny_files, kind))
    prompt = llm.tokenize(PROMPT.encode())
    first = sampled(llm, prompt, taken)
    state = llm.save_state()
    assert state.n_tokens == llm.n_tokens == len(prompt) + taken - 1
    expected = logits_behind(base, [*prompt, *first])
    other = make_llama(getattr(tiny_files, kind))
    for llama in (other, opened(make_llama, tiny_files, kind), llm):
        llama.load_state(state)
        assert llama.n_tokens == len(prompt) + taken - 1
        assert np.allclose(logits_behind(llama, first[-1:]), expected, atol=1e-3)
    assert sampled(llm, [*prompt, *first], 9) == sampled(other, [*prompt, *first], 9)


@kinds
@numbers
def test_what_a_draft_of_its_own_mind_holds(
    make_llama: MakeLlama, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    """A Llama that has a draft itself generates, and then drafts behind that text."""
    draft = opened(make_llama, tiny_files, kind)
    llm = make_llama(getattr(tiny_files, kind), draft, num_draft_tokens=5)
    prompt = llm.tokenize(PROMPT.encode())
    first = sampled(draft, prompt, taken)
    again = sampled(llm, [*prompt, *first], 20)
    assert again == sampled(make_llama(getattr(tiny_files, kind)), [*prompt, *first], 20)
    assert llm.stats.acceptance_rate == 1.0


@kinds
@numbers
def test_a_prompt_that_is_refused_changes_nothing(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, kind: str, taken: int
) -> None:
    llm = opened(make_llama, tiny_files, kind)
    prompt = llm.tokenize(PROMPT.encode())
    first = sampled(llm, prompt, taken)
    evaluated = list(llm.eval_tokens)
    for refused in ([], [*prompt, -1], [*prompt, *first, -1], prompt * 100):
        with pytest.raises(ValueError, match=r"the prompt|out of range"):
            next(llm.generate(refused))
        assert list(llm.eval_tokens) == evaluated
    found = logits_behind(llm, first[-1:])
    assert np.allclose(found, logits_behind(make_base(getattr(tiny_files, kind)), [*prompt, *first]), atol=1e-3)


@pytest.mark.parametrize("draft", ["recurrent_draft", "hybrid_draft", "good"])
def test_what_was_rejected_last_is_not_continued(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    """Snapshots leave the rollback to the next round: until then a rejected token is where the last one belongs."""
    llm = make_llama(tiny_files.hybrid, getattr(tiny_files, draft), num_draft_tokens=3)
    plain = make_llama(tiny_files.hybrid)
    prompt = llm.tokenize(PROMPT.encode())
    own = llm.tokenize(b"no fox", add_bos=False)
    for taken in range(1, 20):
        first = sampled(llm, prompt, taken)
        assert sampled(llm, [*prompt, *first, *own], 5) == sampled(plain, [*prompt, *first, *own], 5)
    assert llm.total_stats.acceptance_rate < 0.9
