"""Tiny heads that say several tokens in one decode, and how llama.cpp's own tool feeds them.

`Feeding` makes the calls of `common_speculative_impl_draft_dflash` and of `examples/speculative-simple`, one by one.
The graph is llama.cpp's for both: what is compared is how it is fed.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import gguf
import llama_cpp
import numpy as np
import tiny_models as tiny
from engine import opened
from transcribed import HEADS, Array, forward, normed, turned_halves

from specllama.backend.libllama import function_of_cpp

LAYERS = (1, 2, 3)
SIZE = 8
MASK = 0
RANK = 4
CANDIDATES = 3
_RIDGE = 1e-2
_KERNEL, _GROUP = 3, 8
KINDS = ("dflash", "dspark", "dspark with an anchor", "dflash2")

_SHOW_INPUT = ("llama_set_embeddings_layer_inp", "_Z30llama_set_embeddings_layer_inpP13llama_contextjb")
_INPUT = ("llama_get_embeddings_layer_inp", "_Z30llama_get_embeddings_layer_inpP13llama_contextj")
_SHOW_NEXTN = ("llama_set_embeddings_nextn", "_Z26llama_set_embeddings_nextnP13llama_contextbb")
_NEXTN = ("llama_get_embeddings_nextn", "_Z26llama_get_embeddings_nextnP13llama_context")


def weights_of(
    kind: str, vocabulary: tiny.Vocabulary, seed: int, *, n_embd: int, n_layer: int = 2, chain: float = 0.7
) -> tiny.Weights:
    """Random weights of a head over a target of states of `n_embd`, which has `LAYERS`.

    What it says is moved about so much, `chain`, by the token before.
    """
    rng = np.random.default_rng(seed)
    weights = tiny.llama_weights(vocabulary, seed, n_embd=n_embd, n_layer=n_layer)
    weights["fc.weight"] = tiny._dense(rng, n_embd, len(LAYERS) * n_embd)
    weights["enc.output_norm.weight"] = np.ones(n_embd, np.float32)
    for i in range(n_layer):
        for name in ("attn_q_norm", "attn_k_norm"):
            weights[f"blk.{i}.{name}.weight"] = np.full(n_embd // HEADS, 1.5, np.float32)
    if kind.startswith("dspark"):
        weights["markov_w1.weight"] = tiny._dense(rng, len(vocabulary), RANK)
        weights["markov_w2.weight"] = tiny._dense(rng, len(vocabulary), RANK, chain)
        weights["conf_proj.weight"] = tiny._dense(rng, 1, n_embd + RANK)
    if kind == "dflash2":
        weights["selector_predecessor.weight"] = tiny._dense(rng, len(vocabulary), RANK, 1.5 * chain)
        weights["selector_successor.weight"] = tiny._dense(rng, len(vocabulary), RANK)
        weights["selector_hidden.weight"] = tiny._dense(rng, RANK, n_embd)
        for i, part in itertools.product(range(n_layer), ("attn", "ffn")):
            base = 0.05 * rng.standard_normal((2, _KERNEL, n_embd))
            base[:, 0] += 1.0
            weights[f"blk.{i}.{part}_conv_base"] = base.astype(np.float32)
            weights[f"blk.{i}.{part}_conv_proj.weight"] = tiny._dense(rng, 2 * _KERNEL * n_embd // _GROUP, n_embd, 0.05)
    return weights


def fitted_block_head(
    kind: str, vocabulary: tiny.Vocabulary, target: tiny.Weights, *, seed: int = 5, first: int = 3, chain: float = 0.7
) -> tiny.Weights:
    """A head that is right now and then: its output matrix is fitted to what its target goes on with.

    Args:
        kind: One of `KINDS`.
        vocabulary: The target's.
        target: Weights of `tiny.llama_weights`, of four layers or more.
        seed: The weights are a function of it.
        first: The matrix is fitted to texts of tokens from here on.
        chain: See `weights_of`. The fit knows nothing of it.
    """
    weights = weights_of(kind, vocabulary, seed, n_embd=target["token_embd.weight"].shape[1], chain=chain)
    flash, rng = Flash(weights), np.random.default_rng(seed)
    multiplied, wanted = [], []
    for _ in range(4):
        text = [1, *rng.integers(first, len(vocabulary), 6).tolist()]
        for _ in range(24):
            text.append(int(forward(target, text)[0][-1].argmax()))
        logits, states = forward(target, text)
        for end in range(4, len(text) - SIZE, 2):
            said = flash(text[: end + 1], states, SIZE)
            multiplied.append(said[1:])
            wanted.append(logits[end : end + SIZE - 1])
    x, y = np.concatenate(multiplied), np.concatenate(wanted)
    weights["output.weight"] = np.linalg.solve(x.T @ x + _RIDGE * len(x) * np.eye(x.shape[1]), x.T @ y).T
    return weights


def write_block_head(
    path: Path,
    kind: str,
    vocabulary: tiny.Vocabulary,
    weights: tiny.Weights,
    *,
    layers: Sequence[int] = LAYERS,
    tokens: Sequence[int] | None = None,
    changed: Mapping[str, Any] = MappingProxyType({}),
    arch: str = "dflash",
) -> Path:
    """Write a head of `weights_of`.

    With `tokens` it says these alone: row i of its output matrix is token i of them. `changed` are metadata that are
    others than they should be; None: they are left out.
    """
    n_embd = weights["output_norm.weight"].shape[0]
    n_layer = sum(name.endswith("attn_norm.weight") for name in weights)
    writer = tiny._open(path, arch, vocabulary, n_embd, n_layer, weights["blk.0.ffn_gate.weight"].shape[0])
    said: dict[str, Any] = {
        "attention.head_count": HEADS,
        "attention.head_count_kv": HEADS // 2,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": n_embd // HEADS,
        "block_size": SIZE,
        "target_layers": list(layers),
        "mask_token_id": MASK,
    }
    if kind == "dflash2":
        said |= {"conv_kernel_size": _KERNEL, "conv_group_size": _GROUP}
        said |= {"selector_rank": RANK, "selector_top_k": CANDIDATES}
    if kind == "dspark with an anchor":
        said["sample_from_anchor"] = False
    for name, value in {**said, **changed}.items():
        _add(writer, "tokenizer.ggml.mask_token_id" if name == "mask_token_id" else f"{arch}.{name}", value)
    if tokens is not None:
        writer.add_tensor("d2t", np.array(tokens, np.int64))
    tiny._finish(writer, weights)
    return path


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, list):
        writer.kv_data[0].pop(key, None)
        writer.add_array(key, value)
        return
    writer.kv_data[0].pop(key, None)
    kinds = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    if value is not None:
        kinds[type(value)](key, value)


class Flash:
    """DFlash (arXiv 2602.06036), without what DFlash2 and DSpark add."""

    def __init__(self, weights: tiny.Weights) -> None:
        self._w = {name: matrix.astype(np.float64) for name, matrix in weights.items()}
        self._num_layers = sum(name.endswith("attn_norm.weight") for name in weights)

    def __call__(self, text: Sequence[int], states: list[Array], size: int) -> Array:
        """What the output matrix multiplies, of a block behind a text. The state of its last token is not read."""
        w = self._w
        held = len(text) - 1
        fused = normed(
            np.concatenate([states[layer][:held] for layer in LAYERS], -1) @ w["fc.weight"].T, self._of("enc.output")
        )
        x = w["token_embd.weight"][[text[-1], *[MASK] * (size - 1)]]
        for i in range(self._num_layers):
            y = normed(x, w[f"blk.{i}.attn_norm.weight"])
            both = np.concatenate([fused, y])
            q = self._turned(i, "q", y, held)
            k, v = self._turned(i, "k", both, 0), self._parts(i, "v", both)
            scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            seen = shares / shares.sum(-1, keepdims=True) @ v
            x = x + seen.transpose(1, 0, 2).reshape(x.shape) @ w[f"blk.{i}.attn_output.weight"].T
            y = normed(x, w[f"blk.{i}.ffn_norm.weight"])
            gate, up = (y @ w[f"blk.{i}.ffn_{name}.weight"].T for name in ("gate", "up"))
            x = x + (gate / (1.0 + np.exp(-gate)) * up) @ w[f"blk.{i}.ffn_down.weight"].T
        return normed(x, self._of("output"))

    def _of(self, name: str) -> Array:
        return self._w[f"{name}_norm.weight"]

    def _parts(self, i: int, name: str, y: Array) -> Array:
        """[head, token, size]."""
        matrix = self._w[f"blk.{i}.attn_{name}.weight"]
        size = self._of("output").shape[0] // HEADS
        found = (y @ matrix.T).reshape(len(y), -1, size).transpose(1, 0, 2)
        return found.repeat(HEADS // len(found), 0)

    def _turned(self, i: int, name: str, y: Array, first: int) -> Array:
        found = normed(self._parts(i, name, y), self._of(f"blk.{i}.attn_{name}"))
        return turned_halves(found, first)


class Feeding:
    """A target and a head, as llama.cpp's speculative-simple uses them at temperature 0."""

    def __init__(self, target: Path, head: Path, num_candidates: int = 0) -> None:
        self._target = opened(target, n_ctx=512)
        params = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(head).encode(), params)
        own: Any = llama_cpp.llama_context_default_params()
        own.n_ctx, own.n_threads, own.n_threads_batch = 512, 1, 1
        own.n_batch = own.n_ubatch = 512
        own.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED  # as of ours
        own.ctx_other = self._target.ctx
        self._head = llama_cpp.llama_init_from_model(self._model, own)
        said = llama_cpp.llama_model_meta_val_str
        room = ctypes.create_string_buffer(32)
        self._size = int(room.value) if said(self._model, b"dflash.block_size", room, 32) >= 0 else 16
        from_anchor = said(self._model, b"dflash.sample_from_anchor", room, 32) < 0 or room.value == b"true"
        is_causal = said(self._model, b"dflash.attention.causal", room, 32) >= 0 and room.value == b"true"
        self._first = 0 if from_anchor and b"markov" in head.read_bytes() else 1
        self._num_candidates = num_candidates
        self._mask = llama_cpp.llama_vocab_mask(llama_cpp.llama_model_get_vocab(self._model))
        self._n_embd = llama_cpp.llama_model_n_embd(self._model)
        self._n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        show = function_of_cpp(_SHOW_INPUT, None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool)
        self._input = function_of_cpp(_INPUT, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p, ctypes.c_uint32)
        self._nextn = function_of_cpp(_NEXTN, ctypes.POINTER(ctypes.c_float), ctypes.c_void_p)
        for layer in LAYERS:
            show(self._target.ctx, layer, True)
        show_nextn = function_of_cpp(_SHOW_NEXTN, None, ctypes.c_void_p, ctypes.c_bool, ctypes.c_bool)
        show_nextn(self._head, True, num_candidates == 0)
        llama_cpp.llama_set_causal_attn(self._head, is_causal)

    def close(self) -> None:
        """Frees all."""
        llama_cpp.llama_free(self._head)
        llama_cpp.llama_model_free(self._model)
        self._target.close()

    def rounds(
        self, prompt: list[int], most: int, count: int, cut: int | None = None
    ) -> list[tuple[list[int], list[int], list[Array]]]:
        """What is drafted and emitted in so many rounds behind a prompt, and what the head said of each place.

        Of each draft the target is given the first `cut` tokens.
        """
        for context in (self._target.ctx, self._head):
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        if len(prompt) > 1:
            self._decode(self._target.ctx, prompt[:-1], 0)
            self._process(len(prompt) - 1, 0)
        num_past, last = len(prompt) - 1, prompt[-1]
        found: list[tuple[list[int], list[int], list[Array]]] = []
        for _ in range(count):
            said = self._draft(num_past, last, most)
            draft = [int(row.argmax()) for row in said][:cut]
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self._head), 0, num_past, -1)
            self._decode(self._target.ctx, [last, *draft], num_past)
            self._process(1 + len(draft), num_past)
            emitted: list[int] = []
            for row in range(1 + len(draft)):
                emitted.append(int(self._logits(self._target.ctx, row).argmax()))
                if row < len(draft) and emitted[-1] != draft[row]:
                    break
            num_past, last = num_past + len(emitted), emitted[-1]
            for context in (self._target.ctx, self._head):
                llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(context), 0, num_past, -1)
            found.append((draft, emitted, said))
        return found

    def _process(self, num_rows: int, place: int) -> None:
        """`process`: what enters the target's layers goes into the head's memory."""
        parts = [
            np.ctypeslib.as_array(self._input(self._target.ctx, layer), (num_rows, self._n_embd)) for layer in LAYERS
        ]
        features = np.ascontiguousarray(np.concatenate(parts, -1), np.float32)
        batch = llama_cpp.llama_batch_init(num_rows, features.shape[1], 1)
        ctypes.memmove(batch.embd, features.ctypes.data, features.nbytes)
        self._decode_batch(self._head, batch, num_rows, place, wants=False)

    def _draft(self, place: int, last: int, most: int) -> list[Array]:
        """`draft`: one block, and of each place how good its tokens are. The best one is taken."""
        most = min(most, self._size - self._first)
        self._decode(self._head, [last, *[self._mask] * (most + self._first - 1)], place)
        if self._num_candidates == 0:
            return [self._logits(self._head, self._first + i).astype(float) for i in range(most)]
        lattice = np.ctypeslib.as_array(self._nextn(self._head), (most + 1, self._n_embd))
        k, before, said = self._num_candidates, 0, []
        for row in lattice[1:]:
            scores = row[k:][before * k : (before + 1) * k]
            before = int(scores.argmax())
            said.append(np.full(self._n_vocab, -np.inf))
            said[-1][row[:k].astype(int)] = scores
        return said

    def _decode(self, context: Any, tokens: Sequence[int], place: int) -> None:
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        for i, token in enumerate(tokens):
            batch.token[i] = token
        self._decode_batch(context, batch, len(tokens), place, wants=True)

    @staticmethod
    def _decode_batch(context: Any, batch: Any, count: int, place: int, *, wants: bool) -> None:
        batch.n_tokens = count
        for i in range(count):
            batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = place + i, 1, 0, wants
        code = llama_cpp.llama_decode(context, batch)
        llama_cpp.llama_batch_free(batch)
        assert code == 0

    def _logits(self, context: Any, row: int) -> Any:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(context, row), (self._n_vocab,))
