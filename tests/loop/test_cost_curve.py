"""T(n): what is measured, what is left behind, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np
import pytest

import specllama
from specllama.cost_curve import CostCurve, measure_cost_curve
from specllama.drop_in.lending import lent
from specllama.prompts import builtin_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import MakeBase, MakeLlama, TinyFiles

PROMPT = "the cat sat on the dog and the fox"
CURVE = CostCurve("target", 128, {4: (0.3, 0.1, 0.2), 1: (0.1, 0.1, 0.1), 2: (0.12, 0.20, 0.16, 0.40)})


def text_of(llm: llama_cpp.Llama) -> str:
    out = llm.create_completion(PROMPT, max_tokens=24, temperature=0.9, seed=3)
    return str(out["choices"][0]["text"])


@dataclasses.dataclass
class Decode:
    """One call of `Context.decode`."""

    behind: int
    tokens: list[int]
    first_output: int


class Recorder:
    """A context that remembers what it was asked to decode."""

    def __init__(self, context: specllama._core.Sequence) -> None:
        self._context = context
        self.decodes: list[Decode] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._context, name)

    def decode(self, tokens: np.ndarray, first_output: int) -> None:
        self.decodes.append(Decode(self._context.num_tokens, tokens.tolist(), first_output))
        self._context.decode(tokens, first_output)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[llama_cpp.Llama], Recorder]]:
    """Puts a recorder between the measurement and the context."""

    def record(llm: llama_cpp.Llama) -> Recorder:
        recorder = Recorder(lent(llm).sequence)
        monkeypatch.setattr(lent(llm), "_sequence", recorder)
        return recorder

    return record


def test_every_size_is_measured_behind_the_same_tokens(
    make_llama: MakeLlama, recorder: Callable[[llama_cpp.Llama], Recorder]
) -> None:
    llm = make_llama()
    recorded = recorder(llm)
    progress: list[tuple[int, int]] = []
    curve = measure_cost_curve(
        llm, "target", sizes=[5, 1, 3], repeats=4, n_past=20, on_progress=lambda *now: progress.append(now)
    )
    assert curve.sizes == (1, 3, 5)
    assert (curve.name, curve.n_past) == ("target", 20)
    assert {n: len(samples) for n, samples in curve.samples.items()} == {1: 4, 3: 4, 5: 4}
    assert all(seconds > 0 for samples in curve.samples.values() for seconds in samples)
    assert progress == [(done, 15) for done in range(1, 16)]

    filling, *batches = recorded.decodes
    assert (filling.behind, len(filling.tokens)) == (0, 20)
    assert {batch.behind for batch in batches} == {20}
    assert {batch.first_output for batch in batches} == {0}  # logits for all, as verification needs them
    rounds = [[len(batch.tokens) for batch in batches[start : start + 3]] for start in range(0, 15, 3)]
    assert all(sorted(sizes) == [1, 3, 5] for sizes in rounds)
    assert len({tuple(sizes) for sizes in rounds}) > 1  # the order changes


def test_a_draft_gives_logits_for_the_last_token(
    make_llama: MakeLlama, recorder: Callable[[llama_cpp.Llama], Recorder]
) -> None:
    llm = make_llama()
    recorded = recorder(llm)
    measure_cost_curve(llm, "draft", sizes=[1, 5], repeats=1, n_past=8)
    assert {(len(batch.tokens), batch.first_output) for batch in recorded.decodes[1:]} == {(1, 0), (5, 4)}


def test_two_measurements_do_the_same(make_llama: MakeLlama, recorder: Callable[[llama_cpp.Llama], Recorder]) -> None:
    llm = make_llama()
    recorded = recorder(llm)
    for _ in range(2):
        measure_cost_curve(llm, "target", sizes=range(1, 5), repeats=2, n_past=8)
    half = len(recorded.decodes) // 2
    assert recorded.decodes[:half] == recorded.decodes[half:]


def test_tokens_are_those_of_a_text(
    make_llama: MakeLlama, tiny_files: TinyFiles, recorder: Callable[[llama_cpp.Llama], Recorder]
) -> None:
    llm = make_llama(tiny_files.padded)
    recorded = recorder(llm)
    measure_cost_curve(llm, "target", sizes=[16], repeats=1, n_past=400)
    filling = [token for decode in recorded.decodes for token in decode.tokens][:400]
    text = "\n".join(prompt.text for prompt in builtin_prompts())
    assert text.startswith(llm.detokenize(filling).decode(errors="ignore").strip())  # a text, as experts have it


@pytest.mark.parametrize("name", ["target", "draft"])
def test_llama_is_empty_and_usable_afterwards(make_llama: MakeLlama, tiny_files: TinyFiles, name: str) -> None:
    llm = make_llama(draft=tiny_files.good)
    before = text_of(llm)
    draft = llm.draft_model
    assert draft is not None
    measured = llm if name == "target" else draft
    curve = measure_cost_curve(measured, name, sizes=[1, 2], repeats=2, n_past=16)
    assert curve.sizes == (1, 2)
    assert measured.n_tokens == 0
    assert lent(measured).sequence.num_tokens == 0
    assert text_of(llm) == before
    assert llm.stats.num_drafts > 0
    if name == "target":
        assert llm.stats.num_prompt_tokens_reused == 0  # nothing was left to reuse


def test_plain_llama_cpp_llama(make_base: MakeBase) -> None:
    llm = make_base()
    before = text_of(llm)
    assert measure_cost_curve(llm, "draft", sizes=[1, 4], repeats=1, n_past=0).sizes == (1, 4)
    assert llm.n_tokens == 0
    assert text_of(llm) == before


def test_filling_larger_than_a_batch(make_llama: MakeLlama, recorder: Callable[[llama_cpp.Llama], Recorder]) -> None:
    llm = make_llama(n_batch=16)
    recorded = recorder(llm)
    measure_cost_curve(llm, "target", sizes=[16], repeats=1, n_past=40)
    assert [(decode.behind, len(decode.tokens)) for decode in recorded.decodes[:3]] == [(0, 16), (16, 16), (32, 8)]
    assert [(decode.behind, len(decode.tokens)) for decode in recorded.decodes[3:]] == [(40, 16), (40, 16)]


def test_sliding_window(
    make_llama: MakeLlama, tiny_files: TinyFiles, recorder: Callable[[llama_cpp.Llama], Recorder]
) -> None:
    llm = make_llama(tiny_files.sliding, swa_full=False, n_ubatch=32)  # cells for the window, and not for all
    before = text_of(llm)
    recorded = recorder(llm)
    measure_cost_curve(llm, "target", sizes=[1, 32], repeats=3, n_past=400)
    fillings = [decode for decode in recorded.decodes if decode.behind < 400]
    batches = [decode for decode in recorded.decodes if decode.behind == 400]
    assert sum(len(decode.tokens) for decode in fillings) == 400  # what is in the window stays there
    assert len(batches) == 8
    assert text_of(llm) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_interrupted(make_llama: MakeLlama, tiny_files: TinyFiles, error: type[BaseException]) -> None:
    llm = make_llama(draft=tiny_files.good)
    before = text_of(llm)

    def interrupt(done: int, total: int) -> None:
        if done == 4:
            raise error

    with pytest.raises(error):
        measure_cost_curve(llm, "target", sizes=[1, 2, 3], repeats=3, n_past=16, on_progress=interrupt)
    assert llm.n_tokens == 0
    assert lent(llm).sequence.num_tokens == 0
    assert text_of(llm) == before


def test_what_does_not_fit_is_refused(make_llama: MakeLlama, tiny_files: TinyFiles) -> None:
    llm = make_llama(n_batch=32)
    with pytest.raises(ValueError, match=r"batch of 33 tokens .* n_batch=32 of the target: measure smaller sizes"):
        measure_cost_curve(llm, "target", sizes=[1, 33])
    with pytest.raises(ValueError, match=r"500 \+ 16 tokens .* n_ctx=512 of the target.*smaller n_past"):
        measure_cost_curve(llm, "target", n_past=500)
    with pytest.raises(ValueError, match="at least 1, for example range"):
        measure_cost_curve(llm, "target", sizes=[0, 1])
    with pytest.raises(ValueError, match="at least 1, for example range"):
        measure_cost_curve(llm, "target", sizes=[])
    with pytest.raises(ValueError, match="repeats=0 must be at least 1"):
        measure_cost_curve(llm, "target", repeats=0)
    with pytest.raises(TypeError, match=r"repeats=1\.5 must be an int"):
        measure_cost_curve(llm, "target", repeats=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="n_past=-1 must be at least 0"):
        measure_cost_curve(llm, "target", n_past=-1)
    assert measure_cost_curve(llm, "target", sizes=[16], repeats=1, n_past=496).sizes == (16,)  # just fits


@pytest.mark.usefixtures("early_release")
def test_memory_that_cannot_roll_back_is_refused(make_base: MakeBase, tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match=r"the draft's memory is recurrent.*install a later release.*be measured"):
        measure_cost_curve(make_base(tiny_files.recurrent), "draft")


def test_no_llama_to_measure(make_llama: MakeLlama, make_base: MakeBase, tiny_files: TinyFiles) -> None:
    with pytest.raises(ValueError, match="embedding model"):
        measure_cost_curve(make_base(tiny_files.embedding, embedding=True), "target")
    llm = make_llama()
    llm.close()
    with pytest.raises(specllama.ClosedError, match="closed"):
        measure_cost_curve(llm, "target")


def test_values() -> None:
    assert CURVE.sizes == (1, 2, 4)
    assert CURVE.seconds(2) == pytest.approx(0.18)  # the mean of the two in the middle
    assert CURVE.spread(2) == pytest.approx((0.15, 0.25))
    assert CURVE.relative(4) == pytest.approx(2.0)
    assert CURVE.at(2) == pytest.approx(0.18)
    assert CURVE.at(2.5) == pytest.approx(0.185)
    assert CURVE.at(4) == pytest.approx(0.2)


def test_sizes_that_were_not_measured() -> None:
    with pytest.raises(ValueError, match=r"T\(3\) of the target was not measured, only 1, 2, 4: add 3"):
        CURVE.seconds(3)
    with pytest.raises(ValueError, match=r"T\(4\.5\) of the target lies outside the sizes measured: 1, 2, 4"):
        CURVE.at(4.5)
    with pytest.raises(ValueError, match=r"T\(0\)"):
        CURVE.at(0)
    without_one = CostCurve("draft", 0, {2: (0.1,)})
    with pytest.raises(ValueError, match=r"T\(1\) of the draft"):
        without_one.relative(2)


def test_json() -> None:
    found = json.loads(json.dumps(CURVE.to_dict()))
    assert (found["name"], found["n_past"]) == ("target", 128)
    assert [point["n"] for point in found["points"]] == [1, 2, 4]
    assert found["points"][1] == {
        "n": 2,
        "seconds": pytest.approx(0.18),
        "q25": pytest.approx(0.15),
        "q75": pytest.approx(0.25),
        "samples": [0.12, 0.20, 0.16, 0.40],
    }
