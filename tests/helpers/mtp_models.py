"""Tiny random models with MTP layers: one of each architecture of which llama.cpp has a graph of MTP layers.

A layer is made of parts (attention, experts, ...), and an architecture is a line of `KINDS`. What the layers add to the
residual stream is small, and an MTP layer begins with the token's embedding. So it often says what the model says.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import tiny_models as tiny
from tiny_models import Weights, _dense

_Part = Callable[[np.random.Generator], Weights]
_EMBD, _HEADS, _HEADS_KV, _SIZE, _FF = 32, 4, 2, 8, 48
_EXPERTS, _EXPERT_FF = 4, 24
_GAIN = 0.5  # of what is added to the residual stream
_FED = 0.3  # of the target's state in what an MTP layer begins with
_RANK, _ROPE = 16, 8  # of latent attention (MLA)
_INDEXER, _INDEXERS = 64, 16  # of what chooses the tokens that it sees. With few heads many scores are 0, and equal
_KERNEL, _GROUPS = 4, 2  # of convolutions, delta nets and scans
_NORMS = ("attn_norm", "ffn_norm")
_STREAMS, _WIDE = 4, 32  # residual streams of deepseek4, and the size of its heads


def _ones(*names: str, size: int = _EMBD) -> Weights:
    return {f"{name}.weight": np.ones(size, np.float32) for name in names}


def _added(rng: np.random.Generator, columns: int) -> tiny.npt.NDArray[np.float32]:
    return tiny._writes_residual(_dense(rng, _EMBD, columns, _GAIN))


def _layer(*parts: _Part, norms: tuple[str, ...] = _NORMS) -> _Part:
    def made(rng: np.random.Generator) -> Weights:
        return functools.reduce(lambda found, part: found | part(rng), parts, _ones(*norms))

    return made


def _attention(is_gated: bool = False, is_normed: bool = False, is_fused: bool = False) -> _Part:
    """`is_gated`: half of the queries are gates."""

    def made(rng: np.random.Generator) -> Weights:
        rows = {"q": _HEADS * (2 if is_gated else 1), "k": _HEADS_KV, "v": _HEADS_KV}
        found = {f"attn_{name}.weight": _dense(rng, heads * _SIZE, _EMBD, 1.5) for name, heads in rows.items()}
        if is_fused:
            found = {"attn_qkv.weight": np.concatenate([*found.values()])}
        found["attn_output.weight"] = _added(rng, _HEADS * _SIZE)
        return found | (_ones("attn_q_norm", "attn_k_norm", size=_SIZE) if is_normed else {})

    return made


def _gates(rng: np.random.Generator) -> Weights:
    """A gate for each head."""
    return {"attn_gate.weight": _dense(rng, _HEADS, _EMBD)}


def _latent_attention(turned: int) -> _Part:
    """`turned`: how many numbers of a key depend on its position."""

    def made(rng: np.random.Generator) -> Weights:
        return {
            "attn_q_a.weight": _dense(rng, _RANK, _EMBD),
            "attn_q_b.weight": _dense(rng, _HEADS * (_SIZE + turned), _RANK, 1.5),
            "attn_kv_a_mqa.weight": _dense(rng, _RANK + turned, _EMBD),
            "attn_k_b.weight": _dense(rng, _HEADS * _RANK, _SIZE).reshape(_HEADS, _RANK, _SIZE),
            "attn_v_b.weight": _dense(rng, _HEADS * _SIZE, _RANK).reshape(_HEADS, _SIZE, _RANK),
            "attn_output.weight": _added(rng, _HEADS * _SIZE),
            **_ones("attn_q_a_norm", "attn_kv_a_norm", size=_RANK),
        }

    return made


_latent = _latent_attention(_ROPE)


def _indexer(rng: np.random.Generator) -> Weights:
    return {
        **_ones("indexer.k_norm", size=_INDEXER),
        "indexer.k_norm.bias": np.zeros(_INDEXER, np.float32),
        "indexer.proj.weight": _dense(rng, _INDEXERS, _EMBD),
        "indexer.attn_k.weight": _dense(rng, _INDEXER, _EMBD),
        "indexer.attn_q_b.weight": _dense(rng, _INDEXERS * _INDEXER, _RANK),
    }


def _pooled(rng: np.random.Generator) -> Weights:
    """Latent attention, whose indexer takes two tokens for one."""
    return _latent_attention(0)(rng) | {
        "indexer_compressor_gate.weight": _dense(rng, _INDEXER, _EMBD),
        "indexer_compressor_ape.weight": _dense(rng, 2, _INDEXER),
    }


def _turned(rng: np.random.Generator) -> Weights:
    """Latent attention, with a norm before keys are turned."""
    return _latent(rng) | _ones("attn_k_norm", size=_ROPE)


def _delta_net(is_fused: bool) -> _Part:
    def made(rng: np.random.Generator) -> Weights:
        channels = (2 * _GROUPS + _HEADS) * _SIZE
        both = {name: _dense(rng, _HEADS, _EMBD) for name in ("ssm_beta.weight", "ssm_alpha.weight")}
        return {
            **({"ssm_ba.weight": np.concatenate([*both.values()])} if is_fused else both),
            "attn_qkv.weight": _dense(rng, channels, _EMBD),
            "attn_gate.weight": _dense(rng, _HEADS * _SIZE, _EMBD),
            "ssm_conv1d.weight": _dense(rng, channels, _KERNEL),
            "ssm_dt.bias": np.zeros(_HEADS, np.float32),
            "ssm_a": -np.arange(1, _HEADS + 1, dtype=np.float32),
            "ssm_out.weight": _added(rng, _HEADS * _SIZE),
            **_ones("ssm_norm", size=_SIZE),
        }

    return made


def _kimi_delta_net(rng: np.random.Generator) -> Weights:
    inner = _HEADS * _SIZE
    return {
        **{f"attn_{name}.weight": _dense(rng, inner, _EMBD) for name in "qkv"},
        **{f"ssm_conv1d_{name}.weight": _dense(rng, inner, _KERNEL).reshape(1, inner, 1, _KERNEL) for name in "qkv"},
        "ssm_f_a.weight": _dense(rng, inner, _EMBD),
        "ssm_g_a.weight": _dense(rng, inner, _EMBD),
        "ssm_beta.weight": _dense(rng, _HEADS, _EMBD),
        "ssm_a": np.ones((_HEADS, 1), np.float32),
        "ssm_dt.bias": np.zeros(inner, np.float32),
        "attn_output.weight": _added(rng, inner),
        **_ones("ssm_norm", size=_SIZE),
    }


def _low_rank_delta_net(rng: np.random.Generator) -> Weights:
    """As `_kimi_delta_net`; its gates are products of two matrices."""
    return _kimi_delta_net(rng) | {
        **{f"ssm_{name}_a.weight": _dense(rng, _SIZE, _EMBD) for name in "fg"},
        **{f"ssm_{name}_b.weight": _dense(rng, _HEADS * _SIZE, _SIZE) for name in "fg"},
        "ssm_a": -np.ones(_HEADS, np.float32),
    }


def _scan(rng: np.random.Generator) -> Weights:
    """Of Mamba 2."""
    inner = _HEADS * _SIZE
    channels = inner + 2 * _GROUPS * _SIZE
    return {
        "ssm_in.weight": _dense(rng, inner + channels + _HEADS, _EMBD),
        "ssm_conv1d.weight": _dense(rng, channels, _KERNEL),
        "ssm_conv1d.bias": np.zeros(channels, np.float32),
        "ssm_dt.bias": np.zeros(_HEADS, np.float32),
        "ssm_a": -np.arange(1, _HEADS + 1, dtype=np.float32).reshape(_HEADS, 1),
        "ssm_d": np.ones((_HEADS, 1), np.float32),
        "ssm_norm.weight": np.ones((_GROUPS, inner // _GROUPS), np.float32),
        "ssm_out.weight": _added(rng, inner),
    }


def _dense_ff(rng: np.random.Generator) -> Weights:
    return {
        "ffn_gate.weight": _dense(rng, _FF, _EMBD),
        "ffn_up.weight": _dense(rng, _FF, _EMBD),
        "ffn_down.weight": _added(rng, _FF),
    }


def _experts(bias: str = "", has_gates: bool = True, has_shared: bool = True, has_shared_gate: bool = False) -> _Part:
    """Experts, of which each token has `tiny.NUM_USED`. `bias`: the tensor that is added to the router's choice."""

    def made(rng: np.random.Generator) -> Weights:
        entering = ("gate", "up") if has_gates else ("up",)
        found: Weights = {"ffn_gate_inp.weight": _dense(rng, _EXPERTS, _EMBD, 3.0)}
        for name in entering:
            found[f"ffn_{name}_exps.weight"] = np.stack([_dense(rng, _EXPERT_FF, _EMBD) for _ in range(_EXPERTS)])
        found["ffn_down_exps.weight"] = np.stack([_added(rng, _EXPERT_FF) for _ in range(_EXPERTS)])
        if bias:
            found[bias] = 0.1 * rng.standard_normal(_EXPERTS).astype(np.float32)
        if has_shared:
            found |= {f"ffn_{name}_shexp.weight": _dense(rng, _EXPERT_FF, _EMBD) for name in entering}
            found["ffn_down_shexp.weight"] = _added(rng, _EXPERT_FF)
        if has_shared_gate:
            found["ffn_gate_inp_shexp.weight"] = _dense(rng, 1, _EMBD)[0]
        return found

    return made


def _hyper(name: str) -> _Part:
    """How a part of a deepseek4 layer reads and writes its residual streams."""

    def made(rng: np.random.Generator) -> Weights:
        mixed = (2 + _STREAMS) * _STREAMS
        return {
            f"hc_{name}_fn.weight": _dense(rng, mixed, _STREAMS * _EMBD),
            f"hc_{name}_base.weight": np.zeros(mixed, np.float32),
            f"hc_{name}_scale.weight": np.full(3, 0.3, np.float32),
        }

    return made


def _attention_of_deepseek4(ratio: int = 0) -> _Part:
    """`ratio`: how many tokens its memory makes one of."""

    def made(rng: np.random.Generator) -> Weights:
        groups = 2
        found = {
            "attn_sinks.weight": rng.standard_normal(_HEADS).astype(np.float32),
            "attn_q_a.weight": _dense(rng, _RANK, _EMBD),
            "attn_q_b.weight": _dense(rng, _HEADS * _WIDE, _RANK, 1.5),
            "attn_kv.weight": _dense(rng, _WIDE, _EMBD),
            "attn_output_a.weight": _dense(rng, groups * _RANK, _HEADS * _WIDE // groups),
            "attn_output_b.weight": _added(rng, groups * _RANK),
            **_ones("attn_q_a_norm", size=_RANK),
            **_ones("attn_kv_a_norm", size=_WIDE),
        }
        compressed: dict[int, dict[str, int]] = {0: {}, 4: {"attn": _WIDE, "indexer": _INDEXER}, 128: {"attn": _WIDE}}
        if ratio == 4:
            found["indexer.proj.weight"] = _dense(rng, _INDEXERS, _EMBD)
            found["indexer.attn_q_b.weight"] = _dense(rng, _INDEXERS * _INDEXER, _RANK)
        for name, size in compressed[ratio].items():
            rows = len(compressed[ratio]) * size
            found |= {
                f"{name}_compressor_kv.weight": _dense(rng, rows, _EMBD),
                f"{name}_compressor_gate.weight": _dense(rng, rows, _EMBD),
                f"{name}_compressor_ape.weight": _dense(rng, ratio, rows),
                **_ones(f"{name}_compressor_norm", size=size),
            }
        return found

    return made


def _outputs_of_deepseek4(rng: np.random.Generator) -> Weights:
    return {
        "output_hc_fn.weight": _dense(rng, _STREAMS, _STREAMS * _EMBD),
        "output_hc_base.weight": np.zeros(_STREAMS, np.float32),
        "output_hc_scale.weight": np.full(1, 0.3, np.float32),
    }


@dataclasses.dataclass(frozen=True)
class Kind:
    """An architecture: the layers of its model, an MTP layer, and metadata without the architecture's name."""

    layers: tuple[_Part, ...]
    mtp: _Part
    values: Mapping[str, Any]
    more: _Part = lambda _: {}
    n_ff: int | list[int] = _FF
    last_norm: str = "nextn.shared_head_norm"


_MOE: Mapping[str, Any] = {
    "expert_count": _EXPERTS,
    "expert_used_count": tiny.NUM_USED,
    "expert_feed_forward_length": _EXPERT_FF,
    "expert_shared_feed_forward_length": _EXPERT_FF,
    "expert_shared_count": 1,
    "expert_weights_norm": True,
    "expert_weights_scale": 1.0,
    "leading_dense_block_count": 1,
}
_HEADED: Mapping[str, Any] = {
    "attention.head_count": _HEADS,
    "attention.head_count_kv": _HEADS_KV,
    "attention.key_length": _SIZE,
    "attention.value_length": _SIZE,
    "rope.dimension_count": _SIZE,
}
_MLA: Mapping[str, Any] = {
    "attention.head_count": _HEADS,
    "attention.head_count_kv": 1,
    "attention.key_length": _RANK + _ROPE,
    "attention.value_length": _RANK,
    "attention.key_length_mla": _SIZE + _ROPE,
    "attention.value_length_mla": _SIZE,
    "attention.q_lora_rank": _RANK,
    "attention.kv_lora_rank": _RANK,
    "rope.dimension_count": _ROPE,
    "expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID),
}
_INDEXED: Mapping[str, Any] = {
    "attention.indexer.head_count": _INDEXERS,
    "attention.indexer.key_length": _INDEXER,
    "attention.indexer.top_k": 16,
}
_RECURRENT: Mapping[str, Any] = {
    "ssm.conv_kernel": _KERNEL,
    "ssm.inner_size": _HEADS * _SIZE,
    "ssm.state_size": _SIZE,
    "ssm.group_count": _GROUPS,
    "ssm.time_step_rank": _HEADS,
}
_HYPERS: Mapping[str, Any] = {
    "hyper_connection.count": _STREAMS,
    "hyper_connection.sinkhorn_iterations": 20,
    "hyper_connection.epsilon": 1e-6,
}
_QWEN = {**_HEADED, **_RECURRENT, "full_attention_interval": 2}
_SECTIONS = {"rope.dimension_sections": [2, 1, 1, 0]}
_EPS = {"attention.layer_norm_epsilon": 1e-5}


def _windows(*seen: bool) -> dict[str, Any]:
    """Which layers have a window."""
    return {"attention.sliding_window": tiny.WINDOW, "attention.sliding_window_pattern": list(seen)}


_BIAS = "exp_probs_b.bias"
_POST = ("attn_norm", "post_attention_norm")
_FUSED = _attention(is_normed=True, is_fused=True)
_NORMED, _GATED = _attention(is_normed=True), _attention(is_gated=True, is_normed=True)
_SHARED_GATE = _experts(has_shared_gate=True)
_HYPER = (_hyper("attn"), _hyper("ffn"))

KINDS: Mapping[str, Kind] = {
    "hy_v3": Kind(
        (_layer(_NORMED, _dense_ff), _layer(_NORMED, _experts("exp_probs_b"))),
        _layer(_NORMED, _experts("exp_probs_b")),
        {**_HEADED, **_MOE},
    ),
    "mimo2": Kind(
        (_layer(_attention(), _dense_ff), _layer(_attention(), _experts(_BIAS, has_shared=False))),
        _layer(_attention(is_fused=True), _dense_ff),
        {**_HEADED, **_MOE, **_windows(True, False, True, True)},
    ),
    "step35": Kind(
        (_layer(_NORMED, _gates, _dense_ff), _layer(_NORMED, _gates, _experts(_BIAS))),
        _layer(_NORMED, _gates, _dense_ff),
        {**_HEADED, **_MOE, **_windows(True, False, True, True), "rope.dimension_count_swa": _SIZE},
    ),
    "glm4moe": Kind(
        (_layer(_attention(), _dense_ff, norms=_POST), _layer(_attention(), _experts(_BIAS), norms=_POST)),
        _layer(_attention(), _experts(_BIAS), norms=_POST),
        {**_HEADED, **_MOE},
    ),
    "deepseek2": Kind(
        (_layer(_latent, _dense_ff), _layer(_latent, _experts(_BIAS))),
        _layer(_latent, _experts(_BIAS)),
        {**_MLA, **_MOE},
    ),
    "deepseek4": Kind(
        tuple(_layer(_attention_of_deepseek4(ratio), *_HYPER, _experts(_BIAS)) for ratio in (0, 4, 128)),
        _layer(_attention_of_deepseek4(), *_HYPER, _experts(_BIAS)),
        {
            **{**_MLA, **_MOE, **_INDEXED, **_HYPERS, "attention.sliding_window": tiny.WINDOW},
            "attention.key_length": _WIDE,
            "attention.value_length": _WIDE,
            "attention.output_group_count": 2,
            "attention.output_lora_rank": _RANK,
            "attention.compress_rope_freq_base": 10000.0,
            "attention.compress_ratios": [0, 4, 128, 0],
            "hash_layer_count": 0,
            "swiglu_clamp_exp": [0.0] * 4,
            "expert_gating_func": 4,
        },
        _outputs_of_deepseek4,
    ),
    "qwen35": Kind(
        (_layer(_delta_net(False), _dense_ff, norms=_POST), _layer(_GATED, _dense_ff, norms=_POST)),
        _layer(_GATED, _dense_ff, norms=_POST),
        {**_QWEN, **_SECTIONS},
    ),
    "qwen35moe": Kind(
        (_layer(_delta_net(False), _SHARED_GATE, norms=_POST), _layer(_GATED, _SHARED_GATE, norms=_POST)),
        _layer(_GATED, _SHARED_GATE, norms=_POST),
        {**_QWEN, **_MOE, **_SECTIONS},
    ),
    "qwen3next": Kind(
        (_layer(_delta_net(True), _SHARED_GATE, norms=_POST), _layer(_GATED, _SHARED_GATE, norms=_POST)),
        _layer(_GATED, _SHARED_GATE, norms=_POST),
        {**_QWEN, **_MOE},
    ),
    "cohere2moe": Kind(
        (
            _layer(_attention(), _dense_ff, norms=("attn_norm",)),
            _layer(_attention(), _experts(), norms=("attn_norm",)),
        ),
        _layer(_attention(), _experts(), norms=("attn_norm",)),
        {**_HEADED, **_MOE, **_windows(True, False, False), **_EPS, "logit_scale": 1.0},
    ),
    "bailingmoe3": Kind(
        (_layer(_kimi_delta_net, _dense_ff), _layer(_latent, _gates, _experts(_BIAS))),
        _layer(_latent, _gates, _experts(_BIAS)),
        {
            **{**_MLA, **_MOE, **_RECURRENT, "attention.head_count_kv": [0, 1, 1]},
            "kda.head_dim": _SIZE,
            "kda.gate_lower_bound": -5.0,
        },
        last_norm="layer_output_norm",
    ),
    "nemotron_h_moe": Kind(
        (
            _layer(_scan, norms=("attn_norm",)),
            _layer(_attention(), norms=("attn_norm",)),
            _layer(_experts(_BIAS, has_gates=False), norms=("attn_norm",)),
        ),
        _layer(_attention(), _experts(_BIAS, has_gates=False), norms=_POST),
        {**_HEADED, **_MOE, **_RECURRENT, **_EPS, "attention.head_count_kv": [0, 2, 0, 2]},
        n_ff=[0, 0, _FF, _FF],
    ),
    **{
        arch: Kind(
            (_layer(_latent, _indexer, _dense_ff), _layer(_latent, _indexer, _experts(_BIAS))),
            _layer(_latent, _indexer, _experts(_BIAS)),
            {**_MLA, **_MOE, **_INDEXED},
        )
        for arch in ("deepseek32", "glm-dsa")
    },
}
"""Those of which llama.cpp has a graph of MTP layers, by its names."""
_GATING = {"expert_gating_func": int(gguf.ExpertGatingFuncType.SIGMOID)}
WITHOUT_GRAPH: Mapping[str, Kind] = {
    "bailingmoe2": Kind(
        (_layer(_FUSED, _dense_ff), _layer(_FUSED, _experts(_BIAS))),
        _layer(_FUSED, _experts(_BIAS), norms=(*_NORMS, "layer_output_norm")),
        {**_HEADED, **_MOE, **_GATING},
    ),
    "exaone-moe": Kind(
        (_layer(_NORMED, _dense_ff), _layer(_NORMED, _experts(_BIAS))),
        _layer(_NORMED, _dense_ff),
        {**_HEADED, **_MOE, **_GATING, **_windows(True, False, False)},
    ),
    "dots3note": Kind(
        (_layer(_turned, _gates, _indexer, _dense_ff), _layer(_turned, _gates, _experts(_BIAS))),
        _layer(_turned, _gates, _dense_ff),
        {
            **{**_MLA, **_MOE, **_INDEXED, **_windows(False, True, True)},
            "attention.indexer.types": [1, 0, 0],
            "attention.kv_lora_rank_swa": _RANK,
            "attention.key_length_mla_swa": _SIZE + _ROPE,
            "attention.value_length_mla_swa": _SIZE,
            "rope.freq_base_swa": 10000.0,
        },
    ),
    "glm5-next": Kind(
        (_layer(_low_rank_delta_net, *_HYPER, _dense_ff), _layer(_pooled, _indexer, *_HYPER, _experts(_BIAS))),
        _layer(_pooled, _indexer, _experts(_BIAS)),
        {
            **{**_MLA, **_MOE, **_INDEXED, **_RECURRENT, **_HYPERS},
            "rope.dimension_count": 0,
            "attention.head_count_kv": [0, 1, 1],
            "attention.key_length": _RANK,
            "attention.key_length_mla": _SIZE,
            "attention.indexer.kpool": 2,
            "kda.head_dim": _SIZE,
        },
    ),
}
"""Those whose MTP layers llama.cpp at most loads."""
SEVERAL = ("hy_v3", "mimo2", "step35")
"""Those that may have several MTP layers."""


def write_mtp_model(
    path: Path, vocabulary: tiny.Vocabulary, arch: str, *, seed: int = 1, count: int = 1, is_alone: bool = False
) -> Path:
    """Write a model of one of the `KINDS` or of `WITHOUT_GRAPH`, with `count` MTP layers; or these layers alone."""
    kind, rng = {**KINDS, **WITHOUT_GRAPH}[arch], np.random.default_rng(seed)
    weights = tiny._embedding(rng, len(vocabulary), _EMBD, tiny._word_bias(vocabulary), 2.5) | kind.more(rng)
    layers = [made(rng) for made in (*kind.layers, *[kind.mtp] * count)]
    for layer in layers[len(kind.layers) :]:
        read = _FED * tiny._writes_residual(_dense(rng, _EMBD, _EMBD))
        layer["nextn.eh_proj.weight"] = np.concatenate([np.eye(_EMBD, dtype=np.float32), read], 1).astype(np.float32)
        layer |= _ones("nextn.enorm", "nextn.hnorm", kind.last_norm)
    for i, layer in [*enumerate(layers)][len(kind.layers) if is_alone else 0 :]:
        weights |= {f"blk.{i}.{name}": matrix for name, matrix in layer.items()}
    writer = tiny._open(path, arch, vocabulary, _EMBD, len(layers), kind.n_ff)  # type: ignore[arg-type]
    writer.add_layer_norm_rms_eps(1e-5)
    for name, value in {**kind.values, "nextn_predict_layers": count}.items():
        _add(writer, f"{arch}.{name}", value)
    tiny._finish(writer, weights)
    return path


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        writer.add_array(name, value)
