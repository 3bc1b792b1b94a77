"""scripts/convert_state_head.py: public Medusa and Hydra heads say the same as a GGUF."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from convert_state_head import converted, main
from needed import imported
from state_heads import silu
from test_heads import LETTERS, VOCAB
from test_state_heads import letters_target, native

import specllama

if TYPE_CHECKING:
    from conftest import TinyFiles

D, V = int(LETTERS["n_embd"]), VOCAB
MEDUSA = {
    "0.0.linear.weight": (D, D),
    "0.0.linear.bias": (D,),
    "0.1.linear.weight": (D, D),
    "0.1.linear.bias": (D,),
    "0.2.weight": (V, D),
    "1.0.linear.weight": (D, D),
    "1.0.linear.bias": (D,),
    "1.1.linear.weight": (D, D),
    "1.1.linear.bias": (D,),
    "1.2.weight": (V, D),
}
"""FasterDecoding/Medusa, medusa/model/medusa_model.py: ``MedusaModel(medusa_num_heads=2, medusa_num_layers=2)``."""
HYDRA = {
    "hydra_mlp.0.0.linear.weight": (D, 2 * D),
    "hydra_mlp.0.0.linear.bias": (D,),
    "hydra_mlp.0.0.res_connection.weight": (D, 2 * D),
    "hydra_mlp.0.0.res_connection.bias": (D,),
    "hydra_mlp.0.1.linear.weight": (D, D),
    "hydra_mlp.0.1.linear.bias": (D,),
    "hydra_mlp.1.0.linear.weight": (D, 3 * D),
    "hydra_mlp.1.0.linear.bias": (D,),
    "hydra_mlp.1.0.res_connection.weight": (D, 3 * D),
    "hydra_mlp.1.0.res_connection.bias": (D,),
    "hydra_mlp.1.1.linear.weight": (D, D),
    "hydra_mlp.1.1.linear.bias": (D,),
    "hydra_lm_head.0.weight": (V, D),
    "hydra_lm_head.0.bias": (V,),
    "hydra_lm_head.1.weight": (V, D),
    "hydra_lm_head.1.bias": (V,),
}
"""zankner/Hydra, hydra/model/hydra_heads/mlp_head.py: ``HydraMLP(2, 2, grounded_heads=True, ...)``."""
UNGROUNDED = {name: (D, D) if len(shape) > 1 and "mlp" in name else shape for name, shape in HYDRA.items()}
UNGROUNDED = {name: shape for name, shape in UNGROUNDED.items() if "res_connection" not in name}
"""The same with ``grounded_heads=False``."""
FORMS = {"medusa": MEDUSA, "hydra": HYDRA, "ungrounded": UNGROUNDED}

Weights = dict[str, Any]


def weights_of(shapes: Mapping[str, tuple[int, ...]]) -> Weights:
    rng = np.random.default_rng(4)
    return {name: (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float16) for name, shape in shapes.items()}


def write_safetensors(path: Path, weights: Weights, dtype: str = "F16") -> Path:
    """As the package of that name writes them."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    parts, at = [], 0
    for name, weight in weights.items():
        if dtype == "BF16":
            part = (weight.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
        else:
            part = weight.astype({"F16": "<f2", "F32": "<f4"}[dtype]).tobytes()
        header[name] = {"dtype": dtype, "shape": list(weight.shape), "data_offsets": [at, at + len(part)]}
        parts.append(part)
        at += len(part)
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    return path


def logits_as_published(form: str, weights: Weights, state: Any, embedded: Any) -> Any:
    """The forward passes of the two repositories for one position, by their own names [places, V]."""
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}
    found = []
    for k in range(2):
        x = np.concatenate([state, *embedded[: k + 1]]) if form == "hydra" else state
        for i in range(2):
            name = f"{k}.{i}" if form == "medusa" else f"hydra_mlp.{k}.{i}"
            curved = silu(w[f"{name}.linear.weight"] @ x + w[f"{name}.linear.bias"])
            if f"{name}.res_connection.weight" in w:
                x = w[f"{name}.res_connection.weight"] @ x + w[f"{name}.res_connection.bias"]
            x = x + curved
        if form == "medusa":
            found.append(w[f"{k}.2.weight"] @ x)
        else:
            found.append(w[f"hydra_lm_head.{k}.weight"] @ x + w[f"hydra_lm_head.{k}.bias"])
    return np.array(found)


def assert_says_the_same(path: Path, target: Path, form: str, weights: Weights, rounding: float = 2e-3) -> None:
    head, rng = native(path, target), np.random.default_rng(6)
    tokens, state = np.array([5, 3], np.int32), rng.standard_normal(D)
    embedded = letters_target()["token_embd.weight"][tokens].astype(np.float64)
    found = np.concatenate([head.say(state.astype(np.float32), tokens, k, 1) for k in range(2)])
    expected = logits_as_published(form, weights, state, embedded)
    assert np.abs(found - expected).max() < rounding * np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["F16", "BF16", "F32"])
@pytest.mark.parametrize("form", FORMS)
def test_a_file_of_safetensors(tiny_files: TinyFiles, tmp_path: Path, form: str, dtype: str) -> None:
    weights = weights_of(FORMS[form])
    source = write_safetensors(tmp_path / "head.safetensors", weights, dtype)
    path = converted(source, tiny_files.letters_deep, tmp_path / "head.gguf", "F16")
    assert_says_the_same(path, tiny_files.letters_deep, form, weights, 2e-2 if dtype == "BF16" else 2e-3)


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_a_file_of_pytorch(tiny_files: TinyFiles, tmp_path: Path, prefix: str) -> None:
    torch = imported("torch")
    weights = weights_of(MEDUSA)
    torch.save({prefix + name: torch.from_numpy(one) for name, one in weights.items()}, tmp_path / "medusa_lm_head.pt")
    path = converted(tmp_path / "medusa_lm_head.pt", tiny_files.letters_deep, tmp_path / "head.gguf", "F32")
    assert_says_the_same(path, tiny_files.letters_deep, "medusa", weights)


def test_the_command(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What it writes is a draft, whose wide matrices are quantized."""
    weights = weights_of(HYDRA)
    source = write_safetensors(tmp_path / "head.safetensors", weights)
    path = tmp_path / "head.gguf"
    assert main([str(source), str(tiny_files.letters_deep), str(path), "--type", "Q8_0"]) == 0
    assert capsys.readouterr().out == f"{path}\n"
    kinds = {tensor.name: tensor.tensor_type.name for tensor in gguf.GGUFReader(path).tensors}
    assert kinds["place.0.0.linear.weight"] == "Q8_0"
    assert kinds["place.0.output.weight"] == "F16", "its rows have no whole blocks"
    assert_says_the_same(path, tiny_files.letters_deep, "hydra", weights, 3e-2)
    llm = specllama.Llama(
        str(tiny_files.letters_deep), draft_model=str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False
    )
    llm.create_completion([1, 3, 4], max_tokens=20, temperature=0.0, num_draft_tokens=2)
    assert llm.stats.per_drafter["state_head"].num_draft_tokens > 0
    llm.close()


@pytest.mark.parametrize(
    ("form", "changed", "said"),
    [
        ("hydra", {"prefix_embeding_layer.layers.0.mlp.up_proj.weight": (D, D)}, r"has a tensor prefix_.*Hydra\+\+"),
        ("hydra", {"hydra_mlp.1.0.linear.weight": None}, r"it has nothing for place\.1\.0\.linear\.weight"),
        (
            "hydra",
            {"hydra_mlp.0.1.res_connection.weight": (D, D)},
            r"no head of the kind hydra has: place\.0\.1\.strai",
        ),
        (
            "medusa",
            {"0.2.weight": (V + 1, D)},
            r"for another model .* place\.0\.output\.weight has the shape \(9, 16\)",
        ),
        ("medusa", {"0.3.weight": (V, D)}, r"more than one tensor that becomes place\.0\.output\.weight"),
        ("medusa", {"900000000.0.linear.weight": (D, D)}, "holds no whole head"),
        ("medusa", {"lm_head.weight": (V, D)}, r"has a tensor lm_head\.weight, which no Medusa or Hydra head here has"),
    ],
)
def test_what_does_not_fit_is_refused(
    tiny_files: TinyFiles, tmp_path: Path, form: str, changed: dict[str, tuple[int, ...] | None], said: str
) -> None:
    shapes = {name: shape for name, shape in {**FORMS[form], **changed}.items() if shape is not None}
    source = write_safetensors(tmp_path / "head.safetensors", weights_of(shapes))
    with pytest.raises(ValueError, match=said):
        converted(source, tiny_files.letters_deep, tmp_path / "head.gguf")
    assert not (tmp_path / "head.gguf").exists()


def test_a_head_of_another_state_is_refused(tiny_files: TinyFiles, tmp_path: Path) -> None:
    """zankner/Hydra, hydra/model/hydra_model.py: ``HydraConfig.hidden_state_offset``."""
    source = write_safetensors(tmp_path / "head.safetensors", weights_of(HYDRA))
    (tmp_path / "config.json").write_text('{"hidden_state_offset": 1}', encoding="utf-8")
    with pytest.raises(ValueError, match="1 layers before the final one"):
        converted(source, tiny_files.letters_deep, tmp_path / "head.gguf")


def test_damaged_files_are_refused(tiny_files: TinyFiles, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_safetensors(tmp_path / "head.safetensors", weights_of(MEDUSA))
    whole = source.read_bytes()
    for size in (4, 100, len(whole) - 1):
        source.write_bytes(whole[:size])
        assert main([str(source), str(tiny_files.letters_deep), str(tmp_path / "head.gguf")]) == 1
        assert "is damaged" in capsys.readouterr().err
    source.write_bytes(whole)
    assert main([str(source), str(tiny_files.letters_deep), str(source)]) == 1
    assert "is an input" in capsys.readouterr().err
