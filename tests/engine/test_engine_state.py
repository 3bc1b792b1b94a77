"""What an object remembers between calls: prefixes, full contexts, saved states, shared and closed drafts, threads."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from fresh import PROMPT, RULES, SAMPLING, assert_like_fresh, text_of

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles


def test_the_same_prompt_twice_decodes_no_prompt_token_twice(llm: specllama.Llama) -> None:
    first = text_of(llm)
    assert llm.stats.num_prompt_tokens_reused == 0
    assert text_of(llm) == first
    stats = llm.stats
    assert stats.num_prompt_tokens_reused == stats.num_prompt_tokens - 1  # the last one's logits are needed
    rejected = stats.num_draft_tokens - stats.num_accepted_tokens
    assert stats.num_target_tokens_decoded == stats.num_tokens + rejected
    assert stats.num_draft_tokens_decoded <= stats.num_tokens + stats.num_draft_tokens


def test_a_prompt_that_continues_the_last_answer_decodes_only_what_is_new(llm: specllama.Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    answer = list(itertools.islice(llm.generate(prompt), 20))
    longer = [*prompt, *answer, *llm.tokenize(b" no", add_bos=False)]
    list(itertools.islice(llm.generate(longer), 3))
    assert llm.stats.num_prompt_tokens_reused >= len(prompt) + len(answer) - 1


def test_draft_context_shorter_than_the_targets(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """The draft goes on with the end of the text, which stays the same."""
    settings: dict[str, Any] = {"temperature": 0.9, "seed": 5, "verify": "coupled", "max_tokens": 300}
    expected = text_of(make_llama(), **settings)
    llm = make_llama(draft=tiny_files.good, draft_kwargs={"n_ctx": 256})
    assert text_of(llm, **settings) == expected
    assert llm.stats.fallback_reason is None
    assert llm.stats.num_accepted_tokens > 0


def test_a_prompt_longer_than_the_drafts_context(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, draft_kwargs={"n_ctx": 256}, num_draft_tokens=4)
    prompt = "the cat sat. " * 80
    text = text_of(llm, prompt, temperature=0.0)
    assert text == text_of(make_llama(), prompt, temperature=0.0)
    assert llm.stats.num_drafts > 0


@pytest.mark.parametrize("rule", RULES)
def test_context_full(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, rule: str) -> None:
    """Completions end where the context ends, as in the base class; `generate` says that it is full."""
    llm = make_llama(draft=tiny_files.identical, n_ctx=256, num_draft_tokens=6, verify=rule)
    base = make_base(n_ctx=256)
    for max_tokens in (None, -1, 10_000):
        settings: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0.0}
        out = llm.create_completion(PROMPT, **settings)
        expected = base.create_completion(PROMPT, **settings)
        assert out["choices"] == expected["choices"]
        assert out["usage"] == expected["usage"]
        assert out["usage"]["total_tokens"] == 256
    tokens = llm.generate(llm.tokenize(PROMPT.encode()), temp=0.0)
    taken = []
    with pytest.raises(specllama.ContextFullError, match="n_ctx=256"):
        while True:
            taken.append(next(tokens))
    assert len(taken) + len(llm.tokenize(PROMPT.encode())) == 257  # the last one was sampled from a full context
    assert text_of(llm, temperature=0.0, max_tokens=5) == text_of(make_llama(), temperature=0.0, max_tokens=5)


def test_small_batches(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Prompts go through in chunks of n_batch, and drafts are no longer than a batch."""
    prompt = "the cat sat on the dog and the fox. " * 5
    expected = text_of(make_llama(), prompt, temperature=0.0)
    for n_batch in (1, 2, 3, 7):
        llm = make_llama(draft=tiny_files.good, n_batch=n_batch, num_draft_tokens=8)
        assert text_of(llm, prompt, temperature=0.0) == expected


def test_save_and_load_state(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    answer = list(itertools.islice(llm.generate(prompt, temp=0.0), 20))
    state = llm.save_state()
    assert state.scores.size < 4 * llm.n_vocab(), "no n_ctx x n_vocab buffer"
    text_of(llm, "a dog")
    llm.load_state(state)
    assert llm.eval_tokens and list(llm.eval_tokens) == (prompt + answer)[: llm.n_tokens]
    again = list(itertools.islice(llm.generate([*prompt, *answer[:10]], temp=0.0), 10))
    assert again == answer[10:]
    assert llm.stats.num_prompt_tokens_reused >= len(prompt) + 9
    other = make_llama(draft=tiny_files.identical, num_draft_tokens=6, verify=llm.verify)
    other.load_state(state)
    assert list(itertools.islice(other.generate([*prompt, *answer[:10]], temp=0.0), 10)) == answer[10:]
    assert other.stats.num_prompt_tokens_reused >= len(prompt) + 9
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_state_of_the_base_class_can_be_loaded(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    base = make_base()
    expected = text_of(base, temperature=0.0)
    state = base.save_state()
    llm = make_llama(draft=tiny_files.good)
    llm.load_state(state)
    assert text_of(llm, temperature=0.0) == expected
    assert llm.stats.num_prompt_tokens_reused == llm.stats.num_prompt_tokens - 1


def test_cache_of_the_base_class(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm.set_cache(llama_cpp.LlamaRAMCache())
    first = text_of(llm, temperature=0.0)
    text_of(llm, "a dog", temperature=0.0)
    assert text_of(llm, temperature=0.0) == first
    assert llm.stats.num_prompt_tokens_reused == llm.stats.num_prompt_tokens - 1
    llm.set_cache(None)
    assert_like_fresh(llm, make_llama, tiny_files)


def test_a_closed_one_cannot_be_reset(make_llama: MakeLlama) -> None:
    llm = make_llama()
    llm.close()
    with pytest.raises(specllama.ClosedError):
        llm.reset()


def test_reset(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    text_of(llm)
    llm.reset()
    assert llm.n_tokens == 0
    text_of(llm)
    assert llm.stats.num_prompt_tokens_reused == 0
    assert_like_fresh(llm, make_llama, tiny_files)


def test_eval_by_the_user_in_between(llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """llama_cpp's own eval changes the cache behind the engine's back; it must notice."""
    text_of(llm)
    llm.reset()
    llm.eval(llm.tokenize(b"no dog is on it"))
    assert_like_fresh(llm, make_llama, tiny_files)


def test_the_draft_used_by_its_owner_in_between(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    draft = make_base(tiny_files.good)
    llm = make_llama(draft=draft)
    expected = text_of(make_llama(draft=tiny_files.good))
    assert text_of(llm) == expected
    alone = text_of(draft, temperature=0.0)
    assert text_of(llm) == expected
    rate = llm.stats.acceptance_rate
    assert text_of(draft, temperature=0.0) == alone
    assert text_of(llm) == expected
    assert llm.stats.acceptance_rate == pytest.approx(rate, abs=0.15), "a stale draft cache shows in the acceptance"
    llm.close()
    assert text_of(draft, temperature=0.0) == alone, "a draft that was handed in is not closed"


def test_one_draft_for_two_targets(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    draft = make_base(tiny_files.good)
    one, two = make_llama(draft=draft), make_llama(draft=draft)
    expected = [text_of(make_llama(draft=tiny_files.good), prompt) for prompt in (PROMPT, "a dog")]
    for _ in range(2):
        assert text_of(one) == expected[0]
        assert text_of(two, "a dog") == expected[1]
    streams = [
        one.create_completion(PROMPT, stream=True, **SAMPLING),
        two.create_completion("a dog", stream=True, **SAMPLING),
    ]
    texts = ["", ""]
    for chunks in itertools.zip_longest(*streams):
        for i, chunk in enumerate(chunks):
            texts[i] += chunk["choices"][0]["text"] if chunk else ""
    assert texts == expected


def test_a_draft_closed_by_its_owner(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    draft = make_base(tiny_files.good)
    llm = make_llama(draft=draft)
    expected = text_of(llm)
    draft.close()
    with pytest.warns(specllama.FallbackWarning, match="closed"):
        assert text_of(llm) == expected
    assert "closed" in (llm.stats.fallback_reason or "")


def test_a_closed_one_takes_no_draft(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Its vocabulary is not in memory any more: a draft that was compared with it ended the process."""
    llm, draft = make_llama(draft=tiny_files.good), make_llama(tiny_files.good)
    llm.close()
    for given in (str(tiny_files.good), str(tiny_files.foreign), draft, "lookup", "auto", len):
        with pytest.raises(specllama.ClosedError):
            llm.draft_model = given


def test_a_draft_is_assigned_while_another_thread_closes(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    for _ in range(5):
        llm = make_llama()

        def close(llm: specllama.Llama = llm) -> None:
            while True:
                try:
                    return llm.close()
                except specllama.BusyError:
                    pass

        thread = threading.Thread(target=close)
        try:
            thread.start()
            for _ in range(50):
                llm.draft_model = str(tiny_files.good)
        except (specllama.ClosedError, specllama.BusyError):
            pass
        thread.join()


def test_an_interrupted_assignment_leaves_a_draft_that_works(
    make_llama: MakeLlama, tiny_files: TinyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is raised when the old draft has been freed."""
    llm = make_llama(draft=tiny_files.bad)
    expected, old = text_of(llm), llm.engine.draft
    assert old is not None
    close = old.close

    def interrupted() -> None:
        close()
        raise KeyboardInterrupt

    monkeypatch.setattr(old, "close", interrupted)
    with pytest.raises(KeyboardInterrupt):
        llm.draft_model = str(tiny_files.good)
    assert text_of(llm) == expected
    assert llm.stats.num_draft_tokens > 0


def test_close(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    tokens = llm.generate(llm.tokenize(b"the cat"))
    next(tokens)
    llm.close()
    llm.close()
    with pytest.raises(specllama.ClosedError, match="closed"):
        next(tokens)
    for call in (
        lambda: llm.create_completion("the"),
        lambda: next(llm.generate([1, 2, 3])),
        lambda: llm.tokenize(b"the"),
        lambda: llm.eval([1]),
        lambda: llm.save_state(),
        lambda: list(llm.create_completion("the", stream=True)),
    ):
        with pytest.raises(specllama.ClosedError, match="closed"):
            call()
    assert llm.stats.num_tokens == 1


def test_two_threads(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Whoever comes second is refused with a clear message, and the first one's text is what it would have been."""
    llm = make_llama(draft=tiny_files.good)
    settings: dict[str, Any] = {**SAMPLING, "max_tokens": 400}
    expected = text_of(make_llama(draft=tiny_files.good), **settings)
    texts: list[str] = []
    refused: list[str] = []
    barrier = threading.Barrier(2)

    def run() -> None:
        barrier.wait()
        try:
            texts.append(text_of(llm, **settings))
        except specllama.BusyError as error:
            refused.append(str(error))

    for _ in range(20):
        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if refused:
            break
    assert refused, "in 20 attempts the two threads never met"
    assert "another thread" in refused[0]
    assert set(texts) == {expected}
    assert text_of(llm, **settings) == expected


def test_two_objects_in_two_threads(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    objects = [make_llama(draft=tiny_files.good) for _ in range(2)]
    expected = text_of(make_llama(draft=tiny_files.good))
    texts: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda i=i, llm=llm: texts.__setitem__(i, text_of(llm)))
        for i, llm in enumerate(objects)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == {0: expected, 1: expected}


def test_the_draft_can_be_exchanged(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.bad, verify="coupled")
    expected = text_of(llm)
    low = llm.stats.acceptance_rate
    better = make_base(tiny_files.good)
    llm.draft_model = better
    assert text_of(llm) == expected
    assert llm.stats.acceptance_rate > low
    llm.draft_model = None
    assert text_of(llm) == expected
    assert llm.stats.num_drafts == 0
    llm.close()
