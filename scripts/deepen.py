"""Writes the same function at the cost of a larger model: ``python scripts/deepen.py IN OUT LAYERS``.

Layers are appended that add nothing: copies of the model's own, of which the last matrix of the attention and that of
the feed-forward part are zero (a block of zeros is exactly 0 in every type). So texts and acceptance stay those of the
model, while bytes and time are those of so many layers. Logits are equal up to rounding: llama.cpp computes fewer rows
in a model's last layer, which is another one now. A figure of such a file is the speed of that size and the acceptance
of this pair; say so wherever it is shown. It needs the package gguf, which the extra ``test`` installs.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gguf
import numpy as np

_LAST = ("attn_output", "ffn_down")
"""The beginnings of the names of matrices whose results are added to the residual stream, and of their biases."""


def deepened(source: Path, destination: Path, layers: int) -> None:
    """Write the model `source` with `layers` layers.

    Raises:
        ValueError: it has as many already, is in several files, or has layers without these two matrices.
    """
    if destination.exists() and destination.samefile(source):
        raise ValueError(f"the output {destination} is the input: name another file")
    reader = gguf.GGUFReader(source)
    values = {field.name: field.contents() for field in reader.fields.values()}
    architecture = values["general.architecture"]
    count = int(values[f"{architecture}.block_count"])
    if values.get("split.count", 1) > 1:
        raise ValueError(f"{source} is one of {values['split.count']} parts: merge them first")
    if layers <= count:
        raise ValueError(f"{source} has {count} layers: give more than that, not {layers}")
    blocks = [[tensor for tensor in reader.tensors if tensor.name.startswith(f"blk.{i}.")] for i in range(count)]
    for number, block in enumerate(blocks):
        if not all(any(_part(tensor).startswith(last) for tensor in block) for last in _LAST):
            raise ValueError(f"layer {number} of {source} lacks attention or a feed-forward part, and cannot be copied")
    writer = gguf.GGUFWriter(destination, architecture)
    writer.data_alignment = reader.alignment
    changed = {
        "general.name": f"{values.get('general.name', architecture)}, the same function in {layers} layers",
        f"{architecture}.block_count": layers,
    }
    for field in reader.fields.values():
        if field.name == "general.architecture" or field.name.startswith("GGUF."):
            continue  # the writer adds these itself
        value = changed.pop(field.name, values[field.name])
        if field.name.startswith(f"{architecture}.") and isinstance(value, list) and len(value) == count:
            value = [value[i % count] for i in range(layers)]  # one for each layer
        writer.add_key_value(field.name, value, field.types[0], sub_type=field.types[-1] if field.types[1:] else None)
    for name, value in changed.items():
        writer.add_string(name, value)
    added = [(f"blk.{i}.{_part(tensor)}", tensor) for i in range(count, layers) for tensor in blocks[i % count]]
    tensors = [*((tensor.name, tensor) for tensor in reader.tensors), *added]
    for name, tensor in tensors:
        data = tensor.data
        writer.add_tensor_info(name, data.shape, data.dtype, data.nbytes, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for number, (_, tensor) in enumerate(tensors):
        is_zero = number >= len(reader.tensors) and _part(tensor).startswith(_LAST)
        writer.write_tensor_data(np.zeros_like(tensor.data) if is_zero else tensor.data)
    writer.close()


def _part(tensor: Any) -> str:
    """The name of a tensor within its layer."""
    part: str = tensor.name.split(".", 2)[2]
    return part


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="IN", help="a GGUF model")
    parser.add_argument("destination", type=Path, metavar="OUT", help="the file to write")
    parser.add_argument("layers", type=int, metavar="LAYERS", help="how many it is to have")
    given = parser.parse_args()
    try:
        deepened(given.source, given.destination, given.layers)
    except ValueError as error:
        parser.error(str(error))
    print(f"{given.destination}: {given.destination.stat().st_size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
