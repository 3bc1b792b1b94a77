"""A draft with a life of its own: owners that use or close it, other targets, other threads. The text stays."""

from __future__ import annotations

import threading
import warnings
from typing import TYPE_CHECKING, Any

import llama_cpp
import pytest
from fresh import PROMPT, RULES, assert_like_fresh, text_of

import specllama

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 40}


class FailingEngine:
    """The native loop, but for calls that raise BusyError while `failing`: another thread has the draft."""

    def __init__(self, engine: Any, names: tuple[str, ...]) -> None:
        self.engine, self.names, self.failing = engine, names, True

    def __getattr__(self, name: str) -> Any:
        if self.failing and name in self.names:
            return self.fail
        return getattr(self.engine, name)

    def fail(self, *_: Any, **__: Any) -> None:
        raise specllama.BusyError("the draft Llama is generating in another thread")


def test_a_draft_that_is_closed_when_a_text_begins_costs_speed_alone(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles
) -> None:
    """The target's cache is cut to the common prefix, and then the draft turns out to be closed natively."""
    text_of(llm, PROMPT + " and the fox", **GREEDY)
    assert llm.engine.draft is not None
    llm.engine.draft.sequence.decoder.close()
    with pytest.warns(specllama.FallbackWarning, match="the draft Llama is closed"):
        assert text_of(llm, PROMPT[:12], **GREEDY) == text_of(make_llama(), PROMPT[:12], **GREEDY)
    assert llm.n_tokens <= llm.engine.slot.sequence.num_tokens
    llm.draft_model = None
    assert text_of(llm, PROMPT, **GREEDY) == text_of(make_llama(), PROMPT, **GREEDY)


@pytest.mark.parametrize("names", [("prefill",), ("prefill", "finish"), ("step",), ("step", "finish"), ("begin",)])
def test_a_call_that_found_the_draft_busy_leaves_the_truth(
    llm: specllama.Llama, make_llama: MakeLlama, tiny_files: TinyFiles, names: tuple[str, ...]
) -> None:
    engine = FailingEngine(llm.engine.slot.loop, names)
    llm.engine.slot._loop = engine  # type: ignore[assignment]
    with pytest.raises(specllama.BusyError, match="another thread"):
        llm.create_completion(PROMPT, **GREEDY)
    assert llm.n_tokens <= llm.engine.slot.sequence.num_tokens
    engine.failing = False
    assert_like_fresh(llm, make_llama, tiny_files)


def test_two_targets_in_two_threads_share_a_draft(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    draft = make_base(tiny_files.good)
    prompts = [PROMPT, "a dog", "the fox is on the cat and"]
    expected = {prompt: text_of(make_llama(), prompt, **GREEDY) for prompt in prompts}
    wrong: list[str] = []
    done: list[str] = []

    def work(llm: specllama.Llama) -> None:
        for i in range(60):
            prompt = prompts[i % len(prompts)]
            try:
                text = text_of(llm, prompt, **GREEDY)
            except specllama.BusyError:
                continue
            done.append(text)
            if text != expected[prompt]:
                wrong.append(text)

    targets = [make_llama(draft=draft) for _ in range(2)]
    threads = [threading.Thread(target=work, args=(llm,)) for llm in targets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert done
    for llm in targets:
        assert text_of(llm, PROMPT, **GREEDY) == expected[PROMPT]


@pytest.mark.parametrize("gamma", [0, 1, 4])
@pytest.mark.parametrize("chunks_before", [1, 3, 5])
def test_the_draft_is_closed_while_a_stream_is_open(
    make_llama: MakeLlama, tiny_files: TinyFiles, gamma: int, chunks_before: int
) -> None:
    draft = llama_cpp.Llama(str(tiny_files.good), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    llm = make_llama(draft=draft, num_draft_tokens=gamma)
    stream = llm.create_completion(PROMPT, stream=True, **GREEDY)
    texts = [next(stream)["choices"][0]["text"] for _ in range(chunks_before)]
    draft.close()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", specllama.FallbackWarning)
        texts += [chunk["choices"][0]["text"] for chunk in stream]
        expected = text_of(make_llama(), PROMPT, **GREEDY)
        assert "".join(texts) == expected
        assert text_of(llm, PROMPT, **GREEDY) == expected
    if gamma:
        assert "closed" in str(llm.stats.fallback_reason)


@pytest.mark.parametrize("way", ["constructor", "attribute", "again"])
def test_a_closed_draft_is_refused(make_llama: MakeLlama, tiny_files: TinyFiles, way: str) -> None:
    draft = llama_cpp.Llama(str(tiny_files.good), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    llm = make_llama(draft=draft if way == "again" else None)
    draft.close()
    with pytest.raises(specllama.ClosedError, match="draft Llama is closed"):
        if way == "constructor":
            make_llama(draft=draft)
        else:
            llm.draft_model = draft


@pytest.mark.parametrize("verify", RULES)
@pytest.mark.parametrize("after", [1, 2, 3, 5])
def test_the_owner_uses_the_draft_between_chunks(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, verify: str, after: int
) -> None:
    draft = make_base(tiny_files.identical)
    llm = make_llama(draft=draft, verify=verify)
    texts = []
    for i, chunk in enumerate(llm.create_completion(PROMPT, stream=True, **GREEDY)):
        texts.append(chunk["choices"][0]["text"])
        if i % after == 0:
            draft.create_completion("a dog", max_tokens=3, temperature=0.0)
    assert "".join(texts) == text_of(make_llama(), PROMPT, **GREEDY)
    assert llm.stats.fallback_reason is None
    assert llm.stats.acceptance_rate > 0.9


def test_a_path_may_be_assigned(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama()
    llm.draft_model = str(tiny_files.good)  # type: ignore[assignment]
    assert text_of(llm, PROMPT, **GREEDY) == text_of(make_llama(), PROMPT, **GREEDY)
    assert llm.stats.num_drafts > 0


def test_a_saved_state_loads_into_the_base_class(
    make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles
) -> None:
    llm, base = make_llama(draft=tiny_files.good), make_base()
    expected = text_of(llm, PROMPT, **GREEDY)
    base.load_state(llm.save_state())
    assert base.n_tokens == llm.n_tokens
    assert text_of(base, PROMPT, **GREEDY) == expected
    make_base().load_state(make_llama().save_state())  # an empty one
