"""A text that is expected: it is looked up for one text, which stays what it is without."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import tiny_models as tiny
from needed import imported

import specllama

if TYPE_CHECKING:
    from conftest import MakeLlama

PIECES = [f"w{number} " for number in range(40)]
PROMPT = "the cat sat on the dog and"
TEXT = "".join(PIECES)
GREEDY: dict[str, Any] = {"temperature": 0.0, "max_tokens": 60}
MESSAGES: list[Any] = [{"role": "user", "content": "hi"}]

pytestmark = pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")


@pytest.fixture
def looking_up(make_llama: MakeLlama, tmp_path: Path) -> specllama.Llama:
    """Says `TEXT`, in which nothing occurs twice: without a prediction nothing is drafted."""
    path = tiny.write_saying(tmp_path / "says.gguf", PIECES)
    return make_llama(path, "lookup", num_draft_tokens=4, n_ctx=512)


def test_it_is_drafted_from_and_changes_nothing(looking_up: specllama.Llama) -> None:
    plain = looking_up.create_completion(PROMPT, **GREEDY)
    assert plain["choices"][0]["text"] == TEXT and looking_up.stats.num_draft_tokens == 0
    assert "completion_tokens_details" not in plain["usage"]
    for prediction in (TEXT, {"type": "content", "content": TEXT}, {"content": [{"type": "text", "text": TEXT}]}):
        expected = looking_up.create_completion(PROMPT, **GREEDY, prediction=prediction)
        assert expected["choices"] == plain["choices"]
        details = expected["usage"]["completion_tokens_details"]
        stats = looking_up.stats.per_drafter["lookup"]
        assert details == {
            "accepted_prediction_tokens": stats.num_accepted_tokens,
            "rejected_prediction_tokens": stats.num_draft_tokens - stats.num_accepted_tokens,
        }
        assert details["accepted_prediction_tokens"] > 25
    assert looking_up.create_completion(PROMPT, **GREEDY)["choices"] == plain["choices"]
    assert looking_up.stats.num_draft_tokens == 0, "it was for that text alone"


def test_only_what_is_in_the_answer_counts(looking_up: specllama.Llama) -> None:
    """A stop string, a criterion or a limit ends the text within a draft, of which the target has accepted more."""
    imported("fastapi")
    from served import serving

    llm = looking_up
    options: dict[str, Any] = {**GREEDY, "prediction": TEXT, "num_draft_tokens": 15}
    for end in ({"stop": "w5 "}, {"stopping_criteria": lambda ids, _: len(ids) > 12}, {"max_tokens": 6}):
        usage = llm.create_completion(PROMPT, **{**options, **end})["usage"]
        looked_up = [token.origin for token in llm.generate_tokens(PROMPT, **{**options, **end})].count("lookup")
        num_drafted = llm.stats.num_draft_tokens
        counts = {"accepted_prediction_tokens": looked_up, "rejected_prediction_tokens": num_drafted - looked_up}
        assert usage["completion_tokens_details"] == counts and 0 < looked_up < usage["completion_tokens"]
    with serving(llm) as served:
        asked = {"prompt": PROMPT, **options, "stop": "w5 "}
        usages = [served.post("/v1/completions", **asked).json()["usage"]]
        usages.append(served.events("/v1/completions", **asked, stream_options={"include_usage": True})[-1]["usage"])
    expected = llm.create_completion(PROMPT, **options, stop="w5 ")["usage"]["completion_tokens_details"]
    assert [usage["completion_tokens_details"] for usage in usages] == [expected] * 2


def test_its_beginning_is_drafted_at_once(looking_up: specllama.Llama) -> None:
    """Behind the prompt, of which nothing is in it."""
    looking_up.create_completion(PROMPT, **{**GREEDY, "max_tokens": 6}, prediction=TEXT)
    first = looking_up.stats.per_drafter["lookup"]
    assert (first.num_drafts, first.num_draft_tokens, first.num_accepted_tokens) == (1, 4, 4)


def test_another_text_is_rejected(looking_up: specllama.Llama) -> None:
    other = "".join([*PIECES[:8], *PIECES[20:]])
    answer = looking_up.create_completion(PROMPT, **GREEDY, prediction=other)
    details = answer["usage"]["completion_tokens_details"]
    assert answer["choices"][0]["text"] == TEXT
    assert details["rejected_prediction_tokens"] > 0 and details["accepted_prediction_tokens"] > 15
    assert looking_up.create_completion(PROMPT, **GREEDY, prediction="")["choices"][0]["text"] == TEXT


def test_a_corpus_stays_beside_it(make_llama: MakeLlama, tmp_path: Path) -> None:
    path = tiny.write_saying(tmp_path / "says.gguf", PIECES)
    corpus = "".join(PIECES[20:])
    llm = make_llama(path, "lookup", lookup_corpus=corpus, num_draft_tokens=4, n_ctx=512)
    accepted = []
    for prediction in (None, "".join(PIECES[:20]), None):
        assert llm.create_completion(PROMPT, **GREEDY, prediction=prediction)["choices"][0]["text"] == TEXT
        accepted.append(llm.stats.num_accepted_tokens)
    assert 0 < accepted[0] == accepted[2] < accepted[1] - 8


def test_every_way_to_a_text(looking_up: specllama.Llama) -> None:
    llm = looking_up
    options: dict[str, Any] = {**GREEDY, "prediction": TEXT}

    def drafted(found: str) -> bool:
        return found == TEXT and llm.stats.num_accepted_tokens > 25

    chunks = llm.create_completion(PROMPT, stream=True, **options)
    assert drafted("".join(chunk["choices"][0]["text"] for chunk in chunks))
    assert drafted(llm(PROMPT, **options)["choices"][0]["text"])
    assert drafted("".join(token.text for token in llm.generate_tokens(PROMPT, **options)))
    chat = llm.create_chat_completion(MESSAGES, **options)
    assert drafted(chat["choices"][0]["message"]["content"])
    assert chat["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] > 25
    outcomes = llm.create_completions([{"prompt": PROMPT, **options}, {"prompt": PROMPT, **GREEDY}])
    assert [outcome.text for outcome in outcomes] == [TEXT] * 2
    assert [outcome.stats.num_accepted_tokens > 25 for outcome in outcomes] == [True, False]
    tokens = llm.tokenize(PROMPT.encode())
    corpus = [*tokens[-8:], *llm.tokenize(TEXT.encode(), add_bos=False)]
    generation = llm.engine.generate(tokens, max_tokens=20, temperature=0.0, lookup_corpus=corpus)
    assert len(list(generation)) == 20 and llm.stats.num_accepted_tokens > 12
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
def test_over_the_server(looking_up: specllama.Llama, max_parallel: int) -> None:
    imported("fastapi")
    from served import serving

    with serving(looking_up, max_parallel=max_parallel) as served:
        chat = {"messages": MESSAGES, **GREEDY}
        predicted = {"type": "content", "content": [{"type": "text", "text": TEXT}]}
        answer = served.post("/v1/chat/completions", **chat, prediction=predicted).json()
        assert answer["choices"][0]["message"]["content"] == TEXT and "warnings" not in answer
        events = served.events(
            "/v1/chat/completions", **chat, prediction=predicted, stream_options={"include_usage": True}
        )
        two = served.post("/v1/completions", prompt=PROMPT, **GREEDY, prediction=TEXT, n=2).json()
        for usage, least in ((answer["usage"], 25), (events[-1]["usage"], 25), (two["usage"], 50)):
            assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > least
        for wrong in ({"type": "image"}, {"content": 5}, 5, "the cat sat " * 5000):
            assert served.post("/v1/completions", prompt=PROMPT, max_tokens=1, prediction=wrong).status_code == 400
        off = served.post("/v1/completions", prompt=PROMPT, max_tokens=1, prediction="a", num_draft_tokens=0).json()
        assert off["warnings"] == ["prediction has no effect here"]
