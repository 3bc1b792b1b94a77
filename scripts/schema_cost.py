"""Prints the processor time that following a JSON schema takes for each token, on a model's own vocabulary.

Run it where specllama is installed: ``python scripts/schema_cost.py MODEL`` (a path or a
name). Texts that are valid by a schema are followed token by token, as in plain decoding, and four at a time, of
which half are taken back, as with a draft.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import numpy as np
from json_schemas import QUESTIONS

import specllama
from specllama.engine.schema_constraint import schema_vocabulary
from specllama.grammars.schema import matched_schema
from specllama.grammars.schema_matcher import SchemaVocabulary

MODEL_SECONDS = 0.045  # a token of a 1.5B in 4 bits on two cores
DRAFTED = 4
ANSWER = {
    "string": 'Lorem ipsum "dolor" sit amet, é日本 consectetur.',
    "number": 31.5,
    "boolean": True,
    "integer": 1815,
    "null": None,
}
RICH: dict[str, Any] = {  # a schema that llama_cpp's grammars do not follow
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "id": {"type": "string", "format": "uuid"},
                "size": {"type": "integer", "minimum": 3, "maximum": 70000},
                "code": {"type": "string", "pattern": r"^\d{3}-[A-Z]{2,8}$"},
                "tags": {"type": "array", "items": {"type": "string", "minLength": 2}, "minItems": 1, "maxItems": 9},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["id", "size", "code", "tags", "next"],
            "additionalProperties": {"type": "number", "multipleOf": 0.5},
        }
    },
}
NODE = {"id": "3fa85f64-5717-4562-b3fc-2c963f66afa6", "size": 815, "code": "123-ABCDE", "tags": ["red", "blue"]}


def example(schema: dict[str, Any]) -> Any:
    """A value that is valid by one of the schemas above."""
    if "enum" in schema:
        return schema["enum"][0]
    if schema["type"] == "object":
        return {name: example(part) for name, part in schema["properties"].items()}
    if schema["type"] == "array":
        return [example(schema["items"])] * 3
    return ANSWER[schema["type"]]


def follow(
    vocabulary: SchemaVocabulary, tokens: np.ndarray[tuple[int], np.dtype[np.intc]], grammar: str
) -> tuple[list[float], list[float]]:
    """Milliseconds of processor time of each token in plain decoding, and with drafts of which half is rejected."""
    plain, drafted = [], []
    matcher = vocabulary.matcher(grammar)
    for i in range(len(tokens)):
        start = time.process_time()
        mask, may_end, _ = matcher(tokens[:i])
        plain.append(1e3 * (time.process_time() - start))
        assert not may_end or i == len(tokens) - 1
        assert mask[tokens[i] // 8] >> (tokens[i] % 8) & 1, f"{vocabulary.name(int(tokens[i]))!r} is forbidden"
    constraint = vocabulary.constraint(grammar)
    kept = 0
    while kept < len(tokens):
        start = time.process_time()
        last = min(kept + DRAFTED, len(tokens))
        for i in [*range(kept, last + 1), *range(kept, last + 1)]:  # the draft asks, and then the target
            constraint.forced(tokens[:i])
        num_kept = max(1, (last - kept) // 2)
        kept += num_kept
        drafted.append(1e3 * (time.process_time() - start) / num_kept)
    return plain, drafted


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    llm = specllama.Llama(parser.parse_args().model, n_ctx=64, verbose=False)
    start = time.perf_counter()
    vocabulary = schema_vocabulary(llm.engine.model)
    print(f"{llm.n_vocab()} tokens, known to llguidance after {time.perf_counter() - start:.2f} s\n")
    print("| schema | made ms | first mask ms | mean ms | worst ms | of a 1.5B's token | mean with drafts ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    several = [(f"question {i + 1}", schema, example(schema)) for i, schema in enumerate(QUESTIONS.values())]
    for name, schema, value in [*several, ("recursive, with bounds", RICH, {**NODE, "next": {**NODE, "next": None}})]:
        start = time.process_time()
        grammar = matched_schema(json.dumps(schema))
        vocabulary.matcher(grammar)
        made = 1e3 * (time.process_time() - start)
        text = json.dumps(value, ensure_ascii=False).encode()
        plain, drafted = follow(vocabulary, np.array(llm.tokenize(text, add_bos=False), np.intc), grammar)
        mean = statistics.mean(plain)
        share = mean / 1e3 / MODEL_SECONDS
        cells = f"{made:.1f} | {plain[0]:.2f} | {mean:.3f} | {max(plain[1:]):.2f} | {share:.1%}"
        print(f"| {name} | {cells} | {statistics.mean(drafted):.3f} |")
    llm.close()


if __name__ == "__main__":
    main()
