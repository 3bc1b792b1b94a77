"""Prints how fast JSON is generated with a schema and without, with a draft and without, and what is accepted.

Run it where specllama is installed: ``python scripts/json_schemas.py TARGET DRAFT`` (paths or names). Nothing else
should use the machine. Greedy decoding, six questions, by turns.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
from typing import Any

import recorded
from pair import add_pair, opened

import specllama
from specllama.evidence.machine import describe_machine

MODES = (0, "auto", 4)  # 0 is plain decoding
TEXT: dict[str, Any] = {"type": "string"}
NUMBER: dict[str, Any] = {"type": "number"}


def record(**fields: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object that has all of these fields."""
    return {"type": "object", "properties": fields, "required": list(fields)}


def some(items: dict[str, Any]) -> dict[str, Any]:
    """The schema of an array."""
    return {"type": "array", "items": items}


QUESTIONS = {
    "Invent a person and describe them.": record(
        name=TEXT, age=NUMBER, occupation=TEXT, tags=some(TEXT), address=record(street=TEXT, city=TEXT, country=TEXT)
    ),
    "Extract the order: 'Hi, this is Dana Cole. Please send 3 blue mugs at 7.50 each and one teapot for 31.00 "
    "to 14 Hill Road, Leeds.'": record(
        customer=TEXT, items=some(record(product=TEXT, quantity=NUMBER, unit_price=NUMBER)), address=TEXT, total=NUMBER
    ),
    "List three Python web frameworks with year of first release and licence.": record(
        frameworks=some(record(name=TEXT, year=NUMBER, licence=TEXT))
    ),
    "Classify this review: 'The screen is gorgeous, but the battery dies by noon and support never answered.'": record(
        sentiment={"enum": ["positive", "negative", "mixed"]},
        aspects=some(record(aspect=TEXT, opinion={"enum": ["good", "bad"]}, quote=TEXT)),
        summary=TEXT,
    ),
    "Give a recipe for pancakes.": record(
        title=TEXT, servings=NUMBER, ingredients=some(record(name=TEXT, amount=NUMBER, unit=TEXT)), steps=some(TEXT)
    ),
    "Plan a weekend in Lisbon.": record(
        city=TEXT, days=some(record(day=TEXT, activities=some(record(time=TEXT, what=TEXT, cost=NUMBER))))
    ),
}


@dataclasses.dataclass
class Sums:
    """The sums of one mode over all questions, with the schema or without."""

    ratios: list[float] = dataclasses.field(default_factory=list)
    drafted: int = 0
    reached: int = 0
    accepted: int = 0
    num_equal: int = 0

    def row(self) -> str:
        """The cells of the table."""
        accepted = f"{self.accepted / max(1, self.drafted):.2f} | {self.accepted / max(1, self.reached):.2f}"
        ratios = f"{statistics.mean(self.ratios):.2f} | {min(self.ratios):.2f} | {max(self.ratios):.2f}"
        return f"{ratios} | {accepted} | {self.num_equal} of {len(self.ratios)} |"


def ask(llm: specllama.Llama, question: str, schema: dict[str, Any], guided: bool, mode: Any) -> tuple[str, float]:
    """The answer, and its tokens per second without the prompt."""
    text = f"{question} Answer with JSON of these fields: {json.dumps(schema)}" + ("" if guided else " Only the JSON.")
    llm.reset()
    answer = llm.create_chat_completion(
        [{"role": "user", "content": text}],
        response_format={"type": "json_object", "schema": schema} if guided else None,
        temperature=0.0,
        max_tokens=128,
        num_draft_tokens=mode,
    )
    return answer["choices"][0]["message"]["content"], llm.stats.tokens_per_second


def main() -> None:
    """Print the table."""
    parser = recorded.parser(__doc__)
    add_pair(parser)
    given = parser.parse_args()
    llm = opened(given, n_ctx=2048)
    sums = {(guided, mode): Sums() for guided in (True, False) for mode in MODES[1:]}
    for (question, schema), guided in ((pair, guided) for pair in QUESTIONS.items() for guided in (True, False)):
        plain = ("", 1.0)
        for mode in MODES:
            found = ask(llm, question, schema, guided, mode)
            if mode == 0:
                plain = found
                continue
            mine, stats = sums[guided, mode], llm.stats
            mine.ratios.append(found[1] / plain[1])
            mine.drafted += stats.num_draft_tokens
            mine.reached += stats.num_reached_tokens
            mine.accepted += stats.num_accepted_tokens
            mine.num_equal += found[0] == plain[0]
    print("| | draft tokens | speedup | least | most | accepted of drafted | of those reached | equal texts |")
    print("|---|---|---:|---:|---:|---:|---:|---:|")
    for (guided, mode), found_sums in sums.items():
        print(f"| {'with the schema' if guided else 'without'} | {mode} | {found_sums.row()}")
    if given.record:
        rows = [
            {"guided": guided, "num_draft_tokens": mode, **dataclasses.asdict(found_sums)}
            for (guided, mode), found_sums in sums.items()
        ]
        recorded.keep(given.record, {"machine": describe_machine(llm), "rows": rows})
    llm.close()


if __name__ == "__main__":
    main()
