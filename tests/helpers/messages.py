"""What specllama says when something is wrong, collected from its sources, each message with … for what varies."""

from __future__ import annotations

import ast
import dataclasses
import functools
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]

SHOWN_BY = ("warn", "_warn", "warn_once", "_on_error", "warning", "error", "fail", "errors_reported")
"""Functions and methods that show a text to the user, or log it."""

REASONS = (
    *("fallback_reason", "why_no_rollback", "why_no_writer", "_reason", "_keep", "without_home"),
    *("fallback", "on_threads", "on_noise", "on_fallbacks", "on_differences"),
    *("problems", "untested", "notes", "_notes", "that_fit"),
)
"""Functions whose texts end up in a warning, an error or a remark behind a result."""

_LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
_LEAST = 8


@dataclasses.dataclass(frozen=True)
class Text:
    """A message of the sources."""

    file: str
    line: int
    kind: str
    """The exception's type, the function that shows it, or ``C++``."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


@functools.cache
def all_messages() -> list[Text]:
    """Every message that has words of its own: of specllama/, of cpp/, and of what `make` looks at first."""
    found: list[Text] = []
    for path in [*sorted(ROOT.glob("specllama/**/*.py")), ROOT / "scripts" / "preflight.py"]:
        found += _of_python(path)
    for path in sorted(ROOT.glob("cpp/**/*.cpp")):
        found += _of_cpp(path)
    found += _of_samplers(ROOT / "cpp" / "math" / "sampler_params.hpp")
    return [message for message in found if len(message.text.replace("…", "").strip()) >= _LEAST]


def _of_python(path: Path) -> Iterator[Text]:
    file = path.relative_to(ROOT).as_posix()
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    raised = [node.exc for node in nodes if isinstance(node, ast.Raise)]
    for node in nodes:
        if isinstance(node, ast.Call) and (kind := _kind(node, node in raised)):
            texts = (_text(argument) for argument in node.args)
            yield from (Text(file, node.lineno, kind, text) for text in texts if text)
        elif isinstance(node, ast.FunctionDef) and node.name in REASONS:
            documentation = ast.get_docstring(node, clean=False)
            texts = (text for text in _literals(node) if " " in text and text != documentation)
            yield from (Text(file, node.lineno, node.name, text) for text in texts)


def _kind(call: ast.Call, raised: bool) -> str | None:
    """What a call does with its texts, if it tells them to the user."""
    called = ast.unparse(call.func)
    name = called.rpartition(".")[2]
    error = raised or name.endswith(("Error", "Exception")) or called == "super().__init__"
    printed = name == "print" and any(text.startswith("specllama: ") for text in map(_text, call.args) if text)
    return name if error or printed or name in SHOWN_BY else None


def _text(node: ast.AST) -> str | None:
    """A literal with … for what is put in; None if it is none."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod) and (form := _text(node.left)):
        return re.sub("%[sd]", "…", form)
    return None


def _literals(node: ast.AST) -> Iterator[str]:
    """All literals below a node, but not the parts of one."""
    for child in ast.iter_child_nodes(node):
        text = _text(child)
        if text is None:
            yield from _literals(child)
        else:
            yield text


def _of_samplers(path: Path) -> Iterator[Text]:
    """Every sampler's parameter, and what it must be: rows X(type, name, default, check, "what it must be", ...)."""
    file = path.relative_to(ROOT).as_posix()
    code = path.read_text(encoding="utf-8")
    for row in re.finditer(r'X\(\w+, (\w+), [^,]+, \w+,[\s\\]*"([^"]*)"', code):
        yield Text(file, code[: row.start()].count("\n") + 1, "C++", f"{row[1]}…{row[2]}…")


def _of_cpp(path: Path) -> Iterator[Text]:
    """Every statement with a literal that has a space in it."""
    file = path.relative_to(ROOT).as_posix()
    code = re.sub(r"//[^\n]*|#include[^\n]*", "", path.read_text(encoding="utf-8"))
    for match in re.finditer(r'(?:[^;{}"]|"(?:[^"\\]|\\.)*")+', code):
        pieces = _LITERAL.split(match[0])
        literals, between = pieces[1::2], pieces[2:-1:2]
        if any(" " in literal for literal in literals):
            joins = ["" if not gap.strip() else "…" for gap in between] + ["…"]
            text = "".join(literal + join for literal, join in zip(literals, joins, strict=True))
            yield Text(file, code[: match.start()].count("\n") + 1, "C++", text.replace('\\"', '"'))
