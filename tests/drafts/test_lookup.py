"""Drafting from the text itself, and from a function of the user's."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and the cat sat on the"


def texts(llm: specllama.Llama, **settings: Any) -> list[list[int]]:
    return [
        [token.id for token in llm.generate_tokens(PROMPT, max_tokens=80, seed=seed, **settings)] for seed in range(4)
    ]


@pytest.mark.parametrize(
    "settings", [{"temperature": 0.0}, {"temperature": 0.4}, {"temperature": 0.4, "verify": "block"}]
)
def test_lookup_drafts_and_changes_nothing(make_llama: MakeLlama, settings: dict[str, Any]) -> None:
    """Greedy and coupled texts equal plain decoding. Under block only the distribution is the same."""
    llm = make_llama(draft="lookup", num_draft_tokens=7)
    plain = texts(llm, num_draft_tokens=0, **settings)
    drafted = texts(llm, **settings)
    stats = llm.total_stats
    assert stats.num_accepted_tokens > 20
    assert stats.num_draft_tokens_decoded == 0
    if settings.get("verify") != "block":
        assert drafted == plain


def test_a_repetition_is_drafted_beyond_the_end_of_the_text(make_llama: MakeLlama) -> None:
    """A text of one token: from the second round on a draft is longer than what it copies, and accepted whole."""
    llm = make_llama(draft="lookup", num_draft_tokens=8)
    tokens = llm.generate_tokens(PROMPT, max_tokens=90, temperature=0.0, logit_bias={270: 100.0})
    assert {token.id for token in tokens} == {270}
    assert llm.stats.num_accepted_tokens > 75
    assert llm.stats.num_draft_tokens - llm.stats.num_accepted_tokens <= 8, "only the first draft is wrong"


def test_no_match_is_plain_decoding(make_llama: MakeLlama) -> None:
    llm = make_llama(draft="lookup", num_draft_tokens=4)
    next(llm.generate([1, 270, 280], temp=0.0))
    assert llm.stats.num_drafts == 0
    assert llm.stats.num_tokens == 1


@pytest.mark.parametrize("gamma", [6, "auto"])
def test_nothing_is_looked_up_behind_an_end(make_llama: MakeLlama, gamma: int | str) -> None:
    llm = make_llama(draft="lookup", num_draft_tokens=gamma)
    turn = [270, 280, 290, 265, llm.token_eos(), 300, 310, 320, 305]
    for _ in range(8):
        llm.engine.slot.loop.restore_costs([{1: 1.0, 17: 1.1}, {}])  # a lookup pays
        llm.create_completion("a dog", max_tokens=3, num_draft_tokens=0)  # auto measures plain decoding first
        tokens = llm.generate([1, *turn, *turn], temp=0.0)
        next(tokens)
        tokens.send([270, 280])
    drafted = llm.total_stats.num_draft_tokens_per_pos
    assert len(drafted) == 3
    assert drafted[0] > 0


def test_a_corpus_is_looked_up(make_llama: MakeLlama) -> None:
    """With the answer itself as corpus nearly everything is accepted, from the first tokens on."""
    plain = make_llama(num_draft_tokens=0)
    answer = [token.id for token in plain.generate_tokens("the dog", max_tokens=60, temperature=0.9, seed=4)]
    for corpus in (answer, plain.detokenize(answer).decode(errors="ignore")):
        llm = make_llama(draft="lookup", lookup_corpus=corpus, num_draft_tokens=6)
        again = [token.id for token in llm.generate_tokens("the dog", max_tokens=60, temperature=0.9, seed=4)]
        assert again == answer
        if corpus is answer:
            assert llm.stats.num_accepted_tokens > 45
    without = make_llama(draft="lookup", num_draft_tokens=6)
    list(without.generate_tokens("the dog", max_tokens=60, temperature=0.9, seed=4))
    assert without.stats.num_accepted_tokens < 20


def test_a_corpus_beside_a_draft_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Under auto both draft; a fixed number of tokens is the model's."""
    settings: dict[str, Any] = {"max_tokens": 60, "temperature": 0.9, "seed": 4}
    answer = [token.id for token in make_llama().generate_tokens("the dog", **settings)]
    llm = make_llama(draft=tiny_files.bad, lookup_corpus=answer, num_draft_tokens="auto")
    copy = pickle.loads(pickle.dumps(llm))
    for each in (llm, copy):
        for _ in range(8):  # what decodes really cost is seen, too, and may end the lookup early
            # A lookup pays, the model does not.
            each.engine.slot.loop.restore_costs([{1: 1.0, 17: 1.1}, {1: 0.9, 600: 900.0}])
            assert [token.id for token in each.generate_tokens("the dog", **settings)] == answer
            assert each.stats.per_drafter.keys() >= {"lookup"}
        assert each.total_stats.per_drafter["lookup"].num_accepted_tokens > 0
        assert [token.id for token in each.generate_tokens("the dog", num_draft_tokens=4, **settings)] == answer
        assert each.stats.per_drafter.keys() == {"model"}
    copy.close()


@pytest.mark.parametrize(
    "corpus", [(280, 270), range(270, 280), np.array([280, 270]), np.array([], dtype=np.uint16), [], "", None]
)
def test_a_corpus_may_be_any_sequence(make_llama: MakeLlama, corpus: Any) -> None:
    llm = make_llama(draft="lookup", lookup_corpus=corpus)
    assert texts(llm, temperature=0.4) == texts(llm, temperature=0.4, num_draft_tokens=0)


NO_CORPUS: list[tuple[Any, type[Exception], str]] = [
    (5, TypeError, "must be a text or a sequence of token ids, not of type int: read a file's text first, decode by"),
    (Path("story.txt"), TypeError, "not of type .*Path: read a file's text first"),
    (b"the cat", TypeError, "not of type bytes"),
    (bytearray(b"the cat"), TypeError, "not of type bytearray"),
    ({270, 280}, TypeError, "not of type set"),
    ({}, TypeError, "not of type dict"),
    (iter([270]), TypeError, "not of type list_iterator"),
    ([1.7], TypeError, "must be a sequence of token ids, not of float64 values"),
    ([True], TypeError, "must be a sequence of token ids, not of bool values"),
    (["the cat"], TypeError, "must be a sequence of token ids, not of <U7 values"),
    ([[270]], TypeError, "must be a sequence of token ids"),
    ([[270], [280, 281]], TypeError, "must be a sequence of token ids, not of lists"),
    (np.array(270), TypeError, "must be a sequence of token ids"),
    ([280, -5], ValueError, "token -5 at index 1 is out of range: the vocabulary has the tokens 0 to {last}; take"),
    ([10**10], ValueError, "token 10000000000 at index 0 is out of range"),
    ([280, 270, 10**6], ValueError, "token 1000000 at index 2 is out of range"),
]


@pytest.mark.parametrize(("corpus", "error", "message"), NO_CORPUS, ids=[repr(case[0])[:20] for case in NO_CORPUS])
def test_what_is_no_corpus_is_refused(
    make_llama: MakeLlama, tiny_files: TinyFiles, corpus: Any, error: type[Exception], message: str
) -> None:
    """Before a draft model is loaded, too."""
    message = message.format(last=make_llama().n_vocab() - 1)
    for draft in ("lookup", tiny_files.other_token):
        with pytest.raises(error, match=f"^lookup_corpus.*{message}"):
            make_llama(draft=draft, lookup_corpus=corpus)


def test_the_last_token_of_the_vocabulary_in_a_corpus(make_llama: MakeLlama) -> None:
    last = make_llama().n_vocab() - 1
    assert texts(make_llama(draft="lookup", lookup_corpus=[0, last]), temperature=0.4)
    with pytest.raises(ValueError, match=f"token {last + 1} at index 0 is out of range"):
        make_llama(draft="lookup", lookup_corpus=[last + 1])


def test_the_text_before_a_reset_is_not_looked_up(make_llama: MakeLlama) -> None:
    llm = make_llama(draft="lookup", num_draft_tokens=6)
    settings: dict[str, Any] = {"max_tokens": 40, "temperature": 0.9, "seed": 2}
    list(llm.generate_tokens("the dog", **settings))
    first = llm.stats
    list(llm.generate_tokens("a fox", **settings))
    llm.reset()
    list(llm.generate_tokens("the dog", **settings))
    again = llm.stats
    assert (again.num_draft_tokens, again.num_accepted_tokens) == (first.num_draft_tokens, first.num_accepted_tokens)


@pytest.mark.parametrize("interruption", ["abandoned", "send"])
def test_interruptions_leave_the_index_in_step(make_llama: MakeLlama, interruption: str) -> None:
    llm = make_llama(draft="lookup", num_draft_tokens=6)
    fresh = make_llama(num_draft_tokens=0)
    prompt = llm.tokenize(PROMPT.encode())
    tokens = llm.generate(prompt, temp=0.0)
    text = [next(tokens) for _ in range(25)]
    if interruption == "send":
        text.append(tokens.send([270, 271]))
        text += [next(tokens) for _ in range(20)]
        other = fresh.generate(prompt, temp=0.0)
        expected = [next(other) for _ in range(25)]
        expected.append(other.send([270, 271]))
        expected += [next(other) for _ in range(20)]
        assert text == expected
    tokens.close()
    prompt += text[:10] + [275] + text[:10]
    ours, theirs = llm.generate(prompt, temp=0.0), fresh.generate(prompt, temp=0.0)
    assert [next(ours) for _ in range(40)] == [next(theirs) for _ in range(40)]


def test_llama_cpps_own_draft_models_work(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=LlamaPromptLookupDecoding(num_pred_tokens=5), num_draft_tokens=5)
    assert texts(llm, temperature=0.4) == texts(llm, temperature=0.4, num_draft_tokens=0)
    assert llm.total_stats.num_accepted_tokens > 20
    assert isinstance(llm.draft_model, LlamaPromptLookupDecoding)


def test_a_tuple_of_two_ids_is_no_q(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=lambda history: (270, 280))
    assert texts(llm, temperature=0.4) == texts(llm, temperature=0.4, num_draft_tokens=0)
    assert llm.stats.fallback_reason is None
    assert llm.total_stats.num_draft_tokens > 0


NONSENSE: list[tuple[Any, str]] = [
    ([-1], "the drafter gave token -1 at position 0: it must be one of the target's "),
    ([270, 2**40], "the drafter gave token 1099511627776 at position 1: it must be one of the target's "),
    ("ab", "the drafter gave 'ab': it must be a list of token ids, which is empty for no draft, or "),
    (5, "the drafter gave 5: it must be a list of token ids"),
    ({270, 280}, r"the drafter gave \{\d+, \d+\}: it must be a list of token ids"),
    ([[270, 280]], r"the drafter gave \[\[270, 280\]\]: it must be a list of token ids"),
    ([270.5], r"the drafter gave \[270.5\]: it must be a list of token ids"),
    (([270], None), "the drafter gave 1 tokens and a q of shape"),
    (([270], [[1.0]]), "the drafter gave 1 tokens and a q of shape"),
    (([270, 280], [[1.0]]), "the drafter gave 2 tokens and a q of shape"),
]


@pytest.mark.parametrize(("drafted", "why"), NONSENSE)
def test_a_function_that_drafts_nonsense_costs_speed_and_not_the_text(
    make_llama: MakeLlama, drafted: Any, why: str
) -> None:
    llm = make_llama(draft=lambda history: drafted)
    expected = texts(llm, temperature=0.4, num_draft_tokens=0)
    with pytest.warns(specllama.FallbackWarning, match=f"{why}.*decoding plainly from here on"):
        assert texts(llm, temperature=0.4) == expected
    assert re.match(why, llm.stats.fallback_reason or "")


def test_what_is_more_than_was_asked_for_is_not_looked_at(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=lambda history: [270, 280, 290] + [-1] * 100)
    kwargs = {"temperature": 0.4, "num_draft_tokens": 3}
    assert texts(llm, **kwargs) == texts(llm, temperature=0.4, num_draft_tokens=0)
    assert llm.total_stats.num_draft_tokens > 0


def test_a_function_without_a_guess(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=lambda history: None)
    assert texts(llm, temperature=0.4) == texts(llm, temperature=0.4, num_draft_tokens=0)
    assert llm.stats.fallback_reason is None


def test_an_error_of_a_function_is_one_line_that_says_where(make_llama: MakeLlama) -> None:
    llm = make_llama(draft=lambda history: 1 // 0)
    with pytest.warns(specllama.FallbackWarning, match=r"ZeroDivisionError: .* \(test_lookup.py, line \d+\): decoding"):
        texts(llm)
    assert "\n" not in (llm.stats.fallback_reason or "\n")


def test_ctrl_c_in_a_function_is_not_lost(make_llama: MakeLlama) -> None:
    def interrupted(history: np.ndarray[Any, Any]) -> list[int]:
        if len(history) > 20:
            raise KeyboardInterrupt
        return [270]

    llm = make_llama(draft=interrupted)
    with pytest.raises(KeyboardInterrupt):
        list(llm.generate_tokens(PROMPT, max_tokens=50))
    llm.draft_model = None
    assert texts(llm, temperature=0.4) == texts(make_llama(), temperature=0.4)


def test_drafts_can_be_exchanged_and_pickled(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft="lookup", lookup_corpus="the cat")
    assert llm.draft_model == "lookup"
    copy = pickle.loads(pickle.dumps(llm))
    assert copy.draft_model == "lookup"
    copy.close()
    llm.draft_model = str(tiny_files.good)
    assert isinstance(llm.draft_model, llama_cpp.Llama)
    llm.draft_model = "lookup"
    list(llm.generate_tokens(PROMPT, max_tokens=20))
    assert llm.stats.num_draft_tokens_decoded == 0


def test_arguments_of_another_kind_of_draft_are_refused(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="draft_kwargs is for a draft_model given by its path"):
        make_llama(draft="lookup", draft_kwargs={"n_ctx": 64})
    for draft in (None, lambda history: []):
        for corpus in ("the cat", [280], np.array([280, 270]), 5):
            with pytest.raises(ValueError, match="lookup_corpus is for a draft model or draft_model='lookup'"):
                make_llama(draft=draft, lookup_corpus=corpus)
        make_llama(draft=draft, lookup_corpus="", draft_kwargs={})
