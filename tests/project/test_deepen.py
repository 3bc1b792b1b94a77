"""scripts/deepen.py: the deeper model is the same function, whatever multiplies its weights."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import pytest
from deepen import deepened
from quantized import quantized_model

if TYPE_CHECKING:
    from conftest import MakeLlama

LAYERS = 7
PROMPT = "the cat sat on the dog and"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deepened")


@pytest.fixture(params=["F32", "Q4_K_M", "Q8_0"])
def both(folder: Path, request: pytest.FixtureRequest) -> tuple[Path, Path]:
    """A model, and the same one in more layers."""
    small = quantized_model(folder, request.param)
    deep = small.with_name(f"{small.stem}-deep.gguf")
    if not deep.exists():
        deepened(small, deep, LAYERS)
    return small, deep


@pytest.mark.parametrize("kernels", ["auto", "off"])
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": 0.9, "seed": 3}])
def test_a_deeper_model_writes_the_same(
    both: tuple[Path, Path], make_llama: MakeLlama, kernels: str, options: dict[str, Any]
) -> None:
    small, deep = both
    found = []
    for path in (small, deep):
        llm = make_llama(path, draft=small, kernels=kernels, draft_kwargs={"kernels": kernels})
        text = llm.create_completion(PROMPT, max_tokens=60, num_draft_tokens=3, **options)["choices"][0]["text"]
        tokens = llm.input_ids[: llm.n_tokens].tolist()
        found.append((text, tokens, llm.stats.num_accepted_tokens, llm.kernels.split(",")[0]))
    assert found[0] == found[1]
    assert len(found[0][1]) > 60


def test_the_file_is_that_of_a_deeper_model(both: tuple[Path, Path]) -> None:
    small, deep = (gguf.GGUFReader(path) for path in both)
    count = int(small.fields["llama.block_count"].contents())
    per_layer = [tensor for tensor in small.tensors if tensor.name.startswith("blk.0.")]
    assert int(deep.fields["llama.block_count"].contents()) == LAYERS
    assert len(deep.tensors) == len(small.tensors) + (LAYERS - count) * len(per_layer)
    assert set(small.fields) - set(deep.fields) == set()
    assert deep.fields["general.name"].contents().endswith(f"the same function in {LAYERS} layers")


def test_what_cannot_be_deepened(folder: Path, tmp_path: Path) -> None:
    small = quantized_model(folder, "F32")
    with pytest.raises(ValueError, match="has 2 layers: give more than that, not 2"):
        deepened(small, tmp_path / "out.gguf", 2)
    with pytest.raises(ValueError, match="is the input"):
        deepened(small, small, 4)
    copy = shutil.copy(small, tmp_path / "other.gguf")
    content = Path(copy).read_bytes().replace(b"blk.1.ffn_down.weight", b"blk.1.ssm_down.weight")
    Path(copy).write_bytes(content)
    with pytest.raises(ValueError, match=r"layer 1 of .* cannot be copied"):
        deepened(Path(copy), tmp_path / "out.gguf", 4)
