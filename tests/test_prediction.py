"""A text that is expected: it is looked up for one text, which stays what it is without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama

PROMPT = "the cat sat on the dog and"
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def looking_up(make_llama: MakeLlama) -> specllama.Llama:
    return make_llama(draft="lookup", num_draft_tokens=4, n_ctx=512)


def random_text(llm: specllama.Llama, seed: int = 3, **more: Any) -> Any:
    """A text that does not repeat itself."""
    options = {"max_tokens": 40, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed}
    return llm.create_completion(PROMPT, **{**options, "verify": "coupled", **more})


def text_of(answer: Any) -> str:
    text: str = answer["choices"][0]["text"]
    return text


def test_it_is_drafted_from_and_changes_nothing(looking_up: specllama.Llama) -> None:
    plain = random_text(looking_up)
    without = looking_up.stats
    assert "completion_tokens_details" not in plain["usage"]
    expected = random_text(looking_up, prediction=text_of(plain))
    stats = looking_up.stats.per_drafter["lookup"]
    assert text_of(expected) == text_of(plain)
    details = expected["usage"]["completion_tokens_details"]
    assert details == {
        "accepted_prediction_tokens": stats.num_accepted_tokens,
        "rejected_prediction_tokens": stats.num_draft_tokens - stats.num_accepted_tokens,
    }
    assert details["accepted_prediction_tokens"] > 20 > without.num_accepted_tokens
    # It was for that text alone.
    again = random_text(looking_up)
    assert again["choices"] == plain["choices"] and looking_up.stats.num_draft_tokens == without.num_draft_tokens


def test_its_beginning_is_drafted_at_once(looking_up: specllama.Llama) -> None:
    """Behind the prompt, of which nothing is in it."""
    text = text_of(random_text(looking_up))
    random_text(looking_up, prediction=text, max_tokens=6)
    first = looking_up.stats.per_drafter["lookup"]
    assert first.num_accepted_tokens == first.num_draft_tokens >= 4


def test_another_text_is_rejected(looking_up: specllama.Llama) -> None:
    plain = text_of(random_text(looking_up))
    words = plain.split(" ")
    words[5:7] = ["cat", "cat", "mat"]
    answer = random_text(looking_up, prediction={"type": "content", "content": " ".join(words)})
    assert text_of(answer) == plain
    assert answer["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] > 0
    assert text_of(random_text(looking_up, prediction="")) == plain


def test_every_way_to_a_text(looking_up: specllama.Llama) -> None:
    llm = looking_up
    text = text_of(random_text(llm))
    num_drafted = 0

    def assert_drafted(found: str) -> None:
        assert found == text and llm.total_stats.num_accepted_tokens > num_drafted + 20

    options: dict[str, Any] = {"max_tokens": 40, "temperature": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 3}
    options.update(verify="coupled", prediction=text)
    num_drafted = llm.total_stats.num_accepted_tokens
    assert_drafted(
        "".join(chunk["choices"][0]["text"] for chunk in llm.create_completion(PROMPT, stream=True, **options))
    )
    num_drafted = llm.total_stats.num_accepted_tokens
    assert_drafted(llm(PROMPT, **options)["choices"][0]["text"])
    num_drafted = llm.total_stats.num_accepted_tokens
    assert_drafted("".join(token.text for token in llm.generate_tokens(PROMPT, **options)))
    num_drafted = llm.total_stats.num_accepted_tokens
    (outcome,) = llm.create_completions([{"prompt": PROMPT, **options}])
    assert_drafted(outcome.text)
    tokens = llm.tokenize(PROMPT.encode())
    corpus = [*tokens[-8:], *llm.tokenize(text.encode(), add_bos=False)]
    chosen = {name: options[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed", "verify")}
    request = llm.engine.request(tokens, max_tokens=10, lookup_corpus=corpus, **chosen)
    assert len(list(llm.engine.generate(request))) == 10 and llm.engine.stats.num_accepted_tokens > 4
    with pytest.raises(ValueError, match="lookup_corpus"):
        llm.engine.request(tokens, lookup_corpus=[10**6])


def test_what_is_no_prediction(make_llama: MakeLlama, looking_up: specllama.Llama) -> None:
    for wrong in (5, {"type": "image", "content": "a"}, {"content": [{"type": "image_url"}]}, ["a"]):
        with pytest.raises(TypeError, match=r"prediction=.* must be a text, or"):
            looking_up.create_completion(PROMPT, prediction=wrong)
    for llm, options in ((make_llama(), {}), (looking_up, {"num_draft_tokens": 0})):
        with pytest.warns(UserWarning, match="prediction has no effect: it is looked up by draft_model='lookup'"):
            llm.create_completion(PROMPT, prediction="the cat", max_tokens=2, **options)


@pytest.mark.parametrize("max_parallel", [1, 2])
def test_over_the_server(make_llama: MakeLlama, max_parallel: int) -> None:
    imported("fastapi")
    from served import serving

    llm = make_llama(draft="lookup", num_draft_tokens=4, n_ctx=512)
    options: dict[str, Any] = {"temperature": 1.5, "seed": 3, "top_p": 1.0, "min_p": 0.0, "top_k": 0, "max_tokens": 40}
    options["verify"] = "coupled"
    with serving(llm, max_parallel=max_parallel) as served:
        chat = {"messages": MESSAGES, **options}
        text = served.post("/v1/chat/completions", **chat).json()["choices"][0]["message"]["content"]
        predicted = {"type": "content", "content": [{"type": "text", "text": text}]}
        answer = served.post("/v1/chat/completions", **chat, prediction=predicted).json()
        assert answer["choices"][0]["message"]["content"] == text and "warnings" not in answer
        assert answer["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 20
        events = served.events(
            "/v1/chat/completions", **chat, prediction=predicted, stream_options={"include_usage": True}
        )
        assert events[-1]["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 20
        two = served.post("/v1/completions", prompt=PROMPT, **options, prediction="the cat", n=2).json()
        assert two["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] >= 0
        for wrong in ({"type": "image"}, {"content": 5}, 5, "the cat sat " * 5000):
            assert served.post("/v1/completions", prompt=PROMPT, max_tokens=1, prediction=wrong).status_code == 400
        off = served.post("/v1/completions", prompt=PROMPT, max_tokens=1, prediction="a", num_draft_tokens=0).json()
        assert off["warnings"] == ["prediction has no effect here"]
