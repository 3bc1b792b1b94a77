"""Chats with images: what is no token is read as it lies in the memory, and taken for nothing else."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np
import pytest
from exact import EXACT_CACHE
from images import SIZE, Pictures, asked, image

import specllama
from specllama.chat import chat_prompt

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

CAT = asked("the cat sat on", image("cat"), " and the dog")
DOG = asked("the cat sat on", image("dog"), " and the dog")
GREEDY: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0}
SEEDED: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0, "seed": 7}


@pytest.fixture
def seeing(make_llama: MakeLlama) -> Any:
    """Opens a Llama that reads images."""
    return lambda *args, **kwargs: make_llama(*args, chat_handler=Pictures(), **{**EXACT_CACHE, **kwargs})


def said(llm: llama_cpp.Llama, messages: Any, **options: Any) -> str:
    """The answer."""
    return str(llm.create_chat_completion(messages, **options)["choices"][0]["message"]["content"])  # type: ignore[index, arg-type]


def repeats(history: np.ndarray[Any, Any]) -> list[int]:
    """A draft that follows from the text as a whole."""
    assert (history >= 0).all(), "it is shown tokens alone"
    return [int(history.sum()) % 300] * 3


@pytest.mark.parametrize("draft", ["identical", "good", "adversarial", "lookup", "function"])
@pytest.mark.parametrize("options", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_text_is_the_same_with_a_draft(
    seeing: Any, make_base: MakeBase, tiny_files: TinyFiles, draft: str, options: dict[str, Any]
) -> None:
    plain = seeing()
    llm = seeing(draft={"lookup": "lookup", "function": repeats}.get(draft) or tiny_files.draft(draft))
    for messages in (CAT, DOG, asked(image("cat"), "a fox", image("dog"), " is in it"), CAT):
        expected = said(plain, messages, **options)
        assert said(llm, messages, **options) == expected
        if draft != "lookup":
            assert llm.stats.num_draft_tokens > 0
        if options is GREEDY:
            theirs = make_base(chat_handler=Pictures(), **EXACT_CACHE)
            assert said(theirs, messages, **options) == expected
    assert said(plain, CAT, **options) != said(plain, DOG, **options), "the image says something"


@pytest.mark.skipif(
    not hasattr(llama_cpp.llama_context_default_params(), "ctx_other"), reason="this llama-cpp-python has no heads"
)
@pytest.mark.parametrize("kind", ["mtp", "mtp_several", "gemma4"])
def test_heads_begin_behind_an_image(seeing: Any, tiny_files: TinyFiles, kind: str) -> None:
    """Of an image there are no states: they read the text from there on, and draft it. An assistant sees the image."""
    path = getattr(tiny_files, kind)
    drafter, head = ("assistant", tiny_files.assistant) if kind == "gemma4" else ("head", "mtp")
    plain, llm = seeing(path), seeing(path, head)
    for messages in (CAT, DOG, asked(image("cat"), "a fox", image("dog"), " is in it"), CAT):
        for options in (GREEDY, SEEDED):
            assert said(llm, messages, **options) == said(plain, messages, **options)
            assert llm.stats.per_drafter[drafter].num_draft_tokens > 0
    assert llm.total_stats.per_drafter[drafter].num_accepted_tokens > 0


def test_a_draft_model_is_as_good_behind_an_image(seeing: Any, tiny_files: TinyFiles) -> None:
    """It is the text's, and knows which tokens came before the image and behind it."""
    llm = seeing(draft=tiny_files.identical)
    # An image that is far from the end says little.
    messages = asked(image("cat"), "the cat sat on the dog and the fox is in it " * 4)
    said(llm, messages, max_tokens=60, temperature=0.0)
    assert llm.stats.acceptance_rate > 0.4
    assert llm.draft_model is not None


def test_an_image_is_decoded_once(seeing: Any, tiny_files: TinyFiles) -> None:
    llm = seeing(draft=tiny_files.good)
    answer = llm.create_chat_completion(CAT, **GREEDY)
    (prompt,) = llm.chat_handler.prompts
    assert sum(token < 0 for token in prompt) == SIZE
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    assert llm.stats.num_prompt_tokens_reused == len(prompt) - 1


def test_a_text_goes_on_behind_its_image(seeing: Any, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    """A second turn that the caller appends themselves."""
    llm, theirs = seeing(draft=tiny_files.good), make_base(chat_handler=Pictures(), **EXACT_CACHE)
    texts = []
    for each in (llm, theirs):
        said(each, CAT, **GREEDY)
        text = each.input_ids[: each.n_tokens].tolist() + each.tokenize(b" no fox", add_bos=False)
        texts.append(each.create_completion(text, **GREEDY)["choices"][0]["text"])
        if each is llm:
            assert llm.stats.num_prompt_tokens_reused >= len(llm.chat_handler.prompts[0])
    assert texts[0] == texts[1]


def test_another_image_is_not_taken_for_the_first(seeing: Any) -> None:
    llm = seeing()
    first = said(llm, CAT, **GREEDY)
    cat = llm.chat_handler.prompts[-1]
    assert said(llm, DOG, **GREEDY) != first
    dog = llm.chat_handler.prompts[-1]
    differ = [i for i, (one, other) in enumerate(zip(cat, dog, strict=True)) if one != other]
    assert differ == [i for i, token in enumerate(cat) if token < 0]
    with pytest.raises(ValueError, match=rf"the prompt: place {differ[0]} is no token: .* give the image again"):
        llm.create_completion(cat, **GREEDY)
    assert llm.create_completion(dog, **GREEDY)["choices"][0]["text"] == said(llm, DOG, **GREEDY)
    other = seeing()
    said(other, CAT, **GREEDY)
    with pytest.raises(ValueError, match="is no token"):
        other.create_completion(dog, **GREEDY)


def test_an_image_that_is_gone_is_not_decoded_from_ids(seeing: Any) -> None:
    llm = seeing()
    first = said(llm, CAT, **GREEDY)
    prompt = llm.chat_handler.prompts[-1]
    llm.reset()
    with pytest.raises(ValueError, match="is no token"):
        llm.create_completion(prompt, **GREEDY)
    llm.create_completion("the cat", **GREEDY)
    with pytest.raises(ValueError, match="is no token"):
        llm.create_completion(prompt, **GREEDY)
    with pytest.raises(ValueError, match="is no token"):
        list(llm.generate(prompt))
    with pytest.raises(ValueError, match="is no token"):
        llm.eval(prompt)
    assert said(llm, CAT, **GREEDY) == first


def test_what_would_decode_an_image_again_is_refused_before(seeing: Any) -> None:
    llm = seeing()
    said(llm, CAT, **GREEDY)
    prompt = llm.chat_handler.prompts[-1]
    with pytest.raises(ValueError, match="what is scored: place"):
        llm.create_completion(prompt, echo=True, logprobs=0, **GREEDY)
    (outcome, other) = llm.create_completions([prompt, "the cat"], **GREEDY)
    assert "is no token" in str(outcome.error)
    assert other.error is None
    assert llm.create_completion(prompt, echo=True, **GREEDY)["choices"][0]["text"], "the memory is as it was"


def test_a_window_that_has_lost_the_image(seeing: Any, tiny_files: TinyFiles) -> None:
    llm = seeing(tiny_files.sliding, swa_full=False, n_ctx=1024, n_batch=32, n_ubatch=32)
    first = said(llm, CAT, **GREEDY)
    prompt = llm.chat_handler.prompts[-1]
    llm.create_completion([*prompt, *llm.tokenize(b"a fox and the dog " * 90, add_bos=False)], **GREEDY)
    with pytest.raises(ValueError, match=r"place \d+ of the text is no token: .*has lost it"):
        llm.create_completion(prompt, **GREEDY)
    assert said(llm, CAT, **GREEDY) == first


@pytest.mark.parametrize("kind", ["recurrent", "hybrid"])
@pytest.mark.parametrize("options", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_a_memory_that_cannot_be_cut(
    seeing: Any, make_base: MakeBase, tiny_files: TinyFiles, kind: str, options: dict[str, Any]
) -> None:
    """It goes back to a copy behind the image."""
    target = getattr(tiny_files, kind)
    plain, llm = seeing(target), seeing(target, draft=getattr(tiny_files, f"{kind}_good"))
    for messages in (CAT, DOG, asked("a fox", image("fox"), "."), CAT):
        expected = said(plain, messages, **options)
        assert said(llm, messages, **options) == expected
        assert llm.stats.num_draft_tokens > 0
        if options is GREEDY:
            # It goes on behind max_tokens where a text ends within a character.
            theirs = said(make_base(target, chat_handler=Pictures(), **EXACT_CACHE), messages, **options)
            assert theirs.startswith(expected)
    prompt = llm.chat_handler.prompts[-1]
    llm.create_completion("the cat", **GREEDY)
    with pytest.raises(ValueError, match="is no token"):
        llm.create_completion(prompt, **GREEDY)
    assert said(llm, CAT, **options) == expected


@pytest.mark.usefixtures("early_release")
def test_a_memory_that_cannot_be_copied(seeing: Any, tiny_files: TinyFiles) -> None:
    llm = seeing(tiny_files.recurrent)
    with pytest.raises(ValueError, match=r"place \d+ of the text is no token"):
        said(llm, CAT, **GREEDY)
    assert llm.create_completion("the cat", **GREEDY)["choices"][0]["text"]


def test_a_state_has_its_image(seeing: Any, tiny_files: TinyFiles) -> None:
    llm = seeing(draft=tiny_files.good)
    said(llm, CAT, **GREEDY)
    state = pickle.loads(pickle.dumps(llm.save_state()))
    more = llm.tokenize(b" no fox", add_bos=False)

    def goes_on(each: specllama.Llama) -> str:
        text = each.input_ids[: each.n_tokens].tolist()
        return str(each.create_completion([*text, *more], **GREEDY)["choices"][0]["text"])

    expected, old = goes_on(llm), llm.input_ids[: llm.n_tokens].tolist()
    said(llm, DOG, **GREEDY)
    for each in (llm, seeing()):
        each.load_state(state)
        assert goes_on(each) == expected
        with pytest.raises(ValueError, match="is no token"):
            each.create_completion(old, **GREEDY)


def test_a_cache_of_states_keeps_no_image(seeing: Any) -> None:
    llm = seeing()
    llm.set_cache(llama_cpp.LlamaRAMCache())
    first = said(llm, CAT, **GREEDY)
    assert llm.cache is not None
    assert llm.cache.cache_size == 0
    llm.create_completion("the cat sat", **GREEDY)
    assert llm.cache.cache_size > 0
    assert said(llm, CAT, **GREEDY) == first


def test_several_chats_with_images(seeing: Any, tiny_files: TinyFiles) -> None:
    """One after the other in the Llama itself, while others are under way at its places."""
    llm = seeing(draft=tiny_files.good)
    chats = [CAT, DOG, asked("a fox", image("fox"), " is")] * 3
    expected = [said(llm, chat, **GREEDY) for chat in chats]
    assert [each.text for each in llm.create_chat_completions(chats, max_parallel=3, **GREEDY)] == expected
    texts = llm.create_completions(["the cat", "a dog"] * 3, max_parallel=3, **GREEDY)
    assert all(each.error is None for each in texts)


def test_logits_are_read_behind_an_image(seeing: Any, tiny_files: TinyFiles) -> None:
    llm, plain = seeing(draft=tiny_files.good), seeing()
    for each in (llm, plain):
        said(each, CAT, **GREEDY)
    one, other = (
        each.create_completion(each.chat_handler.prompts[-1], logprobs=2, **GREEDY)["choices"][0]
        for each in (llm, plain)
    )
    assert one["text"] == other["text"]
    assert one["logprobs"]["token_logprobs"] == pytest.approx(other["logprobs"]["token_logprobs"], abs=1e-4)


def test_an_image_without_a_handler_is_refused(make_llama: MakeLlama) -> None:
    llm = make_llama()
    with pytest.raises(ValueError, match="a part of type 'image_url', and this Llama reads only text"):
        llm.create_chat_completion(CAT)
    with pytest.raises(ValueError, match="decodes by itself"):
        chat_prompt(make_llama(chat_handler=Pictures()), CAT)
