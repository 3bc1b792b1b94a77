"""Uses of a Llama with any kind of draft, each text compared with that of a fresh one that has none.

`difference` does a case in this process, which may end: `uses.py` gives each a child.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import tiny_models as tiny
from block_heads import fitted_block_head, weights_of, write_block_head
from exact import EXACT_CACHE
from heads import fitted_head
from interrupts import Interruption
from state_heads import fitted_medusa, write_state_head

import specllama
from specllama.engine import Listener

_MASK = 5
_ERRORS = ("BusyError", "ContextFullError", "EmbeddingsError", "RuntimeError", "StopIteration", "ValueError")
"""Those that an action may end with, if it does without a draft, too."""
_WORDS = (1, 270, 280, 290, 265, 300, 310)
LONG = "the cat sat on the dog and " * 4
LONGER = LONG * 10
PROMPTS = (
    *("the cat", "a dog", "the cat sat on the dog and", LONG, LONG + "a dog"),
    *(LONGER, LONGER[:-5] + "a fox", LONGER[:400] + "no fox" + LONGER[400:], LONGER[:250]),
)
_N_CTX = 512
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}}, "required": ["b"]}


def _raising(calls: int) -> llama_cpp.LogitsProcessorList:
    """A processor that raises when it is called for the n-th time."""
    left = iter(range(calls - 1))

    def process(input_ids: Any, logits: Any) -> Any:
        if next(left, None) is None:
            raise ValueError("this text ends here")
        return logits

    return llama_cpp.LogitsProcessorList([process])


def _criterion(input_ids: Any, logits: Any) -> bool:
    return len(input_ids) % 7 == 0


WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "plain": lambda: {},
    "grammar": lambda: {"grammar": llama_cpp.LlamaGrammar.from_string("root ::= [a-z ]{4,30} [.]", verbose=False)},
    "stop": lambda: {"stop": ["o"]},
    "bias": lambda: {"logit_bias": {"7": 3.0, "290": 2.0}},
    "penalty": lambda: {"repeat_penalty": 1.2, "top_k": 20},
    "criterion": lambda: {"stopping_criteria": llama_cpp.StoppingCriteriaList([_criterion])},
    "raises": lambda: {"logits_processor": _raising(4)},
}
"""Arguments of a completion."""


@dataclasses.dataclass(frozen=True)
class Kind:
    """A target, and what drafts for it."""

    target: str = "target"
    draft: Any = None
    """A name of a file in a path's place, too, and a function that makes it of the files."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    both: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Options that change the text: the fresh one has them, too."""
    inner: str = ""
    """The draft's own draft: a name of a file, or "lookup"."""
    is_limited: bool = False
    """It drafts for one text at a time, in a context that does not embed, and cannot be assigned: this is left out."""


class Says:
    """A function that drafts, in llama_cpp's way."""

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        return np.array([_WORDS[(len(input_ids) + i) % len(_WORDS)] for i in range(4)], dtype=np.intc)


class Draws:
    """One that draws its tokens, and says from what."""

    def __init__(self, num_vocab: int) -> None:
        self._q = np.zeros(num_vocab)
        self._q[list(_WORDS)] = 1 / len(_WORDS)
        self._chance = np.random.default_rng(7)

    def __call__(self, input_ids: Any, /, **kwargs: Any) -> Any:
        return self._chance.choice(_WORDS, 3).astype(np.intc), np.tile(self._q, (3, 1))


def _lent(files: Mapping[str, str]) -> Any:
    return specllama.Llama(files["good"], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False, **EXACT_CACHE)


_MOVES_ON = {"draft_kwargs": {"swa_full": False}}
_OTHERS = ("sliding", "sliding_draft", "recurrent", "recurrent_good", "hybrid", "mtp_hybrid", "scanning", "sinks")
KINDS: dict[str, Kind] = {
    "none": Kind(),
    "lookup": Kind(draft="lookup"),
    "auto": Kind(draft="auto"),
    "good": Kind(draft="good"),
    "bad": Kind(draft="bad"),
    "adversarial": Kind(draft="adversarial"),
    "window": Kind(draft="good", options={"draft_window": 24}),
    "small context": Kind(draft="good", options={"draft_kwargs": {"n_ctx": 64}}),
    "parallel": Kind(draft="good", options={"draft_mask_token": _MASK}),
    "lent": Kind(draft=_lent),
    "adapter": Kind(draft="good", both={"lora_path": "lora"}),
    "function": Kind(draft=lambda files: Says()),
    "function that draws": Kind(draft=lambda files: Draws(len(tiny.word_vocabulary()))),
    "head": Kind("deep", "deep_head"),
    "head with the target's embeddings": Kind("deep", "bare_head"),
    "head of some tokens": Kind("deep", "small_head"),
    "head and model": Kind("deep", ["deep_head", "good"]),
    "head of blocks": Kind("deep", "deep_block"),
    "head of blocks and model": Kind("deep", ["good", "deep_block"]),
    "head of blocks with the target's embeddings": Kind("deep", "bare_block", {"draft_window": 24}),
    "head of chained blocks": Kind("deep", "chained_block"),
    "head of blocks that chooses": Kind("deep", "choosing_block"),
    "medusa": Kind("deep", "deep_medusa"),
    "mtp": Kind("mtp", "mtp"),
    "several mtp layers": Kind("mtp_several", "mtp"),
    "mtp of a hybrid": Kind("mtp_hybrid", "mtp"),
    "mtp by itself": Kind("mtp", "auto"),
    "head of the target's memory": Kind("gemma4", "assistant"),
    "recurrent": Kind("recurrent", "recurrent_good"),
    "hybrid": Kind("hybrid", "hybrid_good"),
    "sliding": Kind("sliding", "sliding_draft"),
    "windows that move on": Kind("sliding", "sliding_good", _MOVES_ON),
    "scanning hybrid": Kind("scanning", "scanning_good"),
    "delta net": Kind("mtp_hybrid", "delta_good"),
    "mixture with sinks": Kind("sinks", "sinks_good", _MOVES_ON),
    "head of windows": Kind("sliding", "sliding_medusa"),
    "head of a recurrent one": Kind("recurrent", ["recurrent_medusa", "recurrent_good"]),
    "head of a hybrid": Kind("hybrid", ["hybrid_medusa", "hybrid_good"]),
    "head of a mixture": Kind("sinks", "sinks_medusa"),
    "head of a mixture's layers": Kind("sinks", ["sinks_head", "sinks_good"]),
    "looks up in windows": Kind("sliding", "lookup"),
    "looks up in a recurrent one": Kind("recurrent", "lookup"),
    "looks up in a hybrid": Kind("scanning", "lookup"),
    "looks up in a mixture": Kind("sinks", "lookup"),
    "windows for a plain one": Kind("target", "sliding_draft", _MOVES_ON),
    "recurrent for a plain one": Kind("target", "recurrent_good"),
    "plain for a hybrid": Kind("hybrid", "good", {"draft_window": 24}),
    "delta net for windows": Kind("sliding", "delta_good"),
    "mixture for a recurrent one": Kind("recurrent", "sinks", _MOVES_ON),
    "another tokenizer": Kind("foreign", "good"),
    "looks up for the draft": Kind(draft="good", inner="lookup"),
    "drafts for the draft": Kind(draft="good", inner="bad"),
    "drafts for the draft rightly": Kind(draft="good", options={"draft_window": 24}, inner="good"),
    "learns": Kind(draft="good", options={"learn": True}),
    "head that learns": Kind("deep", "deep_medusa", {"learn": True}),
    "looks up and learns": Kind("sinks", "lookup", {"learn": True}),
    "auto that learns": Kind(draft="auto", options={"learn": True}),
    "hybrid that learns": Kind("hybrid", "hybrid_good", {"learn": True}),
    "lookahead": Kind(
        draft="lookahead", options={"draft_kwargs": {"window": 2, "n_gram": 3, "guesses": 1}}, is_limited=True
    ),
}
OTHER_MEMORIES = tuple(name for name, kind in KINDS.items() if kind.target in _OTHERS or kind.draft in _OTHERS)
"""Kinds with a window, a recurrent state, both, or a mixture."""


def written(folder: Path, files: Mapping[str, Path]) -> dict[str, str]:
    """All files that a case needs: those of `conftest.TinyFiles`, and some heads."""
    words = tiny.word_vocabulary()
    deep = tiny.llama_weights(words, seed=1, n_layer=4)
    weights = fitted_head(words, deep, n_embd=32, first=259)
    some = list(range(0, len(words), 2))
    without = {name: weight for name, weight in weights.items() if name != "token_embd.weight"}
    heads = {
        "bare_head": tiny.write_head(folder / "bare_head.gguf", words, without),
        "small_head": tiny.write_head(
            folder / "small_head.gguf", words, {**weights, "output.weight": weights["output.weight"][some]}, tokens=some
        ),
    }
    matrix = fitted_block_head("dflash", words, deep, first=259)["output.weight"]
    for name, kind in {"chained_block": "dspark", "choosing_block": "dflash2"}.items():
        own = {**weights_of(kind, words, 5, n_embd=32), "output.weight": matrix}
        heads[name] = write_block_head(folder / f"{name}.gguf", kind, words, own)
    bare = weights_of("dflash", words, 5, n_embd=32)
    for name in ("token_embd.weight", "output.weight"):
        del bare[name]
    heads["bare_block"] = write_block_head(folder / "bare_block.gguf", "dflash", words, bare)
    others = {
        "sliding_good": tiny.write_sliding_window(folder / "sliding_good.gguf", words, 1, 0.03),
        "scanning": tiny.write_scanning_hybrid(folder / "scanning.gguf", words, 1),
        "scanning_good": tiny.write_scanning_hybrid(folder / "scanning_good.gguf", words, 1, 0.03),
        "delta_good": tiny.write_mtp_hybrid(folder / "delta_good.gguf", words, 1, 0.03),
        "sinks": tiny.write_sinks(folder / "sinks.gguf", words, 1),
        "sinks_good": tiny.write_sinks(folder / "sinks_good.gguf", words, 1, 0.03),
        "sinks_head": tiny.write_head(
            folder / "sinks_head.gguf", words, tiny.head_weights(words, 5, n_target=32, n_embd=32)
        ),
    }
    for name in ("sliding", "recurrent", "hybrid", "sinks"):
        path = folder / f"{name}_medusa.gguf"
        others[path.stem] = write_state_head(path, "medusa", words, fitted_medusa({**files, **others}[name], words))
    return {name: str(path) for name, path in {**files, **heads, **others}.items()}


class Meddler(Listener):
    """Uses the engine that it hears of, once, at a moment."""

    def __init__(self, moment: str, use: Callable[[], object]) -> None:
        self._moment, self._use = moment, use
        self.failed = ""

    def _at(self, moment: str) -> None:
        if moment == self._moment:
            self._moment = ""
            try:
                self._use()
            except specllama.BusyError:
                pass
            except Exception as error:
                self.failed = f"{type(error).__name__}: {error}"

    def poll(self) -> None:
        self._at("poll")

    def begin(self, tally: Any) -> None:
        self._at("begin")

    def end(self, tally: Any) -> None:
        self._at("end")


def difference(files: Mapping[str, str], case: Mapping[str, Any]) -> str:
    """What of a case is not as it should be; nothing if all is.

    Args:
        files: see `written`.
        case: `kind`, a key of KINDS; `options`, arguments of the Llama with a draft; `both`, those of the fresh one,
            too; `sampling`; and `actions`, each a list of its name and its arguments.
    """
    kind = KINDS[case["kind"]]
    both = {**{name: files[value] for name, value in kind.both.items()}, **case["both"], **EXACT_CACHE}
    actions = case["actions"]
    if kind.is_limited:
        both = {name: value for name, value in both.items() if name not in ("embedding", "pooling_type")}
        actions = [action for action in actions if action[0] not in Use.OF_MANY]
    common = {"n_ctx": _N_CTX, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **both}

    def fresh() -> specllama.Llama:
        return specllama.Llama(files[kind.target], num_draft_tokens=0, **common)

    def drafting() -> Any:
        if callable(kind.draft):
            return kind.draft(files)
        if isinstance(kind.draft, list):
            return [files[name] for name in kind.draft]
        return files.get(kind.draft, kind.draft) if kind.draft != "mtp" else kind.draft

    def opened() -> specllama.Llama:
        options = {**kind.options, **case["options"]}
        if kind.inner:
            options["draft_kwargs"] = {"draft_model": files.get(kind.inner, kind.inner)}
        return specllama.Llama(files[kind.target], draft_model=drafting(), **{**common, **options})

    llm = _outcome(opened)
    if isinstance(llm, Exception):  # refused; without a draft too?
        return "" if type(_outcome(fresh)) is type(llm) else f"refused: {llm!r}"
    use = Use(opened, case["sampling"], drafting, llm)
    for number, (name, *given) in enumerate([*actions, ("plainly", 3, 8)]):
        found = _outcome(lambda: use.do(name, given))  # noqa: B023
        if name in Use.SILENT and not isinstance(found, Exception):
            expected: Any = None
        else:
            other = Use(fresh, {**case["sampling"], "verify": "coupled"}, lambda: None)
            alike = "plainly" if name == "meddle" else name
            expected = _outcome(lambda: other.do(alike, given))  # noqa: B023
        if not _same(found, expected):
            return f"action {number}, {name} {given}: {found!r} instead of {expected!r}"
    return ""


def _outcome(do: Callable[[], Any]) -> Any:
    try:
        return do()
    except Exception as error:
        return error


def _same(found: Any, expected: Any) -> bool:
    if isinstance(found, Exception):
        return type(found) is type(expected) and type(found).__name__ in _ERRORS
    if isinstance(found, np.ndarray) and isinstance(expected, np.ndarray):
        return found.shape == expected.shape and np.allclose(found, expected, atol=2e-3, equal_nan=True)
    return type(found) is type(expected) and bool(found == expected)


def _said(response: Any) -> str:
    choice = response["choices"][0]
    text = choice["message"]["content"] if "message" in choice else choice["text"]
    return f"{text} {choice['finish_reason']}"


class Use:
    """Does something with a Llama, and says what came of it."""

    SILENT = ("stream", "forget", "reset", "save", "load", "reopen", "exchange", "cancel", "interrupt")
    """Those that say nothing, with a draft or without."""
    OF_MANY = ("texts", "chats", "cancel", "interrupt", "exchange")
    """Those that a kind that is limited cannot do."""

    def __init__(
        self,
        opened: Callable[[], specllama.Llama],
        sampling: Mapping[str, Any],
        drafting: Callable[[], Any],
        llm: specllama.Llama | None = None,
    ) -> None:
        """Of a Llama; without one, of fresh ones, which have each text alone."""
        self._opened, self._sampling, self._drafting = opened, sampling, drafting
        self._is_fresh = llm is None
        self._llm = opened() if llm is None else llm
        self._streams: list[Any] = []
        self._saved: Any = None

    def do(self, name: str, given: Sequence[Any]) -> Any:
        """One action; each is a method."""
        return getattr(self, f"_{name}")(*given)

    def _alone(self, asked: Mapping[str, Any], length: int) -> str:
        llm = self._opened() if self._is_fresh else self._llm
        answer: Any = llm.create_chat_completion if "messages" in asked else llm.create_completion
        try:
            return _said(answer(max_tokens=length, **{**self._sampling, **asked}))
        finally:
            if self._is_fresh:
                llm.close()

    def _together(self, asked: Sequence[Mapping[str, Any]], length: int) -> list[str]:
        """Texts, or the names of their errors."""
        if self._is_fresh:
            found = [_outcome(lambda one=one: self._alone(one, length)) for one in asked]  # type: ignore[misc]
            return [type(one).__name__ if isinstance(one, Exception) else one for one in found]
        llm = self._llm
        answer: Any = llm.create_chat_completions if "messages" in asked[0] else llm.create_completions
        outcomes = answer([{**self._sampling, **one} for one in asked], max_tokens=length)
        return [type(one.error).__name__ if one.error else _said(one.response) for one in outcomes]

    def _text(self, prompt: int, length: int, way: str = "plain") -> str:
        return self._alone({"prompt": PROMPTS[prompt], **WAYS[way]()}, length)

    def _turns(self, prompt: int, length: int, cut: int) -> list[str]:
        """A text, and that of a prompt with a part of it."""
        first = self._text(prompt, length)
        return [first, self._alone({"prompt": f"{PROMPTS[prompt]}{first[:cut]} a dog"}, length)]

    def _texts(self, given: list[tuple[int, str]], length: int) -> list[str]:
        return self._together([{"prompt": PROMPTS[prompt], **WAYS[way]()} for prompt, way in given], length)

    def _chats(self, prompts: list[int], length: int) -> list[str]:
        """Every other one answers in JSON."""
        formats: list[dict[str, Any]] = [{"response_format": {"type": "json_object", "schema": SCHEMA}}, {}]
        chats = [[{"role": "user", "content": PROMPTS[prompt]}] for prompt in prompts]
        return self._together([{"messages": chat, **formats[i % 2]} for i, chat in enumerate(chats)], length)

    def _cancel(self, prompts: list[int], length: int, count: int) -> None:
        """Several texts, whose caller leaves when some have ended."""
        given = [PROMPTS[prompt] for prompt in prompts]
        outcomes: Any = self._llm.create_completions(given, max_tokens=length, stream=True, **self._sampling)
        with outcomes:
            list(itertools.islice(outcomes, count))

    def _interrupt(self, prompts: list[int], length: int, place: int) -> None:
        """Ctrl-C in the midst of one text, or of several."""
        given = [{"prompt": PROMPTS[prompt]} for prompt in prompts]
        with contextlib.suppress(ValueError):
            Interruption(place).of(
                lambda: self._together(given, length) if len(given) > 1 else self._alone(given[0], length)
            )

    def _stream(self, prompt: int, length: int, kept: bool) -> None:
        """Some chunks of a text that nobody reads to its end."""
        stream = self._llm.create_completion(PROMPTS[prompt], max_tokens=40, stream=True, **self._sampling)
        list(itertools.islice(stream, length))
        self._streams = [*self._streams, stream] if kept else []

    def _send(self, prompt: int, length: int, tokens: list[int]) -> list[int]:
        """The tokens of a text to which others are sent."""
        options = {name: value for name, value in self._sampling.items() if name not in ("temperature", "seed")}
        self._llm.set_seed(self._sampling.get("seed", 1))
        text = self._llm.generate(
            self._llm.tokenize(PROMPTS[prompt].encode()), temp=self._sampling["temperature"], **options
        )
        found = list(itertools.islice(text, length))
        found.append(text.send(tokens))
        found += itertools.islice(text, length)
        text.close()
        return found

    def _tokens(self, prompt: int) -> list[int]:
        return self._llm.engine.tokenize(PROMPTS[prompt])

    def _append(self, prompt: int, length: int, tokens: list[int]) -> list[int]:
        """The tokens of an engine's text, with others in their midst."""
        text = self._llm.engine.generate(self._tokens(prompt), max_tokens=100, **self._sampling)
        found = list(itertools.islice(text, length))
        text.append(tokens)
        found += itertools.islice(text, length)
        text.close()
        return found

    def _score(self, prompt: int) -> Any:
        return np.array([logits.copy() for _, logits in self._llm.engine.score(self._tokens(prompt))])

    def _plainly(self, prompt: int, length: int, *_: str) -> list[int]:
        """The tokens of an engine's text."""
        asked = {"max_tokens": length, **self._sampling}
        return list(self._llm.engine.generate(self._tokens(prompt), **asked))

    def _meddle(self, prompt: int, length: int, moment: str, use: str) -> list[int]:
        """The same of one whose listener uses the engine; those of the next one if that has ended it."""
        engine, tokens = self._llm.engine, self._tokens(0)
        listener = Meddler(
            moment,
            {
                "forget": engine.forget,
                "generate": lambda: list(engine.generate(tokens, max_tokens=3, temperature=0.0)),
                "score": lambda: list(engine.score(tokens)),
                "completion": lambda: self._llm.create_completion("a dog", max_tokens=3, temperature=0.0),
                "reset": self._llm.reset,
            }[use],
        )
        asked = {"max_tokens": length, "listener": listener, **self._sampling}
        try:
            found = list(engine.generate(self._tokens(prompt), **asked))
        except RuntimeError:  # a BusyError is one
            found = self._plainly(prompt, length)
        if listener.failed:
            raise AssertionError(f"the listener got {listener.failed}")
        return found

    def _embed(self, prompts: list[int]) -> Any:
        return np.array(self._llm.embed([PROMPTS[prompt] for prompt in prompts]))

    def _forget(self) -> None:
        self._llm.engine.forget()

    def _reset(self) -> None:
        self._llm.reset()

    def _save(self) -> None:
        self._saved = self._llm.save_state()

    def _load(self) -> None:
        if self._saved is not None:
            self._llm.load_state(self._saved)

    def _reopen(self) -> None:
        """Saved, and loaded by another Llama."""
        state = self._llm.save_state()
        self._llm.close()
        self._llm = self._opened()
        self._llm.load_state(state)

    def _exchange(self, to: str) -> None:
        self._llm.draft_model = {"none": None, "lookup": "lookup"}[to] if to != "same" else self._drafting()
