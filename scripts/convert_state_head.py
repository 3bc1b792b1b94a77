"""Makes a GGUF of a public Medusa or Hydra head: ``python scripts/convert_state_head.py HEAD TARGET.gguf OUT.gguf``.

HEAD is the file with the head's weights, of safetensors or of PyTorch: ``medusa_lm_head.pt`` or ``hydra_lm_head.pt``.
The names of its tensors are those of FasterDecoding/Medusa (medusa/model/medusa_model.py, MedusaModel.medusa_head) and
of zankner/Hydra (hydra/model/hydra_heads/mlp_head.py, HydraMLP). Other forms are refused by name: Hydra++ has a layer
with attention before its heads (HydraPrefixMLP), which is not computed here. TARGET is the GGUF of the model that the
head was trained for, of which the tokens are read. The script needs the package gguf and, for files of PyTorch, torch:
both come with the extra ``train``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from specllama.backend.replacing import replacing
from specllama.models.gguf_values import architecture_of, read_whole_header
from specllama.models.state_head_file import ARCHITECTURES, vocabulary_hash

TYPES = ("Q8_0", "Q4_0", "F16", "F32")
_BLOCK = 32  # numbers in a block of the quantized types
_DTYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_MEDUSA = re.compile(r"(?:medusa_head\.)?(\d+)\.(\d+)\.(?:(linear)\.)?(weight|bias)")
_HYDRA = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
_HYDRA_OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(weight|bias)")
_NAMES = {"linear": "linear", "res_connection": "straight"}

Floats = npt.NDArray[np.float32]


@dataclasses.dataclass(frozen=True)
class Weight:
    """A tensor of the head: its shape, and what reads its numbers."""

    shape: tuple[int, ...]
    read: Callable[[], Floats]


def read_weights(path: Path) -> dict[str, Weight]:
    """The tensors of a file, by their names.

    Raises:
        ValueError: it is damaged, or has numbers of another type.
        OSError: it cannot be read.
    """
    return _safetensors(path) if path.suffix == ".safetensors" else _of_torch(path)


def _safetensors(path: Path) -> dict[str, Weight]:
    """The format is 8 bytes with the length of a header in JSON, the header, and the numbers."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            raise ValueError(f"{path} is damaged: it ends before its header does")
        header: dict[str, Any] = json.loads(file.read(length))
    header.pop("__metadata__", None)
    found = {}
    for name, said in header.items():
        dtype, shape, (begin, end) = said["dtype"], tuple(said["shape"]), said["data_offsets"]
        if dtype not in _DTYPES:
            raise ValueError(f"{path}: {name} is of the type {dtype}, and must be one of {', '.join(_DTYPES)}")
        begin, end = begin + 8 + length, end + 8 + length
        if not 0 <= begin <= end <= size or end - begin != math.prod(shape) * _DTYPES[dtype].itemsize:
            raise ValueError(f"{path} is damaged: {name} is not where it should be")
        found[name] = Weight(shape, _reader(path, dtype, begin, shape))
    return found


def _reader(path: Path, dtype: str, begin: int, shape: tuple[int, ...]) -> Callable[[], Floats]:
    def read() -> Floats:
        numbers = np.memmap(path, _DTYPES[dtype], "r", begin, shape)
        if dtype == "BF16":
            return (numbers.astype(np.uint32) << 16).view(np.float32)
        return numbers.astype(np.float32)

    return read


def _of_torch(path: Path) -> dict[str, Weight]:
    import torch

    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise ValueError(f"{path} is no file of tensors of PyTorch: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(one, torch.Tensor) for one in found.values()):
        raise ValueError(f"{path} holds no tensors by name: give the file of the head's weights")
    return {name: Weight(tuple(one.shape), _reader_of_torch(one)) for name, one in found.items()}


def _reader_of_torch(tensor: Any) -> Callable[[], Floats]:
    return lambda: np.asarray(tensor.float().numpy(), np.float32)


def named(weights: Mapping[str, Weight], path: Path) -> tuple[str, dict[str, Weight]]:
    """The kind of head, and the tensors by the names that they have in the GGUF.

    Raises:
        ValueError: a tensor belongs to no such head.
    """
    found: dict[str, Weight] = {}
    for name, weight in weights.items():
        if match := _HYDRA.fullmatch(name):
            becomes = f"place.{match[1]}.{match[2]}.{_NAMES[match[3]]}.{match[4]}"
        elif match := _HYDRA_OUTPUT.fullmatch(name):
            becomes = f"place.{match[1]}.output.{match[2]}"
        elif match := _MEDUSA.fullmatch(name):
            becomes = f"place.{match[1]}.{f'{match[2]}.linear' if match[3] else 'output'}.{match[4]}"
        else:
            why = ": Hydra++ has a layer with attention" if name.startswith("prefix_embeding_layer.") else ""
            raise ValueError(f"{path} has a tensor {name}, which no Medusa or Hydra head here has{why}")
        if becomes in found:
            raise ValueError(f"{path} has more than one tensor that becomes {becomes}")
        found[becomes] = weight
    kind = "hydra" if any(".straight." in name for name in found) else "medusa"
    return kind, found


def sizes_of(found: Mapping[str, Weight]) -> tuple[int, int]:
    """The number of places, and the number of layers of each place."""
    of_place = [name.split(".") for name in found]
    places = 1 + max((int(parts[1]) for parts in of_place), default=-1)
    layers = 1 + max((int(parts[2]) for parts in of_place if parts[2] != "output"), default=-1)
    return places, layers


def expected(kind: str, places: int, layers: int, n_embd: int, n_vocab: int) -> dict[str, tuple[int, ...]]:
    """The tensors that a head has, and their shapes. Biases of output matrices may be missing."""
    found: dict[str, tuple[int, ...]] = {}
    for k in range(places):
        for i in range(layers):
            columns = (k + 2) * n_embd if kind == "hydra" and i == 0 else n_embd
            for name in ("linear", "straight") if kind == "hydra" and i == 0 else ("linear",):
                found[f"place.{k}.{i}.{name}.weight"], found[f"place.{k}.{i}.{name}.bias"] = (
                    (n_embd, columns),
                    (n_embd,),
                )
        found[f"place.{k}.output.weight"], found[f"place.{k}.output.bias"] = (n_vocab, n_embd), (n_vocab,)
    return found


def converted(head: Path, target: Path, output: Path, file_type: str = "Q8_0") -> Path:
    """Write the GGUF.

    Args:
        head: the file of the head's weights. A config.json beside it is looked at, too.
        target: the GGUF of its model.
        output: the file to write.
        file_type: one of `TYPES`, for matrices whose rows can be divided into blocks; other matrices are F16.

    Raises:
        ValueError: the head has another form, or is for another model.
        OSError: a file cannot be read or written.
    """
    if output.exists() and (output.samefile(head) or output.samefile(target)):
        raise ValueError(f"the output {output} is an input: name another file")
    values = read_whole_header(target)[0]
    tokens = values.get("tokenizer.ggml.tokens")
    n_embd = values.get(f"{architecture_of(values)}.embedding_length")
    if not isinstance(tokens, list) or not isinstance(n_embd, int):
        raise ValueError(f"{target} is no language model: give the GGUF of the model that the head is for")
    config = head.with_name("config.json")
    offset = json.loads(config.read_text(encoding="utf-8")).get("hidden_state_offset", 0) if config.exists() else 0
    if offset:
        raise ValueError(
            f"{config}: the head reads the state {offset} layers before the final one (hidden_state_offset)"
        )
    kind, found = named(read_weights(head), head)
    places, layers = sizes_of(found)
    if not 0 < places <= len(found) or layers > len(found):
        raise ValueError(f"{head} holds no whole head")
    wanted = expected(kind, places, layers, n_embd, len(tokens))
    for name, shape in wanted.items():
        if name not in found and not name.endswith("output.bias"):
            raise ValueError(f"{head} is damaged: it has nothing for {name}")
        if name in found and found[name].shape != shape:
            raise ValueError(
                f"{head} is for another model than {target}: what becomes {name} has the shape "
                f"{found[name].shape}, and must have {shape}"
            )
    if left := found.keys() - wanted.keys():
        raise ValueError(f"{head} has what no head of the kind {kind} has: {', '.join(sorted(left))}")
    architecture = ARCHITECTURES[kind]
    with replacing(output, durable=True) as temporary:
        writer = gguf.GGUFWriter(temporary, architecture)
        writer.add_name(head.stem)
        for name, number in (
            *(("embedding_length", n_embd), ("vocab_size", len(tokens))),
            *(("place_count", places), ("layer_count", layers)),
        ):
            writer.add_uint32(f"{architecture}.{name}", number)
        writer.add_string("specllama.target.vocabulary", vocabulary_hash(tokens))
        for name, weight in found.items():
            _add(writer, name, weight.read(), file_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return output


def _add(writer: Any, name: str, numbers: Floats, file_type: str) -> None:
    if numbers.ndim == 1 or file_type == "F32":
        writer.add_tensor(name, np.ascontiguousarray(numbers))
    elif file_type == "F16" or numbers.shape[1] % _BLOCK:
        writer.add_tensor(name, numbers.astype(np.float16))
    else:
        kind = gguf.GGMLQuantizationType[file_type]
        writer.add_tensor(name, gguf.quants.quantize(numbers, kind), raw_dtype=kind)


def main(line: list[str] | None = None) -> int:
    """Convert one head."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("head", type=Path, metavar="HEAD")
    parser.add_argument("target", type=Path, metavar="TARGET.gguf")
    parser.add_argument("output", type=Path, metavar="OUT.gguf")
    parser.add_argument("--type", choices=TYPES, default=TYPES[0], help="of its matrices, default Q8_0")
    arguments = parser.parse_args(line)
    try:
        print(converted(arguments.head, arguments.target, arguments.output, arguments.type))
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
