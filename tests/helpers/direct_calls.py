"""Calls a method of a Llama with generated arguments. A process of its own: whatever ends it is a fault.

Arguments: the method, the seed, how many calls, and a folder with the models of `tests/drop_in/test_direct_calls.py`.
"""

from __future__ import annotations

import math
import random
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llama_cpp
import numpy as np

import specllama

if TYPE_CHECKING:
    from collections.abc import Callable

OPTIONS: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
POOLINGS = range(-1, 4)
RANK = 4
ENCODERS = ("encoder", "reranker")
UNITS = [
    "a",
    "th",
    "the cat ",
    "-",
    "1",
    " ",
    "\n",
    "é",
    "中",
    "🦙",
    "\0",
    "</s>",
    "<s>",
    "\x80",
    "\u00a0",
    "▁",
    "'s",
    "<0x41>",
]
NUMBERS = [
    *(0, 1, 2, 3, 7, 40, 100, 255, 256, 511, 512, 513, 1023, 4096, 10**6),
    *(-1, -2, -(2**31), 2**31 - 1, 2**31, 2**32, 2**63, 2**70),
]
OTHERS = [None, True, False, 0.5, math.nan, math.inf, -math.inf, "1", b"a", [], {}, (), [None], object(), "x" * 99]


class Calls:
    """The models, and where chance is."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.models = {path.stem: path for path in sorted(folder.glob("*.gguf"))}
        self.known: dict[str, specllama.Llama] = {}

    def llama(self) -> specllama.Llama:
        """One of some, opened in several ways."""
        name = self.chance.choice(sorted(self.models))
        kinds = ["plain", "embedding", "vocab_only", "small"]
        kind = self.chance.choice(kinds[1:] if name in ENCODERS else kinds)
        pooling = self.chance.choice([*POOLINGS, RANK] if name == "reranker" else [*POOLINGS])
        more: dict[str, Any] = {
            "plain": {},
            "embedding": {"embedding": True, "pooling_type": pooling},
            "vocab_only": {"vocab_only": True, "embedding": self.chance.random() < 0.5},
            "small": {"embedding": True, "n_batch": 64, "n_ubatch": 16, "pooling_type": pooling},
        }[kind]
        key = f"{name} {more}"
        if key not in self.known:
            if len(self.known) > 6:
                self.known.pop(self.chance.choice(sorted(self.known))).close()
            self.known[key] = specllama.Llama(str(self.models[name]), **OPTIONS, **more)
        return self.known[key]

    def text(self) -> str:
        size = self.chance.choice([0, 1, 1, 2, 3, 20, 300])
        parts = [self.chance.choice(UNITS) * self.chance.choice([1, 1, 2, 30]) for _ in range(size)]
        if self.chance.random() < 0.02:
            parts.append(self.chance.choice(UNITS) * 30_000)
        return "".join(parts)

    def value(self) -> Any:
        return self.chance.choice([*NUMBERS, *OTHERS])

    def number(self) -> Any:
        return self.chance.choice(NUMBERS) if self.chance.random() < 0.8 else self.value()

    def tokens(self, n_vocab: int) -> Any:
        """Mostly tokens."""
        size = self.chance.choice([0, 1, 2, 5, 70, 300])
        tokens: list[Any] = [self.chance.randrange(n_vocab) for _ in range(size)]
        if self.chance.random() < 0.3:
            tokens.insert(self.chance.randrange(len(tokens) + 1), self.value())
        kind = self.chance.randrange(12)
        if kind == 0:
            return self.value()
        if kind == 1:
            return tuple(tokens)
        if kind == 2 and all(type(token) is int and abs(token) < 2**31 for token in tokens):
            return np.array(tokens, dtype=self.chance.choice([np.int32, np.int64, np.float32]))
        return tokens

    def some(self, values: dict[str, Callable[[], Any]]) -> dict[str, Any]:
        """Some of these arguments."""
        return {name: make() for name, make in values.items() if self.chance.random() < 0.3}


def grammar(calls: Calls) -> Any:
    """A grammar, or none."""
    text = calls.chance.choice(['root ::= "a"*', "root ::= root", "", "root ::= [", 'root ::= "a" nothing', None, 3])
    if not isinstance(text, str):
        return text
    made = llama_cpp.LlamaGrammar.__new__(llama_cpp.LlamaGrammar)
    made._grammar, made._root = text, calls.chance.choice(["root", "", "other"])
    return made


def embed(calls: Calls, llm: specllama.Llama) -> None:
    def one() -> Any:
        return calls.chance.choice([calls.text, calls.text, lambda: calls.tokens(llm.n_vocab()), calls.value])()

    given = [one() for _ in range(calls.chance.choice([0, 1, 2, 5, 70]))] if calls.chance.random() < 0.6 else one()
    flags = {name: (lambda: calls.chance.random() < 0.5) for name in ("normalize", "truncate", "return_count")}
    if calls.chance.random() < 0.3:
        llm.create_embedding(given)
    else:
        llm.embed(given, **calls.some(flags))


def tokenize(calls: Calls, llm: specllama.Llama) -> None:
    text: Any = calls.text().encode("utf-8", "surrogatepass")
    if calls.chance.random() < 0.3:
        text = calls.chance.choice([calls.value(), calls.chance.randbytes(50), text.decode(), bytearray(text)])
    ways: list[Callable[..., Any]] = [
        llm.tokenize,
        llm.tokenizer().tokenize,
        llm.tokenizer_.tokenize,
        llm._model.tokenize,
    ]
    calls.chance.choice(ways)(text, calls.chance.choice([True, False, 2]), calls.chance.choice([True, False, None]))


def detokenize(calls: Calls, llm: specllama.Llama) -> None:
    ways: list[Callable[..., Any]] = [
        *(llm.detokenize, llm.tokenizer().detokenize, llm.tokenizer_.detokenize, llm.tokenizer().decode),
        *(llm.engine.text, llm._model.detokenize),
    ]
    calls.chance.choice(ways)(calls.tokens(llm.n_vocab()))


def token(calls: Calls, llm: specllama.Llama) -> None:
    for name in ("token_bos", "token_eos", "token_nl", "n_vocab", "n_embd", "n_ctx", "pooling_type"):
        getattr(llm, name)()
    names = ("token_get_text", "token_get_score", "token_get_attr", "token_to_piece")
    getattr(llm._model, calls.chance.choice(names))(calls.number())


def sample(calls: Calls, llm: specllama.Llama) -> None:
    if calls.chance.random() < 0.5:
        llm.reset()
    if calls.chance.random() < 0.7:
        llm.eval(calls.tokens(llm.n_vocab()))
    names = ("top_k", "top_p", "min_p", "typical_p", "temp", "repeat_penalty", "frequency_penalty", "presence_penalty")
    more = ("tfs_z", "mirostat_mode", "mirostat_eta", "mirostat_tau", "penalize_nl", "idx")
    values: dict[str, Callable[[], Any]] = dict.fromkeys((*names, *more), calls.number)
    values |= {
        "idx": calls.number,
        "grammar": lambda: grammar(calls),
        "logits_processor": lambda: [lambda ids, scores: scores],
    }
    chosen = llm.sample(**{name: value for name, value in calls.some(values).items() if calls.chance.random() < 0.4})
    assert 0 <= chosen < llm.n_vocab()


def state(calls: Calls, llm: specllama.Llama) -> None:
    ways: list[Callable[[], Any]] = [
        llm.reset,
        lambda: llm.eval(calls.tokens(llm.n_vocab())),
        lambda: llm.load_state(llm.save_state()),
        lambda: llm.load_state(calls.value()),
        lambda: llm.set_cache(calls.chance.choice([None, llama_cpp.LlamaRAMCache()])),
        lambda: llm.set_seed(calls.value()),
        lambda: llm.create_completion(calls.text()[:50], max_tokens=2),
        lambda: next(llm.generate(calls.tokens(llm.n_vocab()), top_k=calls.number())),
        lambda: (llm.scores, llm.eval_tokens, llm.eval_logits, llm.metadata),
    ]
    calls.chance.choice(ways)()


def functions(calls: Calls, llm: specllama.Llama) -> None:
    rows = calls.chance.choice([[], [0.0], [math.nan, 1.0], [math.inf] * 3, [[1.0, 2.0]], np.zeros((2, 3), np.single)])
    calls.chance.choice(
        [
            lambda: llm.logits_to_logprobs(rows, calls.chance.choice([-1, 0, 5])),
            lambda: llm.longest_token_prefix(calls.tokens(5), calls.tokens(5)),
        ]
    )()


def main(name: str, seed: int, count: int, folder: Path) -> None:
    calls, method = Calls(seed, folder), globals()[name]
    came: dict[str, int] = {}
    for _ in range(count):
        llm = calls.llama()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                method(calls, llm)
            result = "no error"
        except Exception as error:
            result = type(error).__name__
        came[result] = came.get(result, 0) + 1
    sys.stdout.write(f"{count} {came}\n")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
