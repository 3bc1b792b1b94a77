"""specllama.verify: a sound loop passes whatever its draft is worth; what proves nothing is refused or fails."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import specllama
from specllama import compare, tune, verify
from specllama.prompts import Prompt

if TYPE_CHECKING:
    from conftest import MakeBase, MakeLlama, TinyFiles

PROMPTS = [
    Prompt("cat", "story", "the cat sat on the dog and", chat=False),
    Prompt("fox", "story", "a fox is in the", chat=False),
    Prompt("chat", "chat", "no dog, no fox"),
]
QUICK: dict[str, Any] = {"num_contexts": 1, "max_tokens": 32}


def problems_of(result: verify.VerifyResult) -> str:
    return "\n".join(result.problems)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("draft", ["identical", "good", "bad", "adversarial"])
def test_a_sound_loop_passes(make_llama: MakeLlama, tiny_files: TinyFiles, draft: str) -> None:
    llm = make_llama(draft=tiny_files.draft(draft))
    steps: list[tuple[int, int]] = []
    result = verify.run(
        llm,
        PROMPTS,
        seeds=(5, 6),
        samples=150,
        on_progress=lambda step, done, total: steps.append((done, total)),
        **QUICK,
    )
    assert result.passed, problems_of(result)
    assert [(text.prompt_id, text.mode, text.seed) for text in result.texts] == [
        (prompt.id, mode, seed)
        for prompt in PROMPTS
        for mode, seed in (("greedy", None), ("coupled", 5), ("coupled", 6))
    ]
    assert [test.rule for test in result.sampling] == ["rejection", "block"]
    for test in result.sampling:
        assert test.num_samples == 150
        assert test.num_cells > 5
        assert 0.0005 <= test.p_value <= 1.0
        assert test.chance_mean < test.chance_95
        assert test.stats.num_drafts >= 150
    if draft == "identical":
        assert result.texts[0].stats.num_accepted_tokens > 20
    totals = {total for _, total in steps}
    assert steps == sorted(steps)
    assert totals == {steps[-1][0]}


@pytest.mark.long
def test_a_rerun_gives_the_same_verdict(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    results = []
    for seed in (3, 3, 4):
        llm = make_llama(draft=tiny_files.good)
        found = json.dumps(verify.run(llm, PROMPTS[:1], samples=60, seeds=[seed], **QUICK).to_dict(), allow_nan=False)
        results.append(json.loads(found, object_hook=without_times))
    assert results[0] == results[1]
    assert results[0]["sampling"] != results[2]["sampling"]


def without_times(found: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in found.items() if "second" not in name}


@pytest.mark.long
@pytest.mark.parametrize(
    "sampling",
    [
        {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        {"temperature": 1.2, "top_k": 3},
        {"repeat_penalty": 1.4, "logit_bias": {280: 2.0, 290: float("-inf")}, "presence_penalty": 0.3},
        {"typical_p": 0.7, "temperature": -1.0},
        {"xtc_probability": 0.5, "xtc_threshold": 0.05, "top_n_sigma": 2.0, "dynatemp_range": 0.4},
    ],
)
def test_the_users_sampler_chain_is_what_is_tested(
    make_llama: MakeLlama, tiny_files: TinyFiles, sampling: dict[str, Any]
) -> None:
    llm = make_llama(draft=tiny_files.good)
    result = verify.run(llm, PROMPTS[:1], samples=200, rules=["rejection", "block", "coupled"], **QUICK, **sampling)
    assert result.passed, problems_of(result)
    chain = result.settings["sampling"]
    assert chain["temperature"] == sampling.get("temperature", 0.8)
    assert {name: chain[name] for name in sampling if name != "temperature"} == {
        name: value for name, value in sampling.items() if name != "temperature"
    }


def test_the_llama_is_as_usable_as_before(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm, fresh = make_llama(draft=tiny_files.good), make_llama()
    stream = llm.create_completion("a dog", max_tokens=9, stream=True, temperature=0.0)
    next(stream)
    verify.run(llm, PROMPTS[:1], samples=20, **QUICK)
    with pytest.raises(RuntimeError, match="ended by a later one"):
        next(stream)
    text = llm.create_completion("a dog", max_tokens=20, temperature=0.9, seed=3)["choices"][0]["text"]
    assert text == fresh.create_completion("a dog", max_tokens=20, temperature=0.9, seed=3)["choices"][0]["text"]


# --- What proves nothing ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"grammar": "root ::= x"}, TypeError, "is no option of the sampler chain"),
        ({"mirostat_mode": 2}, ValueError, "nothing to verify: mirostat is applied"),
        ({"temperature": 0.0}, ValueError, "temperature=0"),
        ({"max_token": 9}, TypeError, "max_token=9 is no option of the sampler chain"),
        ({"stop": ["a"]}, TypeError, "is no option of the sampler chain"),
        ({"logits_processor": []}, TypeError, "is no option of the sampler chain"),
        ({"temperature": float("nan")}, ValueError, "temperature"),
        ({"num_draft_tokens": 0}, ValueError, "num_draft_tokens=0"),
        ({"num_draft_tokens": 512}, ValueError, "n_batch=512"),
        ({"seeds": []}, ValueError, "seeds=\\[\\]"),
        ({"seeds": [1, 1]}, ValueError, "each of them once"),
        ({"seeds": [-1]}, ValueError, "seed=-1"),
        ({"rules": []}, ValueError, "rejection, block, coupled"),
        ({"rules": ["auto"]}, ValueError, "rejection, block, coupled"),
        ({"rules": [["block"]]}, ValueError, "rejection, block, coupled"),
        ({"rules": "block"}, TypeError, r"rules='block' must be a list, such as \['block'\]"),
        ({"seeds": 1}, TypeError, r"seeds=1 must be a list, such as \[1, 2\]"),
        ({"seeds": [[1]]}, TypeError, r"seed=\[1\] must be an int"),
        ({"dry_multiplier": 0.8}, TypeError, "can be verified are .*, xtc_probability, xtc_threshold$"),
        ({"prompts": []}, ValueError, "there are no prompts"),
        ({"num_contexts": 0}, ValueError, "num_contexts=0"),
    ],
)
def test_bad_arguments_are_refused(
    make_llama: MakeLlama, tiny_files: TinyFiles, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    llm = make_llama(draft=tiny_files.good)
    with pytest.raises(error, match=message):
        verify.run(llm, **{"prompts": PROMPTS, **QUICK, **options})


def test_a_llama_of_llama_cpp_is_refused(make_base: MakeBase) -> None:
    llm = make_base()
    for run in (verify.run, tune.run, lambda llm: compare.run(llm, "the cat")):
        with pytest.raises(TypeError, match=r"llm is a llama_cpp\.llama\.Llama: open it with specllama\.Llama"):
            run(llm)


@pytest.mark.filterwarnings("ignore::specllama.FallbackWarning")
def test_what_cannot_be_verified_is_refused(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="has no draft"):
        verify.run(make_llama(), PROMPTS)
    with pytest.raises(ValueError, match=r"n_batch=1: draft fewer, or .* which is at most n_ctx \(-c\)"):
        verify.run(make_llama(draft=tiny_files.good, n_ctx=1), PROMPTS)
    draft = make_base(tiny_files.good)
    llm = make_llama(draft=draft)
    draft.close()
    with pytest.raises(ValueError, match="nothing to verify: the draft Llama is closed"):
        verify.run(llm, PROMPTS)
    llm.close()  # which is what is said, and not that its draft is closed, too
    with pytest.raises(specllama.ClosedError):
        verify.run(llm, PROMPTS)


def test_too_few_samples_are_no_proof(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    result = verify.run(make_llama(draft=tiny_files.good), PROMPTS[:1], samples=4, **QUICK)
    assert [test.num_cells for test in result.sampling] == [1, 1]
    assert not result.passed
    assert result.problems == []
    assert "\n".join(result.untested).count("draw more samples") == 2
