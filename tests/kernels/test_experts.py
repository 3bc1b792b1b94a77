"""Experts of a mixture by our kernels: each token gets from each expert what a product of them alone gives."""

from __future__ import annotations

import array
import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from damaged import attempts
from hypothesis import given, settings
from hypothesis import strategies as st
from llama_cpp import llama_cpp as bindings
from quantized import TYPES, quantized_mixture
from test_kernels_in_llama_cpp import OFFERED, PURE_TYPES, logits_of, needs_kernels, opened
from test_opening import NUM_FLIPS, forks

import specllama
from specllama import _core
from specllama import _core_test as _test
from specllama.backend.ggml import CpuBackend
from specllama.backend.ggml_products import Products
from specllama.backend.kernels import packing
from specllama.drop_in.lending import lent
from specllama.models.gguf_values import read_whole_header

pytestmark = [needs_kernels, pytest.mark.every_case]


@functools.cache
def backend() -> tuple[CpuBackend, int]:
    """ggml, and its buffer type whose weights are multiplied by our kernels."""
    cpu = CpuBackend(bindings._lib)
    return cpu, cpu.extra_buffer_types()["CPU_REPACK"]


def numbers(values: npt.NDArray[np.float32]) -> array.array[float]:
    return array.array("f", values.tobytes())


def assert_as_alone(kind: str, rows: int, experts: int, chosen: list[list[int]], seed: int = 1) -> None:
    """To the last bit what the kernel gives for this expert and this column, and nobody else."""
    cpu, ours = backend()
    num_values = 2 * _core.quantized_types()[kind].num_values
    rng = np.random.default_rng(seed)
    weights = rng.normal(size=(experts * rows, num_values)).astype(np.float32)
    x = rng.normal(size=(len(chosen), num_values)).astype(np.float32)
    made = Products(cpu, num_values, experts * rows, len(chosen), weights=numbers(weights.ravel()), inputs=numbers(x))
    number = _core.quantized_types()[kind].number
    with packing([kind]):
        found = made.of_experts(number, experts, chosen, ours)
    assert found is not None
    results = np.frombuffer(found, np.float32).reshape(len(chosen), len(chosen[0]), rows)
    packed = np.frombuffer(made.quantized(number), np.uint8).reshape(experts, rows, -1)
    for column, of_column in enumerate(chosen):
        for which, expert in enumerate(of_column):
            nearest = min(max(expert, 0), experts - 1)
            alone = _test.multiply_quantized(packed[nearest], kind, x[column : column + 1], OFFERED)
            np.testing.assert_array_equal(results[column, which], alone[0])


@pytest.mark.parametrize("kind", TYPES)
def test_each_type(kind: str) -> None:
    """An expert that nobody has chosen, one that all have, and rows that are no whole panel."""
    assert_as_alone(kind, 37, 4, [[column % 3, 3] for column in range(21)])


@settings(max_examples=30, deadline=None)
@given(data=st.data(), kind=st.sampled_from(["Q8_0", "Q4_K"]), rows=st.integers(1, 40), experts=st.integers(1, 6))
def test_any_choice(data: st.DataObject, kind: str, rows: int, experts: int) -> None:
    used = data.draw(st.integers(1, experts))
    chosen = data.draw(
        st.lists(st.permutations(range(experts)).map(lambda order: order[:used]), min_size=1, max_size=30)
    )
    assert_as_alone(kind, rows, experts, chosen)


def test_an_expert_that_there_is_not() -> None:
    """A damaged file may ask for it: no memory beside the weights is read."""
    assert_as_alone("Q8_0", 16, 3, [[-5, 1], [10**9, 2]])


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return functools.partial(quantized_mixture, tmp_path_factory.mktemp("mixture"))


@pytest.mark.parametrize("kind", ["Q4_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS"])
def test_a_mixture_is_the_same_but_for_rounding(mixture: Callable[[str], Path], kind: str) -> None:
    with_ours, without = opened(mixture(kind)), opened(mixture(kind), kernels="off")
    of_experts = 3 * 6 * 256 * 256 * tiny_layers(with_ours) // 2  # bytes, of at least four bits a weight
    assert lent(with_ours).settings.kernels.num_bytes > of_experts
    ours, theirs = logits_of(with_ours, (5,)), logits_of(without, (5,))
    assert theirs.std() > 0.5
    # Another rounding may choose another expert: most rows are near.
    assert np.median(np.abs(ours - theirs)) < 0.05 * theirs.std()


def tiny_layers(llm: specllama.Llama) -> int:
    return int(llm.metadata["llama.block_count"])


@pytest.mark.parametrize("kind", ["Q4_K_M", "Q8_0"])
def test_rows_are_the_same_bits_in_batches_of_several_sizes(mixture: Callable[[str], Path], kind: str) -> None:
    """So the choice of experts is, too."""
    llm = opened(mixture(kind), flash_attn=True)
    together = logits_of(llm, (6,))
    for sizes in ((2, 4), (3, 3), (1, 5), (1, 1, 1, 1, 1, 1)):
        assert np.array_equal(logits_of(llm, sizes), together), sizes
    llm.create_completion("the cat", max_tokens=4)
    assert llm.batch_invariant


@pytest.mark.parametrize("options", [{}, {"use_mmap": False}, {"num_draft_tokens": 3}])
def test_a_text_of_a_mixture(mixture: Callable[[str], Path], options: dict[str, Any]) -> None:
    """Mapped or read, one by one or many at once, with a draft and without."""
    asked: dict[str, Any] = {"max_tokens": 16, "temperature": 0.0}
    expected = opened(mixture("Q4_K_M")).create_completion("the cat", **asked)["choices"][0]["text"]
    assert expected
    llm = opened(mixture("Q4_K_M"), draft_model=str(mixture("Q8_0")), **options)
    assert llm.create_completion("the cat", **asked)["choices"][0]["text"] == expected
    assert {one.text for one in llm.create_completions(["the cat"] * 3, **asked)} == {expected}


@pytest.mark.long
@forks
def test_damaged_experts_end_no_process(mixture: Callable[[str], Path], tmp_path: Path) -> None:
    """Each file has other bytes in one tensor of experts, in its entry in the header, or in both."""
    rng = random.Random(7)
    originals = []
    for kind in ("Q4_0", "Q8_0", "Q4_K_M", "Q5_K_M", "Q6_K", "IQ4_XS", "IQ4_NL", *PURE_TYPES):
        path = mixture(kind)
        tensors = read_whole_header(path)[1].items()
        experts = [(name, tensor.offset, tensor.num_bytes) for name, tensor in tensors if "_exps" in name]
        originals.append((path.read_bytes(), experts))
    files, seen = list[Path](), set[str]()
    for i in range(NUM_FLIPS):
        original, experts = originals[i % len(originals)]
        name, begin, size = rng.choice(experts)
        data = bytearray(original)
        if i % 3 != 1:
            length = rng.choice([2, 16, 1000, size // 2 * 2])
            at = begin + rng.randrange(size - length + 1)
            data[at : at + length] = rng.choice([rng.randbytes(length), b"\xff" * length, b"\x00\x7c" * (length // 2)])
        if i % 3 != 0:
            entry = original.index(name.encode()) + len(name)  # its number of dimensions, they, its type and its place
            data[entry + rng.randrange(4 + 3 * 8 + 4 + 8)] ^= 1 << rng.randrange(8)
        files.append(tmp_path / f"{i}.gguf")
        files[-1].write_bytes(data)
        if len(files) == 100 or i == NUM_FLIPS - 1:
            found = dict(zip(files, attempts(files), strict=True))
            assert {file.name: what for file, what in found.items() if what.startswith("signal")} == {}
            seen |= {what.partition(":")[0] for what in found.values()}
            for file in files:
                file.unlink()
            files = []
    assert {"ok", "ValueError"} <= seen
