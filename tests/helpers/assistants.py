"""Tiny models in the form of Gemma 4, and assistants for them, whose random weights are fitted in what they say.

The forward passes are NumPy's, and assistants are fed as by llama.cpp's driver (`common/speculative.cpp`, draft-mtp).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import gguf
import numpy as np
import tiny_models as tiny
from transcribed import HEADS, Array, normed, turned_halves

OF_KEYS = 2
SIZES = {True: 8, False: 16}
"""Of a head of a layer with a window, and of one without."""
WINDOWS = (True, False, True, False)
"""Which layers of the target have one."""
OF_ASSISTANT = (True, True, False)
_RIDGE, _CAP = 1e-2, 30.0


def target_weights(
    vocabulary: tiny.Vocabulary, seed: int, *, n_embd: int = 32, windows: Sequence[bool] = WINDOWS, **more: Any
) -> tiny.Weights:
    """Random weights of a gemma4 model. `more`: as of `tiny.llama_weights`."""
    weights = tiny.llama_weights(vocabulary, seed, n_embd=n_embd, n_layer=len(windows), **more)
    weights["token_embd.weight"] = weights["token_embd.weight"] / np.float32(np.sqrt(n_embd))
    rng = np.random.default_rng(seed)
    for i, has_window in enumerate(windows):
        weights |= _layer(rng, i, n_embd, SIZES[has_window])
        for name in ("k", "v"):
            weights[f"blk.{i}.attn_{name}.weight"] = _dense(rng, OF_KEYS * SIZES[has_window], n_embd)
        weights[f"blk.{i}.attn_k_norm.weight"] = np.ones(SIZES[has_window], np.float32)
        weights[f"blk.{i}.attn_output.weight"][0] = 0.0  # see tiny._writes_residual
    weights["rope_freqs.weight"] = np.ones(SIZES[False] // 2, np.float32)
    return weights


def _dense(rng: np.random.Generator, rows: int, columns: int) -> Any:
    return (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)


def _layer(rng: np.random.Generator, i: int, n_embd: int, size: int) -> tiny.Weights:
    """What a layer of the target and one of an assistant have in common, and not with `tiny.llama_weights`."""
    return {
        f"blk.{i}.attn_q.weight": _dense(rng, HEADS * size, n_embd),
        f"blk.{i}.attn_output.weight": _dense(rng, n_embd, HEADS * size),
        f"blk.{i}.attn_q_norm.weight": np.full(size, 2.0 / np.sqrt(size), np.float32),
        f"blk.{i}.post_attention_norm.weight": np.full(n_embd, 0.3, np.float32),
        f"blk.{i}.post_ffw_norm.weight": np.full(n_embd, 0.3, np.float32),
    }


def assistant_weights(
    vocabulary: tiny.Vocabulary, target: tiny.Weights, seed: int, n_embd: int, first: int = 3, num_texts: int = 16
) -> tiny.Weights:
    """An assistant with random weights, but for what it says and the state that it passes on: both are fitted.

    The fit is to `num_texts` texts of tokens from `first` on.
    """
    rng, width = np.random.default_rng(seed), target["token_embd.weight"].shape[1]
    weights = {
        "token_embd.weight": _dense(rng, len(vocabulary), n_embd),
        "output_norm.weight": np.ones(n_embd, np.float32),
        "nextn.pre_projection.weight": _dense(rng, n_embd, 2 * width),
        "nextn.post_projection.weight": _dense(rng, width, n_embd),
        "rope_freqs.weight": np.ones(SIZES[False] // 2, np.float32),
    }
    for i, has_window in enumerate(OF_ASSISTANT):
        weights |= _layer(rng, i, n_embd, SIZES[has_window])
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{i}.{name}.weight"] = np.ones(n_embd, np.float32)
        for name, shape in {"gate": (n_embd, n_embd), "up": (n_embd, n_embd), "down": (n_embd, n_embd)}.items():
            weights[f"blk.{i}.ffn_{name}.weight"] = _dense(rng, *shape)
        weights[f"blk.{i}.layer_output_scale.weight"] = np.array([0.9], np.float32)
    assistant, multiplied, wanted, states = Assistant(weights, target), [], [], []
    for _ in range(num_texts):
        read = forward(target, [1, *rng.integers(first, len(vocabulary), 48).tolist()])
        for place in range(1, len(read.tokens)):
            said = assistant(read, place, read.tokens[place], read.states[place - 1])
            multiplied.append(said.multiplied)
        wanted.append(read.logits[1:])
        states.append(read.states[1:])
    x = np.array(multiplied)
    for name, y in (("token_embd", np.concatenate(wanted)), ("nextn.post_projection", np.concatenate(states))):
        found = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(n_embd), x.T @ y)
        weights[f"{name}.weight"] = found.T.astype(np.float32)
    return weights


def write_gemma4(
    path: Path,
    vocabulary: tiny.Vocabulary,
    weights: tiny.Weights,
    *,
    windows: Sequence[bool] = WINDOWS,
    arch: str = "gemma4",
    changed: Mapping[str, Any] = MappingProxyType({}),
) -> Path:
    """Write a target, or an assistant if `arch` says so. `changed` are metadata that are others than they should be.

    Of `changed`, what is None is left out.
    """
    n_embd, n_layer = weights["output_norm.weight"].shape[0], len(windows)
    writer = tiny._open(path, arch, vocabulary, n_embd, n_layer, weights["blk.0.ffn_gate.weight"].shape[0])
    of_file: dict[str, Any] = {
        "attention.head_count": HEADS,
        "attention.head_count_kv": OF_KEYS,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "attention.sliding_window": tiny.WINDOW,
        "final_logit_softcapping": _CAP,
        "attention.sliding_window_pattern": list(windows),
        "attention.shared_kv_layers": 0,
        "embedding_length_per_layer_input": 0,
    }
    for has_window, end in ((True, "_swa"), (False, "")):
        for name in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
            of_file[f"{name}{end}"] = SIZES[has_window]
    if arch != "gemma4":
        of_file["embedding_length_out"] = weights["nextn.post_projection.weight"].shape[0]
        of_file["nextn_predict_layers"] = n_layer
    for name, value in {**of_file, **changed}.items():
        writer.kv_data[0].pop(f"{arch}.{name}", None)
        _add(writer, f"{arch}.{name}", value)
    tiny._finish(writer, weights)
    return path


def write_assistant(
    path: Path, vocabulary: tiny.Vocabulary, weights: tiny.Weights, windows: Sequence[bool] = OF_ASSISTANT, **more: Any
) -> Path:
    """Write an assistant. `more`: as of `write_gemma4`."""
    return write_gemma4(path, vocabulary, weights, windows=windows, arch="gemma4-assistant", **more)


def _add(writer: gguf.GGUFWriter, name: str, value: Any) -> None:
    if isinstance(value, list):
        writer.add_array(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    elif value is not None:
        writer.add_uint32(name, value)


class Read(NamedTuple):
    """A text that the target has read: by token, what it says, its state, and the keys and values of its layers."""

    tokens: list[int]
    logits: Array
    states: Array
    keys: list[tuple[Array, Array]]


class Said(NamedTuple):
    """What an assistant says behind a token, and what it passes on."""

    logits: Array
    multiplied: Array
    state: Array


def forward(weights: tiny.Weights, tokens: Sequence[int]) -> Read:
    """A model of `target_weights` reads a text."""
    w = {name: matrix.astype(np.float64) for name, matrix in weights.items()}
    x = w["token_embd.weight"][np.asarray(tokens)] * np.sqrt(w["token_embd.weight"].shape[1])
    all_keys = []
    for i, has_window in enumerate(WINDOWS):
        y = normed(x, w[f"blk.{i}.attn_norm.weight"])
        k = turned_halves(_heads(y, w[f"blk.{i}.attn_k.weight"], w[f"blk.{i}.attn_k_norm.weight"]), 0)
        v = _heads(y, w[f"blk.{i}.attn_v.weight"], np.ones(SIZES[has_window]))
        all_keys.append((k, v))
        x = _through(w, i, x, (k, v), 0, has_window)
    states = normed(x, w["output_norm.weight"])
    logits = _CAP * np.tanh(states @ w["output.weight"].T / _CAP)
    return Read([*tokens], logits, states, all_keys)


class Assistant:
    """Reads a text of its target, token by token."""

    def __init__(self, weights: tiny.Weights, target: tiny.Weights) -> None:
        self._w = {name: matrix.astype(np.float64) for name, matrix in weights.items()}
        self._embeddings = target["token_embd.weight"].astype(np.float64)

    def __call__(self, read: Read, place: int, token: int, state: Array) -> Said:
        """What it says behind a token at a place of a text, of which the target has read what comes before."""
        w, embedding = self._w, self._embeddings[token] * np.sqrt(self._embeddings.shape[1])
        x = np.concatenate([embedding, state])[None] @ w["nextn.pre_projection.weight"].T
        for i, has_window in enumerate(OF_ASSISTANT):
            k, v = read.keys[-2 if has_window else -1]
            x = _through(w, i, x, (k[:, :place], v[:, :place]), place, has_window)
            x = x * w[f"blk.{i}.layer_output_scale.weight"]
        multiplied = normed(x, w["output_norm.weight"])[0]
        return Said(multiplied @ w["token_embd.weight"].T, multiplied, multiplied @ w["nextn.post_projection.weight"].T)

    def drafted(self, target: tiny.Weights, text: Sequence[int], count: int, *, moves: bool = False) -> list[int]:
        """The best `count` tokens behind a text, of whose last token the target has no state yet.

        With `moves`, each has a position of its own, which is not as llama.cpp's driver does it.
        """
        read, tokens = forward(target, text[:-1]), [text[-1]]
        state = read.states[-1]
        for i in range(count):
            said = self(read, len(text) - 1 + i * moves, tokens[-1], state)
            tokens.append(int(said.logits.argmax()))
            state = said.state
        return tokens[1:]


def _heads(y: Array, matrix: Array, norm: Array) -> Array:
    """[head, token, size], each normed."""
    found: Array = (y @ matrix.T).reshape(len(y), -1, len(norm)).transpose(1, 0, 2)
    return normed(found, norm)


def _through(
    w: Mapping[str, Array], i: int, x: Array, keys: tuple[Array, Array], first: int, has_window: bool
) -> Array:
    """A layer, whose queries stand at the positions from `first` on."""
    y = normed(x, w[f"blk.{i}.attn_norm.weight"])
    q = turned_halves(_heads(y, w[f"blk.{i}.attn_q.weight"], w[f"blk.{i}.attn_q_norm.weight"]), first)
    k, v = (one.repeat(HEADS // len(one), 0) for one in keys)
    behind = first + np.arange(len(x))[:, None] - np.arange(k.shape[1])
    scores = q @ k.transpose(0, 2, 1)
    scores = np.where((behind >= 0) & (behind < (tiny.WINDOW if has_window else np.inf)), scores, -np.inf)
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    seen = (shares / shares.sum(-1, keepdims=True)) @ v
    seen = seen.transpose(1, 0, 2).reshape(len(x), -1) @ w[f"blk.{i}.attn_output.weight"].T
    x = x + normed(seen, w[f"blk.{i}.post_attention_norm.weight"])
    y = normed(x, w[f"blk.{i}.ffn_norm.weight"])
    gate = y @ w[f"blk.{i}.ffn_gate.weight"].T
    gate = gate * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (gate + 0.044715 * gate**3))) / 2.0
    down = (gate * (y @ w[f"blk.{i}.ffn_up.weight"].T)) @ w[f"blk.{i}.ffn_down.weight"].T
    done: Array = x + normed(down, w[f"blk.{i}.post_ffw_norm.weight"])
    return done
