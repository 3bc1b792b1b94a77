"""Sends two servers the same requests, and prints which of them only one answers, and which fields an answer lacks.

``python scripts/same_requests.py OURS THEIRS``, both addresses such as ``http://127.0.0.1:8000``. The requests are
those of ``tests/data/llama_server_requests.jsonl``, or of ``--requests FILE``. Both should have the same model, and a
llama-server all of its paths (``--slots --props --metrics``; for vectors a second run with ``--embeddings``, and
``--only embeddings``). A recent llama-server is in the wheel ``xllamacpp``, as a library::

    import xllamacpp
    params = xllamacpp.CommonParams()
    params.model.path, params.n_parallel, params.endpoint_slots = "model.gguf", 4, True
    print(xllamacpp.Server(params).listening_address)

It ends with 1 if THEIRS answers a request that OURS does not, and that is not marked as refused in the file. Fields
that an answer of ours lacks are printed, to be judged by a reader: not every field is one that clients read.
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
KINDS = {
    (True, True): "both",
    (True, False): "only ours",
    (False, True): "only theirs",
    (False, False): "neither",
}
"""The names of the cases, by whether OURS answers and whether THEIRS does."""
_SECONDS = 300  # the most for an answer
_LONGEST = 200


class Answer(NamedTuple):
    """An answer of a server: its status, the names of its fields, and its text."""

    status: int
    fields: set[str]
    text: str


def ask(client: httpx.Client, request: dict[str, Any]) -> Answer:
    """Send a request; one without a body is a GET."""
    has_body = "body" in request
    reply = client.request(
        "POST" if has_body else "GET", request["path"], json=request.get("body") if has_body else None
    )
    fields = {field for part in parts(reply.text) for field in paths(part)}
    return Answer(reply.status_code, fields, reply.text)


def parts(text: str) -> list[Any]:
    """The objects of an answer: one, or all of a stream."""
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
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ours")
    parser.add_argument("theirs")
    parser.add_argument("--requests", type=Path, default=REQUESTS)
    parser.add_argument("--only", default="", help="only requests whose names have this text in them")
    given = parser.parse_args()
    counts = dict.fromkeys(KINDS.values(), 0)
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
            kind = KINDS[are_good]
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
    return 1 if counts["only theirs"] else 0


if __name__ == "__main__":
    sys.exit(main())
