"""Arguments, tokens and forks that hypothesis makes up: an error or the right text, and never the process's end."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import differential
import hypothesis
import hypothesis.strategies as st
import llama_cpp
import pytest
import uses
from exact import EXACT_CACHE

if TYPE_CHECKING:
    from conftest import TinyFiles

pytestmark = [pytest.mark.long, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")]

CASES = int(os.environ.get("SPECLLAMA_CASES", "60"))  # more on demand: 2,000 are 10,000 of each of the last two
generated = hypothesis.settings(max_examples=CASES, deadline=None, database=None)

ODD = st.sampled_from([None, True, False, 1.5, float("nan"), "8", "", [], [1], {}, {"a": 1}])
EDGES = [-(2**63), -(2**31), -2, -1, 0, 1, 2, 3, 255, 256, 257, 2**31 - 1, 2**31, 2**32, 2**63, 10**9, 10**30]
SIZES = st.one_of(st.integers(1, 600), st.sampled_from(EDGES), ODD)
FLOATS = st.one_of(st.floats(), st.sampled_from([0.0, 1.0, 1e4]), ODD)
FLAGS = st.one_of(st.booleans(), ODD)
TYPES = st.one_of(st.sampled_from([0, 1, 8]), st.integers(-1, 50), ODD)
NAMES = st.one_of(
    st.sampled_from(["rejection", "block", "coupled", "auto", "on", "off", "lookup", "nowhere.gguf"]), ODD
)
OF_LLAMA_CPP: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("n_ctx", "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "seed", "n_gpu_layers"), SIZES),
    **dict.fromkeys(("last_n_tokens_size", "main_gpu", "split_mode", "numa", "yarn_orig_ctx"), SIZES),
    **dict.fromkeys(("pooling_type", "rope_scaling_type"), st.one_of(st.integers(-2, 6), SIZES)),
    **dict.fromkeys(("type_k", "type_v"), TYPES),
    **dict.fromkeys(("rope_freq_base", "rope_freq_scale", "yarn_ext_factor", "yarn_attn_factor"), FLOATS),
    **dict.fromkeys(("flash_attn", "swa_full", "offload_kqv", "op_offload", "use_mmap", "use_mlock"), FLAGS),
    **dict.fromkeys(("logits_all", "vocab_only", "embedding", "no_perf", "spm_infill"), FLAGS),
    **dict.fromkeys(("chat_format", "lora_path", "lora_base"), NAMES),
    "tensor_split": st.one_of(st.lists(st.floats(), max_size=20), ODD),
    "kv_overrides": st.one_of(st.dictionaries(st.text(max_size=200), st.one_of(SIZES, FLOATS, NAMES)), ODD),
}
OURS: dict[str, st.SearchStrategy[Any]] = {
    **dict.fromkeys(("draft_window", "draft_mask_token", "max_draft_tokens", "max_parallel", "cache_tokens"), SIZES),
    "cache_ram": SIZES,
    **dict.fromkeys(("num_draft_tokens", "draft_vocabulary"), st.one_of(SIZES, NAMES)),
    **dict.fromkeys(("verify", "kernels", "draft_model", "lookup_corpus"), NAMES),
    "draft_kwargs": st.one_of(st.fixed_dictionaries({}, optional=OF_LLAMA_CPP), ODD),
    "bogus": ODD,
}
SOME = st.lists(st.sampled_from([*OF_LLAMA_CPP, *OURS]), min_size=1, max_size=4, unique=True)
ARGUMENTS = SOME.flatmap(lambda names: st.fixed_dictionaries({name: {**OF_LLAMA_CPP, **OURS}[name] for name in names}))
CHANGE_TEXTS = {"vocab_only", "embedding", "kv_overrides", "pooling_type"}
CHANGE_TEXTS |= {"rope_freq_base", "rope_freq_scale", "yarn_attn_factor", "yarn_ext_factor"}
"""With them there may be no text."""

TOKENS = st.lists(st.one_of(st.integers(-3, 400), st.sampled_from(EDGES)), max_size=30)
METHODS = st.sampled_from(["detokenize", "tokenizer", "eval", "completion"])
MORE = st.one_of(st.just({}), st.fixed_dictionaries({"prev_tokens": st.one_of(TOKENS, ODD)}))

ACTIONS = st.sampled_from(["text", "texts", "stream", "streams", "next", "end", "state", "reset"])
ANY_ACTIONS = st.lists(ACTIONS, max_size=4)

PROMPT = st.integers(0, len(differential.PROMPTS) - 1)
LENGTH = st.integers(1, 20)
WAY = st.sampled_from(sorted(differential.WAYS))
SENT = st.lists(st.integers(259, 300), min_size=1, max_size=5)
MOMENTS = st.sampled_from(["poll", "begin", "end"])
MEDDLING = st.sampled_from(["forget", "generate", "score", "completion", "reset"])
PROMPTS = st.lists(PROMPT, min_size=1, max_size=6)
DIFFERENTIAL = st.one_of(
    st.tuples(st.just("text"), PROMPT, LENGTH, WAY),
    st.tuples(st.just("turns"), PROMPT, LENGTH, st.integers(0, 20)),
    st.tuples(st.just("texts"), st.lists(st.tuples(PROMPT, WAY), min_size=2, max_size=6), LENGTH),
    st.tuples(st.just("chats"), PROMPTS, st.integers(1, 40)),
    st.tuples(st.just("cancel"), PROMPTS, LENGTH, st.integers(0, 3)),
    st.tuples(st.just("interrupt"), PROMPTS, LENGTH, st.integers(1, 700)),
    st.tuples(st.just("stream"), PROMPT, LENGTH, st.booleans()),
    st.tuples(st.just("send"), PROMPT, LENGTH, SENT),
    st.tuples(st.just("append"), PROMPT, LENGTH, SENT),
    st.tuples(st.just("score"), PROMPT),
    st.tuples(st.just("meddle"), PROMPT, LENGTH, MOMENTS, MEDDLING),
    st.tuples(st.just("embed"), st.lists(PROMPT, min_size=1, max_size=3)),
    st.tuples(st.just("exchange"), st.sampled_from(["none", "lookup", "same"])),
    st.sampled_from([("forget",), ("reset",), ("save",), ("load",), ("reopen",)]),
)
EMBEDDING = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"embedding": st.just(True)}, optional={"pooling_type": st.sampled_from([0, 1, 2, 3])}),
)
SIZES_OF_BATCHES = st.fixed_dictionaries(
    {},
    optional={
        "n_batch": st.sampled_from([8, 32, 64, 512]),
        "n_ubatch": st.sampled_from([8, 32]),
        "swa_full": st.booleans(),
    },
)
OF_DRAFTING = st.fixed_dictionaries(
    {"num_draft_tokens": st.one_of(st.integers(0, 7), st.just("auto"))},
    optional={
        "max_parallel": st.integers(1, 5),
        "cache_tokens": st.sampled_from([512, 700]),
        "cache_ram": st.sampled_from([1, 64]),
    },
)
RULES = st.sampled_from(["rejection", "block", "coupled"])
SAMPLING = st.one_of(
    st.fixed_dictionaries({"temperature": st.just(0.0), "verify": RULES}),
    st.fixed_dictionaries({"temperature": st.just(0.9), "seed": st.integers(0, 9), "verify": st.just("coupled")}),
)
KINDS = sorted(
    name
    for name in differential.KINDS
    if hasattr(llama_cpp.llama_context_default_params(), "ctx_other") or not name.startswith(("head", "mtp"))
)
OTHER_MEMORIES = sorted(set(KINDS) & set(differential.OTHER_MEMORIES))


def uses_of(kinds: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    """Of a Llama of one of these kinds."""
    return st.fixed_dictionaries(
        {
            "kind": st.sampled_from(kinds),
            "options": OF_DRAFTING,
            "both": st.builds(lambda one, other: {**one, **other}, EMBEDDING, SIZES_OF_BATCHES),
            "sampling": SAMPLING,
            "actions": st.lists(DIFFERENTIAL, min_size=1, max_size=4),
        }
    )


@pytest.fixture(scope="module")
def compared(tiny_files: TinyFiles, tmp_path_factory: pytest.TempPathFactory) -> Iterator[uses.Uses]:
    paths = {field.name: getattr(tiny_files, field.name) for field in dataclasses.fields(tiny_files)}
    files = differential.written(tmp_path_factory.mktemp("heads"), paths)
    with uses.started(tiny_files.target, tiny_files.good, files) as process:
        yield process


@pytest.fixture(scope="module")
def tried(tiny_files: TinyFiles) -> Iterator[uses.Uses]:
    with uses.started(tiny_files.target, tiny_files.good) as process:
        yield process


@generated
@hypothesis.given(ARGUMENTS)
def test_arguments_of_the_constructor(tried: uses.Uses, arguments: dict[str, Any]) -> None:
    found = tried.outcome("open", {**EXACT_CACHE, **arguments})
    kind = found.partition(":")[0]
    assert kind in {"ok", "ValueError", "TypeError", "ModelNotFoundError"} or (
        kind in {"RuntimeError", "EmbeddingsError"} and CHANGE_TEXTS & {*arguments, *_of_draft(arguments)}
    ), found


def _of_draft(arguments: dict[str, Any]) -> dict[str, Any]:
    found = arguments.get("draft_kwargs")
    return found if isinstance(found, dict) else {}


@generated
@hypothesis.given(METHODS, st.one_of(TOKENS, ODD), MORE)
def test_methods_that_take_tokens(tried: uses.Uses, name: str, tokens: Any, more: dict[str, Any]) -> None:
    found = tried.outcome("tokens", [name, tokens, more])
    assert found.partition(":")[0].partition(" ")[0] in {"ok", "ValueError", "TypeError"}, found


@generated
@hypothesis.given(st.booleans(), ANY_ACTIONS, ANY_ACTIONS, ANY_ACTIONS)
def test_forks(tried: uses.Uses, drafts: bool, before: list[str], child: list[str], after: list[str]) -> None:
    """What each says is what it says elsewhere, or an error: nobody waits for ever, and the parent goes on."""
    found = tried.outcome("fork", [drafts, before, child, after])
    assert not found.startswith("signal"), found
    first, in_child, then = json.loads(found)
    assert not in_child.startswith("signal"), found
    for who, said in (("parent", first), ("child", json.loads(in_child)), ("parent", then)):
        for one in said:
            if "!" in one:
                name, _, error = one.partition("!")
                kind = error.partition(":")[0]
                expected = {"BusyError", "RuntimeError"} if who == "child" else {"BusyError"}
                if name == "next":
                    expected |= {"StopIteration", "RuntimeError"}  # a later text has ended it
                assert kind in expected, found
            elif one.startswith(("text=", "texts=")):
                _TEXTS.setdefault(one.partition("=")[0], one)
                assert one == _TEXTS[one.partition("=")[0]], found


_TEXTS: dict[str, str] = {}
"""What each action says, the first time."""


@hypothesis.settings(generated, max_examples=5 * CASES)
@hypothesis.given(uses_of(sorted(set(KINDS) - set(OTHER_MEMORIES))))
def test_texts_are_those_of_a_fresh_object_without_a_draft(compared: uses.Uses, case: dict[str, Any]) -> None:
    """Whatever drafts, and whatever was done before."""
    assert compared.outcome("differ", case) == "ok"


@hypothesis.settings(generated, max_examples=5 * CASES)
@hypothesis.given(uses_of(OTHER_MEMORIES))
def test_so_are_those_of_other_memories(compared: uses.Uses, case: dict[str, Any]) -> None:
    """Windows, recurrent states, hybrids and mixtures, as targets and as drafts."""
    assert compared.outcome("differ", case) == "ok"
