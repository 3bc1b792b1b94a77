"""Writes a model with random weights in the shapes of a real one, for measuring speed: its text means nothing.

``python scripts/random_model.py OUT SHAPES --tokenizer MODEL`` has the sizes and the graph of the model SHAPES, with
fewer layers and fewer experts, and the tokenizer of another GGUF file. ``scripts/batch_costs.py OUT``,
``scripts/rounds.py OUT`` and ``scripts/many_texts.py OUT`` measure it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Collection
from typing import Any

import gguf
import numpy as np

BLOCKS = {"Q4_K": (256, 144), "MXFP4": (32, 17), "Q8_0": (32, 34)}  # values and bytes of a block
TIED = ("gemma3", "lfm2", "granitehybrid")  # architectures whose output matrix is that of the embeddings
SMALL = 2e-4  # a scale with which the numbers of all layers stay of usual size


class File:
    """A GGUF file that gets sizes and random weights.

    Args:
        given: the script's arguments.
        architecture: llama.cpp's name for the graph.
        others: the type of the matrices that belong to no expert, if it is another.
        sizes: the numbers of layers, of values in a state, and so on, by the methods of ``gguf.GGUFWriter`` that write
            them.
    """

    def __init__(self, given: argparse.Namespace, architecture: str, others: str = "", **sizes: Any) -> None:
        self.writer = gguf.GGUFWriter(given.out, architecture)
        self.architecture = architecture
        self._types = {True: given.type, False: others or given.type}  # of experts, and of all else
        self._rng = np.random.default_rng(1)
        source = gguf.GGUFReader(given.tokenizer)
        for name, field in source.fields.items():
            if name.startswith("tokenizer."):
                self.writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:2])
        self.writer.add_name(f"random {given.shapes}")
        for name, value in {"layer_norm_rms_eps": 1e-6, "context_length": 16384, **sizes}.items():
            getattr(self.writer, f"add_{name}")(value)
        self._width = sizes["embedding_length"]
        num_tokens = len(source.fields["tokenizer.ggml.tokens"].data)
        for name in ("token_embd",) if architecture in TIED else ("token_embd", "output"):
            self.matrix(name, num_tokens, self._width)

    def matrix(self, name: str, *shape: int) -> None:
        """A matrix [rows, columns], or one for each expert [experts, rows, columns]."""
        kind = self._types[len(shape) == 3]
        values, size = BLOCKS[kind]
        blocks = self._rng.integers(0, 256, (int(np.prod(shape, dtype=np.int64)) // values, size), dtype=np.uint8)
        if kind == "MXFP4":
            blocks[:, 0] = 115  # 2 to the power of -12
        else:
            scales = np.array([SMALL, 5 * SMALL] if kind == "Q4_K" else [SMALL / 8], np.float16)
            blocks[:, : scales.nbytes] = np.frombuffer(scales.tobytes(), np.uint8)
        stored = blocks.reshape(*shape[:-1], shape[-1] // values * size)
        self.writer.add_tensor(f"{name}.weight", stored, raw_dtype=gguf.GGMLQuantizationType[kind])

    def floats(self, name: str, *shape: int) -> None:
        """Random numbers of a router, a convolution or a bias, as floats. The name is whole."""
        self.writer.add_tensor(name, self._rng.normal(0, 0.05, shape).astype(np.float32))

    def ones(self, names: Collection[str], size: int, of: str = "") -> None:
        """The weights [size] of norms."""
        for name in names:
            self.writer.add_tensor(f"{of}{name}.weight", np.ones(size, np.float32))

    def attention(self, of: str, heads: int, heads_of_keys: int, head: int, gates: int = 1, norms: bool = True) -> None:
        """An attention, with `gates` matrices of the queries' size."""
        for name, rows in (("q", gates * heads), ("k", heads_of_keys), ("v", heads_of_keys)):
            self.matrix(f"{of}attn_{name}", rows * head, self._width)
        self.matrix(f"{of}attn_output", self._width, heads * head)
        if norms:
            self.ones(("attn_q_norm", "attn_k_norm"), head, of)

    def feed_forward(self, of: str, size: int, ending: str = "") -> None:
        """A feed-forward layer of `size` values."""
        for name in ("gate", "up"):
            self.matrix(f"{of}ffn_{name}{ending}", size, self._width)
        self.matrix(f"{of}ffn_down{ending}", self._width, size)

    def experts(self, of: str, count: int, size: int) -> None:
        """A router and its experts, feed-forward layers of `size` values."""
        self.floats(f"{of}ffn_gate_inp.weight", count, self._width)
        for name in ("gate", "up"):
            self.matrix(f"{of}ffn_{name}_exps", count, size, self._width)
        self.matrix(f"{of}ffn_down_exps", count, self._width, size)

    def decay(self, of: str, *shape: int) -> None:
        """How fast each head forgets, from slowly to fast."""
        self.writer.add_tensor(f"{of}ssm_a", -np.linspace(1, 8, shape[0], dtype=np.float32).reshape(shape))

    def close(self) -> None:
        """Write everything."""
        self.ones(("token_embd_norm" if self.architecture == "lfm2" else "output_norm",), self._width)
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def qwen3(given: argparse.Namespace) -> File:
    """Qwen3-4B: a dense model, with which the others are compared."""
    file = File(given, "qwen3", **transformer(18, 2560, 9728, 32, 8, 128))
    for of in layers(18):
        file.ones(("attn_norm", "ffn_norm"), 2560, of)
        file.attention(of, 32, 8, 128)
        file.feed_forward(of, 9728)
    return file


def qwen3moe(given: argparse.Namespace) -> File:
    """Qwen3-30B-A3B: a mixture."""
    file = File(given, "qwen3moe", **transformer(12, 2048, 768, 16, 4, 128), **mixture(64, 8, 768))
    for of in layers(12):
        file.ones(("attn_norm", "ffn_norm"), 2048, of)
        file.attention(of, 16, 4, 128)
        file.experts(of, 64, 768)
    return file


def gpt_oss(given: argparse.Namespace) -> File:
    """gpt-oss-20b: a mixture with sinks, and windows of 128 in every second layer."""
    width, heads = 2880, 64
    sizes = transformer(8, width, 2880, heads, 8, 64) | mixture(32, 4, 2880)
    file = File(given, "gpt-oss", "Q8_0", **sizes, sliding_window=128, rope_dimension_count=64)
    for of in layers(8):
        file.ones(("attn_norm", "post_attention_norm"), width, of)
        file.attention(of, heads, 8, 64, norms=False)
        file.experts(of, 32, 2880)
        file.floats(f"{of}attn_sinks.weight", heads)
        for name, size in (("q", heads * 64), ("k", 512), ("v", 512), ("output", width)):
            file.floats(f"{of}attn_{name}.bias", size)
        file.floats(f"{of}ffn_gate_inp.bias", 32)
        for name in ("gate", "up", "down"):
            file.floats(f"{of}ffn_{name}_exps.bias", 32, 2880)
    return file


def gemma3(given: argparse.Namespace) -> File:
    """Gemma 3 4B: windows of 1,024 in five layers of six."""
    file = File(given, "gemma3", **transformer(18, 2560, 10240, 8, 4, 256), sliding_window=1024)
    for of in layers(18):
        file.ones(("attn_norm", "ffn_norm", "post_attention_norm", "post_ffw_norm"), 2560, of)
        file.attention(of, 8, 4, 256)
        file.feed_forward(of, 10240)
    return file


def qwen35(given: argparse.Namespace) -> File:
    """Qwen3.5-4B: delta nets, with attention in one layer of four."""
    file = File(given, "qwen35", **transformer(16, 2560, 9216, 16, 4, 256), **DELTA_NET)
    for layer, of in enumerate(layers(16)):
        file.ones(("attn_norm", "post_attention_norm"), 2560, of)
        delta_net_or_attention(file, layer, of, 2560, 4)
        file.feed_forward(of, 9216)
    return file


def qwen35moe(given: argparse.Namespace) -> File:
    """Qwen3.5-35B-A3B: delta nets in a mixture with a shared expert."""
    sizes = transformer(10, 2048, 512, 16, 2, 256) | mixture(64, 8, 512)
    file = File(given, "qwen35moe", **sizes, **DELTA_NET, expert_shared_feed_forward_length=512)
    for layer, of in enumerate(layers(10)):
        file.ones(("attn_norm", "post_attention_norm"), 2048, of)
        delta_net_or_attention(file, layer, of, 2048, 2)
        file.experts(of, 64, 512)
        file.feed_forward(of, 512, "_shexp")
        file.floats(f"{of}ffn_gate_inp_shexp.weight", 2048)
    return file


def lfm2(given: argparse.Namespace) -> File:
    """LFM2-2.6B: short convolutions, with attention in one layer of four."""
    attention = {2, 5, 9, 13, 17}
    sizes = transformer(20, 2048, 10752, 32, [8 * (layer in attention) for layer in range(20)])
    file = File(given, "lfm2", **sizes, shortconv_l_cache=3)
    for layer, of in enumerate(layers(20)):
        file.ones(("attn_norm", "ffn_norm"), 2048, of)
        if layer in attention:
            file.attention(of, 32, 8, 64)
        else:
            file.floats(f"{of}shortconv.conv.weight", 2048, 3)
            file.matrix(f"{of}shortconv.in_proj", 3 * 2048, 2048)
            file.matrix(f"{of}shortconv.out_proj", 2048, 2048)
        file.feed_forward(of, 10752)
    return file


def granite(given: argparse.Namespace) -> File:
    """Granite 4.0 H Micro: scans of Mamba-2, with attention in one layer of ten."""
    attention, inner, heads = {5, 15}, 4096, 64
    sizes = transformer(20, 2048, 8192, 32, [8 * (layer in attention) for layer in range(20)])
    file = File(given, "granitehybrid", **sizes, **scan(inner, 128, 1, heads))
    mixed = inner + 2 * 128  # what the convolution mixes
    for layer, of in enumerate(layers(20)):
        file.ones(("attn_norm", "ffn_norm"), 2048, of)
        if layer in attention:
            file.attention(of, 32, 8, 64, norms=False)
        else:
            file.matrix(f"{of}ssm_in", inner + mixed + heads, 2048)
            file.floats(f"{of}ssm_conv1d.weight", mixed, 4)
            for name, shape in (("conv1d.bias", (mixed,)), ("dt.bias", (heads,)), ("d", (heads, 1))):
                file.floats(f"{of}ssm_{name}", *shape)
            file.decay(of, heads, 1)
            file.writer.add_tensor(f"{of}ssm_norm.weight", np.ones((1, inner), np.float32))
            file.matrix(f"{of}ssm_out", 2048, inner)
        file.feed_forward(of, 8192)
    return file


def layers(count: int) -> list[str]:
    """How the names of each layer's tensors begin."""
    return [f"blk.{layer}." for layer in range(count)]


def transformer(
    count: int, width: int, ffn: int, heads: int, heads_of_keys: int | list[int], head: int = 0
) -> dict[str, Any]:
    """The sizes that all models have. `head` is how many numbers an attention's head has, if not ``width / heads``."""
    sizes: dict[str, Any] = {"block_count": count, "embedding_length": width, "feed_forward_length": ffn}
    sizes |= {"head_count": heads, "head_count_kv": heads_of_keys, "rope_freq_base": 1e6}
    return sizes | ({"key_length": head, "value_length": head} if head else {})


def mixture(experts: int, used: int, ffn: int) -> dict[str, Any]:
    """The sizes of a mixture."""
    return {"expert_count": experts, "expert_used_count": used, "expert_feed_forward_length": ffn}


def scan(inner: int, state: int, groups: int, heads: int) -> dict[str, Any]:
    """The sizes of a memory that each token changes."""
    sizes = {"ssm_conv_kernel": 4, "ssm_inner_size": inner, "ssm_state_size": state, "ssm_group_count": groups}
    return sizes | {"ssm_time_step_rank": heads}


DELTA_NET: dict[str, Any] = {
    "rope_dimension_count": 64,
    "rope_dimension_sections": [11, 11, 10, 0],
    "full_attention_interval": 4,
    **scan(4096, 128, 16, 32),
}


def delta_net_or_attention(file: File, layer: int, of: str, width: int, heads_of_keys: int) -> None:
    """A layer of Qwen3.5: every fourth is an attention, whose queries have gates."""
    if layer % 4 == 3:
        file.attention(of, 16, heads_of_keys, 256, gates=2)
        return
    inner, heads = 4096, 32
    mixed = inner + 2 * 128 * 16  # what the convolution mixes: values, keys and queries
    file.matrix(f"{of}attn_qkv", mixed, width)
    file.matrix(f"{of}attn_gate", inner, width)
    file.floats(f"{of}ssm_conv1d.weight", mixed, 4)
    file.floats(f"{of}ssm_dt.bias", heads)
    file.decay(of, heads)
    for name in ("alpha", "beta"):
        file.matrix(f"{of}ssm_{name}", heads, width)
    file.ones(("ssm_norm",), 128, of)
    file.matrix(f"{of}ssm_out", width, inner)


SHAPES: dict[str, Callable[[argparse.Namespace], File]] = {
    "qwen3-4b": qwen3,
    "qwen3-30b-a3b": qwen3moe,
    "gpt-oss-20b": gpt_oss,
    "gemma-3-4b": gemma3,
    "qwen3.5-4b": qwen35,
    "qwen3.5-35b-a3b": qwen35moe,
    "lfm2-2.6b": lfm2,
    "granite-4.0-h-micro": granite,
}


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("shapes", choices=SHAPES, help="the model whose shapes it has")
    parser.add_argument("--tokenizer", required=True, metavar="MODEL", help="the GGUF file whose tokenizer it gets")
    parser.add_argument(
        "--type", choices=BLOCKS, default="Q4_K", help="of the experts and, but for gpt-oss (Q8_0), all matrices"
    )
    given = parser.parse_args()
    SHAPES[given.shapes](given).close()


if __name__ == "__main__":
    main()
