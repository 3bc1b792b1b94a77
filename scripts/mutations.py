"""Do the tests notice when product code is wrong? Mutations are made one by one: ``python scripts/mutations.py``.

``choose RECORD`` draws them by a seed: each changes an operator, a bound or a call of product code. ``run RECORD
FOLDER`` makes each in a copy of the last commit in FOLDER, runs the tests of its room there, and notes in RECORD what
they say. It takes hours of one core; it can be stopped at any time, and goes on where it was. ``run RECORD FOLDER
--like BEFORE`` begins a RECORD with the mutations of an old one, which are found again by their lines. ``compare BEFORE
AFTER`` says which of those that still apply are no longer noticed. scripts/mutations.json is what was noticed at the
commit that it names.

Before the first mutation all tests run once, to know which fail without one, how long each takes, and which of them
come to a mutated line: only those can notice it. Of a line in a header of C++ that is not known.
"""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WANTED = {".py": 100, ".cpp": 50}
SPARE = 25  # more of C++, which take the place of those that do not compile
PYTHON, CPP = {".py"}, {".cpp", ".hpp", ".inc"}
PATIENCE = 120  # seconds that tests may take beyond four times what they take without a mutation
MOST = 150  # tests that are run for a mutation: one of each function that comes to its line, then more

# The folders of tests/ for a file of the product, or for a folder and what is in it. A missing one is left out.
TESTS = {
    "cpp": "drafts",
    "cpp/ggml": "kernels",
    "cpp/ggml_plugin": "kernels",
    "cpp/kernels": "kernels",
    "cpp/llama": "engine",
    "cpp/loop": "loop",
    "cpp/math": "math",
    "cpp/pacing": "loop",
    "specllama": "drop_in commands",
    "specllama/backend": "kernels",
    "specllama/batch": "many",
    "specllama/commands": "commands evidence",
    "specllama/commands/batch.py": "many",
    "specllama/commands/quantize.py": "models",
    "specllama/commands/serve.py": "server",
    "specllama/commands/train_draft.py": "training",
    "specllama/drop_in": "drop_in",
    "specllama/engine": "engine drafts",
    "specllama/engine/drafts": "drafts",
    "specllama/evidence": "evidence",
    "specllama/grammars": "grammars",
    "specllama/many": "many",
    "specllama/models": "models drafts",
    "specllama/prompts": "commands evidence",
    "specllama/server": "server",
    "specllama/training": "training",
}

COMPARED: dict[type[ast.cmpop], tuple[str, str]] = {
    **{ast.Eq: ("==", "!="), ast.NotEq: ("!=", "=="), ast.Lt: ("<", ">="), ast.GtE: (">=", "<")},
    **{ast.Gt: (">", "<="), ast.LtE: ("<=", ">"), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is")},
    **{ast.In: ("in", "not in"), ast.NotIn: ("not in", "in")},
}
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
NATIVE = {
    "comparison": (r" (==|!=|<|>=|>|<=) ", {"==": "!=", "!=": "==", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}),
    "bound": (r" (<=|>=|<|>) ", BOUNDS),
    "sum": (r" (\+|-|\+=|-=) ", {"+": "-", "-": "+", "+=": "-=", "-=": "+="}),
    "and/or": (r" (&&|\|\|) ", {"&&": "||", "||": "&&"}),
    "not": (r"(?<![\w)])(!)(?=[\w(])", {"!": ""}),
    "constant": (r"(?<![\w.'<])(\d+)(?![\w.'>])", {}),
    "call": (r"^\s+((?:[\w.\[\]*()]|->|::)+\(.*\);)\s*$", {}),
}


class Change(NamedTuple):
    """What may be changed in a text: the characters from begin to end of a line (from 0) become new."""

    line: int
    begin: int
    end: int
    new: str
    operator: str


@dataclasses.dataclass
class Mutation:
    """A line of the product, what becomes of it, and what the tests said. The lines around it help to find it again."""

    id: int
    room: str
    file: str
    line: int
    operator: str
    before: str
    old: str
    after: str
    new: str
    spare: bool = False
    outcome: str | None = None  # noticed, survived, does not apply, does not compile
    by: str | None = None  # the test that noticed it
    seconds: float | None = None

    @property
    def native(self) -> bool:
        """Whether it is one of C++."""
        return Path(self.file).suffix in CPP


# --- choosing ---


def python_changes(text: str) -> Iterator[Change]:
    """What may be changed in a file of Python."""
    lines = text.splitlines()

    def found(node: ast.expr, left: int, right: int, old: str, new: str, operator: str) -> Iterator[Change]:
        row = node.lineno - 1
        line = lines[row].encode()  # columns are those of bytes
        begin, end = (len(line[:column].decode()) for column in (left, right))
        place = re.search(rf"(?<![\w<>=!]){re.escape(old)}(?![\w=])", lines[row][begin:end])
        if place:
            yield Change(row, begin + place.start(), begin + place.end(), new, operator)

    def between(left: ast.expr, right: ast.expr, old: str, new: str, operator: str) -> Iterator[Change]:
        begin = left.end_col_offset or 0 if left.end_lineno == right.lineno else 0
        return found(right, begin, right.col_offset, old, new, operator)

    for node in product_nodes(ast.parse(text)):
        match node:
            case ast.Compare(left, [relation], [right]) if type(relation) in COMPARED:
                old, new = COMPARED[type(relation)]
                yield from between(left, right, old, new, "comparison")
                if old in BOUNDS:
                    yield from between(left, right, old, BOUNDS[old], "bound")
            case ast.BinOp(left, ast.Add() | ast.Sub() as sign, right) if not any(map(is_text, (left, right))):
                yield from between(left, right, *(("+", "-") if isinstance(sign, ast.Add) else ("-", "+")), "sum")
            case ast.BoolOp(join, [left, right]):
                yield from between(
                    left, right, *(("and", "or") if isinstance(join, ast.And) else ("or", "and")), "and/or"
                )
            case ast.UnaryOp(ast.Not(), operand) if node.lineno == operand.lineno:
                yield from found(node, node.col_offset, operand.col_offset, "not ", "", "not")
            case ast.Constant(int(value)) if not isinstance(value, bool):
                yield from found(
                    node, node.col_offset, node.end_col_offset or 0, str(value), str(value + 1), "constant"
                )
            case ast.Expr(ast.Call()) if node.lineno == node.end_lineno:
                row = node.lineno - 1
                yield Change(row, len(lines[row]) - len(lines[row].lstrip()), len(lines[row]), "pass", "call")


def product_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a file, without errors, texts, annotations, decorators and what only type checkers read."""
    for name, value in ast.iter_fields(node):
        if name not in {"annotation", "returns", "decorator_list"}:
            for child in value if isinstance(value, list) else [value]:
                types = isinstance(child, ast.If) and ast.unparse(child.test).startswith(("TYPE_CHECKING", "__name__"))
                exported = isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__"
                if isinstance(child, ast.AST) and not (
                    types or exported or isinstance(child, ast.Raise | ast.JoinedStr)
                ):
                    yield child
                    yield from product_nodes(child)


def is_text(node: ast.expr) -> bool:
    """Whether an operand has a text or a list in it: there is no difference of those."""
    nodes = ast.walk(node)
    return any(
        isinstance(one, ast.JoinedStr | ast.List) or type(getattr(one, "value", 0)) in (str, bytes) for one in nodes
    )


def native_changes(text: str) -> Iterator[Change]:
    """What may be changed in a file of C++: by the spaces that clang-format puts around operators."""
    statement = ""
    for row, line in enumerate(text.splitlines()):
        code = re.sub(r'"(?:\\.|[^"\\])*"|\'[^\'\\]\'|//.*', lambda found: " " * len(found[0]), line)
        ended = not statement or statement.rstrip().endswith((";", "{", "}", ":"))
        statement = code if ended else statement + (code if code.strip() else "")
        if re.search(
            r"^\s*#|\b(template|using|static_assert|throw|operator|default|delete)\b|<[^ ]*\d[^ ]*>", statement
        ):
            continue
        for operator, (pattern, becomes) in NATIVE.items():
            for found in re.finditer(pattern, code):
                if operator == "constant":
                    new = str(int(found[1]) + 1)
                elif operator == "call":
                    if not ended or re.match(r"(if|for|while|switch|return|else)\b", found[1]):
                        continue
                    new = ";"
                else:
                    new = becomes[found[1]]
                if operator != "sum" or '"' not in line:
                    yield Change(row, *found.span(1), new, operator)


def code_lines(text: str) -> list[tuple[int, str]]:
    """The lines of a text that are neither blank nor comments, without spaces around, by their numbers from 0."""
    lines = [(row, line.strip()) for row, line in enumerate(text.splitlines())]
    return [(row, line) for row, line in lines if line and not line.startswith(("#", "//"))]


def product(root: Path, suffixes: Iterable[str]) -> dict[str, str]:
    """The texts of the product's files with these endings, by their paths."""
    files = sorted(path for top in ("specllama", "cpp") for path in (root / top).rglob("*") if path.suffix in suffixes)
    paths = [path for path in files if "cpp/bindings/test" not in path.as_posix() and not path.is_symlink()]
    return {path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in paths}


def candidates(texts: Mapping[str, str]) -> Iterator[Mutation]:
    """All mutations of files whose three lines stand nowhere else."""
    around = {}
    for file, text in texts.items():
        code = [(-1, ""), *code_lines(text), (-1, "")]
        for (_, before), (row, _), (_, after) in zip(code, code[1:], code[2:], strict=False):
            around[file, row] = (before, text.splitlines()[row], after)
    times = collections.Counter((before, old.strip(), after) for before, old, after in around.values())
    for file, text in texts.items():
        for change in (python_changes if file.endswith(".py") else native_changes)(text):
            before, old, after = around.get((file, change.line), ("", "", ""))
            if times[before, old.strip(), after] == 1:
                new = old[: change.begin] + change.new + old[change.end :]
                room = Path(file).parent.as_posix()
                yield Mutation(0, room, file, change.line + 1, change.operator, before, old, after, new)


def drawn(texts: Mapping[str, str], wanted: int, spare: int, draw: random.Random) -> list[Mutation]:
    """Mutations of different lines, from each room in proportion to its lines, and then from each kind alike."""
    kinds: dict[str, dict[str, list[Mutation]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for each in candidates(texts):
        kinds[each.room][each.operator].append(each)
    lines: collections.Counter[str] = collections.Counter()
    for file, text in texts.items():
        lines[Path(file).parent.as_posix()] += len(text.splitlines())
    rooms = sorted(kinds)
    shares = {room: wanted * lines[room] / sum(lines[room] for room in rooms) for room in rooms}
    by_rest = sorted(rooms, key=lambda room: int(shares[room]) - shares[room])
    more = wanted - sum(map(int, shares.values()))
    order = [room for room in rooms for _ in range(int(shares[room]) + (room in by_rest[:more]))]
    order += draw.choices(rooms, [lines[room] for room in rooms], k=spare)
    chosen: list[Mutation] = []
    for room in order:
        kind = draw.choice(sorted(kinds[room]))
        one = draw.choice(kinds[room][kind])
        chosen.append(dataclasses.replace(one, spare=len(chosen) >= wanted))
        for name in list(kinds[room]):
            kinds[room][name] = [each for each in kinds[room][name] if (each.file, each.line) != (one.file, one.line)]
            if not kinds[room][name]:
                del kinds[room][name]
    return sorted(chosen, key=lambda each: (each.spare, each.file, each.line))


# --- running ---

# What runs a marked line appends the mark's number and the name of the test that runs to the file HITS. The modules of
# Python and of C++ for that.
MARKS = """
import os, sys
seen = set()
def mark(number):
    is_in_function = sys._getframe(1).f_code.co_flags & 1  # a module is run once, for all tests
    test = os.environ.get("PYTEST_CURRENT_TEST", "") if is_in_function else ""
    if (number, test) not in seen:
        seen.add((number, test))
        with open("HITS", "a") as file:
            file.write(f"{number}\\t{test}\\n")
"""
NATIVE_MARKS = """
#pragma once
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string>
inline void mutation_mark(int number) {
    static auto & mutex = *new std::mutex;
    static auto & seen = *new std::set<std::pair<int, std::string>>;
    const char * test = std::getenv("PYTEST_CURRENT_TEST");
    const std::lock_guard<std::mutex> lock(mutex);
    if (seen.insert({number, test ? test : ""}).second) {
        std::FILE * file = std::fopen("HITS", "a");
        std::fprintf(file, "%d\\t%s\\n", number, test ? test : "");
        std::fclose(file);
    }
}
"""


class Case(NamedTuple):
    """What a test did: its file, what pytest calls it, its seconds, and whether it failed."""

    file: str
    name: str
    seconds: float
    failed: bool


class Copy:
    """A copy of the last commit, with an extension of its own that is built without link-time optimisation.

    Attributes:
        cases: what the tests do without a mutation.
        reached: by the id of a mutation the tests that come to its line. An empty name stands for all.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.tree, self.built = folder, folder / "tree", folder / "build"
        self.cases: list[Case] = []
        self.reached: dict[int, set[str]] = {}
        if not self.tree.exists():
            done("git", "clone", "-q", "--no-checkout", str(ROOT), str(self.tree))
        done("git", "-C", str(self.tree), "fetch", "-q", str(ROOT), "HEAD")
        self.restore("FETCH_HEAD")
        configure = "cmake -S . -G Ninja -DCMAKE_BUILD_TYPE=RelWithDebInfo -DSPECLLAMA_TESTS=ON".split()
        configure += ["-B", str(self.built), "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -DNDEBUG"]
        configure += [f"-DPython_EXECUTABLE={sys.executable}"]
        configure += [f"-Dpybind11_DIR={done(sys.executable, '-m', 'pybind11', '--cmakedir').strip()}"]
        configure += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"] if shutil.which("ccache") else []
        if self.run(*configure) != 0 or not self.build():
            raise SystemExit(f"the product does not build: see {folder / 'log'}")

    def restore(self, commit: str = "HEAD") -> None:
        """Take back what was changed."""
        done("git", "-C", str(self.tree), "checkout", "-q", "-f", "--detach", commit)

    def run(self, *command: str, limit: float | None = None) -> int | None:
        """The exit status of a command in the copy, or None if it took too long. Its output becomes FOLDER/log."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "PYTHONPATH": str(self.tree), "OMP_THREAD_LIMIT": "1"}
        environment |= {"SPECLLAMA_CACHE": str(self.folder / "cache"), "SPECLLAMA_REQUIRE_MODELS": "0"}
        environment["SPECLLAMA_MOST_CASES"] = "4"  # of a test with many
        with (
            (self.folder / "log").open("w") as log,
            subprocess.Popen(
                command, cwd=self.tree, env=environment, stdout=log, stderr=log, start_new_session=True
            ) as process,
        ):
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # and what tests have started

    def build(self) -> bool:
        """Build the extension into the copy's package. Returns whether it compiles."""
        built = self.run("cmake", "--build", str(self.built), "-j1") == 0
        return built and self.run("cmake", "--install", str(self.built), "--prefix", str(self.tree)) == 0

    def test(self, *words: str, limit: float | None = None) -> tuple[int | None, list[Case]]:
        """Run pytest. Returns its exit status, None if it took too long, and what the tests did."""
        report, arguments = self.folder / "report.xml", self.folder / "arguments"
        report.unlink(missing_ok=True)
        arguments.write_text("\n".join(words))
        options = ["-m", "not long", f"--junitxml={report}", "-o", "junit_family=xunit1"]
        # These plugins, if they are there, take three seconds to load.
        options += [f"-pno:{name}" for name in ("cacheprovider", "langsmith_plugin", "schemathesis")]
        status = self.run(sys.executable, "-m", "pytest", *options, f"@{arguments}", limit=limit)
        cases = []
        for case in xml.etree.ElementTree.parse(report).iter("testcase") if report.exists() else ():
            file = case.get("file", "")
            inner = case.get("classname", "").split(".")[len(Path(file).parts) :]
            failed = any(case.find(what) is not None for what in ("failure", "error"))
            name = "::".join([file, *inner, case.get("name", "")])
            cases.append(Case(file, name, float(case.get("time", "0")), failed))
        return status, cases

    def folders_for(self, file: str) -> list[str]:
        """The folders of tests/ for a file of the product, those that are there."""
        room = file
        while room not in TESTS:
            room = Path(room).parent.as_posix()
        return [name for name in TESTS[room].split() if (self.tree / "tests" / name).exists()]

    def test_unmutated(self, mutations: Sequence[Mutation]) -> None:
        """Run all tests with marked lines, unless they have been, and keep what they did in FOLDER."""
        kept, hits = self.folder / "unmutated.json", self.folder / "hits"
        parts = ["HEAD:tests", "HEAD:specllama", "HEAD:cpp"]
        sources = [done("git", "-C", str(self.tree), "rev-parse", *parts), [each.id for each in mutations]]
        known = json.loads(kept.read_text()) if kept.exists() else {}
        if known.get("sources") != sources:
            known = {"sources": sources, "marked": [], "cases": {}, "hits": []}
        folders = sorted({path.parent.name for path in (self.tree / "tests").glob("*/test_*.py")} - {"project"})
        new = [folder for folder in folders if folder not in known["cases"]]
        if new:
            known["marked"] = self.mark(mutations)
        for folder in new:
            hits.unlink(missing_ok=True)
            status, cases = self.test(f"tests/{folder}")
            if status not in (0, 1):
                raise SystemExit(f"tests/{folder} ended with {status}: see {self.folder / 'log'}")
            print("left out, since they fail without a mutation:", [case.name for case in cases if case.failed])
            known["cases"][folder] = cases
            known["hits"] += hits.read_text().splitlines() if hits.exists() else []
            kept.write_text(json.dumps(known))
        self.restore()
        self.cases = [Case(*case) for cases in known["cases"].values() for case in cases if not case[3]]
        self.reached = {number: set() for number in known["marked"]}
        for hit in known["hits"]:
            number, _, test = hit.partition("\t")
            name, _, phase = test.rpartition(" ")
            if int(number) in self.reached:
                # What is made for a whole file is made in the first test of it that needs it.
                self.reached[int(number)] |= {name} if phase == "(call)" else {name, name.partition("::")[0]}

    def mark(self, mutations: Sequence[Mutation]) -> list[int]:
        """Put a mark before each statement that is to be mutated. Returns the ids of those where it is possible."""
        hits = str(self.folder / "hits")
        (self.tree / "mutation_marks.py").write_text(MARKS.replace("HITS", hits))
        (self.folder / "marks.hpp").write_text(NATIVE_MARKS.replace("HITS", hits))
        texts = product(self.tree, {".py", ".cpp"})
        marks: dict[str, set[tuple[int, int]]] = collections.defaultdict(set)
        for each in mutations:
            at = place(each, texts)
            if at:
                marks[at[0]].add((statement_at(texts[at[0]], at[1], each.native), each.id))
        while True:
            rows: dict[tuple[str, int], str] = {}
            for file, numbers in marks.items():
                native = file.endswith(".cpp")
                lines = texts[file].splitlines(keepends=True)
                for row, number in sorted(numbers, reverse=True):
                    indent = lines[row][: len(lines[row]) - len(lines[row].lstrip())]
                    mark = f"::mutation_mark({number});" if native else f'__import__("mutation_marks").mark({number})'
                    lines.insert(row, f"{indent}{mark}\n")
                if native:
                    lines.insert(0, f'#include "{self.folder / "marks.hpp"}"\n')
                (self.tree / file).write_text("".join(lines), encoding="utf-8")
                rows |= {(file, lines.index(line) + 1): line for line in lines if "mutation_mark(" in line}
            if self.build():
                return sorted(number for numbers in marks.values() for _, number in numbers)
            # Outside of functions there can be no mark.
            wrong = re.findall(r"(cpp/\S+?):(\d+):\d+: error", (self.folder / "log").read_text(encoding="utf-8"))
            for file in {file for file, _ in wrong}:
                bad = {re.sub(r"\D", "", rows.get((file, int(row)), "")) for name, row in wrong if name == file}
                left = {(row, number) for row, number in marks[file] if str(number) not in bad}
                marks[file] = left if left != marks[file] else set()

    def tests_for(self, mutation: Mutation, file: str) -> list[Case]:
        """The tests that may notice a mutation of a file: those of its room first, and one of each function."""
        room, named = self.folders_for(file), f"_{Path(file).stem.strip('_').rstrip('s')}"
        reached = self.reached.get(mutation.id, {""})
        times: collections.Counter[str] = collections.Counter()
        order: dict[Case, tuple[bool, int, bool, bool, float]] = {}
        for case in sorted(self.cases, key=lambda case: case.seconds):
            is_named, is_apart = named in case.file, Path(case.file).parts[1] not in room
            if is_named or not is_apart if "" in reached else not reached.isdisjoint({case.name, case.file}):
                function = case.name.partition("[")[0]
                is_late = "" in reached and not is_named
                order[case] = (is_late, times[function], is_apart, case.name not in reached, case.seconds)
                times[function] += 1
        chosen = sorted(order, key=lambda case: order[case])[:MOST]
        files = list(dict.fromkeys(case.file for case in chosen))  # what tests of a file share is made once
        return sorted(chosen, key=lambda case: files.index(case.file))

    def noticed_by(self, mutation: Mutation, file: str) -> str | None:
        """The first test that fails, or how the tests ended otherwise; None if they pass."""
        tests = self.tests_for(mutation, file)
        if not tests:
            return None
        # A short report: else whether the kernels work would be looked up, not tried.
        words = ["-x", *(["-q"] if mutation.native else []), *(case.name for case in tests)]
        status, cases = self.test(*words, limit=PATIENCE + 4 * sum(case.seconds for case in tests))
        failed = [case.name for case in cases if case.failed]
        if status in (0, 5):
            return None
        return failed[0] if failed else "time is over" if status is None else f"exit status {status}"

    def tried(self, mutation: Mutation) -> tuple[str, str | None]:
        """Make a mutation, run tests, and take it back. Returns the outcome and by which test it was noticed."""
        texts = product(self.tree, CPP if mutation.native else PYTHON)
        at = place(mutation, texts)
        if at is None:
            return "does not apply", None
        file, row = at
        lines = texts[file].splitlines(keepends=True)
        lines[row] = lines[row][: len(lines[row]) - len(lines[row].lstrip())] + mutation.new.strip() + "\n"
        try:
            (self.tree / file).write_text("".join(lines), encoding="utf-8")
            if mutation.native and not self.build():
                return "does not compile", None
            by = self.noticed_by(mutation, file)
            return ("noticed" if by else "survived"), by
        finally:
            self.restore()


def done(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def place(mutation: Mutation, texts: Mapping[str, str]) -> tuple[str, int] | None:
    """The file and the line (from 0) of a mutation: where it stands once between its neighbours, or beside one."""
    lines = [(file, [(-1, ""), *code_lines(text), (-1, "")]) for file, text in texts.items()]
    wanted = (mutation.before, mutation.old.strip(), mutation.after)
    for looked_at in ((0, 1, 2), (0, 1), (1, 2)):
        found = [
            (file, code[index][0])
            for file, code in lines
            for index in range(1, len(code) - 1)
            if code[index][1] == wanted[1] and all(code[index - 1 + one][1] == wanted[one] for one in looked_at)
        ]
        if found:
            return found[0] if len(found) == 1 else None
    return None


def statement_at(text: str, row: int, native: bool) -> int:
    """The first line of the innermost statement around a line (both from 0), before which another may be put."""
    lines = text.splitlines()
    if native:
        code, ends = dict(code_lines(text)), (";", "{", "}", ":")
        starts = (line for line in range(row, 0, -1) if code.get(line - 1, ";").partition("  //")[0].endswith(ends))
        first = next(starts, 0)
        return 0 if lines[first].strip().startswith("}") else first  # where a mark does not compile
    first = row
    nodes: list[ast.AST] = [ast.parse(text)]
    for node in nodes:
        for name, value in ast.iter_fields(node):
            for child in value if isinstance(value, list) else []:
                if isinstance(child, ast.stmt | ast.excepthandler | ast.match_case):
                    nodes.append(child)
                if isinstance(child, ast.stmt):
                    begin = min(one.lineno for one in [*getattr(child, "decorator_list", []), child]) - 1
                    is_elif = name == "orelse" and lines[begin].strip().startswith("elif")
                    if begin <= row < (child.end_lineno or 0) and not is_elif:
                        first = begin
    return first


def run(record: Path, folder: Path, like: Path | None, rooms: tuple[str, ...]) -> None:
    """Make the mutations of a record that have no outcome yet, in rooms whose names begin so."""
    if like is not None and not record.exists():
        old = [each for each in read(like) if each.outcome in ("noticed", "survived")]
        write(record, [dataclasses.replace(each, outcome=None, by=None, seconds=None, spare=False) for each in old])
    mutations = read(record)
    copy = Copy(folder.resolve())
    copy.test_unmutated(mutations)
    missing = {name for names in TESTS.values() for name in names.split()} - {
        path.name for path in (copy.tree / "tests").iterdir()
    }
    print("no such folders in tests/:", *sorted(missing) or ["none"], flush=True)
    for mutation in mutations:
        missing_native = sum(
            each.native and not each.spare and each.outcome == "does not compile" for each in mutations
        )
        missing_native -= sum(each.spare and each.outcome in ("noticed", "survived") for each in mutations)
        is_left = mutation.outcome is None and mutation.room.startswith(rooms)
        if is_left and (missing_native > 0 or not mutation.spare):
            start = time.monotonic()
            mutation.outcome, mutation.by = copy.tried(mutation)
            mutation.seconds = round(time.monotonic() - start, 1)
            write(record, mutations)
            print(mutation.id, mutation.file, mutation.outcome, mutation.by or "", mutation.seconds, flush=True)


def compare(before: Path, after: Path) -> None:
    """Print how many mutations that still apply were noticed, and which are no longer."""
    old = {each.id: each for each in read(before)}
    both = [(old[each.id], each) for each in read(after) if each.outcome in ("noticed", "survived")]
    print(f"of {len(both)} that still apply, {sum(one.outcome == 'noticed' for one, _ in both)} were noticed before,")
    print(f"and {sum(other.outcome == 'noticed' for _, other in both)} are noticed now")
    for one, other in both:
        if one.outcome == "noticed" != other.outcome:
            print(f"lost: {one.id} {one.file}:{one.line}, which {one.by} noticed\n  {one.old}\n  {one.new}")


def read(record: Path) -> list[Mutation]:
    """The mutations of a record."""
    return [Mutation(**each) for each in json.loads(record.read_text(encoding="utf-8"))["mutations"]]


def write(record: Path, mutations: Sequence[Mutation]) -> None:
    """Write a record: a line for each mutation would be long, so it is indented."""
    commit = done("git", "-C", str(ROOT), "log", "-1", "--format=%h", "--", "cpp", "specllama", "tests").strip()
    content = {"commit": commit, "mutations": [dataclasses.asdict(each) for each in mutations]}
    record.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Choose, run or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    choosing = commands.add_parser("choose", help="draw mutations of this tree")
    choosing.add_argument("record", type=Path)
    choosing.add_argument("--seed", type=int, default=62)
    running = commands.add_parser("run", help="make those that have no outcome yet in a copy of the last commit")
    running.add_argument("record", type=Path)
    running.add_argument("folder", type=Path)
    running.add_argument("--like", type=Path, metavar="BEFORE", help="take the mutations of this record")
    running.add_argument("--rooms", nargs="*", default=[""], help="only those of folders that begin so")
    comparing = commands.add_parser("compare", help="what was noticed before and is not now")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))
    if given.command == "choose":
        draw = random.Random(given.seed)
        chosen = drawn(product(ROOT, PYTHON), WANTED[".py"], 0, draw)
        chosen += drawn(product(ROOT, CPP), WANTED[".cpp"], SPARE, draw)
        write(given.record, [dataclasses.replace(each, id=number) for number, each in enumerate(chosen)])
    elif given.command == "run":
        run(given.record, given.folder, given.like, tuple(given.rooms))
    else:
        compare(given.before, given.after)


if __name__ == "__main__":
    main()
