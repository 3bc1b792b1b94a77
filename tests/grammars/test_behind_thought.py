"""The place where an answer begins, in tokens and in GBNF."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from specllama import _core
from specllama.chat.formats.forced import answer, begun_thought
from specllama.engine.schema_constraint import Behind, OneOf, schema_vocabulary
from specllama.engine.vocabulary import Gbnf
from specllama.grammars.behind_thought import Thought
from specllama.grammars.gbnf_behind import gbnf_behind
from specllama.grammars.schema import matched_schema

if TYPE_CHECKING:
    from conftest import MakeLlama

SCHEMA = matched_schema(json.dumps({"enum": ["yes", 12]}))
TEXTS = ("<think>Hm</think>12", '<think><</</thin</think>"yes"', "12", '"yes"', "<thin", "<think></think>", "So 12")


def rule(is_begun: bool) -> Behind:
    at_once = OneOf((begun_thought(("<think>",), lambda _: None), SCHEMA))
    behind = OneOf((answer(SCHEMA, (), lambda _: None, behind=()),))
    return Behind(Thought("<think>", "</think>", is_begun), at_once, behind)


@pytest.mark.parametrize("is_begun", [True, False])
def test_masks_do_not_depend_on_what_was_tried_before(make_llama: MakeLlama, is_begun: bool) -> None:
    """Texts become longer, shorter and others, as they do with drafts."""
    vocabulary = make_llama().engine.model.once(schema_vocabulary)
    matcher, rng = rule(is_begun).matcher(vocabulary), random.Random(3)
    texts = [vocabulary.tokens_of(text.encode()) for text in TEXTS]
    for _ in range(200):
        one, other = rng.choice(texts), rng.choice(texts)
        recent = np.array([*one[: rng.randrange(9)], *other[: rng.randrange(9)]], np.intc)
        assert matcher(recent) == rule(is_begun).matcher(vocabulary)(recent)


def test_the_switch_is_where_the_thought_ends(make_llama: MakeLlama) -> None:
    vocabulary = make_llama().engine.model.once(schema_vocabulary)
    ends = set(vocabulary.ends)

    def allowed(text: str, is_begun: bool) -> set[bytes]:
        found = rule(is_begun).matcher(vocabulary)(np.array(vocabulary.tokens_of(text.encode()), np.intc))
        assert found is not None
        bits = int.from_bytes(found[0], "little")
        return {vocabulary.name(token) for token in range(len(vocabulary._pieces)) if bits >> token & 1} - {
            vocabulary.name(token) for token in ends
        }

    every = allowed("", True)
    assert b"q" in every and b"<" in every and b"\xe2" in every
    assert {piece[:1] for piece in allowed("", False)} == {b"<", b'"', b"1"}
    assert {piece[:1] for piece in allowed("<thin", False)} == {b"k"}
    for begin, is_begun in (("<think>", False), ("", True)):
        for thought in ("", "Hm", "<", "</think", "</think</thi"):
            assert allowed(begin + thought, is_begun) >= every - {b">" + piece for piece in every}
        assert {piece[:1] for piece in allowed(f"{begin}Hm</think>", is_begun)} == {b" ", b"\n", b'"', b"1"}
        assert {piece[:1] for piece in allowed(f"{begin}Hm</think>\n\n\n\n", is_begun)} == {b'"', b"1"}


GRAMMAR = 'root ::= "yes" | "\\"" [a-z]* "\\""\n'
THINK = Thought("<think>", "</think>", False)
FITS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "a thought": (
        {"thought": THINK},
        ["yes", '"a"', "<think></think>yes", '<think><</</thin\n✓"</think>\n\nyes'],
        ["<think>yes", "<think></think>no", "<thin", "\nyes", "<think></think>\n\n\n\n\nyes"],
    ),
    "a begun thought": (
        {"thought": Thought("<think>", "</think>", True)},
        ["</think>yes", "Hm</think> yes", "<think>Hm</think>yes", "<<</</think>yes"],
        ["yes", "Hm"],
    ),
    "channels": (
        {
            "thought": Thought("<|c|>a<|m|>", "<|e|>", False),
            "between": "<|s|>it",
            "opening": "<|c|>f<|m|>",
        },
        ["<|c|>f<|m|>yes", "<|c|>a<|m|>Hm<|e|><|s|>it<|c|>f<|m|>yes"],
        ["yes", "<|c|>a<|m|>Hm<|e|>yes", "<|c|>a<|m|>Hm<|e|><|s|>it yes"],
    ),
    "calls": (
        {"thought": None, "others": ['{"a": "\\', "<call>\n"]},
        ["yes", "<call>\nso", '{"a": "\\x'],
        ["<call>so"],
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_gbnf_of_the_whole_text(make_llama: MakeLlama, name: str) -> None:
    """It ends where the answer does."""
    llm = make_llama()
    options, fits, others = FITS[name]
    text, root = gbnf_behind(GRAMMAR, "root", **options)
    for each, is_right in (*((one, True) for one in fits), *((one, False) for one in others)):
        tokens = llm.engine.model.once(schema_vocabulary).tokens_of(each.encode())
        assert can_end(llm, Gbnf(text, root).over(llm.engine.model), tokens) == is_right, each


def can_end(llm: Any, grammar: Any, tokens: list[int]) -> bool:
    """Whether a grammar allows all of these tokens, and then the end of the text."""
    whole = [*tokens, llm.token_eos()]
    params = _core.SamplerParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
    for place, token in enumerate(whole):
        row = np.zeros(llm.n_vocab(), np.single)
        found = _core.distribution(row, params, whole[:place], grammar)
        if token not in found.ids[found.probs > 0]:
            return False
    return True
