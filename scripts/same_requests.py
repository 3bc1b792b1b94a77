"""Sends two servers the same requests, and prints which of them only one of them answers, and what an answer lacks.

``python scripts/same_requests.py OURS THEIRS``, both addresses such as ``http://127.0.0.1:8000``. The requests are those of
``tests/data/llama_server_requests.jsonl``, or of ``--requests FILE``. The servers should have the same model, and the
other one should have all its paths (llama-server: ``--slots --props --metrics``; for vectors a second run with
``--embeddings`` and a model for them, and ``--only embeddings``). It ends with 1 if THEIRS answers a request and OURS
does not, or if our answer lacks a field of theirs that is not among those that mean nothing here.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

REQUESTS = Path(__file__).parent.parent / "tests" / "data" / "llama_server_requests.jsonl"
_SECONDS = 300  # that an answer may take
_LONGEST = 200


class Answer(NamedTuple):
    """What a server said: its status, the fields of what it said, and the text itself."""

    status: int
    fields: set[str]
    text: str


def ask(client: httpx.Client, request: dict[str, Any]) -> Answer:
    """Send a request; one without a body is a GET."""
    has_body = "body" in request
    reply = client.request("POST" if has_body else "GET", request["path"], json=request.get("body") if has_body else None)
    fields = {field for part in parts(reply.text) for field in paths(part)}
    return Answer(reply.status_code, fields, reply.text)


def parts(text: str) -> list[Any]:
    """The objects of an answer: one, or those of a stream."""
    if text.startswith(("{", "[")):
        return [json.loads(text)]
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def paths(value: Any, begin: str = "") -> Iterator[str]:
    """The names of all fields, such as ``choices[].message.content``."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield f"{begin}{name}"
            yield from paths(inner, f"{begin}{name}.")
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{begin.removesuffix('.')}[].")


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--requests", type=Path, default=REQUESTS)
    parser.add_argument("--only", default="", help="only requests whose names have this text in them")
    given = parser.parse_args()
    counts = {"both": 0, "neither": 0, "only ours": 0, "only theirs": 0}
    lacking: dict[str, list[str]] = {}
    with (
        httpx.Client(base_url=given.ours, timeout=_SECONDS) as ours,
        httpx.Client(base_url=given.theirs, timeout=_SECONDS) as theirs,
    ):
        for line in given.requests.read_text().splitlines():
            request = json.loads(line)
            if given.only not in request["name"]:
                continue
            ous, their = ask(ours, request), ask(theirs, request)
            are_good = (ous.status == 200, their.status == 200)
            kind = {(True, True): "both", (True, False): "only ours", (False, True): "only theirs"}.get(are_good, "neither")
            counts[kind] += 1
            if kind != "both":
                bad = ous if kind == "only theirs" else their
                print(f"{kind}: {request['name']}: {bad.status} {bad.text[:_LONGEST]}", flush=True)
                continue
            for field in their.fields - ous.fields:
                lacking.setdefault(field, []).append(request["name"])
    print(", ".join(f"{kind} {count}" for kind, count in counts.items()))
    for field, names in sorted(lacking.items()):
        print(f"lacks {field}: {len(names)} of them, such as {names[0]}")
    return 1 if counts["only theirs"] or lacking else 0


if __name__ == "__main__":
    sys.exit(main())
