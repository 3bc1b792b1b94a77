"""Files for `specllama batch`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from conftest import TinyFiles


MANY = [{"prompt": "hello " * (i % 5 + 1) + "word " * (i % 7)} for i in range(120)]


def request(name: str, url: str = "/v1/completions", **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": url, "body": body}


class Files:
    """An input, its output, and the command line for them."""

    def __init__(self, folder: Path, tiny_files: TinyFiles) -> None:
        self.source, self.target = folder / "prompts.jsonl", folder / "answers.jsonl"
        pair = ["-m", str(tiny_files.target), "-md", str(tiny_files.good), "-t", "1", "-c", "256"]
        self.line = ["batch", *pair, "--input", str(self.source), "--output", str(self.target), "--parallel", "4"]

    def write(self, *given: Any) -> None:
        texts = (it if isinstance(it, str) else json.dumps(it) for it in given)
        self.source.write_text("".join(text + "\n" for text in texts), encoding="utf-8")

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.target.read_bytes().splitlines()]

    def by_index(self) -> dict[int, dict[str, Any]]:
        """The answers to lines without a name. Each is there once."""
        found = {answer["index"]: answer for answer in self.answers()}
        assert len(found) == len(self.answers())
        return found

    def num_whole(self) -> int:
        return self.target.read_bytes().count(b"\n") if self.target.exists() else 0
