"""JSON schemas by llguidance: with a draft the text is that of plain decoding, and all of the schema is kept."""

from __future__ import annotations

import itertools
import json
import random
import time
import types
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pytest
from needed import imported

jsonschema = imported("jsonschema")

import llama_cpp
import llguidance
import numpy as np
from test_guided import DRAFTS, SAMPLED

import specllama
from specllama.chat import chat_prompt
from specllama.drop_in.lending import lent
from specllama.engine.schema_constraint import schema_vocabulary
from specllama.grammars.schema import NotEnforcedError, SchemaGrammar, matched_schema
from specllama.grammars.schema_matcher import SchemaMatcher, SchemaPieces

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles


class SchemaProcessor:
    """A logits processor that only lets through the tokens that a matcher allows. It is used for one generation."""

    def __init__(self, matcher: SchemaMatcher, ends: list[int]) -> None:
        self._matcher = matcher
        self._ends = ends
        self._prompt_size = -1

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        """The scores [n_vocab], with -inf for tokens that may not come next."""
        if self._prompt_size < 0:
            self._prompt_size = len(input_ids)
        mask, may_end, _ = self._matcher(input_ids[self._prompt_size :])
        allowed = np.zeros(len(scores), dtype=bool)
        bits = np.unpackbits(np.frombuffer(mask, dtype=np.uint8), bitorder="little")[: len(scores)]
        allowed[: len(bits)] = bits
        allowed[self._ends] = may_end
        return np.where(allowed, scores, np.single(-np.inf))


def alone(first: llguidance.LLMatcher, pieces: Sequence[bytes] = ()) -> SchemaMatcher:
    """A matcher over these pieces, of which the first one ends a text; over all bytes if there are none."""
    write = SchemaPieces(pieces, 0).write
    vocabulary: Any = types.SimpleNamespace(ends=[0] if pieces else [], has_all_bytes=not pieces, writes=write)
    return SchemaMatcher(vocabulary, [first])


MESSAGES: Any = [{"role": "user", "content": "the cat"}]
STRING: Any = {"type": "string"}
NULL: Any = {"type": "null"}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


SCHEMAS: dict[str, Any] = {
    "values": of(animal={"enum": ["cat", "dog", "fox"]}, sat={"type": "boolean"}),
    "a pattern": {**STRING, "pattern": r"^\d{2}-[a-c]+\.$", "maxLength": 12},
    "bounds": {
        "type": "array",
        "items": {"type": "integer", "minimum": 3, "maximum": 17},
        "minItems": 2,
        "maxItems": 4,
    },
    "a tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": of(name={**STRING, "maxLength": 2}, next={"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]})
        },
    },
    "names of any kind": {
        "type": "object",
        "patternProperties": {"^[xy]$": {"const": 1}},
        "additionalProperties": False,
        "maxProperties": 2,
    },
}


def grammar(name: str) -> SchemaGrammar:
    return SchemaGrammar('root ::= "never used"', matched(name))


def matched(name: str) -> str:
    return matched_schema(json.dumps(SCHEMAS[name]))


def tokens_of(llm: llama_cpp.Llama, name: str, count: int = 30, **settings: Any) -> list[int]:
    generated = llm.generate(llm.tokenize(b"the cat"), grammar=grammar(name), **settings)
    return list(itertools.islice(generated, count))


def wanted(schema: Any) -> Any:
    return {"type": "json_object", "schema": schema}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("name", SCHEMAS)
def test_greedy(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles, name: str, draft: str) -> None:
    """Against llama_cpp itself, which is shown the same masks."""
    base = make_base()
    vocabulary = lent(base).once(schema_vocabulary)
    processor = SchemaProcessor(vocabulary.matcher(matched(name)), vocabulary.ends)
    settings: dict[str, Any] = {"temp": 0.0, "logits_processor": llama_cpp.LogitsProcessorList([processor])}
    expected = list(itertools.islice(base.generate(base.tokenize(b"the cat"), **settings), 30))
    llm = make_llama(draft=tiny_files.draft(draft))
    gammas: list[Any] = [0, 1, 4, 8, "auto"]
    for gamma, rule in itertools.product(gammas, ("block", "coupled")):
        assert tokens_of(llm, name, temp=0.0, num_draft_tokens=gamma, verify=rule) == expected
        assert gamma == "auto" or (llm.stats.num_drafts > 0) == (gamma > 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("chain", SAMPLED)
@pytest.mark.parametrize("name", SCHEMAS)
def test_coupled(make_llama: MakeLlama, tiny_files: TinyFiles, name: str, chain: str) -> None:
    plain = tokens_of(make_llama(seed=5), name, verify="coupled", **SAMPLED[chain])
    for draft in [*DRAFTS, "lookup"]:
        llm = make_llama(draft="lookup" if draft == "lookup" else tiny_files.draft(draft), seed=5)
        for gamma in (1, 4, "auto"):
            assert tokens_of(llm, name, verify="coupled", num_draft_tokens=gamma, **SAMPLED[chain]) == plain


def test_an_identical_draft_is_accepted_whole(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.identical)
    for name in SCHEMAS:
        for rule in ("rejection", "block", "coupled"):
            tokens_of(llm, name, temp=1.0, verify=rule)
            assert llm.stats.acceptance_rate == 1.0


def test_what_is_forced_is_drafted_without_the_model(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.adversarial, num_draft_tokens=4)
    for seed in range(3):
        llm.create_chat_completion(MESSAGES, response_format=wanted(SCHEMAS["values"]), max_tokens=80, seed=seed)
        assert llm.stats.per_drafter["grammar"].num_accepted_tokens > 0


def assert_valid(text: str, schema: Any) -> None:
    problems = jsonschema.validators.validator_for(schema)(schema).iter_errors(json.loads(text))
    assert [problem.message for problem in problems] == [], text


@pytest.mark.sampled(4)
@pytest.mark.parametrize("verify", ["rejection", "block", "coupled"])
@pytest.mark.parametrize("name", SCHEMAS)
def test_answers_are_valid(make_llama: MakeLlama, tiny_files: TinyFiles, name: str, verify: str) -> None:
    """Also by parts that llama_cpp's converter passes over, without a warning of them."""
    schema = SCHEMAS[name]
    llm = make_llama(draft=tiny_files.good, verify=verify)
    tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
    asked: list[dict[str, Any]] = [
        {"response_format": wanted(schema)},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "look"}}},
        {"functions": [tool["function"]], "function_call": {"name": "look"}},
    ]
    finished = 0
    for request, seed in itertools.product(asked, range(3)):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            answer: Any = llm.create_chat_completion(MESSAGES, max_tokens=150, temperature=1.0, seed=seed, **request)
        choice = answer["choices"][0]
        if choice["finish_reason"] == "length":
            continue
        finished += 1
        message = choice["message"]
        calls = message.get("tool_calls") or ()
        text = calls[0]["function"]["arguments"] if calls else message["content"]
        assert_valid(text, schema)
    assert finished > 3


def test_streams_and_conversations(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    schema = SCHEMAS["bounds"]
    llm = make_llama(draft=tiny_files.good)
    settings: dict[str, Any] = {"response_format": wanted(schema), "max_tokens": 80, "temperature": 0.0}
    chunks: Any = llm.create_chat_completion(MESSAGES, stream=True, **settings)
    streamed = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in chunks)
    assert_valid(streamed, schema)
    assert isinstance(chat_prompt(llm, MESSAGES, **settings).options["grammar"], SchemaGrammar)
    talk = specllama.Conversation(llm, response_format=wanted(schema), temperature=0.0)
    assert_valid("".join(token.text for token in talk.say("the cat", max_tokens=80)), schema)


def test_a_format_is_not_converted(make_llama: MakeLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    """By llama_cpp, whose converter writes repetitions out."""
    converted = []
    for name in ("LlamaGrammar.from_json_schema", "json_schema_to_gbnf"):
        monkeypatch.setattr(f"llama_cpp.llama_grammar.{name}", lambda *_, **__: converted.append(1))
    schema = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3}
    for llm in (make_llama(), make_llama(chat_format="chatml")):
        out: Any = llm.create_chat_completion(MESSAGES, response_format=wanted(schema), max_tokens=30)
        assert_valid(out["choices"][0]["message"]["content"], schema)
    assert not converted


def test_a_grammar_of_the_callers_stays_what_it_is(make_llama: MakeLlama) -> None:
    llm = make_llama()
    own = llama_cpp.LlamaGrammar.from_string('root ::= "cat"', verbose=False)
    out: Any = llm.create_completion("the", grammar=own, max_tokens=9)
    assert out["choices"][0]["text"] == "cat"
    any_json: Any = llm.create_chat_completion(MESSAGES, response_format={"type": "json_object"}, max_tokens=9)
    assert any_json["choices"][0]["message"]["content"].lstrip()[:1] in set('{["')


def test_mirostat(make_llama: MakeLlama) -> None:
    """llama.cpp's own samplers see the masks, too."""
    llm = make_llama()
    for seed in range(3):
        answer: Any = llm.create_chat_completion(
            MESSAGES, response_format=wanted(SCHEMAS["bounds"]), max_tokens=90, mirostat_mode=2, seed=seed
        )
        assert_valid(answer["choices"][0]["message"]["content"], SCHEMAS["bounds"])


@pytest.mark.parametrize("own", [[280], [3 + ord("z"), 3 + ord("Q")], [2]])
def test_send_goes_on_behind_the_callers_tokens(make_llama: MakeLlama, tiny_files: TinyFiles, own: list[int]) -> None:
    texts = []
    for gamma in (0, 6):
        llm = make_llama(draft=tiny_files.identical)
        tokens = llm.generate(llm.tokenize(b"the"), temp=0.0, grammar=grammar("values"), num_draft_tokens=gamma)
        texts.append([next(tokens), next(tokens), tokens.send(own), *itertools.islice(tokens, 15)])
        tokens.close()
    assert texts[0] == texts[1]


def test_what_ends_a_text_leaves_nothing_behind(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(draft=tiny_files.identical, num_draft_tokens=6)
    expected = tokens_of(llm, "a tree", temp=0.0)
    for count in (1, 2, 7):
        assert tokens_of(llm, "a tree", count, temp=0.0) == expected[:count]
        assert tokens_of(llm, "values", 3, temp=0.0)
        assert tokens_of(llm, "a tree", temp=0.0) == expected


@pytest.mark.parametrize("kind", ["target", "letters", "recurrent"])
def test_any_vocabulary_will_do(make_llama: MakeLlama, tiny_files: TinyFiles, kind: str) -> None:
    llm = make_llama(getattr(tiny_files, kind))
    model = llm.engine.model
    vocabulary = model.once(schema_vocabulary)
    assert vocabulary is model.once(schema_vocabulary)
    matcher = vocabulary.matcher(matched("values"))
    if kind == "letters":  # llama.cpp would end the process if it were to find the tokens of a brace
        with pytest.raises(ValueError, match="cannot be followed any further"):
            matcher(llm._input_ids[:0])
        return
    mask, may_end, _ = matcher(llm._input_ids[:0])
    assert not may_end
    allowed = int.from_bytes(mask, "little")
    assert allowed
    before = llm.tokenize(b"a", add_bos=False)
    start = llm.detokenize(before)
    for token in range(llm.n_vocab()):
        if allowed >> token & 1:
            assert llm.detokenize([*before, token]).removeprefix(start)[:1] == b"{"


def test_a_vocabulary_that_lacks_bytes() -> None:
    tokens = [b"\xff<end>", b"{", b'"', b"a", b'":', b'"a', b":", b"1", b"}", b'{"', b"b"]
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(SchemaPieces(tokens, 0)))
    for value in (11, "ab"):
        matched = matched_schema(json.dumps(of(a={"const": value})))
        matcher = alone(llguidance.LLMatcher(tokenizer, matched, log_level=0), tokens)
        written: list[int] = []
        for _ in range(9):
            mask, may_end, forced = matcher(np.array(written, dtype=np.intc))
            if may_end:
                break
            allowed = [token for token in range(1, len(tokens)) if int.from_bytes(mask, "little") >> token & 1]
            assert forced in (-1, *allowed)
            written.append(allowed[-1])
        assert json.loads(b"".join(tokens[token] for token in written)) == {"a": value}
    first = llguidance.LLMatcher(tokenizer, matched_schema('{"const": "a☺"}'))
    unknown = alone(first, tokens)
    with pytest.raises(ValueError, match="cannot be followed any further"):
        unknown(np.array([5], dtype=np.intc))


BRANCHES: dict[str, Any] = {
    "properties": {"type": "object", "properties": {"age": {"type": "number"}, "zip": STRING}},
    "required": of(age={"type": "number"}, zip=STRING, more={"anyOf": [STRING, {"type": "boolean"}]}),
    "kinds of items": {
        "type": "array",
        "items": {"anyOf": [of(kind={"const": "a"}, n={"type": "integer"}), of(kind={"const": "b"}, s=STRING)]},
    },
    "anything": {},
}


def random_text(first: llguidance.LLMatcher, rng: random.Random, begin: list[int], size: int) -> list[int]:
    """Bytes that a schema allows, behind some that it allows. JSON's own are more often taken than letters."""
    matcher = first.deep_copy()
    matcher.consume_tokens(begin)
    text = list(begin)
    while len(text) < size:
        allowed = [byte for byte in range(32, 127) if matcher.validate_tokens([byte])]
        if not allowed:
            break
        text.append(rng.choice([byte for byte in allowed if chr(byte) in '{}[]",:aznks1'] or allowed))
        matcher.consume_tokens(text[-1:])
    return text


@pytest.mark.parametrize("name", BRANCHES)
def test_masks_behind_another_continuation_are_as_if_there_had_been_no_other(name: str) -> None:
    """llguidance's own way back keeps the last mask, and gives it to another continuation at times."""
    first = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), matched_schema(json.dumps(BRANCHES[name])))
    rng = random.Random(5)
    matcher, text = alone(first), list[int]()
    for _ in range(600):
        text = random_text(first, rng, text[: rng.randrange(rng.choice([3, 12]))], 16)
        # Not at each place: nobody asks in a text that is forced.
        count = rng.choice([place for place, byte in enumerate(text, 1) if chr(byte) in '{[":,'] or [0])
        recent = np.array(text[:count], np.intc)
        assert matcher(recent) == alone(first)(recent), bytes(text[:count])


# --- Answers that end -------------------------------------------------------------------------------------------------


def writes(schema: Any, text: str) -> bool:
    """Whether all of a text, and nothing less, is an answer."""
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, matched_schema(json.dumps(schema)), log_level=0)
    return bool(matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting())


def test_blanks_are_few() -> None:
    schema = {**of(a={"const": 1}, b={"type": "array", "items": NULL}), "x-guidance": {"whitespace_pattern": " +"}}
    for text in ('{"a":1,"b":[null,null]}', '{"a": 1, "b": [null, null]}'):
        assert writes(schema, text)
    for text in ('{"a":  1,"b":[]}', '{ "a":1,"b":[]}', '{"a":1,\n"b":[]}', '{"a":1 ,"b":[]}', '{"a":1,"b":[ ]}'):
        assert not writes(schema, text)


NAMED: Any = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
REFERRED: Any = {"$ref": "#/$defs/named"}
CLOSED: dict[str, Any] = {
    "an object": (NAMED, "@"),
    "an item": ({"type": "array", "items": NAMED}, "[@]"),
    "a reference": ({**of(x=REFERRED), "$defs": {"named": NAMED}}, '{"x":@}'),
    "an alternative": ({"anyOf": [NAMED, NULL]}, "@"),
    "one schema of allOf": ({"allOf": [REFERRED], "$defs": {"named": NAMED}}, "@"),
    "a property of this name": ({"type": "object", "properties": {"properties": NAMED}}, '{"properties":@}'),
}
OPEN: dict[str, Any] = {
    "says so": ({**NAMED, "additionalProperties": True}, '{"a":1,"b":2}'),
    "says which": ({**NAMED, "additionalProperties": {"const": 3}}, '{"a":1,"b":3}'),
    "names none": ({"type": "object"}, '{"a":1,"b":2}'),
    "requires another": ({**NAMED, "required": ["a", "b"]}, '{"a":1,"b":2}'),
    "requires several": ({**NAMED, "minProperties": 2}, '{"a":1,"b":2}'),
    "holds with another": ({"allOf": [NAMED, {"properties": {"b": {"const": 2}}}]}, '{"a":1,"b":2}'),
    "holds with a reference": ({**REFERRED, "properties": {"b": NULL}, "$defs": {"named": NAMED}}, '{"a":1,"b":null}'),
    "is no schema": (of(x={"const": NAMED}), json.dumps({"x": NAMED}, separators=(",", ":"))),
}


@pytest.mark.parametrize("name", CLOSED)
def test_objects_have_the_properties_that_are_named(name: str) -> None:
    schema, text = CLOSED[name]
    assert writes(schema, text.replace("@", '{"a":1}'))
    assert not writes(schema, text.replace("@", '{"a":1,"b":2}'))


@pytest.mark.parametrize("name", OPEN)
def test_where_others_are_meant_they_may_come(name: str) -> None:
    schema, text = OPEN[name]
    assert writes(schema, text)


# --- What llguidance is not given -------------------------------------------------------------------------------------


def chain(length: int) -> Any:
    """References one behind the other."""
    parts = {f"d{i}": of(a={"$ref": f"#/$defs/d{i + 1}"}) for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{length}": NULL}}


TOO_MUCH: dict[str, tuple[Any, str]] = {
    "repetitions": ({"type": "array", "items": NULL, "maxItems": 10**9}, "maxItems"),
    "references": (chain(500), "nested more than 300 deep"),
    "anchors": ({"$anchor": "x", "allOf": [{"$ref": "#x"}, {"$ref": "#x"}]}, "circular references"),
    "many steps": ({"type": "integer", "multipleOf": 9_999_991}, "multipleOf"),
    "combinations": (
        {"allOf": [{"anyOf": [{"properties": {f"p{i}": {"const": j}}} for j in range(4)]} for i in range(6)]},
        "schema too large",
    ),
    "a text": ({"enum": ["x" * 200_000]}, "and 100000 others"),
    "the smallest number of 64 bits": ({"enum": [0, -(2**63)]}, "the number -9223372036854775808: numbers are exact"),
    "a number of more than 64 bits": (of(a={"const": {"b": [2**70]}}), "the number 1180591620717411303424"),
    "a number that is rounded": ({"const": 2**53 + 1}, "the number 9007199254740993"),
    "bounds beyond 64 bits": ({"type": "integer", "minimum": -1e30, "maximum": -1e29}, "the number -1e"),
    "no answer": ({"$ref": "#"}, "no answer"),
    "a half": ({"properties": {"ab": {}}, "patternProperties": {"b$": NULL}}, "patternProperties"),
    "an expression that Python follows for ever": (
        {"properties": {"a" * 40 + "b": {}, "a": {}}, "patternProperties": {"^(a+)+$": NULL}},
        "patternProperties",
    ),
    "a list": ({"items": [NULL]}, "prefixItems"),
    "no object": (True, "it is true: give an object"),
    "weakened": ({**STRING, "not": {"const": "a"}, "x-guidance": {"lenient": True}}, "not"),
    "deep": (json.loads('{"items":' * 200 + "{}" + "}" * 200), "recursion"),
}


@pytest.mark.parametrize("name", TOO_MUCH)
def test_what_would_hold_or_end_the_process_is_refused(name: str) -> None:
    schema, part = TOO_MUCH[name]
    start = time.perf_counter()
    with pytest.raises(NotEnforcedError, match=part) as caught:
        matched_schema(json.dumps(schema))
    assert time.perf_counter() - start < 2
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize("bounds", [{"maximum": 2**53}, {"minimum": -(2**53)}, {"minimum": 0, "maximum": 2**63 - 1}])
def test_bounds_that_are_exact(bounds: dict[str, int]) -> None:
    for bound in bounds.values():
        assert writes({"type": "integer", **bounds}, str(bound))
    if "maximum" in bounds:
        assert not writes({"type": "integer", **bounds}, str(bounds["maximum"] + 1))


def test_what_models_are_asked_for_is_not_too_much() -> None:
    models = {f"M{i}": of(**{f"f{j}": {"anyOf": [STRING, NULL], "title": "x"} for j in range(20)}) for i in range(20)}
    fields = {f"m{i}": {"allOf": [{"$ref": f"#/$defs/M{i}"}], "description": "y"} for i in range(20)}
    assert matched_schema(json.dumps({**of(**fields), "$defs": models}))
    both = {"allOf": [{"$ref": "#/$defs/M0"}, {"properties": {"g": {"anyOf": [STRING, NULL]}}}], "$defs": models}
    assert matched_schema(json.dumps(both))
    optional = {"type": "object", "properties": {f"p{i}": NULL for i in range(1000)}}
    assert matched_schema(json.dumps(optional))
    apart = {"properties": {"a" * 40 + "b": NULL}, "patternProperties": {"^(a+)+$": NULL}}
    assert matched_schema(json.dumps(apart))
