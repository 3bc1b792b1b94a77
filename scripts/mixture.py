"""Writes a mixture of experts with random weights, for measuring speed: its text means nothing.

``python scripts/mixture.py OUT --tokenizer MODEL`` has the shapes of Qwen3-30B-A3B, with fewer layers and experts, and
the tokenizer of another GGUF file. ``--shapes gpt-oss-20b`` has those of gpt-oss-20b, in a third of its layers, in the
same graph. ``scripts/batch_costs.py OUT`` measures it.
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

KINDS = {"Q4_K": (256, 144), "MXFP4": (32, 17), "Q8_0": (32, 34)}  # values and bytes of a block
SMALL = 2e-4  # a scale with which the numbers of all layers stay of usual size


@dataclasses.dataclass(frozen=True)
class Shapes:
    """The sizes of a mixture.

    Attributes:
        layers: the number of layers.
        experts: the number of experts in each layer.
        used: how many of them a token uses.
        width: how many numbers a state has.
        ffn: the size of an expert's feed-forward layer.
        head: how many numbers an attention head has.
        heads: the number of attention heads.
        heads_of_keys: the number of heads for keys and values.
    """

    layers: int
    experts: int
    used: int
    width: int
    ffn: int
    head: int
    heads: int
    heads_of_keys: int


SHAPES = {
    "qwen3-30b-a3b": Shapes(12, 64, 8, 2048, 768, head=128, heads=16, heads_of_keys=4),
    "gpt-oss-20b": Shapes(8, 32, 4, 2880, 2880, head=64, heads=64, heads_of_keys=8),
}


class Weights:
    """Makes random weights of one type."""

    def __init__(self, kind: str) -> None:
        self.kind = gguf.GGMLQuantizationType[kind]
        self._name = kind
        self._rng = np.random.default_rng(1)

    def __call__(self, *shape: int) -> npt.NDArray[np.uint8]:
        """Random weights as rows of whole blocks: `shape` in values, the result in bytes."""
        values, size = KINDS[self._name]
        count = int(np.prod(shape, dtype=np.int64)) // values
        blocks = self._rng.integers(0, 256, (count, size), dtype=np.uint8)
        if self._name == "MXFP4":
            blocks[:, 0] = 115  # 2 to the power of -12
        else:
            scales = np.array([SMALL, 5 * SMALL] if self._name == "Q4_K" else [SMALL / 8], np.float16)
            blocks[:, : scales.nbytes] = np.frombuffer(scales.tobytes(), np.uint8)
        return blocks.reshape(*shape[:-1], shape[-1] // values * size)

    def floats(self, *shape: int) -> npt.NDArray[np.float32]:
        """Random weights of a router, as floats."""
        return self._rng.normal(0, 0.05, shape).astype(np.float32)


def write(given: argparse.Namespace) -> None:
    """Write the file."""
    source = gguf.GGUFReader(given.tokenizer)
    writer, weights = gguf.GGUFWriter(given.out, "qwen3moe"), Weights(given.type)
    shapes = SHAPES[given.shapes]
    writer.add_name("random mixture")
    writer.add_context_length(4096)
    writer.add_embedding_length(shapes.width)
    writer.add_block_count(shapes.layers)
    writer.add_feed_forward_length(shapes.ffn)
    writer.add_expert_feed_forward_length(shapes.ffn)
    writer.add_expert_count(shapes.experts)
    writer.add_expert_used_count(shapes.used)
    writer.add_head_count(shapes.heads)
    writer.add_head_count_kv(shapes.heads_of_keys)
    writer.add_key_length(shapes.head)
    writer.add_value_length(shapes.head)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    for name, field in source.fields.items():
        if name.startswith("tokenizer."):
            writer.add_key_value(name, field.contents(), field.types[0], *field.types[1:2])
    _add_tensors(writer, weights, shapes, len(source.fields["tokenizer.ggml.tokens"].data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tensors(writer: Any, weights: Weights, shapes: Shapes, num_tokens: int) -> None:
    width, ffn, experts = shapes.width, shapes.ffn, shapes.experts
    queries, keys = shapes.heads * shapes.head, shapes.heads_of_keys * shapes.head
    matrices = {"token_embd": (num_tokens, width), "output": (num_tokens, width)}
    norms = {"output_norm": width}
    for layer in range(shapes.layers):
        of = f"blk.{layer}."
        norms |= {f"{of}{name}": width for name in ("attn_norm", "ffn_norm")}
        norms |= {f"{of}{name}": shapes.head for name in ("attn_q_norm", "attn_k_norm")}
        matrices |= {f"{of}attn_{name}": (rows, width) for name, rows in (("q", queries), ("k", keys), ("v", keys))}
        matrices |= {f"{of}attn_output": (width, queries), f"{of}ffn_down_exps": (experts, width, ffn)}
        matrices |= {f"{of}ffn_{name}_exps": (experts, ffn, width) for name in ("gate", "up")}
        writer.add_tensor(f"{of}ffn_gate_inp.weight", weights.floats(experts, width))
    for name, size in norms.items():
        writer.add_tensor(f"{name}.weight", np.ones(size, np.float32))
    for name, shape in matrices.items():
        writer.add_tensor(f"{name}.weight", weights(*shape), raw_dtype=weights.kind)


def main() -> None:
    """Run the script."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--tokenizer", required=True, metavar="MODEL", help="the GGUF file whose tokenizer it gets")
    parser.add_argument("--type", choices=sorted(KINDS), default="Q4_K", help="of all matrices but the routers")
    parser.add_argument("--shapes", choices=SHAPES, default=next(iter(SHAPES)), help="the model whose shapes it has")
    write(parser.parse_args())


if __name__ == "__main__":
    main()
