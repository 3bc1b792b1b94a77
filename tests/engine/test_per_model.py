"""What is made of a model is made once, whoever asks first."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from specllama.engine import Model
from specllama.engine.schema_constraint import schema_vocabulary

if TYPE_CHECKING:
    from conftest import MakeLlama


class Vocabulary:
    pass


def test_once_for_all_places_and_again_for_another_model(make_llama: MakeLlama) -> None:
    makers: list[Any] = []

    def make(model: Model) -> Vocabulary:
        makers.append(model)
        time.sleep(0.05)  # the others ask meanwhile
        return Vocabulary()

    llm, other = make_llama(max_parallel=4), make_llama()
    start = threading.Barrier(4)

    def ask(_: int) -> tuple[object, Vocabulary]:
        with llm.engine.texts.taken(2, lambda: None) as place:
            start.wait(30)
            return place, place.model.once(make)

    llm.engine.texts.open(4)
    with ThreadPoolExecutor(4) as threads:
        asked = list(threads.map(ask, range(4)))
    assert len({id(place) for place, _ in asked}) == 4
    assert {id(made) for _, made in asked} == {id(llm.engine.model.once(make))}
    assert other.engine.model.once(make) is not llm.engine.model.once(make)
    assert len(makers) == 2


def test_texts_at_once_share_the_vocabulary_of_schemas(make_llama: MakeLlama) -> None:
    llm = make_llama(max_parallel=3)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}
    form: Any = {"type": "json_object", "schema": schema}
    chats = [[{"role": "user", "content": "the cat"}]] * 6
    vocabulary = llm.engine.model.once(schema_vocabulary)
    outcomes = llm.create_chat_completions(chats, response_format=form, max_tokens=60, seed=1)
    assert [outcome.error for outcome in outcomes] == [None] * 6
    assert len({outcome.text for outcome in outcomes}) == 1
    assert vocabulary.first.cache_info().currsize == 1
