"""Tiny heads that read the final state alone, fitted to a target, and the papers' formulas in NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
import tiny_models as tiny
from exact import EXACT_CACHE
from transcribed import forward

import specllama
from specllama.models.state_head_file import ARCHITECTURES, vocabulary_hash

KINDS = tuple(ARCHITECTURES)
PLACES = 3
_RIDGE = 1e-2

Floats = npt.NDArray[np.float64]


def silu(x: Floats) -> Floats:
    """x times its logistic function."""
    return x / (1.0 + np.exp(-x))


def place_states(
    kind: str, weights: tiny.Weights, state: Floats, embedded: Sequence[Floats], places: int = PLACES
) -> list[Floats]:
    """What the output matrix multiplies at each place.

    Args:
        kind: one of `KINDS`.
        weights: of `head_weights`.
        state: the target's final state, normed [n_embd].
        embedded: of the text's last token, and of those drafted behind it [places][n_embd]; read by Hydra.
        places: how many.
    """
    w = {name: weight.astype(np.float64) for name, weight in weights.items()}
    if kind == "blockwise":  # section 6 and figure 2: one layer of k times the width, and k residual connections
        hidden = np.maximum(w["hidden.0.weight"] @ state + w["hidden.0.bias"], 0.0)
        added = (w["hidden.1.weight"] @ hidden + w["hidden.1.bias"]).reshape(-1, len(state))
        return [state + added[k] for k in range(places)]
    found = []
    for k in range(places):
        x = np.concatenate([state, *embedded[: k + 1]]) if kind == "hydra" else state
        curved = silu(w[f"place.{k}.0.linear.weight"] @ x + w[f"place.{k}.0.linear.bias"])
        if kind == "hydra":  # section 3: the first layer's input is wider, and so it has a matrix in place of x
            x = w[f"place.{k}.0.straight.weight"] @ x + w[f"place.{k}.0.straight.bias"]
        found.append(x + curved)  # section 2.1.1
    return found


def head_weights(kind: str, seed: int, n_embd: int) -> tiny.Weights:
    """Random ones, without an output matrix."""
    rng, d = np.random.default_rng(seed), n_embd

    def matrix(rows: int, columns: int) -> npt.NDArray[np.float32]:
        return (rng.standard_normal((rows, columns)) * 0.7 / columns**0.5).astype(np.float32)

    def bias(count: int) -> npt.NDArray[np.float32]:
        return (0.1 * rng.standard_normal(count)).astype(np.float32)

    if kind == "blockwise":
        sizes = {"hidden.0": (PLACES * d, d), "hidden.1": (PLACES * d, PLACES * d)}
    else:
        sizes = {}
        for k in range(PLACES):
            columns = (k + 2) * d if kind == "hydra" else d
            sizes[f"place.{k}.0.linear"] = (d, columns)
            if kind == "hydra":
                sizes[f"place.{k}.0.straight"] = (d, columns)
    weights = {}
    for name, (rows, columns) in sizes.items():
        weights[f"{name}.weight"], weights[f"{name}.bias"] = matrix(rows, columns), bias(rows)
    return weights


def fitted_state_head(kind: str, vocabulary: tiny.Vocabulary, target: tiny.Weights, *, first: int = 3) -> tiny.Weights:
    """A head that is right now and then: each place has an output matrix fitted to what its target goes on with."""
    n_embd = target["token_embd.weight"].shape[1]
    weights, rng = head_weights(kind, 5, n_embd), np.random.default_rng(7)
    rows: list[list[Floats]] = [[] for _ in range(PLACES)]
    wanted: list[list[Floats]] = [[] for _ in range(PLACES)]
    for _ in range(40):
        tokens = [1, *rng.integers(first, len(vocabulary), 12).tolist()]
        for _ in range(12):
            tokens.append(int(forward(target, tokens)[0][-1].argmax()))
        logits, states = forward(target, tokens)
        embedded = target["token_embd.weight"][tokens].astype(np.float64)
        for p in range(len(tokens) - PLACES - 1):
            found = place_states(kind, weights, states[-1][p], [*embedded[p + 1 : p + 1 + PLACES]])
            for k in range(PLACES):
                rows[k].append(found[k])
                wanted[k].append(logits[p + 1 + k])
    for k in range(PLACES):
        x, y = np.array(rows[k]), np.array(wanted[k])
        matrix = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(n_embd), x.T @ y).T
        weights[f"place.{k}.output.weight"] = matrix.astype(np.float32)
    return weights


def fitted_medusa(target: Path, vocabulary: tiny.Vocabulary) -> tiny.Weights:
    """Medusa's head for any model, whose states and logits llama.cpp computes: matrices alone, fitted to its texts."""
    settings: dict[str, Any] = {"n_ctx": 256, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **EXACT_CACHE}
    llm = specllama.Llama(str(target), embedding=True, pooling_type=llama_cpp.LLAMA_POOLING_TYPE_NONE, **settings)
    rng, rows = np.random.default_rng(7), list[tuple[Floats, Floats]]()
    for _ in range(6):
        prompt = [1, *rng.integers(259, len(vocabulary), 8).tolist()]
        tokens = prompt + list(llm.engine.generate(prompt, max_tokens=60, temperature=0.0))
        logits = np.array([row.copy() for _, row in llm.engine.score(tokens)])
        rows.append((np.array(llm.embed(tokens))[: len(logits)], logits))
    llm.close()
    weights = {name: 0 * weight for name, weight in head_weights("medusa", 5, rows[0][0].shape[1]).items()}
    for k in range(PLACES):
        x, y = (np.concatenate(found) for found in zip(*((s[: -1 - k], r[1 + k :]) for s, r in rows), strict=True))
        weights[f"place.{k}.output.weight"] = np.linalg.solve(
            x.T @ x + _RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y
        ).T.astype(np.float32)
    return weights


def write_state_head(
    path: Path,
    kind: str,
    vocabulary: tiny.Vocabulary,
    weights: tiny.Weights,
    *,
    tokens: Sequence[int] | None = None,
    types: Mapping[str, gguf.GGMLQuantizationType] = MappingProxyType({}),
    changed: Mapping[str, Any] = MappingProxyType({}),
    trained_for: tuple[str, float] | None = None,
) -> Path:
    """Write one.

    With `tokens` it says these alone; `changed` are numbers that are others than they should be; `trained_for` is the
    name of its target's file, and how often it is right.
    """
    arch = ARCHITECTURES[kind]
    n_embd = next(w.shape[1] for name, w in weights.items() if name.endswith("output.weight"))
    writer = gguf.GGUFWriter(path, arch)
    numbers = {
        "embedding_length": n_embd,
        "place_count": PLACES,
        "layer_count": 0 if kind == "blockwise" else 1,
        "vocab_size": len(vocabulary),
        **changed,
    }
    for name, number in numbers.items():
        writer.add_uint32(f"{arch}.{name}", number)
    writer.add_string("specllama.target.vocabulary", vocabulary_hash([one.encode() for one in vocabulary.tokens]))
    if trained_for is not None:
        writer.add_string("specllama.target.file", trained_for[0])
        writer.add_array("specllama.acceptance.greedy", [trained_for[1]])
    if tokens is not None:
        writer.add_tensor("d2t", np.array(tokens, np.int64))
    for name, weight in weights.items():
        found = weight[list(tokens)] if tokens is not None and name.endswith("output.weight") else weight
        if (kind_of := types.get(name)) is not None:
            writer.add_tensor(name, gguf.quants.quantize(found, kind_of), raw_dtype=kind_of)
        else:
            writer.add_tensor(name, np.ascontiguousarray(found))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
