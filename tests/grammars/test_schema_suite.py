"""JSON-Schema-Test-Suite, draft 2020-12: each schema is enforced or refused, and none is ignored."""

from __future__ import annotations

import collections
import contextlib
import json
import random
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

jsonschema = imported("jsonschema")

import llguidance

from specllama.grammars.schema import NotEnforcedError, matched_schema
from specllama.grammars.schemas import why_not_enforced

if TYPE_CHECKING:
    from conftest import MakeLlama, TinyFiles

SUITE = json.loads((Path(__file__).parents[1] / "data" / "json_schema_test_suite.json").read_text("utf-8"))["cases"]
NUM_ANSWERS = 6
LONGEST = 150  # bytes of an answer
# Of the 366 schemas, as docs/server-promises.md has it. A newer llguidance may enforce more of them.
ENFORCED = 161
END = 256


def cases() -> list[tuple[str, Any, list[Any], list[Any]]]:
    return [(f"{file}: {about}", *rest) for file, several in SUITE.items() for about, *rest in several]


def strict(schema: Any) -> str | None:
    return why_not_enforced({"response_format": {"type": "json_object", "schema": schema}})


def matcher_of(schema: Any) -> Any:
    return llguidance.LLMatcher(llguidance.LLTokenizer("byte"), matched_schema(json.dumps(schema)), log_level=0)


def accepts(matcher: Any, text: str) -> bool:
    matcher.reset()
    tokens = list(text.encode())
    return bool(matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting())


def answer(matcher: Any, rng: random.Random) -> str | None:
    """Some text that is allowed; None if it does not come to an end."""
    matcher.reset()
    text = bytearray()
    for _ in range(LONGEST):
        if matcher.is_accepting():
            return text.decode()
        mask = int.from_bytes(matcher.compute_bitmask(), "little")
        allowed = [byte for byte in range(END) if mask >> byte & 1]
        assert allowed, f"nothing may follow {bytes(text)!r}"
        likely = [byte for byte in allowed if chr(byte) in '"}]{[:,0123456789abc'] if rng.random() < 0.9 else []
        text.append(rng.choice(likely or allowed))
        assert matcher.consume_token(text[-1])
    return None


@pytest.mark.long
def test_each_schema_is_enforced_or_refused() -> None:
    """What the matcher takes allows no instance that is invalid, and writes none."""
    rng = random.Random(1)
    found = collections.Counter[str]()
    for name, schema, valid, invalid in cases():
        try:
            matcher = matcher_of(schema)
        except NotEnforcedError:
            found["refused"] += 1
            continue
        found["enforced"] += 1
        for instance in invalid:
            for text in (json.dumps(instance), json.dumps(instance, ensure_ascii=False, separators=(",", ":"))):
                assert not accepts(matcher, text), f"{name}: {text} is not valid by {schema}"
        found["valid instances"] += len(valid)
        found["valid instances accepted"] += sum(accepts(matcher, json.dumps(instance)) for instance in valid)
        validator = jsonschema.Draft202012Validator(schema)
        for text in filter(None, (answer(matcher, rng) for _ in range(NUM_ANSWERS))):
            found["answers"] += 1
            assert validator.is_valid(json.loads(text)), f"{name}: {text} is not valid by {schema}"
    assert found["enforced"] >= ENFORCED, found
    assert found["enforced"] + found["refused"] == len(cases())
    assert found["answers"] > 5 * ENFORCED
    assert found["valid instances accepted"] > 0.9 * found["valid instances"]


def test_what_strict_refuses_is_what_the_matcher_does_not_take() -> None:
    for name, schema, *_ in cases():
        reason = strict(schema)
        assert reason is None or "cannot be enforced: " in reason, name
        with contextlib.nullcontext() if reason is None else pytest.raises(NotEnforcedError):
            matched_schema(json.dumps(schema))


def test_texts_of_a_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    """Some of them through all of it: what is written to its end is valid."""
    llm = make_llama(draft=tiny_files.good)
    finished = 0
    for _, schema, *_ in cases()[::6]:
        if strict(schema) is not None:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            made: Any = llm.create_chat_completion(
                [{"role": "user", "content": "the cat"}],
                response_format={"type": "json_object", "schema": schema},
                max_tokens=100,
                temperature=1.0,
                seed=1,
            )
        choice = made["choices"][0]
        if choice["finish_reason"] == "stop":
            finished += 1
            value = json.loads(choice["message"]["content"])
            assert jsonschema.Draft202012Validator(schema).is_valid(value), schema
    assert finished > 5
