"""Watching calls: stopping them, their statistics together, and the tokens behind each text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import llama_cpp
import pytest

from specllama.drop_in import Watch, call_on
from specllama.engine import Stopped

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and"


class Impatient(Watch):
    """Stops at the n-th poll."""

    def __init__(self, patience: int) -> None:
        super().__init__()
        self.patience = patience

    def poll(self) -> None:
        self.patience -= 1
        if self.patience == 0:
            self.stop()
        super().poll()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("patience", [1, 2, 5])
def test_a_stopped_call_leaves_a_usable_model(
    make_llama: MakeLlama, tiny_files: TinyFiles, stream: bool, patience: int
) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises(Stopped):
        call = call_on(llm, watch=Impatient(patience))
        list(llm.create_completion(PROMPT, max_tokens=200, temperature=0.0, stream=stream, call=call))
    assert llm.stats.num_drafts < patience
    fresh = make_llama().create_completion(PROMPT, temperature=0.0)
    assert llm.create_completion(PROMPT, temperature=0.0)["choices"] == fresh["choices"]


def test_a_draft_that_catches_up_is_stopped_in_the_middle(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_batch=16, n_ubatch=16)
    prompt = llm.tokenize(b"a cat " * 60)
    watch = Impatient(1000)
    tokens = llm.generate(prompt, temp=0.0, call=call_on(llm, watch=watch))
    first = [next(tokens) for _ in range(3)]
    assert llm.engine.draft is not None
    draft = llm.engine.draft.sequence
    draft.keep(0)
    watch.patience = 4  # one for the round, and one for each of three chunks
    with pytest.raises(Stopped):
        first += tokens
    assert draft.num_tokens == 3 * 16 < len(prompt) // 2
    plain = make_llama().generate(prompt, temp=0.0)
    assert first == [next(plain) for _ in first]
    again = llm.generate([*prompt, *first], temp=0.0)
    assert [next(again) for _ in range(9)] == [next(plain) for _ in range(9)]
    assert llm.stats.num_accepted_tokens > 0


def test_a_long_prompt_is_stopped_in_the_middle(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good, n_batch=32, n_ubatch=32)
    with pytest.raises(Stopped):
        llm.create_completion("a cat " * 60, call=call_on(llm, watch=Impatient(4)))
    assert 0 < llm.n_tokens < 100
    with pytest.raises(Stopped):
        llm.create_completion("a cat " * 60, echo=True, logprobs=1, call=call_on(llm, watch=Impatient(4)))
    text = llm.create_completion("a cat " * 60, temperature=0.0)["choices"][0]["text"]
    assert text == make_llama().create_completion("a cat " * 60, temperature=0.0)["choices"][0]["text"]


def test_statistics_and_tokens_of_several_calls(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.good)
    watch = Watch()
    call = call_on(llm, watch=watch)
    stream = llm.create_completion(PROMPT, max_tokens=9, temperature=0.0, stream=True, call=call)
    chat = llm.create_chat_completion([{"role": "user", "content": "hi"}], max_tokens=7, call=call)
    assert chat["usage"]["completion_tokens"] == 7
    assert watch.stats() == llm.total_stats
    assert len(watch.take_shown()) == 7
    list(stream)
    assert watch.stats().num_tokens == llm.total_stats.num_tokens == 16
    tokens = [(token.id, token.origin) for token in llm.generate_tokens(PROMPT, max_tokens=9, temperature=0.0)]
    assert [token for token, _ in watch.take_shown()] == [token for token, _ in tokens]
    assert watch.num_shown == 16
    assert watch.stats().num_tokens == 16


@pytest.mark.parametrize("grammar", ["root ::= other", "nonsense", 'start ::= "a"', "root ::= \0"])
def test_a_grammar_that_does_not_parse_is_refused(make_llama: MakeLlama, grammar: str) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match="grammar"):
        llm.create_completion(PROMPT, grammar=llama_cpp.LlamaGrammar.from_string(grammar, verbose=False))
    llm.create_completion(PROMPT, max_tokens=1)
