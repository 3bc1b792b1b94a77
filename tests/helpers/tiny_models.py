"""Tiny GGUF files with random weights: everything that the tests load without a download.

All files are deterministic functions of a seed, are written in well under a second, and load and decode in
milliseconds. The weights are scaled so that distributions are neither uniform nor one-hot, and depend on the context.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import gguf
import numpy as np
import numpy.typing as npt
from rows import number_of, quantized

Weights = dict[str, npt.NDArray[np.float32]]

N_CTX_TRAIN = 1024
NUM_USED = 2
"""Experts that each token of a mixture has."""
WINDOW = 16
"""The sliding window of `sliding_window_model`."""

CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)

PIECES = [
    *"▁abcdefghijklmnopqrstuvwxyz.,",
    *"▁t th ▁th he ▁the ▁a ▁an ▁and nd in ing er re on es ▁s ▁c ▁d ▁o ▁of ▁i ▁is ▁it or ar".split(),
    *"▁to ▁in ▁w ▁b ▁f ▁n ▁no ▁on ▁se ▁ca ▁cat ▁do ▁dog at og ▁sa ▁sat ▁fo ▁fox".split(),
]


@dataclasses.dataclass(frozen=True)
class Vocabulary:
    """A vocabulary in the form in which GGUF stores it: one of SentencePiece, unless `model` says otherwise."""

    tokens: list[str]
    scores: list[float]
    types: list[int]
    bos: int = 1
    eos: int = 2
    chat_template: str = CHAT_TEMPLATE
    adds_bos: bool = True
    model: str = "llama"
    separator: int | None = None
    merges: tuple[str, ...] = ()
    pre: str = ""
    """How a text is cut before its parts are tokenized."""

    def __len__(self) -> int:
        """How many rows the vocabulary has, padding included."""
        return len(self.tokens)

    def padded(self, rows: int) -> Vocabulary:
        """The same vocabulary with `rows` unused rows behind it."""
        extra = [f"[PAD{i}]" for i in range(rows)]
        return dataclasses.replace(
            self,
            tokens=self.tokens + extra,
            scores=self.scores + [-1000.0] * rows,
            types=self.types + [int(gguf.TokenType.UNUSED)] * rows,
        )

    def with_token(self, token: int, text: str) -> Vocabulary:
        """The same vocabulary with another text at one id: a mismatch."""
        tokens = list(self.tokens)
        tokens[token] = text
        return dataclasses.replace(self, tokens=tokens)


def word_vocabulary() -> Vocabulary:
    """`<unk> <s> </s>`, the 256 byte tokens and some words: any text tokenizes."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{i:02X}>" for i in range(256)] + PIECES
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.NORMAL] * len(PIECES)
    scores = [0.0] * 259 + [-float(i) for i in range(len(PIECES))]
    return Vocabulary(tokens, scores, [int(t) for t in types])


def letter_vocabulary(size: int = 8) -> Vocabulary:
    """A vocabulary so small that every sequence of three tokens can be counted."""
    letters = [chr(ord("a") + i) for i in range(size - 3)]
    types = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    types += [gguf.TokenType.NORMAL] * len(letters)
    return Vocabulary(["<unk>", "<s>", "</s>", *letters], [0.0] * size, [int(t) for t in types])


def byte_pair_vocabulary(pre: str = "") -> Vocabulary:
    """As GPT-2's: a character for each byte, and some merges. `pre` names how texts are cut before."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [*map(chr, printed), *map(chr, range(256, 512 - len(printed)))]
    merges = ("t h", "h e", "Ġ t", "Ġ a", "Ġt he", "i n", "c a", "ca t", "Ġ cat")
    tokens = [*letters, *(merge.replace(" ", "") for merge in merges)]
    types = [gguf.TokenType.NORMAL] * len(tokens) + [gguf.TokenType.CONTROL] * 2
    size = len(types)
    return Vocabulary(
        [*tokens, "<s>", "</s>"],
        [0.0] * size,
        [*map(int, types)],
        bos=size - 2,
        eos=size - 1,
        model="gpt2",
        merges=merges,
        pre=pre,
    )


def word_piece_vocabulary() -> Vocabulary:
    """As BERT's. It begins and ends texts with tokens of its own."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + ["▁" + c for c in "abcdefgh"] + [*"abcdefgh"]
    types = [gguf.TokenType.CONTROL, gguf.TokenType.UNKNOWN] + [gguf.TokenType.CONTROL] * 3
    types += [gguf.TokenType.NORMAL] * 16
    return Vocabulary(tokens, [0.0] * len(tokens), [*map(int, types)], bos=2, eos=3, model="bert", separator=3)


def _dense(rng: np.random.Generator, rows: int, columns: int, gain: float = 1.0) -> npt.NDArray[np.float32]:
    """A matrix that maps unit-variance inputs to outputs of standard deviation `gain`."""
    return (rng.standard_normal((rows, columns)) * gain / np.sqrt(columns)).astype(np.float32)


def _writes_residual(matrix: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Component 0 of the residual stream is a constant that only the embedding writes: it carries the output bias."""
    matrix[0] = 0.0
    return matrix


def _embedding(
    rng: np.random.Generator, rows: int, columns: int, bias: npt.NDArray[np.float64], sharpness: float
) -> Weights:
    embedding = rng.standard_normal((rows, columns)).astype(np.float32)
    embedding[:, 0] = 2.0
    output = _dense(rng, rows, columns, sharpness)
    output[:, 0] = bias
    return {
        "token_embd.weight": embedding,
        "output_norm.weight": np.ones(columns, np.float32),
        "output.weight": output,
    }


def _word_bias(vocabulary: Vocabulary) -> npt.NDArray[np.float64]:
    """Words are likely, bytes come now and then (text has broken UTF-8), special and unused rows practically never."""
    bias = np.zeros(len(vocabulary))
    kinds = np.array(vocabulary.types)
    bias[kinds == gguf.TokenType.BYTE] = -4.5
    bias[3 + ord(" ") : 3 + ord("~")] = -3.0
    bias[(kinds != gguf.TokenType.BYTE) & (kinds != gguf.TokenType.NORMAL)] = -12.0
    return bias


def llama_weights(
    vocabulary: Vocabulary,
    seed: int,
    *,
    n_embd: int = 32,
    n_ff: int = 48,
    n_layer: int = 2,
    sharpness: float = 2.5,
    flat_bias: bool = False,
) -> Weights:
    """Random weights of a llama-architecture model with 4 heads and 2 key-value heads.

    Args:
        vocabulary: Sets the number of rows and, unless `flat_bias`, which tokens are likely.
        seed: The weights are a function of it.
        n_embd: Width of the residual stream.
        n_ff: Width of the feed-forward layers.
        n_layer: Number of layers.
        sharpness: Standard deviation of the logits.
        flat_bias: Make every row equally likely a priori.
    """
    rng = np.random.default_rng(seed)
    bias = np.zeros(len(vocabulary)) if flat_bias else _word_bias(vocabulary)
    weights = _embedding(rng, len(vocabulary), n_embd, bias, sharpness)
    for i in range(n_layer):
        weights[f"blk.{i}.attn_norm.weight"] = np.ones(n_embd, np.float32)
        weights[f"blk.{i}.attn_q.weight"] = _dense(rng, n_embd, n_embd, 1.5)
        weights[f"blk.{i}.attn_k.weight"] = _dense(rng, n_embd // 2, n_embd, 1.5)
        weights[f"blk.{i}.attn_v.weight"] = _dense(rng, n_embd // 2, n_embd)
        weights[f"blk.{i}.attn_output.weight"] = _writes_residual(_dense(rng, n_embd, n_embd, 2.0))
        weights[f"blk.{i}.ffn_norm.weight"] = np.ones(n_embd, np.float32)
        weights[f"blk.{i}.ffn_gate.weight"] = _dense(rng, n_ff, n_embd)
        weights[f"blk.{i}.ffn_up.weight"] = _dense(rng, n_ff, n_embd)
        weights[f"blk.{i}.ffn_down.weight"] = _writes_residual(_dense(rng, n_embd, n_ff, 2.0))
    return weights


def noisy(weights: Weights, amount: float, seed: int) -> Weights:
    """A good draft: the same matrices, each entry off by a normal number of `amount` of its matrix' spread."""
    rng = np.random.default_rng(seed)
    result = {}
    for name, matrix in weights.items():
        noise = amount * matrix.std() * rng.standard_normal(matrix.shape)
        if matrix.ndim == 2:
            noise[:, 0] *= name != "output.weight"  # the bias of special tokens stays
        result[name] = (matrix + (noise if matrix.ndim == 2 else 0.0)).astype(np.float32)
    return result


def adversarial(weights: Weights) -> Weights:
    """A draft whose mass is least where the target's is most: the output matrix negated, but for its bias."""
    output = -weights["output.weight"]
    output[:, 0] *= -1.0
    return {**weights, "output.weight": output}


def with_rows(weights: Weights, rows: int) -> Weights:
    """The same function over a vocabulary of `rows`: what is new is practically impossible."""
    result = dict(weights)
    for name in ("token_embd.weight", "output.weight"):
        matrix = np.zeros((rows, weights[name].shape[1]), np.float32)
        matrix[: len(weights[name])] = weights[name]
        result[name] = matrix
    result["token_embd.weight"][:, 0] = 2.0
    result["output.weight"][len(weights["output.weight"]) :, 0] = -12.0
    return result


def _open(path: Path, arch: str, vocabulary: Vocabulary, n_embd: int, n_layer: int, n_ff: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, arch)
    writer.add_name(path.stem)
    writer.add_context_length(N_CTX_TRAIN)
    writer.add_embedding_length(n_embd)
    writer.add_block_count(n_layer)
    writer.add_feed_forward_length(n_ff)
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_token_list(vocabulary.tokens)
    if vocabulary.separator is not None:
        writer.add_sep_token_id(vocabulary.separator)
    if vocabulary.pre:
        writer.add_tokenizer_pre(vocabulary.pre)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    writer.add_token_scores(vocabulary.scores)
    writer.add_token_types(vocabulary.types)
    writer.add_bos_token_id(vocabulary.bos)
    writer.add_eos_token_id(vocabulary.eos)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(vocabulary.adds_bos)
    writer.add_add_eos_token(False)
    writer.add_chat_template(vocabulary.chat_template)
    return writer


def _finish(
    writer: gguf.GGUFWriter,
    tensors: Mapping[str, npt.NDArray[np.float32]],
    kinds: Mapping[str, str] | None = None,
) -> None:
    for name, tensor in tensors.items():
        numbers, kind = np.ascontiguousarray(tensor, dtype=np.float32), (kinds or {}).get(name, "F32")
        if kind == "F32":
            writer.add_tensor(name, numbers)
        else:
            writer.add_tensor(name, quantized(numbers, kind), raw_dtype=number_of(kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_llama(
    path: Path,
    vocabulary: Vocabulary,
    weights: Weights,
    kinds: Mapping[str, str] | None = None,
    arch: str = "llama",
) -> Path:
    """Write a llama-architecture model, of experts if it has some. `kinds` are the types that are not F32, by names.

    Of an `arch` that is like llama, the weights must have what it has besides.
    """
    n_embd = weights["token_embd.weight"].shape[1]
    experts = weights.get("blk.0.ffn_gate_exps.weight")
    n_ff = weights["blk.0.ffn_gate.weight"].shape[0] if experts is None else experts.shape[1]
    n_layer = sum(name.endswith("attn_norm.weight") for name in weights)
    writer = _open(path, arch, vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    if arch == "qwen3":
        writer.add_key_length(n_embd // 4)
        writer.add_value_length(n_embd // 4)
    writer.add_vocab_size(len(vocabulary))
    if experts is not None:
        writer.add_expert_count(len(experts))
        writer.add_expert_used_count(NUM_USED)
    _finish(writer, weights, kinds)
    return path


def with_experts(weights: Weights, seed: int, count: int = 6) -> Weights:
    """A mixture: a model whose feed-forward layers are experts, of which each token has `NUM_USED`."""
    rng, found = np.random.default_rng(seed), dict(weights)
    for name, weight in weights.items():
        layer, _, kind = name.removesuffix(".weight").rpartition(".")
        if kind in ("ffn_gate", "ffn_up", "ffn_down"):
            del found[name]
            found[f"{layer}.{kind}_exps.weight"] = np.stack([rng.permutation(weight) for _ in range(count)])
        elif kind == "ffn_norm":
            found[f"{layer}.ffn_gate_inp.weight"] = _dense(rng, count, weight.shape[0], 3.0)
    return found


def write_saying(
    path: Path, pieces: Sequence[str], template: str = CHAT_TEMPLATE, special: Collection[str] = ()
) -> Path:
    """Write a model that says these pieces, a token each, behind any prompt, and ends.

    No piece may be there twice: each token is what decides on the next one. Those in `special` are control tokens.
    """
    words = word_vocabulary()
    kinds = [gguf.TokenType.CONTROL if piece in special else gguf.TokenType.USER_DEFINED for piece in pieces]
    first, size, n_embd = len(words), len(words) + len(pieces), 16 * (len(pieces) // 16 + 1)
    vocabulary = dataclasses.replace(
        words,
        tokens=[*words.tokens, *pieces],
        scores=[*words.scores, *[0.0] * len(pieces)],
        types=[*words.types, *map(int, kinds)],
        chat_template=template,
    )
    weights = llama_weights(vocabulary, seed=1, n_embd=n_embd, n_layer=1)
    for name in ("blk.0.attn_output.weight", "blk.0.ffn_down.weight"):
        weights[name] *= 0  # nothing but the last token counts
    embedding, output = np.zeros((size, n_embd), np.float32), np.zeros((size, n_embd), np.float32)
    embedding[:first, 0] = 1
    for number in range(len(pieces)):
        embedding[first + number, number + 1] = 1
        output[first + number, number] = 10
    output[vocabulary.eos, len(pieces)] = 10
    weights.update({"token_embd.weight": embedding, "output.weight": output})
    weights["output_norm.weight"] = np.ones(n_embd, np.float32)
    return write_llama(path, vocabulary, weights)


def write_sliding_window(
    path: Path, vocabulary: Vocabulary, seed: int, noise: float = 0.0, *, n_embd: int = 32, n_ff: int = 48
) -> Path:
    """Write a gemma3 model: layers 0 to 4 see `WINDOW` tokens, layer 5 sees all.

    With `noise`, see `noisy`, it is a good draft for that without.
    """
    n_layer = 6
    weights = llama_weights(vocabulary, seed, n_embd=n_embd, n_ff=n_ff, n_layer=n_layer, sharpness=2.0)
    # gemma scales the embedding by sqrt(n_embd); the rest of the network expects unit variance.
    weights["token_embd.weight"] = weights["token_embd.weight"] / np.float32(np.sqrt(n_embd))
    for i in range(n_layer):
        # Each layer adds little, or six of them would blow rounding up to another text. What comes of GELU adds least:
        # ggml looks GELU up in a table of float16, so a last bit can move it by a thousandth.
        for name, size in (("post_attention_norm", 0.4), ("post_ffw_norm", 0.004)):
            weights[f"blk.{i}.{name}.weight"] = np.full(n_embd, size, np.float32)
        weights[f"blk.{i}.attn_q_norm.weight"] = np.ones(n_embd // 4, np.float32)
        weights[f"blk.{i}.attn_k_norm.weight"] = np.ones(n_embd // 4, np.float32)
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "gemma3", vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(n_embd // 4)
    writer.add_value_length(n_embd // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_sliding_window(WINDOW)
    _finish(writer, weights)
    return path


def write_alibi(path: Path, vocabulary: Vocabulary, seed: int) -> Path:
    """Write an mpt model: its positions are in the mask of its attention, with a slope for each of its six heads."""
    n_embd, n_ff, n_layer = 384, 512, 2
    rng = np.random.default_rng(seed)
    weights = _embedding(rng, len(vocabulary), n_embd, _word_bias(vocabulary), 2.5)
    for i in range(n_layer):
        for name in ("attn_norm", "ffn_norm"):
            weights[f"blk.{i}.{name}.weight"] = np.ones(n_embd, np.float32)
        weights[f"blk.{i}.attn_qkv.weight"] = _dense(rng, 3 * n_embd, n_embd, 1.5)
        weights[f"blk.{i}.attn_output.weight"] = _writes_residual(_dense(rng, n_embd, n_embd, 2.0))
        weights[f"blk.{i}.ffn_up.weight"] = _dense(rng, n_ff, n_embd)
        weights[f"blk.{i}.ffn_down.weight"] = _writes_residual(_dense(rng, n_embd, n_ff, 2.0))
    writer = _open(path, "mpt", vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(6)
    writer.add_layer_norm_eps(1e-5)
    writer.add_max_alibi_bias(8.0)
    kinds = {name: "Q8_0" for name, weight in weights.items() if weight.ndim > 1}
    _finish(writer, weights, kinds)
    return path


def write_latent(path: Path, vocabulary: Vocabulary, seed: int) -> Path:
    """Write a deepseek2 model: each of four heads makes keys and values of the same short row (MLA)."""
    n_embd, n_ff, n_layer, heads, rank, size, turned = 256, 512, 2, 4, 128, 64, 32
    rng = np.random.default_rng(seed)
    weights = _embedding(rng, len(vocabulary), n_embd, _word_bias(vocabulary), 2.5)
    for i in range(n_layer):
        layer = {
            "attn_norm": np.ones(n_embd, np.float32),
            "attn_q_a": _dense(rng, rank, n_embd),
            "attn_q_a_norm": np.ones(rank, np.float32),
            "attn_q_b": _dense(rng, heads * (size + turned), rank, 1.5),
            "attn_kv_a_mqa": _dense(rng, rank + turned, n_embd, 1.5),
            "attn_kv_a_norm": np.ones(rank, np.float32),
            "attn_k_b": _dense(rng, heads * rank, size).reshape(heads, rank, size),
            "attn_v_b": _dense(rng, heads * size, rank).reshape(heads, size, rank),
            "attn_output": _writes_residual(_dense(rng, n_embd, heads * size, 2.0)),
            "ffn_norm": np.ones(n_embd, np.float32),
            "ffn_gate": _dense(rng, n_ff, n_embd),
            "ffn_up": _dense(rng, n_ff, n_embd),
            "ffn_down": _writes_residual(_dense(rng, n_embd, n_ff, 2.0)),
        }
        weights |= {f"blk.{i}.{name}.weight": matrix for name, matrix in layer.items()}
    writer = _open(path, "deepseek2", vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_key_length(rank + turned)
    writer.add_value_length(rank)
    writer.add_key_length_mla(size + turned)
    writer.add_value_length_mla(size)
    writer.add_q_lora_rank(rank)
    writer.add_kv_lora_rank(rank)
    writer.add_rope_dimension_count(turned)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_leading_dense_block_count(n_layer)
    writer.add_expert_feed_forward_length(n_ff)
    writer.add_expert_shared_count(0)
    _finish(writer, weights)
    return path


def write_recurrent(path: Path, vocabulary: Vocabulary, seed: int, noise: float = 0.0, *, n_embd: int = 32) -> Path:
    """Write a mamba model: its memory cannot be cut. `noise`: as of `write_sliding_window`."""
    n_layer, kernel, state, rank = 2, 4, 8, n_embd // 8
    inner = 2 * n_embd
    rng = np.random.default_rng(seed)
    weights = _embedding(rng, len(vocabulary), n_embd, _word_bias(vocabulary), 2.5)
    for i in range(n_layer):
        weights[f"blk.{i}.attn_norm.weight"] = np.ones(n_embd, np.float32)
        weights[f"blk.{i}.ssm_in.weight"] = _dense(rng, 2 * inner, n_embd)
        weights[f"blk.{i}.ssm_conv1d.weight"] = _dense(rng, inner, kernel)
        weights[f"blk.{i}.ssm_conv1d.bias"] = np.zeros(inner, np.float32)
        weights[f"blk.{i}.ssm_x.weight"] = _dense(rng, rank + 2 * state, inner)
        weights[f"blk.{i}.ssm_dt.weight"] = _dense(rng, inner, rank)
        weights[f"blk.{i}.ssm_dt.bias"] = np.zeros(inner, np.float32)
        weights[f"blk.{i}.ssm_a"] = -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1))
        weights[f"blk.{i}.ssm_d"] = np.ones(inner, np.float32)
        weights[f"blk.{i}.ssm_out.weight"] = _writes_residual(_dense(rng, n_embd, inner, 4.0))
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "mamba", vocabulary, n_embd, n_layer, 0)
    writer.add_head_count(0)
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_time_step_rank(rank)
    writer.add_layer_norm_rms_eps(1e-5)
    _finish(writer, weights)
    return path


def write_hybrid(
    path: Path, vocabulary: Vocabulary, seed: int, noise: float = 0.0, *, n_embd: int = 32, n_ff: int = 48
) -> Path:
    """Write an lfm2 model: layer 0 is a short convolution (recurrent), layer 1 is attention. `noise`: as above."""
    kernel = 3
    weights = llama_weights(vocabulary, seed, n_embd=n_embd, n_ff=n_ff)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        del weights[f"blk.0.{name}.weight"]
    rng = np.random.default_rng(seed + 1)
    # The embedding is the output matrix, too. It is small beside what the layers add, or every token would repeat.
    del weights["output.weight"], weights["output_norm.weight"]
    weights["token_embd.weight"] *= np.float32(0.3)
    weights["token_embd_norm.weight"] = np.full(n_embd, 2.5 / 0.3 / np.sqrt(n_embd), np.float32)
    weights["blk.0.shortconv.conv.weight"] = _dense(rng, n_embd, kernel)
    weights["blk.0.shortconv.in_proj.weight"] = _dense(rng, 3 * n_embd, n_embd)
    weights["blk.0.shortconv.out_proj.weight"] = _writes_residual(_dense(rng, n_embd, n_embd, 2.0))
    weights["blk.1.attn_q_norm.weight"] = np.ones(n_embd // 4, np.float32)
    weights["blk.1.attn_k_norm.weight"] = np.ones(n_embd // 4, np.float32)
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "lfm2", vocabulary, n_embd, 2, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv([0, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary))
    writer.add_shortconv_l_cache(kernel)
    _finish(writer, weights)
    return path


def write_scanning_hybrid(
    path: Path, vocabulary: Vocabulary, seed: int, noise: float = 0.0, *, n_embd: int = 32, n_ff: int = 48
) -> Path:
    """Write a granitehybrid model: layer 0 is a Mamba-2 scan (recurrent), layer 1 is attention. `noise`: as above."""
    kernel, state, heads, groups = 4, 16, 4, 1
    inner = 2 * n_embd
    mixed = inner + 2 * groups * state
    weights = llama_weights(vocabulary, seed, n_embd=n_embd, n_ff=n_ff)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        del weights[f"blk.0.{name}.weight"]
    rng = np.random.default_rng(seed + 1)
    weights["blk.0.ssm_in.weight"] = _dense(rng, inner + mixed + heads, n_embd)
    weights["blk.0.ssm_conv1d.weight"] = _dense(rng, mixed, kernel)
    weights["blk.0.ssm_conv1d.bias"] = np.zeros(mixed, np.float32)
    weights["blk.0.ssm_dt.bias"] = np.zeros(heads, np.float32)
    weights["blk.0.ssm_a"] = -np.arange(1, heads + 1, dtype=np.float32)[:, None]
    weights["blk.0.ssm_d"] = np.ones((heads, 1), np.float32)
    weights["blk.0.ssm_norm.weight"] = np.ones((groups, inner // groups), np.float32)
    weights["blk.0.ssm_out.weight"] = _writes_residual(_dense(rng, n_embd, inner, 2.0))
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "granitehybrid", vocabulary, n_embd, 2, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv([0, 2])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_vocab_size(len(vocabulary))
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(inner)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    _finish(writer, weights)
    return path


def write_sinks(
    path: Path,
    vocabulary: Vocabulary,
    seed: int,
    noise: float = 0.0,
    *,
    n_embd: int = 32,
    n_ff: int = 48,
    head_size: int | None = None,
) -> Path:
    """Write a gpt-oss model: a mixture with sinks, and windows of `WINDOW` in every other layer. `noise`: as above.

    `head_size`: of its 4 heads, if they are not a quarter of the model's width.
    """
    n_layer, count = 4, 6
    weights = with_experts(llama_weights(vocabulary, seed, n_embd=n_embd, n_ff=n_ff, n_layer=n_layer), seed, count)
    rng = np.random.default_rng(seed + 1)
    for i in range(n_layer):
        block = f"blk.{i}"
        weights[f"{block}.post_attention_norm.weight"] = weights.pop(f"{block}.ffn_norm.weight")
        weights[f"{block}.ffn_down_exps.weight"][:, 0] = 0.0
        weights[f"{block}.attn_sinks.weight"] = rng.standard_normal(4).astype(np.float32)
        weights[f"{block}.attn_output.bias"] = np.zeros(n_embd, np.float32)
        if head_size is not None:
            for name, heads in (("q", 4), ("k", 2), ("v", 2)):
                weights[f"{block}.attn_{name}.weight"] = _dense(rng, heads * head_size, n_embd, 1.5)
            weights[f"{block}.attn_output.weight"] = _writes_residual(_dense(rng, n_embd, 4 * head_size, 2.0))
        for name, size in (("gate_inp", ()), ("gate_exps", (n_ff,)), ("up_exps", (n_ff,)), ("down_exps", (n_embd,))):
            weights[f"{block}.ffn_{name}.bias"] = np.zeros((count, *size), np.float32)
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "gpt-oss", vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(head_size or n_embd // 4)
    if head_size is not None:
        writer.add_key_length(head_size)
        writer.add_value_length(head_size)
    writer.add_sliding_window(WINDOW)
    writer.add_expert_count(count)
    writer.add_expert_used_count(NUM_USED)
    writer.add_expert_feed_forward_length(n_ff)
    _finish(writer, weights)
    return path


HEAD_LAYERS = (1, 2, 3)
"""Of the target of `head_weights`: what enters them is read."""


def head_weights(vocabulary: Vocabulary, seed: int, *, n_target: int, n_embd: int, n_ff: int = 48) -> Weights:
    """Random weights of an EAGLE-3 head with 4 heads and 2 key-value heads, over a target of states of `n_target`."""
    rng = np.random.default_rng(seed)
    weights = _embedding(rng, len(vocabulary), n_embd, _word_bias(vocabulary), 2.5)
    weights["fc.weight"] = _dense(rng, n_embd, 3 * n_target, 0.5)
    for name in ("attn_norm", "attn_norm_2", "ffn_norm"):
        weights[f"blk.0.{name}.weight"] = np.ones(n_embd, np.float32)
    weights["blk.0.attn_q.weight"] = _dense(rng, n_embd, 2 * n_embd, 1.5)
    weights["blk.0.attn_k.weight"] = _dense(rng, n_embd // 2, 2 * n_embd, 1.5)
    weights["blk.0.attn_v.weight"] = _dense(rng, n_embd // 2, 2 * n_embd)
    weights["blk.0.attn_output.weight"] = _dense(rng, n_embd, n_embd, 2.0)
    weights["blk.0.ffn_gate.weight"] = _dense(rng, n_ff, n_embd)
    weights["blk.0.ffn_up.weight"] = _dense(rng, n_ff, n_embd)
    weights["blk.0.ffn_down.weight"] = _dense(rng, n_embd, n_ff, 2.0)
    return weights


def write_head(
    path: Path,
    vocabulary: Vocabulary,
    weights: Weights,
    *,
    layers: Sequence[int] = HEAD_LAYERS,
    tokens: Sequence[int] | None = None,
    n_target: int = 32,
    arch: str = "eagle3",
    changed: Mapping[str, int] = MappingProxyType({}),
) -> Path:
    """Write an EAGLE-3 head for a target of states of `n_target`.

    With `tokens` it says these alone: row i of its output matrix is token i of them. `changed` are metadata that are
    others than they should be.
    """
    n_embd = weights["output_norm.weight"].shape[0]
    writer = _open(path, arch, vocabulary, n_embd, 1, weights["blk.0.ffn_gate.weight"].shape[0])
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_vocab_size(len(vocabulary))
    writer.add_array(f"{arch}.target_layers", list(layers))
    writer.add_uint32(f"{arch}.target_hidden_size", n_target)
    if tokens is not None:
        writer.add_tensor("d2t", np.array(tokens, np.int64))
    for name, value in changed.items():
        writer.kv_data[0].pop(f"{arch}.{name}", None)
        writer.add_uint32(f"{arch}.{name}", value)
    _finish(writer, weights)
    return path


def mtp_weights(vocabulary: Vocabulary, seed: int, n_embd: int = 32, count: int = 1) -> Weights:
    """Random weights of a hy_v3 model: two layers, then `count` for MTP alone, with output matrices of their own."""
    weights = llama_weights(vocabulary, seed, n_embd=n_embd, n_layer=2 + count)
    for i in range(2 + count):
        weights[f"blk.{i}.attn_q_norm.weight"] = np.ones(n_embd // 4, np.float32)
        weights[f"blk.{i}.attn_k_norm.weight"] = np.ones(n_embd // 4, np.float32)
    for i in range(count):
        weights |= _nextn(np.random.default_rng(seed + i), 2 + i, n_embd)
        weights[f"blk.{2 + i}.nextn.shared_head_head.weight"] = weights["output.weight"]
    return weights


def _nextn(rng: np.random.Generator, layer: int, n_embd: int) -> Weights:
    return {
        f"blk.{layer}.nextn.eh_proj.weight": _dense(rng, n_embd, 2 * n_embd),
        f"blk.{layer}.nextn.enorm.weight": np.ones(n_embd, np.float32),
        f"blk.{layer}.nextn.hnorm.weight": np.ones(n_embd, np.float32),
        f"blk.{layer}.nextn.shared_head_norm.weight": np.ones(n_embd, np.float32),
    }


def write_mtp(
    path: Path,
    vocabulary: Vocabulary,
    weights: Weights,
    arch: str = "hy_v3",
    count: int = 1,
    n_layer: int | None = None,
) -> Path:
    """Write a model of `mtp_weights`. It says that it has `n_layer` layers, of which `count` are for MTP."""
    n_layer = 2 + count if n_layer is None else n_layer
    n_embd = weights["token_embd.weight"].shape[1]
    n_ff = next(matrix.shape[0] for name, matrix in weights.items() if name.endswith("ffn_gate.weight"))
    writer = _open(path, arch, vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_expert_feed_forward_length(n_ff)
    writer.add_uint32(f"{arch}.nextn_predict_layers", count)
    _finish(writer, weights)
    return path


def write_mtp_hybrid(
    path: Path,
    vocabulary: Vocabulary,
    seed: int,
    noise: float = 0.0,
    *,
    n_embd: int = 32,
    n_ff: int = 48,
    heads: int = 4,
) -> Path:
    """Write a qwen35 model: a gated delta net (recurrent), a layer of attention, and one for MTP. `noise`: as above."""
    kernel, size, groups = 4, n_embd // 4, 2
    weights = llama_weights(vocabulary, seed, n_embd=n_embd, n_ff=n_ff, n_layer=3)
    rng = np.random.default_rng(seed)
    for i in range(3):
        weights[f"blk.{i}.post_attention_norm.weight"] = weights.pop(f"blk.{i}.ffn_norm.weight")
        weights[f"blk.{i}.attn_q.weight"] = _dense(rng, 2 * n_embd, n_embd, 1.5)  # half of it is a gate
        weights[f"blk.{i}.attn_q_norm.weight"] = np.ones(n_embd // 4, np.float32)
        weights[f"blk.{i}.attn_k_norm.weight"] = np.ones(n_embd // 4, np.float32)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "attn_q_norm", "attn_k_norm"):
        del weights[f"blk.0.{name}.weight"]
    weights["blk.0.attn_qkv.weight"] = _dense(rng, 2 * size * groups + size * heads, n_embd)
    weights["blk.0.attn_gate.weight"] = _dense(rng, size * heads, n_embd)
    weights["blk.0.ssm_conv1d.weight"] = _dense(rng, 2 * size * groups + size * heads, kernel)
    weights["blk.0.ssm_dt.bias"] = np.zeros(heads, np.float32)
    weights["blk.0.ssm_a"] = -np.arange(1, heads + 1, dtype=np.float32)
    weights["blk.0.ssm_beta.weight"] = _dense(rng, heads, n_embd)
    weights["blk.0.ssm_alpha.weight"] = _dense(rng, heads, n_embd)
    weights["blk.0.ssm_norm.weight"] = np.ones(size, np.float32)
    weights["blk.0.ssm_out.weight"] = _writes_residual(_dense(rng, n_embd, size * heads, 2.0))
    weights = noisy(weights, noise, seed) if noise else weights
    writer = _open(path, "qwen35", vocabulary, n_embd, 3, n_ff)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_key_length(n_embd // 4)
    writer.add_value_length(n_embd // 4)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(n_embd // 4)
    writer.add_rope_dimension_sections([n_embd // 16, n_embd // 32, n_embd // 32, 0])
    writer.add_ssm_conv_kernel(kernel)
    writer.add_ssm_inner_size(size * heads)
    writer.add_ssm_state_size(size)
    writer.add_ssm_group_count(groups)
    writer.add_ssm_time_step_rank(heads)
    writer.add_uint32("qwen35.full_attention_interval", 2)
    writer.add_uint32("qwen35.nextn_predict_layers", 1)
    _finish(writer, {**weights, **_nextn(rng, 2, n_embd)})
    return path


def write_embedding_model(path: Path, seed: int, vocabulary: Vocabulary | None = None, num_scores: int = 0) -> Path:
    """Write a bert model: it has no causal attention and no output matrix, and cannot generate.

    Without a `vocabulary` it has a WordPiece one. With `num_scores` it is a reranker.
    """
    n_embd, n_ff = 32, 48
    rng = np.random.default_rng(seed)
    vocabulary = vocabulary or word_piece_vocabulary()
    writer = _open(path, "bert", vocabulary, n_embd, 1, n_ff)
    writer.add_head_count(4)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_pooling_type(gguf.PoolingType.RANK if num_scores else gguf.PoolingType.MEAN)
    writer.add_token_type_count(2)
    writer.add_pad_token_id(0)
    writer.add_mask_token_id(4)
    weights = {
        "token_embd.weight": _dense(rng, len(vocabulary), n_embd),
        "token_types.weight": _dense(rng, 2, n_embd),
        "position_embd.weight": _dense(rng, N_CTX_TRAIN, n_embd),
        "blk.0.attn_q.weight": _dense(rng, n_embd, n_embd),
        "blk.0.attn_k.weight": _dense(rng, n_embd, n_embd),
        "blk.0.attn_v.weight": _dense(rng, n_embd, n_embd),
        "blk.0.attn_output.weight": _dense(rng, n_embd, n_embd),
        "blk.0.ffn_up.weight": _dense(rng, n_ff, n_embd),
        "blk.0.ffn_down.weight": _dense(rng, n_embd, n_ff),
    }
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        weights[f"{name}.weight"] = np.ones(n_embd, np.float32)
        weights[f"{name}.bias"] = np.zeros(n_embd, np.float32)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        weights[f"blk.0.{name}.bias"] = np.zeros(len(weights[f"blk.0.{name}.weight"]), np.float32)
    if num_scores:
        writer.add_classifier_output_labels([f"label {i}" for i in range(num_scores)])
        weights["cls.output.weight"] = _dense(rng, num_scores, n_embd)
        weights["cls.output.bias"] = np.zeros(num_scores, np.float32)
    _finish(writer, weights)
    return path


def write_t5(path: Path, seed: int, decodes: bool = True) -> Path:
    """Write a model with an encoder, and with a decoder that attends to it unless `decodes` is False."""
    n_embd, n_ff, n_layer = 32, 48, 1
    rng, vocabulary = np.random.default_rng(seed), word_vocabulary()
    writer = _open(path, "t5" if decodes else "t5encoder", vocabulary, n_embd, n_layer, n_ff)
    writer.add_head_count(4)
    writer.add_key_length(8)
    writer.add_value_length(8)
    writer.add_layer_norm_eps(1e-6)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_relative_attn_buckets_count(32)
    if decodes:
        writer.add_decoder_start_token_id(0)
        writer.add_decoder_block_count(n_layer)
    weights = {
        "token_embd.weight": _dense(rng, len(vocabulary), n_embd),
        "output.weight": _dense(rng, len(vocabulary), n_embd),
    }
    for part in ("enc", "dec") if decodes else ("enc",):
        block = f"{part}.blk.0."
        norms = [f"{part}.output_norm", f"{block}attn_norm", f"{block}ffn_norm"]
        matrices = [f"{block}attn_{name}" for name in "qkvo"]
        if part == "dec":
            norms.append(f"{block}cross_attn_norm")
            matrices += [f"{block}cross_attn_{name}" for name in "qkvo"]
        weights.update({f"{name}.weight": np.ones(n_embd, np.float32) for name in norms})
        weights.update({f"{name}.weight": _dense(rng, n_embd, n_embd) for name in matrices})
        weights[f"{block}attn_rel_b.weight"] = _dense(rng, 32, 4)
        weights.update({f"{block}ffn_{name}.weight": _dense(rng, n_ff, n_embd) for name in ("up", "gate")})
        weights[f"{block}ffn_down.weight"] = _dense(rng, n_embd, n_ff)
    _finish(writer, weights)
    return path


def write_lora(path: Path, weights: Weights, seed: int, rank: int = 4) -> Path:
    """Write a LoRA adapter for a llama-architecture model: not a model by itself."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type(gguf.GGUFType.ADAPTER)
    writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
    writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, float(rank))
    tensors: Weights = {}
    for name in ("blk.0.attn_q.weight", "blk.0.attn_output.weight"):
        rows, columns = weights[name].shape
        tensors[f"{name}.lora_a"] = _dense(rng, rank, columns)
        tensors[f"{name}.lora_b"] = _writes_residual(_dense(rng, rows, rank))
    _finish(writer, tensors)
    return path


def write_clip(path: Path, seed: int, n_out: int = 32) -> Path:
    """Write what reads images for a model of that width, in the form of LLaVA 1.5: four patches of 4 x 4 pixels."""
    size, patch, n_embd, n_ff, n_layer = 8, 4, 16, 32, 2
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "clip")
    writer.add_name(path.stem)
    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", True)
    for name, number in (
        *(("image_size", size), ("patch_size", patch), ("embedding_length", n_embd), ("feed_forward_length", n_ff)),
        *(("projection_dim", n_out), ("block_count", n_layer), ("attention.head_count", 2)),
    ):
        writer.add_uint32(f"clip.vision.{name}", number)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.25, 0.25, 0.25])
    weights: Weights = {
        "v.patch_embd.weight": _dense(rng, n_embd, 3 * patch**2).reshape(n_embd, 3, patch, patch),
        "v.position_embd.weight": _dense(rng, (size // patch) ** 2, n_embd),
        "mm.0.weight": _dense(rng, n_out, n_embd, 2.0),
        "mm.0.bias": np.zeros(n_out, np.float32),
        "mm.2.weight": _dense(rng, n_out, n_out, 2.0),
        "mm.2.bias": np.zeros(n_out, np.float32),
    }
    for i in range(n_layer):
        for name, rows, columns in (
            *(("attn_q", n_embd, n_embd), ("attn_k", n_embd, n_embd), ("attn_v", n_embd, n_embd)),
            *(("attn_out", n_embd, n_embd), ("ffn_up", n_ff, n_embd), ("ffn_down", n_embd, n_ff)),
        ):
            weights[f"v.blk.{i}.{name}.weight"] = _dense(rng, rows, columns)
            weights[f"v.blk.{i}.{name}.bias"] = np.zeros(rows, np.float32)
        for name in ("ln1", "ln2"):
            weights[f"v.blk.{i}.{name}.weight"] = np.ones(n_embd, np.float32)
            weights[f"v.blk.{i}.{name}.bias"] = np.zeros(n_embd, np.float32)
    _finish(writer, weights)
    return path


def split(model: Path, folder: Path, count: int = 2) -> Path:
    """Write a model in parts, as llama-gguf-split does, and give the first of them."""
    reader = gguf.GGUFReader(model)
    names = [folder / f"part-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    for number, path in enumerate(names):
        writer = gguf.GGUFWriter(path, reader.fields["general.architecture"].contents())
        for name, field in reader.fields.items() if number == 0 else ():
            if not name.startswith("GGUF.") and name != "general.architecture":
                kind = field.types[0]
                writer.add_key_value(name, field.contents(), kind, field.types[1] if len(field.types) > 1 else None)
        writer.add_uint16("split.no", number)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", len(reader.tensors))
        for tensor in reader.tensors[number::count]:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return names[0]
