"""Grammars that are not refused are followed in time, on a vocabulary with the longest tokens that real ones have."""

from __future__ import annotations

import ctypes
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import llama_cpp
import numpy as np
import pytest
import tiny_models as tiny

from specllama.engine import vocabulary
from specllama.grammars.gbnf import check_gbnf

LONG, SHORT = " -=*#/", "\t_.0eE"
NUM_GRAMMARS = 500  # of which a third passes
NUM_TOKENS = 10
MOST_SECONDS = 10.0  # on a busy machine: none takes 2 on an idle one
PATIENCE = 60.0  # seconds: then the child is ended
COUNTS = [0, 1, 2, 3, 5, 10, 20, 50, 100, 400, 2000]
TERMINALS = ['"a"', '"b"', '"ab"', '" "', '"  "', "[a-z]", "[ab]", "[^b]", '"-"', r'"\n"', "[0-9]", '"{"', "[ -]", "."]

FOUND = {
    "blanks, repeated": 'root ::= (" "+)+',
    "a rule of blanks, repeated": 'root ::= blanks+\nblanks ::= " "+',
    "blanks that may be missing": 'root ::= (" "?){20}',
    "blanks at the ends of rules": "root ::= a ws\na ::= b ws\nb ::= c ws\nc ::= d ws\nd ::= e ws ws\n"
    'e ::= "x" ws\nws ::= " "*',
    "what differs behind": 'root ::= "-" root "b" | "-" root "c" | ""',
    "a repetition of a few": 'root ::= "{" part{2,10}\npart ::= [0-9]* [a-z] | " "+ [^b] | "{"?',
    "words without an end between": 'root ::= part{50} [a-z]\npart ::= [a-z]* "ab"*',
    "a text that is repeated": r'root ::= "\"" ([^"]+ | "x")* "\""',
    "long repetitions, repeated": 'root ::= ("-"{10,400})*',
    "signs as a class": "root ::= ([*-/]{1,5} [a-z]?){0,30}",
    "signs by their numbers": r'root ::= ("\x2d" | "\u002D" [\x20-\U0000002e]?)* "b"',
}
"""Each passed before the ways of a run were counted. On a vocabulary of 152,000 tokens most took minutes."""

FINE = {
    "words": 'root ::= (word " "?)*\nword ::= [a-zA-Z]+',
    "lists": 'root ::= item (ws "," ws item)* ws\nitem ::= ws [a-z]+ ws\nws ::= [ \\t\\n]*',
    "a comment": r'root ::= "/*" ([^*] | "*" [^/])* "*/" | "//" [^\n]* "\n"',
    "a table": r"root ::= row+" + "\n" + r'row ::= "|" (cell "|")+ "\n"' + "\n" + 'cell ::= " "* [a-z]* " "* | "-"+',
    "lines": r'root ::= ([^\n]+ "\n")*',
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    words = tiny.word_vocabulary()
    lengths = {**dict.fromkeys(LONG, (4, 8, 16, 20, 32, 40, 48)), **dict.fromkeys(SHORT, (4, 8, 12))}
    runs = [character * length for character, several in lengths.items() for length in several]
    tokens = [(run + tail).replace(" ", "▁") for run in runs for tail in ("", "x", "b", "~", "\n", "9")]
    some = tiny.Vocabulary(
        [*words.tokens, *tokens], [*words.scores, *[-1000.0] * len(tokens)], [*words.types, *[1] * len(tokens)]
    )
    return tiny.write_llama(tmp_path_factory.mktemp("runs") / "runs.gguf", some, tiny.llama_weights(some, seed=1))


@pytest.fixture(scope="module")
def child(model: Path) -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, __file__, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        yield process
        process.kill()


def seconds_in(child: subprocess.Popen[str], grammar: str) -> float:
    """The longest time for a token, or to begin with it."""
    stdin, stdout = child.stdin, child.stdout
    assert stdin and stdout
    timer = threading.Timer(PATIENCE, child.kill)
    timer.start()
    stdin.write(json.dumps(grammar) + "\n")
    stdin.flush()
    answer = stdout.readline()
    timer.cancel()
    assert answer, f"it took over {PATIENCE} s, or ended the process:\n{grammar}"
    return float(answer)


def passes(grammar: str) -> bool:
    try:
        check_gbnf(grammar, vocabulary._RECENT)
    except ValueError:
        return False
    return True


def repetition(rng: random.Random) -> str:
    least, most = sorted(rng.choices(COUNTS, k=2))
    return rng.choice(
        ["", "", "", "?", "*", "+", f"{{{least}}}", f"{{{least},}}", f"{{{least},{most}}}", f"{{0,{most}}}"]
    )


def sequence(rng: random.Random, depth: int, rules: list[str], width: int) -> str:
    items = []
    for _ in range(rng.randint(1, width)):
        kind = rng.random()
        if depth > 0 and kind < 0.4:
            item = f"({alternatives(rng, depth - 1, rules, width)})"
        else:
            item = rng.choice(rules) if rules and kind < 0.65 else rng.choice(TERMINALS)
        items.append(item + repetition(rng))
    return " ".join(items)


def alternatives(rng: random.Random, depth: int, rules: list[str], width: int) -> str:
    return " | ".join(sequence(rng, depth, rules, width) for _ in range(rng.randint(1, width)))


def grammar_of(seed: int) -> str:
    """Nested repetitions, alternatives, and rules that refer to later ones, or to any."""
    rng = random.Random(seed)
    names = [f"r{i}" for i in range(rng.randint(0, 5))]
    depth, width = rng.randint(0, 3), rng.randint(1, 3)
    lines = [f"root ::= {alternatives(rng, depth, names, width)}"]
    for i, name in enumerate(names):
        referred = names[i + 1 :] if rng.random() < 0.8 else names
        lines.append(f"{name} ::= {alternatives(rng, depth - 1, referred, width)}{rng.choice(['', ' | x ' + name])}")
    return "\n".join(lines).replace("| x ", '| "x" ')


@pytest.mark.parametrize("name", FOUND)
def test_what_would_take_minutes_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"times in more than 1000000 ways, and llama\.cpp follows each") as caught:
        check_gbnf(FOUND[name])
    assert len(str(caught.value)) < 400


def test_counting_has_an_end_itself() -> None:
    with pytest.raises(ValueError, match="the grammar has more than 1000000 different elements"):
        check_gbnf("root ::= " + '"x" . ' * 600_000)
    rules = [f'r{i} ::= "x" . [a-z]? | " " r{i + 1}' for i in range(2000)]
    start = time.process_time()
    check_gbnf("\n".join(["root ::= r0", *rules, 'r2000 ::= "a"']))
    assert time.process_time() - start < PATIENCE


@pytest.mark.parametrize("name", FINE)
def test_what_has_few_ways_is_followed(child: subprocess.Popen[str], name: str) -> None:
    assert passes(FINE[name])
    assert seconds_in(child, FINE[name]) < MOST_SECONDS


def test_generated_grammars_that_are_not_refused_are_followed_in_time(child: subprocess.Popen[str]) -> None:
    passed = [grammar for grammar in map(grammar_of, range(NUM_GRAMMARS)) if passes(grammar)]
    assert len(passed) > NUM_GRAMMARS / 10
    taken = {grammar: seconds_in(child, grammar) for grammar in passed}
    assert {grammar: seconds for grammar, seconds in taken.items() if seconds > MOST_SECONDS} == {}


# --- What the child does ----------------------------------------------------------------------------------------------


def longest(vocab: Any, grammar: str) -> float:
    rng, n_vocab, taken = random.Random(1), llama_cpp.llama_vocab_n_tokens(vocab), [time.perf_counter()]
    sampler = llama_cpp.llama_sampler_init_grammar(vocab, grammar.encode(), b"root")
    if not sampler:  # llama.cpp has limits of its own
        return 0.0
    data = np.zeros(n_vocab, dtype=np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    pointer = ctypes.cast(data.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
    for _ in range(NUM_TOKENS):
        data["id"], data["logit"] = np.arange(n_vocab), 0.0
        llama_cpp.llama_sampler_apply(
            sampler, ctypes.byref(llama_cpp.llama_token_data_array(pointer, n_vocab, -1, False))
        )
        allowed = [
            int(i) for i in np.flatnonzero(data["logit"] == 0) if not llama_cpp.llama_vocab_is_eog(vocab, int(i))
        ]
        if not allowed:
            break
        llama_cpp.llama_sampler_accept(sampler, rng.choice(allowed))
        taken.append(time.perf_counter())
    llama_cpp.llama_sampler_free(sampler)
    return float(max(np.diff(taken), default=0.0))


def answer_all(path: str, lines: IO[str]) -> None:
    llm = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    vocab = llama_cpp.llama_model_get_vocab(llm._model.model)
    for line in lines:
        sys.stdout.write(f"{longest(vocab, json.loads(line))}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    answer_all(sys.argv[1], sys.stdin)
